"""The embedded store: one SQLite file with the seen texts, the crawl index and the reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sqlite_content import SqliteContent
from .sqlite_file import SqliteFile, sqlite_faults
from .sqlite_index import SqliteIndex

if TYPE_CHECKING:
    import sqlite3

    from .location import StoreLocation


class SqliteStore(SqliteFile):
    """An open SQLite store. The arguments and exceptions are those of :class:`.SqliteFile`."""

    has_index = True

    def __init__(self, location: StoreLocation, *, timeout_s: float = 5.0, create: bool = True) -> None:
        super().__init__(location, timeout_s=timeout_s, create=create)
        self.content = SqliteContent(self._connection, self.url)
        self.index = SqliteIndex(self._connection, self.url)
        self.reports = SqliteReports(self._connection, self.url)


class SqliteReports:
    """The same as :class:`~.redis.RedisReports`, on an autocommit connection. The index creates the table."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    def save(self, crawl: str, data: bytes) -> None:
        with sqlite_faults(self._url):
            self._connection.execute("INSERT OR REPLACE INTO report VALUES (?, ?)", (crawl, data))

    def load(self, crawl: str) -> bytes | None:
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT CAST(data AS BLOB) FROM report WHERE crawl = ?", (crawl,)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def delete(self, crawl: str) -> None:
        with sqlite_faults(self._url):
            self._connection.execute("DELETE FROM report WHERE crawl = ?", (crawl,))

    def crawls(self) -> list[str]:
        with sqlite_faults(self._url):
            rows = self._connection.execute("SELECT crawl FROM report ORDER BY crawl").fetchall()
        return [str(crawl) for (crawl,) in rows]
