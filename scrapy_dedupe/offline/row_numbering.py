"""Manifests made from rows: of six columns, or of ten columns with the records numbered by payload.

Records have the same payload if both digests and the size are equal. The digests are independent: two different payloads
would have to collide in the digest of the manifest and in BLAKE2b-256. The extensions and copy numbers equal the result of
`collisions` and `ordering.number`, if all such payloads have equal bytes: extensions in the order of the first record, by time,
file and offset; a record that must not replace another one has an extension of its own.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.collisions import CollisionCounts
from scrapy_dedupe.offline.engine import checked, open_engine, rows_of, source
from scrapy_dedupe.offline.manifest import LineWriter, ManifestLine
from scrapy_dedupe.offline.rows import PURPOSE, create_table, insert_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_LISTED: Final = """
CREATE VIEW listed AS SELECT f.file, f.name, r."offset", r.length, r.target_uri AS uri, r.target_date AS date, r.moment,
    r.{algorithm} AS value, r.blake2b, r.size_bytes, r.is_alone
FROM read_parquet([{sources}], filename = true) r JOIN row_file f ON f.path = r.filename WHERE r.is_listed
"""
_PLACED: Final = """
CREATE TABLE placed AS SELECT *,
    row_number() OVER (PARTITION BY value ORDER BY moment, name, "offset") AS place,
    count(*) OVER (PARTITION BY value) AS lines
FROM listed
"""
_FIRST: Final = """
CREATE TABLE payload AS SELECT *,
    min(place) OVER (
        PARTITION BY value, blake2b, size_bytes, CASE WHEN is_alone AND lines > 1 THEN place ELSE 0 END
    ) AS first
FROM placed
"""
_NUMBERED: Final = """
SELECT p.file, p."offset", p.length, p.uri, p.date, p.value,
    dense_rank() OVER (PARTITION BY p.value ORDER BY p.first) AS extension,
    row_number() OVER (PARTITION BY p.value, p.first ORDER BY p.place) AS copy,
    CASE WHEN p.place > p.first THEN o.uri END AS refers_uri,
    CASE WHEN p.place > p.first THEN o.date END AS refers_date
FROM payload p JOIN payload o ON o.value = p.value AND o.place = p.first
ORDER BY p.value, p.first, p.place
"""
_COUNTS: Final = """
SELECT count(*), count(DISTINCT CASE WHEN lines > 1 THEN value END), count(CASE WHEN lines > 1 THEN 1 END),
    count(CASE WHEN lines > 1 AND is_alone THEN 1 END) FROM payload
"""
_COLLISIONS: Final = """
SELECT count(*) FROM (
    SELECT value FROM payload WHERE lines > 1 AND NOT is_alone GROUP BY value HAVING count(DISTINCT first) > 1
)
"""
_IN_FILES: Final = 'SELECT file, "offset", length, uri, date, value FROM listed ORDER BY file, "offset"'


def number_rows(rows: Mapping[str, Path], algorithm: str, manifest: Path) -> CollisionCounts:
    """Write the numbered manifest of the files with these names and rows. Raises ArchiveError if the disk is full."""
    with _listed(rows, algorithm, manifest) as engine:
        engine.execute(_PLACED)
        engine.execute(_FIRST)
        engine.execute("DROP TABLE placed")
        ((lines, digests, compared, alone),) = engine.execute(_COUNTS).fetchall()
        ((collisions,),) = engine.execute(_COLLISIONS).fetchall()
        _write(engine, _NUMBERED, rows, algorithm, manifest, columns=10)
    return CollisionCounts(lines, digests, compared, collisions, alone)


def list_rows(rows: Mapping[str, Path], algorithm: str, manifest: Path) -> None:
    """Write the manifest of six columns of the files with these names and rows. Raises ArchiveError if the disk is full."""
    with _listed(rows, algorithm, manifest) as engine:
        _write(engine, _IN_FILES, rows, algorithm, manifest, columns=6)


@contextmanager
def _listed(rows: Mapping[str, Path], algorithm: str, manifest: Path) -> Iterator[Any]:
    def refused(text: str) -> ArchiveError:
        return ArchiveError(
            f"The manifest {manifest} cannot be written: {text}. Free some space, or choose another place."
        )

    columns = {"path": "VARCHAR", "file": "BIGINT", "name": "BLOB"}
    with open_engine(PURPOSE, refused, manifest.parent / "scratch") as engine:
        create_table(engine, "row_file", columns)
        insert_rows(
            engine,
            "row_file",
            columns,
            (
                (checked(path), number, name.encode("utf-8", "surrogateescape"))
                for number, (name, path) in enumerate(rows.items())
            ),
        )
        engine.execute(_LISTED.format(algorithm=algorithm, sources=", ".join(map(source, rows.values()))))
        yield engine


def _write(
    engine: Any, query: str, rows: Mapping[str, Path], algorithm: str, manifest: Path, *, columns: int
) -> None:
    names = list(rows)
    with LineWriter(manifest, columns=columns, force=True) as writer:
        for file, offset, length, uri, date, value, *numbers in rows_of(engine.execute(query)):
            if numbers and numbers[2] is not None:
                numbers[2] = numbers[2].decode("utf-8", "surrogatepass")
            text = uri.decode("utf-8", "surrogatepass")
            digest = f"{algorithm}:{value.hex()}"
            writer.write(ManifestLine(names[file], offset, length, text, date, digest, *numbers))
