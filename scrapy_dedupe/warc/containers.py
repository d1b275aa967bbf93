"""The WARC and ARC files that names, patterns, WACZ files and multi-WACZ JSON stand for.

A WACZ is a ZIP file with WARC files under ``archive/``. Members that are stored, as the standard wants
them, are read where they are: a `StoredMember` is to `reading` what a path is. A deflated member is copied
into a temporary file when it is first read. Only the directory of a WACZ is looked at here; its own index
is not used, since it may be wrong.

A WACZ is refused whole if one of its names is absolute, leads upwards, is there twice or is a link:
whoever wrote that did not pack an archive. A multi-WACZ JSON lists containers as ``resources``, each with a
``path`` relative to its own folder, below which they have to be.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.warc.sources import ARC_LINE, GZIP_MAGIC, WARC_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import BinaryIO, Literal

    from typing_extensions import Buffer

    from scrapy_dedupe.warc.sources import ReadableFile

ZIP_MAGIC = b"PK\x03\x04"
MAX_SWELLING = 200
"""How many times its stored size a deflated member may have. Text of WARC files stays far below it."""

_MEMBER = re.compile(r"archive/.*\.w?arc(\.gz)?", re.IGNORECASE | re.DOTALL)
_ARCHIVE_NAME = re.compile(r".*\.w?arc(\.gz)?(\.open)?", re.IGNORECASE | re.DOTALL)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LOCAL_HEAD_BYTES = 30
_MAX_MANIFEST_BYTES = 64 << 20
_MAX_DEPTH = 8


def find_files(patterns: Iterable[str | Path]) -> list[ReadableFile]:
    """Return the WARC and ARC files that *patterns* name, in their order, each once.

    A pattern is the name of a WARC, ARC or WACZ file or of a multi-WACZ JSON, or has the wildcards of
    `glob`. Raises UsageError for a pattern without a file, ArchiveError for a file that cannot be opened,
    DamagedInput for a container that is refused.
    """
    found: dict[str, ReadableFile] = {}
    for pattern in patterns:
        for path in _matches(str(pattern)):
            for file in files_in(path):
                found.setdefault(os.path.realpath(str(file)), file)
    return list(found.values())


def files_in(path: Path) -> list[ReadableFile]:
    """Return the WARC and ARC files in a container, or the file itself; raises as `find_files` does."""
    return list(_files_in(path, depth=0))


def _matches(pattern: str) -> list[Path]:
    if "://" in pattern:
        raise UsageError(f"{pattern!r} is a URL; files are read from this machine. Download it first.")
    # A file may have a name that looks like a pattern.
    names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - absolute ones
    paths = [Path(name) for name in names]
    files = [path for path in paths if not path.is_dir()]
    if not files:
        wrong = "is a folder" if paths else "names no file that is there"
        raise UsageError(f"{pattern!r} {wrong}. Name WARC or WACZ files, as in 'folder/*.warc.gz'.")
    return files


def _files_in(path: Path, depth: int) -> Iterator[ReadableFile]:
    path = path.absolute()
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start.startswith(ZIP_MAGIC) or path.suffix.lower() == ".wacz":
        yield from _members(path)
    elif path.suffix.lower() == ".json":
        for container in _containers(path):
            if depth == _MAX_DEPTH:
                raise DamagedInput(
                    f"{path} is reached through {depth} other manifests; give its files by name."
                )
            yield from _files_in(container, depth + 1)
    else:
        _check_format(path, start)
        yield path


def _check_format(path: Path, start: bytes) -> None:
    if start.startswith(_ZSTD_MAGIC):
        raise DamagedInput(
            f"{path} is compressed with Zstandard, which is not read here. Recompress it with gzip."
        )
    # A damaged beginning must not hide the records behind it, so the name will do as well.
    line = start.partition(b"\n")[0] + b"\n"
    looks_right = start.startswith(GZIP_MAGIC) or WARC_START.match(line) or ARC_LINE.fullmatch(line)
    if not looks_right and not _ARCHIVE_NAME.fullmatch(path.name):
        raise DamagedInput(f"{path} is no WARC, ARC or WACZ file and no multi-WACZ JSON (*.json).")


# WACZ


class StoredMember:
    """A file inside a ZIP file that is stored as it is: *size* bytes from *offset* on."""

    def __init__(self, container: Path, member: str, offset: int, size: int) -> None:
        self.container = container
        self.member = member
        self._offset = offset
        self._size = size

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(self.member).name

    @property
    def suffixes(self) -> list[str]:
        """As of a path."""
        return PurePosixPath(self.member).suffixes

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Return a seekable reader of the member's bytes."""
        return io.BufferedReader(_Slice(self.container.open(mode, buffering=0), self._offset, self._size))

    def __str__(self) -> str:
        return f"{self.container}/{self.member}"


