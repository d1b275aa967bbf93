"""Events of a crawl, and the observers that receive them: report, duplicates log, page limits and page progress.

An observer receives each filtered request, each judged page and each recorded exchange, after the fact. An error
in an observer must not affect the crawl: it is counted under ``dedupe/errors/report`` and logged once, and the observer
is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request

    from scrapy_dedupe.content import Verdict
    from scrapy_dedupe.crawls.recorder import Recorded
    from scrapy_dedupe.warc.capture import Capture


@dataclass(frozen=True, slots=True)
class JudgedPage:
    """A page and its final verdict.

    ``mime`` is the declared type, or empty. ``size_bytes`` is the size of the decoded body. ``dropped`` means that the
    page is not passed to the spider. ``is_bare`` means that the page is unique, but has almost no words outside the
    template of its host.
    """

    url: str
    status: int
    mime: str
    size_bytes: int
    verdict: Verdict
    dropped: bool
    is_bare: bool = False
    request: Request | None = None


class Observer:
    """Receives the events of a crawl. Subclasses override the methods they need, which must be fast: they block the crawl."""

    def request_filtered(self, url: str) -> None:
        """The dupefilter has filtered a request. On the event loop."""

    def page_judged(self, page: JudgedPage) -> None:
        """A page has a verdict, and was not skipped. On the event loop."""

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        """An exchange was written, or skipped. On the worker."""


class Observers:
    """All observers of one crawl; false if empty.

    *failed* is called with the exception of an observer, on the thread that sent the event.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._lock = Lock()
        # Never modified, only replaced: the event loop and the worker iterate over it concurrently.
        self._all: tuple[Observer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, observer: Observer) -> None:
        """Send the following events to *observer*."""
        with self._lock:
            self._all = (*self._all, observer)

    def remove(self, observer: Observer) -> None:
        """Send no more events to *observer*. Safe to repeat."""
        with self._lock:
            self._all = tuple(other for other in self._all if other is not observer)

    def request_filtered(self, url: str) -> None:
        self._send(lambda observer: observer.request_filtered(url))

    def page_judged(self, page: JudgedPage) -> None:
        self._send(lambda observer: observer.page_judged(page))

    def exchange_recorded(self, capture: Capture, recorded: Recorded) -> None:
        self._send(lambda observer: observer.exchange_recorded(capture, recorded))

    def _send(self, event: Callable[[Observer], None]) -> None:
        for observer in self._all:
            try:
                event(observer)
            except Exception as error:  # noqa: BLE001 - an observer must not break the crawl
                self.remove(observer)
                self._failed(error)
