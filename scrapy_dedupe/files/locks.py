"""Locks on files, by `flock`.

A lock belongs to an open file. It ends when the file is closed, or when the process ends for any reason. Programs
that a process starts do not inherit the lock, and `os.fork` closes a `FileLock` in the child. On systems without such
locks, nothing protects the file: every attempt to lock it succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from typing import TYPE_CHECKING, Final

try:
    import fcntl
except ImportError:  # no POSIX locks on this system
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HAS_LOCKS: Final = fcntl is not None
"""Whether the system has such locks. Systems without them cannot rename open files either."""

_POLL_S: Final = 0.02
_HELD: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
# ENOLCK is not included: file systems with locks also report it when they have no resources for another lock.
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class LockFailed(OSError):
    """The file could not be locked, and no other process is known to hold the lock."""


def lock(fd: int, *, is_shared: bool = False, is_required: bool = False) -> bool:
    """Lock an open file for this process, without waiting; False if another process holds the lock.

    Also True if the system or the file system has no locks. If a file system with locks fails to lock the file, raises
    LockFailed with *is_required*, and otherwise returns True.
    """
    try:
        return strict_lock(fd, is_shared=is_shared)
    except LockFailed as error:
        if is_required and error.errno not in _NO_LOCKS:
            raise
    return True


def strict_lock(fd: int, *, is_shared: bool = False) -> bool:
    """Lock an open file for this process, without waiting; False if another process holds the lock.

    Raises LockFailed if the file cannot be locked, also if its file system has no locks. True on systems without locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise LockFailed(error.errno, error.strerror or str(error)) from error
    return True


def is_locked(path: Path | str) -> bool:
    """Whether another process holds a lock on the file. False on systems without locks. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return not lock(fd)
    finally:
        os.close(fd)


def is_same_file(fd: int, path: Path) -> bool:
    """Whether *path* still refers to the file that *fd* has open."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


class FileLock:
    """An exclusive lock on the file *path*, held from `acquire` to `release`.

    *opened* and *is_required* have the same meaning as for `open_locked`.
    """

    def __init__(self, path: Path, opened: Callable[[], int], *, is_required: bool = False) -> None:
        self.path = path
        self.fd = -1
        self._opened = opened
        self._is_required = is_required
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock in this process."""
        return self.fd >= 0 and self._pid == os.getpid()

    def acquire(self, timeout_s: float = 0) -> None:
        """Lock the file. Raises the same exceptions as `open_locked`."""
        self.fd = open_locked(self.path, self._opened, timeout_s=timeout_s, is_required=self._is_required)
        self._pid = os.getpid()
        _acquired.add(self)

    def release(self) -> None:
        """Unlock and close the file. Safe to repeat."""
        _acquired.discard(self)
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        if fcntl is not None and self._pid == os.getpid():
            # Closing is not enough if a child process has inherited the descriptor.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(fd)


def open_locked(
    path: Path, opened: Callable[[], int], *, timeout_s: float = 0, is_required: bool = False
) -> int:
    """Open the file *path*, lock it and return its descriptor.

    *opened* opens the file, creates it if it does not exist, and returns the descriptor. The file is opened again if
    another process removes or replaces it before it is locked: a lock on a removed file does not stop other processes.

    Raises BlockingIOError if another process still holds the lock after *timeout_s* seconds; the same exceptions as
    `lock` with *is_required*; and those that *opened* raises.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        fd = opened()
        is_kept = False
        try:
            is_locked = lock(fd, is_required=is_required)
            while not is_locked:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock", str(path))
                time.sleep(min(_POLL_S, left))
                if not is_same_file(fd, path):
                    break
                is_locked = lock(fd, is_required=is_required)
            is_kept = is_locked and is_same_file(fd, path)
            if is_kept:
                return fd
        finally:
            if not is_kept:
                with contextlib.suppress(OSError):
                    os.close(fd)


_acquired: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    # The system keeps the lock as long as any process has the file open.
    for held in list(_acquired):
        fd, held.fd = held.fd, -1
        with contextlib.suppress(OSError):
            os.close(fd)
    _acquired.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
