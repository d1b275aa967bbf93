"""Match each file after with its file before: the file with the same relative path.

Rewritten files are stored relative to the common parent folder of the old files (`inputs`). So if no path matches, the
paths before are taken relative to that parent folder.

An ARC file matches a WARC file of the same name. Folders whose names begin with a dot hold unfinished work and are
skipped, as are files that are neither WARC nor ARC.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.offline.inputs import output_names
from scrapy_dedupe.warc.containers import find_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapy_dedupe.warc.sources import ReadableFile

Pair = tuple["ReadableFile | None", "ReadableFile | None"]

_ARCHIVE_NAME = re.compile(r".*\.w?arc(\.gz)?", re.IGNORECASE | re.DOTALL)
_ARC_SUFFIX = re.compile(r"\.arc((?:\.gz)?)\Z", re.IGNORECASE)


def pairs_of(before: Path, after: Path) -> list[Pair]:
    """The pairs of two files or two folders, sorted by name; None where a side has no such file.

    Raises UsageError for a file and a folder, ArchiveError if one of them does not exist.
    """
    for path in (before, after):
        if not path.exists():
            raise ArchiveError(f"{path} does not exist. Name the archive before and the archive after.")
    if before.is_dir() != after.is_dir():
        raise UsageError(
            f"{before} and {after}: one is a file and the other a folder. Name two files or two folders."
        )
    if not before.is_dir():
        return [(before, after)]
    old, new = files_below(before), files_below(after)
    if not old:
        raise UsageError(f"{before} has no WARC or ARC files.")
    if not any(_partner(name, new) in new for name in old):
        old = {below.as_posix(): old[name] for name, below in output_names(old).items()}
    pairs: list[Pair] = []
    for name, file in sorted(old.items()):
        partner = _partner(name, new)
        pairs.append((file, None if partner in old and partner != name else new.pop(partner, None)))
    return pairs + [(None, file) for _, file in sorted(new.items())]


def _partner(name: str, new: Mapping[str, Path]) -> str:
    return name if name in new else _ARC_SUFFIX.sub(r".warc\1", name)


def files_below(folder: Path) -> dict[str, Path]:
    """The WARC and ARC files below a folder, by relative path. Links to files are followed, links to folders not."""
    files: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if _ARCHIVE_NAME.fullmatch(name) and path.is_file():
                files[path.relative_to(folder).as_posix()] = path
    return files


def originals_of(places: Iterable[str]) -> list[ReadableFile]:
    """The files that ``--originals`` names: files, patterns, and folders including subfolders."""
    found: list[ReadableFile] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            below = files_below(path)
            if not below:
                raise UsageError(f"{place!r} has no WARC or ARC files.")
            found += [file for _, file in sorted(below.items())]
        else:
            found += find_files([place])
    return found
