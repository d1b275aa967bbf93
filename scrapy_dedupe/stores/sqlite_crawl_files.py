"""The files and containers of crawls in SQLite, and the containers of other crawls that they need.

Functions on a connection and the number of a crawl; a transaction around them is the caller's. The tables are
described in :mod:`.sqlite_index_tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Need
from .index_values import need_order

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence


def file_number(connection: sqlite3.Connection, crawl: int, name: str) -> int:
    """The number of a WARC file, which is added if it is new."""
    number = _number(connection, "crawl_file", "name", crawl, name)
    if number is None:
        number = _count(connection, "crawl_file", crawl)
        connection.execute(
            "INSERT INTO crawl_file (crawl, number, name) VALUES (?, ?, ?)", (crawl, number, name)
        )
    return number


def rename_file(connection: sqlite3.Connection, crawl: int, old: str, new: str) -> bool:
    """Give a WARC file another name. False if the crawl has neither."""
    renamed = connection.execute(
        "UPDATE crawl_file SET name = ? WHERE crawl = ? AND name = ?", (new, crawl, old)
    )
    if not renamed.rowcount and _number(connection, "crawl_file", "name", crawl, new) is None:
        return False
    connection.execute(
        "UPDATE OR REPLACE crawl_need SET file = ?"
        " WHERE other = (SELECT id FROM crawl WHERE number = ?) AND file = ?",
        (new, crawl, old),
    )
    return True


def container_number(connection: sqlite3.Connection, crawl: int, filename: str) -> int:
    """The number of a container, which is added if it is new."""
    number = _number(connection, "crawl_container", "filename", crawl, filename)
    if number is None:
        number = _count(connection, "crawl_container", crawl)
        connection.execute(
            "INSERT INTO crawl_container (crawl, number, filename) VALUES (?, ?, ?)",
            (crawl, number, filename),
        )
    return number


def containers_of(connection: sqlite3.Connection, crawl: int | None) -> list[dict[str, object]]:
    """The containers of a crawl, each with its ``filename`` and, once packed, ``hash`` and ``size``."""
    rows = connection.execute(
        "SELECT filename, hash, size FROM crawl_container WHERE crawl = ? ORDER BY number", (crawl,)
    )
    return [
        {"filename": filename} if digest is None else {"filename": filename, "hash": digest, "size": size}
        for filename, digest, size in rows
    ]


def add_needs(connection: sqlite3.Connection, crawl: int, needs: Sequence[Need]) -> None:
    """Note what the crawl needs, each once."""
    connection.executemany(
        "INSERT OR IGNORE INTO crawl_need (crawl, other, wacz_index, file) VALUES (?, ?, ?, ?)",
        [(crawl, need.crawl, need.wacz_index, need.file or "") for need in needs],
    )


def needs_of(connection: sqlite3.Connection, crawl: int | None) -> list[Need]:
    """What the crawl needs, in order."""
    rows = connection.execute("SELECT other, wacz_index, file FROM crawl_need WHERE crawl = ?", (crawl,))
    return sorted((Need(other, wacz_index, file or None) for other, wacz_index, file in rows), key=need_order)


def _number(connection: sqlite3.Connection, table: str, column: str, crawl: int, name: str) -> int | None:
    query = f"SELECT min(number) FROM {table} WHERE crawl = ? AND {column} = ?"  # noqa: S608 - constants
    row = connection.execute(query, (crawl, name)).fetchone()
    return None if row[0] is None else int(row[0])


def _count(connection: sqlite3.Connection, table: str, crawl: int) -> int:
    query = f"SELECT count(*) FROM {table} WHERE crawl = ?"  # noqa: S608 - constants
    return int(connection.execute(query, (crawl,)).fetchone()[0])
