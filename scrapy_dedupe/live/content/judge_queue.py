"""The queue of pages that wait for a verdict. The worker judges waiting pages in batches.

If pages arrive faster than the store answers, one call to the store judges many of them; a single page does not wait for
others. The text of a large page can take seconds to extract, so a second thread does this and other pages do not wait.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.content import Page
from scrapy_dedupe.content.judge import Judgement
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.events import STORE_AWAY
from scrapy_dedupe.live.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy.http import TextResponse

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.content.judge import PageReading
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.live.stores import Breaker

# Pages per batch. Larger batches would delay the verdict of the first page.
_BATCH_SIZE: Final = 16

# Extracting the text of a page of this size or more may take too long for the worker.
_LARGE_BYTES: Final = 50_000


class JudgeQueue:
    """The pages of one crawl that wait for a verdict."""

    def __init__(self, session: Session, judge: Judge, guard: Breaker) -> None:
        self._session = session
        self._judge = judge
        self._guard = guard
        # For each page, the function that reads its text. The worker has one task for each page, in the same order.
        self._waiting: deque[Callable[[], PageReading]] = deque()
        # The rest of the last batch. An error is raised by the task of its page.
        self._judged: deque[Judgement | BaseException] = deque()
        self._large_pages: Worker | None = None
        session.at_stop(self._stop)

    async def judge(self, response: TextResponse, kind: str, mime: str) -> Judgement:
        """Return the judgement on a page: unknown if the store is unavailable.

        Raises the exceptions of text extraction.
        """

        def read() -> PageReading:
            return self._judge.read(Page(response.url, response.text, self._session.crawl_id, kind, mime))

        if len(response.body) >= _LARGE_BYTES:
            reading = await self._session.loop.wait_for(self._reader.submit(read))
            self._waiting.append(lambda: reading)
        else:
            self._waiting.append(read)
        return await self._session.on_worker(self._judge_next)

    @property
    def _reader(self) -> Worker:
        if self._large_pages is None:
            self._large_pages = Worker("dedupe-large-pages")
        return self._large_pages

    def _stop(self) -> None:
        if self._large_pages is not None:
            self._large_pages.stop()

    def _judge_next(self) -> Judgement:
        """Return the judgement on the next page, on the worker. The first page of a batch judges the others too."""
        if not self._judged:
            self._judge_batch()
        judged = self._judged.popleft()
        if isinstance(judged, BaseException):
            raise judged
        return judged

    def _judge_batch(self) -> None:
        read: list[PageReading | BaseException] = []
        for _ in range(min(len(self._waiting), _BATCH_SIZE)):
            try:
                read.append(self._waiting.popleft()())
            except BaseException as error:  # noqa: BLE001 - must not affect the other pages
                read.append(error)
        readings = [reading for reading in read if not isinstance(reading, BaseException)]
        judged: Iterator[Judgement | BaseException]
        try:
            judged = iter(self._decide(readings))
        except BaseException as error:  # noqa: BLE001
            judged = repeat(error)
        self._judged.extend(
            reading if isinstance(reading, BaseException) else next(judged) for reading in read
        )

    def _decide(self, readings: list[PageReading]) -> list[Judgement]:
        comparable = sum(reading.capture is not None for reading in readings)
        if not comparable:
            return self._judge.decide(readings)  # does not use the store
        # Check the breaker here: the store may have failed while the pages were waiting.
        if self._guard.open:
            self._count(comparable)
        else:
            try:
                judgements = self._judge.decide(readings)
            except StoreError as error:
                self._guard.failed(error)
                # failed() has counted one error.
                self._count(comparable - 1)
            else:
                self._guard.worked()
                return judgements
        return [
            Judgement.unknown(reading.reason if reading.capture is None else STORE_AWAY)
            for reading in readings
        ]

    def _count(self, pages: int) -> None:
        if pages:
            self._session.loop.call(self._session.counters.inc, "dedupe/errors/store", pages)
