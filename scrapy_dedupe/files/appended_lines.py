"""Lines that wait to be added at the end of a file, and are not lost while it cannot be written."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

try:
    import fcntl
except ImportError:  # no POSIX locks on this system
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from io import FileIO

_MOST_TRIES: Final = 50


class AppendedLines:
    """Lines on their way into a file; may be used from several threads.

    Above *most_bytes* the lines that come are lost. True while some wait.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        # Of a pipe nobody else knows how it ended.
        self._is_torn = False
        self._lock = Lock()
        self._writing = Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, line: bytes) -> None:
        """Let *line*, which ends with a line end, wait."""
        with self._lock:
            if self._waiting_bytes + len(line) > self._most_bytes:
                self._lost += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def write_to(self, path: Path) -> int:
        """Add all lines that wait to the end of *path*. How many. Raises OSError; lines that are not in it wait on.

        The file is opened anew each time, so it may be moved away in between. If it ends within a line, after a kill or
        on a disk that was full, that line is ended first.
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
        """Let nothing wait any more. How many lines were lost, these and those that there was no room for."""
        with self._lock:
            lost, self._lost = self._lost + len(self._waiting), 0
            self._waiting.clear()
            self._waiting_bytes = 0
        return lost


def _append(path: Path, data: bytes, *, is_torn: bool) -> tuple[int, OSError | None]:
    """How many bytes of *data* were written, and what stood in the way of the rest."""
    written = 0
    try:
        with open(path, "ab", buffering=0, opener=_opened) as file:
            if _is_torn(file, path, is_torn) and not file.write(b"\n"):
                return 0, None
            while written < len(data):
                count = file.write(data[written:])
                if count is None:
                    # The reader of a pipe is slower than we are.
                    break
                written += count
    except OSError as error:
        return written, error
    return written, None


def _opened(name: str, flags: int) -> int:
    """Open without waiting for whoever reads a pipe. Raises :class:`OSError` if nobody does."""
    return os.open(name, flags | (os.O_NONBLOCK if is_pipe(Path(name)) else 0), 0o666)


def is_pipe(path: Path) -> bool:
    """Whether there is a named pipe."""
    try:
        return path.is_fifo()
    except (OSError, ValueError):
        return False


def _is_torn(file: FileIO, path: Path, is_pipe_torn: bool) -> bool:
    """Whether *file*, opened at *path* to add to it, ends within a line."""
    status = os.fstat(file.fileno())
    if stat.S_ISFIFO(status.st_mode):
        return is_pipe_torn
    if not stat.S_ISREG(status.st_mode):
        return False
    # Another process in the middle of a line will end it.
    if not _locked(file, "LOCK_EX"):
        _share(file)
        return False
    try:
        with path.open("rb") as reader:
            if not os.path.samestat(status, os.fstat(reader.fileno())):
                return False
            reader.seek(-1, os.SEEK_END)
            return reader.read(1) != b"\n"
    except OSError:
        # It is empty, was moved away or cut in this moment, or is not for us to read.
        return False
    finally:
        _share(file)


def _share(file: FileIO) -> None:
    """Keep others from looking how *file* ends while this process writes; they may write too."""
    for _ in range(_MOST_TRIES):
        if _locked(file, "LOCK_SH"):
            return
        # Who looks needs no longer. Whoever holds the file for other reasons shall not hold up the crawl.
        time.sleep(0.001)


def _locked(file: FileIO, kind: str) -> bool:
    """Lock *file* until it is closed, without waiting; True also where there are no such locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, getattr(fcntl, kind) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
