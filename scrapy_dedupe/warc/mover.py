"""A thread that moves finished files to a storage while the crawl goes on.

Files go one after the other, in the order in which they were handed over, so that a slow network blocks nobody but the
next file. For each: upload and verify, then tell (``on_moved``), then delete the local file. Whoever remembers where
files are has therefore the new place before the old one is gone, and a kill between two of these steps leaves both
copies, never none.
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
    """Moves files to *storage* on a thread of its own, from the first `submit` until `close`.

    Both callbacks run on that thread. ``on_moved(path, location)`` is called when the copy is verified; if it raises,
    the local file is kept and ``on_failed`` is called instead. ``on_failed(path, error)`` is called when the file stays
    local: at once where trying again cannot help, else after one more attempt behind each of the *pauses_s*. Once a file
    has failed in spite of all pauses, those after it have one attempt each until one of them succeeds: a storage that is
    full or away costs the pauses once.
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
        self._is_telling = False
        self._is_failing = False
        self._thread: threading.Thread | None = None
        self._is_given_up = threading.Event()
        self._is_closed = False

    def submit(self, path: Path | str) -> None:
        """Hand over a finished file. Raises ArchiveError after `close`."""
        path = Path(path)
        if self._is_closed:
            raise ArchiveError(f"{path} stays where it is: nothing more is moved to {self._storage.shown}.")
        self._local[path] = None
        self._queue.put(path)
        if self._thread is None:
            # A daemon, since an upload cannot be interrupted: a process that ends does not wait for it.
            self._thread = threading.Thread(target=self._run, name="dedupe-mover", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float | None = None) -> list[Path]:
        """Wait for what was handed over, at most *timeout_s* seconds; the files that stay local, failed ones included.

        What is not moved by then is given up: pauses end, a running upload is left to itself, and its local file is
        neither deleted nor told of any more. A callback that runs is waited for, so do not call this on the thread that
        a callback waits for. Safe to repeat.
        """
        self._is_closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._state:
            self._is_given_up.set()
            while self._is_telling:
                self._state.wait()
            return list(self._local)

    def _run(self) -> None:
        while (path := self._queue.get()) is not None:
            if self._is_given_up.is_set():
                return
            try:
                self._move(path)
            except Exception:
                # What raised is a callback that tells of failures; the other files are moved all the same.
                logger.exception("%s stays where it is, and nobody could be told.", path)

    def _move(self, path: Path) -> None:
        location, failure = "", None
        try:
            location = self._upload(path)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the thread, and is told
            failure = error
        with self._state:
            if self._is_given_up.is_set():
                return
            self._is_telling = True
        try:
            if failure is None:
                try:
                    self._on_moved(path, location)
                    self._storage.delete_local(path)
                    self._local.pop(path)
                except Exception as error:  # noqa: BLE001 - told; the file is kept
                    failure = error
            if failure is not None:
                self._on_failed(path, failure)
        finally:
            with self._state:
                self._is_telling = False
                self._state.notify_all()

    def _upload(self, path: Path) -> str:
        pauses_s = () if self._is_failing else self._pauses_s
        for pause_s in pauses_s:
            try:
                return self._storage.upload(path)
            except RefusedUpload:
                raise
            except ArchiveError as error:
                logger.info("%s It is tried again in %g seconds.", error, pause_s)
                if self._is_given_up.wait(pause_s):
                    raise
        try:
            location = self._storage.upload(path)
        except RefusedUpload:
            raise
        except ArchiveError:
            self._is_failing = True
            raise
        self._is_failing = False
        return location
