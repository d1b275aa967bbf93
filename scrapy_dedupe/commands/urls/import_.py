"""``urls import FILE…``: adds the fingerprints of Scrapy's own filter, or of another job, to a filter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text
from scrapy_dedupe.crawls.places import sizes_of
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.tasks.progress import Reached
from scrapy_dedupe.urls.scrapy_file import read_requests_seen, unread_from

from .filters import FilterTarget, add_filter_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Import the fingerprints in requests.seen files of any version of Scrapy."

_JOURNAL = b"sd-"


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """``damaged_at`` is the offset in bytes from which the file is truncated or damaged and was not imported, or None."""

    file: str
    fingerprints: int
    damaged_at: int | None


@dataclass(frozen=True, slots=True)
class ImportedFingerprints:
    """Counts of imported fingerprints.

    ``again``: fingerprints that were forgotten and count as seen again. ``made``: the job had no filter, and one was
    created. ``taken_over``: fingerprints that were imported from the job's own requests.seen when it was created.
    """

    filter: str
    made: bool
    taken_over: int
    new: int
    again: int
    known: int
    files: list[ImportedFile]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filter_arguments(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a requests.seen file")


def run(place: CommandStores, opts: argparse.Namespace) -> ImportedFingerprints:
    target = FilterTarget(place, opts)
    # Check all files before anything is changed.
    for path in opts.files:
        _check(path)
    files: list[ImportedFile] = []
    with Bars(opts) as bars, target.open(create=True) as found:
        made = found.last_stop == "none"
        with bars.part("import", sizes_of(opts.files)):
            added = found.add_many(
                fingerprint for path in opts.files for fingerprint in _read(path, files, Reached(bars))
            )
    if added.damaged is not None:
        files.append(ImportedFile(str(added.damaged[0]), added.taken_over, added.damaged[1]))
    return ImportedFingerprints(
        target.name, made, added.taken_over, added.new, added.again, added.known, files
    )


def _check(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_JOURNAL))
            file.seek(0)
            if start != _JOURNAL:
                next(read_requests_seen(file), None)
    except OSError as error:
        raise ArchiveError(f"The file {path} cannot be read: {error.strerror}.") from error
    if start == _JOURNAL:
        raise UsageError(
            f"{path} is a file of this package's URL filter. Export it first: scrapy dedupe urls export."
        )


def _read(path: Path, files: list[ImportedFile], reached: Reached) -> Iterator[bytes]:
    """The fingerprints in the file. The result for the file is added to ``files`` at the end."""
    count = 0
    try:
        with path.open("rb") as file:
            for fingerprint in read_requests_seen(file):
                count += 1
                reached(file.tell())
                yield fingerprint
            damaged_at = unread_from(file)
    except OSError as error:
        raise ArchiveError(f"The file {path} cannot be read: {error.strerror}.") from error
    files.append(ImportedFile(str(path), count, damaged_at))


def text(result: ImportedFingerprints) -> str:
    sentences = [f"{counted(result.new, 'fingerprint is', 'fingerprints are')} new to {result.filter}"]
    sentences += [f"{number_text(result.known)} were known"]
    if result.again:
        sentences.append(f"{number_text(result.again)} were forgotten and count as seen again")
    lines = [", ".join(sentences) + "."]
    if result.taken_over:
        lines.append(f"{number_text(result.taken_over)} more were imported from the job's own requests.seen.")
    if result.made:
        lines.append("The job had no URL filter, so one was created.")
    return "\n".join(lines)


def caveat(result: ImportedFingerprints) -> str | None:
    damaged = [item for item in result.files if item.damaged_at is not None]
    if not damaged:
        return None
    places = ", ".join(f"{item.file} at byte {number_text(item.damaged_at or 0)}" for item in damaged)
    return f"Damaged files were imported only up to the damage: {places}."
