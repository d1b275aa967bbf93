"""An append-only file of fingerprints. :mod:`~scrapy_dedupe.urls.folder` describes the journals of a job.

All numbers are little-endian, except as noted::

    magic        8 bytes   "sd-", four letters for the kind of the journal, and a line feed
    version      2 bytes   1
    name size    2 bytes
    name                   import path of the fingerprinter class, UTF-8
    checksum     4 bytes   CRC-32 of all the above
    blocks       any number of:
        size     4 bytes   of the records, at most 1 MiB
        checksum 4 bytes   CRC-32 of the records
        records            each the size of a fingerprint (2 bytes, big-endian) and the fingerprint

Data after the last complete block is an interrupted write. It is removed when the file is opened. A larger size than
1 MiB is damage, and ends the data like an interrupted write.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.locks import HAS_LOCKS, is_same_file, strict_lock
from scrapy_dedupe.files.whole_file import put_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

VERSION = 1
MAX_FINGERPRINT_BYTES = 0xFFFF
MAX_BLOCK_BYTES = 1 << 20

_START = struct.Struct("<8sHH")
_CHECKSUM = struct.Struct("<I")
_BLOCK_START = struct.Struct("<II")
_PART = 10_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of journal. ``name`` is for messages; ``loss`` describes the consequence of a failed write."""

    file_name: str
    magic: bytes
    name: str
    loss: str = "this run will count as unclean"


DONE = Kind(
    "urls.done",
    b"sd-done\n",
    "journal of done requests",
    "the next run may repeat requests that are done from now on",
)
SEEN = Kind("urls.seen", b"sd-seen\n", "journal of seen requests")
FORGOTTEN = Kind("urls.forgotten", b"sd-forg\n", "journal of forgotten requests")
STARTED = Kind("urls.started", b"sd-star\n", "journal of start requests")


