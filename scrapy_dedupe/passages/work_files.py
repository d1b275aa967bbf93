"""Files of a work folder of which single items are read, without the memory that mapping them takes in the end."""

from __future__ import annotations

import os
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_WINDOW: Final = 1 << 22
"""So many items of a file are mapped at a time."""

_CODINGS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class Items:
    """A file of numbers in the order of bytes of this machine, which somebody else writes."""

    def __init__(self, path: Path, dtype: type = np.uint32) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._fd = -1

    def between(self, start: int, end: int) -> NDArray:
        """The items from *start* to *end*."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY)
        size = self._dtype.itemsize
        return np.frombuffer(os.pread(self._fd, (end - start) * size, start * size), self._dtype)

    def some(self, numbers: NDArray[np.int64]) -> NDArray:
        """The items of these numbers."""
        # What was read of a mapped file stays in memory for as long as it is mapped, and what is around it.
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
    """Texts of which parts can be read by the numbers of their characters.

    All characters of a text are written with the same number of bytes, 1, 2 or 4, as its largest one needs it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._offsets = array("q")
        self._widths = array("B")
        self._size = 0

    def add(self, texts: Sequence[str]) -> None:
        """Write texts behind those that are there; they are numbered from 0."""
        for text in texts:
            width, data = _encoded(text)
            self._offsets.append(self._size)
            self._widths.append(width)
            self._file.write(data)
            self._size += len(data)

    def finish(self) -> None:
        """All texts are written."""
        self._file.flush()

    def slice(self, text: int, start: int, end: int) -> str:
        """The characters from *start* to *end* of a text."""
        width = self._widths[text]
        data = os.pread(self._file.fileno(), (end - start) * width, self._offsets[text] + start * width)
        return data.decode(_CODINGS[width], "strict" if width == 1 else "surrogatepass")

    def close(self) -> None:
        self._file.close()


def _encoded(text: str) -> tuple[int, bytes]:
    """A text with as few bytes a character as all of them can have, and how many."""
    try:
        return 1, text.encode(_CODINGS[1])
    except UnicodeEncodeError:
        data = text.encode(_CODINGS[2], "surrogatepass")
    # Characters above U+FFFF take two units.
    return (2, data) if len(data) == 2 * len(text) else (4, text.encode(_CODINGS[4], "surrogatepass"))
