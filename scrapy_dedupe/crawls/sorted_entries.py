"""The entries of a crawl in the order of its files, for the duration of a check.

An index returns its entries in no particular order, and a crawl can have more of them than fit in memory. They are
written to a temporary SQLite file, which is deleted when the object is closed, and read file by file, in order of
offset.

The file also has the captures that were read so far, of all crawls, since a revisit may refer to a record that is
not in the index.
"""

from __future__ import annotations

import random
import sqlite3
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.normal_forms import known_digest, plain_digest, plain_url
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.references import CaptureTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.reading import StoredRecord

_MAX_BLANK_LINES = 8

_COLUMNS = 'file, "offset", digest, date, url, size, form'
_HAS_PLACE = 'file IS NOT NULL AND "offset" IS NOT NULL'
_NEW_TABLE = """
DROP TABLE IF EXISTS entry;
CREATE TABLE entry (file TEXT, "offset" INTEGER, digest TEXT NOT NULL, date TEXT NOT NULL, url TEXT NOT NULL,
    size INTEGER NOT NULL, form TEXT NOT NULL,
    name BLOB,  -- the hashed URL and date of an entry without a location
    is_met INTEGER NOT NULL DEFAULT 0  -- whether its record was read
);
"""
_CREATE_INDEXES = """
CREATE INDEX entry_place ON entry (file, "offset");
CREATE INDEX entry_digest ON entry (digest);
CREATE INDEX entry_name ON entry (name) WHERE name IS NOT NULL;
"""
_UNPLACED = "name IS NOT NULL AND NOT is_met"
_HERE = f"""
SELECT {_COLUMNS}, rowid FROM entry WHERE file = ? AND "offset" = ? AND NOT is_met ORDER BY rowid
"""  # noqa: S608 - constants
_NAMED = f"SELECT {_COLUMNS}, rowid FROM entry WHERE name = ? AND {_UNPLACED}"  # noqa: S608 - constants


class Entry(NamedTuple):
    """An entry of the index. ``digest`` and ``date`` (in digits) have the normalized form; ``size`` in bytes.

    ``form`` is the form of the digest in the original.
    """

    file: str
    offset: int
    digest: str
    date: str
    url: str
    size: int
    form: str = ""

    def differences(self, record: StoredRecord) -> list[str]:
        """The values that differ from a record."""
        found = []
        digest = known_digest(record)
        # Records of old crawlers have no digest; the digest of the entry came from an imported index.
        if digest is not None and digest != self.digest:
            found.append("payload digest")
        url = record.target_uri or ""
        if url != self.url and (not url or plain_url(url) != self.url):
            found.append("URI")
        date = digits_of(record.date or "")
        count = min(len(date), len(self.date))
        if not date or date[:count] != self.date[:count]:
            found.append("date")
        # Writers of CDXJ disagree whether the blank lines after an uncompressed record are part of it.
        blank = record.length - record.frame.block_position - record.frame.block_length
        if not 0 <= record.length - self.size <= (blank if 0 <= blank <= _MAX_BLANK_LINES else 0):
            found.append("length")
        return found


@lru_cache(1_000)  # the date of a record is needed several times in a row
def digits_of(date: str) -> str:
    """The digits of a WARC-Date in the form of an import: 14, or 17 if it has a fraction; empty if it is invalid.

    >>> digits_of("2026-08-01T12:00:00.1Z"), digits_of("2026-08-01T12:00:00Z"), digits_of("now")
    ('20260801120000100', '20260801120000', '')
    """
    try:
        return date_digits(date)
    except ValueError:
        return ""


