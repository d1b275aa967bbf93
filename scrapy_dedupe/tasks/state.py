"""A state folder, which lets long-running work continue after an interruption.

Only one process at a time uses the folder. A file gets its final name only when it is complete and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.locks import FileLock, is_locked
from scrapy_dedupe.warc.remote import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

LOCK = "lock"
"""The name of the lock file in the folder."""

_MOST_TRIES = 10


class StateFolder:
    """The folder *path*, created if it does not exist and locked while used as a context manager.

    Raises ArchiveError if another process holds the lock, or if the folder cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / LOCK, self._opened)

    def __enter__(self) -> Self:
        with writing(self.path):
            try:
                self._lock.acquire()
            except BlockingIOError:
                raise self._busy() from None
            try:
                _remove_tree(self._gone)  # left by a process that was killed while it removed the folder
            except OSError:
                self._lock.release()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def check_free(self) -> None:
        """Raise ArchiveError if another process holds the lock. The folder is not changed."""
        with reading(self.path):
            is_busy = self._lock.path.exists() and is_locked(self._lock.path)
        if is_busy:
            raise self._busy()

    def read_json(self, name: str) -> Any:
        """The value written by `write_json`, None if there is none. Raises ArchiveError if it cannot be read."""
        path = self.path / name
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ArchiveError(f"{path} cannot be read ({error}). Start again with --force.") from error

    def write_json(self, name: str, value: Any) -> None:
        """Write a value atomically. Raises ArchiveError."""
        write_whole(self.path / name, (json.dumps(value, indent=1) + "\n").encode())

    def clear(self, *, keep: frozenset[str] = frozenset(), last: tuple[str, ...] = ()) -> None:
        """Remove all entries except those in *keep*; those in *last* are removed after the others, in that order.

        Files are removed before folders: if a kill interrupts this, no proof of a step may outlive the files of the step.
        """
        with writing(self.path):
            entries = [path for path in self.path.iterdir() if path.name not in keep]
            folders = {path for path in entries if path.is_dir() and not path.is_symlink()}
            entries.sort(
                key=lambda path: (last.index(path.name) + 1 if path.name in last else 0, path in folders)
            )
            for path in entries:
                if path in folders:
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            sync_folder(self.path)

    def remove(self) -> None:
        """Remove the folder and its content atomically."""
        with writing(self.path):
            # The process that used the folder before may still be removing its copy.
            _remove_tree(self._gone)
            self.path.rename(self._gone)
            sync_folder(self.path.parent)
            _remove_tree(self._gone)

    @property
    def is_left(self) -> bool:
        """Whether an earlier process has left the folder, or parts of it that it had not removed yet."""
        return self.path.exists() or self._gone.exists()

    @property
    def _gone(self) -> Path:
        return self.path.with_name(f".{self.path.name}.gone")

    def _busy(self) -> ArchiveError:
        return ArchiveError(
            f"Another process is working in {self.path}. Wait until it has finished, or choose another output."
        )

    def _opened(self) -> int:
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                return os.open(self._lock.path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:  # another process has just removed the folder
                continue


def _remove_tree(path: Path) -> None:
    """Remove a folder that another process may be removing at the same time."""
    tries = 0
    while path.exists():
        tries += 1
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            # Another process can rename its own folder to this path in the moment in which this one is empty.
            if error.errno != errno.ENOTEMPTY or tries == _MOST_TRIES:
                raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, so that it survives a crash. Raises ArchiveError."""
    with writing(path):
        whole_file.replace(path, data, suffix=".new")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing *path* into ArchiveError."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions, or choose"
            " another place."
        ) from error


@contextlib.contextmanager
def reading(file: object) -> Iterator[None]:
    """Turn an OSError while reading *file* into ArchiveError."""
    try:
        yield
    except OSError as error:
        raise unreadable(file, error) from error
