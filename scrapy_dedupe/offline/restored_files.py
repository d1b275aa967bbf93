"""The plan of a restoration, and the files that are written by it.

All input files are read once (`search`). The records that change, and the possible originals of revisits, are stored in an
SQLite file, so that the plan is limited only by the disk and survives a kill. Its tables:

``revisit``    records that become responses: file, offset, length, whether the file is compressed, and the record itself:
               uncompressed, with its HTTP head but without the rest of its block
``candidate``  the possible originals of each revisit, the best one with rank 0; records in one gzip member have the same
               offset and different positions
``made``       the result for a candidate: why it is not the original, or else the place of the restored record in the file
               of this rank and original (`made_path`)
``pointed``    records whose references are reverted, with the names of these fields
``mention``    the former references of these records, by id or by URI and time
``named``      payload digests that identify the originals of other programs' revisits among these records
``lost``       former ids, URIs and times of revisits that are not restored

Originals are read in the order of their files, each once (`make_records`); the records restored from one file are written
to one file in the work folder. A new file (`write_output`) is assembled from its source and these records; no other archive
file is opened. Records that do not change are copied unchanged, including gaps and damaged places.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.file_rewriting import RecordFile, RecordParts
from scrapy_dedupe.offline.restored_records import (
    FORMER_ID,
    OriginalRecord,
    former,
    has_others,
    is_changed,
    is_own_revisit,
    pointed_back,
    pointed_fields,
    restored_record,
)
from scrapy_dedupe.offline.revisits import record_bytes
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.warc.dates import valid_date_key
from scrapy_dedupe.warc.framing import is_compressed, open_block
from scrapy_dedupe.warc.raw_heads import raw_head
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import CaptureTable, is_unmodified, reference_of
from scrapy_dedupe.warc.windows import HeldFile, WindowedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import FiledCapture, Reference
    from scrapy_dedupe.warc.sources import ReadableFile

_NO_ORIGINAL: Final = "its original was not found"
_UNMODIFIED: Final = "of unmodified responses (304), which had no payload"
_NO_HEAD: Final = "without an HTTP head"
_FORMER_OF_OTHERS: Final = "with Former- fields that warcrefs or dedupe did not write"
_SHARED: Final = "in a gzip member with other records"
_MOST_CANDIDATES: Final = 8

_TABLES: Final = """
CREATE TABLE revisit (file INTEGER, "offset" INTEGER, length INTEGER, is_gzip INTEGER, record BLOB,
  PRIMARY KEY (file, "offset"));
CREATE TABLE candidate (rank INTEGER, original_file INTEGER, original_offset INTEGER, position INTEGER,
  file INTEGER, "offset" INTEGER, PRIMARY KEY (rank, original_file, original_offset, position, file, "offset"))
  WITHOUT ROWID;
CREATE TABLE made (file INTEGER, "offset" INTEGER, rank INTEGER, original_file INTEGER, reason TEXT,
  begin INTEGER, size INTEGER, PRIMARY KEY (file, "offset", rank)) WITHOUT ROWID;
CREATE TABLE pointed (file INTEGER, "offset" INTEGER, length INTEGER, fields TEXT, PRIMARY KEY (file, "offset"))
  WITHOUT ROWID;
