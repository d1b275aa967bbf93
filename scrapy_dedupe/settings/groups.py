"""The checked settings of a crawl: a frozen dataclass for each layer, and :class:`Settings` with all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from scrapy.utils.conf import closest_scrapy_cfg, get_config
from scrapy.utils.project import DATADIR_CFG_SECTION, inside_project

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class UrlSettings:
    """Settings of the dupefilter. ``store_url`` is None for a filter that is not shared."""

    enabled: bool
    capacity: int
    error_rate: float
    record_start: bool
    flush_s: float
    store_url: str | None
    key: str
    persist: bool
    queue_persists: bool
    forget_failed: bool
    confirm: bool

    def key_for(self, spider_name: str) -> str:
        """The name of the filter in Redis; different for each spider if it has ``%(spider)s``.

        A spider's name may have any characters. Those that a key cannot have, and ``%``, are percent-encoded.
        """
        plain = re.sub(
            "[{}%\ud800-\udfff]",
            lambda match: quote(match[0], safe="", errors="surrogatepass"),
            spider_name,
        )
        return self.key % {"spider": plain}


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """Settings of the content middleware. The ``near_*`` mappings have a value for each content type; ``*`` is the default."""

    enabled: bool
    store_url: str
    canonicalizer: str
    near_threshold: Mapping[str, float]
    near_recall: Mapping[str, float]
    near_num_perm: Mapping[str, int]
    near_shingle_size: Mapping[str, int]
    near_min_chars: Mapping[str, int]
    template_guard: bool
    max_bytes: int
    ttl_s: float | None
    action_unchanged: str
    action_exact: str
    action_near: str


@dataclass(frozen=True, slots=True)
class WarcSettings:
    """Settings of the WARC pipeline. Sizes are in bytes. Empty ``mime_types`` means all types."""

    enabled: bool
    index_url: str
    folder: Path
    prefix: str
    file_size: int
    gzip: bool
    gzip_level: int
    digest: str
    min_size: int
    queue_bytes: int
    scope: str
    revisit: bool
    statuses: frozenset[int]
    mime_types: frozenset[str]
    check_files: bool
    blackout_s: float | None
    rendered: str
    name: str
    item_field: str | None
    upload_url: str | None
    crawl_id: str | None
    commit_reasons: tuple[str, ...]
    payload: str
    concurrent: bool


@dataclass(frozen=True, slots=True)
class WaczSettings:
    """Settings for packing a crawl as WACZ."""

    enabled: bool
    folder: Path
    text: bool
    keep_warc: bool


@dataclass(frozen=True, slots=True)
class PassageSettings:
    """Settings of the passage index of a crawl. Without ``folder`` it is in Scrapy's data folder."""

    enabled: bool
    folder: Path | None
    tokeniser: str
    store_text: bool

    @property
    def root(self) -> Path:
        """The folder of the index."""
        return self.folder or in_data_folder("dedupe/passages")


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Settings of the replay middleware. ``files`` has file names and patterns; empty: no replay."""

    files: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Paths of the HTML report and the log of duplicates; None: not written. Paths may have ``%(name)s`` and ``%(time)s``.

    ``logged_layers``: the layers whose duplicates are logged.
    """

    page: str | None
    duplicates_log: str | None
    logged_layers: frozenset[str]


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where metrics are available for Prometheus: at a port (0: none), or in a file that is written at an interval.

    The path of the file may have ``%(name)s`` and ``%(time)s``.
    """

    port: int
    address: str
    file: str | None
    every_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one crawl."""

    urls: UrlSettings
    content: ContentSettings
    warc: WarcSettings
    wacz: WaczSettings
    passages: PassageSettings
    replay: ReplaySettings
    report: ReportSettings
    metrics: MetricsSettings
    store_timeout_s: float
    on_store_error: str
    jobdir: Path | None

    def without_memory(self) -> Settings:
        """The same settings for a process that keeps nothing: a URL filter in memory, and no job folder."""
        urls = replace(
            self.urls, store_url=None, persist=False, queue_persists=False, forget_failed=False, confirm=False
        )
        return replace(self, urls=urls, jobdir=None)

    @property
    def content_url(self) -> str:
        return self.content.store_url

    @property
    def index_url(self) -> str:
        return self.warc.index_url


def in_data_folder(name: str) -> Path:
    """The path of *name* in Scrapy's data folder, ``.scrapy``. The folder need not exist, and is not created."""
    # scrapy.utils.project.data_path() would create the folder.
    if not inside_project():
        return Path(".scrapy", name)
    if named := get_config().get(DATADIR_CFG_SECTION, "default", fallback=None):
        return Path(named, name)
    # SCRAPY_SETTINGS_MODULE may be set without a scrapy.cfg.
    cfg = closest_scrapy_cfg()
    return Path(Path(cfg).parent.resolve() if cfg else "", ".scrapy", name)
