"""Files that get their name only when they are complete and on the disk."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.files import whole_file

from .folder_files import NEW_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class NewFile:
    """Writes the temporary file NAME.new, which `rename` renames to NAME. Raises StoreUnavailable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._new = whole_file.temporary_path(path, NEW_SUFFIX)
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
        """Write *header* at the beginning, sync and close the file."""
        with writing(self.path):
            self._file.seek(0)
            self._file.write(header)
            whole_file.sync(self._file)
            self._file.close()

    def rename(self) -> None:
        """Rename the temporary file."""
        with writing(self.path):
            whole_file.put_in_place(self._new, self.path, durable=False)
        self._is_renamed = True

    def remove(self) -> None:
        """Remove the file, whether it was renamed or not."""
        with suppress(OSError):  # closing may fail to write buffered data again
            self._file.close()
        with suppress(OSError):
            (self.path if self._is_renamed else self._new).unlink()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing *path* into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions."
        ) from error
