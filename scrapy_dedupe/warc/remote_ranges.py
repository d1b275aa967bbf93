"""The bytes of one record of a remote file. Only these bytes are fetched, once, and they can be read repeatedly.

A range of up to 4 MiB is held in memory; a longer one is written to a temporary file without a name.
HTTP needs one request on a persistent connection, and the response must be this range: status 206, from its first
byte. For other protocols of fsspec, pieces of 4 MiB are requested.
"""

from __future__ import annotations

import io
import re
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.remote import RemoteFile, shown
from scrapy_dedupe.warc.zip_members import FilePart, StoredMember

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from scrapy_dedupe.warc.sources import ReadableFile

HELD_BYTES = 4 << 20

_START_BYTES = 64
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")


class FileRange:
    """A part of a remote file, at its original position: offsets are relative to the whole file.

    Readers detect the format of a file by its first bytes, which are not fetched. They get the first bytes of the record
    instead: all gzip members begin alike, and so do all records of a plain file. Raises ArchiveError if the bytes cannot be
    fetched, SettingError if the driver of the protocol is not installed, OSError for the temporary file.
    """

    def __init__(self, file: RemoteFile | StoredMember, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        store = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, store.close)
        remote, start = (file, 0) if isinstance(file, RemoteFile) else (file.container, file.offset)
        assert isinstance(remote, RemoteFile)
        for piece in _fetched(remote, start + offset, start + offset + length):
            store.write(piece)
        self._size = store.tell()
        self._store = cast("io.BufferedIOBase", store)

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return self._file.name

    @property
    def suffixes(self) -> list[str]:
        """As `pathlib.Path.suffixes`."""
        return list(self._file.suffixes)

    def open(self, mode: Literal["rb"], /) -> io.BufferedReader:
        """Return a seekable reader that ends at the end of the range."""
        return io.BufferedReader(_RangeReader(self._store, 0, self._size, self._offset, _START_BYTES))

    def __str__(self) -> str:
        return shown(str(self._file))


class _RangeReader(FilePart):
    def close(self) -> None:
        io.RawIOBase.close(self)  # the temporary file is read repeatedly


def is_remote(file: ReadableFile) -> TypeGuard[RemoteFile | StoredMember]:
    """Whether a part of a file can be fetched: it is remote itself, or stored uncompressed in a remote WACZ."""
    # A compressed member can only be unpacked as a whole.
    return isinstance(file, RemoteFile) or (
        type(file) is StoredMember and isinstance(file.container, RemoteFile)
    )


def _fetched(file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes from *start* to *end* of a remote file in pieces, fewer if the file ends earlier."""
    with file.driver_errors():
        from fsspec.core import url_to_fs

        system, path = url_to_fs(file.url)
    pieces = _http_pieces if file.url.lower().startswith(("http://", "https://")) else _driver_pieces
    fetched = pieces(system, path, start, end)
    missing = end - start
    while True:
        try:
            piece = next(fetched, b"")
        except Exception as error:
            raise file.unreadable(error) from error
        if not piece:
            return
        missing -= len(piece)
        if missing < 0:
            raise DamagedInput(
                f"{shown(file.url)}, offset {start}: the server sent more bytes than requested. Download the"
                " file, and name the copy."
            )
        yield piece


def _driver_pieces(system: Any, path: str, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, HELD_BYTES):
        piece: bytes = system.cat_file(path, start=at, end=min(end, at + HELD_BYTES))
        yield piece
        if len(piece) < min(HELD_BYTES, end - at):
            return


def _http_pieces(system: Any, path: str, start: int, end: int) -> Iterator[bytes]:
    from fsspec.asyn import sync

    options = dict(system.kwargs)
    headers = {
        **options.pop("headers", {}),
        "Range": f"bytes={start}-{end - 1}",
        "Accept-Encoding": "identity",
    }

    async def begin() -> Any:
        session = await system.set_session()
        return await session.get(system.encode_url(path), headers=headers, **options)

    response = sync(system.loop, begin)
    try:
        if response.status == 416:  # the file ends before *start*
            return
        if response.status == 404:
            raise FileNotFoundError(path)
        response.raise_for_status()
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if response.status != 206 or match is None or int(match[1]) != start:
            raise ValueError("the server does not serve ranges")
        while piece := sync(system.loop, response.content.read, HELD_BYTES):
            yield piece
    finally:
        _end(system.loop, response)


def _end(loop: Any, response: Any) -> None:
    """Release the connection if the response was read completely, else close it."""

    async def end() -> None:
        if response.content.at_eof():
            response.release()
        else:
            response.close()

    from fsspec.asyn import sync

    sync(loop, end)
