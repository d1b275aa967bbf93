"""The files of an index folder: read with care, written as one change, and what is said if they cannot be.

A folder may hold anything: what is no file is refused, a FIFO without waiting for who writes to it, and no more is
read than can be there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.warc.files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEW_SUFFIX = ".new"
"""What the name of a file ends in until it is whole and on the disk."""


def read_file(path: Path, most_bytes: int) -> bytes:
    """All of a file that has at most *most_bytes*.

    Raises FileNotFoundError or NotADirectoryError if there is none; StoreRefused if it is larger, or no file;
    StoreUnavailable if it cannot be read.
    """
    with reading(path):
        # What is no file is refused, a FIFO without waiting for who writes to it.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise damaged(path, "is not a file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(most_bytes + 1)
        finally:
            os.close(fd)
    if len(data) > most_bytes:
        raise damaged(path, f"has more than {most_bytes} bytes")
    return data


def write_file(path: Path, data: bytes) -> None:
    """Write a file as one change that outlives a crash.

    Raises StoreUnavailable, which says whether the file is as it was: an error may come after it was replaced.
    """
    temporary = path.with_name(path.name + NEW_SUFFIX)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise StoreUnavailable(
                f"{path} cannot be written: {error.strerror or error}. See to the space and the permissions; the index"
                " is as it was."
            ) from error
        raise
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} is written, but the system cannot make sure that it outlives a power cut:"
            f" {error.strerror or error}. See to the disk."
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for what a system has against reading, but that there is nothing."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be read: {error.strerror or error}. See to its permissions and to the disk."
        ) from error


def damaged(path: Path, what: str) -> StoreRefused:
    return StoreRefused(
        f"The passage index is damaged: {path} {what}. Put the file back from a backup, or index into another folder."
    )


def lacking(folder: Path, error: FileNotFoundError) -> StoreRefused:
    """What is raised for a file that the manifest names and that is gone."""
    return damaged(folder, f"lacks the file {error.filename}")


def other_version(path: Path, version: int, known: int) -> StoreRefused:
    return StoreRefused(
        f"{path} has format version {version}, and this version of scrapy-dedupe reads {known}. Use the version that"
        " wrote it, or index again into another folder."
    )