class SortedEntries:
    """The entries of one crawl at a time (:meth:`take`), and the ``captures`` read so far. Closed by :meth:`close`."""

    def __init__(self) -> None:
        # The empty name makes a temporary file that SQLite removes itself.
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _NEW_TABLE)
        self.captures = CaptureTable()
        self._has_unplaced = False

    def take(self, originals: Iterable[Original]) -> None:
        """Replace the entries with those of another crawl."""
        self._connection.executescript(_NEW_TABLE)
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (
                (
                    one.file,
                    one.offset,
                    plain_or_same(plain_digest, one.digest),
                    one.date,
                    one.url,
                    one.size,
                    one.form,
                    None if one.file is not None and one.offset is not None else _name(one.url, one.date),
                )
                for one in originals
            ),
        )
        self._connection.execute("COMMIT")
        # One transaction for all entries that are met; the next executescript() ends it.
        self._connection.executescript(f"{_CREATE_INDEXES}BEGIN;")
        self._has_unplaced = self.count_unplaced() > 0

    def counts_by_file(self) -> dict[str, int]:
        """How many entries name each file and an offset in it."""
        query = f"SELECT file, count(*) FROM entry WHERE {_HAS_PLACE} GROUP BY file"  # noqa: S608
        return dict(self._connection.execute(query).fetchall())

    def count_unplaced(self) -> int:
        """The number of entries without a location whose record was not read."""
        (count,) = self._connection.execute(f"SELECT count(*) FROM entry WHERE {_UNPLACED}").fetchone()  # noqa: S608
        return int(count)

    def unplaced(self) -> Iterator[Entry]:
        """The entries without a location whose record was not read."""
        return self._entries(f"{_UNPLACED} ORDER BY rowid")

    def meet(self, file: str, record: StoredRecord) -> tuple[Entry, list[str]] | None:
        """Mark the entry of a record as met; return it, and the values of the record that differ from it.

        None if no entry names the record. An entry without a location has no differences.
        """
        rows = self._connection.execute(_HERE, (file, record.offset)).fetchall()
        if not rows and self._has_unplaced and record.target_uri:
            name = _name(plain_url(record.target_uri), digits_of(record.date or ""))
            rows = [
                row
                for row in self._connection.execute(_NAMED, (name,))
                if not _entry(row).differences(record)
            ]
        if not rows:
            return None
        row = rows[0]
        if len(rows) > 1:
            digest = known_digest(record)
            row = next((row for row in rows if _entry(row).digest == digest), row)
        entry = _entry(row)
        found = entry.differences(record)
        if found and not record.length:
            # The record shares its gzip member with others; the entry may mean another one.
            return None
        self._connection.execute("UPDATE entry SET is_met = 1 WHERE rowid = ?", row[-1:])
        return entry, found

    def unmet(self, file: str) -> Iterator[Entry]:
        """The entries of a file in order of offset whose record was not read."""
        return self._entries('file = ? AND "offset" IS NOT NULL AND NOT is_met ORDER BY "offset"', file)

    def of_file(self, name: str) -> Iterator[Entry]:
        """The entries of a file in order of offset."""
        return self._entries('file = ? AND "offset" IS NOT NULL ORDER BY "offset"', name)

    def sample(self, count: int, seed: int) -> list[Entry]:
        """At most *count* random entries that have a location, in order of file and offset."""
        rows = self._connection.execute(f"SELECT rowid FROM entry WHERE {_HAS_PLACE} ORDER BY digest")  # noqa: S608
        rowids = [row[0] for row in rows]
        # Not for secrets: a seed makes the sample reproducible.
        drawn = random.Random(seed).sample(rowids, min(count, len(rowids)))  # noqa: S311
        return sorted(next(self._entries("rowid = ?", rowid)) for rowid in drawn)

    def digest_at(self, file: str, record: StoredRecord) -> tuple[str | None, str]:
        """The digest that the index has for a record without one, and its form; ``(None, "")`` if there is no entry."""
        for entry in self._entries('file = ? AND "offset" = ?', file, record.offset):
            if not entry.differences(record):
                return entry.digest, entry.form
        return None, ""

    def has_entry(self, file: str, offset: int, digest: str | None) -> bool:
        """Whether an entry has this location and payload."""
        return any(self._entries('file = ? AND "offset" = ? AND digest = ?', file, offset, digest))

    def find(self, digests: Sequence[str]) -> dict[str, Entry]:
        """An entry with each of these payloads, if there is one."""
        rows = (next(self._entries("digest = ? LIMIT 1", digest), None) for digest in digests)
        return {entry.digest: entry for entry in rows if entry is not None}

    def _entries(self, where: str, *values: object) -> Iterator[Entry]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM entry WHERE {where}", values)  # noqa: S608
        return (Entry(*row) for row in rows)

    def close(self) -> None:
        """Delete the temporary files."""
        self._connection.close()
        self.captures.close()


def plain_or_same(plain: Callable[[str], str], text: str) -> str:
    """A digest or URL in the form of the index; unchanged if it has no such form."""
    try:
        return plain(text)
    except SettingError:
        return text


def _entry(row: Sequence[Any]) -> Entry:
    return Entry(*row[:-1])


def _name(url: str, date: str) -> bytes:
    """12 bytes of BLAKE2b of a URL and a date to the second."""
    return blake2b(f"{date[:14]} {url}".encode("utf-8", "surrogatepass"), digest_size=12).digest()
