"""Final names of new files: check that nothing blocks them and that the source files did not change.

Records are copied or dropped by their offsets, so a source file that has been replaced or has grown must not be
overwritten, and the new files must not be treated as its complete copy.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.offline.restored_records import is_own_revisit
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.files import prove_writable
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.warc.sources import ReadableFile

_ARCHIVE_NAME: Final = re.compile(r".*\.w?arc(\.gz)?", re.IGNORECASE | re.DOTALL)
_FIRST: Final = 1_000


def facts_of(names: Iterable[str], places: Places) -> list[list[object]]:
    """Name, path, size, modification time and inode of each file, as a list that JSON can store."""
    return [_fact(name, places) for name in names]


def _fact(name: str, places: Places) -> list[object]:
    place = places.file(name)
    if not isinstance(place, Path):
        return [name, str(place)]
    with reading(place):
        stat = place.stat()
    return [name, os.path.realpath(place), stat.st_size, stat.st_mtime_ns, stat.st_ino]


def check_unchanged(facts: Iterable[list[object]], places: Places, folder: Path) -> None:
    """Raise ArchiveError for the first file that has changed since *facts* were taken; *folder* is the work folder."""
    for fact in facts:
        name = str(fact[0])
        if _fact(name, places) != fact:
            raise ArchiveError(
                f"{name} has changed since this work began. Remove {folder} and start again with a new manifest of it."
            )


def check_in_place(files: Sequence[PlannedFile], others: Sequence[PlannedFile], places: Places) -> None:
    """Raise UsageError or ArchiveError if files cannot be replaced; *others* are only read."""
    if left := [file.name for file in others if file.is_main]:
        raise UsageError(
            f"--in-place must replace all files of the manifests: {left[0]} is in them but not selected, and its records"
            " could not be found afterwards. Leave --files out, or write to a folder with -o."
        )
    all_files = [*files, *others]
    if len({places.identity(file.name) for file in all_files}) < len(all_files):
        raise ArchiveError(
            "One of the files has two names, by a link, and cannot be replaced under only one of them. Remove one name"
            " from the manifests."
        )
    found = {Path(os.path.realpath(str(places.file(file.name)))).parent for file in files}
    for folder in found:
        prove_writable(folder, "The new files")


def check_outputs(
    files: Sequence[PlannedFile],
    others: Sequence[PlannedFile],
    places: Places,
    finals: Mapping[str, Path],
    *,
    replaces: bool,
) -> None:
    """Raise ArchiveError if a file blocks one of *finals* (by name), or would be a copy of itself.

    If one file has two names, one of them rewritten and the other only read, the rewritten file would refer to itself,
    under a name that is not in the new archive.
    """
    read = {places.identity(file.name): file.name for file in others}
    for file in files:
        if other := read.get(places.identity(file.name)):
            raise ArchiveError(
                f"{file.name} and {other} are the same file, by a link. Remove one name from the manifests, or write both."
            )
    known = {places.identity(file.name) for file in [*files, *others]}
    for name, final in finals.items():
        if os.path.realpath(final) in known:
            raise ArchiveError(
                f"{final} is one of the files to be read. Choose another folder, or replace the files with --in-place."
            )
        check_free(name, final, replaces=replaces)


def check_free(name: str, final: Path, *, replaces: bool) -> None:
    """Raise ArchiveError if *final* exists and must not be replaced."""
    if final.exists() and not (replaces and final.is_file()):
        raise ArchiveError(
            f"{final} already exists; {name} would be written to it. Use --force to replace it."
        )


def move(new: Path, final: Path) -> None:
    """Move a new file to its final name in the output folder."""
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        whole_file.put_in_place(new, final)


def replace(new: Path, old: Path) -> None:
    """Replace *old* with *new*, keeping its permissions. The two may be on different file systems."""
    with writing(old):
        shutil.copymode(old, new)
        try:
            whole_file.put_in_place(new, old, durable=False)
        except OSError:
            with (
                whole_file.replacing(old, suffix=".dedupe", is_hidden=True) as target,
                new.open("rb") as source,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
                shutil.copymode(old, target.name)
            new.unlink()
        else:
            sync_folder(old.parent)


def is_replaced(new: Path, old: Path, fact: list[object]) -> bool:
    """Whether *old* has already been replaced: across file systems, a run can be killed before it removes *new*."""
    with reading(old):
        stat, path = old.stat(), os.path.realpath(old)
        is_as_before = [path, stat.st_size, stat.st_mtime_ns, stat.st_ino] == fact[1:]
        return not is_as_before and path == fact[1] and filecmp.cmp(new, old, shallow=False)


def has_own_revisit(file: ReadableFile) -> bool:
    """Whether a file has a revisit that an earlier run made from a response."""
    with reading(file):
        return any(is_own_revisit(record) for record in read_records(file, on_damage=lambda _: None))


def unlisted_files(
    files: Sequence[PlannedFile], others: Sequence[PlannedFile], places: Places
) -> tuple[str, ...]:
    """WARC files in the folders of *files* that are not among the known files, named as in a manifest.

    They may hold revisits of copies that become revisits. At most 1,000 are returned.
    """
    known = {places.identity(file.name) for file in [*files, *others]}
    folders: dict[str, str] = {}
    for file in files:
        place = places.file(file.name)
        if isinstance(place, Path):
            folders.setdefault(os.path.realpath(place.parent), str(PurePosixPath(file.name).parent))
    found = []
    for folder, name in folders.items():
        with reading(folder):
            entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
        for entry in entries:
            path = os.path.join(folder, entry)  # noqa: PTH118 - compared with the known names as text
            if _ARCHIVE_NAME.fullmatch(entry) and os.path.realpath(path) not in known:
                found.append(str(PurePosixPath(name, entry)))
    return tuple(found[:_FIRST])
