"""The queue of pages that wait for a verdict. The worker judges waiting pages in batches.

If pages arrive faster than the store answers, one call to the store judges many of them; a single page does not wait for
others. The text of a large page can take seconds to extract, so a second thread does this and other pages do not wait.
The text of a page is not extracted if the page was received before in the same form, and its text is still known.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.content import Page
from scrapy_dedupe.content.judge import Judgement
from scrapy_dedupe.content.pages import PageReading
from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.live.events import STORE_AWAY
from scrapy_dedupe.live.responses import body_digest, has_charset, utf8_of
from scrapy_dedupe.live.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy.http import TextResponse

    from scrapy_dedupe.content import Judge
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.live.stores import Breaker

# Pages per batch. Larger batches would delay the verdict of the first page.
_BATCH_SIZE: Final = 16

# Extracting the text of a page of this size or more may take too long for the worker. The second thread costs less than
# 0.1 ms per page. With 200 kB, small pages wait twice as long (median) beside hostile pages of 190 kB.
_LARGE_BYTES: Final = 50_000


@dataclass(slots=True, eq=False)
class _Waiting:
    """A page that waits for a verdict. It is looked up by its source until its text is read."""

    response: TextResponse
    kind: str
    mime: str
    source: bytes = b""
    reading: PageReading | None = None
    judged: Future[Judgement] = field(default_factory=Future)

    @property
    def is_large(self) -> bool:
        return len(self.response.body) >= _LARGE_BYTES

    def end(self, result: Judgement | BaseException) -> None:
        if isinstance(result, BaseException):
            self.judged.set_exception(result)
        else:
            self.judged.set_result(result)


class JudgeQueue:
    """The pages of one crawl that wait for a verdict."""

    def __init__(self, session: Session, judge: Judge, guard: Breaker) -> None:
        self._session = session
        self._worker = session.worker
        self._judge = judge
        self._guard = guard
        # The worker has a task for each page. The first one judges up to a batch of pages.
        self._waiting: deque[_Waiting] = deque()
        self._large_pages: Worker | None = None
        session.at_stop(self._stop)

    async def judge(self, response: TextResponse, kind: str, mime: str) -> Judgement:
        """Return the judgement on a page: unknown if the store is unavailable.

        Raises the exceptions of text extraction.
        """
        page = _Waiting(response, kind, mime)
        if page.is_large and not self._judge.recalls:
            self._reader.submit(self._read_large, page)
        else:
            self._add(page)
        return await self._session.loop.wait_for(page.judged)

    def _add(self, page: _Waiting) -> None:
        """Let the worker judge a page. Thread-safe."""
        self._waiting.append(page)
        self._worker.post(self._judge_batch)

    def _read_large(self, page: _Waiting) -> None:
        # Runs on the second thread.
        try:
            page.reading = self._read(page)
            self._add(page)
        except BaseException as error:  # noqa: BLE001 - passed on through the future
            page.end(error)

    def _read(self, page: _Waiting) -> PageReading:
        response, crawl = page.response, self._session.crawl_id
        source = page.source or self._source_of(page)
        if not source:
            return PageReading(reason="encoding")
        text, utf8 = response.text, utf8_of(response)
        return self._judge.read(
            Page(response.url, text, crawl, page.kind, page.mime, source=source, utf8=utf8)
        )

    def _source_of(self, page: _Waiting) -> bytes:
        """The source of a page; empty if the page must not be decoded."""
        response = page.response
        if not has_charset(response):
            return b""
        return self._judge.source_of(
            page.kind, response.encoding, body_digest(response, self._session.digests)
        )

    @property
    def _reader(self) -> Worker:
        if self._large_pages is None:
            self._large_pages = Worker("dedupe-large-pages")
        return self._large_pages

    def _stop(self) -> None:
        if self._large_pages is not None:
            self._large_pages.stop()

    def _judge_batch(self) -> None:
        """Judge waiting pages, on the worker."""
        pages = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_SIZE))]
        try:
            results = self._results(pages)
        except BaseException as error:  # noqa: BLE001 - passed on through the futures
            results = [error] * len(pages)
        for page, result in zip(pages, results, strict=True):
            if result is None:
                self._reader.submit(self._read_large, page)
            else:
                page.end(result)

    def _results(self, pages: list[_Waiting]) -> Sequence[Judgement | BaseException | None]:
        """The judgement on each page, or its error; None if a large text must be read first."""
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
        return [next(judged) if isinstance(result, PageReading) else result for result in results]

    def _recall(self, pages: list[_Waiting]) -> list[Judgement | BaseException | None]:
        """Judge the pages whose text is known without reading it; None for the others."""
        found: list[Judgement | BaseException | None] = [None] * len(pages)
        asked: dict[int, tuple[str, str, bytes]] = {}
        for number, page in enumerate(pages):
            if page.reading is not None:
                continue
            try:
                page.source = self._source_of(page)
            except Exception as error:  # noqa: BLE001 - must not affect the other pages
                found[number] = error
            if page.source:
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
