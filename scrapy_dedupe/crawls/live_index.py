"""The crawl index as a running crawl uses it: finds the originals of captures, and adds new records in batches.

An original is a ``response`` record with the same payload. A 304 (Not Modified) has no payload; it refers to the
original of the last record of its URL, and only if that record had the same validator (ETag, or Last-Modified) as in
the request (RFC 9110, section 13.1): a server may confirm an older version than the last one.

A record of another crawl is read before it is referred to: a file or WACZ with the same name may have replaced the
indexed one, and a file that was deduplicated in place may still have the same first record. This takes about 100 us for
a page of usual size; a crawl needs milliseconds for a page. Remote files are not read; it is assumed that they exist.

While the store is unavailable, lookups find nothing. Records that wait for the next batch are found too. Records of a
concurrent crawl, which other crawls look up while it runs, are added one by one. Records that were not added because
of a kill or an unavailable store are read from the crawl's own files when the crawl ends, or before it is committed.
Until then :attr:`LiveIndex.is_incomplete` is True.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from scrapy_dedupe.errors import CrawlStateError, DedupeError, StoreError
from scrapy_dedupe.stores.base import Counts
from scrapy_dedupe.stores.crawl_index import Addition
from scrapy_dedupe.warc.dates import date_from_digits, parse_date
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import can_be_referred_to
from scrapy_dedupe.warc.remote import is_url

from .captured_records import RecentExchanges, is_capture, is_original_record, renewal_of
from .crawl_files import is_present, readable
from .dependencies import Containers
from .entries import is_confirmed, need_of, says_nothing_else, validators_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo, Need, Original, UrlCapture
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.capture import Capture

    from .entries import IndexEntry
    from .reuse import Renewal

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BATCH = 64


class StoreGuard(Protocol):
    """Decides whether the index may be used, and is notified of the results. ``open``: it may not (an open circuit)."""

    @property
    def open(self) -> bool: ...

    def failed(self, error: BaseException) -> None: ...

    def worked(self) -> None: ...


class Confirmed(NamedTuple):
    """The original of the page that a 304 confirms, and the :func:`~.reuse.renewal` of the page, if any."""

    original: Original
    renewal: Renewal | None


class LiveIndex:
    """The index for one crawl; only :attr:`index` raises errors of the store.

    Originals with a known status that is not in *statuses* are ignored, since replay programs may show another status
    as 200. Originals that a revisit cannot name reliably for every reader are ignored too. *check_files* ignores
    originals whose file is gone or was replaced; *containers_only* ignores originals of other crawls that are in no
    WACZ.
    """

    def __init__(
        self,
        index: CrawlIndex,
        crawl: str,
        guard: StoreGuard,
        *,
        statuses: Collection[int],
        check_files: bool,
        containers_only: bool,
        concurrent: bool,
        exchanges: RecentExchanges,
    ) -> None:
        self._exchanges = exchanges
        self.index = index
        self.crawl = crawl
        self.is_incomplete = False
        self._guard = guard
        self._statuses = statuses
        self._files = KnownFiles(crawl, exchanges) if check_files else None
        self._containers_only = containers_only
        self._batch = 1 if concurrent else _BATCH
        self._containers: dict[str, Containers] = {}
        self._crawls: dict[str, CrawlInfo] = {}
        self._has_logged_state = False
        self._has_warned_about_file = False
        self._warned_crawls: set[str] = set()
        self._is_marked = False
        self._known: dict[str, Original | None] = {}
        self._start_batch()

    def _start_batch(self) -> None:
        self._total = self._dupes = self._conserved = 0
        self._originals: dict[str, Original] = {}
        self._urls: dict[str, UrlCapture] = {}
        self._needs: dict[Need, None] = {}

    # Originals

    def look_up(self, digests: Sequence[str]) -> None:
        """Look up several payloads at once, in preparation for :meth:`original_of`."""
        wanted = list(dict.fromkeys(digest for digest in digests if digest not in self._originals))
        found = self._ask(lambda: self.index.find_plain(self.crawl, wanted, lasting=True)) if wanted else None
        self._known = {} if found is None else dict(zip(wanted, found, strict=True))

    def original_of(self, digest: str, *, is_confirmed: bool = False) -> Original | None:
        """The original of a payload; ``digest`` is without label, in the normalized form of the index.

        *is_confirmed*: a 304 confirms the page, so the original is used that the cache found before the request.
        """
        original = self._find(digest, is_confirmed=is_confirmed)
        if original is None or (original.status is not None and original.status not in self._statuses):
            return None
        if not _can_be_referred_to(original):
            return None
        return original if self._has_its_file(original) and self._is_in_a_container(original) else None

    def confirmed_by(self, capture: Capture) -> Confirmed | None:
        """What a 304 confirms; None if there is any doubt."""
        last = self._find_url(capture.target_uri)
        if last is None:
            return None
        validators = last.validators or _validators_at(last)
        if not is_confirmed(capture.request_headers, validators):
            return None
        if not says_nothing_else(capture, validators):
            return None
        original = self.original_of(last.digest, is_confirmed=True)
        if original is None:
            return None
        return Confirmed(original, renewal_of(capture, last, original, self._exchanges))

    def is_repeated(self, capture: Capture, digest: str, seconds: float) -> bool:
        """Whether the same payload of the same URL was recorded within the last *seconds*."""
        last = self._find_url(capture.target_uri)
        if last is None or last.digest != digest:
            return False
        age = capture.date - parse_date(date_from_digits(last.date))
        return timedelta(0) <= age < timedelta(seconds=seconds)

    def _find(self, digest: str, *, is_confirmed: bool) -> Original | None:
        if digest in self._originals:
            return self._originals[digest]
        if digest in self._known:
            # Use a prefetched result only once: the payload may be recorded before it is looked up again.
            return self._known.pop(digest)
        known = self._exchanges.originals.pop(digest, None)
        # Otherwise the cache may have found it long ago, and its crawl may have been purged since.
        if known is not None and is_confirmed:
            return known
        found = self._ask(lambda: self.index.find_plain(self.crawl, [digest], lasting=True))
        return found[0] if found else None

    def _find_url(self, url: str) -> UrlCapture | None:
        if url in self._urls:
            return self._urls[url]
        known = self._exchanges.captures.pop(url, None)
        if known is not None:
            return known
        found = self._ask(lambda: self.index.find_urls(self.crawl, [url]))
        return found[0] if found else None

    def _has_its_file(self, original: Original) -> bool:
        if self._files is None or self._files.hold(original):
            return True
        if not self._has_warned_about_file:
            self._has_warned_about_file = True
            logger.warning(
                "The index names originals in %s, but the file is gone or was replaced; their payloads are stored"
                " again. If the files were changed, `scrapy dedupe check --repair` updates the index; if files are"
                " moved after a crawl or are on another machine, set DEDUPE_WARC_CHECK_FILES = False.",
                original.file,
            )
        return False

    def _is_in_a_container(self, original: Original) -> bool:
        if not self._containers_only or original.crawl == self.crawl:
            return True
        if self.container_of(original) is not None:
            return True
        if original.crawl not in self._warned_crawls:
            self._warned_crawls.add(original.crawl)
            logger.warning(
                "The crawl %s has no WACZ through which its records could be replayed, so its payloads are stored"
                " again.%s",
                original.crawl,
                self._advice(original.crawl),
            )
        return False

    def _advice(self, crawl: str) -> str:
        """How a crawl can get a WACZ. An imported crawl can only have the WACZ files that it was imported with."""
        try:
            info = next((info for info in self.index.crawls() if info.id == crawl), None)
        except StoreError:
            return ""
        if info is None:
            return ""
        if info.imported:
            return " Import its WACZ, if there is one."
        if info.software is None:
            return (
                f" Another program added it. Remove it with `scrapy dedupe purge {crawl}`, then import its WACZ files"
                " with `scrapy dedupe import`."
            )
        return f" `scrapy dedupe warc pack {crawl}` creates one for later crawls."

    def container_of(self, original: Original) -> str | None:
        """The name of the WACZ that holds an original of another crawl; None if there is none or it is unknown."""
        if original.crawl == self.crawl:
            return None
        # A crawl gets its containers before its records, so the list can be cached.
        if original.crawl not in self._containers:
            found = self._ask(lambda: self._containers_of(original.crawl))
            if found is None:
                return None
            self._containers[original.crawl] = found
        container = self._containers[original.crawl].holding(original.wacz_index, original.file)
        return None if container is None else container.filename

    def _containers_of(self, crawl: str) -> Containers:
        known = self.index.containers(crawl)
        if known and (crawl not in self._crawls or self._crawls[crawl].state == "uncommitted"):
            self._crawls = {info.id: info for info in self.index.crawls()}
        return Containers(known, self._crawls.get(crawl))

    # Records of this crawl

    def add(self, entry: IndexEntry, conserved_size: int = 0, refers_to: Original | None = None) -> None:
        """Add a record that is on disk, with the next batch."""
        self._total += 1
        self._dupes += entry.is_revisit
        self._conserved += conserved_size
        original, url = entry.original, entry.url
        if original is not None:
            self._originals.setdefault(original.digest, original)
        if url is not None:
            self._urls[url.url] = url
            self._exchanges.captures.pop(url.url, None)
        if refers_to is not None and refers_to.crawl != self.crawl:
            self._needs[need_of(refers_to)] = None
        if self._total >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Add the waiting records."""
        if not self._total:
            return

        def enter() -> None:
            self._mark()
            counts = Counts(self._total, self._dupes, self._conserved)
            originals, urls = list(self._originals.values()), list(self._urls.values())
            self.index.add_plain(self.crawl, Addition(originals, counts, urls, list(self._needs)))

        self._ask(enter)
        self._start_batch()

    def add_file(self, name: str) -> None:
        """Register a file before its first record, and mark the crawl as incomplete."""

        def enter() -> None:
            self._is_marked = False
            self._mark()
            self.index.add_file(self.crawl, name)

        self._ask(enter)

    def _mark(self) -> None:
        # Not at the start of the crawl, since a crawl that is killed before its first file has no records.
        if not self._is_marked:
            self.index.mark_incomplete(self.crawl, True)
            self._is_marked = True

    def _ask(self, call: Callable[[], T]) -> T | None:
        if self._guard.open:
            self.is_incomplete = True
            return None
        try:
            result = call()
        except CrawlStateError as error:
            # The store answers, but the crawl was committed, canceled or deleted while it runs.
            self.is_incomplete = True
            if not self._has_logged_state:
                self._has_logged_state = True
                logger.error("%s No more records are added to the index until the end of the crawl.", error)
            return None
        except StoreError as error:
            self.is_incomplete = True
            self._guard.failed(error)
            return None
        self._guard.worked()
        return result


