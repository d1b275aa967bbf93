"""Write a file of records under a temporary name, until it is complete and synced to disk.

Ranges of another file are copied unchanged. Records are written from a head and the pieces of a block, each as a gzip
member or uncompressed. Memory does not grow with the block: up to 8 MiB it is compressed at once, a larger block piece by
piece.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, BinaryIO, Final

from deflate import gzip_compress
from zlib_ng import zlib_ng

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.warc.files import DEFAULT_GZIP_LEVEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import FileIO
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_AT_ONCE_BYTES: Final = 8 << 20
_PIECE: Final = 1 << 20
_RECORD_END: Final = b"\r\n\r\n"
_GZIP_FORMAT: Final = 31


class RecordFile:
    """Context manager that writes *path*. The file exists only after `finish`.

    System errors, such as a full disk, are raised as ArchiveError.
    """

    def __init__(self, path: Path, *, gzip: bool) -> None:
        self.path = path
        self.size = 0
        self._gzip = gzip
        self._part = part_path(path)
        with self._as_archive_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb")

    def copy(self, source: BinaryIO | FileIO, begin: int, end: int | None) -> None:
        """Copy the bytes of *source* from *begin* to *end* (None: to its end) unchanged."""
        source.seek(begin)
        missing = end - begin if end is not None else None
        while missing is None or missing > 0:
            data = source.read(_PIECE if missing is None else min(_PIECE, missing))
            if not data:
                if missing is not None:
                    raise ArchiveError(f"{source.name} became shorter while it was read. Start again.")
                return
            if missing is not None:
                missing -= len(data)
            self._write(data)

    def write(self, head: bytes, block: Iterable[bytes], block_length: int) -> None:
        """Write a record: its head including the blank line, and its block of *block_length* bytes.

        Raises ArchiveError if the block has another length: then the file that it is read from has changed.
        """
        pieces = self._whole(head, block, block_length)
        if not self._gzip:
            for piece in pieces:
                self._write(piece)
        elif block_length <= _AT_ONCE_BYTES:
            self._write(bytes(gzip_compress(b"".join(pieces), DEFAULT_GZIP_LEVEL)))
        else:
            stream = zlib_ng.compressobj(DEFAULT_GZIP_LEVEL, wbits=_GZIP_FORMAT)
            for piece in pieces:
                self._write(stream.compress(piece))
            self._write(stream.flush())

    def finish(self, check: Callable[[Path], None] | None = None) -> None:
        """Sync the file, call *check* with its temporary path, and rename it; an existing file is replaced."""
        with self._as_archive_errors():
            whole_file.sync(self._file)
            self._file.close()
        if check is not None:
            check(self._part)
        with self._as_archive_errors():
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
            raise ArchiveError(
                f"{self.path} cannot be written: a source file changed while it was read. Start again."
            )
        yield _RECORD_END

    def _write(self, data: bytes) -> None:
        with self._as_archive_errors():
            self._file.write(data)
        self.size += len(data)

    @contextlib.contextmanager
    def _as_archive_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArchiveError(
                f"{self.path} cannot be written: {error.strerror or error}. Free some space or choose another folder"
                " with -o."
            ) from error


def part_path(path: Path) -> Path:
    """The temporary path of a file until it is complete. Readers do not accept its name as an archive."""
    return path.with_name(f".{path.name.removeprefix('.')}.part")


def remove_parts(paths: Iterable[Path]) -> None:
    """Remove the temporary files of these paths, which killed processes may have left."""
    for path in paths:
        with contextlib.suppress(OSError):
            part_path(path).unlink(missing_ok=True)
