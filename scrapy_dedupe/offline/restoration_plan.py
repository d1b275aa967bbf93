"""The plan of a restoration, in an SQLite file, so that its size is limited only by the disk and it survives a kill.

Tables:

``files``      files that are read: number, place, path of the output (None: it is only searched for originals), and
               whether it is compressed; paths are bytes, since a file name need not be valid text
``changes``    records that get a new head: file, offset, length, and state (0 open, 1 changed, 2 left unchanged). Those
               that become responses have more columns: former id (None: written by another program), URI, date, their
               reference, how messages describe their original, the record itself, uncompressed (None if it is large), and
               the reason for state 2. A restored record is in a file of `restored_records`: the rank and the file of its
               original, its position and its size
``candidates`` the possible originals of each revisit, the best one with rank 0; records in one gzip member have the same
               offset and different positions
``named``      payload digests that identify the originals of other programs' revisits whose references are reverted
``facts``      JSON values by name: the options of the run, its progress, faults

Dates are compared as times: ``2020-01-01T00:00:00Z`` and ``2020-01-01T00:00:00.000Z`` are equal.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.references import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Self

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, place BLOB, output BLOB, is_gzip INTEGER);
CREATE TABLE IF NOT EXISTS changes (file INTEGER, offset INTEGER, length INTEGER, state INTEGER, former_id TEXT, uri TEXT,
  date TEXT, reference TEXT, words TEXT, record BLOB, reason TEXT, rank INTEGER, original_file INTEGER, position INTEGER,
  size INTEGER, PRIMARY KEY (file, offset));
CREATE TABLE IF NOT EXISTS candidates (rank INTEGER, file INTEGER, offset INTEGER, position INTEGER,
  revisit_file INTEGER, revisit_offset INTEGER, PRIMARY KEY (rank, file, offset, position, revisit_file, revisit_offset))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS named (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS staying_by_id ON changes (former_id) WHERE state = 2;
CREATE INDEX IF NOT EXISTS staying_by_uri ON changes (uri, date) WHERE state = 2;
"""


@dataclass(frozen=True, slots=True)
class PlannedRestoration:
    """A record that becomes a response. ``former_id`` is None if another program wrote the revisit.

    ``words`` describes its original in messages.
    """

    file: int
    offset: int
    length: int
    former_id: str | None
    uri: str | None
    date: str | None
    reference: Reference[str]
    words: str


class Candidate(NamedTuple):
    """A possible original of a revisit, the places of both, and the revisit itself, uncompressed (None if it is large).

    ``is_gzip``: the file of the revisit is compressed.
    """

    offset: int
    position: int
    revisit_file: int
    revisit_offset: int
    record: bytes | None
    is_gzip: int


class Made(NamedTuple):
    """The result for one candidate: why it is not the original, or else the place of the restored record."""

    revisit_file: int
    revisit_offset: int
    reason: str | None
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Change:
    """A record that gets a new head: its references are reverted, or it becomes a response.

    In the second case ``rank``, ``original_file``, ``position`` and ``size`` are the place of the restored record.
    """

    offset: int
    length: int
    rank: int | None
    original_file: int | None
    position: int | None
    size: int | None