class Journal:
    """A file of fingerprints, which are appended in blocks."""

    def __init__(self, path: Path, fingerprinter: str, kind: Kind = DONE) -> None:
        self.path = path
        self.fingerprinter = fingerprinter
        self.kind = kind
        name = fingerprinter.encode()
        start = _START.pack(kind.magic, VERSION, len(name)) + name
        self._head = start + _CHECKSUM.pack(zlib.crc32(start))
        self._fd: int | None = None
        self.is_broken = False
        self.size_bytes = 0
        # Set by open(): bytes that the file had at the last clean stop and lacks now, and bytes removed at its end.
        self.missing_bytes = self.removed_bytes = 0
        # The size when the file was opened, and the end of the data that is read.
        self._opened_bytes = 0
        self._end: int | None = None

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def lock(self) -> None:
        """Open the file, create it if it does not exist, and lock it.

        Raises :class:`~scrapy_dedupe.errors.ArchiveError` if another process has locked it.
        """
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        # Another process may have replaced the file meanwhile and locked the new one.
        if not strict_lock(self._fd) or not is_same_file(self._fd, self.path):
            self.close()
            raise ArchiveError(
                f"The URL filter {self.path} is in use by another process. Give each crawl its own JOBDIR."
            )

    def open(self, known_bytes: int | None = None) -> None:
        """Lock the file if it is not locked, check it, and remove an interrupted write at its end.

        If ``known_bytes``, its size at a clean stop, is given, the blocks are not read, unless the file is shorter now.
        Data after that size was never committed and is removed.
        """
        if self._fd is None:
            self.lock()
        assert self._fd is not None
        self.is_broken, self._end = False, None
        size = os.fstat(self._fd).st_size
        if self.is_new():
            os.ftruncate(self._fd, 0)
            self._write(self._head, 0)
            os.fsync(self._fd)
            sync_folder(self.path.parent)
            self.size_bytes = self._opened_bytes = len(self._head)
            self.missing_bytes = max(0, (known_bytes or 0) - self.size_bytes)
            return
        self._check_head()
        if known_bytes is not None and len(self._head) <= known_bytes <= size:
            end = known_bytes
        else:
            end = max((end for end, _ in self._blocks()), default=len(self._head))
            self.missing_bytes = max(0, (known_bytes or 0) - end)
            self.removed_bytes = size - end
        self.size_bytes = self._opened_bytes = end
        if end < size:
            os.ftruncate(self._fd, end)
            os.fsync(self._fd)

    def check(self, known_bytes: int | None = None) -> None:
        """Check the header of the locked file, to read it without changing it.

        Data after ``known_bytes``, its size at a clean stop, was never committed and is not read. Raises
        :class:`~scrapy_dedupe.errors.StoreRefused` if :meth:`open` would refuse the file.
        """
        if self.has_head():
            self._check_head()
        self._end = known_bytes

    def check_unlocked(self) -> None:
        """Check the header of the file, if it exists, without locking it. Raises the same exception as :meth:`check`."""
        try:
            self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            return
        try:
            self.check()
        finally:
            self.close()

    def is_new(self) -> bool:
        """Whether the locked file has no complete header: it was just created, or a run was killed while creating it."""
        start = self._read(len(self._head), 0)
        return len(start) < len(self._head) and self._head.startswith(start)

    def has_head(self) -> bool:
        """Whether the file is locked and has a header."""
        return self.is_open and not self.is_new()

    def fingerprints(self) -> Iterator[bytes]:
        """All fingerprints in the order in which they were appended. None if the file is not locked or has no header."""
        return (fingerprint for _, fingerprint in self._items())

    def write(self, fingerprints: Iterable[bytes]) -> None:
        """Append fingerprints in blocks. When this returns, they survive a kill of the process.

        Raises OSError if they cannot be written. Fingerprints that were appended before stay intact, and later calls do
        nothing.
        """
        if self._fd is None or self.is_broken:
            return
        blocks = b"".join(
            _BLOCK_START.pack(len(records), zlib.crc32(records)) + records
            for records in _records_of_blocks(fingerprints)
        )
        if not blocks:
            return
        try:
            self._write(blocks, self.size_bytes)
        except OSError:
            self.is_broken = True
            # Remove partially written blocks; this works even on a full disk.
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(blocks)

    def append(self, fingerprints: Iterable[bytes]) -> None:
        """Like :meth:`write`, for a crawl that continues after an error.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`, which names the consequences.
        """
        try:
            self.write(fingerprints)
        except OSError as exc:
            raise StoreUnavailable(
                f"The URL filter's {self.kind.name} {self.path} cannot be written: {exc}. The crawl continues, but "
                f"{self.kind.loss}, and Scrapy's own queue on this disk may lose requests. Free disk space."
            ) from exc

    def rewrite(self, kept: Iterable[bytes]) -> None:
        """Replace the content with *kept*, which may be read from this journal, atomically.

        Raises OSError; the journal is then unchanged.
        """
        new = Journal(self.path.with_name(f"{self.path.name}.tmp"), self.fingerprinter, self.kind)
        new.lock()
        try:
            # Remove the content that a killed process may have left.
            new.truncate()
            new.open()
            for part in in_parts(kept):
                new.write(part)
            new.sync()
            if not HAS_LOCKS:
                # Windows does not replace a file that is open.
                new.close()
                self.close()
            put_in_place(new.path, self.path, durable=False)
            if not HAS_LOCKS:
                self.lock()
            else:
                # The new file is already locked, and no other process has opened it.
                self.close()
                self._fd, new._fd = new._fd, None
            self.size_bytes = new.size_bytes
            sync_folder(self.path.parent)
        except BaseException:
            new.close()
            # Free its space, since the disk may be full.
            new.path.unlink(missing_ok=True)
            raise
        finally:
            new.close()

    def remove_older(self, is_removed: Callable[[bytes], bool]) -> None:
        """Remove fingerprints that were in the journal when it was opened; see :meth:`rewrite`."""
        self.rewrite(
            fingerprint
            for end, fingerprint in self._items()
            if end > self._opened_bytes or not is_removed(fingerprint)
        )

    def clear(self) -> None:
        """Remove all fingerprints."""
        if self._fd is not None:
            os.ftruncate(self._fd, len(self._head))
            self.size_bytes = self._opened_bytes = len(self._head)

    def truncate(self) -> None:
        """Empty the file, so that :meth:`is_new` is true."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            self.size_bytes = 0

    def sync(self) -> None:
        assert self._fd is not None
        os.fsync(self._fd)

    def close(self) -> None:
        """Close and unlock the file. Can be called repeatedly."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes, offset: int) -> None:
        assert self._fd is not None
        os.lseek(self._fd, offset, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _read(self, size: int, offset: int) -> bytes:
        assert self._fd is not None
        os.lseek(self._fd, offset, os.SEEK_SET)
        return os.read(self._fd, size)

    def _check_head(self) -> None:
        assert self._fd is not None
        start = self._read(_START.size, 0)
        if len(start) < _START.size or not start.startswith(self.kind.magic):
            raise StoreRefused(
                f"{self.path} is not a {self.kind.name}, or its header is damaged. Move it away (if it is the journal "
                "of done requests, the job then starts over), or use another JOBDIR."
            )
        _, version, name_size = _START.unpack(start)
        if version != VERSION:
            raise StoreRefused(other_version(self.path, version, VERSION))
        rest = self._read(name_size + _CHECKSUM.size, len(start))
        name, checksum = rest[:name_size], rest[name_size:]
        if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum)[0] != zlib.crc32(start + name):
            raise StoreRefused(
                f"The header of {self.path} is damaged. Move the file away (if it is the journal of done requests, the "
                "job then starts over), or use another JOBDIR."
            )
        if name.decode() != self.fingerprinter:
            raise StoreRefused(other_fingerprinter(self.path, name.decode(), self.fingerprinter))

    def _items(self) -> Iterator[tuple[int, bytes]]:
        """All fingerprints, each with the end offset of its block."""
        if not self.has_head():
            return
        for end, records in self._blocks():
            if self._end is not None and end > self._end:
                return
            for fingerprint in _read_records(records):
                yield end, fingerprint

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """End offset and records of each complete block."""
        assert self._fd is not None
        offset, file_size = len(self._head), os.fstat(self._fd).st_size
        while len(start := self._read(_BLOCK_START.size, offset)) == _BLOCK_START.size:
            size, checksum = _BLOCK_START.unpack(start)
            offset += len(start) + size
            if not 0 < size <= MAX_BLOCK_BYTES or offset > file_size:
                return
            records = self._read(size, offset - size)
            if zlib.crc32(records) != checksum:
                return
            yield offset, records


