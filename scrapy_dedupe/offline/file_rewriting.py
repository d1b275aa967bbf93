"""Rewrite one file: copies become revisits, references are updated, all other bytes are copied unchanged.

Unchanged bytes are copied in runs that are as long as possible. Where the system supports it, the kernel copies them, so
that they are neither decompressed nor read into this process.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.record_parts import START_BYTES, RecordParts
from scrapy_dedupe.offline.reference_changes import ReferenceChanges
from scrapy_dedupe.offline.revisits import as_revisit, record_bytes
from scrapy_dedupe.offline.slices import read_slice
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.files import DEFAULT_GZIP_LEVEL, gzip_member
from scrapy_dedupe.warc.framing import is_gzip_file, open_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.offline.slices import Slice
    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_PIECE: Final = 1 << 20
_RUN: Final = 1 << 30  # bytes of one copy by the kernel
_CANNOT: Final = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A file to rewrite: its number in the plan, its path or URL, the folder of its slice, and the new file."""

    number: int
    file: ReadableFile
    slice_folder: Path
    target: Path


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
    plan = read_slice(task.slice_folder)
    with writing(task.target):
        task.target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(task.target, suffix=".new", buffering=0) as output:
            return _rewritten(task.file, plan, output)


def _rewritten(file: ReadableFile, plan: Slice, output: BinaryIO) -> FileRewrite:
    converted = repointed = 0
    references = ReferenceChanges(plan.captures, plan.standing)
    with _Copier(file, output) as copier:
        is_gzip = copier.is_gzip
        for offset, length, target in plan.changes:
            if target is not None:
                old, block = copier.parts.heads(offset, length)
                head = as_revisit(references.updated(old), target, block)
                copier.replace(offset, length, [_stored(record_bytes(head, block), is_gzip)])
                converted += 1
                continue
            old, found = copier.parts.record(offset, length)
            head = references.updated(old)
            if head is old:
                continue
            if isinstance(found, bytes):
                copier.replace(offset, length, [_stored(record_bytes(head, found), is_gzip)])
            else:
                copier.replace(offset, length, _streamed(found, head, is_gzip))
            repointed += 1
        old_bytes = copier.finish()
    return FileRewrite(converted, repointed, old_bytes, os.fstat(output.fileno()).st_size)


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
            self.parts = RecordParts(self._file, self._stream, is_gzip=self.is_gzip)
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
