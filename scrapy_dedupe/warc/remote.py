"""WARC files in a storage elsewhere, read where they are.

Reading goes through fsspec (the extra ``storage``), in blocks; nothing is copied to the local disk.
"""

from __future__ import annotations

import io
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy_dedupe.errors import ArchiveError, SettingError

if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Literal


class RemoteFile:
    """A file at a URL, as :func:`~scrapy_dedupe.warc.reading.read_records` takes it.

    Opening raises ArchiveError if it cannot be had, SettingError without fsspec or the driver of the protocol.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def suffixes(self) -> list[str]:
        """As of a path."""
        return PurePosixPath(self.name).suffixes

    def open(self, mode: Literal["rb"], /) -> BufferedReader:
        """Return a seekable reader."""
        try:
            import fsspec

            stream = fsspec.open(self.url, mode).open()
        except ImportError as error:
            raise SettingError(
                f'{self.url} cannot be read without a package: {error}. Run pip install "scrapy-dedupe[storage]", and'
                " install the driver of the protocol."
            ) from error
        except Exception as error:
            # Each driver has errors of its own.
            raise ArchiveError(
                f"{self.url} cannot be read: {error or type(error).__name__}. See to the network and the credentials."
            ) from error
        # The files of most drivers cannot peek.
        return stream if hasattr(stream, "peek") else io.BufferedReader(stream)

    def __str__(self) -> str:
        return self.url
