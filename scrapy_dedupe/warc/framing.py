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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.sources import (
    ARC_LINE,
    GZIP_MAGIC,
    MAX_HEAD_BYTES,
    WARC_START,
    Broken,
    Cut,
    GzipSource,
    PlainSource,
    begins_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

    from scrapy_dedupe.warc.sources import ReadableFile

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


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place: where it begins, how many bytes were passed over, and what is wrong."""

    path: ReadableFile
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


def frames(
    path: ReadableFile, *, kept_bytes: int, on_damage: Callable[[Damage], None], start: int = 0
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


def open_block(path: ReadableFile, frame: Frame) -> Iterator[bytes]:
    """Yield the block of a record again, in pieces. Raises DamagedInput if it is not there any more."""
    with path.open("rb") as file:
        source = _source(path, file, frame.offset)
        try:
            source.begin()
            source.skip(frame.block_position)
            yield from source.pieces(frame.block_length)
        except Broken as broken:
            raise DamagedInput(f"{path}, offset {frame.offset}: {broken}") from None


def _source(path: ReadableFile, file: BufferedReader, offset: int) -> PlainSource | GzipSource:
    start = file.peek(64)
    if start.startswith(GZIP_MAGIC[:2]):
        return GzipSource(file, offset)
    # A damaged first byte must not hide the members behind it.
    is_gzip = ".gz" in path.suffixes and not begins_record(start.partition(b"\n")[0] + b"\n")
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
        if WARC_START.match(first):
            is_arc, fields = False, _warc_fields(source)
            length_text = next((value for name, value in fields if name.lower() == "content-length"), "")
        elif ARC_LINE.fullmatch(first):
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
        if not is_whole and not begins_record(source.peek_line()):
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


def _warc_fields(source: PlainSource | GzipSource) -> tuple[tuple[str, str], ...]:
    head = source.peek_head()
    plain = _plain_fields(head)
    if plain is not None:
        source.skip(len(head))
        return plain
    fields: list[tuple[str, str]] = []
    size = 0
    while True:
        line = source.readline()
        size += len(line)
        if not line.endswith(b"\n") or size > MAX_HEAD_BYTES:
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


def _plain_fields(head: bytes) -> tuple[tuple[str, str], ...] | None:
    """The fields of a head that is as the standard wants it, in one go; None if it has to be read line by line."""
    if not head or len(head) > MAX_HEAD_BYTES:
        return None
    try:
        text = head[:-4].decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\r\n")
    if text.count("\n") != len(lines) - 1:
        return None
    fields = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or line[0] in " \t":
            return None
        fields.append((name.strip(), value.strip()))
    return tuple(fields)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
