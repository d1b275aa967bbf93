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

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    PlainSource,
    begins_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
_ARC_DATE = re.compile(r"\d{8,17}", re.ASCII)
# URL, then IP address (or "-") and date. The last match counts, since the URL is more likely to contain similar text.
_ARC_PLACE = re.compile(r"(.+) ([0-9.]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*|-) (\d{8,17}) (.+)", re.ASCII)
_CR = 0x0D
_BLANKS = (" ", "\t")
_FIELD = re.compile(r"([^:\n]*):([^\n]*)\r\n")
# The lookbehind makes the search linear in a long run of spaces.
_FOLD = re.compile(rb"(?<![ \t])[ \t]*(?:\r*\n[ \t]+)+")
_LENGTH_NAME_CHARS = len("content-length")
# Limits for files whose field names keep changing: few patterns in total, and few attempts for each record.
_MOST_KINDS = 64
_MOST_OF_A_KIND = 6
_MOST_FIELDS = 60
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
    """A whole record: its fields, its location, and the beginning of its block. Not to be changed.

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
    _kept: bytes | None
    member: bytes | bytearray = b""
    _kept_bytes: int = 0
    _head: tuple[_Layout, re.Match[bytes]] | None = None
    block_end: bytes = b"\r\n\r\n"

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """The named fields in their order."""
        if self._fields is None:
            assert self._head is not None
            layout, match = self._head
            values = [value.decode("ascii").strip() for value in match.groups()]
            self._fields = tuple(zip(layout.names, values, strict=True))
        return self._fields

    def first(self, name: str) -> str | None:
        """The value of the first field named *name* (lower case)."""
        if self._head is not None:
            layout, match = self._head
            place = layout.places.get(name)
            return None if place is None else match[place].decode("ascii").strip()
        return next((value for field, value in self.fields if field.lower() == name), None)

    @property
    def kept(self) -> bytes:
        """The beginning of the block, up to the requested length."""
        if self._kept is None:
            begin = self.block_position
            self._kept = bytes(
                memoryview(self.member)[begin : begin + min(self.block_length, self._kept_bytes)]
            )
        return self._kept


def frames(
    path: ReadableFile,
    *,
    kept_bytes: int,
    on_damage: Callable[[Damage], None],
    start: int = 0,
    on_long_block: Callable[[Frame], Callable[[bytes], object] | None] | None = None,
) -> Iterator[Frame]:
    """Yield the whole records of *path* from *start*, with the first *kept_bytes* bytes of their blocks.
    A file without any record is one damaged place from its beginning to its end.

    If a block is longer, *on_long_block* is called with the frame before the rest is read and `length` is known; the
    returned function, if any, is called with the rest in pieces.
    """
    with path.open("rb") as file:
        source = _source(path, file, start)
        reader = _FrameReader(source, kept_bytes, on_long_block)
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


def _go_to_own(source: PlainSource | GzipSource, warcinfo_id: str | None) -> bool:
    """Go to the next whole record after the damage that names this warcinfo; return False if there is none."""
    if warcinfo_id is None:
        return False
    reader = _FrameReader(source, 0, None)
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
    """Return the head of a record again, blank line included. Raises DamagedInput if it is gone."""
    return b"".join(
        _reopen(path, frame.offset, frame.head_position, frame.block_position - frame.head_position)
    )


def _reopen(path: ReadableFile, offset: int, position: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        source = _source(path, file, offset)
        try:
            source.begin()
            source.skip(position)
            yield from source.pieces(length)
        except Broken as broken:
            raise DamagedInput(f"{path}, offset {offset}: {broken}") from None


def _source(path: ReadableFile, file: BufferedReader, offset: int) -> PlainSource | GzipSource:
    start = file.peek(64)
    if start.startswith(GZIP_MAGIC[:2]):
        return GzipSource(file, offset)
    # A damaged first byte must not hide the members after it.
    is_gzip = ".gz" in path.suffixes and not begins_record(start.partition(b"\n")[0] + b"\n")
    return GzipSource(file, offset) if is_gzip else PlainSource(file, offset)


class _FrameReader:
    def __init__(
        self,
        source: PlainSource | GzipSource,
        kept_bytes: int,
        on_long_block: Callable[[Frame], Callable[[bytes], object] | None] | None,
    ) -> None:
        self._source = source
        self._kept_bytes = kept_bytes
        self._on_long_block = on_long_block
        self._arc_fields = _ARC_FIELDS_1
        self._known_heads = _KnownHeads()
        self._fields: tuple[tuple[str, str], ...] = ()

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
        source = self._source
        if not source.begin():
            return None
        self._fields = ()
        offset, shares_member = source.offset, source.is_inside_member
        head_position = source.position
        first = source.readline()
        if WARC_START.match(first):
            is_arc, fields = False, _warc_fields(source)
            self._fields = fields
            block_length = _block_length(fields)
        elif ARC_LINE.fullmatch(first):
            is_arc, fields = True, self._arc_line(first)
            block_length = _length(fields[-1][1])
        else:
            raise Broken("no record begins here")
        block_position = source.position
        kept = b"".join(source.pieces(min(block_length, self._kept_bytes)))
        if block_length > len(kept):
            frame = Frame(is_arc, fields, offset, 0, head_position, block_position, block_length, kept)
            give = self._on_long_block(frame) if self._on_long_block else None
            for piece in source.pieces(block_length - len(kept)):
                if give:
                    give(piece)
        # A record that is followed by both line ends of the standard is whole, regardless of what follows. Other
        # programs write fewer or more; then only the beginning of another record proves that the length was right.
        line_ends = source.skip_blank_lines()
        is_whole = line_ends.startswith(b"\r\n\r\n") or source.is_at_end
        if not is_whole and not begins_record(source.peek_line()):
            raise Broken("the record is not followed by another one; its length must be wrong")
        if is_arc and fields[0][1].startswith("filedesc:"):
            self._learn_arc_fields(kept)
        length = source.length_since(offset) if not (shares_member or source.is_inside_member) else 0
        place = (offset, length, head_position, block_position, block_length)
        return Frame(is_arc, fields, *place, kept, block_end=line_ends)

    def _whole_frame(self, source: GzipSource, member: bytes | bytearray) -> Frame | None:
        """The record of a member that was taken; None if it must be read step by step."""
        known = self._known_heads.match(member)
        if known is not None:
            layout, match = known
            fields = None
            head_end = match.end()
            place = layout.length_place
            length = _length(match[place].decode("ascii").strip() if place else "")
        else:
            head_end = member.find(b"\r\n\r\n") + 4
            first_end = member.find(b"\n", 0, head_end) + 1
            if not (
                WARC_START.match(member) and 2 <= first_end < head_end - 2 and member[first_end - 2] == _CR
            ):
                return None
            head = member[first_end : head_end - 2]
            fields = _plain_fields(head)
            if fields is None:
                return None
            length = _block_length(fields)
            if head.isascii():
                names = [line.partition(":")[0] for line in head.decode("ascii").split("\r\n")[:-1]]
                self._known_heads.learn(member, names)
        if head_end + length + 4 != len(member) or not member.endswith(b"\r\n\r\n"):
            return None
        if length > self._kept_bytes and self._on_long_block:
            return None
        offset = source.offset
        where = (offset, source.length_since(offset), 0, head_end, length)
        return Frame(False, fields, *where, None, member, self._kept_bytes, known)

    def warcinfo_id(self) -> str | None:
        """The WARC-Warcinfo-ID of the record that was read last, whole or not; the id of a warcinfo itself."""
        fields = {name.lower(): value for name, value in reversed(self._fields)}
        return fields.get("warc-record-id" if fields.get("warc-type") == "warcinfo" else "warc-warcinfo-id")

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
    fields = []
    for line in unfolded(lines).split(b"\n"):
        text = line.rstrip(b"\r")
        if not text:
            break
        name, colon, value = text.partition(b":")
        if not colon:
            raise Broken(f"{_text(text[:80])!r} is not a field of a record")
        fields.append((name.strip(), value.strip()))
    return fields


def _warc_fields(source: PlainSource | GzipSource) -> tuple[tuple[str, str], ...]:
    head = source.peek_head()
    plain = _plain_fields(head[:-2])
    if plain is not None:
        source.skip(len(head))
        return plain
    lines, size, line = [], 0, b""
    while line.strip(b"\r\n") or not lines:
        line = source.readline()
        size += len(line)
        if not line.endswith(b"\n") or size > MAX_HEAD_BYTES:
            raise Broken("the head of the record does not end")
        lines.append(line)
    return tuple(
        [(_text(name).strip(), _text(value).strip()) for name, value in split_fields(b"".join(lines))]
    )


def _plain_fields(head: bytes | bytearray) -> tuple[tuple[str, str], ...] | None:
    """The fields of a head in the standard form, in one step; None if it must be read line by line.

    *head* ends with the line end of its last field.
    """
    if not head or len(head) > MAX_HEAD_BYTES:
        return None
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        return None
    found = _FIELD.findall(text)
    # Each match is one line; any other line is not in the standard form.
    if len(found) != text.count("\n") or text.startswith(_BLANKS) or "\n " in text or "\n\t" in text:
        return None
    return tuple([(name.strip(), value.strip()) for name, value in found])


def _block_length(fields: tuple[tuple[str, str], ...]) -> int:
    for name, value in fields:
        if len(name) == _LENGTH_NAME_CHARS and name.lower() == "content-length":
            return _length(value)
    return _length("")


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
    r"""The field names of a head; `places` maps each name in lower case to the number of its first field, from 1.

    Nearly all heads of one program have the same fields in the same order. One pattern that is built from an earlier
    head matches them: ``WARC/\d.*\r\nWARC-Type:(.*)\r\n...\r\n``. This is much faster than parsing line by line and
    gives the same result: a name contains no colon, a dot matches no line feed, so each field is one line and the blank
    line after them is the first one. Only ASCII heads match, which need no decoding.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple([name.strip() for name in names])
        self.places: dict[str, int] = {}
        for place, name in enumerate(self.names, 1):
            self.places.setdefault(name.lower(), place)
        self.length_place = self.places.get("content-length", 0)
        fields = b"".join(re.escape(name.encode()) + rb":(.*)\r\n" for name in names)
        self.match = re.compile(rb"WARC/\d.*\r\n" + fields + rb"\r\n").match


class _KnownHeads:
    """The layouts that occurred so far in one file."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, list[_Layout]] = {}

    def match(self, data: bytes | bytearray) -> tuple[_Layout, re.Match[bytes]] | None:
        """The layout and the values of the head at the beginning of *data*, if its layout is known."""
        # Responses and requests alternate, so try only layouts with the same first field.
        for layout in self._kinds.get(bytes(data[:_KIND_BYTES]), ()):
            if (match := layout.match(data)) is not None:
                return (layout, match) if data[: match.end()].isascii() else None
        return None

    def learn(self, data: bytes | bytearray, names: Sequence[str]) -> None:
        """Remember the layout of the head of *data*, which is in the standard form and has these field names."""
        kind = bytes(data[:_KIND_BYTES])
        layouts = self._kinds.get(kind)
        if layouts is None:
            if len(self._kinds) >= _MOST_KINDS:
                return
            layouts = self._kinds[kind] = []
        if len(layouts) < _MOST_OF_A_KIND and 0 < len(names) <= _MOST_FIELDS:
            layouts.append(_Layout(names))
