"""The embedded store: one SQLite file in WAL mode, for several processes at once.

The file carries ``application_id`` 0x64647031 ("ddp1") and ``user_version``, the version of its tables. A
file with another application id, or with a newer version, is refused and left untouched. The tables
themselves are described in :mod:`.sqlite_content` and :mod:`.sqlite_index`.

Durability: ``synchronous=NORMAL``. A killed process loses nothing; after a power failure the last
transactions may be missing, but the file is sound.
"""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

from . import sqlite_content, sqlite_index
from .faults import sqlite_faults
from .location import StoreLocation, parse_store_url

if TYPE_CHECKING:
    from .sqlite_content import SqliteContent
    from .sqlite_index import SqliteIndex

APPLICATION_ID = 0x64647031

# 1: first version.
SCHEMA_VERSION = 1

_SCHEMA = f"""
{sqlite_content.SCHEMA}
{sqlite_index.SCHEMA}
CREATE TABLE IF NOT EXISTS probe (word TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class SqliteStore:
    """An open SQLite store. Raises :class:`StoreUnavailable` or :class:`StoreRefused` when it cannot be used.

    With ``create=False`` a missing file is an error. The connection may travel between threads, but is used
    by one at a time.
    """

    def __init__(self, location: StoreLocation | str, *, timeout_s: float = 5.0, create: bool = True) -> None:
        if isinstance(location, str):
            location = parse_store_url(location)
        assert location.path is not None
        self.url = location.url
        self._timeout_s = timeout_s
        self._path = path = location.path.absolute()
        if path.is_dir():
            raise StoreRefused(f"The store {self.url} is a folder. Name a file in DEDUPE_STORE_URL.")
        if not create and not path.exists():
            raise StoreUnavailable(f"There is no store {self.url}: the file {path} does not exist.")
        try:
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
            with sqlite_faults(self.url):
                self._connection = sqlite3.connect(
                    path, timeout=timeout_s, isolation_level=None, check_same_thread=False
                )
        except OSError as error:
            raise StoreUnavailable(f"The store {self.url} cannot be opened: {error}.") from error
        try:
            with sqlite_faults(self.url):
                self._prepare()
                self._opened = path.stat()
        except BaseException:
            self._connection.close()
            raise
        self.content: SqliteContent = sqlite_content.SqliteContent(self._connection, self.url)
        self.index: SqliteIndex = sqlite_index.SqliteIndex(self._connection, self.url)

    def _prepare(self) -> None:
        application = self._number("application_id")
        version = self._number("user_version")
        if application != APPLICATION_ID:
            tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application or version or tables:
                raise StoreRefused(
                    f"The file of the store {self.url} is an SQLite database of something else. It was left as"
                    " it is; name another file in DEDUPE_STORE_URL."
                )
        elif version > SCHEMA_VERSION:
            raise StoreRefused(
                f"The store {self.url} has format {version}, this version of scrapy-dedupe reads formats up to"
                f" {SCHEMA_VERSION}. Upgrade scrapy-dedupe, or name another file in DEDUPE_STORE_URL."
            )
        self._connection.execute("PRAGMA synchronous=NORMAL")
        if version < SCHEMA_VERSION:
            # Two processes may both find a new file: the second one waits for the lock, and then every
            # statement finds its table there.
            self._connection.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id={APPLICATION_ID};"
                f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        self._enter_wal()

    def _enter_wal(self) -> None:
        # SQLite does not wait for the lock that this change of mode needs, whatever the time-out is.
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
        """Write, read and delete a value, and see that the file is still the one that was opened."""
        try:
            is_there = os.path.samestat(self._opened, self._path.stat())
        except OSError:
            is_there = False
        if not is_there:
            raise StoreUnavailable(
                f"The file of the store {self.url} was removed or replaced while it was open; what was written"
                " since is lost."
            )
        with sqlite_faults(self.url):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute("INSERT OR IGNORE INTO probe VALUES ('probe')")
                found = self._connection.execute("SELECT count(*) FROM probe").fetchone()[0]
                self._connection.execute("DELETE FROM probe")
            finally:
                self._connection.execute("COMMIT")
            if found != 1:
                raise StoreUnavailable(f"The store {self.url} did not give back what was written into it.")

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        with sqlite_faults(self.url):
            self._connection.close()
