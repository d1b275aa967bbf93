"""The plan of a rewriting: which records become revisits of which originals, found by joins over lines and rows.

Lines come from `plan_lines`, rows from the files (`rows`). The statements are in `plan_queries`; DuckDB runs them in this
process (`Joins`), or other workers do (`spark.joins`). The result depends only on lines and rows: one slice for each file
that changes, from which the file is rewritten without any other file.

The original of a copy is the earliest record of its payload, by the copy numbers of the lines, that a revisit can
refer to: it is eligible (`eligibility`), and its URL, date, id and digest can be read back unchanged. A copy that is
stored without transfer chunks needs an original without them, since a replay program would show the chunks.

A line of a manifest may not match the row of its record: a URI or date may be written in another form, or the record may be
of another type. The record of such a line is read (`check_lines`), and so are all records of lines in a remote file that is
only read.

A slice is a folder ``slices/file=N/`` of Parquet files, where N is the number of the file; a file without changes has none.
The column ``kind`` says what a row is:

- ``change``: a record to change, with its offset and length. A copy that becomes a revisit has the line of its ``original``.
  Of any other record, references are updated.
- ``capture``: a listed record that these references may mean (`reference_changes.MeantRecord`), with the line of its
  ``original`` if it becomes a revisit.
- ``original``: an original with its line, id, URI, date and digest.
- ``standing``: an unchanged capture that these references may mean (`reference_changes.Standing`).
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline import plan_queries as queries
from scrapy_dedupe.offline.eligibility import Savings, add_up
from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.plan_lines import LINES_FILE, bytes_text, rows_query, view_rows
from scrapy_dedupe.offline.reference_changes import MeantRecord, Standing
from scrapy_dedupe.offline.revisits import RevisitTarget, revisit_bytes
from scrapy_dedupe.offline.row_scan import RowScan
from scrapy_dedupe.offline.rows import (
    COLUMNS,
    PURPOSE,
    RecordRow,
    RowsTask,
    copy_to,
    create_table,
    insert_rows,
    refused,
)
from scrapy_dedupe.stores.duckdb import open_engine, quoted, rows_of, source
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.jobs import join_workers
from scrapy_dedupe.tasks.progress import NO_PROGRESS
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.tasks.work import run_tasks
from scrapy_dedupe.warc.bodies import payload_digests
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.plan_lines import PlannedFile
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.work import Advance

SIZES: Final = {"line": "BIGINT", "revisit_bytes": "BIGINT"}
"""The columns of the table ``size``."""

# More than a revisit adds to the heads of its response and the place of its original: four other ids, and digests.
_ADDED_BYTES: Final = 2_048
_MOST_LINES: Final = 50_000  # of a join
_WRITTEN_ROWS: Final = 8_192
_SLICES: Final = "slices"
_SCRATCH: Final = "scratch"
# The columns of all kinds; each has only some of them.
_SLICE: Final = """
SELECT NULL::VARCHAR AS kind, NULL::BIGINT AS "offset", NULL::BIGINT AS length, NULL::BIGINT AS line, NULL::BIGINT AS original,
    NULL::BOOLEAN AS is_here, NULL::BLOB AS id, NULL::BLOB AS id_key, NULL::BLOB AS uri, NULL::BLOB AS date,
    NULL::VARCHAR AS date_key, NULL::BLOB AS digest, NULL::VARCHAR AS digest_key, NULL::VARCHAR AS listed_key,
    NULL::VARCHAR AS payload_key
