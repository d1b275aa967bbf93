"""Every error that scrapy-dedupe raises on purpose, one class a cause.

The message of each says what is wrong, where, and what to do. ``exit_code`` is what the command line
returns for it (see the reference page of the commands). :func:`folder_fault` puts into words what the operating system
says of a folder.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class DedupeError(Exception):
    """Base of all errors below."""

    exit_code = 1


class SettingError(DedupeError, ValueError):
    """A setting or an argument has a value that is not allowed."""

    exit_code = 2


class UsageError(DedupeError):
    """A command was called with words that it does not take."""

    exit_code = 2


class StoreError(DedupeError):
    """A store stands in the way."""

    exit_code = 3


class StoreUnavailable(StoreError):
    """The store does not answer: no server, no permission, no disk, a time-out."""


class StoreRefused(StoreError):
    """What is stored there is not ours, is newer than we are, or was made with other parameters."""


class CrawlStateError(StoreError):
    """The crawl is not in a state that allows this: unknown, already committed, canceled."""


class TakenOver(CrawlStateError):
    """Another process has taken over a source that this one did not renew its claim of in time."""


class ArchiveError(DedupeError):
    """A folder or file of the archive cannot be used: not writable, in use, in the way."""

    exit_code = 3


class DamagedInput(DedupeError):
    """A file that was read is damaged. The message names the file and the offset in bytes."""

    exit_code = 4


def folder_fault(folder: Path, error: OSError, other: str = "another folder") -> tuple[str, str]:
    """Why *folder* could not be made, or a file in it, and what to do: half a sentence, and a sentence that names *other*.

    The operating system says as little as "File exists" or "No such file or directory"; so what stands in the way is
    looked for, from the folder upwards.
    """
    there = nearest_there(folder)
    instead = f"Name {other}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no room is left on the disk of {there}",
            f"Make room, of bytes or of files (inodes), or name {other}.",
        )
    if error.errno == errno.EROFS:
        return f"{there} is on a file system that can only be read", instead
    if error.errno in (errno.EACCES, errno.EPERM):
        named = error.filename
        place = named if isinstance(named, str) and os.path.lexists(named) else there
        return f"there is no permission for {place}", f"Change its permissions, or name {other}."
    if not os.path.exists(there):  # noqa: PTH110 - Path.exists raises where a folder above may not be looked into
        return f"{there} is a link to what is not there", instead
    if not there.is_dir():
        return f"{there} is {'a file' if there.is_file() else 'no folder'}", instead
    if error.errno == errno.EINVAL:
        # The name itself is at fault, not what lies around it.
        return error.strerror or str(error), instead
    if error.errno == errno.ENOENT:
        return f"nothing can be made in {there}", instead
    place = "" if error.filename is None else f" ({error.filename})"
    return f"{error.strerror or error}{place}", f"See to {there}, or name {other}."


def nearest_there(folder: Path) -> Path:
    """*folder* itself, or the nearest one above it that is there, as an absolute path; it may be a file, or a link."""
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path(folder.anchor))
