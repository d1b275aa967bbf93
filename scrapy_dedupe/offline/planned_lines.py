"""Store the lines of numbered manifests on disk, by file and offset: ``lines.sqlite``.

Table ``file``: id, name (the bytes of its file name), is_output (the file is rewritten), is_listed (1: it has
lines, 2: only lines of originals, 0: none). Table ``line``: id, file, offset, length, digest (label, colon
and raw bytes), extension (distinguishes different payloads with equal digests), copy (number among the records of one
payload; 1: original), uri, date, refers_uri, refers_date, original (the id of the line that a copy refers to in the
manifest) and role (0: no duplicates; 1: may be the original of a copy; 2: a copy, which may be the
original of another one). Table ``note``: key, value.

The file depends only on the manifests, and does not change after it gets its name.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.tasks.faults import Faults

LINES_FILE: Final = "lines.sqlite"

# If the first record of a payload cannot be the original, another one may. Reading each candidate may need a transfer.
_MOST_ORIGINALS: Final = 8

_BATCH = 10_000
_SCHEMA = """
CREATE TABLE note (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE file (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, is_output INTEGER NOT NULL, is_listed INTEGER NOT NULL);
CREATE TABLE line (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL, digest BLOB NOT NULL,
    extension INTEGER NOT NULL, copy INTEGER NOT NULL, uri TEXT NOT NULL, date TEXT NOT NULL, refers_uri TEXT,
    refers_date TEXT, original INTEGER, role INTEGER NOT NULL DEFAULT 0
);
"""


def write_lines(
    folder: Path,
    lines: Iterable[ManifestLine],
    originals: Iterable[ManifestLine],
    files: Sequence[str] | None,
    faults: Faults,
) -> None:
    """Make ``lines.sqlite`` from the manifests; *files* are the files to rewrite, None: all in *lines*.

    Raises UsageError for manifests without copy numbers or with digests of decoded payloads, DamagedInput for
    contradictory manifests (unless *faults* is set to keep going), ArchiveError if the disk is full.
    """
    path = folder / LINES_FILE
    with building(path) as connection:
        connection.executescript(_SCHEMA)
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
        _report_missing_originals(connection, main_lines, faults)
        connection.execute("UPDATE line SET role = 2 WHERE copy > 1 AND id <= ?", (main_lines,))
        connection.execute(
            "UPDATE line SET role = 1 WHERE id IN (SELECT original FROM line WHERE role = 2 AND original IS NOT NULL)"
        )
        connection.execute(
            "UPDATE line SET role = 1 WHERE id > ? AND original IN (SELECT original FROM line WHERE role = 2)",
            (main_lines,),
        )
        connection.execute("DROP INDEX line_original")
        connection.execute("INSERT INTO note VALUES ('marks', ?)", (marks.hexdigest(),))


def marks_of(lines: Iterable[ManifestLine], originals: Iterable[ManifestLine]) -> str:
    """The value of `RewritePlan.marks` for these manifests."""
    marks = hashlib.blake2b()
    for _ in chain(marked(_numbered(lines), marks), marked(_originals(originals), marks)):
        pass
    return marks.hexdigest()


def marked(lines: Iterable[ManifestLine], marks: hashlib.blake2b) -> Iterator[ManifestLine]:
    """Pass the lines through, and update the hash *marks* with the values that identify a run."""
    for line in lines:
        text = (
            f"{line.file}\n{line.offset} {line.length} {line.digest} {line.extension} {line.copy}\n"
            f"{line.refers_to_uri}\n{line.refers_to_date}\n"
        )
        marks.update(text.encode("utf-8", "surrogatepass"))
        yield line


@contextmanager
def building(path: Path) -> Iterator[sqlite3.Connection]:
    """Create an SQLite file, which gets its name when it is complete and synced to disk."""
    with writing(path), whole_file.replacing_from(path, suffix=".new") as temporary:
        connection = sqlite3.connect(temporary)
        try:
            # The file of a killed run is made again, so it need not survive a crash.
            connection.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000;"
            )
            yield connection
            connection.commit()
        except sqlite3.OperationalError as error:
            raise OSError(getattr(error, "sqlite_errorcode", 0), str(error)) from error
        finally:
            connection.close()


class _Filler:
    """Inserts lines into the tables in batches."""

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
        """Expand patterns to the files of the manifests that they match; the name of a file is not a pattern."""
        listed = list(self._ids)
        for name in names:
            matches = [] if name in self._ids else [known for known in listed if fnmatchcase(known, name)]
            # A name that is not in the manifests may be a file without any response.
            yield from matches or [name]

    def add_output(self, name: str) -> None:
        """Mark a file to be rewritten, with or without lines."""
        number = self._file_id(name, is_output=True, is_listed=0)
        self._connection.execute("UPDATE file SET is_output = 1 WHERE id = ?", (number,))

    def _file_id(self, name: str, *, is_output: bool, is_listed: int) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self._ids) + 1
            self._connection.execute(
                "INSERT INTO file VALUES (?, ?, ?, ?)", (number, name_bytes(name), is_output, is_listed)
            )
        return number


def name_bytes(name: str) -> bytes:
    """Encode a file name for the database, which rejects text that is not UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def file_name(data: bytes) -> str:
    """The inverse of `name_bytes`."""
    return data.decode("utf-8", "surrogateescape")


def _numbered(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    for line in lines:
        if line.copy is None:
            raise UsageError(
                f"The manifest has no copy numbers (the line of {line.file}, offset {line.offset}). Run warccollres and"
                " warcsumproc first."
            )
        if line.digest.startswith("decoded-"):
            raise UsageError(
                "The manifest has digests of decoded payloads, but a revisit must represent the stored bytes. Run warcsum"
                " without --decoded."
            )
        if line.is_copy and (line.refers_to_uri is None or line.refers_to_date is None):
            raise UsageError(
                f"The manifest has no reference for the copy in {line.file}, offset {line.offset}. Run warcsumproc."
            )
        yield line


def _originals(lines: Iterable[ManifestLine]) -> Iterator[ManifestLine]:
    return (line for line in _numbered(lines) if line.copy is not None and line.copy <= _MOST_ORIGINALS)


def _drop_repeated(connection: sqlite3.Connection, main_lines: int, faults: Faults) -> None:
    """Keep only the first line of each record, and report lines of one record that differ."""
    repeated = connection.execute(
        "SELECT f.name, l.offset, count(DISTINCT l.digest || l.extension || ' ' || l.copy) FROM line l"
        " JOIN file f ON f.id = l.file WHERE l.id <= ? GROUP BY l.file, l.offset HAVING count(*) > 1",
        (main_lines,),
    )
    for name, offset, versions in repeated:
        if versions > 1:
            faults.add(
                f"{file_name(name)}, offset {offset}",
                "the manifests have several different lines for this record",
            )
    connection.execute(
        "DELETE FROM line WHERE EXISTS (SELECT 1 FROM line o WHERE o.file = line.file AND o.offset = line.offset AND o.id < line.id)"
    )


def _report_missing_originals(connection: sqlite3.Connection, main_lines: int, faults: Faults) -> None:
    rows = connection.execute(
        "SELECT f.name, l.offset FROM line l JOIN file f ON f.id = l.file WHERE l.copy > 1 AND l.original IS NULL"
        " AND l.id <= ? ORDER BY l.id",
        (main_lines,),
    )
    for name, offset in rows:
        faults.add(
            f"{file_name(name)}, offset {offset}",
            "the original of this copy is in none of the manifests. Name the manifest that lists it with --originals",
        )


def _digest_bytes(text: str) -> bytes:
    label, _, value = text.partition(":")
    return label.encode("ascii") + b":" + bytes.fromhex(value)