WHERE FALSE
UNION ALL BY NAME SELECT * FROM read_parquet([{}], union_by_name = true, hive_partitioning = false)
"""


@dataclass(frozen=True, slots=True)
class PlanTask:
    """What the plan is made from: lines in *folder*, and the rows of files, by the number of the file.

    Of a used file without rows, only the records of its lines are read.
    """

    folder: Path
    files: Sequence[PlannedFile]
    rows: Mapping[int, Path]
    places: Places
    eligibility: Eligibility
    is_dry_run: bool
    jobs: Jobs


def make_plan(task: PlanTask, faults: Faults) -> tuple[dict[str, int], Savings]:
    """Make the slices of all files.

    Return the number of unchanged copies by reason, a key of `eligibility.LEFT`, and the bytes that a dry run would save; a dry
    run makes no slices. A line that differs from its record is a fault. Raises ArchiveError, and the exceptions of `Faults.add`.
    """
    slices, scratch = task.folder / _SLICES, task.folder / _SCRATCH
    made = slices.with_name(f"{_SLICES}.new")
    with writing(slices):
        # Files of a run that was killed. A dry run must keep the slices: the real run may have stored that its plan is complete.
        for left in (scratch,) if task.is_dry_run else (scratch, slices, made):
            shutil.rmtree(left, ignore_errors=True)
        size_bytes = sum(path.stat().st_size for path in (task.folder / LINES_FILE, *task.rows.values()))
        with open_joins(task.jobs, size_bytes, scratch, slices) as joins:
            counts = _joined(task, joins, made, faults)
        if made.exists():
            for path in sorted(made.rglob("*.parquet")):
                whole_file.sync_file(path)
            whole_file.put_in_place(made, slices)
        shutil.rmtree(scratch, ignore_errors=True)
    return counts


def _joined(task: PlanTask, joins: Joins, slices: Path, faults: Faults) -> tuple[dict[str, int], Savings]:
    joins.add_lines(task.folder / LINES_FILE)
    columns = {"file": "BIGINT", "is_output": "BOOLEAN"}
    joins.add("file", columns, ((file.id, file.is_output) for file in task.files))
    joins.add_rows(task.rows)
    _check_lines(task, joins, faults)
    values = {"added": _ADDED_BYTES, "all_copies": "TRUE" if task.is_dry_run else "FALSE"}
    joins.run([*queries.SURVEYED, *(statement.format(**values) for statement in queries.CHOICES)])
    joins.add_sizes(queries.SMALL_COPIES.format(**values))
    joins.run(statement.format(**values) for statement in queries.OUTCOMES)
    left = dict(joins.fetch(queries.LEFT_COPIES))
    if task.is_dry_run:
        saved = joins.fetch(queries.SAVED)
        return left, add_up((bytes_text(uri), *others) for uri, *others in saved)
    joins.run(queries.SLICES)
    joins.write_by_file(queries.SLICE_ROWS, slices)
    return left, Savings()


def _check_lines(task: PlanTask, joins: Joins, faults: Faults) -> None:
    """Read the records of lines that do not match their rows. A line that differs from its record is a fault."""
    joins.add_matched(queries.LISTED, queries.MATCHED, task.folder / _SCRATCH)
    lines: dict[int, list[tuple[int, ManifestLine]]] = {}
    names = {file.id: file.name for file in task.files}
    for number, file, offset, length, uri, date, label, value in joins.fetch(queries.UNMATCHED):
        line = ManifestLine(names[file], offset, length, bytes_text(uri), date, f"{label}:{value.hex()}")
        lines.setdefault(file, []).append((number, line))
    tasks = [CheckTask(task.places, task.eligibility, tuple(some)) for some in lines.values()]
    rows: list[Sequence[Any]] = []
    done = run_tasks(
        check_lines, tasks, task.jobs, NO_PROGRESS, lambda task: len(task.lines), keep_going=faults.keep_going
    )
    for _, outcome in done:
        rows += outcome.value
        faults.take(outcome.fault_count, outcome.faults)
    joins.add("checked", {"line": "BIGINT", **COLUMNS}, rows)
    for file, offset in joins.fetch(queries.NO_RECORD):
        place = task.places.file(names[file])
        faults.add(f"{place}, offset {offset}", "no record begins at the offset in the manifest")


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Numbered lines of one file."""

    places: Places
    eligibility: Eligibility
    lines: tuple[tuple[int, ManifestLine], ...]


