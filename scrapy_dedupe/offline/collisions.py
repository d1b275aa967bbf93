"""Compare records with the same digest byte by byte, and number their different payloads.

Each different payload of a digest has a number, the extension, from 1 in the order of (date, file, offset) of its first
record. Records with the same digest and extension have the same payload and may be deduplicated. A record whose digest
no other record has gets extension 1 and is not read. A record gets an extension that no other record has if it must not
replace another one (it is truncated or partial, or its chunks are truncated or hold more than the payload), if it cannot
be read, or if the manifest lists it a second time. Such a record is never treated as a copy. No line is ever dropped.

Each record is read once (twice if it has more than 8 MiB), file by file, in two passes over the files. The
first pass stores the payload of the first record of each digest. The second pass compares all other records with it, byte
by byte, and stores the payloads that differ. Last, the stored payloads of one digest are compared with one another, but
only if they have the same size and hash: otherwise ten thousand payloads with one weak digest would all be compared with
each other. Payloads are equal only if their bytes are.

The files in the working folder, each of which is complete if it exists:

``lines.txt``
    The manifest in the order of (digest, date, file, offset). Its lines are numbered from 0.
``first/``, ``second/``
    The two passes. ``rows`` has a row for each record to read, in the order of files and offsets: sort key, number of the line,
    place of the payload to compare with, and the line, separated by tabs. ``tasks.json`` has the tasks, one for each file: its
    name, and the start and size of its rows in bytes. Task N writes ``N.payloads``, the stored payloads without separators and
    each once, ``N.results``, the number and the result of each line, separated by a tab, and the proof ``N.json``
    (`tasks.work`).

The place of a payload is ``FOLDER/N:START:SIZE:HASH``, with its BLAKE2b hash (RFC 7693), or ``-`` for none. A result is ``same``,
``alone`` (the record must not replace another one), or the place of the stored payload.

Memory does not grow with the number of lines or the size of payloads. It grows only with the number of different payloads
of one digest, and with the number of payloads that are stored for one file.
"""

from __future__ import annotations

import errno
import io
import itertools
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.manifest import read_lines, write_text
from scrapy_dedupe.offline.manifest_lines import ManifestLine, file_of, parse_text_line, text_line
from scrapy_dedupe.offline.ordering import by_cluster, place_key, sorted_rows
from scrapy_dedupe.offline.ordering import number as numbered
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.tasks.state import StateFolder, reading, writing
from scrapy_dedupe.tasks.work import WorkFolder
from scrapy_dedupe.warc.bodies import decoded_pieces, has_more_than_payload, payload_pieces
from scrapy_dedupe.warc.codings import Undecodable
from scrapy_dedupe.warc.dates import date_key
from scrapy_dedupe.warc.windows import are_same
from scrapy_dedupe.warc.zip_members import StoredMember

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.work import Advance
    from scrapy_dedupe.warc.reading import StoredRecord

    _Line: TypeAlias = tuple[int, ManifestLine, str | None]
    """The number of a line, the line, and its result; None: it is in no pass."""

_NO_PAYLOAD: Final = "-"
_SAME: Final = "same"
_ALONE: Final = "alone"

_PIECE_BYTES: Final = 1 << 20
_ROWS: Final = "rows"
_TASKS: Final = "tasks.json"


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
    system's temporary folder). It needs space for the manifest, for one payload of each digest that several records
    have, and for the payloads that differ from it; files that an earlier run for the same lines has left there are
    used. The results are added to *counts*.

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
        for name, title, before in (("first", "reading payloads", ()), ("second", "comparing", ("first",))):
            if not (self._folder / name / _TASKS).exists():
                self._plan(name, self._rows(*before))
            self._work.run(_read_payloads, self._tasks(name), self._jobs, self._watch, title, self._faults)

    def _rows(self, *passes: str) -> Iterator[bytes]:
        """The rows of the first record of each repeated digest; after the first pass, those of all other records."""
        for is_repeated, group in self._digests(*passes):
            payload = None
            for index, line, result in self._unrepeated(group) if is_repeated else ():
                if (payload is None) != bool(passes):
                    text = f"\t{index:012}\t{payload or _NO_PAYLOAD}\t{text_line(line, 6)}\n"
                    yield place_key(line) + text.encode()
                if payload is None:
                    payload = _NO_PAYLOAD if result is None or result == _ALONE else result

    def _unrepeated(self, group: Iterator[_Line]) -> Iterator[_Line]:
        """The lines of one digest, except records that were listed before, even under another name of their file."""
        # The same record has the same date, so only the records of one date must be remembered.
        for _, same_date in itertools.groupby(group, lambda item: date_key(item[1].date)):
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

    def _tasks(self, name: str) -> list[_ComparisonTask]:
        folder = self._folder / name
        return [
            _ComparisonTask(
                file, StoredMember(folder / _ROWS, file, *part), folder / str(number), self._places.only(file)
            )
            for number, (file, *part) in enumerate(self._work.read_json(f"{name}/{_TASKS}"))
        ]

    def resolved(self, counts: CollisionCounts) -> Iterator[ManifestLine]:
        """The lines with their extensions, in order of cluster."""
        for is_repeated, group in self._digests("first", "second"):
            if is_repeated:
                yield from by_cluster(self._extended(group, counts), self._folder)
            else:
                counts.lines += 1
                yield next(group)[1]._replace(extension=1)

    def _extended(self, group: Iterator[_Line], counts: CollisionCounts) -> Iterator[ManifestLine]:
        """The lines of one digest with their extensions, in their order."""
        payloads: dict[str, list[tuple[str, int]]] = {}  # places and extensions, by size and hash
        taken = different = 0
        for _, line, result in group:
            if result is None:
                self._faults.add(*_repeated(line))
            if result == _SAME:
                extension = 1
            elif result is None or result == _ALONE:
                counts.alone += 1
                extension = taken + 1
            else:
                alike = payloads.setdefault(result.split(":", 2)[2], [])
                extension = next(
                    (known for place, known in alike if self._are_same(place, result)), taken + 1
                )
                if extension > taken:
                    alike.append((result, extension))
                    different += 1
            taken = max(taken, extension)
            counts.lines += 1
            counts.compared += 1
            yield line._replace(extension=extension)
        counts.digests += 1
        counts.collisions += different > 1

    def _are_same(self, place: str, other: str) -> bool:
        return place == other or are_same(
            _stored_pieces(self._folder, place), _stored_pieces(self._folder, other)
        )

    def _digests(self, *passes: str) -> Iterator[tuple[bool, Iterator[_Line]]]:
        """Whether each digest has several lines, and its lines, with their results in these passes.

        Iterate the lines of a digest before requesting the next one.
        """

        def rows() -> Iterator[bytes]:
            for task in itertools.chain.from_iterable(map(self._tasks, passes)):
                with task.outputs[1].open("rb") as file:
                    yield from file

        def lines() -> Iterator[tuple[int, bytes, str | None]]:
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
        for _, same_digest in itertools.groupby(lines(), lambda item: item[1].rpartition(b" ")[2]):
            left = iter(same_digest)
            first = list(itertools.islice(left, 2))
            group = itertools.chain(first, left)
            # Most lines are in no pass, so they are parsed only if they are needed.
            yield (
                len(first) > 1,
                ((index, parse_text_line(data[:-1].decode()), result) for index, data, result in group),
            )


