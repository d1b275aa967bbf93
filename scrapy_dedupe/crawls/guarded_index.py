"""The index as a running crawl uses it; while the store is unavailable, lookups find nothing.

Records are added in batches; records that wait for the next batch are found too. Records of a concurrent crawl, which
other crawls look up while it runs, are added one by one. Records that were not added because of a kill or an
unavailable store are read from the crawl's own files when the crawl ends, or before it is committed. Until then
:attr:`GuardedIndex.is_incomplete` is True.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from scrapy_dedupe.errors import CrawlStateError, StoreError
from scrapy_dedupe.stores.base import Counts

from .dependencies import Containers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo, Need, Original, UrlCapture
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BATCH = 64


class StoreGuard(Protocol):
    """Decides whether the index may be used, and is notified of the results. ``open``: it may not (an open circuit)."""

    @property
    def open(self) -> bool: ...

    def failed(self, error: BaseException) -> None: ...

    def worked(self) -> None: ...


class GuardedIndex:
    """The index for one crawl; only :attr:`index` raises errors of the store."""

    def __init__(self, index: CrawlIndex, crawl: str, guard: StoreGuard, *, concurrent: bool = False) -> None:
        self.index = index
        self.crawl = crawl
        self.is_incomplete = False
        self._guard = guard
        self._batch = 1 if concurrent else _BATCH
        self._containers: dict[str, Containers] = {}
        self._crawls: dict[str, CrawlInfo] = {}
        self._has_logged_state = False
        self._is_marked = False
        self._waiting = 0
        self._known: dict[str, Original | None] = {}
        self._originals: dict[str, Original] = {}
        self._urls: dict[str, UrlCapture] = {}
        self._needs: dict[Need, None] = {}
        self._counts = Counts()

    def find(self, digest: str) -> Original | None:
        """The original with a payload; ``digest`` is without label, in the normalized form of the index."""
        if digest in self._originals:
            return self._originals[digest]
        if digest in self._known:
            # Use a prefetched result only once: the payload may be recorded before it is looked up again.
            return self._known.pop(digest)
        found = self._ask(lambda: self.index.find(self.crawl, [digest], lasting=True))
        return found[0] if found else None

    def look_up(self, digests: Sequence[str]) -> None:
        """Look up several payloads at once, in preparation for :meth:`find`."""
        wanted = list(dict.fromkeys(digest for digest in digests if digest not in self._originals))
        found = self._ask(lambda: self.index.find(self.crawl, wanted, lasting=True)) if wanted else None
        self._known = {} if found is None else dict(zip(wanted, found, strict=True))

    def find_url(self, url: str) -> UrlCapture | None:
        """The last capture of a URL."""
        if url in self._urls:
            return self._urls[url]
        found = self._ask(lambda: self.index.find_urls(self.crawl, [url]))
        return found[0] if found else None

    def add(
        self, originals: Sequence[Original], counts: Counts, urls: Sequence[UrlCapture], needs: Sequence[Need]
    ) -> None:
        """Add records that are on disk, with the next batch."""
        for original in originals:
            self._originals.setdefault(original.digest, original)
        self._urls.update((capture.url, capture) for capture in urls)
        self._needs.update(dict.fromkeys(needs))
        self._counts += counts
        self._waiting += 1
        if self._waiting >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Add the waiting records."""
        if not self._waiting:
            return

        def enter() -> None:
            self._mark()
            originals, urls = list(self._originals.values()), list(self._urls.values())
            self.index.add(self.crawl, originals, self._counts, urls, list(self._needs))

        self._ask(enter)
        self._waiting, self._counts = 0, Counts()
        self._originals, self._urls, self._needs = {}, {}, {}

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
