"""The index as a running crawl asks it: what it says, or nothing while it is away.

Records are entered many at a time; those that wait are found all the same. Nobody else sees the records of a crawl
that runs, and those that a kill keeps from being entered are read from the crawl's own files, like all that could not
be entered because the store was away: when the crawl ends, or before it is committed. Until then
:attr:`GuardedIndex.is_incomplete` says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from scrapy_dedupe.errors import CrawlStateError, StoreError
from scrapy_dedupe.stores.base import Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.stores.base import Need, Original, UrlCapture

    from .index import CrawlIndex

T = TypeVar("T")

logger = logging.getLogger(__name__)

_BATCH = 64


class Guard(Protocol):
    """Tells whether the index may be asked, and is told how that went."""

    @property
    def open(self) -> bool: ...

    def failed(self, error: BaseException) -> None: ...

    def worked(self) -> None: ...


class GuardedIndex:
    """The index for one crawl; no method but :attr:`index` raises errors of the store."""

    def __init__(self, index: CrawlIndex, crawl: str, guard: Guard) -> None:
        self.index = index
        self.crawl = crawl
        self.is_incomplete = False
        self._guard = guard
        self._containers: dict[str, list[dict[str, object]]] = {}
        self._has_told_of_state = False
        self._waiting = 0
        self._originals: dict[str, Original] = {}
        self._urls: dict[str, UrlCapture] = {}
        self._needs: dict[Need, None] = {}
        self._counts = Counts()

    def find(self, digest: str) -> Original | None:
        """The original with a payload; ``digest`` is without label, in the one form of the index."""
        if digest in self._originals:
            return self._originals[digest]
        found = self._ask(lambda: self.index.find(self.crawl, [digest]))
        return found[0] if found else None

    def find_url(self, url: str) -> UrlCapture | None:
        """The last capture of a URL."""
        if url in self._urls:
            return self._urls[url]
        found = self._ask(lambda: self.index.find_urls(self.crawl, [url]))
        return found[0] if found else None

    def add(
        self, originals: Sequence[Original], counts: Counts, urls: Sequence[UrlCapture], needs: Sequence[Need]
    ) -> None:
        """Enter records that are on disk, with the next batch."""
        for original in originals:
            self._originals.setdefault(original.digest, original)
        self._urls.update((capture.url, capture) for capture in urls)
        self._needs.update(dict.fromkeys(needs))
        self._counts += counts
        self._waiting += 1
        if self._waiting >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Enter what waits."""
        if not self._waiting:
            return
        originals, urls, needs = list(self._originals.values()), list(self._urls.values()), list(self._needs)
        counts = self._counts
        self._ask(lambda: self.index.add(self.crawl, originals, counts, urls, needs))
        self._waiting, self._counts = 0, Counts()
        self._originals, self._urls, self._needs = {}, {}, {}

    def add_file(self, name: str) -> None:
        """Note a file before its first record."""
        self._ask(lambda: self.index.add_file(self.crawl, name))

    def container_of(self, original: Original) -> str | None:
        """The name of the WACZ that an original of another crawl is in; None if that is not packed, or unknown."""
        if original.crawl == self.crawl:
            return None
        # A committed crawl gets no more containers, so one look is enough.
        if original.crawl not in self._containers:
            found = self._ask(lambda: self.index.containers(original.crawl))
            if found is None:
                return None
            self._containers[original.crawl] = found
        containers = self._containers[original.crawl]
        if original.wacz_index >= len(containers):
            return None
        container = containers[original.wacz_index]
        return str(container["filename"]) if container.get("filename") and container.get("hash") else None

    def _ask(self, call: Callable[[], T]) -> T | None:
        if self._guard.open:
            self.is_incomplete = True
            return None
        try:
            result = call()
        except CrawlStateError as error:
            # The store answers. Somebody has committed, canceled or deleted the crawl while it runs.
            self.is_incomplete = True
            if not self._has_told_of_state:
                self._has_told_of_state = True
                logger.error("%s Until the end of the crawl nothing more is entered in the index.", error)
            return None
        except StoreError as error:
            self.is_incomplete = True
            self._guard.failed(error)
            return None
        self._guard.worked()
        return result
