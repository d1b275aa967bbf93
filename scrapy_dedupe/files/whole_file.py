"""Files that are replaced as a whole, so that nobody ever reads half of one.

A link stays a link, and the file that it names is replaced. What is no file, such as a folder or a device, is never
replaced. A file keeps its permissions.
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
    """The file that *path* is or links to, which need not be there. Raises :class:`OSError` for what is no file."""
    try:
        found = path.resolve()
        is_other = found.exists() and not found.is_file()
    except (ValueError, RuntimeError) as error:
        # A zero byte, and links that go round in a circle.
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if is_other:
        what = "it is a folder" if found.is_dir() else "it is no file"
        raise OSError(errno.EINVAL, what, str(path))
    return found


def try_out(path: Path) -> Path:
    """As :func:`file_at`, and make its folder. Raises :class:`OSError` also if no file can be written there."""
    found = file_at(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    try_folder(found.parent)
    return found


def try_folder(folder: Path) -> None:
    """Raise :class:`OSError` if nothing can be written to a file in *folder*; nothing is left there."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")


def replace(path: Path, data: bytes) -> None:
    """Make *data* all that is in the file *path*, at once. Raises :class:`OSError`; the file is as it was then."""
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
    # Several crawls may write one file, in this process too. The name must not end as that of the file does, or
    # whoever looks for such files would find it.
    return path.with_name(f".{path.name[:40]}.{os.getpid()}-{threading.get_ident()}.tmp")
