r"""Where the records of a WARC or ARC file begin and end, in intact and damaged files.

The first bytes of a file decide its kind: plain or gzip, WARC or ARC (version 1 and 2). In gzip files every record is
normally a member of its own. A file that is one member, or has several records in one member, is read too, but its
records cannot be reached by offset.

Harmless deviations are tolerated: LF for CRLF, folded fields, too few or too many blank lines between records, NUL
bytes between members. A place is damaged when its bytes contradict each other: a member that does not decompress or
whose checksum is wrong, a record that is not followed by a record, a Content-Length that is not a number, a file that
ends too soon. The affected record is not returned, since its bounds are unknown; the damage is reported; and reading
continues at the next place that begins with a record, after the gzip member if that is whole. If the file ends inside
a record, anything after it that looks like a record may be part of the truncated body. Reading then continues only at a
whole record whose WARC-Warcinfo-ID is that of this file, which shows that the length was damaged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.sources import (
    ARC_LINE,
    GZIP_MAGIC,
    MAX_HEAD_BYTES,
    WARC_START,
    BadMember,
    Broken,
    Cut,
    GzipSource,
    PieceFile,
    PlainSource,
    begins_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_ARC_DATE = re.compile(r"\d{8,17}", re.ASCII)
# URL, then IP address (or "-") and date. The last match counts, since the URL is more likely to contain similar text.
_ARC_PLACE = re.compile(r"(.+) ([0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*|-) (\d{8,17}) (.+)", re.ASCII)
# A head in the standard form: CRLF, no folded fields.
_HEAD = re.compile(rb"WARC/\d[^\n]*\r\n(?:[!-9;-~]+:[^\n]*\r\n)+\r\n")
# The lookbehind makes the search linear in a long run of spaces.
_FOLD = re.compile(rb"(?<![ \t])[ \t]*(?:\r*\n[ \t]+)+")
# Limits for files whose field names keep changing: few patterns in total, and few attempts for each record.
_MOST_KINDS = 64
_MOST_OF_A_KIND = 6
_MOST_FIELDS = 60
_START_BYTES = 64  # of a file, which show whether it has gzip members
_KIND_BYTES = 24  # "WARC/1.1", a line end and, mostly, the beginning of WARC-Type


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged place: its offset, how many bytes were skipped, and the reason."""

    path: ReadableFile
    offset: int
    length: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason} ({self.length} bytes skipped)"


