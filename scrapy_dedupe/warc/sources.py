"""The bytes of a WARC or ARC file, plain or in gzip members, one record after the other.

Members are decompressed piece by piece, so that a small member with a huge content does not fill the memory.

Most members are small and whole. They are decompressed at once by libdeflate, which is faster but needs the end of the
member. The beginning of the next member is taken as the end, and checked as follows. RFC 1952, section 2.3: the last 8
bytes of a member are CRC and size of its content. libdeflate has verified both at the true end of the data. If the
size, or CRC and size, also precede the assumed end and occur nowhere earlier in the member, both ends are the same.
All other members are left to zlib, which also decides what is damaged.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from deflate import DeflateError, gzip_decompress
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path
    from typing import Literal

GZIP_MAGIC = b"\x1f\x8b\x08"
WARC_START = re.compile(rb"WARC/\d")
# URL, IP address, date, media type, (version 2: five more,) length. URLs of old crawlers contain spaces. The final
# digit is checked first; otherwise the pattern would be tried from every place that looks like a date to the end of
# the line.
ARC_LINE = re.compile(rb"(?=[^\r\n]*\d\r?\n?\Z)\S[^\r\n]* \S+ \d{8,17} [^\r\n]*?(\d+)\r?\n?")
_ARC_DATE = re.compile(rb" \d{8,17} ")
MAX_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 16
_PIECE = 1 << 20  # decompressed bytes at a time: a small member can have a large content
_FIRST_BYTES, _READ_BYTES = 1 << 13, 1 << 17
_FEED_BYTES = 1 << 14  # a decompressor copies the input that it does not consume
# Limits for decompressing at once: compressed size and decompressed size.
_MAX_MEMBER_BYTES = 8 << 20
_MAX_WHOLE_BYTES = 16 << 20
_MEMBER_START_BYTES, _MEMBER_END_BYTES = 10, 8
_FEW_LINE_ENDS = 8  # in bytes; a file can have millions of them in a row
_FEW_RAW_BYTES, _FEW_BYTES = 256, 64  # first look at a possible member, before more of it is decompressed
_TRIED_BYTES = 1 << 14
_MOST_TRIES = 2  # false beginnings of a next member before giving up
# The head of a member (RFC 1952, section 2.3).
_HAS_CHECKSUM, _HAS_EXTRA, _HAS_NAME, _HAS_COMMENT, _RESERVED = 2, 4, 8, 16, 0xE0
_FLAGS_AT, _FIXED_BYTES = 3, 10
# RFC 1951, section 3.2.3, from the second bit on.
_STORED, _NO_BLOCK_TYPE = 0, 3
_STORED_BYTES = 5  # one with the type of the block, its length, and its length complemented


class ReadableFile(Protocol):
    """A file with records: a `Path`, or a file inside a container. ``str()`` returns its location."""

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> Sequence[str]: ...

    def open(self, mode: Literal["rb"], /) -> BufferedReader: ...


class PieceFile:
    """A local file that is read in few pieces, with the methods that `GzipSource` needs.

    Opening a buffered file takes several system calls, which matters if every record is read on its own.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        self._at = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset if whence == os.SEEK_SET else os.lseek(self._fd, offset, whence)
        return self._at

    def read(self, size: int) -> bytes:
        data = os.pread(self._fd, size, self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        os.close(self._fd)


class Broken(Exception):
    """The bytes at this place contradict each other."""


class Cut(Broken):
    """The file ends inside a record."""


class BadMember(Broken):
    """A gzip member cannot be decompressed to its end."""


F = TypeVar("F", bound="BufferedReader | PieceFile")


class RecordSource(Generic[F]):
    """Bytes of a file, one record after the other; `offset` is where the current record, or its member, begins.

    ``begin`` goes to the next record; False at the end of the file. ``find_next`` goes to the next place that begins with
    a record. ``pass_over`` goes to where the next record may begin, after the bytes at `offset` turned out not to be a
    record.
    """

    def __init__(self, file: F, offset: int) -> None:
        self._file = file
        self.go_to(offset)

    def go_to(self, offset: int) -> None:
        self.offset = self._file.seek(offset)
        self._out: bytes | bytearray = b""
        self._index = 0
        self._before = 0  # bytes since `offset` before _out

    def close(self) -> None:
        self._file.close()

    def go_to_end(self) -> None:
        self.go_to(self._file.seek(0, 2))

    @property
    def position(self) -> int:
        return self._before + self._index

    @property
    def is_at_end(self) -> bool:
        """Whether this is the end of the member or file, where a record may end without another one following."""
        return self._index == len(self._out) and not self._fill()

    def readline(self) -> bytes:
        while True:
            end = self._out.find(b"\n", self._index) + 1
            if end or len(self._out) - self._index >= MAX_HEAD_BYTES or not self._fill():
                line = self._out[self._index : end or None]
                self._index += len(line)
                return bytes(line)

    def peek_head(self) -> bytes:
        """The head of the WARC record that begins here, blank line included, if it is at hand, without taking it."""
        if not self._out.startswith(b"WARC/", self._index):
            return b""
        end = self._out.find(b"\r\n\r\n", self._index)
        return bytes(self._out[self._index : end + 4]) if end >= 0 else b""

    def peek_line(self) -> bytes:
        line = self.readline()
        self._index -= len(line)
        return line

    def skip_blank_lines(self) -> bytes:
        """Take the following line ends, and half of one at the end; return the first few of them."""
        first = b""
        while True:
            if len(self._out) - self._index < 2 and self._fill():
                continue
            if self._out.startswith(b"\r\n", self._index):
                line = b"\r\n"
            elif self._out.startswith(b"\n", self._index) or self._out[self._index :] == b"\r":
                line = bytes(self._out[self._index : self._index + 1])
            else:
                return first
            self._index += len(line)
            if len(first) < _FEW_LINE_ENDS:
                first += line

    def skip(self, length: int) -> None:
        for _ in self.pieces(length):
            pass

    def pieces(self, length: int) -> Iterator[bytes]:
        while length:
            if self.is_at_end:
                raise self._ended_before(length)
            piece = memoryview(self._out)[self._index : self._index + min(length, _PIECE)]
            self._index += len(piece)
            length -= len(piece)
            yield bytes(piece)

    def _take(self, data: bytes) -> None:
        """Put more bytes after those that were not taken yet."""
        self._before += self._index
        self._out = self._out[self._index :] + data
        self._index = 0

    def _fill(self) -> bool:
        raise NotImplementedError

    def _ended_before(self, length: int) -> Broken:
        raise NotImplementedError


class PlainSource(RecordSource["BufferedReader"]):
    """Bytes of an uncompressed file."""

    is_inside_member = False

    def begin(self) -> bool:
        self.offset += self.position
        self._before = -self._index
        return not self.is_at_end

    def length_since(self, offset: int) -> int:
        return self.offset + self.position - offset

    def pass_over(self) -> None:
        self.find_next(self.offset + 1)

    def find_next(self, offset: int) -> None:
        self._file.seek(offset)
        is_line_start = False
        while line := self._file.readline(_CHUNK):
            if is_line_start and begins_record(line):
                self.go_to(self._file.tell() - len(line))
                return
            # A binary body may end without a line end just before a record.
            if not is_line_start and (match := re.search(rb"WARC/1\.\d\r?\n\Z", line)):
                self.go_to(self._file.tell() - len(line) + match.start())
                return
            is_line_start = line.endswith(b"\n")
        self.go_to_end()

    def _fill(self) -> bool:
        data = self._file.read(max(_READ_BYTES, len(self._out) - self._index))
        if data:
            self._take(data)
        return bool(data)

    def _ended_before(self, length: int) -> Broken:
        return Cut(f"the file ends {length} bytes before the end of the record")


class GzipSource(RecordSource["BufferedReader | PieceFile"]):
    """Decompressed bytes of a file of gzip members; `offset` is where the current member begins."""

    def go_to(self, offset: int) -> None:
        super().go_to(offset)
        self._raw = b""  # read from the file, taken up to _at
        self._at = 0
        self._read_to = offset  # where _raw ends in the file
        self._read_bytes = _FIRST_BYTES  # little at first, for callers that read only one record
        self._member: zlib_ng._Decompress | None = None  # None: all of it is in _out
        self._begin_alike = True  # whether the last two members begin with the same bytes
        self._are_mixed = False  # whether members of several programs follow each other
        self._tried = -1  # the offset of a member that cannot be decompressed at once

    @property
    def is_inside_member(self) -> bool:
        """Whether more of this member follows, after at least one of its bytes was taken."""
        return self.position > 0 and not self.is_at_end

    def begin(self) -> bool:
        while self.is_at_end:
            if not self._skip_zeros():
                self.offset = self._read_to
                return False
            self.offset = self._read_to - len(self._raw) + self._at
            self._index = self._before = 0
            self._out = self._whole_member() if self.offset != self._tried else b""
            # An empty member, as block compressors put at the end, ends where it begins.
            self._member = None if self._out else zlib_ng.decompressobj(31)
        return True

    def _skip_zeros(self) -> bool:
        """Skip the NUL bytes between members; False at the end of the file."""
        while True:
            if self._at < len(self._raw) and self._raw[self._at]:
                return True
            rest = self._raw[self._at :].lstrip(b"\0")
            self._at = len(self._raw) - len(rest)
            if not rest and not self._read_on():
                return False

    def _read_on(self) -> bool:
        """Buffer more raw bytes after those that were not taken; False at the end of the file."""
        left = self._raw[self._at :]
        # The remaining bytes are copied each time, so read at least as many.
        more = self._file.read(max(self._read_bytes, len(left)))
        self._read_bytes = min(2 * self._read_bytes, _READ_BYTES)
        self._raw = left + more
        self._at = 0
        self._read_to += len(more)
        return bool(more)

    def take_member(self) -> bytes | bytearray:
        """Take the next member, if it can be decompressed at once; else empty. `put_back_member` undoes it."""
        if self._index != len(self._out) or (self._member is not None and not self._member.eof):
            return b""
        out = self._whole_member()
        if out:
            self._member, self._out, self._before = None, out, 0
            self._index = len(out)
        else:
            self._tried = self._read_to - len(self._raw) + self._at
        return out

    def put_back_member(self) -> None:
        self._index = 0

    def _whole_member(self) -> bytes | bytearray:
        """Take the member that begins here and return its content, if it can be decompressed at once; else empty."""
        searched, tries = len(GZIP_MAGIC), 0
        while True:
            raw, at = self._raw, self._at
            # A program usually begins all its members with the same bytes. A longer pattern is found faster and has fewer
            # false matches.
            start = raw[at : at + _MEMBER_START_BYTES]
            end = -1
            if self._begin_alike and not self._are_mixed:
                end = raw.find(start, at + searched)
            is_like_start = end >= 0
            if not is_like_start:
                end = raw.find(GZIP_MAGIC, at + searched)
                self._begin_alike = end < 0 or raw.startswith(start, end)
            if end < 0:
                at_hand = len(raw) - at
                if at_hand > _MAX_MEMBER_BYTES:
                    return b""
                searched = max(searched, at_hand - _MEMBER_START_BYTES + 1)
                if self._read_on():
                    continue
                raw, at, end, tries = self._raw, self._at, len(self._raw), _MOST_TRIES
            size = int.from_bytes(raw[end - 4 : end], "little")
            # Bytes that are not the end of a member mostly give an implausible size.
            if 0 < size <= _MAX_WHOLE_BYTES and end - at > _MEMBER_END_BYTES:
                tries += 1
                try:
                    out: bytes | bytearray = gzip_decompress(memoryview(raw)[at:end], size)
                except DeflateError:
                    out = b""
                if len(out) == size and self._is_end(end, out):
                    self.offset = self._read_to - len(raw) + at
                    self._at = end
                    return out
                if out and not is_like_start:
                    return b""
            if is_like_start:
                # Probably the member of another program is in between; look for the beginning of any member.
                self._are_mixed, searched, tries = True, len(GZIP_MAGIC), 0
                continue
            if tries >= _MOST_TRIES:
                return b""
            searched = end - at + 1

    def _is_end(self, end: int, out: bytes | bytearray) -> bool:
        """Whether *end*, where the size of *out* is stored, is the first possible end of the member that holds *out*."""
        raw, at = self._raw, self._at
        if raw.find(raw[end - 4 : end], at, end) == end - 4:
            return True
        ending = raw[end - _MEMBER_END_BYTES : end]
        return (
            zlib_ng.crc32(out) == int.from_bytes(ending[:4], "little")
            and raw.find(ending, at, end) == end - _MEMBER_END_BYTES
        )

    def length_since(self, offset: int) -> int:
        return self._read_to - len(self._raw) + self._at - offset

    def _ended_before(self, length: int) -> Broken:
        return Broken(f"the gzip member ends {length} bytes before the end of the record")

    def pass_over(self) -> None:
        # A whole member is skipped completely, and so are the following members that do not begin with a record:
        # anything inside them that looks like a member is part of their content.
        try:
            while True:
                self._index = len(self._out)
                while self._fill():
                    self._index = len(self._out)
                if not self.begin() or begins_record(self.peek_line()):
                    self.go_to(self.offset)
                    return
        except Broken:
            self.find_next(self.offset + 1)

    def find_next(self, offset: int) -> None:
        self._file.seek(offset)
        raw, is_all = b"", False
        while not is_all:
            chunk = self._file.read(_READ_BYTES)
            raw += chunk
            is_all = len(chunk) < _READ_BYTES
            # Test each candidate with the same number of bytes, regardless of where the reads split the file.
            tried_to = len(raw) if is_all else len(raw) - _CHUNK
            at = raw.find(GZIP_MAGIC)
            while 0 <= at < tried_to:
                if _member_begins_record(raw, at):
                    self.go_to(offset + at)
                    return
                at = raw.find(GZIP_MAGIC, at + 1)
            raw = raw[tried_to:]
            offset += tried_to
        self.go_to_end()

    def _fill(self) -> bool:
        """Decompress some more of the current member; False at its end."""
        member = self._member
        while member is not None and not member.eof:
            if self._at == len(self._raw) and not self._read_on():
                # Without any output, the head of the member is wrong: a flag in it makes the decompressor search, across
                # good members, for a byte that never comes.
                raise (Cut if self.position or self._out else BadMember)("the file ends inside a gzip member")
            feed = self._raw[self._at : self._at + _FEED_BYTES]
            try:
                data = member.decompress(feed, _PIECE)
            except zlib_ng.error as error:  # type: ignore[misc]
                raise BadMember(f"the gzip member is damaged ({error})") from None
            self._at += len(feed) - len(member.unused_data if member.eof else member.unconsumed_tail)
            if data:
                self._take(data)
                return True
        return False


def begins_record(line: bytes) -> bool:
    if WARC_START.match(line):
        return True
    # Two cheap checks exclude most lines.
    is_likely = line.rstrip(b"\r\n")[-1:].isdigit() and _ARC_DATE.search(line)
    return bool(is_likely and ARC_LINE.fullmatch(line))


def _member_begins_record(raw: bytes, at: int) -> bool:
    """Whether the gzip member at *at* begins with a record and its beginning decompresses."""
    if deflate_start(raw, at, min(at + _CHUNK, len(raw))) < 0:
        return False
    view, line = memoryview(raw), b""
    # Mostly the first bytes already show that the first line does not begin a record.
    for raw_bytes, out_bytes in ((_FEW_RAW_BYTES, _FEW_BYTES), (_CHUNK, _TRIED_BYTES)):
        try:
            out = zlib_ng.decompressobj(31).decompress(view[at : at + raw_bytes], out_bytes)
        except zlib_ng.error:  # type: ignore[misc]
            return False
        line, line_end, _ = out.partition(b"\n")
        if line_end and not begins_record(line + b"\n"):
            return False
    return begins_record(line + b"\n")


def deflate_start(raw: bytes, at: int, end: int) -> int:
    """Where the deflated data of the member whose head is at *at* begins; -1 if there is no valid head before *end*.

    Everything that a decompressor checks in the head, and in the head of the first block, is checked. A hostile file
    has GZIP_MAGIC in every third byte; this is much faster than setting up a decompressor for each.
    """
    flags = raw[at + _FLAGS_AT] if at + _FIXED_BYTES < end else _RESERVED
    if flags & _RESERVED:
        return -1
    start = at + _FIXED_BYTES
    if flags & _HAS_EXTRA:
        start += 2 + int.from_bytes(raw[start : start + 2], "little")
    for flag in (_HAS_NAME, _HAS_COMMENT):
        if flags & flag:
            start = raw.find(b"\0", start, end) + 1
            if not start:
                return -1
    if flags & _HAS_CHECKSUM:
        checksum = int.from_bytes(raw[start : start + 2], "little")
        if start + 2 >= end or zlib_ng.crc32(memoryview(raw)[at:start]) & 0xFFFF != checksum:
            return -1
        start += 2
    return start if start < end and _begins_block(raw[start : min(start + _STORED_BYTES, end)]) else -1


def _begins_block(raw: bytes) -> bool:
    block_type = raw[0] >> 1 & 3
    if block_type != _STORED:
        return block_type != _NO_BLOCK_TYPE
    length, complement = raw[1:3], raw[3:5]
    return len(raw) == _STORED_BYTES and all(
        one ^ other == 0xFF for one, other in zip(length, complement, strict=True)
    )
