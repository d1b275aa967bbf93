"""Split a file into ranges: one for each listed record, each other record, and the bytes between records.

The ranges cover every byte of the file once, in order. For a listed record, the head is read if requested, and the length
of the manifest is trusted. Any other record is read to find its end. Most of them are small members in the standard form
and are read at once; `framing` handles all others, and decides which deviations are accepted and which are damage. A
member of several records is one range; before it, each of its records is yielded with length 0, for inspection only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from zlib_ng import zlib_ng

from scrapy_dedupe.warc.framing import Damage, Frame, frames
from scrapy_dedupe.warc.raw_heads import RawHead
from scrapy_dedupe.warc.sources import ARC_LINE, GZIP_MAGIC, WARC_START, begins_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

    from scrapy_dedupe.warc.sources import ReadableFile

_LENGTH: Final = re.compile(rb"\r\nContent-Length:[ \t]*(\d{1,18})[ \t]*\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_FIRST_BYTES: Final = 4_096
_MORE_BYTES: Final = 1 << 18
_QUICK_BYTES: Final = 1 << 20  # decompressed; larger records are read in pieces
_KEPT_BYTES: Final = 1 << 16
START_BYTES: Final = 4_096


class ListedRecord(Protocol):
    """The place of a record in a manifest."""

    @property
    def offset(self) -> int: ...

    @property
    def length(self) -> int: ...


L = TypeVar("L", bound=ListedRecord)


class ByteRange(NamedTuple):
    """A range of bytes of a file. ``head`` is the WARC head of a record with its blank line, as far as it was read.

    ``start`` is the beginning of the record's block; if ``has_block`` is true, it is the whole block. ``is_exact`` means that
    ``head`` has the same bytes as the file.
    """

    offset: int
    length: int
    listed: ListedRecord | None = None
    head: bytes = b""
    start: bytes = b""
    has_block: bool = False
    is_exact: bool = False


def byte_ranges(
    file: ReadableFile,
    listed: Iterator[L],
    *,
    wants_head: Callable[[L], bool],
    on_damage: Callable[[int, str], None],
) -> Iterator[ByteRange]:
    """Yield the ranges of *file*; *listed* must be ordered by offset.

    *on_damage* is called with the offset and reason of each place that is damaged or differs from the manifest. Raises
    OSError if the file cannot be read.
    """
    with file.open("rb") as stream:
        data = _Bytes(file, stream)
        slow = _Slow(file, on_damage)
        kind = _GzipMembers(data) if is_gzip_file(file, data.at(0, START_BYTES)) else _Plain(data)
        position = 0
        following = next(listed, None)
        while position < data.size:
            while following is not None and following.offset < position:
                on_damage(following.offset, "no record begins at the offset in the manifest")
                following = next(listed, None)
            if following is not None and following.offset == position:
                present, following = following, next(listed, None)
                parts = kind.head(position) if wants_head(present) else (b"", b"")
                if parts is not None and 0 < present.length <= data.size - position:
                    yield ByteRange(position, present.length, present, *parts, is_exact=True)
                    position += present.length
                    continue
                on_damage(position, "no record begins at the offset in the manifest")
            record = kind.record(position)
            if record is not None:
                yield record
                position += record.length
                continue
            for span in slow.from_here(position, data.size):
                yield span
                position = max(position, span.offset + span.length)
        if following is not None:
            on_damage(following.offset, "the file ends before the offset in the manifest")


class _Bytes:
    """Random access to the bytes of a file."""

    def __init__(self, file: ReadableFile, stream: BufferedReader) -> None:
        self._stream = stream
        self._fd = stream.fileno() if isinstance(file, Path) and hasattr(os, "pread") else -1
        self.size = stream.seek(0, os.SEEK_END)

    def at(self, offset: int, size: int) -> bytes:
        if self._fd >= 0:
            return os.pread(self._fd, size, offset)
        self._stream.seek(offset)
        return self._stream.read(size)


class _GzipMembers:
    """Records that are single gzip members."""

    def __init__(self, data: _Bytes) -> None:
        self._data = data

    def head(self, offset: int) -> tuple[bytes, bytes] | None:
        """The head of the record that begins here, and the following bytes that were read; None if none begins.

        The head of an ARC record is one line.
        """
        member = zlib_ng.decompressobj(31)
        try:
            start = member.decompress(self._data.at(offset, _FIRST_BYTES), _FIRST_BYTES)
            if _HEAD_END not in start and not member.eof:
                member = zlib_ng.decompressobj(31)
                start = member.decompress(self._data.at(offset, _MORE_BYTES), _QUICK_BYTES)
        except zlib_ng.error:  # type: ignore[misc]
            return None
        return _head(start)

    def record(self, offset: int) -> ByteRange | None:
        """The record that begins here, if it is small and in the standard form."""
        raw = self._data.at(offset, _FIRST_BYTES)
        if not raw.startswith(GZIP_MAGIC):
            return None
        try:
            member = zlib_ng.decompressobj(31)
            out = member.decompress(raw, _QUICK_BYTES)
            if not member.eof:
                raw = self._data.at(offset, _MORE_BYTES)
                member = zlib_ng.decompressobj(31)
                out = member.decompress(raw, _QUICK_BYTES)
                if not member.eof:
                    return None
        except zlib_ng.error:  # type: ignore[misc]
            return None
        head_end = out.find(_HEAD_END) + 4
        length = _LENGTH.search(out, 0, head_end)
        if length is None or not WARC_START.match(out) or _has_bare_line_ends(out, head_end):
            return None
        block_end = head_end + int(length[1])
        if len(out) != block_end + 4 or not out.endswith(_HEAD_END):
            return None
        size = len(raw) - len(member.unused_data)
        return ByteRange(
            offset, size, None, out[:head_end], out[head_end:block_end], has_block=True, is_exact=True
        )


class _Plain:
    """Records that are not compressed."""

    def __init__(self, data: _Bytes) -> None:
        self._data = data

    def head(self, offset: int) -> tuple[bytes, bytes] | None:
        start = self._data.at(offset, _FIRST_BYTES)
        if _HEAD_END not in start:
            start = self._data.at(offset, _QUICK_BYTES)
        return _head(start)

    def record(self, offset: int) -> ByteRange | None:
        data = self._data
        start = data.at(offset, _FIRST_BYTES)
        head_end = start.find(_HEAD_END) + 4
        length = _LENGTH.search(start, 0, head_end)
        if length is None or not WARC_START.match(start) or _has_bare_line_ends(start, head_end):
            return None
        size = int(length[1])
        end = head_end + size + 4
        if offset + end > data.size:
            return None
        after = start[end - 4 : end + 6] if end + 6 <= len(start) else data.at(offset + end - 4, 10)
        if not after.startswith(_HEAD_END) or not (len(after) == 4 or WARC_START.match(after, 4)):
            return None
        block = start[head_end : head_end + size]
        if len(block) < size <= _QUICK_BYTES:
            block = data.at(offset + head_end, size)
        return ByteRange(
            offset, end, None, start[:head_end], block, has_block=len(block) == size, is_exact=True
        )


class _Slow:
    """Reads unusual records with `framing`."""

    def __init__(self, file: ReadableFile, on_damage: Callable[[int, str], None]) -> None:
        self._file = file
        self._on_damage = on_damage
        self._damages: list[Damage] = []
        self._frames: Iterator[Frame] = iter(())
        self._pending: Frame | None = None
        self._position = -1

    def from_here(self, position: int, end: int) -> Iterator[ByteRange]:
        """Yield records of length 0, then a range at *position*: the next record, or the bytes before it."""
        if self._position != position:
            self._damages.clear()
            self._frames = frames(
                self._file, kept_bytes=_KEPT_BYTES, on_damage=self._damages.append, start=position
            )
            self._pending = None
        frame = self._next()
        shared: int | None = None
        while (
            frame is not None
            and not frame.length
            and not self._is_damaged_before(frame)
            and shared in (None, frame.offset)
        ):
            shared = frame.offset
            yield ByteRange(frame.offset, 0, None, _frame_head(frame), frame.kept)
            frame = self._next()
        self._pending = frame
        if shared is not None:
            self._position = frame.offset if frame is not None else end
            if self._damages:
                self._position = min(self._position, self._report_damage())
            yield ByteRange(position, self._position - position)
        elif self._damages:
            self._position = self._report_damage()
            yield ByteRange(position, self._position - position)
        elif frame is None:
            self._position = end
            yield ByteRange(position, end - position)
        elif frame.offset > position:
            # End the range here: the record may be a listed one.
            self._position = frame.offset
            yield ByteRange(position, frame.offset - position)
        else:
            self._pending = None
            self._position = frame.offset + frame.length
            yield ByteRange(frame.offset, frame.length, None, _frame_head(frame), frame.kept)

    def _next(self) -> Frame | None:
        if self._pending is not None:
            frame, self._pending = self._pending, None
            return frame
        return next(self._frames, None)

    def _is_damaged_before(self, frame: Frame) -> bool:
        return any(damage.offset <= frame.offset for damage in self._damages)

    def _report_damage(self) -> int:
        """Report the damage that `framing` has skipped; return where it ends."""
        end = 0
        for damage in self._damages:
            self._on_damage(damage.offset, f"{damage.reason} ({damage.length} bytes are copied unchanged)")
            end = max(end, damage.offset + damage.length)
        self._damages.clear()
        return end


def is_gzip_file(file: ReadableFile, start: bytes) -> bool:
    """Whether a file is read as gzip members, decided by its name and *start*, its first START_BYTES or more."""
    return start.startswith(GZIP_MAGIC[:2]) or (
        ".gz" in file.suffixes and not begins_record(start.partition(b"\n")[0] + b"\n")
    )


def _has_bare_line_ends(start: bytes, head_end: int) -> bool:
    """Whether a line of a head ends in a bare LF: then its supposed end may be the end of the HTTP head."""
    return start.count(b"\n", 0, head_end) != start.count(b"\r\n", 0, head_end)


def _head(start: bytes) -> tuple[bytes, bytes] | None:
    if WARC_START.match(start):
        end = start.find(_HEAD_END)
        return (start[: end + 4], start[end + 4 :]) if end >= 0 else (start, b"")
    line, _, rest = start.partition(b"\n")
    line += b"\n"
    return (line, rest) if ARC_LINE.fullmatch(line) else None


def exact_head(span: ByteRange) -> RawHead | None:
    """The head of a record if it has one field on each line; None if it must be read again."""
    if not span.is_exact or not span.head.endswith(_HEAD_END):
        return None
    version, *lines = span.head[:-4].split(b"\r\n")
    if b"\n" in version:
        return None
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or line[:1] in b" \t" or b"\n" in line:
            return None
        fields.append((name.strip(), value.strip()))
    return RawHead(version, tuple(fields))


def _frame_head(frame: Frame) -> bytes:
    """A leniently read head in standard form, for `reference_changes.MENTION` and parsers."""
    if frame.is_arc:
        return b""
    lines = ["WARC/", *(f"{name}: {value}" for name, value in frame.fields), "", ""]
    return "\r\n".join(lines).encode("utf-8")
