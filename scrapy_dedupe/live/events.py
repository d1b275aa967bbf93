"""Events of a crawl, and who receives them.

There are two kinds of receivers:

- *Listeners* are part of the crawl: the stats, the signal ``content_judged``, the pending texts, the page limits and the
  page progress. They receive every page with a verdict, in the order in which they were added, before the observers. They
  are never removed. An error in a listener is counted under ``dedupe/errors/content``; the others are still called.
- *Observers* only watch: the report and the duplicates log. They receive each filtered request, each judged page that
  was not skipped, and each recorded exchange. An error in an observer must not affect the crawl: it is counted under
  ``dedupe/errors/report``, and the observer is removed.

Only the first error of each kind is logged.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.http import Response

    from scrapy_dedupe.content import Judgement, Verdict
    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.warc.capture import Capture

    from .figures import Counters

# Reasons of the verdict "unknown" for pages that could not be judged because of a failure.
STORE_AWAY: Final = "store"
ERROR: Final = "error"


@dataclass(frozen=True, slots=True)
class JudgedPage:
    """A page and its final verdict. ``mime`` is the declared type, or empty.

    ``dropped`` means that the page is not passed to the spider. Receivers must not keep this object: it holds the
    response.
    """

    request: Request
    response: Response
    mime: str
    judgement: Judgement
    dropped: bool = False

    @property
    def url(self) -> str:
        return self.response.url

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def is_skipped(self) -> bool:
        """Whether the page has no verdict although nothing failed: its type, size or text does not allow one."""
        return self.verdict.kind == "unknown" and self.verdict.reason not in (STORE_AWAY, ERROR)


class Observer:
    """Receives the events of a crawl. Subclasses override the methods they need, which must be fast: they block the crawl."""

    def request_filtered(self, url: str) -> None:
        """The dupefilter has filtered a request. On the event loop."""

    def page_judged(self, page: JudgedPage) -> None:
        """A page has a verdict, and was not skipped. On the event loop."""

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        """An exchange was written, or skipped. On the worker."""


class Events:
    """Sends the events of one crawl to its listeners and observers."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._listeners: list[Callable[[JudgedPage], None]] = []
        self._lock = Lock()
        # Never modified, only replaced: the event loop and the worker iterate over it concurrently.
        self._observers: tuple[Observer, ...] = ()

    def listen(self, *listeners: Callable[[JudgedPage], None]) -> None:
        """Call *listeners* for every page with a verdict, on the event loop."""
        self._listeners += listeners

    def add(self, observer: Observer) -> None:
        """Send the following events to *observer*."""
        with self._lock:
            self._observers = (*self._observers, observer)

    def request_filtered(self, url: str) -> None:
        self._send(lambda observer: observer.request_filtered(url))

    def page_judged(self, page: JudgedPage) -> None:
        for listener in self._listeners:
            try:
                listener(page)
            except Exception as error:  # noqa: BLE001 - the other listeners must still be called
                self._counters.error("content", error, "The crawl continues.")
        if not page.is_skipped:
            self._send(lambda observer: observer.page_judged(page))

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        self._send(lambda observer: observer.exchange_recorded(capture, recorded))

    def _send(self, event: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                event(observer)
            except Exception as error:  # noqa: BLE001 - an observer must not break the crawl
                with self._lock:
                    self._observers = tuple(other for other in self._observers if other is not observer)
                self._counters.error("report", error, "This observer has been disabled; the crawl continues.")
