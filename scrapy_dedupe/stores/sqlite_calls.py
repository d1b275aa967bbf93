"""Calls of sqlite3: transactions, lists of values, and the conversion of its exceptions into store errors."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


@contextmanager
def sqlite_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`sqlite3.Error` inside."""
    try:
        yield
    except sqlite3.Error as error:
        message = str(error)
        if any(words in message for words in _NOT_A_DATABASE):
            raise StoreRefused(
                f"The file of the store {url} is not a valid SQLite database ({message}). It was left unchanged;"
                " move it away, or name another file in DEDUPE_STORE_URL."
            ) from error
        remedy = next((f" {remedy}" for part, remedy in _REMEDIES if part in message.lower()), "")
        raise StoreUnavailable(f"The store {url} cannot be used: {message.rstrip('.')}.{remedy}") from error


@contextmanager
def transaction(connection: sqlite3.Connection, url: str, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """A transaction on an autocommit connection. Raises the store errors."""
    with sqlite_faults(url):
        if connection.in_transaction:
            # The rollback of the previous transaction has failed.
            connection.execute("ROLLBACK")
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            # SQLite may have rolled back by itself, for example because the disk is full.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


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
        rows += connection.execute(statement.format(", ".join("?" * length)), padded)
    return rows
