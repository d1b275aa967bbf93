"""Rows: one for each record of a file, with all that the plan needs to know about it, as a Parquet file.

A file is read once (`row_scan`); everything up to the plan works on its rows. The columns of version 3:

===================  =======  ======================================================================================
offset, length       BIGINT   stored bytes; length 0: the record shares a gzip member with others
kind                 VARCHAR  the type of the record, in lower case
id_key               BLOB     WARC-Record-ID without angle brackets
id                   BLOB     WARC-Record-ID as stored; this and the next five only of captures and revisits
uri                  BLOB     WARC-Target-URI as stored, without angle brackets; of an ARC record the URL in UTF-8
date                 BLOB     WARC-Date as stored
date_key             VARCHAR  the time as text that sorts by time (`dates.date_key`)
digest               BLOB     WARC-Payload-Digest as stored; for a capture without it, the SHA-1 of its payload
digest_key           VARCHAR  the same text for all forms of one digest (`reference_changes.digest_key`)
concurrent_to        BLOB[]   WARC-Concurrent-To, without angle brackets
refers_to            BLOB[]   WARC-Refers-To, without angle brackets
refers_uris          BLOB[]   WARC-Refers-To-Target-URI, without angle brackets
refers_date_key      VARCHAR  the key of WARC-Refers-To-Date
stored               BLOB     BLAKE2b-256 of the stored bytes; NULL if they are more than 1 MiB or shared with other records
is_gzip              BOOLEAN  the record is a gzip member
is_fixed             BOOLEAN  the record refers to others and cannot be changed
is_other_method      BOOLEAN  a request with another method than GET
is_listed            BOOLEAN  a capture that has a line in a manifest made from the rows
target_uri           BLOB     the URI of this line, in UTF-8
target_date          VARCHAR  the date of this line
md5, sha1, sha256,   BLOB     digests of the payload, as requested
sha512, blake2b
size_bytes           BIGINT   the size of the payload
is_alone             BOOLEAN  the record must not replace another one: it is not whole, or has more than its payload
reason               VARCHAR  why the record cannot become a revisit, a key of `eligibility.LEFT`; else NULL
unfit                VARCHAR  why no revisit can refer to the record; else NULL
is_chunked           BOOLEAN  the body is stored in chunks
mime                 VARCHAR  the media type of the HTTP response, without parameters
heads_bytes          BIGINT   the size of the WARC head and the HTTP head
start                BLOB     both heads of a response that may become a revisit; of a record of another type that refers to
                              others and can be changed, the head and the block, if the block has at most 4 KiB
head_bytes           BIGINT   the size of the WARC head in ``start``
block_bytes          BIGINT   the size of the block; this and ``head_bytes`` are only set with ``start``
===================  =======  ======================================================================================

``blake2b`` is BLAKE2b with 32 bytes (RFC 7693), a second digest that is independent of the others. The columns from
``target_uri`` to ``heads_bytes`` are only set for captures (``response`` and ``resource``). ``stored`` and the last three columns
are the facts with which a verification need not read the file again (`old_files`). The key ``scrapy-dedupe`` of the Parquet
metadata holds a JSON object with ``version``.

The file gets its name when it is complete, so its existence proves that the input file was read to its end.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.stores.duckdb import open_engine, quoted, source
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.offline.eligibility import Eligibility
    from scrapy_dedupe.warc.sources import ReadableFile

VERSION: Final = 4
PURPOSE: Final = "Deduplicating an archive"
SECOND: Final = "blake2b"
"""The name of the second digest, as a column and for `warc.bodies.hasher_of`."""

_KEY: Final = "scrapy-dedupe"
_BATCH: Final = 8_192
# Rows in memory. With heads of usual size, more of them would exceed DuckDB's limit, which then writes them to scratch files
# several times.
_MOST_ROWS: Final = 8 * _BATCH


class RecordRow(NamedTuple):
    """A record of a file; see the module for its values."""

    offset: int
    length: int
    kind: str
    id: bytes | None = None
    id_key: bytes | None = None
    uri: bytes | None = None
    date: bytes | None = None
    date_key: str | None = None
    digest: bytes | None = None
    digest_key: str | None = None
    concurrent_to: Sequence[bytes] | None = None
    refers_to: Sequence[bytes] | None = None
    refers_uris: Sequence[bytes] | None = None
    refers_date_key: str | None = None
    stored: bytes | None = None
    is_gzip: bool = False
    is_fixed: bool = False
    is_other_method: bool = False
    is_listed: bool = False
    target_uri: bytes | None = None
    target_date: str | None = None
    md5: bytes | None = None
    sha1: bytes | None = None
    sha256: bytes | None = None
    sha512: bytes | None = None
    blake2b: bytes | None = None
    size_bytes: int | None = None
    is_alone: bool | None = None
    reason: str | None = None
    unfit: str | None = None
    is_chunked: bool | None = None
    mime: str | None = None
    heads_bytes: int | None = None
    start: bytes | None = None
    head_bytes: int | None = None
    block_bytes: int | None = None


_TYPES: Final = {
    "BIGINT": "offset length size_bytes heads_bytes head_bytes block_bytes",
    "BLOB[]": "concurrent_to refers_to refers_uris",
    "BOOLEAN": "is_gzip is_fixed is_other_method is_listed is_alone is_chunked",
    "VARCHAR": "kind date_key digest_key refers_date_key target_date reason unfit mime",
}
_TYPE_OF: Final = {name: kind for kind, names in _TYPES.items() for name in names.split()}
COLUMNS: Final = {name: _TYPE_OF.get(name, "BLOB") for name in RecordRow._fields}
"""The columns of a file of rows, and their types."""


@dataclass(frozen=True, slots=True)
class RowsTask:
    """A file to read; a `FileTask` that writes its rows to ``path`` with the suffix ``.parquet``.

    ``name`` is the name of the file in manifests. ``algorithms`` are the digests of payloads. ``is_summed``: records get lines
    of a manifest, and everything that `digests` reports as a fault is one; then the first algorithm is that of the
    manifest.
    """

    name: str
    file: ReadableFile
    path: Path
    eligibility: Eligibility
    algorithms: tuple[str, ...]
    is_summed: bool

    @property
    def target(self) -> Path:
        return self.path.with_suffix(".parquet")

    @property
    def outputs(self) -> tuple[Path]:
        return (self.target,)

    @property
    def depends_on(self) -> object:
        return [VERSION, self.eligibility.to_json(), self.algorithms, self.is_summed]


def write_rows(path: Path, rows: Iterable[RecordRow]) -> None:
    """Write a file of rows.

    Raises ArchiveError for system errors, SettingError if DuckDB is not installed, and the exceptions of *rows*.
    """
    with writing(path), whole_file.replacing_from(path, suffix=".new") as temporary:
        scratch = temporary.with_name(f"{temporary.name}.scratch")
        with open_engine(PURPOSE, lambda text: refused(path, text), scratch) as engine:
            # Keep the order of the rows, since sorting rows with heads would need much memory.
            engine.execute("SET preserve_insertion_order = true")
            rest = iter(rows)
            queries: list[str] = []
            create_table(engine, "data", COLUMNS)
            while insert_rows(engine, "data", COLUMNS, islice(rest, _MOST_ROWS)) == _MOST_ROWS:
                scratch.mkdir(exist_ok=True)
                part = scratch / f"{len(queries)}.parquet"
                copy_to(engine, "SELECT * FROM data", part, {})
                queries.append(f"SELECT * FROM read_parquet({source(part)})")  # noqa: S608 - a path
                engine.execute("DROP TABLE data")
                create_table(engine, "data", COLUMNS)
            queries.append("SELECT * FROM data")
            copy_to(engine, " UNION ALL ".join(queries), temporary, {"version": VERSION})
        shutil.rmtree(scratch, ignore_errors=True)


def create_table(engine: Any, table: str, columns: Mapping[str, str]) -> None:
    """Create a table with these columns and SQL types."""
    described = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    engine.execute(f"CREATE TABLE {table} ({described})")


def insert_rows(engine: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> int:
    """Insert rows into a table in batches; return their number."""
    left, count = iter(rows), 0
    while batch := list(islice(left, _BATCH)):
        # DuckDB reads arrays of Python objects much faster than parameters.
        arrays = {
            name: _array(values, kind)
            for (name, kind), values in zip(columns.items(), zip(*batch, strict=True), strict=True)
        }
        engine.register("batch", arrays)
        engine.execute(f"INSERT INTO {table} SELECT * FROM batch")  # noqa: S608 - constant names
        engine.unregister("batch")
        count += len(batch)
    return count


def _array(values: tuple[Any, ...], kind: str) -> Any:
    # Imported when it is needed, since the command line imports this module.
    import numpy as np

    array = np.empty(len(values), object)
    if kind.endswith("[]"):
        # An assignment of lists would make an array of several dimensions.
        for index, value in enumerate(values):
            array[index] = value
    else:
        array[:] = values
    return array


def copy_to(engine: Any, query: str, path: Path, about: Mapping[str, Any]) -> None:
    """Write the result of a query to a Parquet file with *about* in its metadata."""
    text = json.dumps(about).replace("'", "''")
    # Small groups: a group is in memory while it is written, and some rows have long heads.
    options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192, KV_METADATA {{'{_KEY}': '{text}'}}"
    engine.execute(f"COPY ({query}) TO {quoted(path)} ({options})")


def refused(path: Path, text: str) -> ArchiveError:
    """The error for a file that DuckDB cannot write; *text* is its reason."""
    return ArchiveError(
        f"{path} cannot be written: {text}. Check the free space and the permissions, or choose another place."
    )
