"""The numbered lines from which the plan is made: ``lines.parquet``, from manifests or from rows (`row_numbering`).

Columns: line (number in the order of the manifests, from 1), file, offset, length, label and value (the digest), listed_key (the
digest for comparison), extension (distinguishes different payloads with equal digests), copy (number among the records
of one payload; 1: original), uri, date, refers_uri, refers_date, original (the line that a copy refers to) and role (0: no
duplicates; 1: may be the original of a copy; 2: a copy, which may be the original of another one). A record that is listed
several times has its first line only.

The metadata has ``files``, a list of `PlannedFile`, and ``marks``, a hash of the lines of manifests. The file depends only on
the manifests or rows, and does not change after it gets its name.

A line of a manifest may not match the row of its record: a URI or date may be written in another form, or the record may be
of another type. The record of such a line is read (`check_lines`), and so are all records of lines in a remote file that is
only read.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.engine import open_engine, rows_of
from scrapy_dedupe.offline.reference_changes import digest_key
from scrapy_dedupe.offline.row_scan import RowScan
from scrapy_dedupe.offline.rows import (
    PURPOSE,
    RecordRow,
    RowsTask,
    copy_to,
    create_table,
    insert_rows,
    read_about,
    refused,
)
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.warc.bodies import payload_digests
from scrapy_dedupe.warc.sources import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.places import Places

LINES_FILE: Final = "lines.parquet"

# If the first record of a payload cannot be the original, another one may. Reading each candidate may need a transfer.
_MOST_ORIGINALS: Final = 8

_LISTED: Final = {
    "line": "BIGINT",
    "file": "BIGINT",
    "offset": "BIGINT",
    "length": "BIGINT",
    "label": "VARCHAR",
    "value": "BLOB",
    "listed_key": "VARCHAR",
    "extension": "BIGINT",
    "copy": "BIGINT",
    "uri": "BLOB",
    "date": "VARCHAR",
    "refers_uri": "BLOB",
    "refers_date": "VARCHAR",
}
_KEPT: Final = """
CREATE TABLE kept AS SELECT * FROM (
    SELECT *, min(line) OVER (PARTITION BY file, "offset") AS first FROM listed
) WHERE line = first
"""
_REPEATED: Final = """
SELECT file, "offset" FROM listed WHERE line <= {main} GROUP BY file, "offset"
HAVING count(DISTINCT (label, value, extension, copy)) > 1 ORDER BY file, "offset"
"""
_REFERRED: Final = """
CREATE TABLE referred AS SELECT l.*, o.line AS original FROM kept l LEFT JOIN (
    SELECT label, value, extension, uri, date, min(line) AS line FROM kept WHERE copy = 1
    GROUP BY label, value, extension, uri, date
) o ON l.copy > 1 AND o.label = l.label AND o.value = l.value AND o.extension = l.extension
    AND o.uri = l.refers_uri AND o.date = l.refers_date
"""
_WITHOUT_ORIGINAL: Final = """
SELECT file, "offset" FROM referred WHERE copy > 1 AND original IS NULL AND line <= {main} ORDER BY line
"""
_LINES_OF_MANIFESTS: Final = """
CREATE TABLE line AS SELECT l.* EXCLUDE (first),
    CASE WHEN l.copy > 1 AND l.line <= {main} THEN 2
         WHEN l.line IN (SELECT original FROM used) OR (l.line > {main} AND l.original IN (SELECT original FROM used)) THEN 1
         ELSE 0 END AS role
