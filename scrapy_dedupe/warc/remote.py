"""Remote files of an archive, read without downloading them.

They are read through fsspec (the extra ``storage``), in blocks; nothing is copied to the local disk. Any exception of a
driver becomes an ArchiveError that names the URL without its password.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from urllib.request import url2pathname

from scrapy_dedupe.errors import ArchiveError, DedupeError, SettingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from typing import Literal

    from typing_extensions import Buffer

    from scrapy_dedupe.warc.sources import ReadableFile

_SECRET = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_QUERY = re.compile(r"[?#]")
_BUFFER_BYTES = 1 << 16
# Values that drivers report for a file, and that change with the file.
_CHANGING = ("ETag", "LastModified", "etag", "last_modified", "updated", "md5Hash", "mtime")


def place_file(place: str) -> ReadableFile:
    """The file at a path or URL: a `Path` for a path or a file:// URL, a RemoteFile for any other URL.

    Raises UsageError for a file:// URL that names another machine.
    """
    if not is_url(place):
        return Path(place)
    if not place.lower().startswith("file://"):
        return RemoteFile(place)
    host, slash, path = place[len("file://") :].partition("/")
    if host not in ("", "localhost"):
        raise UsageError(
            f"{place!r} names a file of the machine {host}. Give a path, or a URL with three slashes."
        )
    return Path(url2pathname(slash + path))


def is_url(place: str) -> bool:
    """Whether a place is a URL, not a path."""
    return "://" in place


def real_place(file: ReadableFile | str) -> str:
    """The place of a file without links: equal for all names of one file."""
    place = str(file)
    return place if is_url(place) else os.path.realpath(place)


def url_path(url: str) -> str:
    """The path in a URL, unchanged. Unlike urlsplit it accepts any text.

    >>> url_path("https://example.org/a%20b.wacz?sig=x")
    '/a%20b.wacz'
    """
    _, slash, path = _QUERY.split(url.partition("://")[2], maxsplit=1)[0].partition("/")
    return slash + path


def shown(place: str) -> str:
    """A path or URL for messages, without a password."""
    return _SECRET.sub(r"\1:***@", place)


@contextlib.contextmanager
def read_errors(file: ReadableFile | str) -> Iterator[None]:
    """Raise ArchiveError for an OSError while a file is read."""
    try:
        yield
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: object, error: OSError) -> ArchiveError:
    """The exception for a file that cannot be read."""
    return ArchiveError(
        f"{shown(str(file))} cannot be read: {error.strerror or error}. Check whether it exists, and its permissions."
    )


def check_regular(file: ReadableFile) -> None:
    """Raise ArchiveError for a pipe or a device, which may never end, or a link to one; OSError if nothing exists there."""
    if not isinstance(file, Path):
        return
    mode = file.stat().st_mode
    # Opening a folder fails with a clear message of its own.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ArchiveError(
            f"{file} is a pipe or a device, not a regular file. Copy its contents into a file."
        )


def open_in_order(file: ReadableFile) -> BufferedReader:
    """Open a file that is read once from its beginning, so that its server need not support ranges.

    Raises the exceptions of `check_regular`.
    """
    check_regular(file)
    return file.open_stream() if isinstance(file, RemoteFile) else file.open("rb")


class RemoteFile:
    """A file at a URL, for use with :func:`~scrapy_dedupe.warc.reading.read_records`.

    Opening raises ArchiveError if the file is unavailable, SettingError if fsspec or the driver of the protocol is
    missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(unquote(url_path(self.url))).name

    @property
    def suffixes(self) -> list[str]:
        """Like ``Path.suffixes``."""
        return PurePosixPath(self.name).suffixes

    def open(self, mode: Literal["rb"], /) -> BufferedReader:
        """Return a seekable reader."""
        return self._opened()

    def open_stream(self) -> BufferedReader:
        """Return a reader that only goes forward, in one request if the protocol allows that."""
        # No driver of another protocol is known to work without ranges.
        return self._opened(**({"block_size": 0} if self._is_http else {}))

    def version(self) -> tuple[int, str]:
        """The size, 0 if it is unknown, and a text that changes with the file if the server reports changes.

        Raises the exceptions of `open`.
        """
        with self.driver_errors():
            import fsspec

            system, path = fsspec.core.url_to_fs(self.url)
            system.invalidate_cache()
            facts = system.info(path)
        return int(facts.get("size") or 0), " ".join(str(facts[name]) for name in _CHANGING if name in facts)

    def __str__(self) -> str:
        return self.url

    @property
    def _is_http(self) -> bool:
        return self.url.lower().startswith(("http://", "https://"))

    def _opened(self, **options: object) -> BufferedReader:
        with self.driver_errors():
            import fsspec

            stream = fsspec.open(self.url, "rb", **options).open()
        return io.BufferedReader(_RemoteStream(stream, self), _BUFFER_BYTES)

    @contextlib.contextmanager
    def driver_errors(self) -> Iterator[None]:
        """Raise the exceptions of `open` for the errors of fsspec and of a driver."""
        try:
            yield
        except ImportError as error:
            raise SettingError(
                f"{shown(self.url)} cannot be read because a package is missing: {error}. Run"
                ' pip install "scrapy-dedupe[storage]", and install the driver of the protocol.'
            ) from error
        except Exception as error:
            # Each driver has its own exceptions.
            if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
                raise SettingError(
                    f"{shown(self.url)} cannot be read: fsspec has no protocol {self.url.partition('://')[0]}. Check the URL."
                ) from error
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> DedupeError:
        """The exception for a driver's error with this file."""
        place = shown(self.url)
        if isinstance(error, FileNotFoundError):
            return ArchiveError(
                f"{place} cannot be read: it does not exist, or the server does not answer. Check the URL."
            )
        if isinstance(error, ValueError) and self._is_http:
            return ArchiveError(
                f"{place} cannot be read in parts: its server does not support HTTP ranges. Download it and pass the"
                " copy."
            )
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return ArchiveError(
            f"{place} cannot be read: {shown(reason)}. Check the network and the credentials."
        )


class _RemoteStream(io.RawIOBase):
    """The file of a driver, with uniform errors; a short read does not mean the end of the file."""

    def __init__(self, stream: Any, file: RemoteFile) -> None:
        self._stream = stream
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer).cast("B") as view:
            try:
                data = self._stream.read(len(view))
            except Exception as error:
                raise self._file.unreadable(error) from error
            view[: len(data)] = data
            return len(data)

    def seek(self, position: int, whence: int = 0, /) -> int:
        try:
            self._stream.seek(position, whence)
            return int(self._stream.tell())
        except Exception as error:
            raise self._file.unreadable(error) from error

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
