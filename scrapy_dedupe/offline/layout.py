"""Where the new files lie below the output folder: as the old ones lie below the folder that all have in common."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

WORK_FOLDER = ".dedupe"
"""The folder below the output folder that holds the work until it is done; no file may lie in it."""


def output_names(names: Iterable[str]) -> dict[str, PurePosixPath]:
    """Where each of the files goes, relative to the output folder.

    Raises ArchiveError if two would be one file. Where some names go up from the working folder, or some are absolute
    and some not, all are taken as seen from the root.

    >>> output_names(["in/2019/a.warc.gz", "in/2020/a.warc.gz"])["in/2019/a.warc.gz"]
    PurePosixPath('2019/a.warc.gz')
    """
    names = list(dict.fromkeys(names))
    parts = {name: _parts(name) for name in names}
    common = _common(parts.values())
    if any(".." in steps[common:] or steps[common] == "/" for steps in parts.values()):
        parts = {name: _parts(name if is_url(name) else Path(name).absolute().as_posix()) for name in names}
        common = _common(parts.values())
    found: dict[PurePosixPath, str] = {}
    for name, steps in parts.items():
        below = PurePosixPath(*[step for step in steps[common:] if step != "/"])
        if below in found:
            raise ArchiveError(
                f"{found[below]} and {name} would both be written to {below}. Write them in two runs, or give every file one"
                " name in the manifests."
            )
        if below.parts[0] == WORK_FOLDER:
            raise ArchiveError(
                f"{name} cannot be written: {WORK_FOLDER} holds the work in progress. Rename it."
            )
        found[below] = name
    return {name: below for below, name in found.items()}


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(name)).parts


def _common(all_parts: Iterable[tuple[str, ...]]) -> int:
    """How many folders all of them have in common."""
    folders = [parts[:-1] for parts in all_parts]
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    pairs = zip(first, last, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first), len(last)))
