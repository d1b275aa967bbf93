"""A folder for what a long question keeps on the disk meanwhile.

It is removed at the end, also after an error. What a process that was killed has left is removed by the next one that
works beside it: each folder has a file that its process holds locked.
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
from scrapy_dedupe.warc.files import lock

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "scrapy-dedupe-passages-"
_HELD: Final = ".held"
_NEW_S: Final = 60.0
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def work_folder(index: Path, parent: Path | None) -> Iterator[Path]:
    """A new folder below *parent*, or below that for temporary files, to answer a question about *index* in.

    Raises StoreUnavailable if it cannot be written, or if the index cannot be read meanwhile.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    folder = None
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place, ignore_cleanup_errors=True) as folder:
            held = os.open(Path(folder, _HELD), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                lock(held)
                if _is_held(Path(folder, _HELD)):  # there are locks here
                    _remove_left(place)
                yield Path(folder)
            finally:
                os.close(held)
    except OSError as error:
        named = str(error.filename or "")
        if folder is None or named.startswith(folder) or error.errno in _NO_SPACE:
            raise StoreUnavailable(
                f"The files that extract needs meanwhile cannot be kept in {place}: {error.strerror or error}. See to"
                " the space and the permissions there, or name another folder with --work or in TMPDIR."
            ) from error
        raise StoreUnavailable(
            f"The index {index} cannot be read any more: {named or 'a file'}: {error.strerror or error}."
            " See to its disk and the permissions there."
        ) from error


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that are gone."""
    for held in place.glob(f"{PREFIX}*/{_HELD}"):
        # Another process may be removing it as well; a folder of another user stays.
        with contextlib.suppress(OSError):
            # Whoever has just made the file may not have locked it yet.
            if time.time() - held.stat().st_mtime > _NEW_S and not _is_held(held):
                shutil.rmtree(held.parent)


def _is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return not lock(descriptor)
    finally:
        os.close(descriptor)
