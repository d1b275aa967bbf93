"""Tracks which requests are done and found nothing new, and which requests failed.

A crawl discovers a site as a tree: the parent of a page is the page in which its URL was found first. After a kill the
queue is lost, so a page is found again only if all its ancestors are requested again. Therefore only a leaf, a page
that found nothing new, is reported as done, after its callback has ended. An inner page, which found something new,
is never reported. No state is kept for a request that is done.

**The parent of a new request.** Usually its Referer header has the URL of the parent. The Referer is accepted
if it names a page that is being processed and whose depth is one less than that of the request. Otherwise all pages
that are being processed count as parents: a page that is wrongly reported as done is lost with its whole subtree,
while a page that is not reported is only requested again. A page that requests its own URL is not done either.

**Failed requests.** Scrapy sends no signal when a request ends in its errback. A request counts as failed if it was passed
to the downloader, got no response, was not replaced by another request (a retry or redirect), and is no longer in
progress. The caller reports responses that go to the errback (HTTP errors).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

R = TypeVar("R")


@dataclass(slots=True)
class _DonePage:
    url: str
    depth: int
    fingerprints: list[bytes]


class DoneTracker(Generic[R]):
    """Reports the requests that are done and found nothing new.

    Requests are compared as dict keys. Between the signal ``response_received`` and the time when the scraper has the
    response, a request is in none of Scrapy's lists. Therefore it counts as done only if two calls of :meth:`tick`
    in a row do not find it.
    """

    def __init__(self) -> None:
        self._pages: dict[R, _DonePage] = {}
        self._by_url: dict[str, list[R]] = {}
        self._missing: set[R] = set()

    def __contains__(self, request: R) -> bool:
        return request in self._pages

    def received(self, request: R, url: str, depth: int, fingerprints: list[bytes]) -> None:
        """Record that the response to ``request`` came from ``url`` and its callback is about to run."""
        self._drop(request)
        self._pages[request] = _DonePage(url, depth, fingerprints)
        self._by_url.setdefault(url, []).append(request)

    def found(
        self,
        url: str,
        depth: int | None,
        referer: str | None,
        active: Collection[R] | None,
        *,
        is_redirected: bool = False,
    ) -> None:
        """Record that a new request for ``url`` was found in the page at ``referer``; ``depth`` is None if unknown.

        ``active`` are the requests whose callbacks are running; None if unknown. A redirected request that has a
        Referer counts only for the page of that Referer.
        """
        parents = [
            page
            for page in self._active_pages(self._by_url.get(referer or "", ()), active)
            if depth is None or page.depth == depth - 1
        ]
        if not (is_redirected and referer):
            if not parents:
                parents = self._active_pages(self._pages if active is None else active, active)
            parents += self._active_pages(self._by_url.get(url, ()), active)
        for page in parents:
            page.fingerprints = []

    def tick(self, busy: Collection[R]) -> list[bytes]:
        """Fingerprints of the leaves whose requests were not in ``busy`` in this call and the previous one."""
        missing = {request for request in self._pages if request not in busy}
        done: list[bytes] = []
        for request in missing & self._missing:
            done += self._drop(request)
        self._missing = missing & self._pages.keys()
        return done

    def all(self) -> list[bytes]:
        """Fingerprints of all leaves that were not reported yet; they are no longer tracked."""
        fingerprints = [item for page in self._pages.values() for item in page.fingerprints]
        self._pages.clear()
        self._by_url.clear()
        self._missing.clear()
        return fingerprints

    def _active_pages(self, requests: Iterable[R], active: Collection[R] | None) -> list[_DonePage]:
        return [
            self._pages[request]
            for request in requests
            if request in self._pages and (active is None or request in active)
        ]

    def _drop(self, request: R) -> list[bytes]:
        page = self._pages.pop(request, None)
        if page is None:
            return []
        same = self._by_url[page.url]
        same.remove(request)
        if not same:
            del self._by_url[page.url]
        return page.fingerprints


class FailedTracker(Generic[R]):
    """Reports the requests that failed. Requests are compared as dict keys."""

    def __init__(self) -> None:
        self._sent: dict[R, None] = {}
        self._failed: list[R] = []

    def sent(self, request: R) -> None:
        """Record that the request was passed to the downloader."""
        self._sent[request] = None

    def ended(self, request: R, *, failed: bool = False) -> None:
        """Record that the request got a response or was replaced; ``failed`` if the response goes to the errback."""
        self._sent.pop(request, None)
        if failed:
            self._failed.append(request)

    def take(self, busy: Collection[R]) -> list[R]:
        """The requests that failed since the last call; ``busy`` are the requests in progress."""
        failed, self._failed = self._failed, []
        gone = [request for request in self._sent if request not in busy]
        for request in gone:
            del self._sent[request]
        return failed + gone
