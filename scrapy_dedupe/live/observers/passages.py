"""Which passages repeat? The texts of a crawl's pages on their way into a passage index, as an extension.

It hears of final, decoded responses: redirects followed, retries done, and not those that the content middleware drops.
Of each page that can be read it makes the canonical text on the crawl's worker and adds it to the
:class:`~scrapy_dedupe.passages.PassageIndex` under the URL of the response; a page that was in the index with another text
is replaced. The pages that are passed by are those of the content middleware, with their reasons, counted under
``dedupe/passages/skipped/``.

What was added is written after 8 MB of text, every minute, and at the end; a kill loses no more. While another process
writes the index, or the disk is full, the texts of up to 48 MB wait and are tried again. Nothing of this stops the crawl:
an error is told once and counted under ``dedupe/errors/passages``, and the pages that never were written under
``dedupe/passages/lost``. Only a setting that contradicts the index refuses the start.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.http import TextResponse
from scrapy.http.request import NO_CALLBACK

from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.live.content.skip_reasons import kind_of_page, reason_to_skip
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.file_types import is_binary_text

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

_FLUSH_BYTES: Final = 8_000_000
_FLUSH_S: Final = 60.0
# More than this does not wait for an index that cannot be written.
_MOST_BYTES: Final = 48_000_000
_RETRY_S: Final = 2.0
# How long the index may be another's before anybody is told: two crawls that share one get into each other's way.
_PATIENCE_S: Final = 10.0
# How long the end of the crawl waits for another process.
_LAST_WAIT_S: Final = 5.0
# A merge of so many posts takes a second, in which the worker does nothing else. Larger ones are left to `passages
# compact` and `passages index`.
_LARGEST_MERGE_POSTS: Final = 4_000_000

_KEPT: Final = "The crawl goes on; what could not be written is kept and tried again."
_ALL_IN: Final = "All pages of this crawl are in the index."
_GONE: Final = "What this crawl had written there is gone with it."
_NOT_MERGED: Final = "The pages are in the index; its small segments are merged another time."
_PASSED_BY: Final = "The page was not added to the passage index."


class PassageExtension:
    """Fills the passage index of a crawl. Raises :class:`~scrapy_dedupe.errors.DedupeError` if that is not one of ours."""

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._crawler = crawler
        self._max_bytes = session.settings.content.max_bytes
        self._root = session.settings.passages.root
        self._waiting_bytes = 0
        self._written_bytes = 0
        self._failing_since: float | None = None
        self._merge_error: Exception | None = None
        self._retry_at = 0.0
        index = session.at_start(self._opened)
        if index is None:
            return
        self._index = index
        crawler.signals.connect(self._response_received, signal=signals.response_received)
        session.run_every(_FLUSH_S, self._tick, "passages")
        session.at_close(self._close)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        session = Session.of(crawler)
        if not session.is_crawl or not session.settings.passages.enabled:
            raise NotConfigured
        return cls(crawler)

    def _opened(self) -> PassageIndex | None:
        settings = self._session.settings.passages
        try:
            return PassageIndex(
                self._root,
                tokeniser=settings.tokeniser,
                store_text=settings.store_text,
                command=f"crawl of {self._session.spider_name}",
                largest_merge_posts=_LARGEST_MERGE_POSTS,
            )
        except StoreUnavailable as error:
            self._session.counters.error("passages", error, "The crawl goes on without a passage index.")
            return None
        except StoreRefused as error:
            raise StoreRefused(
                f"{error} For a crawl, the settings DEDUPE_PASSAGES_DIR, _TOKENISER and _TEXT count."
            ) from error

    # On the event loop

    def _response_received(self, response: Response, request: Request) -> None:
        if request.callback is NO_CALLBACK:
            self._skipped("internal")
            return
        try:
            kind = kind_of_page(response)
            if reason := reason_to_skip(request, response, kind, self._max_bytes):
                self._skipped(reason)
                return
            assert kind is not None
            assert isinstance(response, TextResponse)
            self._session.worker.submit_weighing(len(response.body), self._add, response, kind)
        except Exception as error:  # noqa: BLE001 - no fault of ours may cost a page
            self._session.counters.error("passages", error, _PASSED_BY)

    def _tick(self) -> None:
        self._session.worker.submit(self._flush)

    async def _close(self) -> None:
        await self._session.on_worker(self._finish)
        self._session.notes["passages"] = str(self._root)

    def _skipped(self, reason: str) -> None:
        self._session.counters.inc(f"dedupe/passages/skipped/{reason}")

    # On the worker

    def _add(self, response: TextResponse, kind: str) -> None:
        try:
            if self._waiting_bytes >= _MOST_BYTES:
                self._flush()
            if self._waiting_bytes >= _MOST_BYTES:
                self._lose(1)
                return
            if is_binary_text(response.text):
                self._session.loop.call(self._skipped, "type")
                return
            text = read(kind, response.text).text
            try:
                self._index.add(response.url, text)
            except StoreError as error:
                self._failed(error)  # the page itself was taken
            self._waiting_bytes += len(text.encode(errors="surrogatepass"))
            self._settle()
        except HostileMarkup:
            self._session.loop.call(self._skipped, "markup")
        except SettingError:
            self._session.loop.call(self._skipped, "url")  # too long to be a name
        except Exception as error:  # noqa: BLE001 - no fault of ours may cost a page
            self._session.counters.error("passages", error, _PASSED_BY)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._index.pending_documents or time.monotonic() < self._retry_at:
            return
        try:
            self._index.flush()
        except Exception as error:  # noqa: BLE001 - no fault of ours may cost a page
            self._failed(error)
        self._settle()

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        self._retry_at = now + _RETRY_S
        if self._failing_since is None:
            self._failing_since = now
        # An error of another kind does not pass with time.
        if not isinstance(error, StoreUnavailable) or now - self._failing_since >= _PATIENCE_S:
            self._session.counters.error("passages", error, _KEPT)

    def _settle(self) -> None:
        """See whether the index has written what waited: it does so of itself as well, and may fail after it."""
        if self._index.pending_documents:
            return
        self._failing_since = None
        self._retry_at = 0.0
        self._written_bytes += self._waiting_bytes
        self._waiting_bytes = 0
        error = self._index.merge_error
        if error is not None and error is not self._merge_error:
            self._session.counters.error("passages", error, _NOT_MERGED)
        self._merge_error = error
        self._tell()

    def _finish(self) -> None:
        self._index.lock_timeout_s = _LAST_WAIT_S
        lost = 0
        try:
            # With an error it is closed without another try.
            with self._index as index:
                try:
                    index.flush()
                finally:
                    lost = index.pending_documents
                    self._settle()
        except Exception as error:  # noqa: BLE001 - the other layers have to be closed all the same
            # Where nothing waits only an index that is not there any more is refused.
            written = _GONE if isinstance(error, StoreRefused) else _ALL_IN
            self._session.counters.error(
                "passages",
                error,
                f"{lost:,} pages of this crawl did not get into the index." if lost else written,
            )
            if lost:
                self._lose(lost)
            self._tell()

    def _lose(self, pages: int) -> None:
        self._session.loop.call(self._session.counters.inc, "dedupe/passages/lost", pages)

    def _tell(self) -> None:
        added = self._index.added
        values = {
            "dedupe/passages/documents": added.documents,
            "dedupe/passages/replaced": added.replaced,
            "dedupe/passages/unchanged": added.unchanged,
            "dedupe/passages/texts": added.texts,
            "dedupe/passages/bytes": self._written_bytes,
        }
        self._session.loop.call(self._set_stats, values)

    def _set_stats(self, values: dict[str, int]) -> None:
        for key, value in values.items():
            self._session.counters.set(key, value)