class KnownFiles:
    """Checks whether files still hold the indexed records. ``own`` is the crawl whose files are not checked."""

    def __init__(self, own: str, exchanges: RecentExchanges | None = None) -> None:
        self._own = own
        self._exchanges = exchanges or RecentExchanges()
        # A crawl may receive the same page repeatedly.
        self._is_there = lru_cache(10_000)(_is_there)

    def hold(self, original: Original) -> bool:
        """Whether the file of an original exists and holds the indexed record."""
        file = original.file
        if file is None:
            return True
        if not is_present(file):
            return False
        is_held = self._exchanges.holds(original)
        if is_held is not None:
            return is_held
        if original.crawl == self._own or original.offset is None or is_url(file):
            return True
        return self._is_there(file, original.offset, original)


def _validators_at(capture: UrlCapture) -> bytes:
    """The validators in the record of a capture that was imported without them; empty if its file is not on this machine."""
    if capture.file is None or capture.offset is None or is_url(capture.file):
        return b""
    try:
        path = readable(capture.file)
        record = None if path is None else read_record(path, capture.offset)
    except (DedupeError, OSError, ValueError):
        return b""
    return validators_of(record.http_headers) if record is not None and is_capture(record, capture) else b""


def _is_there(file: str, offset: int, original: Original) -> bool:
    path = readable(file)
    try:
        return path is not None and is_original_record(read_record(path, offset), original)
    except (DedupeError, OSError, ValueError):
        return False


def _can_be_referred_to(original: Original) -> bool:
    uri, record_id = (
        None if text is None else text.encode("utf-8", "surrogatepass")
        for text in (original.url, original.record_id)
    )
    return can_be_referred_to(uri, date_from_digits(original.date).encode("ascii"), record_id)
