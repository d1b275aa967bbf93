"""Lines and manifests made from rows.

Records have the same payload if both digests and the size are equal. The digests are independent: two different payloads
would have to collide in the digest of the manifest and in BLAKE2b-256. The extensions and copy numbers equal the result of
`collisions` and `ordering.number`, if all such payloads have equal bytes: extensions in the order of the first record, by time,
file and offset; a record that must not replace another one has an extension of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.offline.collisions import CollisionCounts
from scrapy_dedupe.offline.engine import checked, open_engine, rows_of, source
from scrapy_dedupe.offline.manifest import LineWriter, ManifestLine
from scrapy_dedupe.offline.plan_lines import LINES_FILE, bytes_text, lines_file, read_notes
from scrapy_dedupe.offline.reference_changes import digest_key
from scrapy_dedupe.offline.rows import COLUMNS, PURPOSE, create_table, insert_rows, refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PLACED: Final = """
CREATE TABLE placed AS SELECT r.file, r."offset", r.length, r.target_uri AS uri, r.target_date AS date, r.{algorithm} AS value,
    r.blake2b, r.size_bytes, r.is_alone,
    row_number() OVER (PARTITION BY r.{algorithm} ORDER BY r.moment, f.name, r."offset") AS place,
    count(*) OVER (PARTITION BY r.{algorithm}) AS lines
FROM row r JOIN file f ON f.file = r.file WHERE r.is_listed
"""
_PAYLOADS: Final = """
CREATE TABLE payload AS SELECT * EXCLUDE (blake2b, size_bytes),
    min(place) OVER (
        PARTITION BY value, blake2b, size_bytes, CASE WHEN is_alone AND lines > 1 THEN place ELSE 0 END
    ) AS first
FROM placed
"""
_NUMBERED: Final = """
CREATE TABLE numbered AS SELECT *,
    row_number() OVER (ORDER BY value, first, place) AS line,
    dense_rank() OVER (PARTITION BY value ORDER BY first) AS extension,
    row_number() OVER (PARTITION BY value, first ORDER BY place) AS copy,
    count(*) OVER (PARTITION BY value, first) AS copies
FROM payload
"""
_LINES_OF_ROWS: Final = """
CREATE TABLE line AS SELECT n.line, n.file, n."offset", n.length, '{algorithm}' AS label, n.value, {key} AS listed_key,
    n.extension, n.copy, n.uri, n.date, o.uri AS refers_uri, o.date AS refers_date, o.line AS original,
    CASE WHEN n.copy > 1 THEN 2 WHEN n.copies > 1 THEN 1 ELSE 0 END AS role
FROM numbered n LEFT JOIN numbered o ON n.copy > 1 AND o.value = n.value AND o.first = n.first AND o.copy = 1
"""
_COUNTS: Final = """
SELECT count(*), count(DISTINCT CASE WHEN lines > 1 THEN value END), count(CASE WHEN lines > 1 THEN 1 END), (
    SELECT count(*) FROM (
        SELECT value FROM payload WHERE lines > 1 AND NOT is_alone GROUP BY value HAVING count(DISTINCT first) > 1
    )
), count(CASE WHEN lines > 1 AND is_alone THEN 1 END) FROM payload
"""
_LINES: Final = """
SELECT file, "offset", length, uri, date, label, value, extension, copy, refers_uri, refers_date FROM read_parquet({source})
ORDER BY line
"""
_IN_FILES: Final = """
SELECT file, "offset", length, target_uri, target_date, '{algorithm}' AS label, {algorithm} FROM row WHERE is_listed
ORDER BY file, "offset"
"""


def number_rows(folder: Path, rows: Mapping[str, Path], algorithm: str) -> CollisionCounts:
    """Make ``lines.parquet`` from the rows of files, by their names; *algorithm* is the digest of the lines.

    Raises ArchiveError if the disk is full.
    """
    with lines_file(folder) as (engine, write):
        view_rows(engine, dict(enumerate(rows.values(), 1)))
        columns = {"file": "BIGINT", "name": "BLOB"}
        create_table(engine, "file", columns)
        names = (name.encode("utf-8", "surrogateescape") for name in rows)
        insert_rows(engine, "file", columns, enumerate(names, 1))
        engine.execute(_PLACED.format(algorithm=algorithm))
        engine.execute(_PAYLOADS)
        engine.execute("DROP TABLE placed")
        (counts,) = engine.execute(_COUNTS).fetchall()
        engine.execute(_NUMBERED)
        engine.execute("DROP TABLE payload")
        key = f"'{algorithm}:' || lower(hex(n.value))"
        if algorithm == "sha1":  # compared in Base32
            key = "sha1_key(n.value)"
            engine.create_function("sha1_key", _sha1_key, ["BLOB"], "VARCHAR")
        engine.execute(_LINES_OF_ROWS.format(algorithm=algorithm, key=key))
        write(dict.fromkeys(rows, (True, True)), "")
    return CollisionCounts(*counts)


def list_lines(folder: Path, manifest: Path) -> None:
    """Write the lines in ``lines.parquet`` as a numbered manifest. Raises ArchiveError if the disk is full."""
    files, _ = read_notes(folder)
    with open_engine(PURPOSE, lambda text: refused(manifest, text)) as engine:
        names = {file.id: file.name for file in files}
        _write_manifest(
            engine, _LINES.format(source=source(folder / LINES_FILE)), names, manifest, columns=10
        )


def list_rows(rows: Mapping[str, Path], algorithm: str, manifest: Path) -> None:
    """Write the manifest of six columns of the files with these names and rows. Raises ArchiveError if the disk is full."""
    with open_engine(PURPOSE, lambda text: refused(manifest, text), manifest.parent / "scratch") as engine:
        view_rows(engine, dict(enumerate(rows.values())))
        query = _IN_FILES.format(algorithm=algorithm)
        _write_manifest(engine, query, dict(enumerate(rows)), manifest, columns=6)


def _write_manifest(
    engine: Any, query: str, names: Mapping[int, str], manifest: Path, *, columns: int
) -> None:
    with LineWriter(manifest, columns=columns, force=True) as writer:
        for file, offset, length, uri, date, label, value, *numbers in rows_of(engine.execute(query)):
            if numbers and numbers[2] is not None:
                numbers[2] = bytes_text(numbers[2])
            digest = f"{label}:{value.hex()}"
            writer.write(ManifestLine(names[file], offset, length, bytes_text(uri), date, digest, *numbers))


def view_rows(engine: Any, rows: Mapping[int, Path]) -> None:
    """Create the view ``row``, the rows of files with the column file, and the table ``row_file`` with these numbers."""
    places = [(checked(path), number) for number, path in rows.items()]
    create_table(engine, "row_file", {"path": "VARCHAR", "file": "BIGINT"})
    insert_rows(engine, "row_file", {"path": "VARCHAR", "file": "BIGINT"}, places)
    names = ", ".join(f'r."{name}"' for name in COLUMNS)
    engine.execute(
        f"CREATE VIEW row AS SELECT f.file, {names} FROM read_parquet([{', '.join(map(source, rows.values()))}],"  # noqa: S608
        " filename = true) r JOIN row_file f ON f.path = r.filename"
    )


def _sha1_key(value: bytes) -> str | None:
    return digest_key(f"sha1:{bytes(value).hex()}")