def _records_of_blocks(fingerprints: Iterable[bytes]) -> Iterator[bytes]:
    records = bytearray()
    for fingerprint in fingerprints:
        if len(records) + 2 + len(fingerprint) > MAX_BLOCK_BYTES:
            yield bytes(records)
            records.clear()
        records += len(fingerprint).to_bytes(2, "big") + fingerprint
    if records:
        yield bytes(records)


def _read_records(records: bytes) -> Iterator[bytes]:
    offset = 0
    while offset < len(records):
        end = offset + 2 + int.from_bytes(records[offset : offset + 2], "big")
        yield records[offset + 2 : end]
        offset = end


def in_parts(fingerprints: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The fingerprints in parts, for memory that does not grow with their number."""
    rest = iter(fingerprints)
    while part := list(islice(rest, _PART)):
        yield part


def other_version(path: Path, version: int, ours: int) -> str:
    return (
        f"{path} has format version {version}, but this version of scrapy-dedupe reads {ours}. Use the version "
        "that wrote it, or another JOBDIR."
    )


def other_fingerprinter(path: Path, stored: str, ours: str) -> str:
    return (
        f"The fingerprints in {path} were made by {stored}, but the setting REQUEST_FINGERPRINTER_CLASS is {ours}. "
        f"Use {stored}, or another JOBDIR."
    )
