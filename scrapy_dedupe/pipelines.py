"""The item pipeline that archives a crawl as WARC.

An item pipeline never sees responses, and what a spider sees is decoded. So the exchanges are taken at the
signal ``response_downloaded``, the one place where Scrapy still has the body as it was sent, redirects,
errors, retries, robots.txt and media included. Items pass through untouched.
"""

from __future__ import annotations

import fnmatch
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import scrapy
from scrapy import signals

from . import __version__
from .crawls.index import CrawlIndex
from .crawls.rebuilding import settle
from .crawls.recorder import Recorded, Recorder
from .crawls.rules import RevisitRules
from .errors import ArchiveError, CrawlStateError, DedupeError, SettingError
from .session import Session
from .stores import parse_store_url
from .warc.capture import Capture
from .warc.files import WarcWriter

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Headers, Request, Response

logger = logging.getLogger(__name__)

# Scrapy's flags of a body that is not whole. "partial" is none: such a body ended with the connection, as
# bodies without a length do.
_TRUNCATED_BY = {"dataloss": "disconnect", "download_stopped": "length"}

HEAD_IS_RECONSTRUCTED = (
    "The HTTP heads are reconstructed: header values and their order are as received, the status phrase is the"
    " standard one, header names are in title case, transfer coding is removed."
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
        self._session.at_start(self._start)
        crawler.signals.connect(self._response_downloaded, signal=signals.response_downloaded)
        self._paths: list[Path] | None = None
        self._session.at_close(self._close_files)
        self._session.at_stop(self._commit)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> WarcPipeline:
        return cls(crawler)

    def _start(self) -> None:
        session, settings = self._session, self._settings
        index = CrawlIndex(session.store(settings.index_url).index)
        known = {info.id for info in index.crawls()}
        try:
            index.start(session.crawl_id)
        except CrawlStateError as error:
            if settings.crawl_id is not None:
                raise SettingError(
                    f"The setting DEDUPE_CRAWL_ID is {settings.crawl_id!r}: {error} Use another id, or none."
                ) from error
            # The job was finished and committed before; this run is another crawl.
            index.start(session.renew_crawl_id())
        crawl, rules = session.crawl_id, self._rules()
        if crawl not in known:
            session.at_refusal(lambda: index.cancel(crawl))
        for salvaged in settle(index, crawl, settings.folder, rules):
            logger.warning(
                "The last run of this crawl was cut: %s holds %d whole records, %d bytes of a broken one were"
                " cut off.",
                salvaged.file,
                salvaged.records,
                salvaged.cut_bytes,
            )
        index.mark_incomplete(crawl, True)
        spider_name = str(self._crawler.spider.name) if self._crawler.spider else "crawl"
        writer = WarcWriter(
            settings.folder.absolute(),
            settings.prefix or _file_prefix(spider_name),
            file_size=settings.file_size,
            gzip=settings.gzip,
            gzip_level=settings.gzip_level,
            info={
                "software": f"scrapy-dedupe/{__version__} Scrapy/{scrapy.__version__}",
                "format": "WARC File Format 1.1",
                "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
                "isPartOf": crawl,
                "robots": "obey" if self._crawler.settings.getbool("ROBOTSTXT_OBEY") else "ignore",
                "http-header-user-agent": str(self._crawler.settings.get("USER_AGENT")),
                "payload": "stored",
                "description": HEAD_IS_RECONSTRUCTED,
            },
            on_new_file=self._new_file,
            algorithm=settings.digest,
        )
        self._index = index
        self._recorder = Recorder(
            writer,
            index,
            crawl,
            session.guard(settings.index_url),
            rules=rules,
            digest=settings.digest,
            check_files=settings.check_files,
        )

    def _rules(self) -> RevisitRules:
        settings = self._settings
        return RevisitRules(settings.revisit, settings.min_size, settings.statuses, settings.mime_types)

    def _new_file(self, name: str) -> None:
        self._recorder.add_file(name)

    def _response_downloaded(self, request: Request, response: Response) -> None:
        if not response.url.startswith(("http://", "https://")):
            return
        # HttpCompression changes the headers of this very object later on, so everything is copied now.
        capture = capture_of(request, response)
        if self._settings.scope == "items":
            self._captures[request] = capture
        else:
            self._record(capture)

    def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        if isinstance(item, WarcItem) and self._settings.scope == "items":
            request = item.response.request
            capture = self._captures.pop(request, None) if request is not None else None
            if capture is not None:
                self._record(capture)
            else:
                # A cached response, or the second item of one response: not an exchange to be recorded.
                self._session.inc("dedupe/warc/items_without_exchange")
        return item

    def _record(self, capture: Capture) -> None:
        if self._has_stopped_recording:
            self._session.inc("dedupe/warc/not_archived")
            return
        future = self._session.worker.submit_weighing(capture.size_bytes, self._recorder.record, capture)
        future.add_done_callback(lambda done: self._session.loop.call(self._account, done))

    def _account(self, done: Future[Recorded]) -> None:
        session = self._session
        error = done.exception()
        if error is None:
            recorded = done.result()
            session.inc(f"dedupe/warc/{recorded.kind}")
            session.inc("dedupe/warc/bytes_written", recorded.written)
            if recorded.conserved_size:
                session.inc("dedupe/warc/bytes_conserved", recorded.conserved_size)
            return
        session.inc("dedupe/warc/not_archived")
        if isinstance(error, ArchiveError):
            if not self._has_stopped_recording:
                self._has_stopped_recording = session.is_spoiled = True
                session.close_spider("dedupe_archive_error")
            session.error("warc", error, "The spider is closed; what was written before is kept.")
        else:
            session.error("warc", error, "This exchange is missing from the archive; the crawl goes on.")

    async def _close_files(self) -> None:
        session, crawl = self._session, self._session.crawl_id
        session.notes["index"] = f"crawl {crawl} NOT committed"
        try:
            self._paths = await session.on_worker(self._recorder.finish)
        except CrawlStateError as error:
            session.error(
                "warc", error, "The files are whole, but the index does not know all of their records."
            )
        except DedupeError as error:
            session.error("warc", error, f"The crawl {crawl} stays uncommitted. {_decide(crawl)}")
        else:
            session.notes["warc"] = (
                ", ".join(map(str, self._paths)) if self._paths else "nothing was recorded"
            )

    async def _commit(self) -> None:
        # Not before: only now the stats have their last values, which are kept with the crawl.
        session, crawl = self._session, self._session.crawl_id
        if self._paths is None:
            return
        shown = parse_store_url(self._settings.index_url).shown
        if not self._is_to_be_committed():
            logger.warning(
                "The crawl %s ended with the reason %r and is not committed: other crawls do not refer to its"
                " records. %s",
                crawl,
                session.reason,
                _decide(crawl),
            )
            session.notes["index"] = f"crawl {crawl} not committed, in {shown}"
            return
        stats = self._crawler.stats.get_stats() if self._crawler.stats is not None else {}
        try:
            # The file of the index may have been deleted while it was open.
            await session.on_worker(session.store(self._settings.index_url).probe)
            await session.on_worker(self._index.commit, crawl, typed_stats(stats))
        except DedupeError as error:
            session.error("warc", error, f"The crawl {crawl} stays uncommitted. {_decide(crawl)}")
        else:
            session.notes["index"] = f"crawl {crawl} committed to {shown}"

    def _is_to_be_committed(self) -> bool:
        reason = self._session.reason
        return (
            reason is not None
            and not self._has_stopped_recording
            and any(fnmatch.fnmatchcase(reason, pattern) for pattern in self._settings.commit_reasons)
        )


def _decide(crawl: str) -> str:
    return f"Decide with `scrapy dedupe commit {crawl}` or `scrapy dedupe cancel {crawl}`."


def _file_prefix(spider_name: str) -> str:
    prefix = "".join(
        char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in spider_name
    )
    return prefix[:64] or "crawl"


def capture_of(request: Request, response: Response) -> Capture:
    """The exchange as plain values, all copied."""
    truncated = next((_TRUNCATED_BY[flag] for flag in response.flags if flag in _TRUNCATED_BY), None)
    now = datetime.now(UTC)
    return Capture(
        url=response.url,
        method=request.method,
        status=response.status,
        date=now.replace(microsecond=now.microsecond // 1000 * 1000),
        request_headers=_pairs(request.headers),
        request_body=request.body,
        response_headers=_pairs(response.headers),
        body=response.body,
        ip_address=str(response.ip_address) if response.ip_address is not None else None,
        protocol=response.protocol,
        truncated=truncated,
    )


def _pairs(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name, value) for name, values in headers.items() for value in values)


def typed_stats(stats: dict[str, Any]) -> dict[str, object]:
    """Scrapy's stats as JSON values: times as ISO 8601 in UTC, what JSON has no type for as text.

    >>> typed_stats({"finish_time": datetime(2026, 11, 28, tzinfo=UTC), "item_scraped_count": 3})
    {'finish_time': '2026-11-28T00:00:00+00:00', 'item_scraped_count': 3}
    """

    def typed(value: object) -> object:
        if isinstance(value, datetime):
            return value.isoformat()
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
        return value

    return {str(key): typed(value) for key, value in stats.items()}
