"""Passes over the files of a manifest, which read payloads and compare them with stored ones, byte by byte.

A pass has one task per file, which reads records in the order of their offsets. A payload is compared with one that an
earlier pass has stored on disk; a payload that differs, or that has nothing to be compared with, is stored too. The payloads
that one task stores are different: if size and BLAKE2b hash (RFC 7693) are equal, their bytes are compared.

The files of a pass, each of which is complete if it exists: ``rows`` has the records in the order of files and offsets: sort
key, number of the line, place of the payload to compare with, and the line. ``tasks.json`` has the tasks: file, range of
``rows``, and size of the records. Task N writes ``N.payloads`` (payloads, one after the other), ``N.results`` (number of the
line, and its result) and ``N.json`` (the number of
faults, and the first of them), which proves that it is done.

The place of a payload is ``PASS/TASK:START:SIZE:HASH``, or ``-`` for none. A result is ``same``, ``alone`` (the record must
not replace another one), or the place of the stored payload. Columns are separated by tabs.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.manifest_lines import file_of, parse_text_line, text_line
from scrapy_dedupe.offline.ordering import place_key, sorted_rows
from scrapy_dedupe.offline.windows import are_same
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_watched
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import write_whole, writing
from scrapy_dedupe.warc.bodies import decoded_pieces, has_more_than_payload, payload_pieces
from scrapy_dedupe.warc.codings import Undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.manifest_lines import ManifestLine
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord

NO_PAYLOAD: Final = "-"
SAME: Final = "same"
ALONE: Final = "alone"

_PIECE_BYTES: Final = 1 << 20
_ROWS: Final = "rows"


def row_of(line: ManifestLine, number: int, payload: str) -> bytes:
    """The row of a record to read: line *number*, whose payload is compared with the one at the place *payload*."""
    return place_key(line) + f"\t{number:012}\t{payload}\t{text_line(line, 6)}\n".encode()


@dataclass(frozen=True, slots=True)
class ComparisonTask:
    """The records of one file: the rows in the bytes from *start* to *end* of the rows in *folder*."""

    folder: Path
    places: Places
    number: int
    name: str
    start: int
    end: int
    size_bytes: int

    def rows(self) -> Iterator[tuple[str, str, ManifestLine]]:
        """The number of each line, the place of the payload to compare with, and the line."""
        with (self.folder / _ROWS).open("rb") as file:
            file.seek(self.start)
            while file.tell() < self.end:
                _, _, number, payload, text = file.readline()[:-1].decode().split("\t")
                yield number, payload, parse_text_line(text)

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.number}.{kind}"


class Pass:
    """A pass over the files of a manifest, in a folder of its own."""

    def __init__(self, folder: Path, places: Places) -> None:
        self._folder = folder
        self._places = places
        self._plan = folder / "tasks.json"

    @property
    def is_prepared(self) -> bool:
        return self._plan.exists()

    def prepare(self, rows: Iterable[bytes]) -> None:
        """Write the rows (`row_of`) in the order of files and offsets, and plan a task for each file."""
        tasks: list[tuple[str, int, int, int]] = []
        with writing(self._folder):
            self._folder.mkdir(exist_ok=True)
            with whole_file.replacing(self._folder / _ROWS, suffix=".new") as file:
                ordered = sorted_rows(rows, self._folder.parent)
                for _, group in itertools.groupby(ordered, lambda row: row.partition(b"\t")[0]):
                    start, size_bytes = file.tell(), 0
                    for row in group:
                        file.write(row)
                        name, _, length, _ = row.rpartition(b"\t")[2].split(b" ", 3)
                        size_bytes += int(length)
                    tasks.append((file_of(name.decode()), start, file.tell(), size_bytes))
            whole_file.replace(self._plan, json.dumps(tasks).encode(), suffix=".new")

    def run(self, faults: Faults, jobs: Jobs, watch: Progress, title: str) -> None:
        """Run the tasks that have no results yet, and add the faults of all of them to *faults*."""
        tasks = self._tasks()
        left = [task for task in tasks if not task.file("json").exists()]
        function = partial(_read_payloads, keep_going=faults.keep_going)
        with part(watch, title, sum(task.size_bytes for task in left)):
            for _ in run_watched(function, left, jobs, watch, attrgetter("size_bytes")):
                pass
        for task in tasks:
            count, first = json.loads(task.file("json").read_bytes())
            faults.replay(count, [Fault(*fault) for fault in first])

    def results(self) -> Iterator[bytes]:
        """The results of all tasks, as rows that begin with the number of the line."""
        for task in self._tasks():
            with task.file("results").open("rb") as file:
                yield from file

    def _tasks(self) -> list[ComparisonTask]:
        planned = json.loads(self._plan.read_bytes())
        return [
            ComparisonTask(self._folder, self._places.only(name), number, name, *values)
            for number, (name, *values) in enumerate(planned)
        ]


def _read_payloads(
    task: ComparisonTask,
    *,
    keep_going: bool,
    advance: Callable[[int], None] = lambda size_bytes: None,
) -> None:
    """Read the records of one file, and write their results."""
    faults = Faults(keep_going=keep_going)
    payloads, results = task.file("payloads"), task.file("results")
    with (
        writing(results),
        whole_file.replacing_from(payloads, suffix=".new") as temporary,
        temporary.open("w+b") as file,
        whole_file.replacing(results, suffix=".new") as table,
        task.places.records(task.name) as record_of,
    ):
        stored = _StoredPayloads(file, f"{task.folder.name}/{task.number}")
        for number, payload, line in task.rows():
            result = _result(line, payload, record_of, stored, task.folder.parent, faults)
            table.write(f"{number}\t{result}\n".encode())
            advance(line.length)
    first = [(fault.place, fault.reason) for fault in faults.first]
    write_whole(task.file("json"), json.dumps([faults.count, first]).encode())


def _result(
    line: ManifestLine,
    payload: str,
    record_of: Callable[[ManifestLine], StoredRecord],
    stored: _StoredPayloads,
    folder: Path,
    faults: Faults,
) -> str:
    place = f"{line.file}, offset {line.offset}"
    try:
        record = record_of(line)
        # Chunks that hold more than the payload would be lost with the record. A truncated body of chunks may have no
        # payload at all.
        if record.type == "revisit" or not record.is_whole or has_more_than_payload(record):
            return ALONE
        pieces_of = decoded_pieces if line.is_decoded else payload_pieces
        if payload != NO_PAYLOAD and are_same(pieces_of(record), stored_pieces(folder, payload)):
            return SAME
        return stored.place_of(pieces_of(record))
    except Undecodable as error:
        faults.add(place, f"the payload cannot be decoded: {error}")
    except (DamagedInput, ArchiveError) as error:
        # Without the place, if it is the line's own.
        before, _, reason = str(error).partition(f", offset {line.offset}: ")
        faults.add(place, reason if reason and before.endswith(line.file) else str(error))
    return ALONE


class _StoredPayloads:
    """The payloads that a task stores in *file*, each once; *name* is that of the task in places."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name
        self._end = 0
        self._known: dict[tuple[int, bytes], list[int]] = {}

    def place_of(self, pieces: Iterator[bytes]) -> str:
        """Store a payload, if it has not been stored before."""
        start, size, hasher = self._end, 0, blake2b(digest_size=32)
        self._file.seek(start)
        for piece in pieces:
            self._file.write(piece)
            hasher.update(piece)
            size += len(piece)
        alike = self._known.setdefault((size, hasher.digest()), [])
        for known in alike:
            # The next payload overwrites this one.
            if are_same(_part(self._file, known, size), _part(self._file, start, size)):
                start = known
                break
        else:
            alike.append(start)
            self._end += size
        return f"{self._name}:{start}:{size}:{hasher.hexdigest()}"


def stored_pieces(folder: Path, place: str) -> Iterator[bytes]:
    """The payload at a place, in pieces. Raises OSError."""
    name, start, size, _ = place.split(":")
    # Building a Path would take as long as reading a usual payload.
    with io.FileIO(f"{folder}/{name}.payloads") as file:
        yield from _part(file, int(start), int(size))


def _part(file: IO[bytes] | io.FileIO, start: int, size: int) -> Iterator[bytes]:
    while size:
        # Another reader may have moved the position.
        file.seek(start)
        piece = file.read(min(size, _PIECE_BYTES))
        if not piece:
            raise OSError(errno.EIO, f"{file.name} is too short")
        yield piece
        start, size = start + len(piece), size - len(piece)
