"""A file that has its name only when it is whole and on the disk."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class NewFile:
    """A file written as NAME.new, which gets its name at the end. Raises StoreUnavailable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._new = path.with_name(f"{path.name}.new")
        self._is_renamed = False
        with writing(path):
            self._file = self._new.open("wb", buffering=1 << 20)

    def write(self, data: bytes | memoryview) -> None:
        """Append *data*."""
        with writing(self.path):
            self._file.write(data)
        self.size += len(data)

    def pad(self) -> None:
        """Append zeros up to a multiple of 8."""
        self.write(bytes(-self.size % 8))

    def finish(self, header: bytes) -> None:
        """Put *header* at the beginning, and sync."""
        with writing(self.path):
            self._file.seek(0)
            self._file.write(header)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def rename(self) -> None:
        """Give the file its name."""
        with writing(self.path):
            self._new.replace(self.path)
        self._is_renamed = True

    def remove(self) -> None:
        """Remove the file, under whichever name."""
        with suppress(OSError):  # what could not be written before cannot be written now
            self._file.close()
        with suppress(OSError):
            (self.path if self._is_renamed else self._new).unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell a failure to write *path* in one sentence, as StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. See to the space and the permissions."
        ) from error