FROM referred l
"""
_USED: Final = """
CREATE TABLE used AS SELECT DISTINCT original FROM referred WHERE copy > 1 AND line <= {main} AND original IS NOT NULL
"""


class PlannedFile(NamedTuple):
    """A file of the plan.

    ``is_main``: it is rewritten, in this run or in another one. ``is_used``: it has an original with copies, or a copy.
    ``labels`` are the algorithms of its digests.
    """

    id: int
    name: str
    is_output: bool
    is_main: bool
    is_used: bool
    labels: Sequence[str]


def write_lines(
    folder: Path,
    lines: Iterable[ManifestLine],
    originals: Iterable[ManifestLine],
    files: Sequence[str] | None,
    faults: Faults,
) -> None:
    """Make ``lines.parquet`` from manifests; *files* are the files to rewrite, None: all in *lines*.

    Raises UsageError for manifests without copy numbers or with digests of decoded payloads, DamagedInput for
    contradictory manifests (unless *faults* is set to keep going), ArchiveError if the disk is full.
    """
    with lines_file(folder) as (engine, write):
        create_table(engine, "listed", _LISTED)
        marks = hashlib.blake2b()
        # Whether each file is rewritten in this run, and whether in this or another one.
        listed: dict[str, tuple[bool, bool]] = {}
        main = _insert(engine, _marked(_numbered(lines), marks), listed, (files is None, True), 0)
        for name in files or ():
            matches = [] if name in listed else [known for known in listed if fnmatchcase(known, name)]
            # A name that is not in the manifests may be a file without any response.
            listed |= dict.fromkeys(matches or [name], (True, True))
        _insert(engine, _marked(_originals(originals), marks), listed, (False, False), main)
        names = list(listed)
        for file, offset in rows_of(engine.execute(_REPEATED.format(main=main))):
            place = f"{names[file - 1]}, offset {offset}"
            faults.add(place, "the manifests have several different lines for this record")
        engine.execute(_KEPT)
        engine.execute(_REFERRED)
        for file, offset in rows_of(engine.execute(_WITHOUT_ORIGINAL.format(main=main))):
            faults.add(
                f"{names[file - 1]}, offset {offset}",
                "the original of this copy is in none of the manifests. Name the manifest that lists it with --originals",
            )
        engine.execute(_USED.format(main=main))
        engine.execute(_LINES_OF_MANIFESTS.format(main=main))
        write(listed, marks.hexdigest())


def read_notes(folder: Path) -> tuple[list[PlannedFile], str]:
    """The files of the plan, in the order in which the manifests first name them, and the hash of the lines."""
    path = folder / LINES_FILE
    with open_engine(PURPOSE, lambda text: refused(path, text)) as engine:
        notes = read_about(engine, path)
    return [PlannedFile(*file) for file in notes["files"]], notes["marks"]


def marks_of(lines: Iterable[ManifestLine], originals: Iterable[ManifestLine]) -> str:
    """The hash that `read_notes` returns for these manifests."""
    marks = hashlib.blake2b()
    for _ in _marked(chain(_numbered(lines), _originals(originals)), marks):
        pass
    return marks.hexdigest()


@contextmanager
def lines_file(folder: Path) -> Iterator[tuple[Any, Any]]:
    """DuckDB, and a function that writes its table ``line`` with these files (whether each is rewritten, now and ever)."""
    path, scratch = folder / LINES_FILE, folder / "scratch"
    with writing(path), whole_file.replacing_from(path, suffix=".new") as temporary:
        with open_engine(PURPOSE, lambda text: refused(path, text), scratch) as engine:

            def write(files: Mapping[str, tuple[bool, bool]], marks: str) -> None:
                labels = (
                    "SELECT file, list(DISTINCT label ORDER BY label) FROM line WHERE role > 0 GROUP BY file"
                )
                used = dict(engine.execute(labels).fetchall())
                planned = [
                    PlannedFile(number, name, is_output, is_main, number in used, used.get(number, []))
                    for number, (name, (is_output, is_main)) in enumerate(files.items(), 1)
                ]
                copy_to(
                    engine, "SELECT * FROM line ORDER BY line", temporary, {"files": planned, "marks": marks}
                )

            yield engine, write
        shutil.rmtree(scratch, ignore_errors=True)


def _marked(lines: Iterable[ManifestLine], marks: hashlib.blake2b) -> Iterator[ManifestLine]:
    """Pass the lines through, and update the hash *marks* with the values that identify a run."""
    for line in lines:
        text = (
            f"{line.file}\n{line.offset} {line.length} {line.digest} {line.extension} {line.copy}\n"
            f"{line.refers_to_uri}\n{line.refers_to_date}\n"
        )
        marks.update(text_bytes(text))
        yield line


def _insert(
    engine: Any,
    lines: Iterable[ManifestLine],
    files: dict[str, tuple[bool, bool]],
    is_rewritten: tuple[bool, bool],
    count: int,
) -> int:
    """Insert lines into the table ``listed`` after *count* others, and add their files; return the number of all."""
    numbers = {name: number for number, name in enumerate(files, 1)}

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal count
        for line in lines:
            if line.file not in numbers:
                files[line.file] = is_rewritten
                numbers[line.file] = len(files)
            count += 1
            label, _, value = line.digest.partition(":")
            yield (
                count,
                numbers[line.file],
                line.offset,
                line.length,
                label,
                bytes.fromhex(value),
                digest_key(line.digest) or line.digest,
                line.extension or 1,
                line.copy,
                text_bytes(line.uri),
                line.date,
                None if line.refers_to_uri is None else text_bytes(line.refers_to_uri),
                line.refers_to_date,
            )

    insert_rows(engine, "listed", _LISTED, rows())
    return count


def text_bytes(text: str) -> bytes:
    """Encode a URI or a file name for the database, which rejects text that is not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The inverse of `text_bytes`."""
    return bytes(data).decode("utf-8", "surrogatepass")


def _numbered(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    for line in lines:
        if line.copy is None:
            raise UsageError(
                f"The manifest has no copy numbers (the line of {line.file}, offset {line.offset}). Run warccollres and"
                " warcsumproc first."
            )
        if line.is_decoded:
            raise UsageError(
                "The manifest has digests of decoded payloads, but a revisit must represent the stored bytes. Run warcsum"
                " without --decoded."
            )
        if line.is_copy and (line.refers_to_uri is None or line.refers_to_date is None):
            raise UsageError(
                f"The manifest has no reference for the copy in {line.file}, offset {line.offset}. Run warcsumproc."
            )
        yield line


def _originals(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    return (line for line in _numbered(lines) if line.copy is not None and line.copy <= _MOST_ORIGINALS)


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Numbered lines of one file. For a dry run, the heads of all records are kept."""

    places: Places
    eligibility: Eligibility
    lines: tuple[tuple[int, ManifestLine], ...]
    keep_going: bool
    is_dry_run: bool