@dataclass(slots=True, eq=False)
class Frame:
    """A whole record: its fields, its location, and the beginning of its block. Changed only while it is read.

    `length` counts the stored bytes, the blank lines after the record included; it is 0 for a record that
    shares a gzip member with others. `head_position` and `block_position` count decompressed bytes from `offset`.
    `member` is the whole decompressed gzip member, if it holds only this record and was decompressed at once; else
    empty. `block_end` holds the first few line ends after the block.

    Fields and the beginning of the block are decoded only on first access: a file has millions of records.
    """

    is_arc: bool
    _fields: tuple[tuple[str, str], ...] | None
    offset: int
    length: int
    head_position: int
    block_position: int
    block_length: int
    member: bytes | bytearray = b""
    kept_bytes: int = 0
    head: tuple[_Layout, re.Match[bytes]] | None = None
    _kept: bytes | None = None
    block_end: bytes = b"\r\n\r\n"

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The named fields in their order."""
        if self._fields is None:
            assert self.head is not None
            layout, match = self.head
            values = [value.decode("ascii").strip() for value in match.groups()]
            self._fields = tuple(zip(layout.names, values, strict=True))
        return self._fields

    def first(self, name: str) -> str | None:
        """The value of the first field named *name* (lower case)."""
        if self.head is not None:
            layout, match = self.head
            place = layout.places.get(name)
            return None if place is None else match[place].decode("ascii").strip()
        return next((value for field, value in self.fields if field.lower() == name), None)

    def all(self, name: str) -> list[str]:
        """The values of every field named *name* (lower case)."""
        if self.head is not None:
            layout, match = self.head
            return [match[place].decode("ascii").strip() for place in layout.all_places.get(name, ())]
        return [value for field, value in self.fields if field.lower() == name]

    @property
    def kept(self) -> bytes:
        """The beginning of the block, up to the requested length."""
        if self._kept is None:
            begin = self.block_position
            self._kept = bytes(
                memoryview(self.member)[begin : begin + min(self.block_length, self.kept_bytes)]
            )
        return self._kept

    def part(self, begin: int = 0, end: int | None = None) -> bytes:
        """A part of `kept`. Nothing else is copied."""
        if self._kept is not None:
            return self._kept[begin:end]
        stop = min(self.block_length, self.kept_bytes)
        end = stop if end is None else min(end, stop)
        return bytes(memoryview(self.member)[self.block_position + begin : self.block_position + end])

    @property
    def is_held(self) -> bool:
        """Whether `kept` is the whole block."""
        held = min(self.block_length, self.kept_bytes) if self._kept is None else len(self._kept)
        return held == self.block_length

    def keep_only(self, length: int) -> None:
        """Release the block except its first *length* bytes."""
        self._kept = self.part(0, length)
        self.member = b""
        if self.head is not None:
            # A match holds all the bytes in which it was found.
            layout, match = self.head
            head = layout.match(match[0])
            assert head is not None
            self.head = layout, head


def frames(
    path: ReadableFile,
    *,
    kept_bytes: int,
    on_damage: Callable[[Damage], None],
    start: int = 0,
    on_long_block: Callable[[Frame], Callable[[bytes], object] | None] | None = None,
    layouts: Layouts | None = None,
) -> Iterator[Frame]:
    """Yield the whole records of *path* from *start*, with the first *kept_bytes* bytes of their blocks.
    A file without any record is one damaged place from its beginning to its end.

    If a block is longer, *on_long_block* is called with the frame before the rest is read and `length` is known; the
    returned function, if any, is called with the rest in pieces. *layouts* are the layouts of heads that earlier calls
    for similar files have found.
    """
    source = _opened(path, start)
    try:
        reader = _FrameReader(source, kept_bytes, on_long_block, {} if layouts is None else layouts)
        is_after_damage = False
        next_frame = reader.next_whole_frame if isinstance(source, GzipSource) else reader.next_frame
        while True:
            try:
                frame = next_frame()
            except Broken as broken:
                offset = source.offset
                if isinstance(broken, Cut) and _go_to_own(source, reader.warcinfo_id()):
                    pass
                elif isinstance(broken, Cut) and not is_after_damage:
                    source.go_to_end()
                elif isinstance(broken, (Cut, BadMember)):
                    # After damage, a start without an end is probably part of the damage.
                    source.find_next(offset + 1)
                else:
                    source.pass_over()
                is_after_damage = True
                on_damage(Damage(path, offset, source.offset - offset, str(broken)))
                continue
            if frame is None:
                return
            is_after_damage = False
            yield frame
    finally:
        source.close()


def _go_to_own(source: PlainSource | GzipSource, warcinfo_id: str | None) -> bool:
    """Go to the next whole record after the damage that names this warcinfo; return False if there is none."""
    if warcinfo_id is None:
        return False
    reader = _FrameReader(source, 0, None, {})
    source.find_next(source.offset + 1)
    while True:
        try:
            frame = reader.next_frame()
        except Broken:
            source.find_next(source.offset + 1)
            continue
        if frame is None:
            return False
        if frame.first("warc-warcinfo-id") == warcinfo_id:
            source.go_to(frame.offset)
            return True


def open_block(path: ReadableFile, frame: Frame) -> Iterator[bytes]:
    """Yield the block of a record again, in pieces. Raises DamagedInput if it is gone."""
    return _reopen(path, frame.offset, frame.block_position, frame.block_length)


def open_head(path: ReadableFile, frame: Frame) -> bytes:
    """Return the head of a record, blank line included, read again if its member was not kept.

    Raises DamagedInput if it is gone.
    """
    if frame.member:
        return bytes(memoryview(frame.member)[frame.head_position : frame.block_position])
    return b"".join(
        _reopen(path, frame.offset, frame.head_position, frame.block_position - frame.head_position)
    )


def _reopen(path: ReadableFile, offset: int, position: int, length: int) -> Iterator[bytes]:
    source = _opened(path, offset)
    try:
        source.begin()
        source.skip(position)
        yield from source.pieces(length)
    except Broken as broken:
        raise DamagedInput(f"{path}, offset {offset}: {broken}") from None
    finally:
        source.close()


def _opened(path: ReadableFile, offset: int) -> PlainSource | GzipSource:
    # Whole files are read faster with a buffer.
    if offset and hasattr(os, "pread") and isinstance(path, Path):
        pieces = PieceFile(path)
        try:
            if is_gzip_file(path, pieces.read(_START_BYTES)):
                return GzipSource(pieces, offset)
        except BaseException:
            pieces.close()
            raise
        pieces.close()
    file = path.open("rb")
    try:
        is_gzip = is_gzip_file(path, file.peek(_START_BYTES))
        return GzipSource(file, offset) if is_gzip else PlainSource(file, offset)
    except BaseException:
        file.close()
        raise


def is_compressed(path: ReadableFile) -> bool:
    """Whether a file is read as gzip members. Raises OSError."""
    with path.open("rb") as file:
        return is_gzip_file(path, file.peek(_START_BYTES))


def is_gzip_file(path: ReadableFile, start: bytes) -> bool:
    """Whether a file is read as gzip members, decided by its name and its first bytes *start*."""
    if start.startswith(GZIP_MAGIC[:2]):
        return True
    # A damaged first byte must not hide the members after it.
    return ".gz" in path.suffixes and not begins_record(start.partition(b"\n")[0] + b"\n")


class _FrameReader:
    def __init__(
        self,
        source: PlainSource | GzipSource,
        kept_bytes: int,
        on_long_block: Callable[[Frame], Callable[[bytes], object] | None] | None,
        layouts: Layouts,
    ) -> None:
        self._source = source
        self._kept_bytes = kept_bytes
        self._on_long_block = on_long_block
        self._arc_fields = _ARC_FIELDS_1
        # The layouts of earlier heads, by the beginning of the head. Responses and requests alternate.
        self._layouts = layouts
        self._last: Frame | None = None

    def next_whole_frame(self) -> Frame | None:
        """Like `next_frame`, but faster if the next record is one member in the standard form."""
        source = self._source
        assert isinstance(source, GzipSource)
        if member := source.take_member():
            frame = self._whole_frame(source, member)
            if frame is not None:
                return frame
            source.put_back_member()
        return self.next_frame()

    def next_frame(self) -> Frame | None:
        source, self._last = self._source, None
        if not source.begin():
            return None
        offset, shares_member = source.offset, source.is_inside_member
        self._last = frame = self._begun(source)
        kept = frame._kept = b"".join(source.pieces(min(frame.block_length, self._kept_bytes)))
        if frame.block_length > len(kept):
            give = self._on_long_block(frame) if self._on_long_block else None
            for piece in source.pieces(frame.block_length - len(kept)):
                if give:
                    give(piece)
        # A record that is followed by both line ends of the standard is whole, regardless of what follows. Other
        # programs write fewer or more; then only the beginning of another record proves that the length was right.
        frame.block_end = source.skip_blank_lines()
        is_whole = frame.block_end.startswith(b"\r\n\r\n") or source.is_at_end
        if not is_whole and not begins_record(source.peek_line()):
            raise Broken("the record is not followed by another one; its length must be wrong")
        if frame.is_arc and frame.fields[0][1].startswith("filedesc:"):
            self._learn_arc_fields(kept)
        if not (shares_member or source.is_inside_member):
            frame.length = source.length_since(offset)
        return frame

    def _begun(self, source: PlainSource | GzipSource) -> Frame:
        """Read the head of the record that begins here."""
        position, is_arc, fields = source.position, False, None
        known = known_head(source.peek_head(), self._layouts)
        if known is not None:
            source.skip(known[1].end())
        else:
            first = source.readline()
            if WARC_START.match(first):
                fields = _warc_fields(source)
            elif ARC_LINE.fullmatch(first):
                is_arc, fields = True, self._arc_line(first)
            else:
                raise Broken("no record begins here")
        frame = Frame(is_arc, fields, source.offset, 0, position, source.position, 0, head=known)
        frame.block_length = _length(frame.first("archive-length" if is_arc else "content-length") or "")
        return frame

    def _whole_frame(self, source: GzipSource, member: bytes | bytearray) -> Frame | None:
        """The record of a member that was taken; None if it must be read step by step."""
        where = (source.offset, source.length_since(source.offset))
        frame = whole_frame(member, *where, self._kept_bytes, self._layouts)
        if frame is not None and frame.block_length > self._kept_bytes and self._on_long_block:
            return None
        return frame

    def warcinfo_id(self) -> str | None:
        """The WARC-Warcinfo-ID of the record that was read last, whole or not; the id of a warcinfo itself."""
        if self._last is None:
            return None
        is_warcinfo = self._last.first("warc-type") == "warcinfo"
        return self._last.first("warc-record-id" if is_warcinfo else "warc-warcinfo-id")

    def _arc_line(self, line: bytes) -> tuple[tuple[str, str], ...]:
        names = self._arc_fields
        # The version block has five fields in version 1 and usually in version 2 as well.
        if line.startswith(b"filedesc:"):
            names = _ARC_FIELDS_1 if len(line.split()) < 10 else _ARC_FIELDS_2
        values = arc_values(_text(line).rstrip("\r\n"), len(names))
        if len(values) != len(names):
            raise Broken(f"the ARC record has {len(values)} fields instead of {len(names)}")
        return tuple(zip(names, values, strict=True))

    def _learn_arc_fields(self, block: bytes) -> None:
        lines = block.split(b"\n")
        if len(lines) > 1 and lines[1].lower().startswith(b"url "):
            count = len(lines[1].split())
            self._arc_fields = _ARC_FIELDS_2 if count == len(_ARC_FIELDS_2) else _ARC_FIELDS_1


def whole_frame(
    data: bytes | bytearray, offset: int, length: int, kept_bytes: int, layouts: Layouts
) -> Frame | None:
    """The record in the standard form that is exactly *data*, and is stored from *offset* in *length* bytes.

    None for other data. Raises Broken for a Content-Length that is not a number.
    """
    known = known_head(data, layouts)
    if known is None:
        return None
    layout, match = known
    place, head_end = layout.length_place, match.end()
    block_length = _length(match[place].decode("ascii").strip() if place else "")
    if head_end + block_length + 4 != len(data) or not data.endswith(b"\r\n\r\n"):
        return None
    return Frame(False, None, offset, length, 0, head_end, block_length, data, kept_bytes, known)


def known_head(data: bytes | bytearray, layouts: Layouts) -> tuple[_Layout, re.Match[bytes]] | None:
    """The layout and the values of the head at the beginning of *data*; None if it must be read line by line.

    A new layout is added to *layouts*.
    """
    kind = bytes(data[:_KIND_BYTES])
    alike = layouts.get(kind, [])
    for layout in alike:
        if (match := layout.match(data)) is not None:
            return (layout, match) if data[: match.end()].isascii() else None
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
    if data.count(b"\n", 0, end) > _MOST_FIELDS or len(alike) >= _MOST_OF_A_KIND:
        return None
    head = bytes(data[:end])
    if not (head.isascii() and _HEAD.fullmatch(head)) or len(layouts) >= _MOST_KINDS:
        return None
    layout = _layout(tuple([line.partition(":")[0] for line in head.decode("ascii").split("\r\n")[1:-2]]))
    layouts.setdefault(kind, []).append(layout)
    match = layout.match(data)
    return None if match is None else (layout, match)


def arc_values(line: str, count: int) -> list[str]:
    """The values in the line of an ARC record with *count* fields; another number if they cannot be separated.

    >>> arc_values("http://a/b c 192.0.2.1 20080430204825 text/html; charset=utf-8 510", 5)
    ['http://a/b c', '192.0.2.1', '20080430204825', 'text/html; charset=utf-8', '510']
    """
    values = line.rsplit(" ", count - 1)
    if len(values) != count or _ARC_DATE.fullmatch(values[2]):
        return values
    # The media type contains spaces, too.
    found = _ARC_PLACE.fullmatch(line)
    if found is None:
        return values
    *before, rest = found.groups()
    return [*before, *rest.rsplit(" ", count - 4)]


def unfolded(head: bytes) -> bytes:
    """The lines of a head with every folded field in one line: a line that begins with a space or tab continues the one
    before (ISO 28500, section 4, and RFC 9112, section 5.2).
    """
    return _FOLD.sub(b" ", head) if b"\n " in head or b"\n\t" in head else head


def split_fields(lines: bytes) -> list[tuple[bytes, bytes]]:
    """The names and values in the lines of a head, up to its blank line. Raises Broken for a line without a colon."""
    # Also check the lines before they are joined: the colon of a continuation must not pass for that of the field.
    for line in lines.split(b"\n"):
        if not line.rstrip(b"\r"):
            break
        if not line.startswith((b" ", b"\t")):
            _check_colon(line)
    fields = []
    for line in unfolded(lines).split(b"\n"):
        text = line.rstrip(b"\r")
        if not text:
            break
        _check_colon(text)
        name, _, value = text.partition(b":")
        fields.append((name.strip(), value.strip()))
    return fields


def _check_colon(line: bytes) -> None:
    if b":" not in line:
        text = line.rstrip(b"\r")[:80]
        raise Broken(f"{_text(text)!r} is not a field of a record")


def _warc_fields(source: PlainSource | GzipSource) -> tuple[tuple[str, str], ...]:
    lines: list[bytes] = []
    size, line = 0, b""
    while line.strip(b"\r\n") or not lines:
        line = source.readline()
        size += len(line)
        if not line.endswith(b"\n") or size > MAX_HEAD_BYTES:
            raise Broken("the head of the record does not end")
        lines.append(line)
    return tuple(
        [(_text(name).strip(), _text(value).strip()) for name, value in split_fields(b"".join(lines))]
    )


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Broken(f"the length of the record is {text!r}, which is not a number")
    return int(text)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


class _Layout:
    r"""The field names of a head; `places` maps each name in lower case to the number of its first field, from 1, and
    `all_places` to the numbers of all its fields.

    Nearly all heads of one program have the same fields in the same order. One pattern that is built from an earlier
    head matches them: ``WARC/\d.*\r\nWARC-Type:(.*)\r\n...\r\n``. This is much faster than parsing line by line and
    gives the same result: a name contains no colon, a dot matches no line feed, so each field is one line and the blank
    line after them is the first one. Only ASCII heads match, which need no decoding.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = tuple([name.strip() for name in names])
        self.all_places: dict[str, list[int]] = {}
        for place, name in enumerate(self.names, 1):
            self.all_places.setdefault(name.lower(), []).append(place)
        self.places = {name: places[0] for name, places in self.all_places.items()}
        self.length_place = self.places.get("content-length", 0)
        fields = b"".join(re.escape(name.encode()) + rb":(.*)\r\n" for name in names)
        self.match = re.compile(rb"WARC/\d.*\r\n" + fields + rb"\r\n").match


Layouts: TypeAlias = dict[bytes, list[_Layout]]

# Shared by all readers: a reader of a single record would use a layout only once.
_layout = lru_cache(_MOST_KINDS)(_Layout)
