"""Report data of crawls in SQLite: the table ``report`` of :mod:`.sqlite_index_tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sqlite_faults import sqlite_faults

if TYPE_CHECKING:
    import sqlite3


class SqliteReports:
    """A :class:`~.base.ReportStore` on an autocommit connection. The index creates the table."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._url = url

    def save(self, crawl: str, data: bytes) -> None:
        """Save *data* of a crawl, replacing earlier data."""
        with sqlite_faults(self._url):
            self._connection.execute("INSERT OR REPLACE INTO report VALUES (?, ?)", (crawl, data))

    def load(self, crawl: str) -> bytes | None:
        """The data of a crawl; None if there is none."""
        with sqlite_faults(self._url):
            row = self._connection.execute(
                "SELECT CAST(data AS BLOB) FROM report WHERE crawl = ?", (crawl,)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def delete(self, crawl: str) -> None:
        """Delete the data of a crawl."""
        with sqlite_faults(self._url):
            self._connection.execute("DELETE FROM report WHERE crawl = ?", (crawl,))

    def crawls(self) -> list[str]:
        """The ids of the crawls with data, in sorted order."""
        with sqlite_faults(self._url):
            rows = self._connection.execute("SELECT crawl FROM report ORDER BY crawl").fetchall()
        return [str(crawl) for (crawl,) in rows]