class DeflatedMember(StoredMember):
    """A compressed file inside a ZIP file, read from a copy that is made when it is first opened.

    The copy goes when this object goes. Opening raises DamagedInput if the member does not unpack,
    ArchiveError if there is no room for the copy.
    """

    def __init__(self, container: Path, info: zipfile.ZipInfo) -> None:
        super().__init__(container, info.filename, 0, info.file_size)
        self._info = info
        self._copy: Path | None = None

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Return a seekable reader of the unpacked bytes."""
        if self._copy is None:
            self._copy = self._unpacked()
        return self._copy.open(mode)

    def _unpacked(self) -> Path:
        folder = tempfile.gettempdir()
        try:
            number, name = tempfile.mkstemp(prefix="scrapy-dedupe-", suffix=f"-{self.name}")
            weakref.finalize(self, Path(name).unlink, missing_ok=True)
            with (
                os.fdopen(number, "wb") as copy,
                zipfile.ZipFile(self.container) as packed,
                packed.open(self._info) as member,
            ):
                shutil.copyfileobj(member, copy, 1 << 20)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise DamagedInput(f"{self} does not unpack: {error}.") from error
        except OSError as error:
            raise ArchiveError(
                f"{self} cannot be copied into {folder}: {error.strerror or error}."
            ) from error
        return Path(name)


class _Slice(io.RawIOBase):
    """*size* bytes of *file* from *offset* on, as a file of its own; closing it closes *file*."""

    def __init__(self, file: io.FileIO, offset: int, size: int) -> None:
        self._file = file
        self._offset = offset
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + position)
        return self._position

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer) as view:
            wanted = max(0, min(len(view), self._size - self._position))
            self._file.seek(self._offset + self._position)
            count = self._file.readinto(view[:wanted])
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _members(path: Path) -> list[ReadableFile]:
    try:
        with zipfile.ZipFile(path) as packed, path.open("rb") as file:
            infos = packed.infolist()
            _check_names(path, infos)
            wanted = [info for info in infos if _MEMBER.fullmatch(info.filename)]
            members: list[ReadableFile] = [_member(path, info, file) for info in wanted]
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise DamagedInput(f"{path} is no whole WACZ: {error}.") from error
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not members:
        raise DamagedInput(f"{path} has no WARC files in its folder archive/; it is no WACZ.")
    return sorted(members, key=str)


def _check_names(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    seen = set()
    for info in infos:
        # zipfile turns backslashes into slashes on Windows and cuts names at NUL; orig_filename is what is there.
        name = info.orig_filename
        if "\\" in name or "\0" in name or ".." in name.split("/"):
            wrong = "leads out of its folder"
        elif name.startswith("/") or re.match(r"[A-Za-z]:", name):
            wrong = "is absolute"
        elif stat.S_ISLNK(info.external_attr >> 16):
            wrong = "is a link"
        elif name in seen:
            wrong = "is there twice"
        else:
            seen.add(name)
            continue
        raise DamagedInput(f"{path} is refused: the name {name!r} in it {wrong}. Pack it anew.")


def _member(path: Path, info: zipfile.ZipInfo, file: BinaryIO) -> StoredMember:
    if info.flag_bits & 1:
        raise DamagedInput(f"{path}/{info.filename} is encrypted. Pack it without a password.")
    if info.compress_type == zipfile.ZIP_STORED:
        # The local head has an extra field of its own length.
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEAD_BYTES)
        if len(head) < _LOCAL_HEAD_BYTES or not head.startswith(ZIP_MAGIC):
            raise zipfile.BadZipFile(f"{info.filename} does not begin where the directory says")
        skipped = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        offset = info.header_offset + _LOCAL_HEAD_BYTES + skipped
        if offset + info.file_size > path.stat().st_size or info.file_size != info.compress_size:
            raise zipfile.BadZipFile(f"{info.filename} is longer than the file")
        return StoredMember(path, info.filename, offset, info.file_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise DamagedInput(
            f"{path}/{info.filename} is compressed with method {info.compress_type}, which is not read here."
            " Pack it with its WARC files stored."
        )
    if info.file_size > MAX_SWELLING * info.compress_size + (1 << 20):
        raise DamagedInput(
            f"{path}/{info.filename} would swell from {info.compress_size} to {info.file_size} bytes, more than"
            f" {MAX_SWELLING} times, and is refused. Pack it with its WARC files stored."
        )
    return DeflatedMember(path, info)


# Multi-WACZ JSON


def _containers(path: Path) -> Iterator[Path]:
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise DamagedInput(f"{path} is too large for a multi-WACZ JSON.")
        manifest = json.loads(path.read_bytes())
        resources = manifest["resources"]
        named = [(resource.get("path") or resource["name"], _size(resource)) for resource in resources]
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedInput(
            f'{path} is no multi-WACZ JSON, a list "resources" with a "path" each: {error!r}.'
        ) from error
    if not named:
        raise DamagedInput(f"{path} names no WACZ file.")
    folder = path.parent.resolve()
    for name, size in named:
        container = _below(folder, name)
        if container is None:
            raise DamagedInput(
                f"{path} names {name!r}, which is not below its own folder. Put the file there, or give it by name."
            )
        if not container.is_file():
            raise DamagedInput(
                f"{path} names {name!r}, which is not there. Put the file there, or take it out."
            )
        if size is not None and size != container.stat().st_size:
            raise DamagedInput(
                f"{container} has {container.stat().st_size} bytes, {path.name} says {size}: it is another file, or a"
                " part of it."
            )
        yield container


def _below(folder: Path, name: object) -> Path | None:
    if not isinstance(name, str) or not name or "\0" in name or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", name):
        return None
    target = (folder / name).resolve()
    return target if target.is_relative_to(folder) else None


def _size(resource: dict[str, object]) -> int | None:
    size = resource.get("size", resource.get("bytes"))
    return size if isinstance(size, int) else None
