"""An SQLite file with the tables of a store: opening, checks of its format, and transactions.

The file is in WAL mode, for several processes at once. It has the ``application_id`` 0x64647031 ("ddp1") and a
``user_version``, the version of its tables. A file with another application id or another version is rejected and left
unchanged. The tables are described in :mod:`.sqlite_content_tables` and :mod:`.sqlite_index_tables`.

Durability: ``synchronous=NORMAL``. A kill of the process loses nothing. After a power failure the last transactions
may be missing, but the file is consistent.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.files.folders import folder_fault

from . import sqlite_content_tables, sqlite_index_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_dedupe.errors import StoreError

    from .location import StoreLocation

APPLICATION_ID = 0x64647031

SCHEMA_VERSION = 5
_MIGRATED_VERSION = 4

_PAGE_BYTES = 2_048
_CHECKPOINT_PAGES = 8_000
_CACHE_KIB = 16_000

_SCHEMA = f"""
{sqlite_content_tables.SCHEMA}
{sqlite_index_tables.SCHEMA}
CREATE TABLE probe (word TEXT PRIMARY KEY) WITHOUT ROWID;
"""

# SQLite's messages for a file that is not a database, or is corrupt.
_NOT_A_DATABASE = ("malformed", "not a database")

# The number of values in one list of a statement.
_AT_ONCE = 512

_REMEDIES = (
    ("disk is full", "Free some disk space, or name a file on another disk."),
    ("disk i/o error", "The disk is full or failing: check it, or name a file on another disk."),
    ("readonly database", "Change the permissions of the file and its folder, or name another file."),
    (
        "unable to open database file",
        "Change the permissions of its folder, free some disk space, or name another file.",
    ),
    (
        "database is locked",
        "Another process has held the write lock for too long: raise DEDUPE_STORE_TIMEOUT, or use Redis.",
    ),
)


class SqliteFile:
    """An open file. Raises :class:`StoreUnavailable` or :class:`StoreRefused` if it is unusable.

    With ``create=False`` a missing file is an error. Several threads may use the connection, but only one at a time.
    """

    def __init__(self, location: StoreLocation, *, timeout_s: float = 5.0, create: bool = True) -> None:
        assert location.path is not None
        self.url = location.url
        self._timeout_s = timeout_s
        self._path = path = location.path.absolute()
        try:
            if path.is_dir():
                raise StoreRefused(f"The store {self.url} is a directory. Name a file in DEDUPE_STORE_URL.")
            if not create and not path.exists():
                raise StoreUnavailable(
                    f"There is no store {self.url}: the file {path} does not exist. The first crawl creates it. If it exists"
                    " elsewhere, change to the directory of the project, or name the store (--store, DEDUPE_STORE_URL)."
                )
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            with sqlite_faults(self.url):
                self._connection = sqlite3.connect(
                    path, timeout=timeout_s, isolation_level=None, check_same_thread=False
                )
        except OSError as error:
            reason, remedy = folder_fault(path.parent, error, "a file in another folder")
            raise StoreUnavailable(f"The store {self.url} cannot be opened: {reason}. {remedy}") from error
        try:
            with sqlite_faults(self.url):
                self._prepare()
                self._opened = path.stat()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        # One transaction, since another process may be creating the file now.
        with transaction(self._connection, self.url, "BEGIN"):
            version = self._format()
        # The page size affects only new files. A text changes about twenty pages, which a commit writes completely.
        self._connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        # Pages that change often are copied less often from the log into the file: a third more texts per second.
        self._connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        self._connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        if not version:
            self._make_tables()
        elif version == _MIGRATED_VERSION:
            self._migrate()
        self._enter_wal()

    def _format(self) -> int:
        """The version of the tables, 0 in a new file. Raises :class:`StoreRefused` for a file that must not be used."""
        application = self._number("application_id")
        version = self._number("user_version")
        if application != APPLICATION_ID:
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application or version or tables:
                raise StoreRefused(
                    f"The file of the store {self.url} is an SQLite database of another program. It was left"
                    " unchanged; name another file in DEDUPE_STORE_URL."
                )
        elif version not in {_MIGRATED_VERSION, SCHEMA_VERSION}:
            remedy = (
                "Upgrade scrapy-dedupe" if version > SCHEMA_VERSION else "Move the file away and crawl again"
            )
            raise StoreRefused(
                f"The store {self.url} has format {version}; this version of scrapy-dedupe reads format"
                f" {SCHEMA_VERSION}. {remedy}, or name another file in DEDUPE_STORE_URL."
            )
        return version

    def _make_tables(self) -> None:
        with transaction(self._connection, self.url):
            # Another process may have created them while this one waited for the lock.
            if self._format():
                return
            # executescript() would commit the transaction first.
            for statement in _SCHEMA.split(";"):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _migrate(self) -> None:
        with transaction(self._connection, self.url):
            # Another process may have migrated them while this one waited for the lock.
            if self._format() == _MIGRATED_VERSION:
                self._connection.execute(sqlite_content_tables.SOURCES)
                self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _enter_wal(self) -> None:
        # Changing the mode needs a lock, for which SQLite does not wait, regardless of the timeout.
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return

    def _number(self, pragma: str) -> int:
        return int(self._connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    def probe(self) -> None:
        """Write, read and delete a value, and check that the file is still the one that was opened."""
        try:
            is_there = os.path.samestat(self._opened, self._path.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise StoreUnavailable(
                f"The file of the store {self.url} was removed or replaced while it was open; data written since then"
                " is lost. Restore the file, and do not move or delete it during a crawl."
            )
        with transaction(self._connection, self.url):
            self._connection.execute("INSERT OR IGNORE INTO probe VALUES ('probe')")
            found = self._connection.execute("SELECT count(*) FROM probe").fetchone()[0]
            self._connection.execute("DELETE FROM probe")
        if found != 1:
            raise StoreUnavailable(
                f"The store {self.url} did not return the value that was written to it. Check the disk."
            )

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        with sqlite_faults(self.url):
            self._connection.close()


@contextmanager
def sqlite_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`sqlite3.Error` inside."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(url, error) from error


@contextmanager
def transaction(
    connection: sqlite3.Connection,
    url: str,
    begin: str = "BEGIN IMMEDIATE",
    on_failure: Callable[[], None] | None = None,
) -> Iterator[None]:
    """A transaction on an autocommit connection. Raises the store errors.

    *on_failure* is called if nothing is committed.
    """
    # Not with sqlite_faults(): a page has several transactions, and each context manager takes microseconds.
    try:
        if connection.in_transaction:
            # The rollback of the previous transaction has failed.
            connection.execute("ROLLBACK")
        connection.execute(begin)
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        if on_failure is not None:
            on_failure()
        try:
            # SQLite may have rolled back by itself, for example because the disk is full.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error as other:
            raise _store_error(url, other) from other
        if isinstance(error, sqlite3.Error):
            raise _store_error(url, error) from error
        raise


def _store_error(url: str, error: sqlite3.Error) -> StoreError:
    message = str(error)
    if any(words in message for words in _NOT_A_DATABASE):
        return StoreRefused(
            f"The file of the store {url} is not a valid SQLite database ({message}). It was left unchanged;"
            " move it away, or name another file in DEDUPE_STORE_URL."
        )
    remedy = next((f" {remedy}" for part, remedy in _REMEDIES if part in message.lower()), "")
    return StoreUnavailable(f"The store {url} cannot be used: {message.rstrip('.')}.{remedy}")


def rows_of(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any], *parameters: object
) -> list[Any]:
    """All rows of *statement*, in which a list of *values* replaces ``{}``, after its other *parameters*."""
    rows: list[Any] = []
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        # Only a few lengths occur, so that prepared statements are reused.
        length = 1 << (len(some) - 1).bit_length()
        padded = [*parameters, *some, *[some[-1]] * (length - len(some))]
        rows += connection.execute(_with_places(statement, length), padded)
    return rows


@cache
def _with_places(statement: str, length: int) -> str:
    return statement.format(", ".join("?" * length))
