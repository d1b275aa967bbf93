"""What is to become a revisit, and of what: two SQLite files on disk, so that no archive is too large for it.

``lines.sqlite`` is made from the manifests. Table ``file``: id, name, is_output (it will be written again), is_listed
(1: it has lines, 2: lines of originals alone, 0: none). Table ``line``: id, file, offset, length, digest (label, colon and raw bytes), extension, copy, uri,
date, refers_uri, refers_date, original (the id of the line that a copy refers to) and role (0 alone, 1 an original
that has copies, 2 a copy). Table ``note``: key, value.

``plan.sqlite`` is made from that and from what the survey found in the files (`survey`). Table ``surveyed`` has a row
for each line of role 1 or 2: reason (why it is left as it is, a key of LEFT, else NULL), is_converted, the values of
its record as bytes, whether an original is stored in chunks or a copy's HTTP head says so, and about how many bytes its
revisit takes. Table ``named`` leads from URI and digest to lines. Table ``standing`` has the ids of records that stay,
with their files, as far as records that become revisits have the same id, or the same URI and second.

Both are pure functions of manifests and files, and do not change once they have their names.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from scrapy_dedupe.afterwards.eligibility import REASONS
from scrapy_dedupe.afterwards.revisits import Target
from scrapy_dedupe.afterwards.state import sync_folder, writing
from scrapy_dedupe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.afterwards.faults import Faults
    from scrapy_dedupe.afterwards.manifest import ManifestLine

LEFT: Final = REASONS | {
    "original": "its original cannot stand for it",
    "no-gain": "not smaller as a revisit",
    "damaged": "not as the manifest says, or damaged",
    "fields": "with fields that only a revisit has",
    "shared": "named by a record that shares a gzip member and so cannot be changed",
    "chunks": "stored without the chunks that its original is stored in, which a replay program would show",
}
"""Why a copy is left as it is, by key."""

ALONE, ORIGINAL, COPY = 0, 1, 2

LINES_FILE: Final = "lines.sqlite"
PLAN_FILE: Final = "plan.sqlite"

_BATCH = 10_000
_LINES_SCHEMA = """
CREATE TABLE note (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE file (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_output INTEGER NOT NULL, is_listed INTEGER NOT NULL);
CREATE TABLE line (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL, digest BLOB NOT NULL,
    extension INTEGER NOT NULL, copy INTEGER NOT NULL, uri TEXT NOT NULL, date TEXT NOT NULL, refers_uri TEXT,
    refers_date TEXT, original INTEGER, role INTEGER NOT NULL DEFAULT 0
);
"""

SURVEYED = """
CREATE TABLE {schema}surveyed (
    line INTEGER PRIMARY KEY, file INTEGER NOT NULL, role INTEGER NOT NULL, reason TEXT, id BLOB, id_key BLOB, uri BLOB,
    date BLOB, date_key TEXT, digest BLOB, digest_key TEXT, listed_key TEXT NOT NULL, mime TEXT, revisit_bytes INTEGER,
    is_chunked INTEGER NOT NULL DEFAULT 0, is_converted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE {schema}pinned (id_key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE {schema}pinned_uri (uri BLOB PRIMARY KEY) WITHOUT ROWID;
"""

# 64: what the estimate of a size does not know, such as the digits of another date.
_DECIDE = """
UPDATE surveyed SET reason = 'shared' WHERE role = 2 AND reason IS NULL AND (
    id_key IN (SELECT id_key FROM pinned) OR uri IN (SELECT uri FROM pinned_uri)
);
UPDATE surveyed SET reason = 'original' WHERE role = 2 AND reason IS NULL AND NOT EXISTS (
    SELECT 1 FROM lines.line l JOIN surveyed o ON o.line = l.original
    WHERE l.id = surveyed.line AND o.reason IS NULL AND o.uri IS NOT NULL AND o.date IS NOT NULL AND o.digest IS NOT NULL
);
UPDATE surveyed SET reason = 'chunks' WHERE role = 2 AND reason IS NULL AND NOT is_chunked AND (
    SELECT o.is_chunked FROM lines.line l JOIN surveyed o ON o.line = l.original WHERE l.id = surveyed.line
);
UPDATE surveyed SET reason = 'no-gain' WHERE role = 2 AND reason IS NULL AND (
    SELECT surveyed.revisit_bytes + 64 + max(0, coalesce(length(o.id), 0) - 47) + max(0, length(o.uri) - length(l.refers_uri))
        >= l.length
    FROM lines.line l JOIN surveyed o ON o.line = l.original WHERE l.id = surveyed.line
);
UPDATE surveyed SET is_converted = 1 WHERE role = 2 AND reason IS NULL;
CREATE INDEX surveyed_id ON surveyed (id_key, is_converted, file);
CREATE INDEX surveyed_place ON surveyed (uri, date_key);
CREATE TABLE named (uri BLOB, key TEXT, is_converted INTEGER, line INTEGER, PRIMARY KEY (uri, key, is_converted, line))
    WITHOUT ROWID;
INSERT OR IGNORE INTO named SELECT uri, digest_key, is_converted, line FROM surveyed WHERE uri IS NOT NULL AND digest_key IS NOT NULL;
INSERT OR IGNORE INTO named SELECT uri, listed_key, is_converted, line FROM surveyed WHERE uri IS NOT NULL;
DROP TABLE pinned;
DROP TABLE pinned_uri;
CREATE TABLE standing (id_key BLOB, file INTEGER, PRIMARY KEY (id_key, file)) WITHOUT ROWID;
"""

# Only where a record that becomes a revisit has the id as well, or its URI and second, it is in doubt which is meant.
_STANDING = """
INSERT OR IGNORE INTO standing SELECT o.id_key, o.file FROM {others} o WHERE o.id_key IS NOT NULL AND (
    EXISTS (SELECT 1 FROM surveyed s WHERE s.id_key = o.id_key AND s.is_converted = 1)
    OR EXISTS (
        SELECT 1 FROM surveyed s WHERE s.uri = o.uri AND s.is_converted = 1
        AND s.date_key BETWEEN substr(o.date_key, 1, 19) AND substr(o.date_key, 1, 19) || '~'
    )
)
"""


class PlannedFile(NamedTuple):
    """A file of the plan. ``is_main``: it is written again, here or by another call."""

    id: int
    name: str
    is_output: bool
    is_main: bool


class PlannedLine(NamedTuple):
    """A line of the manifest, as the survey needs it."""

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
    """A listed record, as it is written: ``target`` is the original of a copy that becomes a revisit."""

    offset: int
    length: int
    target: Target | None


def write_lines(
    folder: Path,
    lines: Iterable[ManifestLine],
    originals: Iterable[ManifestLine],
    files: Sequence[str] | None,
    faults: Faults,
) -> None:
    """Make ``lines.sqlite`` of the manifests; *files* are those to be written again, None: all in *lines*.

    Raises UsageError for manifests that are not numbered or are of decoded payloads, DamagedInput for such as
    contradict each other (unless *faults* goes on), ArchiveError if there is no room.
    """
    path = folder / LINES_FILE
    with _building(path) as connection:
        connection.executescript(_LINES_SCHEMA)
        marks = hashlib.blake2b()
        filler = _Filler(connection)
        filler.fill(marked(_numbered(lines), marks), is_output=files is None, is_listed=1)
        main_lines = filler.count
        for name in filler.matching(files or ()):
            filler.add_output(name)
        filler.fill(marked(_originals(originals), marks), is_output=False, is_listed=2)
        connection.execute("CREATE INDEX line_place ON line (file, offset)")
        _drop_repeated(connection, main_lines, faults)
        connection.execute("CREATE INDEX line_original ON line (digest, extension) WHERE copy = 1")
        connection.execute(
            "UPDATE line SET original = (SELECT o.id FROM line o WHERE o.digest = line.digest AND o.extension = line.extension"
            " AND o.copy = 1 AND o.uri = line.refers_uri AND o.date = line.refers_date ORDER BY o.id LIMIT 1)"
            " WHERE copy > 1"
        )
        _tell_orphans(connection, faults)
        connection.execute("UPDATE line SET role = 2 WHERE copy > 1")
        connection.execute(
            "UPDATE line SET role = 1 WHERE id IN (SELECT original FROM line WHERE original IS NOT NULL)"
        )
        connection.execute("DROP INDEX line_original")
        connection.execute("INSERT INTO note VALUES ('marks', ?)", (marks.hexdigest(),))


def write_plan(folder: Path, parts: Iterable[Path]) -> None:
    """Make ``plan.sqlite`` of the lines and of what the survey found in each file. Raises ArchiveError."""
    parts = list(parts)
    with _building(folder / PLAN_FILE) as connection:
        connection.execute("ATTACH ? AS lines", (str(folder / LINES_FILE),))
        connection.executescript(SURVEYED.format(schema=""))
        for part in parts:
            connection.execute("ATTACH ? AS part", (str(part),))
            connection.execute("INSERT INTO surveyed SELECT * FROM part.surveyed")
            connection.execute("INSERT OR IGNORE INTO pinned SELECT * FROM part.pinned")
            connection.execute("INSERT OR IGNORE INTO pinned_uri SELECT * FROM part.pinned_uri")
            connection.commit()
            connection.execute("DETACH part")
        connection.executescript(_DECIDE)
        connection.execute(_STANDING.format(others="(SELECT * FROM surveyed WHERE is_converted = 0)"))
        connection.commit()
        for part in parts:
            connection.execute("ATTACH ? AS part", (str(part),))
            connection.execute(_STANDING.format(others="part.unlisted"))
            connection.commit()
            connection.execute("DETACH part")


def marks_of(lines: Iterable[ManifestLine], originals: Iterable[ManifestLine]) -> str:
    """What `Plan.marks` is for these manifests."""
    marks = hashlib.blake2b()
    for _ in chain(marked(_numbered(lines), marks), marked(_originals(originals), marks)):
        pass
    return marks.hexdigest()


def marked(lines: Iterable[ManifestLine], marks: hashlib.blake2b) -> Iterator[ManifestLine]:
    """The lines, while *marks* takes in what tells one run from another."""
    for line in lines:
        text = (
            f"{line.file}\n{line.offset} {line.length} {line.digest} {line.extension} {line.copy}\n"
            f"{line.refers_to_uri}\n{line.refers_to_date}\n"
        )
        marks.update(text.encode("utf-8", "surrogatepass"))
        yield line


class Plan:
    """Reads the files below *folder*; a context manager. Without ``plan.sqlite`` it knows of lines alone."""

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
        """What `marked` made of all lines."""
        return str(self.connection.execute("SELECT value FROM note WHERE key = 'marks'").fetchone()[0])

    def files(self) -> list[PlannedFile]:
        """All files, in the order in which the manifests name them first."""
        rows = self.connection.execute(
            "SELECT id, name, is_output, is_output OR is_listed = 1 FROM file ORDER BY id"
        )
        return [
            PlannedFile(number, name, bool(is_output), bool(is_main))
            for number, name, is_output, is_main in rows
        ]

    def surveyed_files(self) -> set[int]:
        """The files that have an original with copies, or a copy."""
        return {row[0] for row in self.connection.execute("SELECT DISTINCT file FROM line WHERE role > 0")}

    def surveyed_count(self, file: int) -> int:
        """How many lines of a file the survey has to look at."""
        rows = self.connection.execute("SELECT count(*) FROM line WHERE file = ? AND role > 0", (file,))
        return int(rows.fetchone()[0])

    def lines_of(self, file: int) -> Iterator[PlannedLine]:
        """The lines of a file in the order of their offsets."""
        rows = self.connection.execute(
            "SELECT id, offset, length, role, digest, uri, date, refers_uri, refers_date FROM line WHERE file = ?"
            " ORDER BY offset",
            (file,),
        )
        for number, offset, length, role, digest, *texts in rows:
            yield PlannedLine(number, offset, length, role, _digest_text(digest), *texts)

    def records_of(self, file: int) -> Iterator[Planned]:
        """The listed records of a file in the order of their offsets, with what is to become of them."""
        rows = self.connection.execute(
            "SELECT l.offset, l.length, coalesce(s.is_converted, 0), o.id, o.uri, o.date, o.digest FROM line l"
            " LEFT JOIN plan.surveyed s ON l.role = 2 AND s.line = l.id"
            " LEFT JOIN plan.surveyed o ON s.is_converted AND o.line = l.original WHERE l.file = ? ORDER BY l.offset",
            (file,),
        )
        for offset, length, is_converted, *target in rows:
            yield Planned(offset, length, Target(*target) if is_converted else None)

    def count_converted(self) -> int:
        """How many copies become revisits, in all files."""
        return int(
            self.connection.execute("SELECT count(*) FROM plan.surveyed WHERE is_converted").fetchone()[0]
        )

    def left(self) -> dict[str, int]:
        """How many copies in the files that are written again stay as they are, by reason."""
        rows = self.connection.execute(
            "SELECT s.reason, count(*) FROM plan.surveyed s JOIN file f ON f.id = s.file"
            " WHERE s.role = 2 AND s.reason IS NOT NULL AND f.is_output GROUP BY s.reason ORDER BY 2 DESC, 1"
        )
        return dict(rows.fetchall())

    def savings(self) -> Iterator[tuple[str, str, int]]:
        """URI, MIME type and saved bytes of each copy that becomes a revisit in a file that is written again."""
        yield from self.connection.execute(
            "SELECT l.uri, coalesce(s.mime, ''), l.length - s.revisit_bytes FROM plan.surveyed s"
            " JOIN line l ON l.id = s.line JOIN file f ON f.id = s.file WHERE s.is_converted AND f.is_output"
        )


@contextmanager
def _building(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file that gets its name when it is complete and on the disk."""
    temporary = path.with_name(f"{path.name}.new")
    with writing(path, temporary):
        temporary.unlink(missing_ok=True)
        connection = sqlite3.connect(temporary)
        try:
            # Whatever is cut is made anew, so nothing has to outlive a crash before the end.
            connection.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000;"
            )
            yield connection
            connection.commit()
        except sqlite3.OperationalError as error:
            raise OSError(getattr(error, "sqlite_errorcode", 0), str(error)) from error
        finally:
            connection.close()
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


class _Filler:
    """Puts lines into the tables, a batch at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[str, int] = {}
        self.count = 0

    def fill(self, lines: Iterable[ManifestLine], *, is_output: bool, is_listed: int) -> None:
        rows = iter(lines)
        while batch := list(islice(rows, _BATCH)):
            self._connection.executemany(
                "INSERT INTO line (file, offset, length, digest, extension, copy, uri, date, refers_uri, refers_date)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        self._file_id(line.file, is_output=is_output, is_listed=is_listed),
                        line.offset,
                        line.length,
                        _digest_bytes(line.digest),
                        line.extension or 1,
                        line.copy,
                        line.uri,
                        line.date,
                        line.refers_to_uri,
                        line.refers_to_date,
                    )
                    for line in batch
                ],
            )
            self.count += len(batch)

    def matching(self, names: Iterable[str]) -> Iterator[str]:
        """The names, and for each that is a pattern and no file of the manifests, those of the files that it matches."""
        listed = list(self._ids)
        for name in names:
            matches = [] if name in self._ids else [known for known in listed if fnmatchcase(known, name)]
            # What is nowhere in the manifests may be a file without any response.
            yield from matches or [name]

    def add_output(self, name: str) -> None:
        """Have a file written again, with or without lines."""
        number = self._file_id(name, is_output=True, is_listed=0)
        self._connection.execute("UPDATE file SET is_output = 1 WHERE id = ?", (number,))

    def _file_id(self, name: str, *, is_output: bool, is_listed: int) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self._ids) + 1
            self._connection.execute(
                "INSERT INTO file VALUES (?, ?, ?, ?)", (number, name, is_output, is_listed)
            )
        return number


def _numbered(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    for line in lines:
        if line.copy is None:
            raise UsageError(
                f"The manifest has no copy numbers (the line of {line.file}, offset {line.offset}). Run warccollres and"
                " warcsumproc first."
            )
        if line.digest.startswith("decoded-"):
            raise UsageError(
                "The manifest has digests of decoded payloads, but a revisit must stand for the stored bytes. Run warcsum"
                " without --decoded."
            )
        if line.is_copy and (line.refers_to_uri is None or line.refers_to_date is None):
            raise UsageError(
                f"The manifest does not say what the copy in {line.file}, offset {line.offset}, refers to. Run warcsumproc."
            )
        yield line


def _originals(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    return (line for line in _numbered(lines) if line.copy == 1)


def _drop_repeated(connection: sqlite3.Connection, main_lines: int, faults: Faults) -> None:
    """Keep the first of several lines of one record, and tell where they say different things of it."""
    repeated = connection.execute(
        "SELECT f.name, l.offset, count(DISTINCT l.digest || l.extension || ' ' || l.copy) FROM line l"
        " JOIN file f ON f.id = l.file WHERE l.id <= ? GROUP BY l.file, l.offset HAVING count(*) > 1",
        (main_lines,),
    )
    for name, offset, versions in repeated:
        if versions > 1:
            faults.add(
                f"{name}, offset {offset}", "the manifests have several lines of this record that differ"
            )
    connection.execute(
        "DELETE FROM line WHERE EXISTS (SELECT 1 FROM line o WHERE o.file = line.file AND o.offset = line.offset AND o.id < line.id)"
    )


def _tell_orphans(connection: sqlite3.Connection, faults: Faults) -> None:
    rows = connection.execute(
        "SELECT f.name, l.offset FROM line l JOIN file f ON f.id = l.file WHERE l.copy > 1 AND l.original IS NULL"
        " ORDER BY l.id"
    )
    for name, offset in rows:
        faults.add(
            f"{name}, offset {offset}",
            "the original of this copy is in none of the manifests. Name the manifest that has it with --originals",
        )


def _digest_bytes(text: str) -> bytes:
    label, _, value = text.partition(":")
    return label.encode("ascii") + b":" + bytes.fromhex(value)


def _digest_text(data: bytes) -> str:
    label, _, raw = data.partition(b":")
    return f"{label.decode('ascii')}:{raw.hex()}"
