"""The last captures of URLs in the index, as an HTTP cache reads them.

A page of the cache is a complete GET response with status 200. It is read from its record, and for a revisit the payload
is read from the original. Each record is compared with the index before it is used: a file may have been moved, replaced
or damaged. Such a page counts as not cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DedupeError, StoreError
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.exchanges import method_of
from scrapy_dedupe.warc.playback import PlayedOriginal, TooLarge, playable

from .captured_records import page_headers
from .entries import NEITHER
from .reuse import judged_headers, why_not_reused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from scrapy_dedupe.stores.base import UrlCapture
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.playback import Playable
    from scrapy_dedupe.warc.reading import StoredRecord

    from .captured_records import RecentExchanges
    from .live_index import StoreGuard

UNKNOWN = "unknown"
UNREADABLE = "unreadable"
STORE_AWAY = "store_away"


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A GET request. A page of more than *max_bytes* does not answer it; 0: no limit."""

    url: str
    headers: Headers
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A page that may answer a request. ``headers`` are those from which a cache policy computes freshness."""

    playable: Playable
    headers: Headers
    captured: datetime


@dataclass(frozen=True, slots=True)
class Found:
    """The result for a request: a page, or the reason why there is none, as one word."""

    page: CachedPage | None
    reason: str = ""
    fault: str = ""


class CachedPages:
    """The pages that a crawl finds in the index: its own, and those of committed crawls. For use on one thread.

    Cache-Control directives in *ignored_controls* are ignored. With *needs_validators* the records of pages that have
    neither validators nor a lifetime are not read. Errors of the store go to *guard*.
    """

    def __init__(
        self,
        index: CrawlIndex,
        crawl: str,
        guard: StoreGuard,
        exchanges: RecentExchanges,
        ignored_controls: Collection[bytes] = (),
        *,
        needs_validators: bool = False,
    ) -> None:
        self._needs_validators = needs_validators
        self._exchanges = exchanges
        self._index = index
        self._crawl = crawl
        self._guard = guard
        self._ignored = frozenset(ignored_controls)

    def find(self, queries: Sequence[PageQuery], now: datetime) -> list[Found]:
        """Look up several requests, with two queries to the index."""
        if self._guard.open:
            return [Found(None, STORE_AWAY)] * len(queries)
        try:
            captures = self._index.find_urls(self._crawl, [query.url for query in queries])
            digests = [capture.digest for capture in captures if capture and self._is_usable(capture)]
            if digests:
                originals = self._index.find_plain(self._crawl, digests, lasting=True)
                self._exchanges.found(digests, originals)
            found = [
                self._read(query, capture, now) for query, capture in zip(queries, captures, strict=True)
            ]
        except StoreError as error:
            self._guard.failed(error)
            return [Found(None, STORE_AWAY)] * len(queries)
        self._guard.worked()
        return found

    def _is_usable(self, capture: UrlCapture) -> bool:
        return not self._needs_validators or capture.validators != NEITHER

    def _read(self, query: PageQuery, capture: UrlCapture | None, now: datetime) -> Found:
        if capture is None or capture.file is None or capture.offset is None:
            return Found(None, UNKNOWN)
        if not self._is_usable(capture):
            return Found(None, "policy")
        try:
            found = self._exchanges.capture(capture, needs_body=True)
            if found is None:
                raise ArchiveError(f"The file {capture.file} does not exist.")
            return self._page(query, *found, capture, now)
        except TooLarge:
            return Found(None, "size")
        except StoreError:
            raise
        except (DedupeError, OSError, ValueError) as error:
            return Found(None, UNREADABLE, str(error))

    def _page(
        self,
        query: PageQuery,
        record: StoredRecord,
        request: StoredRecord | None,
        capture: UrlCapture,
        now: datetime,
    ) -> Found:
        if (record.http_status or 200) != 200:
            return Found(None, "status")
        source, original = record, None
        if record.type == "revisit":
            source, original = self._original_of(record, capture)
            if record.http_status is None and source.http_status != 200:
                return Found(None, "status")
        asked = None
        if request is not None and request.http is not None:
            if method_of(request) != "GET" or request.frame.block_length > request.http.length:
                return Found(None, "method")
            asked = request.http_headers
        headers = page_headers(record, source)
        reason = why_not_reused(headers, asked, query.headers, ignored_controls=self._ignored)
        if reason is not None:
            return Found(None, reason)
        answer = playable(record, "GET", source, original, headers=headers, max_bytes=query.max_bytes)
        captured = parse_date(record.date or "")
        headers = judged_headers(answer.headers, captured, now, ignored_controls=self._ignored)
        return Found(CachedPage(answer, headers, captured))

    def _original_of(self, record: StoredRecord, capture: UrlCapture) -> tuple[StoredRecord, PlayedOriginal]:
        original = self._exchanges.originals.get(capture.digest)
        if original is None:
            # New revisits should not refer to this original, but this page may be used.
            (original,) = self._index.find_plain(self._crawl, [capture.digest], lasting=False)
        source = None if original is None else self._exchanges.original(original, needs_body=True)
        if original is None or source is None:
            raise ArchiveError(f"The original of {capture.file}, offset {capture.offset}, does not exist.")
        return source, PlayedOriginal(source.id, source.target_uri, source.date, original.crawl)
