"""The SQLite file of an exact URL set, with one connection for writing and one for reading.

**Format.** An SQLite database with ``application_id`` 0x64647531 ("ddu1"), ``user_version`` 1, pages of 1,024 bytes,
and two tables. ``seen`` has one column, the fingerprint, as its primary key. ``about`` has the rows
``fingerprinter`` (import path of the class that makes the fingerprints) and ``count`` (number of rows of ``seen``).
The count is updated in the same transaction as ``seen``, so that opening the file need not count rows.

**Durability.** The file is written with ``synchronous=OFF``, because after an unclean stop its content is not used:
after a kill it is intact but may have fingerprints of requests that were never made, and after a power failure it may
be damaged. :meth:`ExactFile.close` makes it durable. The file does not record how the last run stopped.

**Why this table.** In a large set nearly every fingerprint of a batch changes a page of its own, so the page size
decides how much is written. Pages of 1 KiB write a third of the bytes of pages of 4 KiB at the same rate. The measurements
are in ``docs/design/urls.rst``.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.whole_file import sync_file
from scrapy_dedupe.urls.journal import other_fingerprinter, other_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

APPLICATION_ID = 0x64647531
VERSION = 1

_PAGE_BYTES = 1024
_WRITER_CACHE_KIB = 4096
_READER_CACHE_KIB = 2048
_WAL_BYTES = 4 << 20
# Rows of one INSERT. sqlite3 releases the GIL in each statement and, while the event loop is busy, waits for it
# after each statement.
_STATEMENT_ROWS = 100

_MAGIC = b"SQLite format 3\0"
# sqlite3 raises the last two for damaged files: for a message with a damaged name, and for a record of absurd size.
_FAULTS = (sqlite3.Error, UnicodeDecodeError, MemoryError)
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class ExactFile:
    """The open file; created by :meth:`open`.

    :meth:`has` and :meth:`count_with` may be called while another thread is in any other method, and do not wait
    for it. All methods raise :class:`~scrapy_dedupe.errors.StoreUnavailable` for errors of the file.
    """

    def __init__(
        self,
        path: Path,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        temporary_folder: Path | None,
    ) -> None:
        self.path = path
        self.count = _count(writer)
        self._writer = writer
        self._reader = reader
        self._temporary_folder = temporary_folder
        self._reading_lock = threading.Lock()

    @classmethod
    def open(cls, path: Path | None, fingerprinter: str, *, recreate: bool) -> ExactFile:
        """Open the file. See :meth:`ExactSet.open <scrapy_dedupe.urls.exact.ExactSet.open>`."""
        temporary_folder = None
        with _opening_faults(path or "in the folder for temporary files"), ExitStack() as undo:
            if path is None:
                temporary_folder = Path(tempfile.mkdtemp(prefix="scrapy-dedupe-"))
                undo.callback(_remove_folder, temporary_folder)
                path = temporary_folder / "urls.exact"
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                if recreate:
                    _remove(path)
                _check_start(path)
            writer = _connect(path, timeout_s=5.0)
            undo.callback(writer.close)
            _prepare(writer, path, fingerprinter)
            # Lookups must not wait for a lock; in WAL mode the writer does not block readers.
            reader = _connect(path, timeout_s=0.0)
            undo.callback(reader.close)
            reader.execute(f"PRAGMA cache_size=-{_READER_CACHE_KIB}")
            reader.execute("PRAGMA query_only=1")
            # Also opens the -wal and -shm files, which is no longer possible after they are unlinked.
            _count(reader)
            file = cls(path, writer, reader, temporary_folder)
            if temporary_folder is not None and os.name != "nt":
                _remove_folder(temporary_folder)
            undo.pop_all()
        return file

    @property
    def is_temporary(self) -> bool:
        return self._temporary_folder is not None

    def has(self, fingerprint: bytes) -> bool:
        """Whether the committed file has the fingerprint."""
        try:
            with self._reading_lock:
                return _is_in(self._reader, fingerprint)
        except _FAULTS as error:
            raise self._does_not_answer(error) from error

    def count_with(self, fingerprints: Iterable[bytes]) -> int:
        """The count after adding these fingerprints; each is looked up, nothing is written."""
        try:
            with self._reading_lock:
                # One snapshot of the file, unaffected by commits of the writer.
                self._reader.execute("BEGIN")
                try:
                    return _count(self._reader) + sum(
                        not _is_in(self._reader, fingerprint) for fingerprint in fingerprints
                    )
                finally:
                    self._reader.execute("COMMIT")
        except _FAULTS as error:
            raise self._does_not_answer(error) from error

    def write(self, fingerprints: Iterable[bytes], *, clear: bool = False) -> None:
        """Add fingerprints in one transaction; with ``clear`` remove everything first."""
        rows = sorted(fingerprints)
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            count = _count(writer)
            if clear:
                writer.execute("DELETE FROM seen")
                count = 0
            for start in range(0, len(rows), _STATEMENT_ROWS):
                part = rows[start : start + _STATEMENT_ROWS]
                places = ",".join(["(?)"] * len(part))
                count += writer.execute(f"INSERT OR IGNORE INTO seen VALUES {places}", part).rowcount  # noqa: S608
            writer.execute("UPDATE about SET value = ? WHERE name = 'count'", (count,))
            writer.execute("COMMIT")
        except BaseException as error:
            # SQLite may already have rolled back, and on a full disk the rollback may fail too.
            with suppress(*_FAULTS):
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
            if isinstance(error, _FAULTS):
                raise self._takes_no_more(error) from error
            raise
        self.count = count

    def close(self, *, remove: bool = False) -> None:
        """Close the file and make it durable, or delete it with ``remove``. The -wal and -shm files are deleted."""
        try:
            if not self.is_temporary and not remove:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except _FAULTS as error:
            raise self._takes_no_more(error) from error
        finally:
            # Closing a connection while another thread runs a statement on it crashes sqlite3.
            with self._reading_lock:
                self._reader.close()
            self._writer.close()
            self._sync_or_remove(remove=remove)

    def _sync_or_remove(self, *, remove: bool) -> None:
        try:
            if self._temporary_folder is not None:
                _remove_folder(self._temporary_folder)
            elif remove:
                _remove(self.path)
                self.count = 0
            else:
                # Only now: closing a second descriptor would release the process's locks on an open file. The WAL file
                # still exists if another process has the set open.
                for file in (self.path.with_name(f"{self.path.name}-wal"), self.path):
                    if file.exists():
                        sync_file(file)
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._takes_no_more(error) from error

    def _takes_no_more(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"The exact URL set {self.path} cannot be written: {_reason(error)}. New URLs are kept in memory up to a "
            "limit, and are requested again in the next run. Free disk space."
        )

    def _does_not_answer(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"The exact URL set {self.path} cannot be read: {_reason(error)}. URLs that cannot be looked up count as "
            "new. Check the disk for errors."
        )


# Opening


def _connect(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def _prepare(writer: sqlite3.Connection, path: Path, fingerprinter: str) -> None:
    writer.execute(f"PRAGMA cache_size=-{_WRITER_CACHE_KIB}")
    application, version = _pragma(writer, "application_id"), _pragma(writer, "user_version")
    has_tables = writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
    if application == 0 and version == 0 and not has_tables:
        _make_tables(writer, fingerprinter)
    elif application != APPLICATION_ID:
        raise StoreRefused(_other_file(path))
    elif version != VERSION:
        raise StoreRefused(other_version(path, version, VERSION))
    writer.execute("PRAGMA synchronous=OFF")
    mode = writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnavailable(
            f"The exact URL set {path} cannot be read and written at the same time: its file system does not support "
            "SQLite's WAL mode. Use a JOBDIR on a local disk, or set DEDUPE_URL_CONFIRM = False."
        )
    writer.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
    writer.execute(f"PRAGMA wal_autocheckpoint={_WAL_BYTES // _pragma(writer, 'page_size')}")
    # Moves what a killed process left in the WAL file into the main file, which then has its full size.
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = writer.execute("SELECT value FROM about WHERE name = 'fingerprinter'").fetchone()
    if stored is None:
        raise StoreRefused(_damaged(path, "its fingerprinter is missing"))
    if stored[0] != fingerprinter:
        raise StoreRefused(other_fingerprinter(path, str(stored[0]), fingerprinter))
    if path.stat().st_size < _pragma(writer, "page_count") * _pragma(writer, "page_size"):
        raise StoreRefused(_damaged(path, "it is truncated"))
    count = _count(writer)
    ends = writer.execute("SELECT min(fingerprint) FROM seen UNION ALL SELECT max(fingerprint) FROM seen")
    if [end is None for (end,) in ends] != [count == 0] * 2:
        raise StoreRefused(_damaged(path, "its count does not match its fingerprints"))


def _make_tables(writer: sqlite3.Connection, fingerprinter: str) -> None:
    writer.execute(f"PRAGMA page_size={_PAGE_BYTES}")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE seen (fingerprint BLOB PRIMARY KEY) WITHOUT ROWID")
    writer.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID")
    writer.execute("INSERT INTO about VALUES ('count', 0), ('fingerprinter', ?)", (fingerprinter,))
    writer.execute(f"PRAGMA application_id={APPLICATION_ID}")
    writer.execute(f"PRAGMA user_version={VERSION}")
    writer.execute("COMMIT")


def _check_start(path: Path) -> None:
    """Refuse a file that is not SQLite before SQLite opens it and creates its -wal and -shm files."""
    if path.is_dir():
        raise StoreRefused(f"The exact URL set {path} is a folder. Move it away, or use another JOBDIR.")
    start = _start(path)
    if start and not start.startswith(_MAGIC):
        raise StoreRefused(_other_file(path))


def _start(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(100)


# SQL


def _count(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM about WHERE name = 'count'").fetchone()
    if row is None or not isinstance(row[0], int):
        raise sqlite3.DatabaseError('its table "about" has no count')
    return row[0]


def _is_in(connection: sqlite3.Connection, fingerprint: bytes) -> bool:
    return (
        connection.execute("SELECT 1 FROM seen WHERE fingerprint = ?", (fingerprint,)).fetchone() is not None
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


# Files


def _remove(path: Path) -> None:
    """Delete an exact set, even a damaged one. Raises StoreRefused for a database of another application."""
    if path.is_file():
        start = _start(path)
        application = int.from_bytes(start[68:72], "big")
        if start.startswith(_MAGIC) and application not in (0, APPLICATION_ID):
            raise StoreRefused(_other_file(path))
    for suffix in ("-wal", "-shm", "-journal", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    for file in tuple(folder.glob("*")):
        file.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        folder.rmdir()


# Errors


@contextmanager
def _opening_faults(place: Path | str) -> Iterator[None]:
    try:
        yield
    except (*_FAULTS, OSError) as error:
        # The low byte of an extended code is the primary code. Errors raised by this module have no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if not isinstance(error, OSError) and (code in _DAMAGE_CODES or "no such" in str(error)):
            raise StoreRefused(_damaged(place, _reason(error))) from error
        raise StoreUnavailable(
            f"The exact URL set {place} cannot be used: {_reason(error)}. Make its folder writable and free disk space, "
            "or set DEDUPE_URL_CONFIRM = False."
        ) from error


def _reason(error: BaseException) -> str:
    return str(error).rstrip(".")


def _damaged(path: Path | str, reason: str) -> str:
    return (
        f"The exact URL set {path} is damaged ({reason}). Delete it (its pages may then be requested again), or use "
        "another JOBDIR."
    )


def _other_file(path: Path) -> str:
    return f"{path} is not an exact URL set of scrapy-dedupe. Move it away, or use another JOBDIR."
