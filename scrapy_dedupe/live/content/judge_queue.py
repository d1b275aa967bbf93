"""The queue of pages that wait for a verdict. The worker judges waiting pages in batches.

If pages arrive faster than the store answers, one call to the store judges many of them; a single page does not wait for
others. The text of a large page can take seconds to extract, so a second thread does this and other pages do not wait.
The text of a page is not extracted if the page was received before in the same form, and its text is still known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.content import Page
from scrapy_dedupe.content.judge import Judgement
from scrapy_dedupe.content.pages import PageReading
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.events import STORE_AWAY
from scrapy_dedupe.live.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy.http import TextResponse

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.live.stores import Breaker

# Pages per batch. Larger batches would delay the verdict of the first page.
_BATCH_SIZE: Final = 16

# Extracting the text of a page of this size or more may take too long for the worker. The second thread costs less than
# 0.1 ms per page. With 200 kB, small pages wait twice as long (median) beside hostile pages of 190 kB.
_LARGE_BYTES: Final = 50_000


@dataclass(slots=True)
class _Waiting:
    """A page that waits for a verdict. It is looked up by its source until its text is read."""

    response: TextResponse
    kind: str
    mime: str
    source: bytes = b""
    reading: PageReading | None = None

    @property
    def is_large(self) -> bool:
        return len(self.response.body) >= _LARGE_BYTES


class JudgeQueue:
    """The pages of one crawl that wait for a verdict."""

    def __init__(self, session: Session, judge: Judge, guard: Breaker) -> None:
        self._session = session
        self._judge = judge
        self._guard = guard
        # The worker has one task for each page, in the same order.
        self._waiting: deque[_Waiting] = deque()
        # The rest of the last batch. An error is raised by the task of its page; None: a large text must be read first.
        self._judged: deque[Judgement | BaseException | None] = deque()
        self._large_pages: Worker | None = None
        session.at_stop(self._stop)

    async def judge(self, response: TextResponse, kind: str, mime: str) -> Judgement:
        """Return the judgement on a page: unknown if the store is unavailable.

        Raises the exceptions of text extraction.
        """
        page = _Waiting(response, kind, mime)
        self._waiting.append(page)
        judged = await self._session.on_worker(self._judge_next)
        if judged is None:
            page.reading = await self._session.loop.wait_for(self._reader.submit(self._read, page))
            self._waiting.append(page)
            judged = await self._session.on_worker(self._judge_next)
        assert judged is not None
        return judged

    def _read(self, page: _Waiting) -> PageReading:
        response, crawl = page.response, self._session.crawl_id
        return self._judge.read(
            Page(response.url, response.text, crawl, page.kind, page.mime, source=page.source)
        )

    @property
    def _reader(self) -> Worker:
        if self._large_pages is None:
            self._large_pages = Worker("dedupe-large-pages")
        return self._large_pages

    def _stop(self) -> None:
        if self._large_pages is not None:
            self._large_pages.stop()

    def _judge_next(self) -> Judgement | None:
        """Return the judgement on the next page, on the worker. The first page of a batch judges the others too."""
        if not self._judged:
            self._judge_batch()
        judged = self._judged.popleft()
        if isinstance(judged, BaseException):
            raise judged
        return judged

    def _judge_batch(self) -> None:
        pages = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SIZE))]
        results: list[Judgement | PageReading | BaseException | None] = [*self._recall(pages)]
        for number, page in enumerate(pages):
            try:
                if results[number] is None and (page.reading is not None or not page.is_large):
                    results[number] = page.reading or self._read(page)
            except BaseException as error:  # noqa: BLE001 - must not affect the other pages
                results[number] = error
        readings = [result for result in results if isinstance(result, PageReading)]
        judged: Iterator[Judgement | BaseException]
        try:
            judged = iter(self._decide(readings))
        except BaseException as error:  # noqa: BLE001
            judged = repeat(error)
        self._judged.extend(next(judged) if isinstance(result, PageReading) else result for result in results)

    def _recall(self, pages: list[_Waiting]) -> list[Judgement | BaseException | None]:
        """Judge the pages whose text is known without reading it; None for the others."""
        found: list[Judgement | BaseException | None] = [None] * len(pages)
        asked: dict[int, tuple[str, str, bytes]] = {}
        for number, page in enumerate(pages):
            if page.reading is None:
                try:
                    page.source = self._judge.source_of(page.kind, page.response.encoding, page.response.body)
                except Exception as error:  # noqa: BLE001 - must not affect the other pages
                    found[number] = error
                else:
                    asked[number] = page.response.url, self._session.crawl_id, page.source
        # Check the breaker here: the store may have failed while the pages were waiting.
        if not asked or not self._judge.recalls or self._guard.open:
            return found
        recalled: Iterable[Judgement | BaseException | None]
        try:
            recalled = self._judge.recall([*asked.values()])
        except StoreError as error:
            self._guard.failed(error)
            # failed() has counted one error.
            self._count(len(asked) - 1)
            recalled = repeat(Judgement.unknown(STORE_AWAY))
        except Exception as error:  # noqa: BLE001
            recalled = repeat(error)
        else:
            self._guard.worked()
        for number, judged in zip(asked, recalled, strict=False):
            found[number] = judged
        return found

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
