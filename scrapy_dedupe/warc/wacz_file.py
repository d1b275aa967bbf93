"""The ZIP file of a WACZ during writing: TARGET.open, until it is completely on disk.

Members are stored, not compressed, and their sizes and SHA-256 are kept for the list in datapackage.json. The file is
locked, so that a second process which packs the same WACZ gets an error. A TARGET.open that a killed process left is
reused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
from typing import IO, TYPE_CHECKING, cast

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.locks import is_same_file, lock
from scrapy_dedupe.warc.files import OPEN_SUFFIX, give_final_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path
    from typing import Self

PIECE_BYTES = 1 << 20

_UNUSUAL = re.compile(r"[^a-z0-9._-]+")


class OpenWacz:
    """The ZIP file during writing. It is removed on exit unless `finish` was called."""

    def __init__(self, target: Path, created: datetime) -> None:
        self.target = target
        self._path_open = target.with_name(target.name + OPEN_SUFFIX)
        date = created.timetuple()
        self._date = (date.tm_year, date.tm_mon, date.tm_mday, date.tm_hour, date.tm_min, date.tm_sec)
        self._resources: list[dict[str, object]] = []
        self._is_finished = False

    def __enter__(self) -> Self:
        self._sink = _Sink(self._path_open)
        # zipfile uses only the file methods that _Sink has
        self._zip = zipfile.ZipFile(cast("IO[bytes]", self._sink), "w", zipfile.ZIP_STORED)
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.has_failed = self._sink.has_failed or not self._is_finished
        try:
            self._zip.close()
        finally:
            if not self._is_finished:
                with contextlib.suppress(OSError):
                    self._path_open.unlink()
            self._sink.close()

    def add(self, path: str, pieces: Iterable[bytes], max_size: int) -> None:
        """Add a member of at most *max_size* bytes; it is listed in datapackage.json."""
        sha256 = hashlib.sha256()
        size = 0
        with self._zip.open(self._member(path, max_size), "w") as member:
            for piece in _grouped(pieces):
                member.write(piece)
                sha256.update(piece)
                size += len(piece)
        self._resources.append(
            {
                "name": self._resource_name(path),
                "path": path,
                "hash": f"sha256:{sha256.hexdigest()}",
                "bytes": size,
            }
        )

    def add_datapackage(self, about: Mapping[str, object]) -> None:
        """Add the last two members: *about* with the list of all others, and its digest."""
        data = json_bytes({**about, "resources": self._resources})
        digest = json_bytes(
            {"path": "datapackage.json", "hash": f"sha256:{hashlib.sha256(data).hexdigest()}"}
        )
        for path, content in (("datapackage.json", data), ("datapackage-digest.json", digest)):
            with self._zip.open(self._member(path, len(content)), "w") as member:
                member.write(content)

    def finish(self) -> tuple[str, int]:
        """Complete the file, sync it and give it its final name; return its SHA-256 in hex and its size."""
        self._zip.close()
        sha256, size = self._sink.digest()
        self._sink.sync()
        try:
            give_final_name(self._path_open)
        except ArchiveError:
            raise name_is_taken(self.target) from None
        self._is_finished = True
        return sha256, size

    def _member(self, path: str, max_size: int) -> zipfile.ZipInfo:
        member = zipfile.ZipInfo(path, self._date)
        member.external_attr = 0o100644 << 16
        member.file_size = max_size  # decides whether the member's head has room for 64-bit sizes
        return member

    def _resource_name(self, path: str) -> str:
        # Data packages require distinct lower-case names, which WARC files of other programs may not have.
        name = _UNUSUAL.sub("_", path.rpartition("/")[2].lower())
        taken = {resource["name"] for resource in self._resources}
        number = 1
        unique = name
        while unique in taken:
            number += 1
            unique = f"{number}-{name}"
        return unique


class _Sink:
    """A locked, unbuffered file for writing and seeking.

    After a failed write all further writes are ignored: zipfile writes the end of the archive in any case, and only
    the first failure should be reported.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self.has_failed = False
        self._fd = os.open(path, flags, 0o666)
        if not lock(self._fd) or not is_same_file(self._fd, path):
            os.close(self._fd)
            raise ArchiveError(
                f"{path} is being written by another process. Wait until that process has finished."
            )
        os.ftruncate(self._fd, 0)

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest and not self.has_failed:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except OSError:
                self.has_failed = True
                raise
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._fd, offset, whence)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def flush(self) -> None:
        """Nothing is buffered."""

    def sync(self) -> None:
        os.fsync(self._fd)

    def digest(self) -> tuple[str, int]:
        """Return the SHA-256 of the whole file and its size. Heads of members are written last, so call it last."""
        sha256 = hashlib.sha256()
        size = self.seek(0)
        while piece := os.read(self._fd, PIECE_BYTES):
            sha256.update(piece)
            size += len(piece)
        return sha256.hexdigest(), size

    def close(self) -> None:
        os.close(self._fd)


def json_bytes(value: object) -> bytes:
    """Return *value* as the text of a small JSON file."""
    return json.dumps(value, indent=2).encode() + b"\n"


def name_is_taken(target: Path) -> ArchiveError:
    """Return the error for a WACZ whose name is taken by another file."""
    return ArchiveError(
        f"{target} already exists and is not overwritten, since revisits elsewhere may refer to it. "
        "Choose another name or move it away."
    )


def _grouped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in larger pieces, for fewer system calls."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
