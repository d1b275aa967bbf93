"""Rewrite one file: copies become revisits, references are updated, all other bytes are copied unchanged.

A `RecordFile` writes a file under a temporary name, until it is complete and synced to disk. Unchanged bytes are copied in
runs that are as long as possible. Where the system supports it, the kernel copies them, so that they are neither
decompressed nor read into this process. Records are written from a head and the pieces of a block, each as a gzip member or
uncompressed. Memory does not grow with the block: up to 8 MiB it is compressed at once, a larger block piece by piece.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.plan import read_slice
from scrapy_dedupe.offline.reference_changes import ReferenceChanges
from scrapy_dedupe.offline.revisits import RECORD_END, as_revisit
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.tasks.work import OutputTask
from scrapy_dedupe.warc.files import DEFAULT_GZIP_LEVEL, gzip_member
from scrapy_dedupe.warc.framing import is_gzip_file, open_block
from scrapy_dedupe.warc.raw_heads import parsed_head, raw_head
from scrapy_dedupe.warc.reading import read_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import BufferedReader, FileIO
    from types import TracebackType
    from typing import Self

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.raw_heads import RawHead
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_AT_ONCE_BYTES: Final = 8 << 20
_PIECE: Final = 1 << 20
_RUN: Final = 1 << 30  # bytes of one copy by the kernel
_CANNOT: Final = frozenset(
    {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)
_GZIP_FORMAT: Final = 31
_TEMPORARY: Final = ".part"
_START_BYTES: Final = 4_096  # enough of a file to detect its format
_HTTP_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
# Most compressed heads are slightly longer than the first of these numbers.
_FEW_BYTES: Final = 512
_FEWER_BYTES: Final = 128
_MORE_BYTES: Final = 1 << 18
_QUICK_BYTES: Final = 1 << 20  # larger records are read in pieces


@dataclass(frozen=True, slots=True)
class RewriteTask(OutputTask):
    """A file to rewrite; ``slice_folder`` has its slice of the plan (`plan`), which never changes."""

    slice_folder: Path


def rewrite_file(task: RewriteTask, faults: Faults, advance: Advance) -> dict[str, int]:
    """Rewrite a file. It gets its name when it is complete and synced to disk. Raises ArchiveError, DamagedInput.

    Return the numbers of records that were ``converted`` and ``repointed``, and the sizes ``old_bytes`` and ``new_bytes``.
    """
    plan = read_slice(task.slice_folder)
    references = ReferenceChanges(plan.captures, plan.standing)
    converted = repointed = copied = 0
    with reading(task.file), task.file.open("rb") as stream:
        old_bytes = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        is_gzip = is_gzip_file(task.file, stream.read(_START_BYTES))
        parts = RecordParts(task.file, stream, is_gzip=is_gzip)
        with RecordFile(task.target, gzip=is_gzip) as output:
            for offset, length, target in plan.changes:
                found: bytes | StoredRecord
                if target is not None:
                    old, found = parts.heads(offset, length)
                    head = as_revisit(references.updated(old), target, found)
                    converted += 1
                else:
                    old, found = parts.record(offset, length)
                    head = references.updated(old)
                    if head is old:
                        continue
                    repointed += 1
                output.copy(stream, copied, offset)
                if isinstance(found, bytes):
                    output.write(head.to_bytes(len(found)), (found,), len(found))
                else:
                    size = found.frame.block_length
                    block = open_block(found.path, found.frame)
                    output.write(head.to_bytes(size), block, size, at_once_bytes=0)
                copied = offset + length
            output.copy(stream, copied, old_bytes)
            output.finish()
    return {
        "converted": converted,
        "repointed": repointed,
        "old_bytes": old_bytes,
        "new_bytes": output.size,
    }


class RecordParts:
    """Reads parts of records of an open file at known places. Raises DamagedInput and OSError.

    Most records are gzip members or uncompressed records in the standard form, and few of their bytes are read. `framing`
    reads all others.
    """

    def __init__(self, file: ReadableFile, stream: BufferedReader, *, is_gzip: bool) -> None:
        self._file = file
        self._stream = stream
        self._is_gzip = is_gzip
        self._fd = stream.fileno() if isinstance(file, Path) and hasattr(os, "pread") else -1

    def heads(self, offset: int, length: int) -> tuple[RawHead, bytes]:
        """The WARC head of a response and its HTTP head with the blank line. Few other bytes are read."""
        start = b""
        for piece in self._pieces(self._member(), offset, min(length, _MORE_BYTES), _FEW_BYTES):
            start += piece
            end = start.find(RECORD_END) + 4
            if end < 4 or (found := _HTTP_HEAD_END.search(start, end)) is None:
                continue
            if (head := parsed_head(start[:end])) is not None:
                return head, start[end : found.end()]
            break
        record = read_record(self._file, offset)
        assert record.http is not None
        return raw_head(record), record.frame.kept[: record.http.length]

    def record(self, offset: int, length: int) -> tuple[RawHead, bytes | StoredRecord]:
        """The head of a record, and its block; for a large or unusual record, the record instead of its block."""
        if length <= _QUICK_BYTES:
            member = self._member()
            whole = b"".join(self._pieces(member, offset, length, length))
            if member is not None and not member.eof:  # the checksum at its end was not compared
                whole = b""
            end = whole.find(RECORD_END) + 4
            if end >= 4 and whole.endswith(RECORD_END) and (head := parsed_head(whole[:end])) is not None:
                size = head.get(b"Content-Length") or b""
                if size.isdigit() and int(size) == len(whole) - end - 4:
                    return head, whole[end:-4]
        record = read_record(self._file, offset)
        return raw_head(record), record

    def _member(self) -> zlib_ng._Decompress | None:
        return zlib_ng.decompressobj(_GZIP_FORMAT) if self._is_gzip else None

    def _pieces(
        self, member: zlib_ng._Decompress | None, offset: int, length: int, size: int
    ) -> Iterator[bytes]:
        """A record, decompressed, until its *length* stored bytes end or are damaged; the first piece is of *size* stored bytes.

        A piece that is longer than `_QUICK_BYTES` is the last one, and only its beginning.
        """
        end = offset + length
        while offset < end and (data := self._at(offset, min(size, end - offset))):
            offset, size = offset + len(data), _FEWER_BYTES
            try:
                yield data if member is None else member.decompress(data, _QUICK_BYTES)
            except zlib_ng.error:  # type: ignore[misc]
                return
            if member is not None and member.unconsumed_tail:
                return

    def _at(self, offset: int, size: int) -> bytes:
        if self._fd >= 0:
            return os.pread(self._fd, size, offset)
        self._stream.seek(offset)
        return self._stream.read(size)


class RecordFile:
    """Context manager that writes *path*. The file exists only after `finish`.

    System errors, such as a full disk, are raised as ArchiveError.
    """

    def __init__(self, path: Path, *, gzip: bool) -> None:
        self.path = path
        self.size = 0
        self._gzip = gzip
        self._part = whole_file.temporary_path(path, _TEMPORARY, is_hidden=True)
        with writing(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered, since the kernel writes to it as well.
            self._file = self._part.open("wb", buffering=0)

    def copy(self, source: BinaryIO | FileIO, begin: int, end: int | None) -> None:
        """Copy the bytes of *source* from *begin* to *end* (None: to its end) unchanged."""
        end = source.seek(0, os.SEEK_END) if end is None else end
        begin = self._copied_by_kernel(source, begin, end)
        if begin < end:
            source.seek(begin)
        while begin < end:
            data = source.read(min(_PIECE, end - begin))
            if not data:
                raise self._changed()
            self._write(data)
            begin += len(data)

    def write(
        self,
        head: bytes,
        block: Iterable[bytes],
        block_length: int,
        *,
        at_once_bytes: int = _AT_ONCE_BYTES,
    ) -> None:
        """Write a record: its head including the blank line, and its block of *block_length* bytes.

        A block of up to *at_once_bytes* is compressed as a whole. Raises ArchiveError if the block has another length,
        because then the file that it is read from has changed.
        """
        pieces = self._whole(head, block, block_length)
        if not self._gzip:
            for piece in pieces:
                self._write(piece)
        elif block_length <= at_once_bytes:
            self._write(bytes(gzip_member(b"".join(pieces))))
        else:
            stream = zlib_ng.compressobj(DEFAULT_GZIP_LEVEL, wbits=_GZIP_FORMAT)
            for piece in pieces:
                self._write(stream.compress(piece))
            self._write(stream.flush())

    def finish(self, check: Callable[[Path], object] | None = None) -> None:
        """Sync the file, call *check* with its temporary path, and rename it; an existing file is replaced."""
        with writing(self.path):
            whole_file.sync(self._file)
            self._file.close()
        if check is not None:
            check(self._part)
        with writing(self.path):
            whole_file.put_in_place(self._part, self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _copied_by_kernel(self, source: BinaryIO | FileIO, begin: int, end: int) -> int:
        """Copy as much as the kernel can; return the end of this part."""
        with writing(self.path):
            try:
                while begin < end and hasattr(os, "copy_file_range"):
                    size = min(_RUN, end - begin)
                    count = os.copy_file_range(source.fileno(), self._file.fileno(), size, begin)
                    if not count:
                        break
                    begin += count
                    self.size += count
            except OSError as error:
                # A remote file has no file descriptor, and raises an error without errno.
                if error.errno not in _CANNOT and error.errno is not None:
                    raise
        return begin

    def _whole(self, head: bytes, block: Iterable[bytes], block_length: int) -> Iterator[bytes]:
        yield head
        length = 0
        for piece in block:
            length += len(piece)
            # Stop here, so that a block that has grown is not held in memory.
            if length > block_length:
                break
            yield piece
        if length != block_length:
            raise self._changed()
        yield RECORD_END

    def _changed(self) -> ArchiveError:
        return ArchiveError(
            f"{self.path} cannot be written: a source file changed while it was read. Start again."
        )

    def _write(self, data: bytes) -> None:
        self.size += len(data)
        with writing(self.path):
            while data:
                written = self._file.write(data)
                data = data[written:] if written < len(data) else b""


def remove_parts(paths: Iterable[Path]) -> None:
    """Remove the temporary files of these paths, which killed processes may have left."""
    for path in paths:
        with contextlib.suppress(OSError):
            whole_file.temporary_path(path, _TEMPORARY, is_hidden=True).unlink(missing_ok=True)
