"""Replaces whole files atomically, so that no reader sees a partial file.

A link stays a link, and its target is replaced. Only regular files are replaced, never folders or devices. A file
keeps its permissions.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def file_at(path: Path) -> Path:
    """The file that *path* is or links to; it need not exist. Raises :class:`OSError` if it is not a regular file."""
    try:
        found = path.resolve()
        is_other = found.exists() and not found.is_file()
    except (ValueError, RuntimeError) as error:
        # The path contains NUL, or its links form a cycle.
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if is_other:
        what = "it is a folder" if found.is_dir() else "it is not a file"
        raise OSError(errno.EINVAL, what, str(path))
    return found


def try_out(path: Path) -> Path:
    """As :func:`file_at`, and create its folder. Raises :class:`OSError` also if no file can be written there."""
    found = file_at(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    try_folder(found.parent)
    return found


def try_folder(folder: Path) -> None:
    """Raise :class:`OSError` if no file can be written in *folder*; no file remains there."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")


def replace(path: Path, data: bytes) -> None:
    """Replace the contents of the file *path* with *data*, atomically. On :class:`OSError` the file is unchanged."""
    temporary = _beside(path)
    try:
        temporary.write_bytes(data)
        with suppress(OSError):
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    # Several crawls, also in this process, may write one file. The suffix must differ from that of the file, so that
    # searches for such files do not find the temporary one.
    return path.with_name(f".{path.name[:40]}.{os.getpid()}-{threading.get_ident()}.tmp")