CREATE TABLE mention (file INTEGER, "offset" INTEGER, id TEXT, uri TEXT, time TEXT);
CREATE TABLE named (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE lost (id TEXT, uri TEXT, time TEXT);
CREATE INDEX lost_by_id ON lost (id);
CREATE INDEX lost_by_uri ON lost (uri, time);
CREATE VIEW restored AS SELECT * FROM made WHERE reason IS NULL;
CREATE VIEW unrestored AS SELECT * FROM revisit r
  WHERE NOT EXISTS (SELECT 1 FROM made m WHERE m.file = r.file AND m."offset" = r."offset" AND m.reason IS NULL);
"""
_CANDIDATES: Final = """
SELECT original_offset, position, file, "offset", record, is_gzip FROM candidate JOIN unrestored USING (file, "offset")
WHERE rank = ? AND original_file = ? ORDER BY original_offset, position, file, "offset"
"""
_WITH_CANDIDATES: Final = """
SELECT DISTINCT original_file FROM candidate JOIN unrestored USING (file, "offset") WHERE rank = ? ORDER BY original_file
"""
_UNRESTORED: Final = """
SELECT file, "offset", record, (SELECT m.reason FROM made m WHERE m.file = r.file AND m."offset" = r."offset" ORDER BY rank)
FROM unrestored r ORDER BY file, "offset"
"""
_MENTIONING: Final = """
DELETE FROM pointed WHERE (file, "offset") IN (
  SELECT file, "offset" FROM mention JOIN lost USING (id)
  UNION SELECT file, "offset" FROM mention JOIN lost USING (uri, time))
"""
_CHANGES: Final = """
SELECT "offset", length, fields, NULL, NULL, NULL, NULL FROM pointed WHERE file = ?
UNION ALL SELECT "offset", length, NULL, rank, original_file, begin, size FROM revisit JOIN restored USING (file, "offset")
WHERE file = ? ORDER BY 1
"""


@contextmanager
def open_plan(path: Path, mode: Literal["rwc", "rw", "ro"] = "ro") -> Iterator[sqlite3.Connection]:
    """The plan in the file *path*; *mode* is that of SQLite. Errors of SQLite are raised as ArchiveError."""
    try:
        where = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(where, uri=True, isolation_level=None)) as plan:
            plan.execute("PRAGMA cache_size = -32768")
            yield plan
    except sqlite3.Error as error:
        raise ArchiveError(
            f"{path} cannot be used: {error}. Free some space, or remove the folder {path.parent} and start again."
        ) from error


@dataclass(slots=True)
class RestorationScan:
    """The findings of `search` that are not in the plan.

    ``size_bytes`` is the size of the files to restore. ``left`` counts the revisits of other programs that are not restored,
    by reason; ``not_ours`` counts the records with ``Former-`` fields of other programs, ``not_ours_revisits`` the revisits
    among them.
    """

    size_bytes: int
    left: dict[str, int] = field(default_factory=dict)
    not_ours: int = 0
    not_ours_revisits: int = 0

    def leave(self, reason: str) -> None:
        """Count a revisit that is not restored."""
        self.left[reason] = self.left.get(reason, 0) + 1


def search(
    plan: sqlite3.Connection,
    inputs: Sequence[Input],
    others: Sequence[Input],
    *,
    all_writers: bool,
    faults: Faults,
    watch: Progress,
) -> RestorationScan:
    """Read *inputs* and *others* once, and store the records of *inputs* that change, and their possible originals."""
    scan = RestorationScan(sum(given.size_bytes for given in inputs))
    captures, files = CaptureTable(), [*inputs, *others]
    numbers = {str(given.file): number for number, given in enumerate(files)}
    total = sum(given.size_bytes for given in files)
    plan.executescript(_TABLES)
    plan.execute("BEGIN")
    with closing(captures), part(watch, "looking for revisits and originals", total):
        for number, given in enumerate(files):
            is_input = number < len(inputs)
            if not is_input and not plan.execute("SELECT 1 FROM revisit LIMIT 1").fetchone():
                break
            with reading(given.file):
                is_gzip = is_input and is_compressed(given.file)
                for record in captures.noted(read_records(given.file, on_damage=faults.add_damage)):
                    if is_input and record.format == "warc":
                        kind = _kind(scan, record, faults, all_writers=all_writers)
                        if kind == "revisit":
                            _add_revisit(plan, number, record, is_gzip=is_gzip)
                        elif kind == "pointed":
                            _add_pointed(plan, number, record)
            watch.advance(given.size_bytes)
        for file, offset, held in plan.execute('SELECT file, "offset", record FROM revisit'):
            found = _candidates(captures, reference_of(_revisit(held)))
            places = [(numbers[str(captures.file_of(one))], one.offset, one.block_position) for one in found]
            plan.executemany(
                "INSERT INTO candidate VALUES (?, ?, ?, ?, ?, ?)",
                [(rank, *place, file, offset) for rank, place in enumerate(places)],
            )
    plan.execute("COMMIT")
    return scan


def _revisit(held: bytes, name: str = "") -> StoredRecord:
    """A revisit from the plan; *name* is the name of its file."""
    return read_record(HeldFile(held, name), 0)


def _kind(scan: RestorationScan, record: StoredRecord, faults: Faults, *, all_writers: bool) -> str | None:
    """``revisit`` if a record becomes a response, ``pointed`` if its references are reverted, else None."""
    is_own, changed = is_own_revisit(record), is_changed(record)
    if changed and not is_own and not pointed_fields(record):
        scan.not_ours += 1
        scan.not_ours_revisits += record.type == "revisit"
        return None
    is_revisit = is_own
    if all_writers and record.type == "revisit" and not is_own:
        is_revisit = not is_unmodified(record) and not has_others(record)
        if not is_revisit:
            scan.leave(_UNMODIFIED if is_unmodified(record) else _FORMER_OF_OTHERS)
    if not is_revisit and not changed:
        return None
    reason = None
    if not record.length:
        reason = _SHARED
    elif is_revisit and record.http_status is None:
        reason = _NO_HEAD
    if reason is None:
        return "revisit" if is_revisit else "pointed"
    if is_own or not is_revisit:
        place = f"{record.path}, offset {record.offset}"
        faults.add(place, f"the record cannot be restored ({reason})")
    else:
        scan.leave(reason)
    return None


def _add_revisit(plan: sqlite3.Connection, file: int, record: StoredRecord, *, is_gzip: bool) -> None:
    assert record.http is not None
    held = record_bytes(raw_head(record), record.frame.part(0, record.http.length))
    values = (file, record.offset, record.length, is_gzip, held)
    plan.execute("INSERT INTO revisit VALUES (?, ?, ?, ?, ?)", values)


def _add_pointed(plan: sqlite3.Connection, file: int, record: StoredRecord) -> None:
    values = (file, record.offset, record.length, " ".join(sorted(pointed_fields(record))))
    plan.execute("INSERT INTO pointed VALUES (?, ?, ?, ?)", values)
    digest = former(record, "WARC-Payload-Digest") or record.get("WARC-Payload-Digest")
    if record.type == "revisit" and digest:
        plan.execute("INSERT OR IGNORE INTO named VALUES (?)", (digest.strip(),))
    uri = former(record, "WARC-Refers-To-Target-URI") or record.refers_to_uri
    date = former(record, "WARC-Refers-To-Date") or record.refers_to_date
    ids = [*record.get_all("Former-WARC-Concurrent-To"), former(record, "WARC-Refers-To")]
    mentions = [(None, uri, valid_date_key(date)), *((one, None, None) for one in ids)]
    plan.executemany(
        "INSERT INTO mention VALUES (?, ?, ?, ?, ?)", [(file, record.offset, *one) for one in mentions]
    )


def _candidates(captures: CaptureTable, reference: Reference[str]) -> list[FiledCapture]:
    """The possible originals of a revisit, the best first; last, records that it names but whose digest differs."""
    found = [one for _, ways in captures.ways(reference) for one in ways[:_MOST_CANDIDATES]]
    # Captures with another digest are originals only if the former digests of the revisit confirm it.
    if reference.id is not None:
        found += list(captures.with_id(reference.id))[:_MOST_CANDIDATES]
    if reference.uri is not None and reference.date is not None:
        found += list(captures.in_second(reference.uri, reference.date // 1_000))[:_MOST_CANDIDATES]
    return list(dict.fromkeys(found))


def files_with_candidates(plan: sqlite3.Connection, rank: int) -> list[int]:
    """The files with candidates of this rank for revisits whose original has not been found."""
    return [file for (file,) in plan.execute(_WITH_CANDIDATES, (rank,))]


def add_results(plan: sqlite3.Connection, tasks: Iterable[OriginalsTask]) -> None:
    """Store the results of all tasks of one rank."""
    plan.execute("BEGIN")
    for task in tasks:
        with reading(task.results), task.results.open("rb") as lines:
            plan.executemany(
                "INSERT OR REPLACE INTO made VALUES (?, ?, ?, ?, ?, ?, ?)", map(json.loads, lines)
            )
    plan.execute("COMMIT")


def leave_unrestored(
    plan: sqlite3.Connection, scan: RestorationScan, names: Sequence[str], faults: Faults
) -> None:
    """Leave the revisits unchanged whose original was not found, and the records that refer to one of them.

    This is a fault if the revisit was made by this project, or if an original was found but is not the right one. *names* are
    the names of the files.
    """
    plan.execute("BEGIN")
    plan.execute("DELETE FROM lost")
    for file, offset, held, reason in plan.execute(_UNRESTORED):
        record = _revisit(held, names[file])
        former_id = record.get(FORMER_ID)
        if reason is None and former_id is None:
            scan.leave(_NO_ORIGINAL)
            continue
        original = record.refers_to or (
            f"{record.refers_to_uri} of {record.refers_to_date}" if record.refers_to_uri else "record"
        )
        faults.add(
            f"{names[file]}, offset {offset}",
            reason or f"its original {original} is in none of the files; name the file with --originals",
        )
        if former_id is not None:
            values = (former_id, record.target_uri, valid_date_key(record.date))
            plan.execute("INSERT INTO lost VALUES (?, ?, ?)", values)
    plan.execute(_MENTIONING)
    plan.execute("COMMIT")


@dataclass(frozen=True, slots=True)
class OriginalsTask:
    """The candidates of one rank in one file, which has this number in the plan."""

    plan: Path
    rank: int
    number: int
    file: ReadableFile

    @property
    def results(self) -> Path:
        """The file with the results, a JSON array for each candidate. It exists when all records are made."""
        return made_path(self.plan, self.rank, self.number).with_suffix(".results")


def made_path(plan: Path, rank: int, file: int, *, is_gzip: bool = False) -> Path:
    """The file with the records restored from the originals in a file, as gzip members or uncompressed."""
    return plan.parent / "made" / f"{rank}-{file}{'.gz' if is_gzip else ''}"


def make_records(task: OriginalsTask) -> None:
    """Verify the candidates, and write the records that are restored from them.

    Raises ArchiveError, and DamagedInput if an original cannot be read again.
    """
    with ExitStack() as stack:
        plan = stack.enter_context(open_plan(task.plan))
        with reading(task.file):
            file = stack.enter_context(WindowedFile(task.file))
        with writing(task.results):
            task.results.parent.mkdir(exist_ok=True)
            results = stack.enter_context(whole_file.replacing(task.results, suffix=".new"))
        targets: dict[int, RecordFile] = {}

        def is_named(digest: str) -> bool:
            return (
                plan.execute("SELECT 1 FROM named WHERE digest = ?", (digest.strip(),)).fetchone() is not None
            )

        rows = plan.execute(_CANDIDATES, (task.rank, task.number))
        for (offset, position), candidates in groupby(rows, key=lambda row: row[:2]):
            original = OriginalRecord(read_record(file, offset, block_position=position))
            for *_, revisit_file, revisit_offset, held, is_gzip in candidates:
                revisit = _revisit(held)
                reason = original.reason_against(revisit)
                begin = size = 0
                if reason is None:
                    if is_gzip not in targets:
                        path = made_path(task.plan, task.rank, task.number, is_gzip=bool(is_gzip))
                        targets[is_gzip] = stack.enter_context(RecordFile(path, gzip=bool(is_gzip)))
                    target = targets[is_gzip]
                    head, block = restored_record(revisit, original, is_named)
                    begin = target.size
                    target.write(head.to_bytes(block.length), block.pieces(), block.length)
                    size = target.size - begin
                values = (revisit_file, revisit_offset, task.rank, task.number, reason, begin, size)
                with writing(task.results):
                    results.write(json.dumps(values).encode() + b"\n")
        for one in targets.values():
            one.finish()


@dataclass(frozen=True, slots=True)
class Output:
    """A file to write: its number in the plan, its source, its final path, and whether a file there is replaced."""

    plan: Path
    number: int
    source: Path
    final: Path
    is_replaced: bool

    @property
    def waiting(self) -> Path:
        """The path of the file until all files are verified. Its name is not that of an archive, so readers skip it."""
        return self.plan.parent / "new" / f"{self.number}{'.gz' if '.gz' in self.source.suffixes else ''}"


def write_output(output: Output) -> None:
    """Write a new file in the work folder. Raises ArchiveError, and DamagedInput if a record cannot be read again."""
    copied = 0
    with open_plan(output.plan) as plan, reading(output.source), output.source.open("rb") as source:
        is_gzip = is_compressed(output.source)
        parts = RecordParts(output.source, source, is_gzip=is_gzip)
        with RecordFile(output.waiting, gzip=is_gzip) as target:
            for offset, length, fields, rank, original, begin, size in plan.execute(
                _CHANGES, (output.number,) * 2
            ):
                target.copy(source, copied, offset)
                copied = offset + length
                if fields is None:
                    made = made_path(output.plan, rank, original, is_gzip=is_gzip)
                    with reading(made), made.open("rb", buffering=0) as restored:
                        target.copy(restored, begin, begin + size)
                    continue
                old, found = parts.record(offset, length)
                head = pointed_back(old, frozenset(fields.split()))
                block_length = len(found) if isinstance(found, bytes) else found.frame.block_length
                block = (found,) if isinstance(found, bytes) else open_block(found.path, found.frame)
                target.write(head.to_bytes(block_length), block, block_length)
            target.copy(source, copied, None)
            target.finish(partial(shutil.copymode, output.source))
