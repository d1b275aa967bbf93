"""Which pages, whose texts are pending, went through: callback and item pipelines without an error.

Scrapy sends no signal when it is done with a response, so that is told by what is missing: a page that was received and
that the engine does not hold any more went through, unless its callback or a pipeline raised meanwhile. Texts of pages
that went through are confirmed in the store, those of the others, and of copies that were dropped, are forgotten, once a
second.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scrapy import signals

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.page_progress import requests_in_hand

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.live.breaker import Breaker
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.stores.base import SeenText

_TICK_S: Final = 0.1
_SETTLE_S: Final = 1.0

# How long a copy waits for the page whose text it has, which may itself be waiting for the copy.
_LONGEST_WAIT_S: Final = 5.0

# Outcomes that are remembered for copies that were judged a moment ago.
_RECENT: Final = 1_000

# Pages that wait for a store that is away; without the rest their texts stay pending, and count as new.
_MOST_UNSETTLED: Final = 10_000


@dataclass(slots=True)
class _Outcomes:
    """What the store has to be told."""

    passed: list[SeenText] = field(default_factory=list)
    failed: list[SeenText] = field(default_factory=list)
    dropped: list[SeenText] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.dropped)

    def put_back(self, earlier: _Outcomes) -> None:
        """Keep what could not be told, as far as there is room."""
        for name in ("passed", "failed", "dropped"):
            setattr(self, name, [*getattr(earlier, name), *getattr(self, name)][-_MOST_UNSETTLED:])


@dataclass(slots=True)
class _Page:
    capture: SeenText
    is_received: bool = False
    has_failed: bool = False
    is_missing: bool = False


class PendingTexts:
    """The pages of one crawl whose texts are pending."""

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
        self._judge = judge
        self._guard = guard
        self._probe = probe
        self._pages: dict[Request, _Page] = {}
        self._outcomes = _Outcomes()
        self._recent: OrderedDict[bytes, bool] = OrderedDict()
        self._waiting: dict[bytes, list[tuple[float, Future[bool | None]]]] = {}
        self._settled_at = time.monotonic()
        self._is_settling = False
        connect = crawler.signals.connect
        connect(self._response_received, signal=signals.response_received)
        connect(self._raised, signal=signals.spider_error)
        connect(self._raised, signal=signals.item_error)
        session.run_every(_TICK_S, self._tick, "content")

    def add(self, request: Request, capture: SeenText) -> None:
        """The page of *request* is on its way to the spider."""
        earlier = self._pages.pop(request, None)
        if earlier is not None:  # the same request object was asked for again before anybody looked
            self._end(earlier)
        self._pages[request] = _Page(capture)

    def dropped(self, capture: SeenText) -> None:
        """A page was read and is kept from the spider, as the user wants it."""
        self._outcomes.dropped.append(capture)

    async def outcome(self, digest: bytes) -> bool | None:
        """Whether the page with that text went through, once that is known.

        None if it is not a page of this process, or takes too long.
        """
        passed = self._recent.get(digest)
        if passed or not any(page.capture.digest == digest for page in self._pages.values()):
            return passed
        future: Future[bool | None] = Future()
        future.set_running_or_notify_cancel()  # an answer that nobody waits for any more does no harm
        until = time.monotonic() + _LONGEST_WAIT_S
        self._waiting.setdefault(digest, []).append((until, future))
        return await self._session.wait_for(future)

    async def settle(self) -> None:
        """Tell the store what is known so far."""
        await self._session.wait_for(self._session.worker.submit(self._settle, self._taken()))

    async def close(self) -> None:
        """No page is at work any more: settle them all."""
        for page in self._pages.values():
            self._end(page)
        self._pages.clear()
        self._answer(time.monotonic() + _LONGEST_WAIT_S)
        while before := len(self._outcomes):
            await self.settle()
            if len(self._outcomes) >= before:
                break  # the store is away

    # Signals

    def _response_received(self, response: Response, request: Request) -> None:
        page = self._pages.get(request)
        if page is not None:
            page.is_received = True

    def _raised(self, response: object) -> None:
        request: Request | None = getattr(response, "request", None)
        if request is not None and request in self._pages:
            self._pages[request].has_failed = True

    # Looking

    def _tick(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - a timer that raises is not called again
            self._session.counters.error("content", error, "Copies may wait longer before they are dropped.")
        if self._waiting:
            self._answer(time.monotonic())

    def _look(self) -> None:
        now = time.monotonic()
        if self._pages:
            busy = requests_in_hand(self._crawler)
            if busy is not None:
                for request, page in list(self._pages.items()):
                    if request in busy:
                        page.is_missing = False
                    elif not page.is_missing:
                        page.is_missing = True  # it may be between two lists
                    else:
                        del self._pages[request]
                        self._end(page)
        is_time = now - self._settled_at >= _SETTLE_S
        if is_time and not self._is_settling and len(self._outcomes) and not self._guard.open:
            self._settled_at = now
            self._is_settling = True
            self._session.worker.submit(self._settle, self._taken())

    def _end(self, page: _Page) -> None:
        has_passed = page.is_received and not page.has_failed
        if has_passed:
            self._outcomes.passed.append(page.capture)
        else:
            self._outcomes.failed.append(page.capture)
            self._session.counters.inc("dedupe/content/failed")
        self._recent[page.capture.digest] = has_passed
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def _answer(self, now: float) -> None:
        at_work = {page.capture.digest for page in self._pages.values()}
        for digest, waiting in list(self._waiting.items()):
            passed = self._recent.get(digest)
            # If it failed, another page with its text may still be at work.
            is_over = passed or digest not in at_work
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

    def _taken(self) -> _Outcomes:
        taken, self._outcomes = self._outcomes, _Outcomes()
        return taken

    def _settle(self, outcomes: _Outcomes) -> None:
        # On the worker.
        loop = self._session.loop
        try:
            if self._guard.open:
                loop.call(self._put_back, outcomes)
            else:
                # A file that was removed or replaced goes on answering.
                self._probe()
                self._judge.settle(outcomes.passed, outcomes.failed, outcomes.dropped)
                self._guard.worked(has_written=True)
        except StoreError as error:
            self._guard.failed(error)
            loop.call(self._put_back, outcomes)
        except Exception as error:  # noqa: BLE001 - the texts stay pending, which costs no page
            self._session.counters.error(
                "content", error, "The texts of these pages will be taken as new next time."
            )
        loop.call(self._settling_ended)

    def _put_back(self, outcomes: _Outcomes) -> None:
        self._outcomes.put_back(outcomes)

    def _settling_ended(self) -> None:
        self._is_settling = False
