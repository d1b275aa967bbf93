"""The writer lock of an index folder: one process writes at a time, and others learn which process holds the lock.

The lock is an exclusive `flock` on the file ``lock`` in the folder. The file is never removed, so the lock ends with the
process, however the process ends. A fork of the process neither holds nor keeps the lock. The content of the file only
names the holder: one line with a JSON object of ``pid``, ``host``, ``since`` (UTC) and ``command``; empty if the lock is
free. On file systems without such locks, nothing protects the folder. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import time
import weakref
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable, folder_fault
from scrapy_dedupe.warc.files import is_same_file

try:
    import fcntl
except ImportError:  # no POSIX locks on this system
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

LOCK = "lock"
"""The name of the lock file."""

_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()

_POLL_S = 0.02
_MOST_BYTES = 4096  # read of the file
_MOST_CHARACTERS = 200  # shown of each value
_HELD = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
# ENOLCK is not included: file systems with locks also report it when they have no resources for another lock.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class WriterLock:
    """Holds the writer lock of the index in *folder* while used as a context manager. Creates the folder if needed.

    *command* describes the work for other processes. If another process holds the lock, waits up to *timeout_s* seconds.
    Raises StoreUnavailable if the lock is still held then, or if the file cannot be written; StoreRefused if the path is
    not a regular file.
    """

    def __init__(self, folder: Path, command: str = "", *, timeout_s: float = 0) -> None:
        self.folder = folder
        self.command = command
        self.timeout_s = timeout_s
        self._fd = -1
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock in this process."""
        return self._fd >= 0 and self._pid == os.getpid()

    def __enter__(self) -> Self:
        if self._fd >= 0:
            raise RuntimeError(f"This object already holds the lock of {self.folder}.")
        deadline = time.monotonic() + self.timeout_s
        fd = self._locked(deadline)
        while fd is None:  # the file that was opened has been replaced
            fd = self._locked(deadline)
        self._fd, self._pid = fd, os.getpid()
        _held.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _held.discard(self)
        fd, self._fd = self._fd, -1
        if fd < 0:
            return  # in a fork
        with contextlib.suppress(OSError):
            if self._pid == os.getpid():
                os.ftruncate(fd, 0)  # no longer name this process as the holder
                if fcntl is not None:
                    # Closing is not enough if a child process has inherited the descriptor.
                    fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)

    def _leave_to_parent(self) -> None:
        """Close the file in a fork: the lock is kept as long as any descriptor of the file is open."""
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)

    def _locked(self, deadline: float) -> int | None:
        """The descriptor of the locked file; None if the file is no longer the one in the folder."""
        fd = self._open()
        try:
            while not self._is_free(fd):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreUnavailable(self._refusal(fd))
                time.sleep(min(_POLL_S, left))
                if not self._is_in_place(fd):
                    os.close(fd)
                    return None
            # A lock on a removed file excludes nobody.
            if not self._is_in_place(fd):
                os.close(fd)
                return None
            # The content is informative only: the lock is valid even if a full disk has no space for it.
            with contextlib.suppress(OSError):
                self._write_holder(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        return fd

    def _is_free(self, fd: int) -> bool:
        """Try to lock the file without waiting. Returns False if another process holds the lock."""
        if fcntl is None:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return False
            if error.errno in _NO_LOCKS:
                return True
            raise StoreUnavailable(
                f"{self.folder / LOCK} cannot be locked: {error.strerror or error}. Check the locks of the file"
                " system (on a network, its lock service), or name another folder with --root."
            ) from error
        return True

    def _is_in_place(self, fd: int) -> bool:
        try:
            return is_same_file(fd, self.folder / LOCK)
        except OSError as error:
            raise self._unavailable(error) from error

    def _open(self) -> int:
        path = self.folder / LOCK
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # O_NONBLOCK: opening a FIFO of this name would block.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreRefused(
                f"{self.folder} is not a folder. Name a folder for the passage index with --root."
            ) from error
        except IsADirectoryError as error:
            raise _not_a_lock(path) from error
        except OSError as error:
            raise self._unavailable(error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise _not_a_lock(path)
        return fd

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        reason, remedy = folder_fault(self.folder, error, "another folder (--root, or DEDUPE_PASSAGES_DIR)")
        return StoreUnavailable(f"The passage index {self.folder} cannot be written: {reason}. {remedy}")

    def _write_holder(self, fd: int) -> None:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": self.command,
        }
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(holder).encode() + b"\n", 0)

    def _refusal(self, fd: int) -> str:
        return f"The index {self.folder} is being written by {_holder(fd)}. Wait until it has finished."


def _leave_all_to_parent() -> None:
    for lock in list(_held):
        lock._leave_to_parent()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


def _holder(fd: int) -> str:
    """A description of the process that holds the lock."""
    try:
        holder = json.loads(os.pread(fd, _MOST_BYTES, 0))
        pid, host, since, command = (holder[name] for name in ("pid", "host", "since", "command"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"  # which has not written its description yet
    words = f"process {_shown(pid)} on host {_shown(host)} since {_shown(since)}"
    return f"{words} ({_shown(command)})" if command else words


def _shown(value: object) -> str:
    text = "".join(character if character.isprintable() else "�" for character in str(value))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _not_a_lock(path: Path) -> StoreRefused:
    return StoreRefused(
        f"{path} is not a file, so the passage index cannot be locked. Remove it, or name another folder with --root."
    )
