"""A thread that moves finished files to a storage while the crawl continues.

Files are moved one after another, in the order of submission, so a slow network delays only the next file. For each
file: upload and verify the copy, call ``on_moved``, delete the local file. The new location is thus recorded before the
old file is deleted, and a kill between two of these steps leaves both copies, never none.
"""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.storage import RefusedUpload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.warc.storage import Storage

logger = logging.getLogger(__name__)

PAUSES_S: Final = (2.0, 10.0, 30.0)


class Mover:
    """Moves files to *storage* on its own thread, from the first `submit` until `close`.

    Both callbacks run on that thread. ``on_moved(path, location)`` is called when the copy is verified; if it raises,
    the local file is kept and ``on_failed`` is called instead. ``on_failed(path, error)`` is called when the file stays
    local: immediately if a retry cannot help, else after one retry for each of the *pauses_s*. Once a file has failed
    after all retries, the next files get one attempt each until one succeeds: a full or unreachable storage costs the
    pauses only once.
    """

    def __init__(
        self,
        storage: Storage,
        on_moved: Callable[[Path, str], object],
        on_failed: Callable[[Path, Exception], object],
        *,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self._storage = storage
        self._on_moved = on_moved
        self._on_failed = on_failed
        self._pauses_s = tuple(pauses_s)
        self._queue: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._local: dict[Path, None] = {}
        self._state = threading.Condition()
        self._is_in_callback = False
        self._is_failing = False
        self._thread: threading.Thread | None = None
        self._is_abandoned = threading.Event()
        self._is_closed = False

    def submit(self, path: Path | str) -> None:
        """Queue a finished file. Raises ArchiveError after `close`."""
        path = Path(path)
        if self._is_closed:
            raise ArchiveError(f"{path} is kept: files are no longer moved to {self._storage.shown}.")
        self._local[path] = None
        self._queue.put(path)
        if self._thread is None:
            # A daemon thread, so that the process can exit during an upload, which cannot be interrupted.
            self._thread = threading.Thread(target=self._run, name="dedupe-mover", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float | None = None) -> list[Path]:
        """Wait at most *timeout_s* seconds for the queued files; return the files that stay local, failed ones included.

        Files that are not moved by then are abandoned: pauses end early. A running upload may still finish, but its
        local file is not deleted, and no callback is called for it. A running callback is waited for, so do not call
        this on a thread that a callback waits for. Can be called again.
        """
        self._is_closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._state:
            self._is_abandoned.set()
            while self._is_in_callback:
                self._state.wait()
            return list(self._local)

    def _run(self) -> None:
        while (path := self._queue.get()) is not None:
            if self._is_abandoned.is_set():
                return
            try:
                self._move(path)
            except Exception:
                # on_failed itself raised; continue with the other files.
                logger.exception("%s is kept; the failure of its upload could not be reported.", path)

    def _move(self, path: Path) -> None:
        location, failure = "", None
        try:
            location = self._upload(path)
        except Exception as error:  # noqa: BLE001 - reported; a bug must not end the thread
            failure = error
        with self._state:
            if self._is_abandoned.is_set():
                return
            self._is_in_callback = True
        try:
            if failure is None:
                try:
                    self._on_moved(path, location)
                    self._storage.delete_local(path)
                    self._local.pop(path)
                except Exception as error:  # noqa: BLE001 - reported; the file is kept
                    failure = error
            if failure is not None:
                self._on_failed(path, failure)
        finally:
            with self._state:
                self._is_in_callback = False
                self._state.notify_all()

    def _upload(self, path: Path) -> str:
        pauses_s = iter(() if self._is_failing else self._pauses_s)
        while True:
            try:
                location = self._storage.upload(path)
            except RefusedUpload:
                raise
            except ArchiveError as error:
                pause_s = next(pauses_s, None)
                if pause_s is None:
                    self._is_failing = True
                    raise
                logger.info("%s Retrying in %g seconds.", error, pause_s)
                if self._is_abandoned.wait(pause_s):
                    raise
            else:
                self._is_failing = False
                return location
