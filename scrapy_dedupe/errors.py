"""The exceptions of scrapy-dedupe, one class per cause.

Each message says what is wrong, where, and what to do. ``exit_code`` is the exit code of the command line for it (see
the reference page of the commands). :func:`folder_fault` explains an error of the operating system with a folder.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class DedupeError(Exception):
    """Base class of all exceptions below."""

    exit_code = 1


class SettingError(DedupeError, ValueError):
    """A setting or an argument has a value that is not allowed."""

    exit_code = 2


class UsageError(DedupeError):
    """A command was called with invalid arguments."""

    exit_code = 2


class StoreError(DedupeError):
    """A store cannot be used."""

    exit_code = 3


class StoreUnavailable(StoreError):
    """The store does not answer: no server, no permission, no disk, a time-out."""


class StoreRefused(StoreError):
    """The stored data is not of this package, has a newer version, or was made with other parameters."""


class CrawlStateError(StoreError):
    """The crawl is not in a state that allows this: unknown, already committed, canceled."""


class TakenOver(CrawlStateError):
    """Another process has taken over a source because this process did not renew its claim in time."""


class ArchiveError(DedupeError):
    """A folder or file of the archive cannot be used: not writable, in use, or its name is taken."""

    exit_code = 3


class DamagedInput(DedupeError):
    """A file that was read is damaged. The message names the file and the offset in bytes."""

    exit_code = 4


def folder_fault(folder: Path, error: OSError, other: str = "another folder") -> tuple[str, str]:
    """Why *folder*, or a file in it, could not be created, and what to do: a clause, and a sentence that names *other*.

    The operating system only reports "File exists" or "No such file or directory", so the cause is searched from the
    folder upwards.
    """
    there = nearest_there(folder)
    instead = f"Name {other}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {there} is full",
            f"Free some space or inodes, or name {other}.",
        )
    if error.errno == errno.EROFS:
        return f"{there} is on a read-only file system", instead
    if error.errno in (errno.EACCES, errno.EPERM):
        named = error.filename
        place = named if isinstance(named, str) and os.path.lexists(named) else there
        return f"there is no permission for {place}", f"Change its permissions, or name {other}."
    if not os.path.exists(there):  # noqa: PTH110 - Path.exists raises if a parent folder is not accessible
        return f"{there} is a broken link", instead
    if not there.is_dir():
        return f"{there} is {'a file' if there.is_file() else 'not a folder'}", instead
    if error.errno == errno.EINVAL:
        # The name itself is invalid.
        return error.strerror or str(error), instead
    if error.errno == errno.ENOENT:
        return f"nothing can be created in {there}", instead
    place = "" if error.filename is None else f" ({error.filename})"
    return f"{error.strerror or error}{place}", f"Check {there}, or name {other}."


def nearest_there(folder: Path) -> Path:
    """*folder* itself, or its nearest existing parent, as an absolute path; may be a file or a link."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path(folder.anchor))
