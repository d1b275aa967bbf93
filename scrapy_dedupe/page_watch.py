"""What Scrapy shows of its pages while it works on them: which are done, and in which one a request was found.

The rules are those of :mod:`~scrapy_dedupe.urls.done`; here is how a request, its parent and the state of the
engine are read. Where Scrapy does not show something, more pages count as not done, never fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.utils.request import referer_str
from scrapy.utils.url import strip_url

from .urls.done import DoneWatch

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

# In the meta of a request that was redirected: its URL, since a callback may hand on the meta of its response.
_CONTINUES = "_dedupe_continues"


class PageWatch:
    """The pages of one crawl."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._watch: DoneWatch[Request] = DoneWatch()

    def is_in_progress(self, request: Request) -> bool:
        """Whether the engine has taken the request from the scheduler and not finished it."""
        return request in self._in_progress

    @staticmethod
    def is_redirected(request: Request) -> bool:
        """Whether ``redirect_urls`` in the meta are the way to this request, and not to the page it was found in."""
        return bool(request.meta.get(_CONTINUES) == request.url)

    def received(self, response: Response, request: Request, fingerprints: list[bytes]) -> None:
        """A request that is in progress was answered; ``fingerprints`` tell that it is done."""
        # Without fragment and credentials, as RefererMiddleware writes it.
        url = strip_url(response.url)
        self._watch.received(request, url, request.meta.get("depth", 0), fingerprints)

    def found(self, request: Request) -> None:
        """A request is new: the page in which it was found is no leaf."""
        if self._continues(request):
            request.meta[_CONTINUES] = request.url
        elif not self._is_start(request):
            active = getattr(self._scraper_slot, "active", None)
            url = strip_url(request.url)
            self._watch.found(url, request.meta.get("depth"), referer_str(request), active)

    def tick(self) -> list[bytes]:
        """Fingerprints of the leaves that are done since the last look."""
        slot = self._scraper_slot
        active, queue = getattr(slot, "active", None), getattr(slot, "queue", None)
        if active is None or queue is None:
            return []
        return self._watch.tick({*active, *self._in_progress, *(item[1] for item in queue)})

    def all(self) -> list[bytes]:
        """Fingerprints of every leaf that is left, at a time when no callback runs."""
        return self._watch.all()

    @staticmethod
    def _is_start(request: Request) -> bool:
        # A callback may have copied the meta of its response.
        meta = request.meta
        return (
            bool(meta.get("is_start_request")) and not meta.get("depth") and "Referer" not in request.headers
        )

    def _continues(self, request: Request) -> bool:
        """Whether the request takes the place of one that was redirected or failed and is still in progress."""
        earlier = {*request.meta.get("redirect_urls", ())[-1:]}
        if "retry_times" in request.meta:
            earlier.add(request.url)
        # One that is watched was answered, so a request that names it comes from its callback.
        return bool(earlier) and any(
            other.url in earlier and other not in self._watch for other in self._in_progress
        )

    @property
    def _scraper_slot(self) -> Any:
        return getattr(getattr(self._crawler.engine, "scraper", None), "slot", None)

    @property
    def _in_progress(self) -> Collection[Request]:
        requests: Collection[Request] = getattr(
            getattr(self._crawler.engine, "_slot", None), "inprogress", ()
        )
        return requests
