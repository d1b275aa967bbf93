"""The numbered lines from which the plan is made: ``lines.parquet``, from manifests or from rows.

The columns are those of a manifest (`manifest_lines.ManifestLine`), with these differences:

line
    The number of the line in the order of the manifests, from 1. A record that is listed several times has only its first
    line.
file
    The number of the file (`PlannedFile`).
label, value, listed_key
    The digest: its label, its bytes, and the text by which digests are compared.
refers_uri, refers_date
    The two references of a copy, NULL for an original.
original
    The line that a copy refers to.
role
    0: the record has no duplicates; 1: it may be the original of a copy; 2: it is a copy, which may become the original of
    another copy.

Lines from rows are numbered here. Records have the same payload if both digests and the size are equal. The digests are
independent: two different payloads would have to collide in the digest of the manifest and in BLAKE2b-256. The extensions and
copy numbers equal the result of `collisions` and `ordering.number`, if all such payloads have equal bytes: extensions in the
order of the first record, by time, file and offset; a record that must not replace another one has an extension of its own.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.collisions import CollisionCounts
from scrapy_dedupe.offline.manifest import LineWriter, ManifestLine
from scrapy_dedupe.offline.reference_changes import digest_key
from scrapy_dedupe.offline.rows import (
    COLUMNS,
    PURPOSE,
    copy_to,
    create_table,
    insert_rows,
    refused,
)
from scrapy_dedupe.stores.duckdb import checked, open_engine, rows_of, source
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.tasks.faults import Faults

LINES_FILE: Final = "lines.parquet"

# If the first record of a payload cannot be the original, another one may. Reading each candidate may need a transfer.
_MOST_ORIGINALS: Final = 8

_LISTED: Final = {
    "is_main": "BOOLEAN",  # in a manifest whose files are rewritten
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
SELECT file, "offset" FROM listed WHERE is_main GROUP BY file, "offset"
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
SELECT file, "offset" FROM referred WHERE copy > 1 AND original IS NULL AND is_main ORDER BY line
"""
_LINES_OF_MANIFESTS: Final = """
CREATE TABLE line AS SELECT * EXCLUDE (first, is_main),
    CASE WHEN copy > 1 AND is_main THEN 2
         WHEN coalesce(original, line) IN (
             SELECT original FROM referred WHERE copy > 1 AND is_main AND original IS NOT NULL
         ) THEN 1
         ELSE 0 END AS role
FROM referred
"""

