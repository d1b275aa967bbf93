"""Files inside a ZIP file, read in place.

A stored member can be used like a path (see `reading`); a deflated member is copied into a temporary file when it is
first opened. The ZIP file may be local, or remote if it can be read in parts.

A ZIP file is refused if one of its names is absolute, contains ``..``, occurs twice or is a link, or if two of its
members share bytes: such a file was crafted, not packed. The size that a member may unpack to is checked before
anything is unpacked (`MAX_SWELLING`), and at most its declared size is read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import struct
import tempfile
import weakref
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.warc.remote import shown, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, Literal

    from typing_extensions import Buffer

    from scrapy_dedupe.warc.sources import ReadableFile

ZIP_MAGIC = b"PK\x03\x04"
MAX_SWELLING = 200
"""The maximum ratio of unpacked size to packed size. Text of archives stays far below it."""
SWELLING_GRACE_BYTES = 1 << 20
"""An additional allowance: a small file may consist of repetition only."""

_LOCAL_HEAD_BYTES = 30
_ENCRYPTED = 1
_UTF8_NAME = 0x800
_MAX_DIRECTORY_BYTES = 8 << 20  # some 80,000 files
_PIECE_BYTES = 1 << 18
# The exceptions that zipfile raises for files that contradict themselves.
_NO_ZIP = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error)
_NOT_UNPACKED = (*_NO_ZIP, zlib.error)


class StoredMember:
    """An uncompressed file inside a ZIP file: *size* bytes from *offset* on."""

    def __init__(self, container: ReadableFile, member: str, offset: int, size: int) -> None:
        self.container = container
        self.member = member
        self.size_bytes = size
        self.offset = offset

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(self.member).name

    @property
    def suffixes(self) -> list[str]:
        """Like ``Path.suffixes``."""
        return PurePosixPath(self.member).suffixes

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Return a seekable reader of the member's bytes."""
        return io.BufferedReader(FilePart(_unbuffered(self.container), self.offset, self.size_bytes))

    def __str__(self) -> str:
        return f"{self.container}/{self.member}"


