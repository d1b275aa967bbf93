"""What a restoration has to do, in an SQLite file, so that it is bounded by the disk and survives a kill.

Tables:

``files``      what is read: number, place, path of the output (None: only originals are looked for in it); as bytes,
               since the name of a file need not be text
``changes``    the records that get another head: file, offset, length
``revisits``   those of them that become responses: file, offset, id, id before (None: another program's), URI, date;
               what they refer to: id, URI, date; and what was found: the original's file, offset and position, the
               size of its payload, state (0 open, 1 found, 2 stays), and why it stays
``originals``  the records that a revisit may refer to: id, URI, date, file, offset, position of the block (records
               that share a gzip member have one offset)
``named``      the payload digests by which other programs' revisits go that are pointed back
``facts``      JSON values by name: what the call was, how far the work is, faults

Dates are compared as times: ``2020-01-01T00:00:00Z`` and ``2020-01-01T00:00:00.000Z`` are one.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.dates import parse_date

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Self

OPEN: Final = 0

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, place BLOB, output BLOB);
CREATE TABLE IF NOT EXISTS changes (file INTEGER, offset INTEGER, length INTEGER, PRIMARY KEY (file, offset))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revisits (file INTEGER, offset INTEGER, id TEXT, former_id TEXT, uri TEXT, date TEXT,
  refers_to TEXT, refers_to_uri TEXT, refers_to_date TEXT, original_file INTEGER, original_offset INTEGER,
  original_position INTEGER, size INTEGER, state INTEGER DEFAULT 0, reason TEXT, PRIMARY KEY (file, offset))
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS revisits_by_id ON revisits (refers_to);
CREATE INDEX IF NOT EXISTS revisits_by_uri ON revisits (refers_to_uri, refers_to_date);
CREATE TABLE IF NOT EXISTS originals (id TEXT, uri TEXT, date TEXT, file INTEGER, offset INTEGER, position INTEGER);
CREATE INDEX IF NOT EXISTS originals_by_id ON originals (id);
CREATE INDEX IF NOT EXISTS originals_by_uri ON originals (uri, date);
CREATE TABLE IF NOT EXISTS named (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS staying_by_id ON revisits (former_id) WHERE state = 2;
CREATE INDEX IF NOT EXISTS staying_by_uri ON revisits (uri, date) WHERE state = 2;
"""