# Digests of which not all records have the same payload, or can replace each other. Only these need a comparison.
_MIXED: Final = """
CREATE TABLE mixed AS SELECT {algorithm} AS value FROM row WHERE is_listed GROUP BY value
HAVING count(*) > 1 AND (min(blake2b) <> max(blake2b) OR min(size_bytes) <> max(size_bytes) OR bool_or(is_alone))
"""
# The place of the first record of the payload, in the order of the records of the digest.
_DIVIDED: Final = """
CREATE TABLE divided AS SELECT file, "offset", value, is_alone, min(place) OVER (
    PARTITION BY value, blake2b, size_bytes, CASE WHEN is_alone THEN place ELSE 0 END
) AS first FROM (
    SELECT r.file, r."offset", r.{algorithm} AS value, r.blake2b, r.size_bytes, r.is_alone,
        row_number() OVER (PARTITION BY r.{algorithm} ORDER BY r.date_key, f.place, r."offset") AS place
    FROM row r JOIN file f ON f.file = r.file JOIN mixed m ON m.value = r.{algorithm} WHERE r.is_listed
)
"""
_SORTED: Final = """
CREATE TABLE sorted AS SELECT r.{algorithm} AS value, coalesce(d.first, 1) AS first, r.file, r."offset", r.length,
    r.target_uri AS uri, r.target_date AS date
FROM row r JOIN file f ON f.file = r.file LEFT JOIN divided d ON d.file = r.file AND d."offset" = r."offset"
WHERE r.is_listed ORDER BY value, first, r.date_key, f.place, r."offset"
"""
# Windows without PARTITION BY and ORDER BY read the sorted rows once, and need no memory.
_LINES_OF_ROWS: Final = """
SELECT line, file, "offset", length, '{algorithm}' AS label, value, {key} AS listed_key,
    payloads - max(CASE WHEN starts_digest THEN payloads END) OVER so_far + 1 AS extension, line - first_line + 1 AS copy, uri, date,
    CASE WHEN NOT starts_payload THEN max_by(uri, line) FILTER (starts_payload) OVER so_far END AS refers_uri,
    CASE WHEN NOT starts_payload THEN max_by(date, line) FILTER (starts_payload) OVER so_far END AS refers_date,
    CASE WHEN NOT starts_payload THEN first_line END AS original,
    CASE WHEN NOT starts_payload THEN 2 WHEN NOT ends_payload THEN 1 ELSE 0 END AS role
FROM (
    SELECT *, max(CASE WHEN starts_payload THEN line END) OVER so_far AS first_line,
        count(*) FILTER (starts_payload) OVER so_far AS payloads
    FROM (
        SELECT *, row_number() OVER () AS line, lag(value) OVER () IS DISTINCT FROM value AS starts_digest,
            lag((value, first)) OVER () IS DISTINCT FROM (value, first) AS starts_payload,
            lead((value, first)) OVER () IS DISTINCT FROM (value, first) AS ends_payload
        FROM sorted
    ) WINDOW so_far AS (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
) WINDOW so_far AS (ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
"""
_COUNTS: Final = """
SELECT count(*), count(CASE WHEN starts AND NOT ends THEN 1 END), count(CASE WHEN NOT (starts AND ends) THEN 1 END),
    (SELECT count(*) FROM (SELECT value FROM divided WHERE NOT is_alone GROUP BY value HAVING count(DISTINCT first) > 1)),
    (SELECT count(*) FROM divided WHERE is_alone)
FROM (
    SELECT lag(value) OVER () IS DISTINCT FROM value AS starts, lead(value) OVER () IS DISTINCT FROM value AS ends FROM sorted
)
"""
# Both files are in the order of the manifest. Without ORDER BY, DuckDB needs no memory for the result.
_LINES: Final = """
SELECT file, "offset", length, uri, date, label, value, extension, copy, refers_uri, refers_date FROM read_parquet({source})
"""
_USED: Final = """
SELECT file, list(DISTINCT label ORDER BY label) FROM read_parquet({source}) WHERE role > 0 GROUP BY file
"""
_IN_FILE: Final = """
SELECT {file}, "offset", length, target_uri, target_date, '{algorithm}', {algorithm} FROM read_parquet({source})
WHERE is_listed
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
) -> tuple[list[PlannedFile], str]:
    """Make ``lines.parquet`` from manifests; *files* are the files to rewrite, None: all in *lines*.

    Return the files in the order in which the manifests first name them, and a hash of the lines. Raises UsageError for
    manifests without copy numbers or with digests of decoded payloads, DamagedInput for contradictory manifests (unless
    *faults* is set to keep going), ArchiveError if the disk is full.
    """
    # Whether each file is rewritten in this run, and whether in this or another one.
    listed: dict[str, tuple[bool, bool]] = {}
    marks = hashlib.blake2b()

    def rows() -> Iterator[tuple[Any, ...]]:
        numbers: dict[str, int] = {}
        some = (line for line in originals if (line.copy or 0) <= _MOST_ORIGINALS)
        both = chain(zip(lines, repeat(True)), zip(some, repeat(False)))
        for count, (line, is_main) in enumerate(both, 1):
            _check(line)
            if line.file not in numbers:
                listed[line.file] = (is_main and files is None, is_main)
                numbers[line.file] = len(listed)
            text = (
                f"{line.file}\n{line.offset} {line.length} {line.digest} {line.extension} {line.copy}\n"
                f"{line.refers_to_uri}\n{line.refers_to_date}\n"
            )
            marks.update(text_bytes(text))
            label, _, value = line.digest.partition(":")
            yield (
                is_main,
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

    with _lines_engine(folder) as (engine, path):
        create_table(engine, "listed", _LISTED)
        insert_rows(engine, "listed", _LISTED, rows())
        main = [name for name, (_, is_main) in listed.items() if is_main]
        for name in files or ():
            # A name that is not in the manifests may be a file without any response.
            found = [name] if name in listed else [known for known in main if fnmatchcase(known, name)]
            listed |= dict.fromkeys(found or [name], (True, True))
        names = list(listed)
        for file, offset in rows_of(engine.execute(_REPEATED)):
            place = f"{names[file - 1]}, offset {offset}"
            faults.add(place, "the manifests have several different lines for this record")
        engine.execute(_KEPT)
        engine.execute(_REFERRED)
        for file, offset in rows_of(engine.execute(_WITHOUT_ORIGINAL)):
            faults.add(
                f"{names[file - 1]}, offset {offset}",
                "the original of this copy is in none of the manifests. Name the manifest that lists it with --originals",
            )
        engine.execute(_LINES_OF_MANIFESTS)
        return _written(engine, "SELECT * FROM line ORDER BY line", path, listed), marks.hexdigest()


def number_rows(
    folder: Path, rows: Mapping[str, Path], algorithm: str
) -> tuple[list[PlannedFile], CollisionCounts]:
    """Make ``lines.parquet`` from the rows of files, by their names; *algorithm* is the digest of the lines.

    Return the files in the same order. Raises ArchiveError if the disk is full.
    """
    with _lines_engine(folder) as (engine, path):
        view_rows(engine, dict(enumerate(rows.values(), 1)))
        columns = {"file": "BIGINT", "place": "BIGINT"}
        create_table(engine, "file", columns)
        names = {name: name.encode("utf-8", "surrogateescape") for name in rows}
        places = {name: place for place, name in enumerate(sorted(rows, key=names.__getitem__))}
        insert_rows(engine, "file", columns, enumerate(map(places.__getitem__, rows), 1))
        engine.execute("SET preserve_insertion_order = true")
        for statement in (_MIXED, _DIVIDED, _SORTED):
            engine.execute(statement.format(algorithm=algorithm))
        (counts,) = engine.execute(_COUNTS).fetchall()
        key = f"'{algorithm}:' || lower(hex(value))"
        if algorithm == "sha1":  # compared in Base32
            key = "sha1_key(value)"
            engine.create_function("sha1_key", _sha1_key, ["BLOB"], "VARCHAR")
        query = _LINES_OF_ROWS.format(algorithm=algorithm, key=key)
        return _written(engine, query, path, dict.fromkeys(rows, (True, True))), CollisionCounts(*counts)


@contextmanager
def _lines_engine(folder: Path) -> Iterator[tuple[Any, Path]]:
    """DuckDB, and the temporary path of ``lines.parquet``, which exists after the block."""
    path, scratch = folder / LINES_FILE, folder / "scratch"
    with writing(path), whole_file.replacing_from(path, suffix=".new") as temporary:
        with open_engine(PURPOSE, lambda text: refused(path, text), scratch) as engine:
            yield engine, temporary
        shutil.rmtree(scratch, ignore_errors=True)


def _written(
    engine: Any, query: str, path: Path, files: Mapping[str, tuple[bool, bool]]
) -> list[PlannedFile]:
    """Write the lines of a query to *path*; return the files with these names, and their values ``is_output`` and ``is_main``."""
    copy_to(engine, query, path, {})
    used = dict(engine.execute(_USED.format(source=source(path))).fetchall())
    return [
        PlannedFile(number, name, is_output, is_main, number in used, used.get(number, []))
        for number, (name, (is_output, is_main)) in enumerate(files.items(), 1)
    ]


def list_lines(folder: Path, files: Iterable[PlannedFile], manifest: Path) -> None:
    """Write the lines in ``lines.parquet`` as a numbered manifest. Raises ArchiveError if the disk is full."""
    query = _LINES.format(source=source(folder / LINES_FILE))
    _write_manifest([query], {file.id: file.name for file in files}, manifest, columns=10)


def list_rows(rows: Mapping[str, Path], algorithm: str, manifest: Path) -> None:
    """Write the manifest of six columns of the files with these names and rows. Raises ArchiveError if the disk is full."""
    queries = [
        _IN_FILE.format(file=file, algorithm=algorithm, source=source(path))
        for file, path in enumerate(rows.values())
    ]
    _write_manifest(queries, dict(enumerate(rows)), manifest, columns=6)


def _write_manifest(
    queries: Iterable[str], names: Mapping[int, str], manifest: Path, *, columns: int
) -> None:
    with (
        open_engine(PURPOSE, lambda text: refused(manifest, text)) as engine,
        LineWriter(manifest, columns=columns, force=True) as writer,
    ):
        found = chain.from_iterable(rows_of(engine.execute(query)) for query in queries)
        for file, offset, length, uri, date, label, value, *numbers in found:
            if numbers and numbers[2] is not None:
                numbers[2] = bytes_text(numbers[2])
            digest = f"{label}:{value.hex()}"
            writer.write(ManifestLine(names[file], offset, length, bytes_text(uri), date, digest, *numbers))


def view_rows(engine: Any, rows: Mapping[int, Path]) -> None:
    """Create the table ``row_file`` with the numbers of files, and the view ``row``: all rows, with the column ``file``."""
    columns = {"path": "VARCHAR", "file": "BIGINT"}
    create_table(engine, "row_file", columns)
    insert_rows(engine, "row_file", columns, ((checked(path), number) for number, path in rows.items()))
    if not rows:
        create_table(engine, "row", {"file": "BIGINT", **COLUMNS})
        return
    engine.execute(f"CREATE VIEW row AS {rows_query(rows)}")


def rows_query(rows: Mapping[int, Path]) -> str:
    """A query for the view ``row`` of some files in the table ``row_file``."""
    names = ", ".join(f'r."{name}"' for name in COLUMNS)
    return (
        f"SELECT f.file, {names} FROM read_parquet([{', '.join(map(source, rows.values()))}], filename = true) r"  # noqa: S608
        " JOIN row_file f ON f.path = r.filename"
    )


def text_bytes(text: str) -> bytes:
    """Encode a URI or a file name for the database, which rejects text that is not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The inverse of `text_bytes`."""
    return bytes(data).decode("utf-8", "surrogatepass")


def _sha1_key(value: bytes) -> str | None:
    return digest_key(f"sha1:{bytes(value).hex()}")


def _check(line: ManifestLine) -> None:
    """Raise UsageError for a line from which no plan can be made."""
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
