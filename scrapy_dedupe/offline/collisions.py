"""Compare records with the same digest byte by byte, and number their different payloads.

Each different payload of a digest has a number, the extension, from 1 in the order of (date, file, offset) of its first
record. Records with the same digest and extension have the same payload and may be deduplicated. The only record of a
digest gets extension 1 and is not read. A record gets an extension that no other record has if it must not replace
another one (it is truncated or partial, or its chunks are truncated or hold more than the payload), if it cannot be
read, or if the manifest lists it a second time. Such a record is never treated as a copy. No line is ever dropped.

No file is opened for the records of another one, and each record is read once (twice if it has more than 8 MiB), in two
passes over the files (`comparing`). The first pass stores the payload of the first record of each digest. The second pass
compares all other records with it, byte by byte, and stores the payloads that differ. Last, the stored payloads of one
digest are compared with one another, but only those of the same size and hash, so that ten thousand payloads with one weak
digest are not all compared with each other. Payloads are equal only if their bytes are.

The files in the working folder, each of which is complete if it exists: ``lines.txt``, the manifest in the order of (digest,
date, file, offset), whose lines are numbered from 0; ``others.rows``, the rows of the second pass in this order, with the
number of the first line of the digest instead of the place of its payload; and the files of the passes, in ``first/`` and
``second/``. Memory does not grow with the number of lines or the size of payloads, only with the number of different payloads
of one digest, and of payloads that are stored for one file.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.comparing import (
    ALONE,
    NO_PAYLOAD,
    SAME,
    Pass,
    row_of,
    stored_pieces,
)
from scrapy_dedupe.offline.manifest import LineWriter, read_lines
from scrapy_dedupe.offline.ordering import by_cluster, moment, sorted_rows
from scrapy_dedupe.offline.ordering import number as numbered
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import StateFolder, reading, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress

_FEW_LINES: Final = 1_000  # of one digest, which are sorted in memory


@dataclass(slots=True)
class CollisionCounts:
    """The counts of a comparison.

    ``lines``: all lines. ``digests``: digests of several lines. ``compared``: the lines of these digests.
    ``collisions``: digests of different payloads. ``alone``: lines that must not replace others.
    """

    lines: int = 0
    digests: int = 0
    compared: int = 0
    collisions: int = 0
    alone: int = 0


def number_clusters(
    sums: Path,
    output: Path,
    places: Places,
    state: StateFolder,
    *,
    faults: Faults,
    watch: Progress,
    jobs: Jobs = 1,
) -> CollisionCounts:
    """Write the manifest of ten columns for the manifest *sums*.

    Continues from the results in the state folder. Raises DamagedInput for the first fault, unless *faults* is set to
    keep going; ArchiveError if the disk is full.
    """
    counts = CollisionCounts()
    with StateFolder(state.path / "compared") as work:
        for left in work.path.glob("sorting-*"):  # by a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        resolved = resolve_collisions(
            read_lines(sums),
            places,
            faults=faults,
            watch=watch,
            jobs=jobs,
            folder=work.path,
            counts=counts,
        )
        with LineWriter(output, columns=10, force=True) as writer:
            for line in numbered(resolved, faults=faults):
                writer.write(line)
        work.remove()
    return counts


def resolve_collisions(
    lines: Iterable[ManifestLine],
    places: Places,
    *,
    faults: Faults,
    watch: Progress = NO_PROGRESS,
    jobs: Jobs = 1,
    folder: Path | None = None,
    counts: CollisionCounts | None = None,
) -> Iterator[ManifestLine]:
    """Yield the lines with their extension, in order of cluster, without their values about copies.

    The *lines* may be in any order; their extensions are ignored. The working folder is *folder* (default: one in the
    system's temporary folder). It needs space for the manifest, and for one payload of each digest that several records
    have; files that an earlier run for the same lines has left there are used. The results are added to *counts*.

    Raises DamagedInput for the first fault, unless *faults* is set to keep going; ArchiveError if the disk is full.
    """
    with (
        tempfile.TemporaryDirectory(prefix="scrapy-dedupe-")
        if folder is None
        else nullcontext(folder) as work
    ):
        comparison = _Comparison(Path(work), places, faults, watch, jobs)
        comparison.run(lines)
        with reading(work):
            yield from comparison.resolved(CollisionCounts() if counts is None else counts)


class _Comparison:
    def __init__(self, folder: Path, places: Places, faults: Faults, watch: Progress, jobs: Jobs) -> None:
        self._folder = folder
        self._places = places
        self._faults = faults
        self._watch = watch
        self._jobs = jobs
        self._lines = folder / "lines.txt"
        self._others = folder / "others.rows"
        self._first, self._second = Pass(folder / "first", places), Pass(folder / "second", places)

    def run(self, lines: Iterable[ManifestLine]) -> None:
        """Do what an earlier run has not done, up to the last result."""
        if not self._lines.exists():
            with part(self._watch, "sorting", 0), LineWriter(self._lines, columns=6) as writer:
                for line in by_cluster(map(_plain, lines), self._folder):
                    writer.write(line)
        for files, rows, title in (
            (self._first, self._first_rows, "reading payloads"),
            (self._second, self._second_rows, "comparing"),
        ):
            if not files.is_prepared:
                files.prepare(rows())
            files.run(self._faults, self._jobs, self._watch, title)

    def _first_rows(self) -> Iterator[bytes]:
        """The first record of each digest that has several. All others are written to a file."""
        with writing(self._others), whole_file.replacing(self._others, suffix=".new") as others:
            for group in self._digests():
                (first, line), *more = itertools.islice(group, 2)
                if not more:
                    continue
                yield row_of(line, first, NO_PAYLOAD)
                lines = self._unrepeated(itertools.chain([(first, line)], more, group))
                for index, line in itertools.islice(lines, 1, None):
                    others.write(row_of(line, index, str(first)))

    def _unrepeated(self, group: Iterator[tuple[int, ManifestLine]]) -> Iterator[tuple[int, ManifestLine]]:
        """The lines of one digest without records that were listed before, even by another name of their file."""
        # The same record has the same date, so only the records of one date must be remembered.
        for _, same_date in itertools.groupby(group, lambda item: moment(item[1].date)):
            seen: set[tuple[str, int]] = set()
            for index, line in same_date:
                place = self._places.identity(line.file), line.offset
                if place not in seen:
                    yield index, line
                elif not self._faults.keep_going:
                    self._faults.add(*_repeated(line))
                seen.add(place)

    def _second_rows(self) -> Iterator[bytes]:
        """All others, with the place of the first payload of their digest."""
        results = self._results(self._first)
        with writing(self._others), self._others.open("rb") as others:
            for data in others:
                *start, first, text = data.split(b"\t")
                result = results.of(int(first))
                payload = NO_PAYLOAD if result is None or result == ALONE else result
                yield b"\t".join([*start, payload.encode(), text])

    def resolved(self, counts: CollisionCounts) -> Iterator[ManifestLine]:
        """The lines with their extensions, in order of cluster."""
        results = self._results(self._first, self._second)
        for group in self._digests():
            first = list(itertools.islice(group, 2))
            if len(first) == 1:
                counts.lines += 1
                yield replace(first[0][1], extension=1)
                continue
            lines = self._extended(itertools.chain(first, group), results, counts)
            few = list(itertools.islice(lines, _FEW_LINES))
            if len(few) < _FEW_LINES:
                yield from sorted(few, key=lambda line: line.extension or 1)  # a stable sort
            else:
                yield from by_cluster(itertools.chain(few, lines), self._folder)

    def _extended(
        self, group: Iterator[tuple[int, ManifestLine]], results: _Results, counts: CollisionCounts
    ) -> Iterator[ManifestLine]:
        """The lines of one digest with their extensions, in their order."""
        payloads: dict[str, list[tuple[str, int]]] = {}  # places and extensions, by size and hash
        taken = different = 0
        for index, line in group:
            result = results.of(index)
            if result is None:
                self._faults.add(*_repeated(line))
            if result == SAME:
                extension = 1
            elif result is None or result == ALONE:
                counts.alone += 1
                extension = taken + 1
            else:
                alike = payloads.setdefault(result.split(":", 2)[2], [])
                extension = next((known for place, known in alike if self._is_same(place, result)), taken + 1)
                if extension > taken:
                    alike.append((result, extension))
                    different += 1
            taken = max(taken, extension)
            counts.lines += 1
            counts.compared += 1
            yield replace(line, extension=extension)
        counts.digests += 1
        counts.collisions += different > 1

    def _is_same(self, place: str, other: str) -> bool:
        return place == other or are_same(
            stored_pieces(self._folder, place), stored_pieces(self._folder, other)
        )

    def _digests(self) -> Iterator[Iterator[tuple[int, ManifestLine]]]:
        """The numbered lines of each digest. Iterate the lines of a digest before requesting the next one."""
        lines = enumerate(read_lines(self._lines))
        return (group for _, group in itertools.groupby(lines, lambda item: item[1].digest))

    def _results(self, *passes: Pass) -> _Results:
        rows = itertools.chain.from_iterable(files.results() for files in passes)
        return _Results(sorted_rows(rows, self._folder))


class _Results:
    """The results of passes, which are requested in the order of the lines."""

    def __init__(self, rows: Iterator[bytes]) -> None:
        self._rows = rows
        self._index, self._result = -1, ALONE

    def of(self, index: int) -> str | None:
        """The result of a line; None for a line that is in no pass."""
        while self._index < index and (row := next(self._rows, None)) is not None:
            text, _, result = row[:-1].decode().partition("\t")
            self._index, self._result = int(text), result
        return self._result if self._index == index else None


def _plain(line: ManifestLine) -> ManifestLine:
    """The line with six columns."""
    if line.columns == 6:
        return line
    return replace(line, extension=None, copy=None, refers_to_uri=None, refers_to_date=None)


def _repeated(line: ManifestLine) -> tuple[str, str]:
    """The place and the reason of a fault."""
    return f"{line.file}, offset {line.offset}", "the manifest lists this record twice"
