"""Which requests are done, and which of them found nothing new.

A crawl finds a site along a tree: each page hangs under the one in which it was found first. After a kill the
queue is gone, so a page is found again only if every page above it is asked again. Therefore a page that found
something new, an inner page of the tree, is never told as done; a page that found nothing new, a leaf, is told
once its callback has ended. Nothing is kept of a request that is done.

**Whose child a new request is.** It has the URL of the page in its Referer, as a rule. A Referer is believed if
it names a page that is at work now and lies one step above the request. Where there is none to believe, every
page that is at work counts as the one that found it, for a page that is told as done by mistake is lost with all
that is under it, and a page that is not told is merely asked again. A page that asks for itself again is not
done either.
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


class DoneWatch(Generic[R]):
    """Tells which requests are done and found nothing new.

    Requests are told apart as the keys of a dict are. Between the signal that a response is there and the moment
    at which the scraper holds it, a request is in no list, so it has to be missing twice to be done.
    """

    def __init__(self) -> None:
        self._pages: dict[R, _DonePage] = {}
        self._by_url: dict[str, list[R]] = {}
        self._missing: set[R] = set()

    def __contains__(self, request: R) -> bool:
        return request in self._pages

    def received(self, request: R, url: str, depth: int, fingerprints: list[bytes]) -> None:
        """The response to ``request`` came from ``url``, and its callback is about to run."""
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
        """Something new was found: ``url``, at ``depth`` if that is known, in the page at ``referer``.

        ``active`` are the requests whose callbacks run now; None where that cannot be told. What was redirected is
        taken for found by the page of its Referer alone, if it has one.
        """
        parents = [
            page
            for page in self._at_work(self._by_url.get(referer or "", ()), active)
            if depth is None or page.depth == depth - 1
        ]
        if not (is_redirected and referer):
            if not parents:
                parents = self._at_work(self._pages if active is None else active, active)
            parents += self._at_work(self._by_url.get(url, ()), active)
        for page in parents:
            page.fingerprints = []

    def tick(self, busy: Collection[R]) -> list[bytes]:
        """Fingerprints of the leaves that were not busy at this look nor at the last one."""
        missing = {request for request in self._pages if request not in busy}
        done: list[bytes] = []
        for request in missing & self._missing:
            done += self._drop(request)
        self._missing = missing & self._pages.keys()
        return done

    def all(self) -> list[bytes]:
        """Fingerprints of every leaf that was waiting."""
        fingerprints = [item for page in self._pages.values() for item in page.fingerprints]
        self._pages.clear()
        self._by_url.clear()
        self._missing.clear()
        return fingerprints

    def _at_work(self, requests: Iterable[R], active: Collection[R] | None) -> list[_DonePage]:
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
