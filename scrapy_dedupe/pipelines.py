"""The item pipeline that archives a crawl as WARC.

An item pipeline never sees responses, and what a spider sees is decoded. So the exchanges are taken at the
signal ``response_downloaded``, the one place where Scrapy still has the body as it was sent, redirects,
errors, retries, robots.txt and media included. Items pass through untouched. A response that is not what the
server sent (`downloads.rendering_of`) is no exchange: it is left out, or becomes a ``resource`` record.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.utils.python import global_object_name

from .crawls.index import CrawlIndex, plain_name
from .crawls.packing import container_name
from .crawls.payloads import FIELD
from .crawls.rebuilding import files_of, mend_others, settle
from .crawls.recorder import Recorded, Recorder
from .crawls.rules import RevisitRules
from .errors import ArchiveError, CrawlStateError, SettingError
from .live.archive import SOFTWARE
from .live.archive.end import ArchiveEnd
from .live.archive.uploads import Uploads
from .live.downloads import max_bytes, rendering_of, truncation_of
from .live.session import Session
from .reports.texts import without_user
from .warc.capture import Capture
from .warc.files import WarcWriter, prove_writable
from .warc.storage import Storage
from .warc.url_keys import load_surt

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Headers, Request, Response

    from .warc.capture import Rendering

logger = logging.getLogger(__name__)

_TELL_SECONDS = 1.0
_LOOK_AHEAD = 64
# Servers may invent codings.
_MOST_REASONS = 10

HEAD_IS_RECONSTRUCTED = (
    "The HTTP heads are reconstructed: header values and their order are as received, the status phrase is the"
    " standard one, header names are in title case, transfer coding is removed."
)
BODIES_ARE_DECODED = (
    " Content coding is removed too, and named in X-Orig-Content-Encoding; a body that still has a Content-Encoding could"
    " not be decoded, or is incomplete."
)
RESOURCES_ARE_RENDERED = (
    " Records of type resource are not as received: they hold what a browser rendered or a download handler decoded,"
    " without an HTTP head."
)


@dataclass(frozen=True, slots=True)
class WarcItem:
    """Yield it from a spider to have its response archived, with ``DEDUPE_WARC_SCOPE = "items"``."""

    response: Response


class WarcPipeline:
    """Archives the crawl; see the module.

    Raises, at the start, :class:`~scrapy_dedupe.errors.SettingError`, :class:`~scrapy_dedupe.errors.StoreError`
    or :class:`~scrapy_dedupe.errors.ArchiveError` after logging the sentence.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._session = Session.of(crawler)
        self._settings = self._session.settings.warc
        self._captures: WeakKeyDictionary[Request, Capture] = WeakKeyDictionary()
        self._has_stopped_recording = False
        self._reasons: set[str] = set()
        self._rendering_handlers: set[str] = set()
        self._waiting: deque[tuple[Capture, int]] = deque()
        self._next: deque[tuple[Capture, int]] = deque()
        self._lock = Lock()
        self._tally: Counter[str] = Counter()
        self._latency = self._session.live.latency("warc")
        self._session.at_start(self._start)
        crawler.signals.connect(self._response_downloaded, signal=signals.response_downloaded)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> WarcPipeline:
        if not Session.of(crawler).is_crawl:
            raise NotConfigured
        return cls(crawler)

    def _start(self) -> None:
        session, settings = self._session, self._settings
        index = CrawlIndex(session.stores.open(settings.index_url).index)
        try:
            str(settings.folder.absolute()).encode()
        except UnicodeEncodeError as error:
            raise SettingError(
                f"The folder of DEDUPE_WARC_DIR has a name that is no text ({settings.folder!r}), so the index cannot"
                " name its files. Choose another folder."
            ) from error
        storage = None
        if settings.upload_url is not None:
            storage = Storage(settings.upload_url)
            for folder in (settings.folder, session.settings.wacz.folder):
                if storage.is_folder(folder):
                    raise SettingError(
                        f"The setting DEDUPE_WARC_UPLOAD_URL is {storage.shown!r}, where files are written in the first"
                        " place. Name another folder, or leave it out."
                    )
            storage.check()
        prove_writable(settings.folder, "WARC files", "another folder in DEDUPE_WARC_DIR")
        if session.settings.wacz.enabled:
            load_surt()
            prove_writable(session.settings.wacz.folder, "WACZ files", "another folder in DEDUPE_WACZ_DIR")
        known = {info.id: info for info in index.crawls()}

        def start(crawl: str) -> None:
            index.start(crawl, settings.payload, concurrent=settings.concurrent)

        try:
            start(session.crawl_id)
        except CrawlStateError as error:
            if settings.crawl_id is not None:
                raise SettingError(
                    f"The setting DEDUPE_CRAWL_ID is {settings.crawl_id!r}: {error} Use another id, or none."
                ) from error
            # The job was finished and committed before; this run is another crawl.
            start(session.renew_crawl_id())
        crawl, rules = session.crawl_id, self._rules()
        # A crawl that goes on stays what it was begun as.
        begun = known.get(crawl)
        goes_on = begun is not None and begun.state == "uncommitted"
        concurrent = begun.concurrent if begun is not None and goes_on else settings.concurrent
        if crawl not in known:
            session.at_refusal(lambda: index.cancel(crawl))
        self._mend(index, crawl, rules, is_new=crawl not in known)
        if session.settings.wacz.enabled:
            index.add_container(crawl, container_name(crawl))
        # A crawl that was to have a WACZ gets one with all of its files, whatever the settings of its last run are.
        self._is_packed = bool(index.containers(crawl))
        self._uploads = Uploads(session, storage, index, crawl) if storage is not None else None
        self._recorder = Recorder(
            self._writer(crawl, {Path(name).name for info in known.values() for name in info.files}),
            index,
            crawl,
            session.stores.breaker(settings.index_url),
            rules=rules,
            digest=settings.digest,
            check_files=settings.check_files,
            blackout_s=settings.blackout_s,
            containers_only=self._is_packed,
            payload=settings.payload,
            concurrent=concurrent,
        )
        self._end = ArchiveEnd(session, index, self._recorder, self._uploads, is_packed=self._is_packed)
        files = files_of(index, crawl, settings.folder) if crawl in known and storage is not None else []
        here = settings.folder.absolute()
        self._earlier = [file for file in files if isinstance(file, Path) and file.parent == here]
        session.layers["warc"] = settings.index_url
        self._crawler.signals.connect(self._move_earlier, signal=signals.spider_opened)
        session.run_every(_TELL_SECONDS, self._tell, "warc")
        session.at_close(self._tell)

    def _mend(self, index: CrawlIndex, crawl: str, rules: RevisitRules, *, is_new: bool) -> None:
        """See to files that a killed run left, of this crawl and of others."""
        cut = "%s holds %d whole records, %d bytes of a broken one were cut off."
        for salvaged in settle(index, crawl, self._settings.folder, rules, is_new=is_new):
            logger.warning(
                f"The last run of this crawl was cut: {cut}",
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )
        for other, salvaged in mend_others(index, self._settings.folder):
            logger.warning(
                f"The crawl %s was cut: {cut} Decide with `scrapy dedupe commit` or `scrapy dedupe cancel`.",
                other,
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )

    def _writer(self, crawl: str, taken: set[str]) -> WarcWriter:
        settings = self._settings
        return WarcWriter(
            settings.folder.absolute(),
            settings.prefix or plain_name(self._session.spider_name, 64),
            file_size=settings.file_size,
            gzip=settings.gzip,
            gzip_level=settings.gzip_level,
            info={
                "software": SOFTWARE,
                "format": "WARC File Format 1.1",
                "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
                "isPartOf": crawl,
                "robots": "obey" if self._crawler.settings.getbool("ROBOTSTXT_OBEY") else "ignore",
                "http-header-user-agent": str(self._crawler.settings.get("USER_AGENT")),
                FIELD: settings.payload,
                "description": HEAD_IS_RECONSTRUCTED
                + (BODIES_ARE_DECODED if settings.payload == "decoded" else "")
                + (RESOURCES_ARE_RENDERED if settings.rendered == "resource" else ""),
            },
            on_new_file=lambda name: self._recorder.add_file(name),
            on_finished=self._finished,
            algorithm=settings.digest,
            name=settings.name,
            crawl=crawl,
            taken=taken,
        )

    def _rules(self) -> RevisitRules:
        settings = self._settings
        return RevisitRules(settings.revisit, settings.min_size, settings.statuses, settings.mime_types)

    def _finished(self, path: Path) -> None:
        # Its records are entered under this name, before it gets another one.
        self._recorder.flush()
        # What becomes a WACZ is moved as one.
        if self._uploads is not None and not self._is_packed:
            self._uploads.submit(path)

    def _move_earlier(self) -> None:
        """Move what an earlier run of this crawl had no time to."""
        if self._uploads is not None and not self._is_packed:
            for file in self._earlier:
                self._uploads.submit(file)

    def _response_downloaded(self, request: Request, response: Response) -> None:
        if not response.url.startswith(("http://", "https://")):
            return
        try:
            # HttpCompression changes the headers of this very object later on, so everything is copied now.
            capture = capture_of(request, response)
            if self._settings.scope == "items":
                self._captures[request] = capture
            else:
                self._record(request, capture)
        except Exception as error:  # noqa: BLE001 - Scrapy would log it, and nobody would count what is missing
            self._fail(error)

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        if isinstance(item, WarcItem) and self._settings.scope == "items":
            request = item.response.request
            capture = self._captures.pop(request, None) if request is not None else None
            if request is not None and capture is not None:
                self._record(request, capture)
                await self._session.recordings.tell(request)
            else:
                # A cached response, or the second item of one response: not an exchange to be recorded.
                self._session.counters.inc("dedupe/warc/items_without_exchange")
        return item

    def _record(self, request: Request, capture: Capture) -> None:
        if capture.rendering is not None and not self._is_resource(request, capture, capture.rendering):
            return
        if self._has_stopped_recording:
            self._session.counters.inc("dedupe/warc/not_archived")
            return
        limit = max_bytes(self._crawler, request) if self._settings.payload == "decoded" else 0
        self._waiting.append((capture, limit))
        future = self._session.worker.submit_weighing(capture.size_bytes, self._record_next)
        self._session.recordings.add(request, future)
        future.add_done_callback(self._account)

    def _is_resource(self, request: Request, capture: Capture, rendering: Rendering) -> bool:
        """Count a response that is not what the server sent. Return whether it becomes a record."""
        self._session.counters.inc("dedupe/warc/rendered")
        is_resource = self._settings.rendered == "resource"
        handlers = self._crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
        handler = handlers.get(request.url.partition(":")[0])
        name = global_object_name(handler) if isinstance(handler, type) else str(handler)
        if name not in self._rendering_handlers:
            self._rendering_handlers.add(name)
            logger.log(
                logging.INFO if is_resource else logging.WARNING,
                "The response of %s is not what the server sent: the download handler %s rendered or decoded it (%s). %s"
                " All such responses are counted in dedupe/warc/rendered.",
                without_user(capture.url),
                name,
                rendering.sign,
                "Such responses become resource records if they are complete and have status 200."
                if is_resource
                else 'It is left out of the archive. Set DEDUPE_WARC_RENDERED = "resource" to store such pages as resource'
                " records.",
            )
        # A resource record has no method and no status: replay programs show it as the page of its URL.
        is_page = capture.method == "GET" and capture.status == 200 and capture.is_complete
        return is_resource and is_page and bool(capture.body)

    def _record_next(self) -> Recorded:
        """On the worker: record what has waited longest. What waits is looked up in the index in one round trip."""
        start = time.perf_counter()
        if not self._next:
            while self._waiting and len(self._next) < _LOOK_AHEAD:
                self._next.append(self._waiting.popleft())
            if len(self._next) > 1:
                self._look_up()
        capture, limit = self._next.popleft()
        recorded = self._recorder.record(capture, limit)
        self._latency.add(time.perf_counter() - start)
        self._session.observers.exchange_recorded(capture, recorded)
        return recorded

    def _look_up(self) -> None:
        try:
            self._recorder.look_up([capture for capture, _ in self._next])
        except Exception:
            # Each of those that follow is to be recorded by its own call.
            self._next.popleft()
            raise

    def _account(self, done: Future[Recorded]) -> None:
        """On the worker: the event loop is not woken for each record, only for errors."""
        error = done.exception()
        if error is not None:
            self._session.loop.call(self._fail, error)
            return
        recorded = done.result()
        with self._lock:
            self._tally[recorded.kind] += 1
            self._tally["bytes_written"] += recorded.written
            self._tally["bytes_conserved"] += recorded.conserved_size
            self._tally["undecodable"] += recorded.undecodable is not None
        if recorded.undecodable is not None:
            self._session.loop.call(self._tell_of_undecodable, recorded, recorded.undecodable)

    def _tell_of_undecodable(self, recorded: Recorded, reason: str) -> None:
        if reason in self._reasons or len(self._reasons) >= _MOST_REASONS:
            return
        self._reasons.add(reason)
        logger.warning(
            "The body of the response in %s, offset %d, could not be decoded: %s. It is stored as it came, and no"
            " revisit refers to it. Others like it are counted in dedupe/warc/undecodable.",
            recorded.file,
            recorded.offset,
            reason,
        )

    def _tell(self) -> None:
        """Put what was counted since the last time into the stats."""
        with self._lock:
            tally, self._tally = self._tally, Counter()
        for key, count in tally.items():
            if count:
                self._session.counters.inc(f"dedupe/warc/{key}", count)

    def _fail(self, error: BaseException) -> None:
        session = self._session
        session.counters.inc("dedupe/warc/not_archived")
        if isinstance(error, ArchiveError):
            if not self._has_stopped_recording:
                self._has_stopped_recording = self._end.is_broken = session.is_spoiled = True
                session.close_spider("dedupe_archive_error")
            session.counters.error("warc", error, "The spider is closed; what was written before is kept.")
        else:
            session.counters.error(
                "warc", error, "This exchange is missing from the archive; the crawl goes on."
            )


