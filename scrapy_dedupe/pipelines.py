"""The item pipeline that archives a crawl in WARC files.

Item pipelines do not receive responses, and spiders receive decoded ones. Exchanges are therefore captured on the
signal ``response_downloaded``, the only point where Scrapy still has the body as received. This includes redirects,
errors, retries, robots.txt and media. Items are not changed. A response that differs from what the server sent
(`downloads.rendering_of`) is not recorded as an exchange: it is skipped, or becomes a ``resource`` record.
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

from .crawls.crawl_files import PAYLOAD_FIELD, files_of
from .crawls.index import plain_name
from .crawls.packing import container_name
from .crawls.rebuilding import mend_others, settle
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

    from .stores.crawl_index import CrawlIndex
    from .warc.capture import Rendering

logger = logging.getLogger(__name__)

_STATS_INTERVAL_S = 1.0
# Exchanges per lookup in the index.
_BATCH_SIZE = 64
# Servers can send any number of unknown content codings; log only the first ones.
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
    """Yielded by a spider to archive *response* if ``DEDUPE_WARC_SCOPE`` is ``"items"``."""

    response: Response


class WarcPipeline:
    """Archives the exchanges of a crawl in WARC files.

    Logs and raises :class:`~scrapy_dedupe.errors.SettingError`, :class:`~scrapy_dedupe.errors.StoreError` or
    :class:`~scrapy_dedupe.errors.ArchiveError` at startup.
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
        index = session.stores.open(settings.index_url).index
        try:
            str(settings.folder.absolute()).encode()
        except UnicodeEncodeError as error:
            raise SettingError(
                f"The path in DEDUPE_WARC_DIR cannot be encoded as UTF-8 ({settings.folder!r}), so the index cannot"
                " store the names of its files. Choose another folder."
            ) from error
        storage = None
        if settings.upload_url is not None:
            storage = Storage(settings.upload_url)
            for folder in (settings.folder, session.settings.wacz.folder):
                if storage.is_folder(folder):
                    raise SettingError(
                        f"The setting DEDUPE_WARC_UPLOAD_URL is {storage.shown!r}, the folder in which the"
                        " files are written. Set another folder, or remove the setting."
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
                    f"The setting DEDUPE_CRAWL_ID is {settings.crawl_id!r}: {error} Use another id, or remove the setting."
                ) from error
            # An earlier run has finished and committed the crawl of this job: start a new crawl.
            start(session.renew_crawl_id())
        crawl, rules = session.crawl_id, self._rules()
        # A resumed crawl keeps the mode in which it was started.
        earlier = known.get(crawl)
        is_resumed = earlier is not None and earlier.state == "uncommitted"
        concurrent = earlier.concurrent if earlier is not None and is_resumed else settings.concurrent
        if crawl not in known:
            session.at_refusal(lambda: index.cancel(crawl))
        self._recover_files(index, crawl, rules, is_new=crawl not in known)
        if session.settings.wacz.enabled:
            index.add_container(crawl, container_name(crawl))
        # If any run of the crawl requested a WACZ, all files of the crawl are packed, whatever the current settings.
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
        warc_folder = settings.folder.absolute()
        self._earlier_files = [
            file for file in files if isinstance(file, Path) and file.parent == warc_folder
        ]
        session.layers["warc"] = settings.index_url
        self._crawler.signals.connect(self._upload_earlier_files, signal=signals.spider_opened)
        session.run_every(_STATS_INTERVAL_S, self._update_stats, "warc")
        session.at_close(self._update_stats)

    def _recover_files(self, index: CrawlIndex, crawl: str, rules: RevisitRules, *, is_new: bool) -> None:
        """Repair files that killed runs of this crawl and of other crawls left incomplete."""
        repaired = "%s has %d complete records; %d bytes of an incomplete record were removed."
        for salvaged in settle(index, crawl, self._settings.folder, rules, is_new=is_new):
            logger.warning(
                f"The last run of this crawl was interrupted: {repaired}",
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )
        for other, salvaged in mend_others(index, self._settings.folder):
            logger.warning(
                f"The crawl %s was interrupted: {repaired} Run `scrapy dedupe commit` to keep the crawl, or `scrapy dedupe"
                " cancel` to discard it.",
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
                PAYLOAD_FIELD: settings.payload,
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
        # Add its records to the index first: the upload changes the name of the file.
        self._recorder.flush()
        # Files that will be packed are uploaded as part of the WACZ.
        if self._uploads is not None and not self._is_packed:
            self._uploads.submit(path)

    def _upload_earlier_files(self) -> None:
        """Upload the files that an earlier run of this crawl did not upload."""
        if self._uploads is not None and not self._is_packed:
            for file in self._earlier_files:
                self._uploads.submit(file)

    def _response_downloaded(self, request: Request, response: Response) -> None:
        if not response.url.startswith(("http://", "https://")):
            return
        try:
            # Copy everything: HttpCompressionMiddleware changes the headers of this object later.
            capture = capture_of(request, response)
            if self._settings.scope == "items":
                self._captures[request] = capture
            else:
                self._record(request, capture)
        except Exception as error:  # noqa: BLE001 - Scrapy would only log it; count the missing exchange too
            self._fail(error)

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        if isinstance(item, WarcItem) and self._settings.scope == "items":
            request = item.response.request
            capture = self._captures.pop(request, None) if request is not None else None
            if request is not None and capture is not None:
                self._record(request, capture)
                await self._session.recordings.set_meta(request)
            else:
                # A cached response, or a second item for the same response.
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
        future.add_done_callback(self._count)

    def _is_resource(self, request: Request, capture: Capture, rendering: Rendering) -> bool:
        """Count a response that differs from what the server sent. Return True if it becomes a resource record."""
        self._session.counters.inc("dedupe/warc/rendered")
        is_resource = self._settings.rendered == "resource"
        handlers = self._crawler.settings.getwithbase("DOWNLOAD_HANDLERS")
        handler = handlers.get(request.url.partition(":")[0])
        name = global_object_name(handler) if isinstance(handler, type) else str(handler)
        if name not in self._rendering_handlers:
            self._rendering_handlers.add(name)
            logger.log(
                logging.INFO if is_resource else logging.WARNING,
                "The response of %s differs from what the server sent: the download handler %s rendered or decoded it"
                " (%s). %s All such responses are counted in dedupe/warc/rendered.",
                without_user(capture.url),
                name,
                rendering.sign,
                "Such responses become resource records if they are complete and have status 200."
                if is_resource
                else 'It is not archived. Set DEDUPE_WARC_RENDERED = "resource" to store such pages as resource records.',
            )
        # Resource records have no method and status: replay tools show them as the page at their URL.
        is_page = capture.method == "GET" and capture.status == 200 and capture.is_complete
        return is_resource and is_page and bool(capture.body)

    def _record_next(self) -> Recorded:
        """Record the next exchange, on the worker. Waiting exchanges are looked up in the index together."""
        start = time.perf_counter()
        if not self._next:
            while self._waiting and len(self._next) < _BATCH_SIZE:
                self._next.append(self._waiting.popleft())
            if len(self._next) > 1:
                self._look_up_batch()
        capture, limit = self._next.popleft()
        recorded = self._recorder.record(capture, limit)
        self._latency.add(time.perf_counter() - start)
        self._session.observers.exchange_recorded(capture, recorded)
        return recorded

    def _look_up_batch(self) -> None:
        try:
            self._recorder.look_up([capture for capture, _ in self._next])
        except Exception:
            # Drop only the first exchange: each of the others is recorded by its own call.
            self._next.popleft()
            raise

    def _count(self, done: Future[Recorded]) -> None:
        """Count a record, on the worker: waking the event loop for each record would be slow."""
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
            self._session.loop.call(self._log_undecodable, recorded, recorded.undecodable)

    def _log_undecodable(self, recorded: Recorded, reason: str) -> None:
        if reason in self._reasons or len(self._reasons) >= _MOST_REASONS:
            return
        self._reasons.add(reason)
        logger.warning(
            "The body of the response in %s, offset %d, could not be decoded: %s. It is stored as received and"
            " is never the original of a revisit. Further ones are counted in dedupe/warc/undecodable.",
            recorded.file,
            recorded.offset,
            reason,
        )

    def _update_stats(self) -> None:
        """Add the counts since the last call to the stats."""
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
            session.counters.error("warc", error, "The spider is closed; records written before are kept.")
        else:
            session.counters.error(
                "warc", error, "This exchange is missing from the archive; the crawl continues."
            )


def capture_of(request: Request, response: Response) -> Capture:
    """Return the exchange as a copy that later changes of *request* and *response* do not affect.

    Values that Scrapy reports incorrectly are omitted: the IP address of a request through a proxy (Scrapy has the
    address of the proxy), and the Content-Length of a response without body (Twisted sets 0 whatever was sent).
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
        # The zone of an IPv6 address is only meaningful on this machine.
        ip_address=str(response.ip_address).partition("%")[0] if has_address else None,
        protocol=response.protocol,
        truncated=truncation_of(response),
    )
    rendering = rendering_of(response, capture)
    if rendering is not None:
        return replace(capture, rendering=rendering)
    if capture.has_body_by_definition or response.protocol == "h2":
        return capture
    kept = tuple(header for header in capture.response_headers if header != (b"Content-Length", b"0"))
    return replace(capture, response_headers=kept)


def _pairs(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    # dict.items() is faster than Headers.items(), which looks up each name again. The values are lists.
    return tuple([(name, value) for name, values in dict.items(headers) for value in values])