def check_lines(task: CheckTask, faults: Faults, advance: Advance) -> list[tuple[Any, ...]]:
    """The rows of the lines, each after the number of its line.

    A line that differs from its record is a fault, and its row has the reason ``damaged``. Raises ArchiveError, and the
    exceptions of `Faults.add`.
    """
    rows: list[tuple[Any, ...]] = []
    for number, line in task.lines:
        try:
            row = _row(task, line, faults)
        except DamagedInput as error:
            place = f"{task.places.file(line.file)}, offset {line.offset}"
            faults.add(place, str(error).removeprefix(f"{place}: "))
            row = RecordRow(
                line.offset, line.length, "response", reason="damaged", unfit="damaged", is_chunked=False
            )
        rows.append((number, *row))
    return rows


def _row(task: CheckTask, line: ManifestLine, faults: Faults) -> RecordRow:
    record = task.places.record(line)
    algorithm, _, value = line.digest.partition(":")
    (digest,) = payload_digests(record, (algorithm,))
    if digest.hex != value:
        raise DamagedInput(
            f"{record.path}, offset {line.offset}: the manifest does not match the file: the digest of the payload"
            " differs. Create the manifest again with warcsum --recompute."
        )
    with record.path.open("rb") as file:
        file.seek(record.offset)
        is_gzip = file.read(2) == GZIP_MAGIC[:2]
    rows = RowsTask(line.file, record.path, Path(), task.eligibility, (algorithm,), False)
    return RowScan(rows, faults).captured(record, {algorithm: digest})._replace(is_gzip=is_gzip)


class PlannedChange(NamedTuple):
    """A record to change; ``target`` is the original of a copy that becomes a revisit."""

    offset: int
    length: int
    target: RevisitTarget | None


@dataclass(slots=True)
class Slice:
    """The part of the plan for one file. The changes are ordered by offset."""

    changes: list[PlannedChange] = field(default_factory=list)
    captures: list[MeantRecord] = field(default_factory=list)
    standing: list[Standing] = field(default_factory=list)


def slice_folder(folder: Path, file: int) -> Path:
    """The folder with the slice of a file; it does not exist for a file without changes."""
    return folder / _SLICES / f"file={file}"


def read_slice(folder: Path) -> Slice:
    """Read the slice in a folder. Raises ArchiveError."""
    found = Slice()
    if not folder.exists():
        return found
    query = _SLICE.format(", ".join(map(source, sorted(folder.glob("*.parquet")))))
    targets: dict[int | None, RevisitTarget | None] = {None: None}
    changes, captures = [], []
    with open_engine(
        PURPOSE,
        lambda text: ArchiveError(
            f"{folder} cannot be read: {text}. Check the disk, then start again without the unfinished work."
        ),
    ) as engine:
        for kind, offset, length, line, original, is_here, *values in rows_of(engine.execute(query)):
            record_id, id_key, uri, date, date_key, digest, *keys = values
            if kind == "change":
                changes.append((offset, length, original))
            elif kind == "original":
                targets[line] = RevisitTarget(record_id, uri, date, digest)
            elif kind == "capture":
                captures.append((line, is_here, record_id, id_key, uri, date_key, *keys, original))
            else:
                found.standing.append(Standing(id_key, is_here, uri, date_key))
    # Sorting in DuckDB could need more than its limit of memory, and all rows are in memory here anyway.
    for *values, original in sorted(changes, key=itemgetter(0)):
        found.changes.append(PlannedChange._make([*values, targets[original]]))
    for *values, original in sorted(captures, key=itemgetter(0)):
        found.captures.append(MeantRecord._make([*values, targets[original]]))
    return found


@contextmanager
def open_joins(jobs: Jobs, size_bytes: int, scratch: Path, output: Path) -> Iterator[Joins]:
    """The joins of a plan with *size_bytes* of lines and rows, with temporary files in *scratch*. Errors name *output*."""
    if (workers := join_workers(jobs, size_bytes)) is not None:
        with workers.joins(scratch) as joins:
            yield joins
        return
    with open_engine(PURPOSE, lambda text: refused(output, text), scratch) as engine:
        yield Joins(engine)


