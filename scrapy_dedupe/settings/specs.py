"""The specification of every ``DEDUPE_*`` setting: its default, unit, check and help. Settings are only read here.

:func:`read_settings` converts Scrapy's settings to the frozen dataclasses of :mod:`.groups`. A wrong value raises
:class:`~scrapy_dedupe.errors.SettingError` with the name, the value and the allowed values. A test compares the
reference page of the docs with :data:`SPECS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.location import ALLOWED as ALLOWED_STORES
from scrapy_dedupe.stores.location import NAMELESS, parse_store_url, shown_value
from scrapy_dedupe.warc.files import DEFAULT_NAME

from .groups import (
    ContentSettings,
    MetricsSettings,
    PassageSettings,
    ReplaySettings,
    ReportSettings,
    Settings,
    UrlSettings,
    WaczSettings,
    WarcSettings,
    in_data_folder,
)
from .values import (
    LOCAL,
    boolean,
    choice,
    file_name,
    file_patterns,
    for_types,
    integer,
    matching,
    mime_types,
    named_path,
    number,
    path,
    per_type,
    reasons,
    some_of,
    statuses,
    storage,
    store,
    url_key,
    url_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.settings import BaseSettings

MIN_URL_CAPACITY: Final = 10_000
DUPLICATES_LOG_LAYERS: Final = ("url", "content", "warc")
_ACTIONS: Final = ("mark", "drop")


@dataclass(frozen=True, slots=True)
class Spec:
    """One setting. ``read`` converts the raw value, which is never None, and raises ValueError if it is wrong."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    allowed: str
    help: str
    unit: str = ""


_FLAG = "True or False"
_NAMED_PATH = "a path; it may contain %(name)s and %(time)s"