def _repeated(line: ManifestLine) -> tuple[str, str]:
    """The place and the reason of a fault."""
    return f"{line.file}, offset {line.offset}", "the manifest lists this record twice"


@dataclass(frozen=True, slots=True)
class _ComparisonTask:
    """The records of the file *name*, for `WorkFolder.run`; *file* has their rows."""

    name: str
    file: StoredMember
    path: Path
    places: Places
    depends_on: object = None

    @property
    def outputs(self) -> tuple[Path, Path]:
        """The files of payloads and results."""
        return self.path.with_suffix(".payloads"), self.path.with_suffix(".results")


def _read_payloads(task: _ComparisonTask, faults: Faults, advance: Advance) -> None:
    """Read the records of one file, and write their results."""
    payloads, results = task.outputs
    with (
        writing(results),
        whole_file.replacing(payloads, suffix=".new") as stored,
        whole_file.replacing(results, suffix=".new") as table,
        task.file.open("rb") as rows,
        task.places.records(task.name) as record_of,
    ):
        known: dict[str, list[int]] = {}
        for row in rows:
            _, _, number, payload, text = row[:-1].decode().split("\t")
            result = _result(task, parse_text_line(text), payload, record_of, stored, known, faults)
            table.write(f"{number}\t{result}\n".encode())
            advance(len(row))


def _result(
    task: _ComparisonTask,
    line: ManifestLine,
    payload: str,
    record_of: Callable[[ManifestLine], StoredRecord],
    stored: IO[bytes],
    known: dict[str, list[int]],
    faults: Faults,
) -> str:
    """The result of a line. *known*: the starts of the payloads in *stored*, by size and hash."""
    place = f"{line.file}, offset {line.offset}"
    try:
        record = record_of(line)
        # Chunks that hold more than the payload would be lost with the record. A truncated body of chunks may have no
        # payload at all.
        if record.type == "revisit" or not record.is_whole or has_more_than_payload(record):
            return _ALONE
        pieces_of = decoded_pieces if line.is_decoded else payload_pieces
        folder = task.path.parent
        if payload != _NO_PAYLOAD and are_same(pieces_of(record), _stored_pieces(folder.parent, payload)):
            return _SAME
        start, hasher = stored.tell(), blake2b(digest_size=32)
        for piece in pieces_of(record):
            stored.write(piece)
            hasher.update(piece)
        size = stored.tell() - start
        alike = known.setdefault(f"{size}:{hasher.hexdigest()}", [])
        if alike:
            stored.flush()
        for same in alike:
            if are_same(_pieces(stored.name, same, size), _pieces(stored.name, start, size)):
                stored.seek(start)
                stored.truncate()
                start = same
                break
        else:
            alike.append(start)
        return f"{folder.name}/{task.path.name}:{start}:{size}:{hasher.hexdigest()}"
    except Undecodable as error:
        faults.add(place, f"the payload cannot be decoded: {error}")
    except (DamagedInput, ArchiveError) as error:
        # Leave out the place at the start of the error if it is the place of this line.
        before, _, reason = str(error).partition(f", offset {line.offset}: ")
        faults.add(place, reason if reason and before.endswith(line.file) else str(error))
    return _ALONE


def _stored_pieces(folder: Path, place: str) -> Iterator[bytes]:
    """The payload at a place, in pieces; *folder* is the parent of that of the task. Raises OSError."""
    name, start, size, _ = place.split(":")
    return _pieces(f"{folder}/{name}.payloads", int(start), int(size))


def _pieces(path: str, start: int, size: int) -> Iterator[bytes]:
    # Creating a Path takes as long as reading a payload of usual size.
    with io.FileIO(path) as file:
        file.seek(start)
        while size:
            piece = file.read(min(size, _PIECE_BYTES))
            if not piece:
                raise OSError(errno.EIO, f"{path} is too short")
            yield piece
            size -= len(piece)
