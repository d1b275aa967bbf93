"""Compare records with the same digest byte by byte, and number their different payloads.

Each different payload of a digest has a number, the extension, from 1 in the order of (date, file, offset) of its first
record. Records with the same digest and extension have the same payload and may be deduplicated. A record whose digest
no other record has gets extension 1 and is not read. A record gets an extension that no other record has if it must not
replace another one (it is truncated or partial, or its chunks are truncated or hold more than the payload), if it cannot
be read, or if the manifest lists it a second time. Such a record is never treated as a copy. No line is ever dropped.

Each record is read once (twice if it has more than 8 MiB), file by file, in two passes over the files (`comparing`). The
first pass stores the payload of the first record of each digest. The second pass compares all other records with it, byte
by byte, and stores the payloads that differ. Last, the stored payloads of one digest are compared with one another, but
only if they have the same size and hash: otherwise ten thousand payloads with one weak digest would all be compared with
each other. Payloads are equal only if their bytes are.

The files in the working folder, each of which is complete if it exists:

``lines.txt``
    The manifest in the order of (digest, date, file, offset). Its lines are numbered from 0.
``first/``, ``second/``
    The two passes. ``rows`` has the records to read, in the order of files and offsets, and ``tasks.json`` the tasks, one for
    each file: its name, and the start and size of its rows in bytes. The results are files of `comparing` and `tasks.work`.

Memory does not grow with the number of lines or the size of payloads. It grows only with the number of different payloads
of one digest.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.comparing import (
    ALONE,
    NO_PAYLOAD,
    SAME,
    ComparisonTask,
    read_payloads,
    row_of,
    stored_pieces,
)
from scrapy_dedupe.offline.manifest import read_lines, write_text
from scrapy_dedupe.offline.manifest_lines import ManifestLine, file_of, parse_text_line
from scrapy_dedupe.offline.ordering import by_cluster, moment, sorted_rows
from scrapy_dedupe.offline.ordering import number as numbered
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import StateFolder, reading, writing
from scrapy_dedupe.tasks.work import WorkFolder
from scrapy_dedupe.warc.zip_members import StoredMember

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress

    _Line: TypeAlias = tuple[int, bytes, str | None]
    """The number of a line, its bytes, and its result; None: it is in no pass. Most lines need not be parsed."""
    _ParsedLine: TypeAlias = tuple[int, ManifestLine, str | None]

_ROWS: Final = "rows"
_TASKS: Final = "tasks.json"
_FEW_LINES: Final = 1_000  # up to this number, the lines of one digest are sorted in memory


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
        resolved = resolve_collisions(
            read_lines(sums),
            places,
            faults=faults,
            watch=watch,
            jobs=jobs,
            folder=work.path,
            counts=counts,
        )
        write_text(output, numbered(resolved, faults=faults), columns=10)
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
        self._work = WorkFolder(folder)
        self._places = places
        self._identity = lru_cache(4_096)(places.identity)
        self._faults = faults
        self._watch = watch
        self._jobs = jobs
        self._lines = folder / "lines.txt"

    def run(self, lines: Iterable[ManifestLine]) -> None:
        """Do what an earlier run has not done, up to the last result."""
        if not self._lines.exists():
            with part(self._watch, "sorting", 0):
                write_text(
                    self._lines,
                    by_cluster((ManifestLine(*line[:6]) for line in lines), self._folder),
                    columns=6,
                )
        self._run_pass("first", "reading payloads", ())
        self._run_pass("second", "comparing", ("first",))

    def _run_pass(self, name: str, title: str, before: tuple[str, ...]) -> None:
        if not (self._folder / name / _TASKS).exists():
            self._plan(name, self._rows(*before))
        self._work.run(read_payloads, self._tasks(name), self._jobs, self._watch, title, self._faults)

    def _rows(self, *passes: str) -> Iterator[bytes]:
        """The rows of the first record of each repeated digest; after the first pass, those of all other records."""
        for is_repeated, group in self._digests(*passes):
            payload = None
            for index, line, result in self._unrepeated(group) if is_repeated else ():
                if (payload is None) != bool(passes):
                    yield row_of(line, index, payload or NO_PAYLOAD)
                if payload is None:
                    payload = NO_PAYLOAD if result is None or result == ALONE else result

    def _unrepeated(self, group: Iterable[_Line]) -> Iterator[_ParsedLine]:
        """The lines of one digest, except records that were listed before, even under another name of their file."""
        # The same record has the same date, so only the records of one date must be remembered.
        lines = ((index, _parsed(data), result) for index, data, result in group)
        for _, same_date in itertools.groupby(lines, lambda item: moment(item[1].date)):
            seen: set[tuple[str, int]] = set()
            for index, line, result in same_date:
                place = self._identity(line.file), line.offset
                if place not in seen:
                    yield index, line, result
                elif not self._faults.keep_going:
                    self._faults.add(*_repeated(line))
                seen.add(place)

    def _plan(self, name: str, rows: Iterable[bytes]) -> None:
        """Write the rows of a pass, and a list of its tasks."""
        tasks: list[tuple[str, int, int]] = []
        folder = self._folder / name
        with writing(folder):
            folder.mkdir(exist_ok=True)
            with whole_file.replacing(folder / _ROWS, suffix=".new") as file:
                ordered = sorted_rows(rows, self._folder)
                for _, group in itertools.groupby(ordered, lambda row: row.partition(b"\t")[0]):
                    start = file.tell()
                    for row in group:
                        file.write(row)
                    text = row.rpartition(b"\t")[2].partition(b" ")[0].decode()
                    tasks.append((file_of(text), start, file.tell() - start))
        self._work.write_json(f"{name}/{_TASKS}", tasks)

    def _tasks(self, name: str) -> list[ComparisonTask]:
        folder = self._folder / name
        return [
            ComparisonTask(
                file, StoredMember(folder / _ROWS, file, *part), folder / str(number), self._places.only(file)
            )
            for number, (file, *part) in enumerate(self._work.read_json(f"{name}/{_TASKS}"))
        ]

    def resolved(self, counts: CollisionCounts) -> Iterator[ManifestLine]:
        """The lines with their extensions, in order of cluster."""
        for is_repeated, group in self._digests("first", "second"):
            if not is_repeated:
                for _, data, _ in group:
                    counts.lines += 1
                    yield _parsed(data)._replace(extension=1)
                continue
            lines = self._extended(group, counts)
            few = list(itertools.islice(lines, _FEW_LINES))
            if len(few) < _FEW_LINES:
                yield from sorted(few, key=lambda line: line.extension or 1)  # a stable sort
            else:
                yield from by_cluster(itertools.chain(few, lines), self._folder)

    def _extended(self, group: Iterable[_Line], counts: CollisionCounts) -> Iterator[ManifestLine]:
        """The lines of one digest with their extensions, in their order."""
        payloads: dict[str, list[tuple[str, int]]] = {}  # places and extensions, by size and hash
        taken = different = 0
        for _, data, result in group:
            line = _parsed(data)
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
            yield line._replace(extension=extension)
        counts.digests += 1
        counts.collisions += different > 1

    def _is_same(self, place: str, other: str) -> bool:
        return are_same(stored_pieces(self._folder, place), stored_pieces(self._folder, other))

    def _digests(self, *passes: str) -> Iterator[tuple[bool, Iterable[_Line]]]:
        """Whether each digest has several lines, and its lines, with their results in these passes.

        Iterate the lines of a digest before requesting the next one.
        """

        def rows() -> Iterator[bytes]:
            for task in itertools.chain.from_iterable(map(self._tasks, passes)):
                with task.outputs[1].open("rb") as file:
                    yield from file

        def all_lines() -> Iterator[_Line]:
            results = sorted_rows(rows(), self._folder)
            row = next(results, b"")
            with self._lines.open("rb") as file:
                for index, data in enumerate(file):
                    result = None
                    if row.startswith(b"%012d\t" % index):
                        result = row[:-1].decode().partition("\t")[2]
                        row = next(results, b"")
                    yield index, data, result

        # The digest is the last column.
        for _, lines in itertools.groupby(all_lines(), lambda item: item[1].rpartition(b" ")[2]):
            group = iter(lines)
            first = list(itertools.islice(group, 2))
            yield len(first) > 1, itertools.chain(first, group)


def _parsed(data: bytes) -> ManifestLine:
    return parse_text_line(data[:-1].decode())


def _repeated(line: ManifestLine) -> tuple[str, str]:
    """The place and the reason of a fault."""
    return f"{line.file}, offset {line.offset}", "the manifest lists this record twice"
