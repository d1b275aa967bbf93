"""The bytes of a WARC or ARC file, plain or in gzip members, one record after the other.

Both sources are walked in the same way: ``begin`` goes to the next record, ``readline`` and ``pieces`` take its
bytes, ``find_next`` looks for the next place that begins with a record after a damaged one. Members are
decompressed piece by piece, so that a small one which swells does not fill the memory.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader
    from typing import Literal

GZIP_MAGIC = b"\x1f\x8b\x08"
WARC_START = re.compile(rb"WARC/\d")
# URL, IP address, date, media type, (version 2: five more,) length. URLs of old crawlers contain spaces.
ARC_LINE = re.compile(rb"\S[^\r\n]* \S+ \d{8,17} [^\r\n]*?(\d+)\r?\n?")
MAX_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 16
_PIECE = 1 << 20  # of decompressed bytes at a time: a small member can be a large one


class ReadableFile(Protocol):
    """What records are read from: a `Path`, or a file inside a container. ``str()`` says where it is."""

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> Sequence[str]: ...

    def open(self, mode: Literal["rb"], /) -> BufferedReader: ...


class Broken(Exception):
    """The bytes at this place contradict themselves."""


class Cut(Broken):
    """The file ends inside a record."""


class PlainSource:
    """Bytes of an uncompressed file; `offset` is where the present record begins."""

    is_inside_member = False

    def __init__(self, file: BufferedReader, offset: int) -> None:
        self._file = file
        self.offset = offset
        file.seek(offset)

    @property
    def position(self) -> int:
        return self._file.tell() - self.offset

    @property
    def is_at_end(self) -> bool:
        return not self._file.peek(1)

    def begin(self) -> bool:
        self.offset = self._file.tell()
        return not self.is_at_end

    def length_since(self, offset: int) -> int:
        return self._file.tell() - offset

    def readline(self) -> bytes:
        return self._file.readline(MAX_HEAD_BYTES)

    def peek_head(self) -> bytes:
        """What comes next up to a blank line, if it is at hand, without taking it."""
        at_hand = self._file.peek(1)
        return at_hand[: at_hand.find(b"\r\n\r\n") + 4] if b"\r\n\r\n" in at_hand else b""

    def peek_line(self) -> bytes:
        position = self._file.tell()
        line = self._file.readline(MAX_HEAD_BYTES)
        self._file.seek(position)
        return line

    def skip_blank_lines(self) -> bytes:
        """Take the line ends that come next, and half of one at the end of the file; return them."""
        taken = b""
        while True:
            position = self._file.tell()
            line = self._file.readline(3)
            if line not in (b"\r\n", b"\n", b"\r"):
                self._file.seek(position)
                return taken
            taken += line

    def skip(self, length: int) -> None:
        self._file.seek(length, 1)

    def pieces(self, length: int) -> Iterator[bytes]:
        while length:
            piece = self._file.read(min(length, _PIECE))
            if not piece:
                raise Cut(f"the file ends {length} bytes before the end of the record")
            length -= len(piece)
            yield piece

    def find_next(self, offset: int) -> None:
        """Go to the next line that begins a record, or to the end of the file."""
        self._file.seek(offset)
        is_line_start = False
        while line := self._file.readline(_CHUNK):
            if is_line_start and begins_record(line):
                self.offset = self._file.seek(-len(line), 1)
                return
            # A binary body may end without a line end just before a record.
            if not is_line_start and (match := re.search(rb"WARC/1\.\d\r?\n\Z", line)):
                self.offset = self._file.seek(match.start() - len(line), 1)
                return
            is_line_start = line.endswith(b"\n")
        self.go_to_end()

    def go_to_end(self) -> None:
        self.offset = self._file.seek(0, 2)


class GzipSource:
    """Decompressed bytes of a file of gzip members; `offset` is where the present member begins."""

    def __init__(self, file: BufferedReader, offset: int) -> None:
        self._file = file
        self._restart(offset)

    def _restart(self, offset: int) -> None:
        self.offset = offset
        self._file.seek(offset)
        self._raw = b""  # read from the file, not yet decompressed
        self._member: zlib._Decompress | None = None
        self._out = b""
        self._index = 0
        self._before = 0  # decompressed bytes of this member before _out

    @property
    def position(self) -> int:
        return self._before + self._index

    @property
    def is_inside_member(self) -> bool:
        """Whether more of this member follows, after at least one of its bytes was taken."""
        return self.position > 0 and not self._member_has_ended()

    @property
    def is_at_end(self) -> bool:
        """Whether the member is at its end, where a record may end without another following."""
        return self._member_has_ended()

    def begin(self) -> bool:
        if self._member is not None and not self._member_has_ended():
            return True
        offset = self._file.tell() - len(self._raw)
        while True:
            if not self._raw:
                self._raw = self._file.read(_CHUNK)
            if not self._raw:
                self.offset = offset
                return False
            stripped = self._raw.lstrip(b"\0")
            offset += len(self._raw) - len(stripped)
            self._raw = stripped
            if stripped:
                break
        self.offset = offset
        self._member = zlib.decompressobj(31)
        self._out, self._index, self._before = b"", 0, 0
        if self._member_has_ended():  # an empty member, as block compressors put at the end
            return self.begin()
        return True

    def length_since(self, offset: int) -> int:
        return self._file.tell() - len(self._raw) - offset

    def readline(self) -> bytes:
        while True:
            end = self._out.find(b"\n", self._index) + 1
            if end or len(self._out) - self._index >= MAX_HEAD_BYTES or not self._fill():
                line = self._out[self._index : end or None]
                self._index += len(line)
                return line

    def peek_head(self) -> bytes:
        """What comes next up to a blank line, if it is at hand, without taking it."""
        end = self._out.find(b"\r\n\r\n", self._index)
        return self._out[self._index : end + 4] if end >= 0 else b""

    def peek_line(self) -> bytes:
        line = self.readline()
        self._index -= len(line)
        return line

    def skip_blank_lines(self) -> bytes:
        """Take the line ends that come next in this member; return them."""
        taken = b""
        while True:
            if len(self._out) - self._index < 2 and self._fill():
                continue
            if self._out.startswith(b"\r\n", self._index):
                line = b"\r\n"
            elif self._out.startswith(b"\n", self._index):
                line = b"\n"
            else:
                return taken
            self._index += len(line)
            taken += line

    def skip(self, length: int) -> None:
        for _ in self.pieces(length):
            pass

    def pieces(self, length: int) -> Iterator[bytes]:
        while length:
            if self._index == len(self._out) and not self._fill():
                raise Broken(f"the gzip member ends {length} bytes before the end of the record")
            piece = self._out[self._index : self._index + length]
            self._index += len(piece)
            length -= len(piece)
            yield piece

    def find_next(self, offset: int) -> None:
        """Go to the next member that begins with a record, or to the end of the file."""
        self._file.seek(offset)
        window = b""
        while chunk := self._file.read(_CHUNK):
            window += chunk
            base = self._file.tell() - len(window)
            at = window.find(GZIP_MAGIC)
            while at >= 0:
                if self._member_begins_record(base + at):
                    self._restart(base + at)
                    return
                at = window.find(GZIP_MAGIC, at + 1)
            self._file.seek(base + len(window))
            window = window[-(len(GZIP_MAGIC) - 1) :]
        self.go_to_end()

    def go_to_end(self) -> None:
        self._restart(self._file.seek(0, 2))

    def _member_begins_record(self, offset: int) -> bool:
        self._file.seek(offset)
        try:
            out = zlib.decompressobj(31).decompress(self._file.read(_CHUNK), 1 << 14)
        except zlib.error:
            return False
        return begins_record(out.partition(b"\n")[0] + b"\n")

    def _member_has_ended(self) -> bool:
        return self._member is None or (self._index == len(self._out) and not self._fill())

    def _fill(self) -> bool:
        """Decompress some more of the present member; False at its end."""
        member = self._member
        assert member is not None
        while not member.eof:
            if not self._raw:
                self._raw = self._file.read(_CHUNK)
                if not self._raw:
                    raise Cut("the file ends inside a gzip member")
            try:
                data = member.decompress(self._raw, _PIECE)
            except zlib.error as error:
                raise Broken(f"the gzip member is damaged ({error})") from None
            self._raw = member.unused_data if member.eof else member.unconsumed_tail
            if data:
                self._before += self._index
                self._out = self._out[self._index :] + data
                self._index = 0
                return True
        return False


def begins_record(line: bytes) -> bool:
    return bool(WARC_START.match(line) or ARC_LINE.fullmatch(line))
