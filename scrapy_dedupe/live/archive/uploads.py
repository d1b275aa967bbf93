"""Uploads the finished files of a crawl to a remote storage while the crawl continues."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.crawl_files import member_name
from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.warc.storage import Mover

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.live.session import Session
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.storage import Storage

logger = logging.getLogger(__name__)

_TRIES = 3


class Uploads:
    """Passes files to a :class:`~scrapy_dedupe.warc.storage.Mover`, and updates their locations in the index."""

    def __init__(self, session: Session, storage: Storage, index: CrawlIndex, crawl: str) -> None:
        self._session = session
        self._storage = storage
        self._index = index
        self._crawl = crawl
        self._mover = Mover(storage, self._moved, self._failed)
        self._pending: dict[Path, Future[bool]] = {}
        self._members: dict[Path, tuple[str, ...]] = {}

    def submit(self, path: Path, members: tuple[str, ...] | None = None) -> None:
        """Upload a file.

        *members* are the names of the WARC files that exist only inside this WACZ; None if *path* is a WARC file itself.
        """
        self._members[path] = members if members is not None else ("",)
        self._pending[path] = Future()
        self._mover.submit(path)

    async def finish(self) -> str:
        """Wait for all files. Return a text for the summary that says how many were moved and which were not."""
        waiting = sum(not future.done() for future in self._pending.values())
        if waiting:
            logger.info(
                "Waiting for the upload of %d %s to %s.",
                waiting,
                "file" if waiting == 1 else "files",
                self._storage.shown,
            )
        stay = [
            path for path, future in self._pending.items() if not await self._session.loop.wait_for(future)
        ]
        self._mover.close()
        moved = len(self._pending) - len(stay)
        note = f"{moved} {'file' if moved == 1 else 'files'} moved to {self._storage.shown}"
        return f"{note}; NOT moved: {', '.join(map(str, stay))}" if stay else note

    def _moved(self, path: Path, location: str) -> None:
        # Runs on the thread of the mover. The index must only be used on the worker.
        for name in self._members[path]:
            old, new = str(path), location
            if name:
                old, new = member_name(path, name), f"{location}/archive/{name}"
            self._rename(old, new)
        self._session.loop.call(self._session.counters.inc, "dedupe/warc/files_uploaded")
        self._pending[path].set_result(True)

    def _rename(self, old: str, new: str) -> None:
        # The file is uploaded already: retry if the store is busy, instead of repeating the upload in the next run.
        for left in reversed(range(_TRIES)):
            try:
                self._session.worker.submit(self._index.rename_file, self._crawl, old, new).result()
            except StoreUnavailable:
                if not left:
                    raise
            else:
                return

    def _failed(self, path: Path, error: Exception) -> None:
        if self._pending[path].done():
            return
        if not path.exists():
            # `scrapy dedupe warc upload` has moved it.
            logger.info("%s was moved by another program.", path)
            self._pending[path].set_result(True)
            return
        self._session.loop.call(self._session.counters.inc, "dedupe/warc/files_not_uploaded")
        self._session.counters.error(
            "upload",
            error,
            f"The local file is kept. To upload it, run `scrapy dedupe warc upload {self._storage.shown}`.",
        )
        self._pending[path].set_result(False)