def check_lines(task: CheckTask) -> tuple[list[tuple[Any, ...]], int, tuple[Fault, ...]]:
    """The rows of the lines, each after the number of its line; the number of faults, and the first of them.

    The row of a line that differs from its record has the reason ``damaged``. Raises ArchiveError, and DamagedInput for
    the first fault unless set to keep going.
    """
    faults = Faults(keep_going=task.keep_going)
    rows: list[tuple[Any, ...]] = []
    for number, line in task.lines:
        try:
            row = _row(task, line)
        except DamagedInput as error:
            place = f"{task.places.file(line.file)}, offset {line.offset}"
            faults.add(place, str(error).removeprefix(f"{place}: "))
            row = RecordRow(
                line.offset, line.length, "response", reason="damaged", unfit="damaged", is_chunked=False
            )
        rows.append((number, *row))
    return rows, faults.count, tuple(faults.first)


def _row(task: CheckTask, line: ManifestLine) -> RecordRow:
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
    scan = RowScan(
        RowsTask(
            record.path,
            line.file,
            Path(),
            task.eligibility,
            (algorithm,),
            False,
            task.is_dry_run,
        ),
        Faults(keep_going=task.keep_going),
    )
    return scan.captured(record, {algorithm: digest})._replace(is_gzip=is_gzip)
