"""Where pages wait for the judge, who takes all that wait at once.

One call to a store then answers many pages when pages come faster than it answers, and a page that comes alone does not
wait for others. Large pages, which can take seconds to read, are read on a thread of their own first, so that no other page
waits for them.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.content import Page, Verdict
from scrapy_dedupe.content.judge import Judgement
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.worker import Worker

if TYPE_CHECKING:
    from scrapy.http import TextResponse

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.content.judge import PageReading
    from scrapy_dedupe.live.breaker import Breaker
    from scrapy_dedupe.live.session import Session

# Why a page is unknown although it should have been judged.
STORE_AWAY: Final = "store"
ERROR: Final = "error"

# Pages that are judged at once. More would keep the first of them waiting.
_MOST_AT_ONCE: Final = 16

# From this size on reading a page can take longer than others should wait.
_LARGE_BYTES: Final = 50_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    response: TextResponse
    kind: str
    mime: str
    future: Future[Judgement]
    reading: PageReading | None = None


class JudgeQueue:
    """The pages of one crawl that wait for a verdict."""

    def __init__(self, session: Session, judge: Judge, guard: Breaker) -> None:
        self._session = session
        self._judge = judge
        self._guard = guard
        self._waiting: deque[_Waiting] = deque()
        self._large_pages: Worker | None = None
        session.at_stop(self._stop)

    async def judge(self, response: TextResponse, kind: str, mime: str) -> Judgement:
        """What the page is. Raises what the reading of this page raises; a store that is away is a verdict."""
        waiting = _Waiting(response, kind, mime, Future())
        if len(response.body) >= _LARGE_BYTES:
            reading = await self._session.wait_for(self._reader.submit(self._read, waiting))
            waiting = replace(waiting, reading=reading)
        self._waiting.append(waiting)
        # Most of these find that the page was taken along with another one.
        self._session.worker.submit(self._take)
        return await self._session.wait_for(waiting.future)

    @property
    def _reader(self) -> Worker:
        if self._large_pages is None:
            self._large_pages = Worker("dedupe-large-pages")
        return self._large_pages

    def _stop(self) -> None:
        if self._large_pages is not None:
            self._large_pages.stop()

    def _take(self) -> None:
        # On the worker, the only thread that takes from the queue.
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_AT_ONCE))]
        # Whoever waited may have been cancelled; from here on that is too late.
        pages = [page for page in taken if page.future.set_running_or_notify_cancel()]
        if not pages:
            return
        read: list[tuple[_Waiting, PageReading]] = []
        for page in pages:
            try:
                read.append((page, page.reading or self._read(page)))
            except BaseException as error:  # noqa: BLE001 - it belongs to this page alone
                page.future.set_exception(error)
        try:
            judgements = self._ask([reading for _, reading in read])
        except BaseException as error:  # noqa: BLE001
            for page, _ in read:
                page.future.set_exception(error)
            return
        for (page, _), judged in zip(read, judgements, strict=True):
            page.future.set_result(judged)

    def _read(self, page: _Waiting) -> PageReading:
        response = page.response
        return self._judge.read(
            Page(response.url, response.text, self._session.crawl_id, page.kind, page.mime)
        )

    def _ask(self, readings: list[PageReading]) -> list[Judgement]:
        # Pages that are compared with nothing do not need the store.
        asking = [reading for reading in readings if reading.capture is not None]
        answers = iter(self._asked(asking) if asking else ())
        return [
            Judgement(Verdict("unknown", reason=reading.reason)) if reading.capture is None else next(answers)
            for reading in readings
        ]

    def _asked(self, readings: list[PageReading]) -> list[Judgement]:
        # The breaker is asked here, since pages may have been waiting when the store was lost.
        if self._guard.open:
            self._count(len(readings))
        else:
            try:
                judgements = self._judge.decide(readings)
            except StoreError as error:
                self._guard.failed(error)
                # That counted one.
                self._count(len(readings) - 1)
            else:
                self._guard.worked()
                return judgements
        return [Judgement(Verdict("unknown", reason=STORE_AWAY))] * len(readings)

    def _count(self, pages: int) -> None:
        if pages:
            self._session.loop.call(self._session.counters.inc, "dedupe/errors/store", pages)
