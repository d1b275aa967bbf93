"""Reading and writing the files of an index folder, and the errors when that fails.

A folder may hold anything: only regular files are read, opening a FIFO does not block, and the size read is limited.
Files are written atomically. A new file gets its name only when it is complete and on the disk.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing *path* into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions."
        ) from error


NEW_SUFFIX = ".new"
"""The suffix of a file until it is complete and on the disk."""


def read_file(path: Path, max_bytes: int) -> bytes:
    """The content of a file of at most *max_bytes*.

    Raises FileNotFoundError or NotADirectoryError if it does not exist; StoreRefused if it is larger, or not a regular
    file; StoreUnavailable if it cannot be read.
    """
    with reading(path), open(open_regular(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise damaged(path, f"has more than {max_bytes} bytes")
    return data


def open_regular(path: Path) -> int:
    """Open a file for reading, and return its descriptor. Raises OSError, and StoreRefused if it is not a regular file."""
    # O_NONBLOCK: opening a FIFO would block.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise damaged(path, "is not a regular file")
    return fd


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, so that the change survives a crash.

    Raises StoreUnavailable. Its message says whether the file is unchanged, since an error may come after the replacement.
    """
    try:
        whole_file.replace(path, data, suffix=NEW_SUFFIX)
    except whole_file.FolderNotSynced as error:
        raise StoreUnavailable(
            f"{path} was written, but the system cannot guarantee that it survives a power failure:"
            f" {error.strerror or error}. Check the disk."
        ) from error
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror or error}. Check the free space and the permissions; the"
            " index is unchanged."
        ) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for any OSError of the block, except for missing files and folders."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be read: {error.strerror or error}. Check its permissions and the disk."
        ) from error


def damaged(path: Path, what: str) -> StoreRefused:
    return StoreRefused(
        f"The passage index is damaged: {path} {what}. Restore the file from a backup, or index into another folder."
    )


def missing_file(folder: Path, error: FileNotFoundError) -> StoreRefused:
    """The error for a file that the manifest names and that is missing."""
    return damaged(folder, f"lacks the file {error.filename}")


def other_version(path: Path, version: int, known: int) -> StoreRefused:
    return StoreRefused(
        f"{path} has format version {version}, and this version of scrapy-dedupe reads {known}. Use the version that"
        " wrote it, or index again into another folder."
    )
