"""Files of a work folder of which single items are read, without the memory that mapping them takes in the end."""

from __future__ import annotations

import os
import sys
from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CODINGS: Final = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class Items:
    """A file of uint32 in the order of bytes of this machine, which somebody else writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def item(self, number: int) -> int:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY)
        return int.from_bytes(os.pread(self._fd, 4, 4 * number), sys.byteorder)

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
