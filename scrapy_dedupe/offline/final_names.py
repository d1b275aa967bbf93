"""The final names of new files: what must not be in their way, and that nothing changed that they were made from.

What was read of a file is copied or dropped by its place, so a file that is another one by now, or has grown, must not
be replaced, nor may the new files be said to be the whole of it.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.offline.restored_heads import is_ours
from scrapy_dedupe.tasks.state import reading, sync_folder, writing
from scrapy_dedupe.warc.files import prove_writable
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan import PlannedFile
    from scrapy_dedupe.warc.sources import ReadableFile

_ARCHIVE_NAME: Final = re.compile(r".*\.w?arc(\.gz)?", re.IGNORECASE | re.DOTALL)
_FIRST: Final = 1_000


def facts_of(names: Iterable[str], places: Places) -> list[list[object]]:
    """The files by name and place, with size and time of change; the sort of list that JSON gives back."""
    return [_fact(name, places) for name in names]


def _fact(name: str, places: Places) -> list[object]:
    place = places.file(name)
    if not isinstance(place, Path):
        return [name, str(place)]
    with reading(place):
        stat = place.stat()
    return [name, os.path.realpath(place), stat.st_size, stat.st_mtime_ns]


def check_unchanged(facts: Iterable[list[object]], places: Places, folder: Path) -> None:
    """Raise ArchiveError for the first file that is another one than when *facts* were taken; *folder* has the work."""
    for fact in facts:
        name = str(fact[0])
        if _fact(name, places) != fact:
            raise ArchiveError(
                f"{name} has changed since this work began. Remove {folder} and begin anew, with a new manifest of it."
            )


def check_in_place(files: Sequence[PlannedFile], others: Sequence[PlannedFile], places: Places) -> None:
    """Raise an error if files cannot be replaced; *others* are only read."""
    if left := [file.name for file in others if file.is_main]:
        raise UsageError(
            f"--in-place replaces all files of the manifests or none: {left[0]} is among them, and its records would not be"
            " found any more when it is its turn. Leave --files out, or write to a folder with -o."
        )
    all_files = [*files, *others]
    if len({places.identity(file.name) for file in all_files}) < len(all_files):
        raise ArchiveError(
            "One of the files is there under two names, by a link, and cannot be replaced for one alone. Leave one"
            " name out of the manifests."
        )
    found = {Path(os.path.realpath(str(places.file(file.name)))).parent for file in files}
    for folder in found:
        prove_writable(folder, "The new files")


def check_beside(
    files: Sequence[PlannedFile],
    others: Sequence[PlannedFile],
    places: Places,
    finals: Mapping[str, Path],
    *,
    replaces: bool,
) -> None:
    """Raise ArchiveError if a file is in the way of *finals*, by name, or would be a copy of itself.

    Where one file has two names, one of them written and the other only read, the written one would refer to a file
    that is not among the new ones: to itself.
    """
    read = {places.identity(file.name): file.name for file in others}
    for file in files:
        if other := read.get(places.identity(file.name)):
            raise ArchiveError(
                f"{file.name} and {other} are one file, by a link. Leave one name out of the manifests, or write both."
            )
    known = {places.identity(file.name) for file in [*files, *others]}
    for name, final in finals.items():
        if os.path.realpath(final) in known:
            raise ArchiveError(
                f"{final} is one of the files that are read. Choose another folder, or replace the files with --in-place."
            )
        check_free(name, final, replaces=replaces)


def check_free(name: str, final: Path, *, replaces: bool) -> None:
    """Raise ArchiveError if there is something that may not be replaced."""
    if final.exists() and not (replaces and final.is_file()):
        raise ArchiveError(f"{final} is there already; {name} would be written to it. --force replaces it.")


def move(new: Path, final: Path) -> None:
    """Give a new file its final name below the output folder."""
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        new.replace(final)
        sync_folder(final.parent)


def replace(new: Path, old: Path) -> None:
    """Put a file in the place of another one, with its permissions, on whichever file system that is."""
    beside = old.with_name(f".{old.name}.dedupe")
    with writing(old, beside):
        shutil.copymode(old, new)
        try:
            new.replace(old)
        except OSError:
            with new.open("rb") as source, beside.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
            shutil.copymode(old, beside)
            beside.replace(old)
            new.unlink()
        sync_folder(old.parent)


def is_replaced(new: Path, old: Path, fact: list[object]) -> bool:
    """Whether *old* has what *new* has already: on another file system the work can be cut just between the two."""
    with reading(old):
        is_as_before = [os.path.realpath(old), old.stat().st_size, old.stat().st_mtime_ns] == fact[1:]
        return not is_as_before and os.path.realpath(old) == fact[1] and filecmp.cmp(new, old, shallow=False)


def has_revisit_of_ours(file: ReadableFile) -> bool:
    """Whether a response in a file has become a revisit already."""
    with reading(file):
        return any(is_ours(record) for record in read_records(file, on_damage=lambda _: None))


def unlisted_beside(
    files: Sequence[PlannedFile], others: Sequence[PlannedFile], places: Places
) -> tuple[str, ...]:
    """WARC files in the folders of *files* that are none of the files known, as a manifest would name them.

    They may hold revisits of copies that become revisits here. At most a thousand.
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
            path = os.path.join(folder, entry)  # noqa: PTH118 - a text like those that are known
            if _ARCHIVE_NAME.fullmatch(entry) and os.path.realpath(path) not in known:
                found.append(str(PurePosixPath(name, entry)))
    return tuple(found[:_FIRST])