class DeflatedMember(StoredMember):
    """A compressed file inside a ZIP file, read from a copy that is made when it is first opened.

    The copy is deleted together with this object. Opening raises DamagedInput if the member does not unpack,
    ArchiveError if there is no room for the copy.
    """

    def __init__(self, directory: ZipDirectory, info: zipfile.ZipInfo) -> None:
        super().__init__(directory.container, info.filename, 0, info.file_size)
        self._directory = directory
        self._copy: Path | None = None

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Return a seekable reader of the unpacked bytes."""
        if self._copy is None:
            self._copy = self._unpacked()
        return self._copy.open(mode)

    def _unpacked(self) -> Path:
        folder = tempfile.gettempdir()
        try:
            number, name = tempfile.mkstemp(prefix="scrapy-dedupe-", suffix=f"-{self.name[-64:]}")
            weakref.finalize(self, Path(name).unlink, missing_ok=True)
            with os.fdopen(number, "wb") as copy:
                copy.writelines(self._directory.pieces(self.member))
        except OSError as error:
            raise ArchiveError(
                f"{shown(str(self))} cannot be copied into {folder}: {error.strerror or error}. Free some space, or name"
                " another folder in TMPDIR."
            ) from error
        return Path(name)


class ZipDirectory:
    """The directory of a ZIP file.

    Raises ArchiveError if the file cannot be read, DamagedInput if it is not a whole ZIP file or is refused.
    """

    def __init__(self, container: ReadableFile) -> None:
        self.container = container
        with _zip_errors(container), container.open("rb") as file:
            self.size_bytes = file.seek(0, os.SEEK_END)
            with zipfile.ZipFile(_checked(file)) as packed:
                infos = packed.infolist()
                end = packed.start_dir
        _check_names(container, infos)
        with _zip_errors(container):
            _check_places(infos, end)
        self._infos = {info.filename: info for info in infos if not info.is_dir()}

    @property
    def names(self) -> list[str]:
        """The names of its files, in order of the directory."""
        return list(self._infos)

    def members(self, names: Iterable[str]) -> list[StoredMember]:
        """The files with these names. Raises DamagedInput for an unsupported or damaged member."""
        with _zip_errors(self.container), self.container.open("rb") as file:
            return [self._member(self._infos[name], file) for name in names]

    def pieces(self, name: str) -> Iterator[bytes]:
        """The unpacked bytes of a file. Raises DamagedInput if they do not match the directory."""
        info = self._infos[name]
        self._check(info)
        missing = info.file_size
        try:
            # The size limit of the wrapper matters only for the directory: pieces of a member are shorter.
            with (
                self.container.open("rb") as file,
                zipfile.ZipFile(_checked(file)) as packed,
                packed.open(info) as member,
            ):
                while piece := member.read(_PIECE_BYTES):
                    missing -= len(piece)
                    yield piece
        except _NOT_UNPACKED as error:
            raise self._not_unpacked(info, _reason(error)) from error
        if missing:
            raise self._not_unpacked(info, f"it ends {missing} bytes too early")

    def _not_unpacked(self, info: zipfile.ZipInfo, reason: str) -> DamagedInput:
        return DamagedInput(f"{self._shown(info)} does not unpack: {reason}. Copy the file again.")

    def packed_size(self, name: str) -> int:
        """How many bytes of the ZIP file a file occupies."""
        return self._infos[name].compress_size

    def _member(self, info: zipfile.ZipInfo, file: IO[bytes]) -> StoredMember:
        self._check(info)
        if info.compress_type != zipfile.ZIP_STORED:
            return DeflatedMember(self, info)
        # The extra field in the local head may have another length than the one in the directory.
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEAD_BYTES)
        name_bytes = int.from_bytes(head[26:28], "little")
        if len(head) < _LOCAL_HEAD_BYTES or not head.startswith(ZIP_MAGIC):
            raise zipfile.BadZipFile(f"{info.filename} does not begin where the directory says")
        if file.read(name_bytes) != _name_bytes(info):
            raise zipfile.BadZipFile(f"{info.filename} has another name in its local head")
        offset = info.header_offset + _LOCAL_HEAD_BYTES + name_bytes + int.from_bytes(head[28:30], "little")
        if offset + info.file_size > self.size_bytes or info.file_size != info.compress_size:
            raise zipfile.BadZipFile(f"{info.filename} is longer than the file")
        return StoredMember(self.container, info.filename, offset, info.file_size)

    def _check(self, info: zipfile.ZipInfo) -> None:
        where = self._shown(info)
        if info.flag_bits & _ENCRYPTED:
            raise DamagedInput(f"{where} is encrypted. Pack it without a password.")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DamagedInput(
                f"{where} is compressed with method {info.compress_type}, which is not supported. Pack it with its"
                " WARC files stored."
            )
        if info.file_size > swollen_limit(info.compress_size):
            raise DamagedInput(
                f"{where} would unpack from {info.compress_size} to {info.file_size} bytes, more than {MAX_SWELLING}"
                " times, and is refused. Pack it with its WARC files stored."
            )

    def _shown(self, info: zipfile.ZipInfo) -> str:
        return f"{shown(str(self.container))}/{info.filename}"


def swollen_limit(stored_bytes: int) -> int:
    """The maximum number of bytes that *stored_bytes* packed bytes may unpack to."""
    return MAX_SWELLING * stored_bytes + SWELLING_GRACE_BYTES


class FilePart(io.RawIOBase):
    """*size* bytes of *file* from *offset* on, as a file object; closing it closes *file*.

    The first byte has the position *first*. Before it, at the beginning, are the first *alike* bytes once more.
    """

    def __init__(
        self, file: io.RawIOBase | io.BufferedIOBase, offset: int, size: int, first: int = 0, alike: int = 0
    ) -> None:
        self._file = file
        self._offset = offset
        self._first = first
        self._alike = min(alike, first)
        self._end = first + size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = max(0, base + position)
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        is_before = self._position < self._first
        begin, end = (0, self._alike) if is_before else (self._first, self._end)
        with memoryview(buffer) as view:
            wanted = max(0, min(len(view), end - self._position))
            self._file.seek(self._offset + self._position - begin)
            count = self._file.readinto(view[:wanted]) or 0
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _DirectoryReader:
    """A file wrapper that makes zipfile raise BadZipFile when one read exceeds the maximum size of a ZIP directory."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable
        self.close = file.close

    def read(self, size: int | None = -1) -> bytes:
        limit = _MAX_DIRECTORY_BYTES
        data = self._file.read(limit + 1 if size is None or size < 0 else min(size, limit + 1))
        if len(data) > limit:
            raise zipfile.BadZipFile(f"its directory is longer than {limit} bytes")
        return data


def _checked(file: io.BufferedReader) -> IO[bytes]:
    return cast("IO[bytes]", _DirectoryReader(file))


def _unbuffered(container: ReadableFile) -> io.FileIO | io.BufferedReader:
    return container.open("rb", buffering=0) if isinstance(container, Path) else container.open("rb")


@contextlib.contextmanager
def _zip_errors(container: ReadableFile) -> Iterator[None]:
    place = shown(str(container))
    try:
        yield
    except _NO_ZIP as error:
        raise DamagedInput(
            f"{place} is not a whole WACZ: {_reason(error)}. Copy the file again, or extract its WARC files with a program that"
            " repairs ZIP files."
        ) from error
    except OSError as error:
        raise unreadable(container, error) from error


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _check_names(container: ReadableFile, infos: list[zipfile.ZipInfo]) -> None:
    seen = set()
    for info in infos:
        # zipfile turns backslashes into slashes on Windows and cuts names at NUL; orig_filename is unchanged.
        name = info.orig_filename
        if "\\" in name or "\0" in name or ".." in name.split("/"):
            wrong = "points outside the archive"
        elif name.startswith("/") or re.match(r"[A-Za-z]:", name):
            wrong = "is absolute"
        elif stat.S_ISLNK(info.external_attr >> 16):
            wrong = "is a link"
        elif name in seen:
            wrong = "occurs twice"
        else:
            seen.add(name)
            continue
        raise DamagedInput(
            f"{shown(str(container))} is refused: the name {name!r} in it {wrong}. Pack it again."
        )


def _check_places(infos: list[zipfile.ZipInfo], end: int) -> None:
    """Raise BadZipFile if two members share bytes, or one shares them with the directory at *end*."""
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        least = _LOCAL_HEAD_BYTES + len(_name_bytes(info)) + info.compress_size
        if info.header_offset < 0 or info.header_offset + least > end:
            raise zipfile.BadZipFile(f"{info.filename} overlaps what follows it")
        end = info.header_offset


def _name_bytes(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_NAME else "cp437")
