"""The plan of a restoration, in an SQLite file, so that its size is limited only by the disk and it survives a kill.

Tables:

``files``      files that are read: number, place, path of the output (None: it is only searched for originals); paths
               are bytes, since a file name need not be valid text
``changes``    records that get a new head: file, offset, length
``revisits``   the changed records that become responses: file, offset, id, former id (None: written by another
               program), URI, date; their reference as a whole, for messages, and in parts: id, key of the URI, second,
               digest; and the result: the original's file, offset and position, the size of its payload, state (0 open,
               1 found, 2 not restored), and the reason for state 2
``originals``  records that a revisit may refer to: id, key of the URI, time in milliseconds, digest, file, offset,
               position of the block (records in one gzip member have the same offset)
``candidates`` the possible originals of each revisit, the best one with rank 0
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
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.dates import parse_date
from scrapy_dedupe.warc.references import (
    Captures,
    Reference,
    bare_id,
    digest_of,
    has_payload,
    milliseconds,
    uri_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Self

    from scrapy_dedupe.warc.reading import StoredRecord

OPEN: Final = 0
_SECOND_MS: Final = 1_000
_MOST_CANDIDATES: Final = 8
_KEPT_ANSWERS: Final = 1_024
_IN_ORDER: Final = "ORDER BY file, offset, position"

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, place BLOB, output BLOB);
CREATE TABLE IF NOT EXISTS changes (file INTEGER, offset INTEGER, length INTEGER, PRIMARY KEY (file, offset))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revisits (file INTEGER, offset INTEGER, id TEXT, former_id TEXT, uri TEXT, date TEXT,
  reference TEXT, words TEXT, named TEXT, target BLOB, second INTEGER, digest TEXT,
  original_file INTEGER, original_offset INTEGER, original_position INTEGER, size INTEGER, state INTEGER DEFAULT 0, reason TEXT, PRIMARY KEY (file, offset))
  WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS revisits_by_id ON revisits (named);
CREATE INDEX IF NOT EXISTS revisits_by_uri ON revisits (target, second);
CREATE INDEX IF NOT EXISTS revisits_by_digest ON revisits (digest);
CREATE TABLE IF NOT EXISTS originals (id TEXT, uri BLOB, date_ms INTEGER, digest TEXT, file INTEGER, offset INTEGER,
  position INTEGER);
CREATE INDEX IF NOT EXISTS originals_by_id ON originals (id);
CREATE INDEX IF NOT EXISTS originals_by_uri ON originals (uri, date_ms);
CREATE INDEX IF NOT EXISTS originals_by_digest ON originals (digest, uri);
CREATE TABLE IF NOT EXISTS candidates (rank INTEGER, file INTEGER, offset INTEGER, position INTEGER,
  revisit_file INTEGER, revisit_offset INTEGER, PRIMARY KEY (rank, file, offset, position, revisit_file, revisit_offset))
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS named (digest TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS staying_by_id ON revisits (former_id) WHERE state = 2;
CREATE INDEX IF NOT EXISTS staying_by_uri ON revisits (uri, date) WHERE state = 2;
"""


@dataclass(frozen=True, slots=True)
class PlannedRestoration:
    """A record that becomes a response. ``former_id`` is None if another program wrote the revisit.

    ``words`` describes its original in messages.
    """

    file: int
    offset: int
    id: str | None
    former_id: str | None
    uri: str | None
    date: str | None
    reference: Reference[str]
    words: str