@dataclass(frozen=True, slots=True)
class Revisit:
    """A record that is to become a response. ``former_id`` is None if another program wrote it."""

    file: int
    offset: int
    id: str | None
    former_id: str | None
    uri: str | None
    date: str | None
    refers_to: str | None
    refers_to_uri: str | None
    refers_to_date: str | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record that may be the original of a revisit, and where both stand."""

    file: int
    offset: int
    position: int
    revisit_file: int
    revisit_offset: int


@dataclass(frozen=True, slots=True)
class Change:
    """A record that gets another head: as a response, if an original is named, else pointed back."""

    offset: int
    length: int
    is_revisit: bool
    original_file: int | None
    original_offset: int | None
    original_position: int | None
    size: int | None


class Plan:
    """The plan in the file *path*. A context manager; what is not committed is gone after it."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        with self._telling():
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
        """Keep what was entered."""
        with self._telling():
            self._base.execute("COMMIT")
            self._base.execute("BEGIN")

    def fact(self, name: str) -> Any:
        """A fact by name; None if it was not entered."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    def set_fact(self, name: str, value: Any) -> None:
        """Enter a fact."""
        self._do("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, json.dumps(value))

    def add_file(self, number: int, place: str, output: str | None) -> None:
        """Enter a file that is read."""
        self._do(
            "INSERT INTO files VALUES (?, ?, ?)",
            number,
            os.fsencode(place),
            None if output is None else os.fsencode(output),
        )

    def place(self, file: int) -> str:
        """Where a file is."""
        return os.fsdecode(self._rows("SELECT place FROM files WHERE number = ?", file)[0][0])

    def add_change(self, file: int, offset: int, length: int) -> None:
        """Enter a record that gets another head."""
        self._do("INSERT INTO changes VALUES (?, ?, ?)", file, offset, length)

    def add_named(self, digest: str) -> None:
        """Enter a payload digest by which a revisit goes that is pointed back."""
        self._do("INSERT OR IGNORE INTO named VALUES (?)", digest)

    def is_named(self, digest: str) -> bool:
        """Whether a revisit that is pointed back goes by a payload digest."""
        return bool(self._rows("SELECT 1 FROM named WHERE digest = ?", digest.strip()))

    def add_revisit(self, revisit: Revisit) -> None:
        """Enter a record that is to become a response."""
        self._do(
            "INSERT INTO revisits (file, offset, id, former_id, uri, date, refers_to, refers_to_uri, refers_to_date)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            revisit.file,
            revisit.offset,
            revisit.id,
            revisit.former_id,
            revisit.uri,
            time_of(revisit.date),
            revisit.refers_to,
            revisit.refers_to_uri,
            time_of(revisit.refers_to_date),
        )

    def is_wanted(self, record_id: str | None, uri: str | None, date: str | None) -> bool:
        """Whether a revisit refers to such a record."""
        by_id = record_id and self._rows("SELECT 1 FROM revisits WHERE refers_to = ? LIMIT 1", record_id)
        return bool(
            by_id
            or self._rows(
                "SELECT 1 FROM revisits WHERE refers_to_uri = ? AND refers_to_date = ? LIMIT 1",
                uri,
                time_of(date),
            )
        )

    def add_original(
        self, record_id: str | None, uri: str | None, date: str | None, file: int, offset: int, position: int
    ) -> None:
        """Enter a record that a revisit refers to."""
        self._do(
            "INSERT INTO originals VALUES (?, ?, ?, ?, ?, ?)",
            record_id,
            uri,
            time_of(date),
            file,
            offset,
            position,
        )

    def candidates(self, *, by_id: bool) -> Iterator[Candidate]:
        """The originals of all revisits that are open, by id or by URI and date, in the order of their places."""
        same = "o.id = r.refers_to" if by_id else "o.uri = r.refers_to_uri AND o.date = r.refers_to_date"
        rows = self._base.execute(
            "SELECT o.file, o.offset, o.position, r.file, r.offset FROM revisits r JOIN originals o"  # noqa: S608
            f" ON {same} WHERE r.state = 0 ORDER BY o.file, o.offset, o.position"
        )
        with self._telling():
            for row in rows:
                yield Candidate(*row)

    def is_open(self, file: int, offset: int) -> bool:
        """Whether nothing was found for a revisit so far."""
        rows = self._rows("SELECT state FROM revisits WHERE file = ? AND offset = ?", file, offset)
        return bool(rows and rows[0][0] == OPEN)

    def found(self, candidate: Candidate, size: int) -> None:
        """A candidate is the original; its payload has so many bytes."""
        self._do(
            "UPDATE revisits SET state = 1, original_file = ?, original_offset = ?, original_position = ?, size = ?"
            " WHERE file = ? AND offset = ?",
            candidate.file,
            candidate.offset,
            candidate.position,
            size,
            candidate.revisit_file,
            candidate.revisit_offset,
        )

    def set_reason(self, file: int, offset: int, reason: str) -> None:
        """Why a candidate was not the original of a revisit."""
        self._do("UPDATE revisits SET reason = ? WHERE file = ? AND offset = ?", reason, file, offset)

    def unresolved(self) -> Iterator[tuple[Revisit, str | None]]:
        """The revisits whose original was not found, in the order of the files, and what was found instead."""
        with self._telling():
            for *values, reason in self._base.execute(
                "SELECT file, offset, id, former_id, uri, date, refers_to, refers_to_uri, refers_to_date, reason"
                " FROM revisits WHERE state <> 1 ORDER BY file, offset"
            ):
                yield Revisit(*values), reason

    def leave_unresolved(self) -> int:
        """What was not found stays as it is. How many there are of them."""
        self._do("UPDATE revisits SET state = 2 WHERE state = 0")
        return int(self._rows("SELECT count(*) FROM revisits WHERE state = 2")[0][0])

    def pointed(self) -> Iterator[tuple[int, int]]:
        """File and offset of the records that change and are no revisits to restore."""
        # What the caller removes meanwhile does not disturb this.
        for file, offset in self._rows(
            "SELECT c.file, c.offset FROM changes c LEFT JOIN revisits r USING (file, offset) WHERE r.file IS NULL"
            " ORDER BY c.file, c.offset"
        ):
            yield int(file), int(offset)

    def remove_change(self, file: int, offset: int) -> None:
        """A record stays as it is."""
        self._do("DELETE FROM changes WHERE file = ? AND offset = ?", file, offset)

    def counts(self) -> tuple[int, int]:
        """How many revisits become responses, and how many other records change."""
        ((restored, pointed),) = self._rows(
            "SELECT count(r.state), count(*) - count(r.state) FROM changes c LEFT JOIN revisits r USING (file, offset)"
            " WHERE r.file IS NULL OR r.state = 1"
        )
        return int(restored), int(pointed)

    def stays(self, record_id: str | None, uri: str | None, date: str | None) -> bool:
        """Whether the record that had this id, or this URI and date, stays a revisit."""
        by_id = record_id and self._rows(
            "SELECT 1 FROM revisits WHERE state = 2 AND former_id = ? LIMIT 1", record_id
        )
        by_uri = uri and self._rows(
            "SELECT 1 FROM revisits WHERE state = 2 AND former_id IS NOT NULL AND uri = ? AND date = ? LIMIT 1",
            uri,
            time_of(date),
        )
        return bool(by_id or by_uri)

    def outputs(self) -> list[tuple[int, str, str, int]]:
        """The files that are written: number, place, output, and how many of their records change."""
        rows = self._rows(
            "SELECT number, place, output, (SELECT count(*) FROM changes c LEFT JOIN revisits r USING (file, offset)"
            " WHERE c.file = number AND (r.file IS NULL OR r.state = 1)) FROM files WHERE output IS NOT NULL"
            " ORDER BY number"
        )
        return [
            (int(number), os.fsdecode(place), os.fsdecode(output), int(count))
            for number, place, output, count in rows
        ]

    def changes(self, file: int) -> Iterator[Change]:
        """The records of a file that change, in order."""
        with self._telling():
            for offset, length, state, *original in self._base.execute(
                "SELECT c.offset, c.length, r.state, r.original_file, r.original_offset, r.original_position, r.size"
                " FROM changes c LEFT JOIN revisits r USING (file, offset)"
                " WHERE c.file = ? AND (r.file IS NULL OR r.state = 1) ORDER BY c.offset",
                (file,),
            ):
                yield Change(offset, length, state is not None, *original)

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._telling(), closing(self._base.execute(statement, values)) as cursor:
            return cursor.fetchall()

    def _do(self, statement: str, *values: object) -> None:
        with self._telling():
            self._base.execute(statement, values)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ArchiveError(
                f"{self.path} cannot be used: {error}. Free some space, or remove the folder {self.path.parent} and"
                " begin again."
            ) from error


def time_of(date: str | None) -> str | None:
    """A date in one form, so that equal times are equal texts; what is no date stays as it is."""
    try:
        return parse_date(date).isoformat() if date else date
    except ValueError:
        return date
