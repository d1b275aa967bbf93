"""Appends lines to a file; lines are kept in memory while the file cannot be written."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files.locks import lock

if TYPE_CHECKING:
    from io import FileIO

_MOST_TRIES: Final = 50


class AppendedLines:
    """Lines that wait to be written to a file; may be used from several threads.

    If the waiting lines exceed *most_bytes*, further lines are lost. True while lines are waiting.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        # Only for pipes: the end of a regular file can be read.
        self._is_torn = False
        self._lock = Lock()
        self._writing = Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, line: bytes) -> None:
        """Queue *line*, which must end with a line end."""
        with self._lock:
            if self._waiting_bytes + len(line) > self._most_bytes:
                self._lost += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def write_to(self, path: Path) -> int:
        """Append all waiting lines to *path*; return how many. Raises OSError; lines that were not written stay queued.

        The file is opened each time, so it may be moved away in between. If it ends with an incomplete line, after a
        kill or on a full disk, a line end is added first.
        """
        with self._writing:
            with self._lock:
                lines = list(self._waiting)
            if not lines:
                return 0
            written, error = _append(path, b"".join(lines), is_torn=self._is_torn)
            count = 0
            for line in lines:
                if len(line) > written:
                    break
                written -= len(line)
                count += 1
            if count or written:
                self._is_torn = written > 0
            with self._lock:
                for _ in range(count):
                    self._waiting_bytes -= len(self._waiting.popleft())
        if error is not None:
            raise error
        return count

    def give_up(self) -> int:
        """Discard the waiting lines; return how many lines were lost, including those that exceeded the limit."""
        with self._lock:
            lost, self._lost = self._lost + len(self._waiting), 0
            self._waiting.clear()
            self._waiting_bytes = 0
        return lost


def _append(path: Path, data: bytes, *, is_torn: bool) -> tuple[int, OSError | None]:
    """Return how many bytes of *data* were written, and the error that prevented the rest."""
    written = 0
    try:
        with open(path, "ab", buffering=0, opener=_opened) as file:
            if _is_torn(file, path, is_torn) and not file.write(b"\n"):
                return 0, None
            while written < len(data):
                count = file.write(data[written:])
                if count is None:
                    # The reader of the pipe is too slow.
                    break
                written += count
    except OSError as error:
        return written, error
    return written, None


def _opened(name: str, flags: int) -> int:
    """Open without waiting for a reader of a pipe. Raises :class:`OSError` if there is none."""
    return os.open(name, flags | (os.O_NONBLOCK if is_pipe(Path(name)) else 0), 0o666)


def is_pipe(path: Path) -> bool:
    """Whether *path* is a named pipe."""
    try:
        return path.is_fifo()
    except (OSError, ValueError):
        return False


def _is_torn(file: FileIO, path: Path, is_pipe_torn: bool) -> bool:
    """Whether *file*, opened at *path* for appending, ends with an incomplete line."""
    status = os.fstat(file.fileno())
    if stat.S_ISFIFO(status.st_mode):
        return is_pipe_torn
    if not stat.S_ISREG(status.st_mode):
        return False
    # If another process holds the lock, it is writing a line and will end it.
    if not lock(file.fileno()):
        _share(file)
        return False
    try:
        with path.open("rb") as reader:
            if not os.path.samestat(status, os.fstat(reader.fileno())):
                return False
            reader.seek(-1, os.SEEK_END)
            return reader.read(1) != b"\n"
    except OSError:
        # The file is empty, was just moved away or truncated, or is not readable.
        return False
    finally:
        _share(file)


def _share(file: FileIO) -> None:
    """Take a shared lock while this process writes: others may write too, but not check the end of *file*."""
    for _ in range(_MOST_TRIES):
        if lock(file.fileno(), is_shared=True):
            return
        # Checks of the end release the lock within this time; any other holder must not block the crawl.
        time.sleep(0.001)
