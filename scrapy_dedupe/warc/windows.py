"""Files that several readers use and that are read once, and comparison of bytes in bounded memory.

A `WindowedFile` keeps the last bytes that were read. All its open handles take their bytes from there, so that a reader of
records and a comparison of stored bytes do not read the same bytes twice, and a reader can start again at a nearby offset.
Bytes that are no longer kept are read again from the file.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from scrapy_dedupe.warc.sources import ReadableFile

KEPT_BYTES = 2 << 20
_PIECE = 1 << 18


class WindowedFile:
    """A context manager around the open file *file*, which itself can be opened as a `ReadableFile`.

    Unless *reads_ahead* is set, only the requested bytes are read.
    """

    def __init__(self, file: ReadableFile, *, reads_ahead: bool = True) -> None:
        self._file = file
        self._piece = _PIECE if reads_ahead else 1
        # The window is the buffer.
        self._raw = file.open("rb").detach()
        self.size_bytes = self._raw.seek(0, io.SEEK_END)
        self._kept = bytearray()
        self._start = 0  # the offset of the first kept byte

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    def __str__(self) -> str:
        return str(self._file)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._file.name

    @property
    def suffixes(self) -> Sequence[str]:
        """The suffixes of the file's name."""
        return self._file.suffixes

    def open(self, _mode: Literal["rb"], /) -> io.BufferedReader:
        """A new handle, whose position is independent of the others."""
        return io.BufferedReader(_Handle(self))

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from *offset*, at most *size*; fewer only at the end of the file."""
        if offset < self._start or size > KEPT_BYTES:
            return self._read_at(offset, size)
        end = self._start + len(self._kept)
        if offset > end:
            self._kept.clear()
            self._start = end = offset
        if offset + size > end:
            self._kept += self._read_at(end, max(offset + size - end, self._piece))
            forgotten = max(0, min(offset - self._start, len(self._kept) - KEPT_BYTES))
            del self._kept[:forgotten]
            self._start += forgotten
        begin = offset - self._start
        return bytes(self._kept[begin : begin + size])

    def is_gzip_at(self, offset: int) -> bool:
        """Whether a gzip member begins at *offset*."""
        return self.read(offset, 2) == GZIP_MAGIC[:2]

    def _read_at(self, offset: int, size: int) -> bytes:
        self._raw.seek(offset)
        data = self._raw.read(size) or b""
        while len(data) < size and (more := self._raw.read(size - len(data))):
            data += more
        return data


class HeldFile:
    """A `ReadableFile` of which only the bytes *data*, from the offset *start*, are in memory.

    *place* is its text in messages.
    """

    def __init__(self, data: bytes, place: str, start: int = 0) -> None:
        self._data = data
        self._place = place
        self._start = start
        self.size_bytes = start + len(data)
        self.name = place.rpartition("/")[2]
        self.suffixes = (".gz",) if data.startswith(GZIP_MAGIC[:2]) else ()

    def __str__(self) -> str:
        return self._place

    def open(self, _mode: Literal["rb"], /) -> io.BufferedReader:
        """A handle for reading."""
        return io.BufferedReader(_Handle(self))

    def read(self, offset: int, size: int) -> bytes:
        """See `WindowedFile`; empty for bytes that are not in memory."""
        begin = offset - self._start
        return self._data[begin : begin + size] if begin >= 0 else b""


def are_same(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Whether two streams have the same bytes, regardless of their division into pieces.

    >>> are_same(iter([b"ab", b"c"]), iter([b"a", b"", b"bc"]))
    True
    """
    left = right = b""
    while True:
        while not left and (piece := next(one, None)) is not None:
            left = piece
        while not right and (piece := next(other, None)) is not None:
            right = piece
        size = min(len(left), len(right))
        if not size:
            return len(left) == len(right)
        # Slices of bytes are compared much faster than those of a memoryview.
        if left[:size] != right[:size]:
            return False
        left, right = left[size:], right[size:]


class _Handle(io.RawIOBase):
    def __init__(self, window: WindowedFile | HeldFile) -> None:
        self._window = window
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._window.size_bytes
        self._position = offset
        return offset

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        # A longer range would not fit into the window.
        data = self._window.read(self._position, min(len(buffer), _PIECE))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
