"""The extension that adds the texts of a crawl's pages to a passage index.

It receives final, decoded responses after redirects and retries, except those that the content middleware drops. On the
crawl's worker it extracts the canonical text of each page and adds it to the
:class:`~scrapy_dedupe.passages.PassageIndex` under the URL of the response. A page that the index holds with another text
is replaced. Pages are skipped for the same reasons as in the content middleware, and counted under
``dedupe/passages/skipped/``.

Added texts are written after 8 MB of text, every minute, and at the end of the crawl; a kill loses only the texts since
the last write. While another process writes to the index, or the disk is full, up to 48 MB of texts are kept in memory
and the write is retried. Errors do not stop the crawl: the first one is logged, and all are counted under
``dedupe/errors/passages``. Pages that were never written are counted in ``dedupe/passages/lost``. The crawl is refused at
startup only if the settings contradict the existing index.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy import signals
from scrapy.exceptions import NotConfigured
from scrapy.http import TextResponse
from scrapy.http.request import NO_CALLBACK

from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.errors import SettingError, StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.live.responses import has_charset, kind_of_page, reason_to_skip
from scrapy_dedupe.live.session import Session
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.text_reading import is_binary_text
from scrapy_dedupe.warc.files import prove_writable

if TYPE_CHECKING:
    from typing import Self

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

_FLUSH_BYTES: Final = 8_000_000
_FLUSH_S: Final = 60.0
# Maximum size of the texts kept in memory while the index cannot be written.
_MAX_WAITING_BYTES: Final = 48_000_000
_RETRY_S: Final = 2.0
# How long the index may be locked before this is logged: two crawls that share an index block each other briefly.
_LOG_LOCKED_AFTER_S: Final = 10.0
# How long the end of the crawl waits for the lock of another process.
_FINAL_LOCK_TIMEOUT_S: Final = 5.0
# A merge of this many posts blocks the worker for a second. Larger merges are left to the commands `passages compact`
# and `passages index`.
_LARGEST_MERGE_POSTS: Final = 4_000_000

_RETRY: Final = "The crawl continues; the texts are kept in memory and the write is retried."
_ALL_WRITTEN: Final = "All pages of this crawl are in the index."
_INDEX_DELETED: Final = "The pages that this crawl had written are lost with it."
_NOT_MERGED: Final = "The pages are in the index; its small segments will be merged later."
_NOT_ADDED: Final = "The page was not added to the passage index."


class PassageExtension:
    """Adds the pages of a crawl to a passage index.

    Raises :class:`~scrapy_dedupe.errors.DedupeError` at startup if the folder or the settings do not fit.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._session = session = Session.of(crawler)
        self._max_bytes = session.settings.content.max_bytes
        self._root = session.settings.passages.root
        self._waiting_bytes = 0
        self._written_bytes = 0
        self._failing_since: float | None = None
        self._merge_error: Exception | None = None
        self._retry_at = 0.0
        index = session.at_start(self._open_index)
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

    def _open_index(self) -> PassageIndex | None:
        settings = self._session.settings.passages
        try:
            index = PassageIndex(
                self._root,
                tokeniser=settings.tokeniser,
                store_text=settings.store_text,
                command=f"crawl of {self._session.spider_name}",
                largest_merge_posts=_LARGEST_MERGE_POSTS,
            )
        except StoreUnavailable as error:
            self._session.counters.error("passages", error, "The crawl continues without a passage index.")
            return None
        except StoreRefused as error:
            raise StoreRefused(
                f"{error} In a crawl, use the settings DEDUPE_PASSAGES_DIR, DEDUPE_PASSAGES_TOKENISER and"
                " DEDUPE_PASSAGES_TEXT."
            ) from error
        # Nothing is created: an index without pages leaves no folder.
        prove_writable(
            self._root, "The passage index", "another folder in DEDUPE_PASSAGES_DIR", is_trial=True
        )
        return index

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
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a page
            self._session.counters.error("passages", error, _NOT_ADDED)

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
            if self._waiting_bytes >= _MAX_WAITING_BYTES:
                self._flush()
            if self._waiting_bytes >= _MAX_WAITING_BYTES:
                self._lose(1)
                return
            if not has_charset(response):
                self._session.loop.call(self._skipped, "encoding")
                return
            if is_binary_text(response.text):
                self._session.loop.call(self._skipped, "type")
                return
            text = read(kind, response.text).text
            try:
                self._index.add(response.url, text)
            except StoreError as error:
                self._failed(error)  # The page was added to memory.
            self._waiting_bytes += len(text.encode(errors="surrogatepass"))
            self._after_write()
        except HostileMarkup:
            self._session.loop.call(self._skipped, "markup")
        except SettingError:
            self._session.loop.call(self._skipped, "url")  # Too long for a document name.
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a page
            self._session.counters.error("passages", error, _NOT_ADDED)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._index.pending_documents or time.monotonic() < self._retry_at:
            return
        try:
            self._index.flush()
        except Exception as error:  # noqa: BLE001 - an internal error must not lose a page
            self._failed(error)
        self._after_write()

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        self._retry_at = now + _RETRY_S
        if self._failing_since is None:
            self._failing_since = now
        # Other errors than a locked index do not resolve themselves: log them immediately.
        if not isinstance(error, StoreUnavailable) or now - self._failing_since >= _LOG_LOCKED_AFTER_S:
            self._session.counters.error("passages", error, _RETRY)

    def _after_write(self) -> None:
        """Update the state if the index has no unwritten documents. The index also writes by itself, and can fail later."""
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
        self._send_stats()

    def _finish(self) -> None:
        self._index.lock_timeout_s = _FINAL_LOCK_TIMEOUT_S
        lost = 0
        try:
            # After an error, the index is closed without another write.
            with self._index as index:
                try:
                    index.flush()
                finally:
                    lost = index.pending_documents
                    self._after_write()
        except Exception as error:  # noqa: BLE001 - the other layers must still be closed
            # If all pages were written, StoreRefused means that the index was deleted.
            written = _INDEX_DELETED if isinstance(error, StoreRefused) else _ALL_WRITTEN
            self._session.counters.error(
                "passages",
                error,
                f"{lost:,} pages of this crawl were not added to the index." if lost else written,
            )
            if lost:
                self._lose(lost)
            self._send_stats()

    def _lose(self, pages: int) -> None:
        self._session.loop.call(self._session.counters.inc, "dedupe/passages/lost", pages)

    def _send_stats(self) -> None:
        set_stat = partial(self._session.loop.call, self._session.counters.set)
        for name in ("documents", "replaced", "unchanged", "texts"):
            set_stat(f"dedupe/passages/{name}", getattr(self._index.added, name))
        set_stat("dedupe/passages/bytes", self._written_bytes)
