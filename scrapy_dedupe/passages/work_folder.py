"""A folder for the temporary files of a long query.

The folder is removed at the end, also after an error. A folder that a killed process has left is removed by the next
process that uses the same parent folder: each folder has a file that its process keeps locked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.files.locks import lock

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "scrapy-dedupe-passages-"
_HELD: Final = ".held"
_NEW_S: Final = 60.0
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def work_folder(index: Path, parent: Path | None) -> Iterator[Path]:
    """A new folder below *parent*, or below the default folder for temporary files, for a query on *index*.

    Raises StoreUnavailable if the folder cannot be written to, or if reading the index fails within the block.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    folder = None
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True) as folder:
            held = os.open(Path(folder, _HELD), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                lock(held)
                if _is_held(Path(folder, _HELD)):  # the file system has locks
                    _remove_left(place)
                yield Path(folder)
            finally:
                os.close(held)
    except OSError as error:
        named = str(error.filename or "")
        if folder is None or named.startswith(folder) or error.errno in _NO_SPACE:
            raise StoreUnavailable(
                f"The temporary files of extract cannot be written to {place}: {error.strerror or error}. Check the free"
                " space and the permissions there, or name another folder with --work or in TMPDIR."
            ) from error
        raise StoreUnavailable(
            f"The index {index} can no longer be read: {named or 'a file'}: {error.strerror or error}."
            " Check its disk and the permissions there."
        ) from error


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that have ended."""
    for held in place.glob(f"{PREFIX}*/{_HELD}"):
        # Another process may remove the folder at the same time; folders of other users cannot be removed.
        with contextlib.suppress(OSError):
            # A process that has just created the file may not have locked it yet.
            if time.time() - held.stat().st_mtime > _NEW_S and not _is_held(held):
                shutil.rmtree(held.parent)


def _is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)
