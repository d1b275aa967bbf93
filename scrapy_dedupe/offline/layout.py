"""Names of new files below the output folder: relative to the common parent folder of all input files."""

from __future__ import annotations

import posixpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

WORK_FOLDER = ".dedupe"
"""The folder for unfinished work in the output folder; no output file may be in it."""


def output_names(names: Iterable[str]) -> dict[str, PurePosixPath]:
    """The path of each new file, relative to the output folder.

    If some names lead out of the working folder, or if only some are absolute, all are made absolute first. Raises
    ArchiveError if two files would have the same path.

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
                f"{found[below]} and {name} would both be written to {below}. Write them in two runs, or use one name for each"
                " file in the manifests."
            )
        if below.parts[0] == WORK_FOLDER:
            raise ArchiveError(
                f"{name} cannot be written: {WORK_FOLDER} is reserved for unfinished work. Rename the file."
            )
        found[below] = name
    return {name: below for below, name in found.items()}


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(name)).parts


def _common(all_parts: Iterable[tuple[str, ...]]) -> int:
    """The number of leading folders that all have in common."""
    folders = [parts[:-1] for parts in all_parts]
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    pairs = zip(first, last, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first), len(last)))
