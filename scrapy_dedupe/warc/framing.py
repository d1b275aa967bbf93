r"""Where the records of a WARC or ARC file begin and end, in good and in damaged files.

Four kinds of files are told apart by their first bytes: plain or gzip, WARC or ARC (version 1 and 2).
In gzip files every record is normally a member of its own; a file that is one member, or has several
records in one, is read too, but its records cannot be reached by offset.

The reading is lenient about what hurts nobody (LF for CRLF, folded fields, too few or too many blank
lines between records, NUL bytes between members). A place is damaged when the bytes contradict
themselves: a member that does not decompress or whose checksum is wrong, a record that is not followed
by a record, a Content-Length that is no number, a file that ends too soon. The record concerned is not
returned, since nobody can say which of its bytes are its own; the damage is reported; and reading goes
on at the next place that begins with a record. Only where the file ends inside a record it does not:
what looks like a record there is part of the body that was cut.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader
    from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b\x08"
_WARC_START = re.compile(rb"WARC/\d")
# URL, IP address, date, media type, (version 2: five more,) length. URLs of old crawlers contain spaces.
_ARC_LINE = re.compile(rb"\S[^\r\n]* \S+ \d{8,17} [^\r\n]*?(\d+)\r?\n?")
_ARC_FIELDS_1 = ["url", "ip-address", "archive-date", "content-type", "archive-length"]
_ARC_FIELDS_2 = [
    *_ARC_FIELDS_1[:4],
    "result-code",
    "checksum",
    "location",
    "offset",
    "filename",
    "archive-length",
]
_CHUNK = 1 << 16
_PIECE = 1 << 20  # of decompressed bytes at a time: a small member can be a large one
_MAX_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place: where it begins, how many bytes were passed over, and what is wrong."""

    path: Path
    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason} ({self.length} bytes passed over)"


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole record: its fields, where it stands, and the beginning of its block.

    `length` counts the stored bytes, the blank lines after the record included; it is 0 for a record that
    shares a gzip member with others. `block_position` counts decompressed bytes from `offset`.
    """

    is_arc: bool
    fields: tuple[tuple[str, str], ...]
    offset: int
    length: int
    block_position: int
    block_length: int
    kept: bytes


class Broken(Exception):
    """The bytes at this place contradict themselves."""


class Cut(Broken):
    """The file ends inside a record."""


def frames(
    path: Path, *, kept_bytes: int, on_damage: Callable[[Damage], None], start: int = 0
) -> Iterator[Frame]:
    """Yield the whole records of *path* from *start*, with the first *kept_bytes* bytes of their blocks.
    A file without any record is one damaged place from its beginning to its end.
    """
    with path.open("rb") as file:
        source = _source(path, file, start)
        reader = _FrameReader(source, kept_bytes)
        while True:
            try:
                frame = reader.next_frame()
            except Broken as broken:
                offset = source.offset
                if isinstance(broken, Cut):
                    # What looks like a record from here on is in the body of the one that was cut.
                    source.go_to_end()
                else:
                    source.find_next(offset + 1)
                on_damage(Damage(path, offset, source.offset - offset, str(broken)))
                continue
            if frame is None:
                return
            yield frame


def open_block(path: Path, frame: Frame) -> Iterator[bytes]:
    """Yield the block of a record again, in pieces. Raises DamagedInput if it is not there any more."""
    with path.open("rb") as file:
        source = _source(path, file, frame.offset)
        try:
            source.begin()
            source.skip(frame.block_position)
            yield from source.pieces(frame.block_length)
        except Broken as broken:
            raise DamagedInput(f"{path}, offset {frame.offset}: {broken}") from None


def _source(path: Path, file: BufferedReader, offset: int) -> PlainSource | GzipSource:
    start = file.peek(64)
    if start.startswith(GZIP_MAGIC[:2]):
        return GzipSource(file, offset)
    # A damaged first byte must not hide the members behind it.
    is_gzip = ".gz" in path.suffixes and not _begins_record(start.partition(b"\n")[0] + b"\n")
    return GzipSource(file, offset) if is_gzip else PlainSource(file, offset)


class _FrameReader:
    def __init__(self, source: PlainSource | GzipSource, kept_bytes: int) -> None:
        self._source = source
        self._kept_bytes = kept_bytes
        self._arc_fields = _ARC_FIELDS_1

    def next_frame(self) -> Frame | None:
        source = self._source
        if not source.begin():
            return None
        offset, shares_member = source.offset, source.is_inside_member
        first = source.readline()
        if _WARC_START.match(first):
            is_arc, fields = False, _warc_fields(source)
            length_text = next((value for name, value in fields if name.lower() == "content-length"), "")
        elif _ARC_LINE.fullmatch(first):
            is_arc, fields = True, self._arc_line(first)
            length_text = fields[-1][1]
        else:
            raise Broken("no record begins here")
        if not (length_text.isascii() and length_text.isdigit()):
            raise Broken(f"the length of the record is {length_text!r}")
        block_position, block_length = source.position, int(length_text)
        kept = self._take(block_length)
        # With both line ends of the standard behind it a record is whole, whatever follows. Other writers
        # leave some out or add some, then it takes another record to show that the length was right.
        line_ends = source.skip_blank_lines()
        is_whole = line_ends.startswith(b"\r\n\r\n") or source.is_at_end
        if not is_whole and not _begins_record(source.peek_line()):
            raise Broken("the record is not followed by another, its length must be wrong")
        if is_arc and fields[0][1].startswith("filedesc:"):
            self._learn_arc_fields(kept)
        length = source.length_since(offset) if not (shares_member or source.is_inside_member) else 0
        return Frame(is_arc, fields, offset, length, block_position, block_length, kept)

    def _take(self, length: int) -> bytes:
        kept = []
        missing = self._kept_bytes
        for piece in self._source.pieces(length):
            if missing > 0:
                kept.append(piece[:missing])
                missing -= len(piece)
        return kept[0] if len(kept) == 1 else b"".join(kept)

    def _arc_line(self, line: bytes) -> tuple[tuple[str, str], ...]:
        names = self._arc_fields
        # The version block has five fields in version 1 and mostly in version 2 as well.
        if line.startswith(b"filedesc:"):
            names = _ARC_FIELDS_1 if len(line.split()) < 10 else _ARC_FIELDS_2
        values = _text(line).rstrip("\r\n").rsplit(" ", len(names) - 1)
        if len(values) != len(names):
            raise Broken(f"the ARC record has {len(values)} fields, {len(names)} were announced")
        return tuple(zip(names, values, strict=True))

    def _learn_arc_fields(self, block: bytes) -> None:
        lines = block.split(b"\n")
        if len(lines) > 1 and lines[1].lower().startswith(b"url "):
            count = len(lines[1].split())
            self._arc_fields = _ARC_FIELDS_2 if count == len(_ARC_FIELDS_2) else _ARC_FIELDS_1


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
        return self._file.readline(_MAX_HEAD_BYTES)

    def peek_line(self) -> bytes:
        position = self._file.tell()
        line = self._file.readline(_MAX_HEAD_BYTES)
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
            if is_line_start and _begins_record(line):
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
            if end or len(self._out) - self._index >= _MAX_HEAD_BYTES or not self._fill():
                line = self._out[self._index : end or None]
                self._index += len(line)
                return line

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
        return _begins_record(out.partition(b"\n")[0] + b"\n")

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


def _begins_record(line: bytes) -> bool:
    return bool(_WARC_START.match(line) or _ARC_LINE.fullmatch(line))


def _warc_fields(source: PlainSource | GzipSource) -> tuple[tuple[str, str], ...]:
    fields: list[tuple[str, str]] = []
    size = 0
    while True:
        line = source.readline()
        size += len(line)
        if not line.endswith(b"\n") or size > _MAX_HEAD_BYTES:
            raise Broken("the fields of the record do not end")
        text = line.rstrip(b"\r\n")
        if not text:
            return tuple(fields)
        if text[:1] in b" \t" and fields:
            name, value = fields[-1]
            fields[-1] = (name, f"{value} {_text(text).strip()}")
            continue
        head, colon, tail = text.partition(b":")
        if not colon:
            raise Broken(f"{_text(text[:80])!r} is no field of a record")
        fields.append((_text(head).strip(), _text(tail).strip()))


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
