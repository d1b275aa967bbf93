"""Rewrite one file: copies become revisits, references are updated, all other bytes are copied unchanged.

Unchanged bytes are copied in runs that are as long as possible. Where the system supports it, the kernel copies them, so
that they are neither decompressed nor read into this process.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.plan import Planned, RewritePlan
from scrapy_dedupe.offline.record_ranges import START_BYTES, byte_ranges, exact_head, is_gzip_file
from scrapy_dedupe.offline.reference_changes import MENTION, ReferenceChanges
from scrapy_dedupe.offline.revisits import (
    as_revisit,
    can_change_references,
    could_be_written,
    is_as_written,
    record_bytes,
)
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.files import DEFAULT_GZIP_LEVEL, gzip_member
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.raw_heads import RawHead, raw_head
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.record_ranges import ByteRange
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_HTTP_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_PIECE: Final = 1 << 20
_RUN: Final = 1 << 30  # bytes of one copy by the kernel
_CANNOT: Final = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A file to rewrite: its number in the plan in *folder*, its name, and the new file."""

    folder: Path
    file: int
    name: str
    target: Path
    places: Places


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """The result for one file."""

    converted: int
    repointed: int
    old_bytes: int
    new_bytes: int

    @property
    def saved_bytes(self) -> int:
        """How much smaller the new file is."""
        return self.old_bytes - self.new_bytes


def rewrite_file(task: RewriteTask) -> FileRewrite:
    """Rewrite a file. It gets its name when it is complete and synced to disk. Raises ArchiveError, DamagedInput."""
    file = task.places.file(task.name)
    with writing(task.target):
        task.target.parent.mkdir(parents=True, exist_ok=True)
        with (
            whole_file.replacing(task.target, suffix=".new", buffering=0) as output,
            RewritePlan(task.folder) as plan,
        ):
            result = _rewritten(task, file, output, plan)
    return result


def _rewritten(task: RewriteTask, file: ReadableFile, output: BinaryIO, plan: RewritePlan) -> FileRewrite:
    converted = repointed = 0
    with _Copier(file, output) as copier:
        if plan.count_converted():
            is_gzip = copier.is_gzip
            references = ReferenceChanges(plan, task.file)
            records = plan.records_of(task.file)
            damage = _Damage()
            for span in byte_ranges(file, records, wants_head=_wants_head, on_damage=damage.note):
                if damage.is_met and not is_gzip:
                    # What follows may be inside the block of a damaged record.
                    break
                listed = span.listed
                if isinstance(listed, Planned) and listed.target is not None:
                    old, block = _heads(file, span)
                    head = as_revisit(references.updated(old), listed.target, block)
                    copier.replace(span.offset, span.length, [_stored(record_bytes(head, block), is_gzip)])
                    converted += 1
                elif span.length and MENTION.search(span.head):
                    pieces = _updated(file, span, references, is_gzip)
                    if pieces is not None:
                        copier.replace(span.offset, span.length, pieces)
                        repointed += 1
        old_bytes = copier.finish()
    return FileRewrite(converted, repointed, old_bytes, os.fstat(output.fileno()).st_size)


class _Damage:
    """Notes damaged places, which are copied unchanged; the scan has reported them."""

    is_met = False

    def note(self, _offset: int, _reason: str) -> None:
        self.is_met = True


def _wants_head(_: Planned) -> bool:
    """Always true: a listed record may refer to another record, or become a revisit."""
    return True


def _heads(file: ReadableFile, span: ByteRange) -> tuple[RawHead, bytes]:
    """The WARC head of a response and its HTTP head; the body is read only if necessary."""
    head, http_end = exact_head(span), _HTTP_HEAD_END.search(span.start)
    if head is not None and http_end is not None:
        return head, span.start[: http_end.end()]
    record = read_record(file, span.offset)
    assert record.http is not None
    return raw_head(record), record.frame.kept[: record.http.length]


def _updated(
    file: ReadableFile, span: ByteRange, references: ReferenceChanges, is_gzip: bool
) -> Iterator[bytes] | list[bytes] | None:
    """The record of a range with updated references; None if they need no update."""
    if span.is_exact and not references.concerns(span.head):
        return None
    head = exact_head(span)
    record: StoredRecord | None = None
    if head is None:
        record = read_record(file, span.offset)
        if record.format == "arc":
            return None
        head = raw_head(record)
    updated = references.updated(head)
    if updated is head or not can_change_references(head):
        return None
    if span.is_exact and span.listed is None:
        if not is_as_written(head, span.head):
            return None
    else:
        record = record or read_record(file, span.offset)
        if not could_be_written(record, head):
            return None
    if span.has_block:
        return [_stored(record_bytes(updated, span.start), is_gzip)]
    record = record or read_record(file, span.offset)
    return _streamed(record, updated, is_gzip)


def _stored(data: bytes, is_gzip: bool) -> bytes:
    return bytes(gzip_member(data)) if is_gzip else data


def _streamed(record: StoredRecord, head: RawHead, is_gzip: bool) -> Iterator[bytes]:
    """A record with a new head, in pieces, for blocks of any size."""
    member = zlib_ng.compressobj(DEFAULT_GZIP_LEVEL, wbits=31) if is_gzip else None
    for piece in _plain_pieces(record, head):
        yield member.compress(piece) if member is not None else piece
    if member is not None:
        yield member.flush()


def _plain_pieces(record: StoredRecord, head: RawHead) -> Iterator[bytes]:
    yield head.to_bytes(record.frame.block_length)
    yield from open_block(record.path, record.frame)
    yield b"\r\n\r\n"


class _Copier:
    """Copies a file, except for the ranges that are replaced, which must be in order."""

    def __init__(self, file: ReadableFile, output: BinaryIO) -> None:
        self._file = file
        self._output = output
        self._position = 0  # in the old file; everything before it is written to the new file

    def __enter__(self) -> Self:
        try:
            self._stream = self._file.open("rb")
            self._size = self._stream.seek(0, os.SEEK_END)
            self._stream.seek(0)
            self.is_gzip = is_gzip_file(self._file, self._stream.read(START_BYTES))
        except OSError as error:
            raise ArchiveError(f"{self._file} cannot be read: {error.strerror or error}.") from error
        self._can_copy = isinstance(self._file, Path) and hasattr(os, "copy_file_range")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def replace(self, offset: int, length: int, pieces: Iterator[bytes] | list[bytes]) -> None:
        """Copy the bytes before *offset*, and write *pieces* instead of the *length* bytes there."""
        self._copy_to(offset)
        for piece in pieces:
            self._write(piece)
        self._position = offset + length

    def finish(self) -> int:
        """Copy the rest; return the size of the old file."""
        self._copy_to(self._size)
        return self._size

    def _copy_to(self, end: int) -> None:
        while self._can_copy and self._position < end:
            try:
                count = os.copy_file_range(
                    self._stream.fileno(),
                    self._output.fileno(),
                    min(_RUN, end - self._position),
                    self._position,
                )
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                count = 0
            if not count:
                self._can_copy = False
            self._position += count
        if self._position < end:
            self._stream.seek(self._position)
        while self._position < end:
            piece = self._stream.read(min(_PIECE, end - self._position))
            if not piece:
                raise DamagedInput(f"{self._file}: the file became shorter while it was read.")
            self._write(piece)
            self._position += len(piece)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._output.write(view) :]
