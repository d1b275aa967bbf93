"""Current locations of the WARC files that the index names.

A file is named by its path, or by its URL if it is remote. During writing it also has the suffix ``.open``. A file that
exists only in a WACZ is named ``PLACE.wacz/archive/NAME``, with the path or URL of the WACZ.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DedupeError
from scrapy_dedupe.warc.containers import WACZ_SUFFIX, files_in
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.remote import RemoteFile, is_url, open_in_order, shown, url_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from io import BufferedReader
    from typing import Literal

    from scrapy_dedupe.warc.sources import ReadableFile

_FOLDER = "/archive/"
_PIECE_BYTES = 1 << 20


def present_path(file: str) -> Path | None:
    """The file under its final name, or under its name during writing; None if neither exists."""
    return next((path for path in (Path(file), Path(f"{file}{OPEN_SUFFIX}")) if path.is_file()), None)


def is_present(file: str) -> bool:
    """Whether a file is where the index says; remote files are assumed to exist."""
    return present_path(file) is not None or is_url(file) or _container(file) is not None


def readable(file: str) -> ReadableFile | None:
    """A readable file object; None if the file does not exist. Remote files are checked only when they are opened."""
    if is_url(file):
        url = _remote_container(file)
        return RemoteFile(file) if url is None else RemoteMember(url, file[len(url) + 1 :])
    path = present_path(file)
    container = _container(file) if path is None else None
    if container is None:
        return path
    with suppress(DedupeError):
        return _member(files_in(container), str(Path(file).absolute()))
    return None


def size_of(file: ReadableFile) -> int:
    """The size of a file in bytes."""
    with file.open("rb") as stream:
        return stream.seek(0, 2)


def sizes_of(files: Iterable[ReadableFile]) -> int:
    """The total size of files in bytes, for progress reports; 0 if some of them are remote."""
    total = 0
    for file in files:
        if isinstance(file, RemoteFile | RemoteMember):
            return 0
        with suppress(OSError, DedupeError):
            total += size_of(file)
    return total


def sha256_of(file: ReadableFile, on_bytes: Callable[[int], object] = lambda count: None) -> tuple[str, int]:
    """The SHA-256 of a file in bare hex, and its size in bytes; *on_bytes* is called with the size of each piece read.

    Raises ArchiveError or OSError.
    """
    digest = hashlib.sha256()
    size = 0
    with open_in_order(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            on_bytes(len(piece))
    return digest.hexdigest(), size


def member_name(container: Path, name: str) -> str:
    """The name of a WARC file that exists only in a WACZ."""
    return f"{container.absolute()}{_FOLDER}{name}"


@dataclass(eq=False, slots=True)
class RemoteMember:
    """A WARC file in a remote WACZ. Opening raises ArchiveError if it is missing, DamagedInput for a broken WACZ."""

    url: str
    member: str
    _found: ReadableFile | None = None

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(self.member).name

    @property
    def suffixes(self) -> list[str]:
        """Like ``Path.suffixes``."""
        return PurePosixPath(self.member).suffixes

    def open(self, mode: Literal["rb"], /) -> BufferedReader:
        """Return a seekable reader. The directory of the WACZ is read at the first call."""
        if self._found is None:
            self._found = _member(files_in(RemoteFile(self.url)), str(self))
        if self._found is None:
            raise ArchiveError(f"{shown(self.url)} has no {self.member}. Is it the WACZ that was imported?")
        return self._found.open(mode)

    def __str__(self) -> str:
        return f"{self.url}/{self.member}"


def _member(members: Iterable[ReadableFile], name: str) -> ReadableFile | None:
    return next((member for member in members if str(member) == name), None)


def _container(file: str) -> Path | None:
    # Only a WACZ can be a file and also a parent of another path.
    return next((parent for parent in Path(file).parents if parent.is_file()), None)


def _remote_container(file: str) -> str | None:
    """The URL of the WACZ that a file is in; None if it is in none."""
    at = file.find(_FOLDER)
    while at >= 0:
        url = file[:at]
        # A signed URL has its parameters before the name of the member.
        if url_path(url).lower().endswith(WACZ_SUFFIX):
            return url
        at = file.find(_FOLDER, at + 1)
    return None