class Referred(NamedTuple):
    """A record that revisits may refer to, and its place."""

    date_ms: int | None
    digest: str | None
    file: int
    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible original of a revisit, and the places of both."""

    file: int
    offset: int
    position: int
    revisit_file: int
    revisit_offset: int


@dataclass(frozen=True, slots=True)
class Change:
    """A record that gets a new head: it becomes a response if it has an original, else its references are reverted."""

    offset: int
    length: int
    is_revisit: bool
    original_file: int | None
    original_offset: int | None
    original_position: int | None
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

    def add_file(self, number: int, place: str, output: str | None) -> None:
        """Add a file that is read."""
        self._do(
            "INSERT INTO files VALUES (?, ?, ?)",
            number,
            os.fsencode(place),
            None if output is None else os.fsencode(output),
        )

    def place(self, file: int) -> str:
        """The place of a file."""
        return os.fsdecode(self._rows("SELECT place FROM files WHERE number = ?", file)[0][0])

    def add_change(self, file: int, offset: int, length: int) -> None:
        """Add a record that gets a new head."""
        self._do("INSERT INTO changes VALUES (?, ?, ?)", file, offset, length)

    def add_named(self, digest: str) -> None:
        """Add a payload digest that identifies the original of a revisit whose reference is reverted."""
        self._do("INSERT OR IGNORE INTO named VALUES (?)", digest)

    def is_named(self, digest: str) -> bool:
        """Whether `add_named` was called with this payload digest."""
        return bool(self._rows("SELECT 1 FROM named WHERE digest = ?", digest.strip()))

    def add_revisit(self, revisit: PlannedRestoration) -> None:
        """Add a record that becomes a response."""
        reference = revisit.reference
        self._do(
            "INSERT INTO revisits (file, offset, id, former_id, uri, date, reference, words, named, target, second, digest)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            revisit.file,
            revisit.offset,
            revisit.id,
            revisit.former_id,
            revisit.uri,
            time_of(revisit.date),
            json.dumps(asdict(reference)),
            revisit.words,
            reference.id,
            None if reference.uri is None else uri_key(reference.uri),
            None if reference.date is None else reference.date // _SECOND_MS,
            reference.digest,
        )

    def add_original(self, record: StoredRecord, file: int) -> None:
        """Add a record of a file, if a revisit may refer to it."""
        record_id, date_ms, digest = bare_id(record.id), milliseconds(record.date), digest_of(record)
        key = uri_key(record.target_uri or "")
        wanted = self._rows(
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM revisits WHERE named = ?) OR EXISTS (SELECT 1 FROM revisits WHERE"
            " target = ? AND second = ?) OR EXISTS (SELECT 1 FROM revisits WHERE digest = ?)",
            record_id,
            key,
            None if date_ms is None else date_ms // _SECOND_MS,
            digest,
        )
        if wanted:
            place = file, record.offset, record.frame.block_position
            self._do(
                "INSERT INTO originals VALUES (?, ?, ?, ?, ?, ?, ?)", record_id, key, date_ms, digest, *place
            )

    def originals(self, where: str, *values: object) -> list[Referred]:
        """The originals that match an SQL condition."""
        statement = f"SELECT date_ms, digest, file, offset, position FROM originals WHERE {where}"  # noqa: S608
        return [Referred(*row) for row in self._rows(statement, *values)]

    def add_candidates(self, revisit: PlannedRestoration, originals: Iterable[Referred]) -> None:
        """Add the possible originals of a revisit, the best one first."""
        for rank, found in enumerate(originals):
            values = rank, found.file, found.offset, found.position, revisit.file, revisit.offset
            self._do("INSERT INTO candidates VALUES (?, ?, ?, ?, ?, ?)", *values)

    def ranks(self) -> range:
        """All ranks of candidates."""
        return range(1 + self._rows("SELECT coalesce(max(rank), -1) FROM candidates")[0][0])

    def candidates(self, rank: int) -> Iterator[Candidate]:
        """The candidates of all revisits with this rank, ordered by their places."""
        rows = self._base.execute(
            "SELECT file, offset, position, revisit_file, revisit_offset FROM candidates WHERE rank = ?"
            " ORDER BY file, offset, position",
            (rank,),
        )
        with self._as_archive_errors():
            for row in rows:
                yield Candidate(*row)

    def is_open(self, file: int, offset: int) -> bool:
        """Whether no original of a revisit has been found yet."""
        rows = self._rows("SELECT state FROM revisits WHERE file = ? AND offset = ?", file, offset)
        return bool(rows and rows[0][0] == OPEN)

    def found(self, candidate: Candidate, size: int) -> None:
        """Store that a candidate is the original, with a payload of *size* bytes."""
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
        """Store why a candidate is not the original of a revisit, unless an earlier reason is stored."""
        statement = "UPDATE revisits SET reason = coalesce(reason, ?) WHERE file = ? AND offset = ?"
        self._do(statement, reason, file, offset)

    def unresolved(self) -> Iterator[tuple[PlannedRestoration, str | None]]:
        """The revisits without an original, in file order, with the reason against their first candidate."""
        with self._as_archive_errors():
            for file, offset, own_id, former_id, uri, date, reference, words, reason in self._base.execute(
                "SELECT file, offset, id, former_id, uri, date, reference, words, reason"
                " FROM revisits WHERE state <> 1 ORDER BY file, offset"
            ):
                named: Reference[str] = Reference(**json.loads(reference))
                yield PlannedRestoration(file, offset, own_id, former_id, uri, date, named, words), reason

    def leave_unresolved(self) -> int:
        """Leave the revisits without an original unchanged. Return their number."""
        self._do("UPDATE revisits SET state = 2 WHERE state = 0")
        return int(self._rows("SELECT count(*) FROM revisits WHERE state = 2")[0][0])

    def pointed(self) -> Iterator[tuple[int, int]]:
        """File and offset of the changed records that do not become responses."""
        # Fetch all rows first, since the caller may remove some while iterating.
        for file, offset in self._rows(
            "SELECT c.file, c.offset FROM changes c LEFT JOIN revisits r USING (file, offset) WHERE r.file IS NULL"
            " ORDER BY c.file, c.offset"
        ):
            yield int(file), int(offset)

    def remove_change(self, file: int, offset: int) -> None:
        """Leave a record unchanged."""
        self._do("DELETE FROM changes WHERE file = ? AND offset = ?", file, offset)

    def counts(self) -> tuple[int, int]:
        """The number of revisits that become responses, and the number of other changed records."""
        ((restored, pointed),) = self._rows(
            "SELECT count(r.state), count(*) - count(r.state) FROM changes c LEFT JOIN revisits r USING (file, offset)"
            " WHERE r.file IS NULL OR r.state = 1"
        )
        return int(restored), int(pointed)

    def stays(self, record_id: str | None, uri: str | None, date: str | None) -> bool:
        """Whether a revisit whose response had this id, or this URI and date, is not restored."""
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
        """The files that are written: number, place, output, and the number of changed records."""
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
        """The changed records of a file, in order."""
        with self._as_archive_errors():
            for offset, length, state, *original in self._base.execute(
                "SELECT c.offset, c.length, r.state, r.original_file, r.original_offset, r.original_position, r.size"
                " FROM changes c LEFT JOIN revisits r USING (file, offset)"
                " WHERE c.file = ? AND (r.file IS NULL OR r.state = 1) ORDER BY c.offset",
                (file,),
            ):
                yield Change(offset, length, state is not None, *original)

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


class PlannedOriginals(Captures[str, Referred]):
    """The originals in a plan, for the references of its revisits. *read* returns the record of an original."""

    def __init__(self, plan: RestorationPlan, read: Callable[[Referred], StoredRecord]) -> None:
        self._plan = plan
        self._read = read
        self._computed = lru_cache(_KEPT_ANSWERS)(self._has_payload)

    def candidates(self, revisit: PlannedRestoration) -> list[Referred]:
        """The possible originals of a revisit, the best first; last, records that it names but whose digest differs."""
        reference = revisit.reference
        found = [one for _, captures in self.ways(reference) for one in captures[:_MOST_CANDIDATES]]
        # Captures with another digest are originals only if the former digests of the revisit confirm it.
        if reference.id is not None:
            found += self.with_id(reference.id)[:_MOST_CANDIDATES]
        if reference.uri is not None and reference.date is not None:
            found += self.in_second(reference.uri, reference.date // _SECOND_MS)[:_MOST_CANDIDATES]
        return list(dict.fromkeys(found))

    def with_id(self, record_id: str) -> list[Referred]:
        return self._plan.originals(f"id = ? {_IN_ORDER}", record_id)

    def in_second(self, uri: str, second: int) -> list[Referred]:
        first = second * _SECOND_MS
        where = f"uri = ? AND date_ms BETWEEN ? AND ? {_IN_ORDER}"
        return self._plan.originals(where, uri_key(uri), first, first + _SECOND_MS - 1)

    def with_digest(self, digest: str, uri: str | None, date_ms: int) -> list[Referred]:
        if uri is None:
            return self._plan.originals(f"digest = ? {_IN_ORDER} LIMIT 1", digest)
        where = "digest = ? AND uri = ? ORDER BY abs(date_ms - ?), file, offset, position LIMIT 1"
        return self._plan.originals(where, digest, uri_key(uri), date_ms)

    def of_uri(self, uri: str, date_ms: int) -> list[Referred]:
        # Only needed for revisits of unmodified responses (304), which are not restored.
        return []

    def has_payload(self, capture: Referred, digest: str) -> bool:
        return self._computed(capture, digest)

    def _has_payload(self, capture: Referred, digest: str) -> bool:
        return has_payload(self._read(capture), digest)


def time_of(date: str | None) -> str | None:
    """Normalize a date, so that equal times have equal texts; an invalid date is returned unchanged."""
    try:
        return parse_date(date).isoformat() if date else date
    except ValueError:
        return date