class RestorationPlan:
    """Context manager for the plan in the file *path*; uncommitted changes are lost on exit."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        with self._as_archive_errors():
            where = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._base = sqlite3.connect(where, uri=True, isolation_level=None)
            self._base.execute("PRAGMA cache_size = -32768")
            if not read_only:
                self._base.execute("PRAGMA journal_mode = WAL")
                self._base.executescript(_TABLES)
                self._base.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def commit(self) -> None:
        """Commit all changes so far."""
        with self._as_archive_errors():
            self._base.execute("COMMIT")
            self._base.execute("BEGIN")

    def fact(self, name: str) -> Any:
        """A fact by name; None if it does not exist."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    def set_fact(self, name: str, value: Any) -> None:
        """Set a fact."""
        self._do("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, json.dumps(value))

    def add_file(self, number: int, place: str, output: str | None, *, is_gzip: bool = False) -> None:
        """Add a file that is read."""
        self._do(
            "INSERT INTO files VALUES (?, ?, ?, ?)",
            number,
            os.fsencode(place),
            None if output is None else os.fsencode(output),
            is_gzip,
        )

    def place(self, file: int) -> str:
        """The place of a file."""
        return os.fsdecode(self._rows("SELECT place FROM files WHERE number = ?", file)[0][0])

    def add_change(self, file: int, offset: int, length: int) -> None:
        """Add a record whose references are reverted."""
        self._do(
            "INSERT INTO changes (file, offset, length, state) VALUES (?, ?, ?, 1)", file, offset, length
        )

    def add_named(self, digest: str) -> None:
        """Add a payload digest that identifies the original of a revisit whose reference is reverted."""
        self._do("INSERT OR IGNORE INTO named VALUES (?)", digest)

    def is_named(self, digest: str) -> bool:
        """Whether `add_named` was called with this payload digest."""
        return bool(self._rows("SELECT 1 FROM named WHERE digest = ?", digest.strip()))

    def add_revisit(self, revisit: PlannedRestoration, record: bytes | None) -> None:
        """Add a record that becomes a response; *record* as in `Candidate`."""
        self._do(
            "INSERT INTO changes (file, offset, length, state, former_id, uri, date, reference, words, record)"
            " VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?, ?)",
            revisit.file,
            revisit.offset,
            revisit.length,
            revisit.former_id,
            revisit.uri,
            time_of(revisit.date),
            json.dumps(asdict(revisit.reference)),
            revisit.words,
            record,
        )

    def add_candidates(self, revisit: PlannedRestoration, originals: Iterable[tuple[int, int, int]]) -> None:
        """Add the possible originals of a revisit, the best one first, as file, offset and position."""
        for rank, place in enumerate(originals):
            values = rank, *place, revisit.file, revisit.offset
            self._do("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?)", *values)

    def ranks(self) -> range:
        """All ranks of candidates."""
        return range(1 + self._rows("SELECT coalesce(max(rank), -1) FROM candidates")[0][0])

    def files_with_candidates(self, rank: int) -> list[int]:
        """The files with candidates of this rank for a revisit whose original has not been found."""
        rows = self._rows(
            "SELECT DISTINCT c.file FROM candidates c JOIN changes r ON r.file = revisit_file AND r.offset = revisit_offset"
            " WHERE c.rank = ? AND state = 0 ORDER BY c.file",
            rank,
        )
        return [int(file) for (file,) in rows]

    def candidates(self, rank: int, file: int) -> Iterator[Candidate]:
        """The candidates of this rank in a file for revisits whose original has not been found, in order."""
        rows = self._base.execute(
            "SELECT c.offset, c.position, revisit_file, revisit_offset, record, is_gzip FROM candidates c"
            " JOIN changes r ON r.file = revisit_file AND r.offset = revisit_offset"
            " JOIN files ON number = revisit_file"
            " WHERE c.rank = ? AND c.file = ? AND state = 0"
            " ORDER BY c.offset, c.position, revisit_file, revisit_offset",
            (rank, file),
        )
        with self._as_archive_errors():
            yield from map(Candidate._make, rows)

    def take_made(self, rank: int, file: int, made: Iterable[Made]) -> None:
        """Store the results for the candidates of one rank and file."""
        for one in made:
            place = one.revisit_file, one.revisit_offset
            if one.reason is None:
                self._do(
                    "UPDATE changes SET state = 1, rank = ?, original_file = ?, position = ?, size = ?"
                    " WHERE file = ? AND offset = ?",
                    rank, file, one.position, one.size, *place,
                )  # fmt: skip
            else:
                statement = "UPDATE changes SET reason = coalesce(reason, ?) WHERE file = ? AND offset = ?"
                self._do(statement, one.reason, *place)

    def unresolved(self) -> Iterator[tuple[PlannedRestoration, str | None]]:
        """The revisits without an original, in file order, with the reason against their first candidate."""
        with self._as_archive_errors():
            for *values, reference, words, reason in self._base.execute(
                "SELECT file, offset, length, former_id, uri, date, reference, words, reason"
                " FROM changes WHERE state <> 1 AND reference IS NOT NULL ORDER BY file, offset"
            ):
                yield PlannedRestoration(*values, Reference(**json.loads(reference)), words), reason  # type: ignore[call-arg]

    def leave_unresolved(self) -> int:
        """Leave the revisits without an original unchanged. Return their number."""
        self._do("UPDATE changes SET state = 2 WHERE state = 0")
        return int(self._rows("SELECT count(*) FROM changes WHERE state = 2")[0][0])

    def pointed(self) -> list[tuple[int, int]]:
        """File and offset of the changed records that do not become responses."""
        return self._rows(
            "SELECT file, offset FROM changes WHERE state = 1 AND reference IS NULL ORDER BY file, offset"
        )

    def remove_change(self, file: int, offset: int) -> None:
        """Leave a record unchanged."""
        self._do("DELETE FROM changes WHERE file = ? AND offset = ?", file, offset)

    def counts(self) -> tuple[int, int]:
        """The number of revisits that become responses, and the number of other changed records."""
        statement = "SELECT count(reference), count(*) - count(reference) FROM changes WHERE state = 1"
        restored, pointed = self._rows(statement)[0]
        return int(restored), int(pointed)

    def stays(self, record_id: str | None, uri: str | None, date: str | None) -> bool:
        """Whether a revisit whose response had this id, or this URI and date, is not restored."""
        by_id = record_id and self._rows(
            "SELECT 1 FROM changes WHERE state = 2 AND former_id = ? LIMIT 1", record_id
        )
        by_uri = uri and self._rows(
            "SELECT 1 FROM changes WHERE state = 2 AND former_id IS NOT NULL AND uri = ? AND date = ? LIMIT 1",
            uri,
            time_of(date),
        )
        return bool(by_id or by_uri)

    def outputs(self) -> list[tuple[int, str, str, int]]:
        """The files that are written: number, place, output, and the number of changed records."""
        rows = self._rows(
            "SELECT number, place, output, (SELECT count(*) FROM changes WHERE file = number AND state = 1) FROM files"
            " WHERE output IS NOT NULL ORDER BY number"
        )
        return [
            (int(number), os.fsdecode(place), os.fsdecode(output), int(count))
            for number, place, output, count in rows
        ]

    def changes(self, file: int) -> Iterator[Change]:
        """The changed records of a file, in order."""
        with self._as_archive_errors():
            for row in self._base.execute(
                "SELECT offset, length, rank, original_file, position, size FROM changes"
                " WHERE file = ? AND state = 1 ORDER BY offset",
                (file,),
            ):
                yield Change(*row)

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._as_archive_errors(), closing(self._base.execute(statement, values)) as cursor:
            return cursor.fetchall()

    def _do(self, statement: str, *values: object) -> None:
        with self._as_archive_errors():
            self._base.execute(statement, values)

    @contextmanager
    def _as_archive_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ArchiveError(
                f"{self.path} cannot be used: {error}. Free some space, or remove the folder {self.path.parent} and"
                " start again."
            ) from error


def time_of(date: str | None) -> str | None:
    """Normalize a date, so that equal times have equal texts; an invalid date is returned unchanged."""
    try:
        return parse_date(date).isoformat() if date else date
    except ValueError:
        return date
