"""Every ``DEDUPE_*`` setting: its default, unit and check. They are read here and nowhere else.

:func:`read_settings` turns Scrapy's settings into the frozen dataclasses of :mod:`.setting_groups`. A wrong value raises
:class:`~scrapy_dedupe.errors.SettingError` with the name, the value and what is allowed.
The reference page of the docs is checked against :data:`SPECS`.
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
    """One setting. ``read`` takes the raw value, which is never None, and raises ValueError if it is wrong."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    allowed: str
    help: str
    unit: str = ""


_FLAG = "True or False"
_NAMED_PATH = "a path, in which %(name)s and %(time)s may stand"

SPECS: Final[tuple[Spec, ...]] = (
    # Stores
    Spec("DEDUPE_STORE_URL", None, store, ALLOWED_STORES,
         "Where all layers keep what they know, unless one of the three settings below names another place."
         " The default is the file dedupe/dedupe.sqlite in Scrapy's data folder (.scrapy)."),
    Spec("DEDUPE_URL_STORE_URL", None, url_store, '"local", redis://host:port/db, rediss://… or unix:///path.sock',
         'Where the URL filter lives. Default: in Redis if DEDUPE_STORE_URL names one, otherwise "local": in'
         " the memory of the process, and in JOBDIR if that is set."),
    Spec("DEDUPE_CONTENT_STORE_URL", None, store, ALLOWED_STORES,
         "Where the texts are remembered. Default: DEDUPE_STORE_URL."),
    Spec("DEDUPE_INDEX_URL", None, store, ALLOWED_STORES,
         "Where the crawl index lives. Default: DEDUPE_STORE_URL."),
    Spec("DEDUPE_STORE_TIMEOUT", 5.0, number(lambda n: 0 < n <= 600), "a number above 0, at most 600",
         "How long one call to a store may take. A silent store is treated as a store that is away.", "seconds"),
    Spec("DEDUPE_ON_STORE_ERROR", "continue", choice("continue", "close"), '"continue" or "close"',
         "What to do when a store is lost during the crawl: go on and treat pages as new, or close the spider"
         " with the reason dedupe_store_error."),
    # URLs
    Spec("DEDUPE_URL_ENABLED", True, boolean, _FLAG, "Whether the add-on sets the URL filter."),
    Spec("DEDUPE_URL_CAPACITY", None, integer(1), "a whole number of at least 1",
         "How many URLs the filter is sized for. Default: the larger of 10,000 and CLOSESPIDER_PAGECOUNT times"
         " DEDUPE_URLS_PER_PAGE. The filter grows when there are more.", "URLs"),
    Spec("DEDUPE_URLS_PER_PAGE", 10, integer(1), "a whole number of at least 1",
         "How many different URLs a page brings, for sizing the filter from CLOSESPIDER_PAGECOUNT.", "URLs"),
    Spec("DEDUPE_URL_ERROR_RATE", 1e-6, number(lambda n: 1e-12 <= n <= 0.5), "a number from 1e-12 to 0.5",
         "The largest share of new URLs that may be taken for seen ones; such a page is never fetched."),
    Spec("DEDUPE_URL_RECORD_START", True, boolean, _FLAG,
         "Record start requests, without filtering them, so that a link to the home page does not fetch it"
         " again."),
    Spec("DEDUPE_URL_FLUSH_SECONDS", 1.0, number(lambda n: 0 < n <= 3600), "a number above 0, at most 3600",
         "How often the pages that are done and brought no new requests are written to JOBDIR. After a kill those"
         " of about the last two such spans are asked for again.", "seconds"),
    Spec("DEDUPE_URL_FORGET_FAILED", None, boolean, _FLAG,
         "Whether a request that failed may be asked for again in the next run, by whoever finds its URL. Default:"
         " on with JOBDIR."),
    Spec("DEDUPE_URL_CONFIRM", False, boolean, _FLAG,
         "Look every hit of the filter up in an exact set on disk, so that no new URL is ever taken for a seen one."
         " For a filter of this process alone."),
    Spec("DEDUPE_URL_KEY", "%(spider)s", url_key,
         "text without white space and braces, in which %(spider)s may stand; a percent sign is written %%",
         "The name of a filter in Redis; processes with the same name share it. %(spider)s stands for the"
         " spider's name, in which braces and percent signs are percent-encoded."),
    # Content
    Spec("DEDUPE_CONTENT_ENABLED", True, boolean, _FLAG, "Whether the add-on sets the content middleware."),
    Spec("DEDUPE_CANONICALIZER", "text", choice("text", "html", "raw"), '"text", "html" or "raw"',
         "What is compared: the text of a page; its text, link targets and image sources; or the decoded body"
         " as it is."),
    Spec("DEDUPE_NEAR_THRESHOLD", 0.85, per_type(number(lambda n: 0.5 <= n <= 1)),
         for_types("a number from 0.5 to 1"),
         "From which estimated Jaccard similarity on a page is a near copy. 1 turns the near layer off."),
    Spec("DEDUPE_NEAR_RECALL", 0.99, per_type(number(lambda n: 0.5 <= n <= 0.9999)),
         for_types("a number from 0.5 to 0.9999"),
         "Which share of the pairs of texts at the threshold the index has to bring together; the bands follow from it"
         " (see scrapy dedupe content curve)."),
    Spec("DEDUPE_NEAR_NUM_PERM", 128, per_type(integer(16, 512)), for_types("a whole number from 16 to 512"),
         "How many rows a signature has. More make the estimate closer, and cost time and room.", "rows"),
    Spec("DEDUPE_NEAR_SHINGLE_SIZE", 7, per_type(integer(2, 64)), for_types("a whole number from 2 to 64"),
         "How long the runs of characters are by which texts are compared.", "characters"),
    Spec("DEDUPE_NEAR_MIN_CHARS", 200, per_type(integer(0)), for_types("a whole number of at least 0"),
         "Shorter texts are compared exactly alone.", "characters"),
    Spec("DEDUPE_TEMPLATE_GUARD", True, boolean, _FLAG,
         "Leave what a host puts on many of its pages out when texts are compared, so that pages which share only a"
         " template are not near."),
    Spec("DEDUPE_CONTENT_TTL", None, number(lambda n: n >= 1), "a number of seconds, at least 1",
         "How long a text is remembered from its first capture on. Default: for ever.", "seconds"),
    Spec("DEDUPE_CONTENT_MAX_BYTES", 4_000_000, integer(1), "a whole number of at least 1",
         "Larger bodies are not judged.", "bytes"),
    Spec("DEDUPE_ACTION_UNCHANGED", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page whose text is the same as at an earlier capture of its URL."),
    Spec("DEDUPE_ACTION_EXACT", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page that has the same text as another URL."),
    Spec("DEDUPE_ACTION_NEAR", "mark", choice(*_ACTIONS), '"mark" or "drop"',
         "What happens to a page that has almost the same text as an earlier one."),
    # Archive
    Spec("DEDUPE_WARC_ENABLED", True, boolean, _FLAG, "Whether the add-on sets the WARC pipeline."),
    Spec("DEDUPE_WARC_DIR", "warcs", path, "a path",
         "The folder of the WARC files, seen from the working folder. Made if it is not there."),
    Spec("DEDUPE_WARC_PREFIX", None, matching(r"[A-Za-z0-9._-]{1,64}"),
         "1 to 64 letters, digits, dots, underscores and hyphens",
         "How file names begin. Default: the spider's name, or crawl if the name has none of these characters."),
    Spec("DEDUPE_WARC_NAME", DEFAULT_NAME, file_name,
         "letters, digits, dots, underscores, hyphens and {prefix}, {timestamp}, {serial}, {host} and {crawl}; {serial}"
         " has to be there",
         "How files are named, without .warc.gz: {timestamp} is 17 digits of UTC time, {crawl} the crawl's id. Names that"
         " have neither are told apart by {serial} alone, which begins anew in another index."),
    Spec("DEDUPE_WARC_FILE_SIZE", 1_000_000_000, integer(1_000), "a whole number of at least 1000",
         "From which size on a new file is begun, between two exchanges.", "bytes"),
    Spec("DEDUPE_WARC_GZIP", True, boolean, _FLAG, "Whether each record is a gzip member."),
    Spec("DEDUPE_WARC_GZIP_LEVEL", 4, integer(1, 12), "a whole number from 1 to 12",
         "The level of compression: 1 is the fastest, 12 the smallest."),
    Spec("DEDUPE_WARC_DIGEST", "sha256", choice("sha256", "sha1"), '"sha256" or "sha1"',
         "The algorithm of the payload and block digests."),
    Spec("DEDUPE_WARC_MIN_SIZE", 1_024, integer(1), "a whole number of at least 1",
         "Payloads below this size are always stored: a revisit record would save little or nothing.", "bytes"),
    Spec("DEDUPE_WARC_QUEUE_BYTES", 64_000_000, integer(1_000_000), "a whole number of at least 1000000",
         "How much may wait to be written. Above it no new request is started.", "bytes"),
    Spec("DEDUPE_WARC_SCOPE", "responses", choice("responses", "items"), '"responses" or "items"',
         "Record every HTTP exchange, or the responses alone that the spider yields as WarcItem(response)."),
    Spec("DEDUPE_WARC_REVISIT", True, boolean, _FLAG,
         "Whether known payloads become revisit records. If not, every payload is stored."),
    Spec("DEDUPE_WARC_STATUSES", (200,), statuses, "a list of HTTP statuses",
         "Which statuses may become, or serve as the original of, a revisit record."),
    Spec("DEDUPE_WARC_MIME_TYPES", (), mime_types, "a list of MIME types such as text/html",
         "Which MIME types may become, or serve as the original of, a revisit record. Empty: all."),
    Spec("DEDUPE_WARC_CHECK_FILES", True, boolean, _FLAG,
         "Refer to an original only if its record is still in the WARC file and at the place that the index names, and"
         " is no other one; what is not there is stored again. Turn it off when files are moved after the crawl, or the"
         " index is shared between machines."),
    Spec("DEDUPE_WARC_BLACKOUT", None, number(lambda n: n > 0), "a number of seconds above 0",
         "For how long after a payload was recorded the same payload of the same URL is not recorded again, not even as"
         " a revisit. Default: each time is recorded.", "seconds"),
    Spec("DEDUPE_WARC_RENDERED", "skip", choice("skip", "resource"), '"skip" or "resource"',
         "What happens to a response that is not what the server sent, since a browser rendered it or a download handler"
         " decoded it: it is left out of the archive, or a complete page with status 200 becomes a resource record, which"
         " is never an original."),
    Spec("DEDUPE_WARC_ITEM_FIELD", None, matching(r"\S+"), "the name of a field",
         'The field of items that gets what response.meta["warc"] says of the record of their response. Default:'
         " none."),
    Spec("DEDUPE_WARC_UPLOAD_URL", None, storage,
         "a folder, or a URL that fsspec knows, such as s3://bucket/folder",
         "Where finished files are moved while the crawl goes on; with DEDUPE_WACZ, when it is committed. Default: they"
         " stay where they were written. Needs the extra storage."),
    # WACZ
    Spec("DEDUPE_WACZ", False, boolean, _FLAG,
         "Whether a crawl that is committed is packed as a WACZ. Needs the extra wacz."),
    Spec("DEDUPE_WACZ_DIR", "wacz", path, "a path",
         "The folder of the WACZ files, seen from the working folder. Made if it is not there."),
    Spec("DEDUPE_WACZ_TEXT", False, boolean, _FLAG,
         "Whether the list of pages in a WACZ has their text, for a full-text search."),
    Spec("DEDUPE_WACZ_KEEP_WARC", True, boolean, _FLAG,
         "Whether the WARC files stay once they are in the WACZ."),
    # Passages
    Spec("DEDUPE_PASSAGES", False, boolean, _FLAG,
         "Whether the texts of pages go into a passage index, in which scrapy dedupe passages finds what repeats."),
    Spec("DEDUPE_PASSAGES_DIR", None, path, "a path",
         "The folder of the passage index. Made if it is not there. Default: dedupe/passages in Scrapy's data folder"
         " (.scrapy)."),
    Spec("DEDUPE_PASSAGES_TOKENISER", "words", choice("words", "cjk", "code"), '"words", "cjk" or "code"',
         "How texts are cut into tokens: words; words, and each character of a script that is written without spaces;"
         " or identifiers, numbers and signs of source code. An index has one for all its texts."),
    Spec("DEDUPE_PASSAGES_TEXT", True, boolean, _FLAG,
         "Whether the index keeps the texts, compressed. Without them passages are told by where they stand alone."),
    # Crawls
    Spec("DEDUPE_CRAWL_ID", None, matching(r"[A-Za-z0-9._-]{1,128}"),
         "1 to 128 letters, digits, dots, underscores and hyphens",
         "The crawl's name in the index. Default: made from the spider's name, the time and a random part,"
         " and kept in JOBDIR."),
    Spec("DEDUPE_COMMIT_REASONS", ("finished", "closespider_*"), reasons, "a list of finish reasons, * allowed",
         "With which finish reasons a crawl is committed. Otherwise it stays uncommitted until somebody decides."),
    Spec("DEDUPE_PAYLOAD", "stored", choice("stored", "decoded"), '"stored" or "decoded"',
         "Whether bodies are stored, and compared, as the server sent them, or with their content coding (gzip, br)"
         " undone, as Browsertrix does. All crawls of one index have the same."),
    Spec("DEDUPE_CONCURRENT", False, boolean, _FLAG,
         "Whether other crawls may refer to the records of this one as soon as they are written, and not only once it"
         " is committed."),
    # Replay
    Spec("DEDUPE_REPLAY", (), file_patterns, "a list of file names, with the wildcards *, ? and ** if wished",
         "Answer requests from these WARC, ARC and WACZ files and multi-WACZ JSON, not from the network; see"
         " DEDUPE_REPLAY_MISSING for what is not in them."),
    Spec("DEDUPE_REPLAY_MISSING", "fail", choice("fail", "fetch"), '"fail" or "fetch"',
         "What happens to a request that DEDUPE_REPLAY has no answer for: it fails with NotInArchive, or it is"
         " fetched from the network."),
    # Report and metrics
    Spec("DEDUPE_REPORT", None, named_path, _NAMED_PATH,
         "The HTML page that says what the crawl saved, written when it has ended; replaced if it is there. %(name)s"
         " stands for the spider's name, %(time)s for the time of the start. Needs the extra report. Default: none;"
         " scrapy dedupe report makes one at any time."),
    Spec("DEDUPE_DUPLICATES_LOG", None, named_path, _NAMED_PATH,
         "The file that gets a line of JSON for each request, page and exchange that was a duplicate; lines are added at"
         " its end. Names in it as in DEDUPE_REPORT. Default: none."),
    Spec("DEDUPE_DUPLICATES_LOG_LAYERS", DUPLICATES_LOG_LAYERS, some_of(*DUPLICATES_LOG_LAYERS),
         'a list of "url", "content" and "warc", at least one of them',
         "Which duplicates get a line: filtered requests (url), pages whose text was read before (content), and exchanges"
         " whose body the archive has (warc). Nearly all lines are of filtered requests: a crawl of 3,500 pages of manuals"
         " that link to each other wrote 170,642 of these, 64 MB, and about 850 others."),
    Spec("DEDUPE_METRICS_PORT", 0, integer(0, 65535), "a whole number from 0 to 65535",
         "The port at which Prometheus can read metrics while the crawl goes on; 0: none. Needs the extra prometheus."),
    Spec("DEDUPE_METRICS_ADDRESS", "127.0.0.1", matching(r"[^\s/]+"), "an address or a host name",
         "The address of that port. The default is for this machine alone."),
    Spec("DEDUPE_METRICS_FILE", None, named_path, _NAMED_PATH,
         "The file that gets the metrics as text, for the textfile collector of node_exporter; replaced as a whole each"
         " time. Names in it as in DEDUPE_REPORT. Needs the extra prometheus. Default: none."),
    Spec("DEDUPE_METRICS_SECONDS", 15.0, number(lambda n: 1 <= n <= 3600), "a number from 1 to 3600",
         "How often the file of metrics is written.", "seconds"),
)  # fmt: skip


def read_settings(settings: BaseSettings) -> Settings:
    """Read and check all settings. Raises :class:`SettingError` for the first wrong one."""
    values = {spec.name: _value(settings, spec) for spec in SPECS}
    if values["DEDUPE_WARC_ITEM_FIELD"] is not None and values["DEDUPE_WARC_SCOPE"] == "items":
        # Items come before anybody can know whether their response is to be recorded.
        raise SettingError(
            'The setting DEDUPE_WARC_ITEM_FIELD needs DEDUPE_WARC_SCOPE = "responses". With "items", a WarcItem has its'
            " record in item.response.meta['warc'] once it has passed the pipeline."
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
            "The setting DEDUPE_URL_CONFIRM is True, but the URL filter is in Redis, which several processes share;"
            ' an exact set on disk is of one process alone. Set DEDUPE_URL_STORE_URL = "local", or turn'
            " DEDUPE_URL_CONFIRM off and DEDUPE_URL_ERROR_RATE down."
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
            # It has found out what was meant, and has left out a password.
            raise SettingError(f"The setting {spec.name}{str(error).removeprefix(NAMELESS)}") from None
        # Any of them may be a URL that was meant for another one.
        raise SettingError(
            f"The setting {spec.name} is {shown_value(raw)}. Allowed: {spec.allowed}."
        ) from error


def faults_of(settings: BaseSettings) -> list[str]:
    """A sentence for each setting that is wrong, not only for the first one."""
    faults = []
    for spec in SPECS:
        try:
            _value(settings, spec)
        except SettingError as error:
            faults.append(str(error))
    if faults:
        return faults
    try:
        # Each by itself is right; together they may not be.
        read_settings(settings)
    except SettingError as error:
        faults.append(str(error))
    return faults


def _default_store_url() -> str:
    return f"sqlite:///{in_data_folder('dedupe/dedupe.sqlite')}"
