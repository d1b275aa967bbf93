"""The plan of a rewriting: which records become revisits of which originals. It is kept in two SQLite files on disk, so
that its size is not limited by memory.

``lines.sqlite`` is made from the manifests (`planned_lines`), ``plan.sqlite`` from these lines and the scanned records
(`record_scan`). Table ``surveyed`` has a row for each line of role 1 or 2: reason (why the record is not changed, a key of LEFT,
else NULL), unfit (why no revisit can refer to it, else NULL), original (the line that a copy refers to as a revisit),
is_converted, the values of its record as bytes, whether it is stored in chunks, and the approximate size of its revisit
in bytes. Table ``named`` maps URI and digest to lines. Table ``standing`` has ids, files, URIs and dates of captures that
are not changed, if a record that becomes a revisit has the same id, or the same URI and second.

The original of a copy is the earliest record of its payload, by the copy numbers of the manifest, that a revisit can
refer to: it is eligible (`eligibility`), and its URL, date, id and digest can be read back unchanged. A copy that is
stored without transfer chunks needs an original without them, since a replay program would show the chunks.

Both files depend only on manifests and archive files, and do not change after they get their names.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from scrapy_dedupe.offline.eligibility import REASONS
from scrapy_dedupe.offline.planned_lines import LINES_FILE, building, file_name
from scrapy_dedupe.offline.revisits import RevisitTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LEFT: Final = REASONS | {
    "original": "no earlier record can be the original",
    "unreadable": "the URL, date, id or digest of the original cannot be read back exactly, or another record has its id",
    "no-gain": "not smaller as a revisit",
    "damaged": "damaged, or different from the manifest",
    "fields": "with fields of a revisit, or in a form that could not be restored byte for byte",
    "shared": "referred to by a record that cannot be changed",
    "chunks": "stored without transfer chunks, which a replay program would show from earlier records",
}
"""Why a copy is not changed, by key."""

SINGLE, COPY = 0, 2  # 1 is an original that has copies

PLAN_FILE: Final = "plan.sqlite"

SURVEYED = """
CREATE TABLE {schema}surveyed (
    line INTEGER PRIMARY KEY, file INTEGER NOT NULL, role INTEGER NOT NULL, reason TEXT, unfit TEXT, id BLOB, id_key BLOB,
    uri BLOB, date BLOB, date_key TEXT, digest BLOB, digest_key TEXT, listed_key TEXT NOT NULL, mime TEXT,
    revisit_bytes INTEGER, is_chunked INTEGER NOT NULL DEFAULT 0, is_converted INTEGER NOT NULL DEFAULT 0, original INTEGER
);
CREATE TABLE {schema}pinned (id_key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE {schema}pinned_uri (uri BLOB PRIMARY KEY) WITHOUT ROWID;
"""

# If records of several payloads share one id, a reference by this id may lead to any of them.
_FIND_SHARED_IDS = """
CREATE INDEX surveyed_any_id ON surveyed (id_key) WHERE id_key IS NOT NULL;
CREATE TABLE shared_id (id_key BLOB PRIMARY KEY) WITHOUT ROWID;
INSERT INTO shared_id SELECT s.id_key FROM surveyed s JOIN lines.line l ON l.id = s.line WHERE s.id_key IS NOT NULL
    GROUP BY s.id_key HAVING count(DISTINCT hex(l.digest) || ' ' || l.extension) > 1;
"""
_ADD_SHARED_IDS = """
INSERT OR IGNORE INTO shared_id SELECT id_key FROM part.unlisted
    WHERE id_key IS NOT NULL AND id_key IN (SELECT id_key FROM surveyed WHERE id_key IS NOT NULL)
"""

# A cluster is a listed original and its copies. ``serving`` has the first records of each cluster that can be
# originals, one without chunks and one in chunks, so that the choice is fast in a large cluster too.
# 64: bytes for values that the estimated size does not include, such as the digits of another date.
_DECIDE = """
UPDATE surveyed SET unfit = 'unreadable' WHERE unfit IS NULL AND id_key IN (SELECT id_key FROM shared_id);
DROP INDEX surveyed_any_id;
DROP TABLE shared_id;
UPDATE surveyed SET reason = 'shared' WHERE role = 2 AND reason IS NULL AND (
    id_key IN (SELECT id_key FROM pinned) OR uri IN (SELECT uri FROM pinned_uri)
);
CREATE TABLE serving (cluster INTEGER, is_chunked INTEGER, copy INTEGER, line INTEGER, PRIMARY KEY (cluster, is_chunked))
    WITHOUT ROWID;
INSERT OR IGNORE INTO serving SELECT coalesce(l.original, l.id), s.is_chunked, l.copy, l.id
    FROM surveyed s JOIN lines.line l ON l.id = s.line WHERE s.unfit IS NULL ORDER BY l.copy, l.id;
UPDATE surveyed SET original = (
    SELECT v.line FROM lines.line l JOIN serving v ON v.cluster = l.original
    WHERE l.id = surveyed.line AND v.is_chunked <= surveyed.is_chunked AND (v.copy, v.line) < (l.copy, l.id)
    ORDER BY v.copy, v.line LIMIT 1
) WHERE role = 2;
UPDATE surveyed SET reason = CASE
    WHEN EXISTS (
        SELECT 1 FROM lines.line l JOIN serving v ON v.cluster = l.original
        WHERE l.id = surveyed.line AND (v.copy, v.line) < (l.copy, l.id)
    ) THEN 'chunks'
    WHEN EXISTS (
        SELECT 1 FROM lines.line l JOIN surveyed o ON o.line = l.original
        WHERE l.id = surveyed.line AND o.unfit = 'unreadable'
    ) THEN 'unreadable'
    ELSE 'original' END
    WHERE role = 2 AND reason IS NULL AND original IS NULL;
DROP TABLE serving;
UPDATE surveyed SET reason = 'no-gain' WHERE role = 2 AND reason IS NULL AND (
    SELECT surveyed.revisit_bytes + 64 + max(0, coalesce(length(o.id), 0) - 47) + max(0, length(o.uri) - length(l.refers_uri))
        >= l.length
    FROM lines.line l JOIN surveyed o ON o.line = surveyed.original WHERE l.id = surveyed.line
);
CREATE INDEX surveyed_place ON surveyed (uri, date_key);
-- A revisit that names this URL and second would only find the record in chunks.
UPDATE surveyed SET reason = 'chunks' WHERE role = 2 AND reason IS NULL AND NOT is_chunked AND EXISTS (
    SELECT 1 FROM surveyed s WHERE s.uri = surveyed.uri AND s.listed_key = surveyed.listed_key
    AND s.is_chunked AND (s.role = 1 OR s.reason IS NOT NULL)
    AND s.date_key BETWEEN substr(surveyed.date_key, 1, 19) AND substr(surveyed.date_key, 1, 19) || '~'
);
UPDATE surveyed SET is_converted = 1 WHERE role = 2 AND reason IS NULL;
CREATE INDEX surveyed_id ON surveyed (id_key, is_converted, file);
CREATE TABLE named (uri BLOB, key TEXT, is_converted INTEGER, line INTEGER, PRIMARY KEY (uri, key, is_converted, line))
    WITHOUT ROWID;
INSERT OR IGNORE INTO named SELECT uri, digest_key, is_converted, line FROM surveyed WHERE uri IS NOT NULL AND digest_key IS NOT NULL;
INSERT OR IGNORE INTO named SELECT uri, listed_key, is_converted, line FROM surveyed
    WHERE uri IS NOT NULL AND listed_key LIKE 'sha256:%';
DROP TABLE pinned;
DROP TABLE pinned_uri;
CREATE TABLE standing (id_key BLOB, file INTEGER, uri BLOB, date_key TEXT);
CREATE INDEX standing_id ON standing (id_key, file);
CREATE INDEX standing_place ON standing (uri, date_key);
"""

# A reference is ambiguous only if a record that becomes a revisit has the same id, or the same URI and second.
_STANDING = """
INSERT INTO standing SELECT o.id_key, o.file, o.uri, o.date_key FROM {others} o WHERE (
    EXISTS (SELECT 1 FROM surveyed s WHERE s.id_key = o.id_key AND s.is_converted = 1)
    OR EXISTS (
        SELECT 1 FROM surveyed s WHERE s.uri = o.uri AND s.is_converted = 1
        AND s.date_key BETWEEN substr(o.date_key, 1, 19) AND substr(o.date_key, 1, 19) || '~'
    )
)
"""


class PlannedFile(NamedTuple):
    """A file of the plan. ``is_main``: it is rewritten, in this run or in another one."""

    id: int
    name: str
    is_output: bool
    is_main: bool


class PlannedLine(NamedTuple):
    """A line of the manifest, with the columns that the scan needs."""

    id: int
    offset: int
    length: int
    role: int
    digest: str
    uri: str
    date: str
    refers_uri: str | None
    refers_date: str | None


class Planned(NamedTuple):
    """A listed record for rewriting: ``target`` is the original of a copy that becomes a revisit."""

    offset: int
    length: int
    target: RevisitTarget | None


def write_plan(folder: Path, parts: Iterable[Path]) -> None:
    """Make ``plan.sqlite`` from the lines and the scan results of each file. Raises ArchiveError."""
    parts = list(parts)
    with building(folder / PLAN_FILE) as connection:
        connection.execute("ATTACH ? AS lines", (os.fsencode(folder / LINES_FILE),))
        connection.executescript(SURVEYED.format(schema=""))
        for part in parts:
            connection.execute("ATTACH ? AS part", (os.fsencode(part),))
            connection.execute("INSERT INTO surveyed SELECT * FROM part.surveyed")
            connection.execute("INSERT OR IGNORE INTO pinned SELECT * FROM part.pinned")
            connection.execute("INSERT OR IGNORE INTO pinned_uri SELECT * FROM part.pinned_uri")
            connection.commit()
            connection.execute("DETACH part")
        connection.executescript(_FIND_SHARED_IDS)
        for part in parts:
            connection.execute("ATTACH ? AS part", (os.fsencode(part),))
            connection.execute(_ADD_SHARED_IDS)
            connection.commit()
            connection.execute("DETACH part")
        connection.executescript(_DECIDE)
        connection.execute(_STANDING.format(others="(SELECT * FROM surveyed WHERE is_converted = 0)"))
        connection.commit()
        for part in parts:
            connection.execute("ATTACH ? AS part", (os.fsencode(part),))
            connection.execute(_STANDING.format(others="part.unlisted"))
            connection.commit()
            connection.execute("DETACH part")


class RewritePlan:
    """Context manager that reads the plan in *folder*. Without ``plan.sqlite`` only the lines are available."""

    def __init__(self, folder: Path) -> None:
        self.connection = connection = sqlite3.connect(
            f"{(folder / LINES_FILE).absolute().as_uri()}?mode=ro", uri=True
        )
        connection.execute("PRAGMA cache_size = -32000")
        if (folder / PLAN_FILE).exists():
            connection.execute("ATTACH ? AS plan", (f"{(folder / PLAN_FILE).absolute().as_uri()}?mode=ro",))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @property
    def marks(self) -> str:
        """The hash of all lines, computed by `marked`."""
        return str(self.connection.execute("SELECT value FROM note WHERE key = 'marks'").fetchone()[0])

    def files(self) -> list[PlannedFile]:
        """All files, in the order in which the manifests first name them."""
        rows = self.connection.execute(
            "SELECT id, name, is_output, is_output OR is_listed = 1 FROM file ORDER BY id"
        )
        return [
            PlannedFile(number, file_name(name), bool(is_output), bool(is_main))
            for number, name, is_output, is_main in rows
        ]

    def surveyed_files(self) -> set[int]:
        """The files that have an original with copies, or a copy."""
        return {row[0] for row in self.connection.execute("SELECT DISTINCT file FROM line WHERE role > 0")}

    def surveyed_count(self, file: int) -> int:
        """The number of lines of a file that must be scanned."""
        rows = self.connection.execute("SELECT count(*) FROM line WHERE file = ? AND role > 0", (file,))
        return int(rows.fetchone()[0])

    def lines_of(self, file: int) -> Iterator[PlannedLine]:
        """The lines of a file, ordered by offset."""
        rows = self.connection.execute(
            "SELECT id, offset, length, role, digest, uri, date, refers_uri, refers_date FROM line WHERE file = ?"
            " ORDER BY offset",
            (file,),
        )
        for number, offset, length, role, digest, *texts in rows:
            yield PlannedLine(number, offset, length, role, _digest_text(digest), *texts)

    def records_of(self, file: int) -> Iterator[Planned]:
        """The listed records of a file, ordered by offset, with their revisit targets."""
        rows = self.connection.execute(
            "SELECT l.offset, l.length, coalesce(s.is_converted, 0), o.id, o.uri, o.date, o.digest FROM line l"
            " LEFT JOIN plan.surveyed s ON l.role = 2 AND s.line = l.id"
            " LEFT JOIN plan.surveyed o ON s.is_converted AND o.line = s.original WHERE l.file = ? ORDER BY l.offset",
            (file,),
        )
        for offset, length, is_converted, *target in rows:
            yield Planned(offset, length, RevisitTarget(*target) if is_converted else None)

    def count_converted(self) -> int:
        """The number of copies that become revisits, in all files."""
        return int(
            self.connection.execute("SELECT count(*) FROM plan.surveyed WHERE is_converted").fetchone()[0]
        )

    def left(self) -> dict[str, int]:
        """The number of copies in rewritten files that are not changed, by reason.

        A record that is the original of a revisit is not counted as a copy.
        """
        rows = self.connection.execute(
            "SELECT s.reason, count(*) FROM plan.surveyed s JOIN file f ON f.id = s.file"
            " WHERE s.role = 2 AND s.reason IS NOT NULL AND f.is_output"
            " AND s.line NOT IN (SELECT original FROM plan.surveyed WHERE is_converted)"
            " GROUP BY s.reason ORDER BY 2 DESC, 1"
        )
        return dict(rows.fetchall())

    def savings(self) -> Iterator[tuple[str, str, int]]:
        """URI, MIME type and saved bytes of each copy that becomes a revisit in a rewritten file."""
        yield from self.connection.execute(
            "SELECT l.uri, coalesce(s.mime, ''), l.length - s.revisit_bytes FROM plan.surveyed s"
            " JOIN line l ON l.id = s.line JOIN file f ON f.id = s.file WHERE s.is_converted AND f.is_output"
        )


def _digest_text(data: bytes) -> str:
    label, _, raw = data.partition(b":")
    return f"{label.decode('ascii')}:{raw.hex()}"