SPECS: Final[tuple[Spec, ...]] = (
    # Stores
    Spec("DEDUPE_STORE_URL", None, store, ALLOWED_STORES,
         "The store for all layers, unless one of the next three settings names another store. Default: the file"
         " dedupe/dedupe.sqlite in Scrapy's data folder (.scrapy)."),
    Spec("DEDUPE_URL_STORE_URL", None, url_store, '"local", redis://host:port/db, rediss://… or unix:///path.sock',
         'The location of the URL filter. "local" means in the memory of the process, and in JOBDIR if that is set.'
         ' Default: Redis if DEDUPE_STORE_URL names a Redis server, otherwise "local".'),
    Spec("DEDUPE_CONTENT_STORE_URL", None, store, ALLOWED_STORES,
         "The store for the texts of pages. Default: DEDUPE_STORE_URL."),
    Spec("DEDUPE_INDEX_URL", None, store, ALLOWED_STORES,
         "The store for the crawl index. Default: DEDUPE_STORE_URL."),
    Spec("DEDUPE_STORE_TIMEOUT", 5.0, number(lambda n: 0 < n <= 600), "a number above 0, at most 600",
         "The timeout of a single call to a store. A store that does not answer in time counts as"
         " unavailable.", "seconds"),
    Spec("DEDUPE_ON_STORE_ERROR", "continue", choice("continue", "close"), '"continue" or "close"',
         "What to do if a store becomes unavailable during the crawl: continue and treat pages as new, or close the"
         " spider with the reason dedupe_store_error."),
    # URLs
    Spec("DEDUPE_URL_ENABLED", True, boolean, _FLAG, "Whether the add-on enables the URL filter."),
    Spec("DEDUPE_URL_CAPACITY", None, integer(1), "a whole number of at least 1",
         "The number of URLs that the filter is sized for. It grows if there are more. Default: 10,000 or"
         " CLOSESPIDER_PAGECOUNT times DEDUPE_URLS_PER_PAGE, whichever is larger.", "URLs"),
    Spec("DEDUPE_URLS_PER_PAGE", 10, integer(1), "a whole number of at least 1",
         "The expected number of different URLs per page, used to size the filter from"
         " CLOSESPIDER_PAGECOUNT.", "URLs"),
    Spec("DEDUPE_URL_ERROR_RATE", 1e-6, number(lambda n: 1e-12 <= n <= 0.5), "a number from 1e-12 to 0.5",
         "The maximum share of new URLs that the filter mistakes for seen ones. Such a page is never requested."),
    Spec("DEDUPE_URL_RECORD_START", True, boolean, _FLAG,
         "Whether start requests are recorded. They are never filtered, but if they are recorded, a link to the"
         " home page does not request it again."),
    Spec("DEDUPE_URL_FLUSH_SECONDS", 1.0, number(lambda n: 0 < n <= 3600), "a number above 0, at most 3600",
         "The interval at which done pages without new links are written to JOBDIR. After a kill the"
         " pages of about the last two intervals are requested again.", "seconds"),
    Spec("DEDUPE_URL_FORGET_FAILED", None, boolean, _FLAG,
         "Whether the next run may request a failed request again if it finds the URL. Default: True with JOBDIR,"
         " otherwise False."),
    Spec("DEDUPE_URL_CONFIRM", False, boolean, _FLAG,
         "Whether each hit of the filter is confirmed in an exact set on disk, so that no new URL is mistaken for a"
         " seen one. Not possible with a filter in Redis."),
    Spec("DEDUPE_URL_KEY", "%(spider)s", url_key,
         "text without white space and braces; %(spider)s is allowed, and a percent sign is written %%",
         "The name of the filter in Redis. Processes with the same name share the filter. %(spider)s is replaced by"
         " the spider's name, in which braces and percent signs are percent-encoded."),
    # Content
    Spec("DEDUPE_CONTENT_ENABLED", True, boolean, _FLAG, "Whether the add-on enables the content middleware."),
    Spec("DEDUPE_CANONICALIZER", "text", choice("text", "html", "raw"), '"text", "html" or "raw"',
         "What is compared: the text of a page (text); its text, link targets and image sources (html); or the"
         " decoded body (raw)."),
    Spec("DEDUPE_NEAR_THRESHOLD", 0.85, per_type(number(lambda n: 0.5 <= n <= 1)),
         for_types("a number from 0.5 to 1"),
         "The minimum estimated Jaccard similarity of near duplicates. 1 disables the near layer."),
    Spec("DEDUPE_NEAR_RECALL", 0.99, per_type(number(lambda n: 0.5 <= n <= 0.9999)),
         for_types("a number from 0.5 to 0.9999"),
         "The share of the pairs of texts at the threshold that the index must find. It determines the bands (see"
         " scrapy dedupe content curve)."),
    Spec("DEDUPE_NEAR_NUM_PERM", 128, per_type(integer(16, 512)), for_types("a whole number from 16 to 512"),
         "The number of rows of a signature. More rows make the estimate more precise, but take more time"
         " and space.", "rows"),
    Spec("DEDUPE_NEAR_SHINGLE_SIZE", 7, per_type(integer(2, 64)), for_types("a whole number from 2 to 64"),
         "The length of the shingles by which texts are compared.", "characters"),
    Spec("DEDUPE_NEAR_MIN_CHARS", 200, per_type(integer(0)), for_types("a whole number of at least 0"),
         "The minimum length of a text for near duplicates. Shorter texts are only compared for"
         " equality.", "characters"),
    Spec("DEDUPE_TEMPLATE_GUARD", True, boolean, _FLAG,
         "Whether the text that a host repeats on many of its pages is ignored in the comparison, so that pages"
         " that share only a template are not near duplicates."),
    Spec("DEDUPE_CONTENT_TTL", None, number(lambda n: n >= 1), "a number of seconds, at least 1",
         "How long a text is remembered after its first capture. Default: forever.", "seconds"),
    Spec("DEDUPE_CONTENT_MAX_BYTES", 4_000_000, integer(1), "a whole number of at least 1",
         "The maximum size of a body. Larger bodies are not compared.", "bytes"),
    Spec("DEDUPE_ACTION_UNCHANGED", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page whose text is equal to that of an earlier capture of its URL."),
    Spec("DEDUPE_ACTION_EXACT", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page whose text is equal to that of a page at another URL."),
    Spec("DEDUPE_ACTION_NEAR", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page whose text is nearly equal to that of an earlier page."),
    # Archive
    Spec("DEDUPE_WARC_ENABLED", True, boolean, _FLAG, "Whether the add-on enables the WARC pipeline."),
    Spec("DEDUPE_WARC_DIR", "warcs", path, "a path",
         "The folder of the WARC files. A relative path is relative to the working directory. It is created if it"
         " does not exist."),
    Spec("DEDUPE_WARC_PREFIX", None, matching(r"[A-Za-z0-9._-]{1,64}"),
         "1 to 64 letters, digits, dots, underscores and hyphens",
         "The prefix of file names. Default: the spider's name, or crawl if the name has none of these characters."),
    Spec("DEDUPE_WARC_NAME", DEFAULT_NAME, file_name,
         "letters, digits, dots, underscores, hyphens and {prefix}, {timestamp}, {serial}, {host} and {crawl}; {serial}"
         " is required",
         "The template for file names, without .warc.gz. {timestamp} is the UTC time in 17 digits, {crawl} the id"
         " of the crawl. Without either, only {serial} makes names unique, and it starts over with another index."),
    Spec("DEDUPE_WARC_FILE_SIZE", 1_000_000_000, integer(1_000), "a whole number of at least 1000",
         "The size at which a new file is started. An exchange is never split.", "bytes"),
    Spec("DEDUPE_WARC_GZIP", True, boolean, _FLAG, "Whether each record is compressed as a gzip member."),
    Spec("DEDUPE_WARC_GZIP_LEVEL", 4, integer(1, 12), "a whole number from 1 to 12",
         "The compression level: 1 is the fastest, 12 compresses best."),
    Spec("DEDUPE_WARC_DIGEST", "sha256", choice("sha256", "sha1"), '"sha256" or "sha1"',
         "The algorithm of the payload and block digests."),
    Spec("DEDUPE_WARC_MIN_SIZE", 1_024, integer(1), "a whole number of at least 1",
         "The minimum size of a payload for a revisit record. Smaller payloads are always stored, since a"
         " revisit record would save little or nothing.", "bytes"),
    Spec("DEDUPE_WARC_QUEUE_BYTES", 64_000_000, integer(1_000_000), "a whole number of at least 1000000",
         "The maximum amount of data that waits to be written. No new requests are started while it is"
         " exceeded.", "bytes"),
    Spec("DEDUPE_WARC_SCOPE", "responses", choice("responses", "items"), '"responses" or "items"',
         "Whether every HTTP exchange is recorded, or only the responses that the spider yields as"
         " WarcItem(response)."),
    Spec("DEDUPE_WARC_REVISIT", True, boolean, _FLAG,
         "Whether known payloads become revisit records. Otherwise every payload is stored."),
    Spec("DEDUPE_WARC_STATUSES", (200,), statuses, "a list of HTTP statuses",
         "The statuses of responses that may become a revisit record or its original."),
    Spec("DEDUPE_WARC_MIME_TYPES", (), mime_types, "a list of MIME types such as text/html",
         "The MIME types of responses that may become a revisit record or its original. Empty: all types."),
    Spec("DEDUPE_WARC_CHECK_FILES", True, boolean, _FLAG,
         "Whether a revisit refers to an original only if the record is found in the WARC file at the offset in the"
         " index. Otherwise the payload is stored again. Disable this if files are moved after the crawl or"
         " machines share the index."),
    Spec("DEDUPE_WARC_BLACKOUT", None, number(lambda n: n > 0), "a number of seconds above 0",
         "How long after a payload was recorded the same payload of the same URL is not recorded again,"
         " not even as a revisit. Default: it is always recorded.", "seconds"),
    Spec("DEDUPE_WARC_RENDERED", "skip", choice("skip", "resource"), '"skip" or "resource"',
         "What happens to a response that differs from what the server sent, because a browser rendered it or a"
         " download handler decoded it. With skip it is not archived. With resource a complete page with status 200"
         " becomes a resource record, which is never an original."),
    Spec("DEDUPE_WARC_ITEM_FIELD", None, matching(r"\S+"), "the name of a field",
         'The item field that receives the value of response.meta["warc"], which describes the record of the'
         " response. Default: none."),
    Spec("DEDUPE_WARC_UPLOAD_URL", None, storage,
         "a folder, or a URL that fsspec knows, such as s3://bucket/folder",
         "Where finished files are moved during the crawl or, with DEDUPE_WACZ, when the crawl is committed."
         " Default: they are not moved. Needs the extra storage."),
    # WACZ
    Spec("DEDUPE_WACZ", False, boolean, _FLAG,
         "Whether a committed crawl is packed as a WACZ file. Needs the extra wacz."),
    Spec("DEDUPE_WACZ_DIR", "wacz", path, "a path",
         "The folder of the WACZ files. A relative path is relative to the working directory. It is created if it"
         " does not exist."),
    Spec("DEDUPE_WACZ_TEXT", False, boolean, _FLAG,
         "Whether the page list of a WACZ file includes the texts of pages, for full-text search."),
    Spec("DEDUPE_WACZ_KEEP_WARC", True, boolean, _FLAG,
         "Whether the WARC files are kept after they are packed in a WACZ file."),
    # Passages
    Spec("DEDUPE_PASSAGES", False, boolean, _FLAG,
         "Whether the texts of pages are added to a passage index, in which scrapy dedupe passages finds repeated"
         " passages."),
    Spec("DEDUPE_PASSAGES_DIR", None, path, "a path",
         "The folder of the passage index. It is created if it does not exist. Default: dedupe/passages in Scrapy's"
         " data folder (.scrapy)."),
    Spec("DEDUPE_PASSAGES_TOKENISER", "words", choice("words", "cjk", "code"), '"words", "cjk" or "code"',
         "How texts are split into tokens. words: words. cjk: words, and single characters of scripts without"
         " spaces. code: identifiers, numbers and symbols of source code. All texts of an index use the same"
         " tokeniser."),
    Spec("DEDUPE_PASSAGES_TEXT", True, boolean, _FLAG,
         "Whether the index stores the texts, compressed. Without them only the positions of passages are known."),
    # Crawls
    Spec("DEDUPE_CRAWL_ID", None, matching(r"[A-Za-z0-9._-]{1,128}"),
         "1 to 128 letters, digits, dots, underscores and hyphens",
         "The name of the crawl in the index. Default: made of the spider's name, the time and a random part, and"
         " stored in JOBDIR."),
    Spec("DEDUPE_COMMIT_REASONS", ("finished", "closespider_*"), reasons, "a list of finish reasons, * allowed",
         "The finish reasons with which a crawl is committed. Otherwise it stays uncommitted until you commit or"
         " cancel it."),
    Spec("DEDUPE_PAYLOAD", "stored", choice("stored", "decoded"), '"stored" or "decoded"',
         "Whether bodies are stored and compared as the server sent them, or with their content coding (gzip, br)"
         " decoded, as Browsertrix does. All crawls of an index must use the same value."),
    Spec("DEDUPE_CONCURRENT", False, boolean, _FLAG,
         "Whether other crawls may refer to the records of this crawl as soon as they are written, instead of only"
         " after it is committed."),
    # Replay
    Spec("DEDUPE_REPLAY", (), file_patterns, "a list of file names; the wildcards *, ? and ** are allowed",
         "The WARC, ARC, WACZ and multi-WACZ JSON files from which requests are answered instead of from the"
         " network. DEDUPE_REPLAY_MISSING decides about requests that are not in them."),
    Spec("DEDUPE_REPLAY_MISSING", "fail", choice("fail", "fetch"), '"fail" or "fetch"',
         "What happens to a request without an answer in DEDUPE_REPLAY: it fails with NotInArchive, or it is"
         " fetched from the network."),
    # Report and metrics
    Spec("DEDUPE_REPORT", None, named_path, _NAMED_PATH,
         "The path of the HTML report that is written at the end of the crawl. An existing file is replaced."
         " %(name)s is replaced by the spider's name, %(time)s by the start time. Needs the extra report. Default:"
         " none; scrapy dedupe report creates a report at any time."),
    Spec("DEDUPE_DUPLICATES_LOG", None, named_path, _NAMED_PATH,
         "The path of a file to which a line of JSON is appended for each duplicate request, page and exchange."
         " Placeholders as in DEDUPE_REPORT. Default: none."),
    Spec("DEDUPE_DUPLICATES_LOG_LAYERS", DUPLICATES_LOG_LAYERS, some_of(*DUPLICATES_LOG_LAYERS),
         'a list of "url", "content" and "warc", at least one of them',
         "The duplicates that are logged: filtered requests (url), pages whose text was read before (content), and"
         " exchanges whose body is in the archive (warc). Nearly all lines are of filtered requests: a crawl of"
         " 3,500 pages of manuals that link to each other logged 170,642 of these (64 MB) and about 850 others."),
    Spec("DEDUPE_METRICS_PORT", 0, integer(0, 65535), "a whole number from 0 to 65535",
         "The port at which Prometheus can read metrics during the crawl; 0: none. Needs the extra prometheus."),
    Spec("DEDUPE_METRICS_ADDRESS", "127.0.0.1", matching(r"[^\s/]+"), "an address or a host name",
         "The address for DEDUPE_METRICS_PORT. With the default only this machine can connect."),
    Spec("DEDUPE_METRICS_FILE", None, named_path, _NAMED_PATH,
         "The path of a file to which the metrics are written as text, for the textfile collector of node_exporter."
         " It is replaced atomically. Placeholders as in DEDUPE_REPORT. Needs the extra prometheus. Default: none."),
    Spec("DEDUPE_METRICS_SECONDS", 15.0, number(lambda n: 1 <= n <= 3600), "a number from 1 to 3600",
         "The interval at which DEDUPE_METRICS_FILE is written.", "seconds"),
)  # fmt: skip


def read_settings(settings: BaseSettings) -> Settings:
    """Read and check all settings. Raises :class:`SettingError` for the first wrong one."""
    values = {spec.name: _value(settings, spec) for spec in SPECS}
    if values["DEDUPE_WARC_ITEM_FIELD"] is not None and values["DEDUPE_WARC_SCOPE"] == "items":
        # Other items may be processed before the WarcItem that records their response.
        raise SettingError(
            'The setting DEDUPE_WARC_ITEM_FIELD needs DEDUPE_WARC_SCOPE = "responses". With "items", read the record of'
            " a WarcItem from item.response.meta['warc'] after the pipeline."
        )
    store_url = values["DEDUPE_STORE_URL"] or _default_store_url()
    jobdir = settings.get("JOBDIR")
    return Settings(
        urls=_url_settings(settings, values),
        content=ContentSettings(
            enabled=values["DEDUPE_CONTENT_ENABLED"],
            store_url=values["DEDUPE_CONTENT_STORE_URL"] or store_url,
            canonicalizer=values["DEDUPE_CANONICALIZER"],
            near_threshold=values["DEDUPE_NEAR_THRESHOLD"],
            near_recall=values["DEDUPE_NEAR_RECALL"],
            near_num_perm=values["DEDUPE_NEAR_NUM_PERM"],
            near_shingle_size=values["DEDUPE_NEAR_SHINGLE_SIZE"],
            near_min_chars=values["DEDUPE_NEAR_MIN_CHARS"],
            template_guard=values["DEDUPE_TEMPLATE_GUARD"],
            ttl_s=values["DEDUPE_CONTENT_TTL"],
            max_bytes=values["DEDUPE_CONTENT_MAX_BYTES"],
            action_unchanged=values["DEDUPE_ACTION_UNCHANGED"],
            action_exact=values["DEDUPE_ACTION_EXACT"],
            action_near=values["DEDUPE_ACTION_NEAR"],
        ),
        warc=WarcSettings(
            enabled=values["DEDUPE_WARC_ENABLED"],
            index_url=values["DEDUPE_INDEX_URL"] or store_url,
            folder=Path(values["DEDUPE_WARC_DIR"]),
            prefix=values["DEDUPE_WARC_PREFIX"] or "",
            file_size=values["DEDUPE_WARC_FILE_SIZE"],
            gzip=values["DEDUPE_WARC_GZIP"],
            gzip_level=values["DEDUPE_WARC_GZIP_LEVEL"],
            digest=values["DEDUPE_WARC_DIGEST"],
            min_size=values["DEDUPE_WARC_MIN_SIZE"],
            queue_bytes=values["DEDUPE_WARC_QUEUE_BYTES"],
            scope=values["DEDUPE_WARC_SCOPE"],
            revisit=values["DEDUPE_WARC_REVISIT"],
            statuses=frozenset(values["DEDUPE_WARC_STATUSES"]),
            mime_types=frozenset(values["DEDUPE_WARC_MIME_TYPES"]),
            check_files=values["DEDUPE_WARC_CHECK_FILES"],
            blackout_s=values["DEDUPE_WARC_BLACKOUT"],
            rendered=values["DEDUPE_WARC_RENDERED"],
            name=values["DEDUPE_WARC_NAME"],
            item_field=values["DEDUPE_WARC_ITEM_FIELD"],
            upload_url=values["DEDUPE_WARC_UPLOAD_URL"],
            crawl_id=values["DEDUPE_CRAWL_ID"],
            commit_reasons=tuple(values["DEDUPE_COMMIT_REASONS"]),
            payload=values["DEDUPE_PAYLOAD"],
            concurrent=values["DEDUPE_CONCURRENT"],
        ),
        wacz=WaczSettings(
            enabled=values["DEDUPE_WACZ"],
            folder=Path(values["DEDUPE_WACZ_DIR"]),
            text=values["DEDUPE_WACZ_TEXT"],
            keep_warc=values["DEDUPE_WACZ_KEEP_WARC"],
        ),
        passages=PassageSettings(
            enabled=values["DEDUPE_PASSAGES"],
            folder=values["DEDUPE_PASSAGES_DIR"],
            tokeniser=values["DEDUPE_PASSAGES_TOKENISER"],
            store_text=values["DEDUPE_PASSAGES_TEXT"],
        ),
        replay=ReplaySettings(files=values["DEDUPE_REPLAY"], missing=values["DEDUPE_REPLAY_MISSING"]),
        report=ReportSettings(
            page=values["DEDUPE_REPORT"],
            duplicates_log=values["DEDUPE_DUPLICATES_LOG"],
            logged_layers=values["DEDUPE_DUPLICATES_LOG_LAYERS"],
        ),
        metrics=MetricsSettings(
            port=values["DEDUPE_METRICS_PORT"],
            address=values["DEDUPE_METRICS_ADDRESS"],
            file=values["DEDUPE_METRICS_FILE"],
            every_s=values["DEDUPE_METRICS_SECONDS"],
        ),
        store_timeout_s=values["DEDUPE_STORE_TIMEOUT"],
        on_store_error=values["DEDUPE_ON_STORE_ERROR"],
        jobdir=Path(jobdir) if jobdir else None,
    )


def _url_settings(settings: BaseSettings, values: dict[str, Any]) -> UrlSettings:
    capacity = values["DEDUPE_URL_CAPACITY"]
    if capacity is None:
        pages = settings.getint("CLOSESPIDER_PAGECOUNT")
        capacity = max(MIN_URL_CAPACITY, pages * values["DEDUPE_URLS_PER_PAGE"])
    url = values["DEDUPE_URL_STORE_URL"] or values["DEDUPE_STORE_URL"]
    is_shared = url is not None and url != LOCAL and parse_store_url(url).is_redis
    if is_shared and values["DEDUPE_URL_CONFIRM"]:
        raise SettingError(
            "The setting DEDUPE_URL_CONFIRM is True, but the URL filter is in Redis. An exact set on disk cannot be"
            ' shared by several processes. Set DEDUPE_URL_STORE_URL = "local", or set DEDUPE_URL_CONFIRM = False and a'
            " lower DEDUPE_URL_ERROR_RATE."
        )
    forget_failed = values["DEDUPE_URL_FORGET_FAILED"]
    queue_persists = settings.getbool("SCHEDULER_PERSIST")
    return UrlSettings(
        enabled=values["DEDUPE_URL_ENABLED"],
        capacity=capacity,
        error_rate=values["DEDUPE_URL_ERROR_RATE"],
        record_start=values["DEDUPE_URL_RECORD_START"],
        flush_s=values["DEDUPE_URL_FLUSH_SECONDS"],
        store_url=url if is_shared else None,
        key=values["DEDUPE_URL_KEY"],
        persist=bool(settings.get("JOBDIR")) or queue_persists,
        queue_persists=queue_persists,
        forget_failed=bool(settings.get("JOBDIR")) if forget_failed is None else forget_failed,
        confirm=values["DEDUPE_URL_CONFIRM"],
    )


def _value(settings: BaseSettings, spec: Spec) -> Any:
    raw = settings.get(spec.name)
    if raw is None:
        return None if spec.default is None else spec.read(spec.default)
    try:
        return spec.read(raw)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, SettingError) and str(error).startswith(NAMELESS):
            # This message names the mistake and has no password.
            raise SettingError(f"The setting {spec.name}{str(error).removeprefix(NAMELESS)}") from None
        # The value of any setting may be a URL with a password, which shown_value() removes.
        raise SettingError(
            f"The setting {spec.name} is {shown_value(raw)}. Allowed: {spec.allowed}."
        ) from error


def faults_of(settings: BaseSettings) -> list[str]:
    """A sentence for each wrong setting, not only the first one."""
    faults = []
    for spec in SPECS:
        try:
            _value(settings, spec)
        except SettingError as error:
            faults.append(str(error))
    if faults:
        return faults
    try:
        # Single settings are correct, but their combination may be wrong.
        read_settings(settings)
    except SettingError as error:
        faults.append(str(error))
    return faults


def _default_store_url() -> str:
    return f"sqlite:///{in_data_folder('dedupe/dedupe.sqlite')}"