class Joins:
    """Tables of one plan in DuckDB, and statements in its SQL. `spark.joins` has the same methods for Spark."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._rows: Mapping[int, Path] = {}

    def add_lines(self, path: Path) -> None:
        """Add ``line``, the table in a Parquet file."""
        self._engine.execute(f"CREATE VIEW line AS SELECT * FROM read_parquet({source(path)})")  # noqa: S608

    def add_rows(self, rows: Mapping[int, Path]) -> None:
        """Add ``row`` and ``row_file``, the rows of files by the number of the file."""
        self._rows = rows
        view_rows(self._engine, rows)

    def add_matched(self, listed: str, matched: str, folder: Path) -> None:
        """Add ``listed``, the rows of a query, and ``matched``, the rows of a query that joins {listed} with the rows of {row}.

        Rows of different files never match, so only some files are joined at a time, in memory. The results are Parquet files in
        *folder*, since DuckDB would write a large wide table to scratch files several times.
        """
        self.run([f"CREATE TABLE listed AS {listed} ORDER BY file"])
        batches = [*self._batches()]
        if len(batches) < 2:
            self.run([f"CREATE TABLE matched AS {matched.format(listed='listed', row='row')}"])
            return
        parts = []
        folder.mkdir(exist_ok=True)
        for number, rows in enumerate(batches):
            some = f"(SELECT * FROM listed WHERE file BETWEEN {min(rows)} AND {max(rows)})"  # noqa: S608
            part = folder / f"matched-{number}.parquet"
            copy_to(self._engine, matched.format(listed=some, row=f"({rows_query(rows)})"), part, {})
            parts.append(source(part))
        self.run([f"CREATE VIEW matched AS SELECT * FROM read_parquet([{', '.join(parts)}])"])  # noqa: S608

    def _batches(self) -> Iterator[dict[int, Path]]:
        """The rows of files with listed lines, some files at a time."""
        batch: dict[int, Path] = {}
        lines = 0
        for file, count in [*self.fetch("SELECT file, count(*) FROM listed GROUP BY file ORDER BY file")]:
            if file in self._rows:
                batch[file] = self._rows[file]
                lines += count
            if lines >= _MOST_LINES:
                yield batch
                batch, lines = {}, 0
        if batch:
            yield batch

    def add(self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table with these columns, their types, and rows."""
        create_table(self._engine, table, columns)
        insert_rows(self._engine, table, columns, rows)

    def add_sizes(self, query: str) -> None:
        """Add ``size``, the sizes of revisits; *query* yields line, heads, is_gzip, refers_uri and refers_date."""
        # Another connection: each has one result at a time.
        rows = rows_of(self._engine.cursor().execute(query))
        self.add("size", SIZES, map(size_of, rows))

    def run(self, statements: Iterable[str]) -> None:
        """Run statements that create or drop tables."""
        for statement in statements:
            self._engine.execute(statement)

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query."""
        return rows_of(self._engine.execute(query))

    def write_by_file(self, queries: Sequence[str], folder: Path) -> None:
        """Write the rows of queries to Parquet files in ``file=N/`` below *folder*, by their column file."""
        # Sorted, and written in small parts, because otherwise DuckDB would keep the rows of all files until the end.
        options = "FORMAT parquet, COMPRESSION zstd, PARTITION_BY (file), APPEND"
        self.run([f"SET partitioned_write_flush_threshold = {_WRITTEN_ROWS}"])
        self.run(f"COPY ({query} ORDER BY file) TO {quoted(folder)} ({options})" for query in queries)


def size_of(row: Sequence[Any]) -> tuple[int, int]:
    """A row of ``size`` for a row of the query of `Joins.add_sizes`."""
    line, heads, is_gzip, uri, date = row
    return line, revisit_bytes(bytes(heads), bytes(uri or b""), (date or "").encode(), is_gzip=is_gzip)
