"""Reading, writing and locking the files of an index folder, and the errors when that fails.

A folder may hold anything: only regular files are read, opening a FIFO does not block, and the size read is limited.
Files are written atomically. A new file gets its name only when it is complete and on the disk.

The writer lock: one process writes at a time, and others learn which process holds the lock.

The lock is an exclusive `flock` on the file ``lock`` in the folder. The file is never removed, so the lock ends with
the process, even if it is killed. A fork of the process neither holds nor keeps the lock. The content of the file only
names the holder: one line with a JSON object of ``pid``, ``host``, ``since`` (UTC) and ``command``; empty if the lock
is free. On file systems without such locks, nothing protects the folder. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError, StoreRefused, StoreUnavailable
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import folder_fault
from scrapy_dedupe.files.locks import FileLock, LockFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing *path* into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions."
        ) from error


NEW_SUFFIX = ".new"
"""The suffix of a file until it is complete and on the disk."""


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of a file of at most *max_bytes*.

    Raises FileNotFoundError or NotADirectoryError if it does not exist; StoreRefused if it is larger, or not a regular
    file; StoreUnavailable if it cannot be read.
    """
    with reading(path), open(open_regular(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise damaged(path, f"has more than {max_bytes} bytes")
    return data


def open_regular(path: Path) -> int:
    """Open a file for reading, and return its descriptor. Raises OSError, and StoreRefused if it is not a regular file."""
    # O_NONBLOCK: opening a FIFO would block.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise damaged(path, "is not a regular file")
    return fd


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, so that the change survives a crash.

    Raises StoreUnavailable. Its message says whether the file is unchanged, since an error may come after the replacement.
    """
    try:
        whole_file.replace(path, data, suffix=NEW_SUFFIX)
    except whole_file.FolderNotSynced as error:
        raise StoreUnavailable(
            f"{path} was written, but the system cannot guarantee that it survives a power failure:"
            f" {error.strerror or error}. Check the disk."
        ) from error
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions; the"
            " index is unchanged."
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for any OSError of the block, except for missing files and folders."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be read: {error.strerror or error}. Check its permissions and the disk."
        ) from error


def damaged(path: Path, what: str) -> StoreRefused:
    return StoreRefused(
        f"The passage index is damaged: {path} {what}. Restore the file from a backup, or index into another folder."
    )


def missing_file(folder: Path, error: FileNotFoundError) -> StoreRefused:
    """The error for a file that the manifest names and that is missing."""
    return damaged(folder, f"lacks the file {error.filename}")


LOCK = "lock"
"""The name of the lock file."""

_MOST_BYTES = 4096  # read of the file
_MOST_CHARACTERS = 200  # shown of each value


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
        self._lock = FileLock(folder / LOCK, self._open, is_required=True)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock in this process."""
        return self._lock.is_held

    def __enter__(self) -> Self:
        if self._lock.fd >= 0:
            raise RuntimeError(f"This object already holds the lock of {self.folder}.")
        try:
            self._lock.acquire(self.timeout_s)
        except BlockingIOError:
            raise StoreUnavailable(
                f"The index {self.folder} is being written by {_holder(self._lock.path)}. Wait until it has finished."
            ) from None
        except LockFailed as error:
            raise StoreUnavailable(
                f"{self._lock.path} cannot be locked: {error.strerror or error}. Check the locks of the file"
                " system (on a network, its lock service), or name another folder with --root."
            ) from error
        except OSError as error:
            raise self._unavailable(error) from error
        try:
            # The content is informative only: the lock is valid even if a full disk has no space for it.
            with contextlib.suppress(OSError):
                self._write_holder(self._lock.fd)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock.is_held:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock.fd, 0)  # no longer name this process as the holder
        self._lock.release()

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


def _holder(path: Path) -> str:
    """A description of the process that holds the lock."""
    try:
        holder = json.loads(read_file(path, _MOST_BYTES))
        pid, host, since, command = (holder[name] for name in ("pid", "host", "since", "command"))
    except (StoreError, OSError, ValueError, KeyError, TypeError, RecursionError):
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
