"""The settings of a crawl as its layers use them: one frozen dataclass a layer, and :class:`Settings` with all."""

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
    """What the dupefilter needs. ``store_url`` is None for a filter of this process alone."""

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
    """What the content middleware needs. The ``near_*`` map content types, and ``*`` for all others, to values."""

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
    """What the WARC pipeline needs. Sizes in bytes. Empty ``mime_types`` means all of them."""

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
    """What packing a crawl as WACZ needs."""

    enabled: bool
    folder: Path
    text: bool
    keep_warc: bool


@dataclass(frozen=True, slots=True)
class PassageSettings:
    """What the passage index of a crawl needs. Without ``folder`` it is in Scrapy's data folder."""

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
    """What the replay middleware needs. ``files`` are names and patterns; empty: no replay."""

    files: tuple[str, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Where the page of the report and the log of duplicates go; None: nowhere. Paths may have ``%(name)s`` in them.

    ``logged_layers``: which duplicates are in the log, by layer.
    """

    page: str | None
    duplicates_log: str | None
    logged_layers: frozenset[str]


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where Prometheus finds the metrics: at a port (0: none) of an address, or in a file; and how often that is written.

    In the path of the file there may be names that are yet to be filled in.
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
    """Where *name* is in Scrapy's data folder, ``.scrapy``. The folder need not exist, and is not made."""
    # As scrapy.utils.project.data_path(), which makes the folder as soon as it is asked for its name.
    if not inside_project():
        return Path(".scrapy", name)
    if named := get_config().get(DATADIR_CFG_SECTION, "default", fallback=None):
        return Path(named, name)
    # With the settings of a module that SCRAPY_SETTINGS_MODULE names there may be no scrapy.cfg.
    cfg = closest_scrapy_cfg()
    return Path(Path(cfg).parent.resolve() if cfg else "", ".scrapy", name)
