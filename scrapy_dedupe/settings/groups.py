"""All ``DEDUPE_*`` settings, each declared once: a frozen dataclass for each layer, and :class:`Settings` with all.

A field made by :func:`~.values.setting` has the name, default, check and help of its setting. A test compares the
reference page of the docs with these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from scrapy.utils.conf import closest_scrapy_cfg, get_config
from scrapy.utils.project import DATADIR_CFG_SECTION, inside_project

from scrapy_dedupe.warc.files import DEFAULT_NAME

from .values import (
    FILE_NAME,
    FILE_PATTERNS,
    NAMED_PATH,
    PATH,
    REASONS,
    STORAGE,
    STORE,
    URL_KEY,
    URL_STORE,
    choice,
    each,
    flag,
    integer,
    matching,
    mime_type,
    name_of,
    number,
    per_type,
    setting,
    some_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

DUPLICATES_LOG_LAYERS: Final = ("url", "content", "warc")

# ruff: noqa: RUF009 - setting() returns a field
# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSettings:
    """Settings of the dupefilter. ``store_url`` is None for a filter that is not shared."""

    enabled: bool = flag("DEDUPE_URL_ENABLED", True, "Whether the add-on enables the URL filter.")
    store_url: str | None = setting("DEDUPE_URL_STORE_URL", None, URL_STORE,
        'The location of the URL filter. "local" means in the memory of the process, and in JOBDIR if that is set.'
        ' Default: Redis if DEDUPE_STORE_URL names a Redis server, otherwise "local".')
    capacity: int = setting("DEDUPE_URL_CAPACITY", None, integer(1),
        "The number of URLs that the filter is sized for. It grows if there are more. Default: 10,000 or"
        " CLOSESPIDER_PAGECOUNT times DEDUPE_URLS_PER_PAGE, whichever is larger.", "URLs")
    urls_per_page: int = setting("DEDUPE_URLS_PER_PAGE", 10, integer(1),
        "The expected number of different URLs per page, used to size the filter from"
        " CLOSESPIDER_PAGECOUNT.", "URLs")
    error_rate: float = setting(
        "DEDUPE_URL_ERROR_RATE", 1e-6, number("a number from 1e-12 to 0.5", lambda n: 1e-12 <= n <= 0.5),
        "The maximum share of new URLs that the filter mistakes for seen ones. Such a page is never requested.")
    record_start: bool = flag("DEDUPE_URL_RECORD_START", True,
        "Whether start requests are recorded. They are never filtered, but if they are recorded, a link to the"
        " home page does not request it again.")
    flush_s: float = setting(
        "DEDUPE_URL_FLUSH_SECONDS", 1.0, number("a number above 0, at most 3600", lambda n: 0 < n <= 3600),
        "The interval at which done pages without new links are written to JOBDIR. After a kill the"
        " pages of about the last two intervals are requested again.", "seconds")
    forget_failed: bool = flag("DEDUPE_URL_FORGET_FAILED", None,
        "Whether the next run may request a failed request again if it finds the URL. Default: True with JOBDIR,"
        " otherwise False.")
    confirm: bool = flag("DEDUPE_URL_CONFIRM", False,
        "Whether each hit of the filter is confirmed in an exact set on disk, so that no new URL is mistaken for a"
        " seen one. Not possible with a filter in Redis.")
    key: str = setting("DEDUPE_URL_KEY", "%(spider)s", URL_KEY,
        "The name of the filter in Redis. Processes with the same name share the filter. %(spider)s is replaced by"
        " the spider's name, in which braces and percent signs are percent-encoded.")
    rules: Path | None = setting("DEDUPE_URL_RULES", None, PATH,
        "A file of URL rules, as written by scrapy dedupe urls learn. Of the URLs that lead to the same page"
        " according to the rules, only one is requested. Needs the content layer. Not possible with a queue in Redis. Default: none.")
    probe_share: float = setting(
        "DEDUPE_URL_RULES_PROBE", 0.01, number("a number from 0 to 1", lambda n: 0 <= n <= 1),
        "How many of the requests that a URL rule filters are made nevertheless, to compare the pages: 0.01 is one in a"
        " hundred. In addition, the first 3 requests of each rule are made, the 8th, 16th, 32nd and so on, and before the"
        " crawl ends a random sample, until 20 pairs of pages have been compared for the rule.")
    persist: bool
    queue_persists: bool

    def key_for(self, spider_name: str) -> str:
        """The name of the filter in Redis; different for each spider if it has ``%(spider)s``.

        A spider's name may have any characters. Characters that a key cannot have, and ``%``, are percent-encoded.
        """
        plain = re.sub(
            "[{}%\ud800-\udfff]",
            lambda match: quote(match[0], safe="", errors="surrogatepass"),
            spider_name,
        )
        return self.key % {"spider": plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentSettings:
    """Settings of the content middleware. The ``near_*`` mappings have values by content type; ``*`` is the default."""

    enabled: bool = flag("DEDUPE_CONTENT_ENABLED", True, "Whether the add-on enables the content middleware.")
    store_url: str = setting("DEDUPE_CONTENT_STORE_URL", None, STORE,
        "The store for the texts of pages. Default: DEDUPE_STORE_URL.")
    canonicalizer: str = setting("DEDUPE_CANONICALIZER", "text", choice("text", "html", "raw"),
        "What is compared: the text of a page (text); its text, link targets and image sources (html); or the"
        " decoded body (raw).")
    near_threshold: Mapping[str, float] = setting(
        "DEDUPE_NEAR_THRESHOLD", 0.85, per_type(number("a number from 0.5 to 1", lambda n: 0.5 <= n <= 1)),
        "The minimum estimated Jaccard similarity of near duplicates. 1 disables the near layer.")
    near_recall: Mapping[str, float] = setting(
        "DEDUPE_NEAR_RECALL", 0.99, per_type(number("a number from 0.5 to 0.9999", lambda n: 0.5 <= n <= 0.9999)),
        "The share of the pairs of texts at the threshold that the index must find. It determines the bands (see"
        " scrapy dedupe content curve).")
    near_num_perm: Mapping[str, int] = setting("DEDUPE_NEAR_NUM_PERM", 128, per_type(integer(16, 512)),
        "The number of rows of a signature. More rows make the estimate more precise, but take more time"
        " and space.", "rows")
    near_shingle_size: Mapping[str, int] = setting("DEDUPE_NEAR_SHINGLE_SIZE", 7, per_type(integer(2, 64)),
        "The length of the shingles by which texts are compared.", "characters")
    near_min_chars: Mapping[str, int] = setting("DEDUPE_NEAR_MIN_CHARS", 200, per_type(integer(0)),
        "The minimum length of a text for near duplicates. Shorter texts are only compared for"
        " equality.", "characters")
    near_identity: bool = flag("DEDUPE_NEAR_IDENTITY", True,
        "Whether titles and URLs decide together with the texts which pages are near duplicates, so that different"
        " pages made from one template are not.")
    template_guard: bool = flag("DEDUPE_TEMPLATE_GUARD", True,
        "Whether the text that a host repeats on many of its pages is ignored in the comparison, so that pages"
        " that share only a template are not near duplicates.")
    ttl_s: float | None = setting(
        "DEDUPE_CONTENT_TTL", None, number("a number of seconds, at least 1", lambda n: n >= 1),
        "How long a text is remembered after its first capture. Default: forever.", "seconds")
    max_bytes: int = setting("DEDUPE_CONTENT_MAX_BYTES", 4_000_000, integer(1),
        "The maximum size of a body. Larger bodies are not compared.", "bytes")
    action_unchanged: str = setting("DEDUPE_ACTION_UNCHANGED", "mark", choice("mark", "drop"),
        "What happens to a page whose text is equal to that of an earlier capture of its URL.")
    action_exact: str = setting("DEDUPE_ACTION_EXACT", "mark", choice("mark", "drop"),
        "What happens to a page whose text is equal to that of a page at another URL.")
    action_near: str = setting("DEDUPE_ACTION_NEAR", "mark", choice("mark", "drop"),
        "What happens to a page whose text is nearly equal to that of an earlier page.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarcSettings:
    """Settings of the WARC pipeline and of its crawl in the index. Empty ``mime_types`` means all types."""

    enabled: bool = flag("DEDUPE_WARC_ENABLED", True, "Whether the add-on enables the WARC pipeline.")
    index_url: str = setting("DEDUPE_INDEX_URL", None, STORE,
        "The store for the crawl index, which cannot be in a Redis Cluster. Default: DEDUPE_STORE_URL.")
    folder: Path = setting("DEDUPE_WARC_DIR", "warcs", PATH,
        "The folder of the WARC files. A relative path is relative to the working directory. It is created if it"
        " does not exist.")
    prefix: str | None = setting("DEDUPE_WARC_PREFIX", None, name_of(64),
        "The prefix of file names. Default: the spider's name, or crawl if the name has none of these characters.")
    name: str = setting("DEDUPE_WARC_NAME", DEFAULT_NAME, FILE_NAME,
        "The template for file names, without .warc.gz. {timestamp} is the UTC time in 17 digits, {crawl} the id"
        " of the crawl. Without either, only {serial} makes names unique, and it starts over with another index.")
    file_size: int = setting("DEDUPE_WARC_FILE_SIZE", 1_000_000_000, integer(1_000),
        "The size at which a new file is started. An exchange is never split.", "bytes")
    gzip: bool = flag("DEDUPE_WARC_GZIP", True, "Whether each record is compressed as a gzip member.")
    gzip_level: int = setting("DEDUPE_WARC_GZIP_LEVEL", 4, integer(1, 12),
        "The compression level: 1 is the fastest, 12 compresses best. Records of less than 4 kB always have level 1,"
        " since other levels hardly make them smaller.")
    digest: str = setting("DEDUPE_WARC_DIGEST", "sha256", choice("sha256", "sha1"),
        "The algorithm of the payload and block digests. A crawl looks up payloads by this digest, so it finds only"
        " originals that have one. wget, warcio and Heritrix write SHA-1 by default.")
    min_size: int = setting("DEDUPE_WARC_MIN_SIZE", 1_024, integer(1),
        "The minimum size of a payload for a revisit record. Smaller payloads are always stored, since a"
        " revisit record would save little or nothing.", "bytes")
    queue_bytes: int = setting("DEDUPE_WARC_QUEUE_BYTES", 64_000_000, integer(1_000_000),
        "The maximum amount of data that waits to be written. No new requests are started while it is"
        " exceeded.", "bytes")
    scope: str = setting("DEDUPE_WARC_SCOPE", "responses", choice("responses", "items"),
        "Whether every HTTP exchange is recorded, or only the responses that the spider yields as"
        " WarcItem(response).")
    revisit: bool = flag("DEDUPE_WARC_REVISIT", True,
        "Whether known payloads become revisit records. Otherwise every payload is stored.")
    statuses: frozenset[int] = setting(
        "DEDUPE_WARC_STATUSES", (200,), each("a list of HTTP statuses", integer(100, 599).read),
        "The statuses of responses that may become a revisit record or its original.")
    mime_types: frozenset[str] = setting(
        "DEDUPE_WARC_MIME_TYPES", (), each("a list of MIME types such as text/html", mime_type),
        "The MIME types of responses that may become a revisit record or its original. Empty: all types.")
    check_files: bool = flag("DEDUPE_WARC_CHECK_FILES", True,
        "Whether a revisit refers to an original only if the record is found in the WARC file at the offset in the"
        " index. Otherwise the payload is stored again. Disable this if files are moved after the crawl or"
        " machines share the index.")
    blackout_s: float | None = setting(
        "DEDUPE_WARC_BLACKOUT", None, number("a number of seconds above 0", lambda n: n > 0),
        "How long after a payload was recorded the same payload of the same URL is not recorded again,"
        " not even as a revisit. Default: it is always recorded.", "seconds")
    rendered: str = setting("DEDUPE_WARC_RENDERED", "skip", choice("skip", "resource"),
        "What happens to a response that differs from what the server sent, because a browser rendered it or a"
        " download handler decoded it. With skip it is not archived. With resource a complete page with status 200"
        " becomes a resource record, which is never an original.")
    item_field: str | None = setting("DEDUPE_WARC_ITEM_FIELD", None, matching(r"\S+", "the name of a field"),
        'The item field that receives the value of response.meta["warc"], which describes the record of the'
        " response. Default: none.")
    upload_url: str | None = setting("DEDUPE_WARC_UPLOAD_URL", None, STORAGE,
        "Where finished files are moved during the crawl or, with DEDUPE_WACZ, when the crawl is committed."
        " Default: they are not moved. Needs the extra storage.")
    crawl_id: str | None = setting("DEDUPE_CRAWL_ID", None, name_of(128),
        "The name of the crawl in the index. Default: made of the spider's name, the time and a random part, and"
        " stored in JOBDIR.")
    commit_reasons: tuple[str, ...] = setting("DEDUPE_COMMIT_REASONS", ("finished", "closespider_*"), REASONS,
        "A crawl that ends with one of these finish reasons is committed. Any other crawl stays uncommitted until you"
        " commit or cancel it.")
    payload: str = setting("DEDUPE_PAYLOAD", "stored", choice("stored", "decoded"),
        "Whether bodies are stored and compared as the server sent them, or with their content coding (gzip, br)"
        " decoded, as Browsertrix does. All crawls of an index must use the same value.")
    http_cache: bool = flag("DEDUPE_HTTPCACHE", False,
        "Whether the add-on makes the archive the storage of Scrapy's HTTP cache, so that a crawl downloads only pages"
        " that have changed. It sets HTTPCACHE_ENABLED, HTTPCACHE_STORAGE and, unless the project sets one,"
        " HTTPCACHE_POLICY to the policy of RFC 2616.")
    concurrent: bool = flag("DEDUPE_CONCURRENT", False,
        "Whether other crawls may refer to the records of this crawl as soon as they are written, instead of only"
        " after it is committed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaczSettings:
    """Settings for packing a crawl as WACZ."""

    enabled: bool = flag(
        "DEDUPE_WACZ", False, "Whether a committed crawl is packed as a WACZ file. Needs the extra wacz.")
    folder: Path = setting("DEDUPE_WACZ_DIR", "wacz", PATH,
        "The folder of the WACZ files. A relative path is relative to the working directory. It is created if it"
        " does not exist.")
    text: bool = flag("DEDUPE_WACZ_TEXT", False,
        "Whether the page list of a WACZ file includes the texts of pages, for full-text search.")
    keep_warc: bool = flag(
        "DEDUPE_WACZ_KEEP_WARC", True, "Whether the WARC files are kept after they are packed in a WACZ file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageSettings:
    """Settings of the passage index of a crawl. Without ``folder`` it is in Scrapy's data folder."""

    enabled: bool = flag("DEDUPE_PASSAGES", False,
        "Whether the texts of pages are added to a passage index, in which scrapy dedupe passages finds repeated"
        " passages.")
    folder: Path | None = setting("DEDUPE_PASSAGES_DIR", None, PATH,
        "The folder of the passage index. It is created if it does not exist. Default: dedupe/passages in Scrapy's"
        " data folder (.scrapy).")
    tokeniser: str = setting("DEDUPE_PASSAGES_TOKENISER", "words", choice("words", "cjk", "code"),
        "How texts are split into tokens. words: words. cjk: words, and single characters of scripts without"
        " spaces. code: identifiers, numbers and symbols of source code. All texts of an index use the same"
        " tokeniser.")
    store_text: bool = flag("DEDUPE_PASSAGES_TEXT", True,
        "Whether the index stores the texts, compressed. Without them only the positions of passages are known.")

    @property
    def root(self) -> Path:
        """The folder of the index."""
        return self.folder or in_data_folder("dedupe/passages")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Settings of the replay middleware. ``files`` has file names and patterns; empty: no replay."""

    files: tuple[str, ...] = setting("DEDUPE_REPLAY", (), FILE_PATTERNS,
        "The WARC, ARC, WACZ and multi-WACZ JSON files from which requests are answered instead of from the"
        " network. DEDUPE_REPLAY_MISSING decides about requests that are not in them.")
    missing: str = setting("DEDUPE_REPLAY_MISSING", "fail", choice("fail", "fetch"),
        "What happens to a request without an answer in DEDUPE_REPLAY: it fails with NotInArchive, or it is"
        " fetched from the network.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """Paths of the HTML report and the log of duplicates; None: not written."""

    page: str | None = setting("DEDUPE_REPORT", None, NAMED_PATH,
        "The path of the HTML report that is written at the end of the crawl. An existing file is replaced."
        " %(name)s is replaced by the spider's name, %(time)s by the start time. Needs the extra report. Default:"
        " none; scrapy dedupe report creates a report at any time.")
    duplicates_log: str | None = setting("DEDUPE_DUPLICATES_LOG", None, NAMED_PATH,
        "The path of a file to which a line of JSON is appended for each duplicate request, page and exchange."
        " Placeholders as in DEDUPE_REPORT. Default: none.")
    logged_layers: frozenset[str] = setting(
        "DEDUPE_DUPLICATES_LOG_LAYERS", DUPLICATES_LOG_LAYERS, some_of(*DUPLICATES_LOG_LAYERS),
        "The duplicates that are logged: filtered requests (url), pages whose text was read before (content), and"
        " exchanges whose body is in the archive (warc). Nearly all lines are of filtered requests: a crawl of"
        " 3,500 pages of manuals that link to each other logged 170,642 of these (64 MB) and about 850 others.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus finds metrics: at a port (0: none), or in a file that is written at an interval."""

    port: int = setting("DEDUPE_METRICS_PORT", 0, integer(0, 65535),
        "The port at which Prometheus can read metrics during the crawl; 0: none. Needs the extra prometheus.")
    address: str = setting("DEDUPE_METRICS_ADDRESS", "127.0.0.1", matching(r"[^\s/]+", "an address or a host name"),
        "The address for DEDUPE_METRICS_PORT. With the default only this machine can connect.")
    file: str | None = setting("DEDUPE_METRICS_FILE", None, NAMED_PATH,
        "The path of a file to which the metrics are written as text, for the textfile collector of node_exporter."
        " It is replaced atomically. Placeholders as in DEDUPE_REPORT. Needs the extra prometheus. Default: none.")
    every_s: float = setting(
        "DEDUPE_METRICS_SECONDS", 15.0, number("a number from 1 to 3600", lambda n: 1 <= n <= 3600),
        "The interval at which DEDUPE_METRICS_FILE is written.", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one crawl."""

    store_url: str = setting("DEDUPE_STORE_URL", None, STORE,
        "The store for all layers, unless one of the next three settings names another store. Default: the file"
        " dedupe/dedupe.sqlite in Scrapy's data folder (.scrapy).")
    store_timeout_s: float = setting(
        "DEDUPE_STORE_TIMEOUT", 5.0, number("a number above 0, at most 600", lambda n: 0 < n <= 600),
        "The timeout of a single call to a store. A store that does not answer in time counts as"
        " unavailable.", "seconds")
    on_store_error: str = setting("DEDUPE_ON_STORE_ERROR", "continue", choice("continue", "close"),
        "What to do if a store becomes unavailable during the crawl: continue and treat pages as new, or close the"
        " spider with the reason dedupe_store_error.")
    gc_freeze: bool | None = flag(
        "DEDUPE_GC_FREEZE", None,
        "Whether Python's garbage collection ignores the objects that exist when the crawl starts, and searches the other"
        " objects less often, until the last crawl of the process has stopped. This saves CPU time, but affects the"
        " whole process. Default: True if a Scrapy command such as scrapy crawl runs the crawl, False if your own program"
        " does.")
    urls: UrlSettings
    content: ContentSettings
    warc: WarcSettings
    wacz: WaczSettings
    passages: PassageSettings
    replay: ReplaySettings
    report: ReportSettings
    metrics: MetricsSettings
    jobdir: Path | None

    def without_memory(self) -> Settings:
        """The same settings for a process that keeps nothing: a URL filter in memory, and no job folder."""
        urls = replace(
            self.urls,
            store_url=None,
            rules=None,
            persist=False,
            queue_persists=False,
            forget_failed=False,
            confirm=False,
        )
        return replace(self, urls=urls, jobdir=None)


# fmt: on


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
