"""The end of a crawl's archive: closes the files, packs the WACZ, commits the crawl, uploads the files.

If a step before the commit fails, the crawl stays uncommitted and the log names the commands to repeat the step manually.
"""

from __future__ import annotations

import fnmatch
import logging
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import CrawlStateError, DedupeError
from scrapy_dedupe.stores import parse_store_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.crawls.packing import PackedCrawl
    from scrapy_dedupe.crawls.recorder import Recorder
    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

    from .uploads import Uploads

logger = logging.getLogger(__name__)

# Names in the summary. A large crawl has thousands of files.
_MAX_NAMES: Final = 3


class ArchiveEnd:
    """Finishes the archive of one crawl. If an exchange is missing from the files, the crawl is not committed."""

    def __init__(
        self,
        session: Session,
        index: CrawlIndex,
        recorder: Recorder,
        uploads: Uploads | None,
        *,
        is_packed: bool,
    ) -> None:
        self._session = session
        self._settings = session.settings
        self._index = index
        self._recorder = recorder
        self._uploads = uploads
        self._is_packed = is_packed
        self._is_closed = False
        self._packed: PackedCrawl | None = None
        session.at_close(self._close)
        session.at_stop(self._stop)

    async def _close(self) -> None:
        session, crawl = self._session, self._session.crawl_id
        session.notes["index"] = f"crawl {crawl} not committed"
        try:
            await session.on_worker(self._recorder.finish)
            if self._is_packed and self._should_commit():
                await self._pack()
        except CrawlStateError as error:
            session.counters.error(
                "warc", error, "The files are complete, but some of their records are missing from the index."
            )
        except Exception as error:  # noqa: BLE001 - after any error, the crawl is not committed
            session.counters.error(
                "warc", error, f"The crawl {crawl} stays uncommitted. {_next_commands(crawl)}"
            )
        else:
            self._is_closed = True
        finally:
            session.notes["warc"] = self._shown(self._recorder.paths)

    async def _pack(self) -> None:
        # Imported lazily, since it imports the content layer.
        from .wacz import pack_by_settings

        session = self._session
        done = await session.on_worker(
            pack_by_settings, self._index, session.crawl_id, self._settings, session.crawler.settings
        )
        if done is None:
            return
        self._packed = done
        session.counters.inc("dedupe/wacz/bytes_written", done.wacz.size_bytes)
        session.counters.inc("dedupe/wacz/captures", done.wacz.captures)
        session.counters.inc("dedupe/wacz/pages", done.wacz.pages)
        session.notes["wacz"] = f"{done.wacz.path} (open {done.manifest.name} for replay)"

    async def _stop(self) -> None:
        try:
            if self._is_closed:
                is_committed = await self._commit()
                if is_committed and self._packed is not None:
                    await self._clean_up(self._packed)
        finally:
            if self._uploads is not None:
                self._session.notes["storage"] = await self._uploads.finish()

    async def _commit(self) -> bool:
        # Called after the engine has stopped, because the final stats are stored with the crawl.
        session, crawl = self._session, self._session.crawl_id
        shown = parse_store_url(self._settings.warc.index_url).shown
        if not self._should_commit():
            logger.warning(
                "The crawl %s ended with the reason %r and is not committed: other crawls cannot refer to its"
                " records. %s",
                crawl,
                session.reason,
                _next_commands(crawl),
            )
            session.notes["index"] = f"crawl {crawl} not committed, in {shown}"
            return False
        try:
            # Detects an index file that was deleted while open.
            await session.on_worker(session.stores.open(self._settings.warc.index_url).probe)
            await session.on_worker(self._index.commit, crawl, session.counters.all())
        except DedupeError as error:
            session.counters.error(
                "warc", error, f"The crawl {crawl} stays uncommitted. {_next_commands(crawl)}"
            )
            return False
        session.notes["index"] = f"crawl {crawl} committed to {shown}"
        return True

    async def _clean_up(self, done: PackedCrawl) -> None:
        """Delete the WARC files that were packed, unless ``DEDUPE_WACZ_KEEP_WARC`` is set, and upload the remaining files."""
        try:
            if not self._settings.wacz.keep_warc:
                from scrapy_dedupe.crawls.packing import drop_warc_files

                await self._session.on_worker(drop_warc_files, self._index, done)
                self._session.notes["warc"] = f"in {done.wacz.path}"
        except DedupeError as error:
            self._session.counters.error("warc", error, "The crawl is committed; no data is lost.")
            return
        if self._uploads is None:
            return
        if self._settings.wacz.keep_warc:
            for path in done.files:
                self._uploads.submit(path)
            self._uploads.submit(done.wacz.path, ())
        else:
            self._uploads.submit(done.wacz.path, tuple(path.name for path in done.files))
        self._uploads.submit(done.manifest, ())

    def _shown(self, paths: Sequence[object]) -> str:
        shown = ", ".join(map(str, paths[:_MAX_NAMES]))
        if len(paths) > _MAX_NAMES:
            shown += f" and {len(paths) - _MAX_NAMES:,} more"
        if self._recorder.has_unfinished:
            left = f"a file in {self._settings.warc.folder} is incomplete; repair it with `scrapy dedupe warc salvage`"
            return f"{shown}; {left}" if shown else left
        return shown or "nothing was recorded"

    def _should_commit(self) -> bool:
        reason = self._session.reason
        return (
            reason is not None
            and not self._session.is_spoiled
            and any(fnmatch.fnmatchcase(reason, pattern) for pattern in self._settings.warc.commit_reasons)
        )


def _next_commands(crawl: str) -> str:
    return f"Run `scrapy dedupe commit {crawl}` to keep the crawl, or `scrapy dedupe cancel {crawl}` to discard it."
