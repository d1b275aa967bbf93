"""Replaces whole files atomically, so that no reader sees a partial file.

A new file is written under a temporary name in the same folder, synced and renamed; then the folder is synced. After a
kill or a power failure the path has either the old or the complete new file. After an error, the old file is unchanged
and the temporary file is removed. With ``durable=False``, the syncs are skipped: for files that need not survive a power
failure.

Resolve links with `file_at` first: a link then stays a link, and its target is replaced. Only regular files are replaced,
never folders or devices. A replaced file keeps its permissions. All functions raise OSError.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.files.folders import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_HAS_SEVERAL_WRITERS: Final = ContextVar("_HAS_SEVERAL_WRITERS", default=False)
_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class FolderNotSynced(OSError):
    """The file was replaced, but its folder could not be synced: a power failure may restore the old file."""


def file_at(path: Path) -> Path:
    """The file that *path* is or links to; it need not exist. Raises :class:`OSError` if it is not a regular file."""
    try:
        found = path.resolve()
        is_other = found.exists() and not found.is_file()
        # Before Python 3.13, resolve() raises RuntimeError for a cycle of links. Later versions leave it unresolved.
        is_cycle = found.is_symlink()
    except RuntimeError:
        is_cycle = True
    except ValueError as error:  # the path contains NUL
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if is_cycle:
        raise OSError(errno.EINVAL, "its links form a cycle", str(path))
    if is_other:
        what = "it is a folder" if found.is_dir() else "it is not a file"
        raise OSError(errno.EINVAL, what, str(path))
    return found


def replace(path: Path, data: bytes, *, suffix: str | None = None, durable: bool = True) -> None:
    """Replace the contents of the file *path* with *data*, atomically. *suffix* is that of `temporary_path`."""
    with replacing(path, suffix=suffix, durable=durable) as file:
        file.write(data)


@contextmanager
def replacing(
    path: Path,
    *,
    suffix: str | None = None,
    is_hidden: bool = False,
    durable: bool = True,
    buffering: int = -1,
) -> Iterator[BinaryIO]:
    """Yield a new binary file, which replaces *path* when the block ends without an error."""
    temporary = temporary_path(path, suffix, is_hidden=is_hidden)
    with _removed_on_error(temporary):
        with temporary.open("wb", buffering=buffering) as file:
            yield file
            if durable:
                sync(file)
        _rename(temporary, path)
    if durable:
        _sync_folder_of(path)


@contextmanager
def replacing_from(path: Path, *, suffix: str | None = None) -> Iterator[Path]:
    """Yield the path of a file that the block creates, and that replaces *path* when the block ends without an error.

    For code that opens the file itself, such as SQLite. The file must be closed when the block ends.
    """
    temporary = temporary_path(path, suffix)
    with _removed_on_error(temporary):
        temporary.unlink(missing_ok=True)
        yield temporary
        sync_file(temporary)
        _rename(temporary, path)
    _sync_folder_of(path)


def put_in_place(temporary: Path, path: Path, *, durable: bool = True) -> None:
    """Rename a synced file to *path*; an existing file is replaced."""
    temporary.replace(path)
    if durable:
        _sync_folder_of(path)


def put_in_free_place(temporary: Path, path: Path) -> None:
    """Rename a synced file to *path*. Raises FileExistsError if another file has this name.

    The file gets its name by a hard link, which never replaces a file. On file systems without hard links, the name is
    checked before the file is renamed; another program could use the name in between.
    """
    try:
        os.link(temporary, path)
        temporary.unlink()
    except FileExistsError:
        if not path.samefile(temporary):
            raise
        temporary.unlink()  # killed between the link and the removal of the old name
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)
    sync_folder(path.parent)


def sync(file: IO[bytes]) -> None:
    """Write the buffer of an open file, and wait until the file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until a file that has been written and closed is on the disk."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary_path(path: Path, suffix: str | None = None, *, is_hidden: bool = False) -> Path:
    """The temporary name for *path*: its name with *suffix*, or a unique hidden name if there is no suffix.

    With a suffix, the next process overwrites the file that a killed process has left, so only one process may write
    *path* at a time, except within `several_writers`. *is_hidden* adds a dot before such a name.
    """
    if suffix is not None and not _HAS_SEVERAL_WRITERS.get():
        return path.with_name(f"{'.' if is_hidden else ''}{path.name}{suffix}")
    # Several crawls, also in this process or in containers with equal process ids, may write one file. The suffix must
    # differ from that of the file, so that searches for such files do not find the temporary one.
    return path.with_name(f".{path.name[:40]}.{uuid.uuid4().hex}.tmp")


@contextmanager
def several_writers() -> Iterator[None]:
    """Within the block, all temporary names are unique, since another process may be writing the same files.

    All of them must write the same bytes; the last one that ends replaces the files of the others.
    """
    token = _HAS_SEVERAL_WRITERS.set(True)
    try:
        yield
    finally:
        _HAS_SEVERAL_WRITERS.reset(token)


@contextmanager
def _removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _rename(temporary: Path, path: Path) -> None:
    with suppress(OSError):
        shutil.copymode(path, temporary)
    temporary.replace(path)


def _sync_folder_of(path: Path) -> None:
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise FolderNotSynced(error.errno, error.strerror or str(error), str(path.parent)) from error
