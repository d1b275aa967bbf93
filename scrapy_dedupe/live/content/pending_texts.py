"""The outcome of pages with pending texts: whether their callback and item pipelines finished without error.

A text is pending in the store until its page has been processed. Scrapy sends no signal when it has finished processing
a response. Therefore a page has passed if it was received and the engine no longer holds its request, unless its callback
or a pipeline raised an exception. Once a second, the texts of passed pages are confirmed in the store, and the texts of
failed pages and dropped duplicates are removed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy import signals

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.engine import requests_in_hand

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.live.events import JudgedPage
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.live.stores import Breaker
    from scrapy_dedupe.stores.base import SeenText

_TICK_S: Final = 0.1
_SETTLE_S: Final = 1.0

# How long a duplicate waits for the outcome of its original. Two pages could wait for each other.
_LONGEST_WAIT_S: Final = 5.0

# Recent outcomes kept in memory for duplicates that are being judged.
_RECENT: Final = 1_000

# Outcomes kept while the store is unavailable. The texts of further pages stay pending and count as new.
_MOST_UNSETTLED: Final = 10_000


@dataclass(slots=True)
class _Page:
    capture: SeenText
    is_received: bool = False
    has_failed: bool = False
    is_missing: bool = False


class PendingTexts:
    """Tracks the pages of one crawl whose texts are pending."""

    def __init__(
        self,
        crawler: Crawler,
        session: Session,
        judge: Judge,
        guard: Breaker,
        probe: Callable[[], None],
    ) -> None:
        self._crawler = crawler
        self._session = session
        self._worker = session.worker
        self._judge = judge
        self._guard = guard
        self._probe = probe
        self._pages: dict[Request, _Page] = {}
        # Outcomes that have not been written to the store: the arguments of Judge.settle().
        self._outcomes = _no_outcomes()
        self._recent: OrderedDict[bytes, bool] = OrderedDict()
        self._waiting: dict[bytes, list[tuple[float, Future[bool | None]]]] = {}
        self._settled_at = time.monotonic()
        self._is_settling = False
        connect = crawler.signals.connect
        connect(self._response_received, signal=signals.response_received)
        connect(self._raised, signal=signals.spider_error)
        connect(self._raised, signal=signals.item_error)
        session.run_every(_TICK_S, self._tick, "content")

    def page_judged(self, page: JudgedPage) -> None:
        """Track a page that is passed on to the spider, or note that it was dropped."""
        capture = page.judgement.capture
        if capture is None:
            return
        if page.dropped:
            self._outcomes["dropped"].append(capture)
            self._session.counters.inc("dedupe/content/dropped")
            return
        earlier = self._pages.pop(page.request, None)
        if earlier is not None:  # The same request object was scheduled again before the last check.
            self._end(earlier)
        self._pages[page.request] = _Page(capture)

    async def outcome(self, digest: bytes) -> bool | None:
        """Wait for the outcome of the page with this text: True if it passed, False if it failed.

        None if no page of this process has the text, or if waiting takes too long.
        """
        passed = self._recent.get(digest)
        if passed or not any(page.capture.digest == digest for page in self._pages.values()):
            return passed
        future: Future[bool | None] = Future()
        future.set_running_or_notify_cancel()  # Prevents an InvalidStateError after cancellation.
        until = time.monotonic() + _LONGEST_WAIT_S
        self._waiting.setdefault(digest, []).append((until, future))
        return await self._session.loop.wait_for(future)

    async def settle(self) -> None:
        """Write all known outcomes to the store."""
        await self._session.loop.wait_for(self._worker.submit(self._settle, self._take_outcomes()))

    async def close(self) -> None:
        """Settle all pages; no page is being processed any more."""
        for page in self._pages.values():
            self._end(page)
        self._pages.clear()
        self._answer(time.monotonic() + _LONGEST_WAIT_S)
        while before := self._unsettled:
            await self.settle()
            if self._unsettled >= before:
                break  # The store is unavailable.

    # Signals

    def _response_received(self, response: Response, request: Request) -> None:
        page = self._pages.get(request)
        if page is not None:
            page.is_received = True

    def _raised(self, response: object) -> None:
        request: Request | None = getattr(response, "request", None)
        if request is not None and request in self._pages:
            self._pages[request].has_failed = True

    # Checks

    def _tick(self) -> None:
        try:
            self._check_pages()
        except Exception as error:  # noqa: BLE001 - a timer that raises is not called again
            self._session.counters.error(
                "content", error, "Duplicates may wait longer before they are dropped."
            )
        if self._waiting:
            self._answer(time.monotonic())

    def _check_pages(self) -> None:
        now = time.monotonic()
        if self._pages:
            busy = requests_in_hand(self._crawler)
            if busy is not None:
                for request, page in list(self._pages.items()):
                    if request in busy:
                        page.is_missing = False
                    elif not page.is_missing:
                        page.is_missing = True  # Check again: the engine may be moving it between two queues.
                    else:
                        del self._pages[request]
                        self._end(page)
        is_time = now - self._settled_at >= _SETTLE_S
        if is_time and not self._is_settling and self._unsettled and not self._guard.open:
            self._settled_at = now
            self._is_settling = True
            self._worker.submit(self._settle, self._take_outcomes())

    def _end(self, page: _Page) -> None:
        has_passed = page.is_received and not page.has_failed
        if has_passed:
            self._outcomes["passed"].append(page.capture)
        else:
            self._outcomes["failed"].append(page.capture)
            self._session.counters.inc("dedupe/content/failed")
        self._recent[page.capture.digest] = has_passed
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _answer(self, now: float) -> None:
        in_progress = {page.capture.digest for page in self._pages.values()}
        for digest, waiting in list(self._waiting.items()):
            passed = self._recent.get(digest)
            # After a failure, another page with the same text may still be in progress.
            is_over = passed or digest not in in_progress
            rest = []
            for until, future in waiting:
                if is_over or now >= until:
                    future.set_result(passed if is_over else None)
                else:
                    rest.append((until, future))
            if rest:
                self._waiting[digest] = rest
            else:
                del self._waiting[digest]

    @property
    def _unsettled(self) -> int:
        return sum(map(len, self._outcomes.values()))

    def _take_outcomes(self) -> dict[str, list[SeenText]]:
        taken, self._outcomes = self._outcomes, _no_outcomes()
        return taken

    def _settle(self, outcomes: dict[str, list[SeenText]]) -> None:
        # Runs on the worker.
        unsettled = outcomes
        try:
            if not self._guard.open:
                # Detects a store file that was deleted or replaced while open.
                self._probe()
                self._judge.settle(**outcomes)
                self._guard.worked(has_written=True)
                unsettled = {}
        except StoreError as error:
            self._guard.failed(error)
        except Exception as error:  # noqa: BLE001 - the texts stay pending, so no page is lost
            self._session.counters.error(
                "content", error, "Pages with the same texts will be treated as new."
            )
            unsettled = {}
        self._session.loop.call(self._settling_ended, unsettled)

    def _settling_ended(self, unsettled: dict[str, list[SeenText]]) -> None:
        self._is_settling = False
        for name, earlier in unsettled.items():
            self._outcomes[name] = [*earlier, *self._outcomes[name]][-_MOST_UNSETTLED:]


def _no_outcomes() -> dict[str, list[SeenText]]:
    return {"passed": [], "failed": [], "dropped": []}