def capture_of(request: Request, response: Response) -> Capture:
    """The exchange as plain values, all copied.

    What Scrapy does not tell is left out: the address of a server behind a proxy (Scrapy knows the proxy's),
    and the Content-Length of a response without a body (Twisted's client says 0 whatever was sent).
    """
    has_address = response.ip_address is not None and not request.meta.get("proxy")
    capture = Capture(
        url=response.url,
        method=request.method,
        status=response.status,
        date=datetime.now(UTC),
        request_headers=_pairs(request.headers),
        request_body=request.body,
        response_headers=_pairs(response.headers),
        body=response.body,
        # An IPv6 address can have a zone, which means something on this machine alone.
        ip_address=str(response.ip_address).partition("%")[0] if has_address else None,
        protocol=response.protocol,
        truncated=truncation_of(response),
    )
    rendering = rendering_of(response, capture)
    if rendering is not None:
        return replace(capture, rendering=rendering)
    if capture.has_body_by_definition or response.protocol == "h2":
        return capture
    told = tuple(header for header in capture.response_headers if header != (b"Content-Length", b"0"))
    return replace(capture, response_headers=told)


def _pairs(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    # Headers.items() would look each name up again. Values are lists, as the class keeps them.
    return tuple([(name, value) for name, values in dict.items(headers) for value in values])
