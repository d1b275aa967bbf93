"""Temporary files with random access to items, which do not use as much memory as mapping the whole file.

They are in a folder that is removed at the end, also after an error. A folder that a killed process has left is removed
by the next process that uses the same parent folder: each folder has a file that its process keeps locked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from array import array
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.files.locks import is_locked, lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

PREFIX: Final = "scrapy-dedupe-passages-"
_HELD: Final = ".held"
_NEW_S: Final = 60.0
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def work_folder(index: Path, parent: Path | None) -> Iterator[Path]:
    """A new folder below *parent*, or below the default folder for temporary files, for a query on *index*.

    Raises StoreUnavailable if the folder cannot be written to, or if reading the index fails within the block.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    folder = None
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True) as folder:
            held = os.open(Path(folder, _HELD), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                lock(held)
                if is_locked(Path(folder, _HELD)):  # the file system has locks
                    _remove_left(place)
                yield Path(folder)
            finally:
                os.close(held)
    except OSError as error:
        named = str(error.filename or "")
        if folder is None or named.startswith(folder) or error.errno in _NO_SPACE:
            raise StoreUnavailable(
                f"The temporary files of extract cannot be written to {place}: {error.strerror or error}. Check the free"
                " space and the permissions there, or name another folder with --work or in TMPDIR."
            ) from error
        raise StoreUnavailable(
            f"The index {index} can no longer be read: {named or 'a file'}: {error.strerror or error}."
            " Check its disk and the permissions there."
        ) from error


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that have ended."""
    for held in place.glob(f"{PREFIX}*/{_HELD}"):
        # Another process may remove the folder at the same time; folders of other users cannot be removed.
        with contextlib.suppress(OSError):
            # A process that has just created the file may not have locked it yet.
            if time.time() - held.stat().st_mtime > _NEW_S and not is_locked(held):
                shutil.rmtree(held.parent)


_WINDOW: Final = 1 << 22
"""How many items of a file are mapped at a time."""


class Items:
    """A file of numbers in native byte order. This class only reads it; other code writes it."""

    def __init__(self, path: Path, dtype: type = np.uint32) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._fd = -1

    def between(self, start: int, end: int) -> NDArray:
        """The items from *start* to before *end*."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY)
        size = self._dtype.itemsize
        return np.frombuffer(os.pread(self._fd, (end - start) * size, start * size), self._dtype)

    def some(self, numbers: NDArray[np.int64]) -> NDArray:
        """The items at the positions *numbers*."""
        # Pages of a mapped file stay in memory as long as the mapping exists, so map one window at a time.
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        found = np.empty(len(numbers), self._dtype)
        windows = numbers // _WINDOW
        bounds = np.flatnonzero(np.diff(windows, prepend=-1, append=-1)).tolist()
        for first, last in pairwise(bounds):
            start = int(windows[first]) * _WINDOW
            count = int(numbers[last - 1]) - start + 1
            items = np.memmap(self._path, self._dtype, "r", start * self._dtype.itemsize, (count,))
            found[order[first:last]] = items.view(np.ndarray)[numbers[first:last] - start]
        return found

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WrittenTexts:
    """Texts whose parts can be read by character position.

    All characters of a text are written with the same number of bytes: one if all are in Latin-1, otherwise four.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._offsets = array("q")
        self._widths = array("B")
        self._size = 0

    def add(self, texts: Sequence[str]) -> None:
        """Append texts; they are numbered from 0."""
        for text in texts:
            try:
                width, data = 1, text.encode("latin-1")
            except UnicodeEncodeError:
                width, data = 4, text.encode("utf-32-le", "surrogatepass")
            self._offsets.append(self._size)
            self._widths.append(width)
            self._file.write(data)
            self._size += len(data)

    def finish(self) -> None:
        """Flush the file after the last text."""
        self._file.flush()

    def slice(self, text: int, start: int, end: int) -> str:
        """The characters from *start* to before *end* of a text."""
        width = self._widths[text]
        data = os.pread(self._file.fileno(), (end - start) * width, self._offsets[text] + start * width)
        return data.decode("latin-1") if width == 1 else data.decode("utf-32-le", "surrogatepass")

    def close(self) -> None:
        self._file.close()
