"""The extensions that observe a crawl: the report, the duplicates log, metrics, the passage index; and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.appended_lines import is_pipe
from scrapy_dedupe.files.folders import folder_fault, try_folder

if TYPE_CHECKING:
    from pathlib import Path


def checked_file(
    path: Path, name: str, setting: str, *, is_appended: bool = False, is_trial: bool = False
) -> Path:
    """Return *path*; its links are resolved if the file is replaced. Raises SettingError if it cannot be written.

    Creates the folder, and a file that is appended to, except with *is_trial*.
    """
    other = "another file, or none" if is_appended else "another file"
    found = path
    try:
        if not is_appended:
            found = whole_file.file_at(path)
            try_folder(found.parent, is_trial=is_trial)
            return found
        is_there = path.exists()
        if not is_there:
            try_folder(path.parent, b"", is_trial=is_trial)
        # Opening a pipe would block until it has a reader, which may start later.
        if not is_pipe(path) and (is_there or not is_trial):
            with path.open("ab"):
                pass
    except (OSError, ValueError) as error:
        reason, remedy = str(error), f"Name {other}."
        if isinstance(error, OSError):
            reason, remedy = folder_fault(found.parent, error, other)
        raise SettingError(f"The {name} {path} ({setting}) cannot be written: {reason}. {remedy}") from error
    return path
