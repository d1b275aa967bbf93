"""Folders: whether files can be written in them, why not, and how to make their names durable.

`folder_fault` explains an error of the operating system with a folder. The other functions raise OSError.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make created and renamed files in the folder durable, if the system and the file system support that."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system cannot sync folders
            raise
    finally:
        os.close(fd)


def try_folder(folder: Path, data: bytes = b"x", *, is_trial: bool = False) -> None:
    """Create *folder*; raise OSError if *data* cannot be written to a new file in it and read back. No file remains there.

    With *is_trial* nothing is created; the nearest existing parent is tried. Without data, only the creation of a file is
    tried, which may still succeed on a full disk.
    """
    if is_trial:
        folder = nearest_there(folder, follow_links=True)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(data)
        file.seek(0)
        if file.read() != data:
            raise OSError(errno.EIO, "a file was not read back as written", str(folder))


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


def job_fault(jobdir: Path, error: OSError, folder: Path | None = None) -> str:
    """The message for an *error* in the folder of a job, or in *folder* inside it."""
    reason, remedy = folder_fault(folder or jobdir, error, "another folder in JOBDIR")
    return f"The job folder {jobdir} (JOBDIR) cannot be used: {reason}. {remedy}"


def nearest_there(folder: Path, *, follow_links: bool = False) -> Path:
    """*folder* itself, or its nearest existing parent, as an absolute path; may be a file.

    A broken link counts as existing, except with *follow_links*.
    """
    # Path.exists raises PermissionError if a parent folder is not accessible.
    is_there = os.path.exists if follow_links else os.path.lexists
    folder = folder.absolute()
    return next((path for path in (folder, *folder.parents) if is_there(path)), Path(folder.anchor))
