"""Converts the exceptions of sqlite3 into this package's store errors."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

# SQLite's messages for a file that is not a database, or is corrupt.
_NOT_A_DATABASE = ("file is not a database", "malformed", "not a database")

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
    except sqlite3.DatabaseError as error:
        if any(words in str(error) for words in _NOT_A_DATABASE):
            raise StoreRefused(
                f"The file of the store {url} is not a valid SQLite database ({error}). It was left unchanged;"
                " move it away, or name another file in DEDUPE_STORE_URL."
            ) from error
        raise StoreUnavailable(
            f"The store {url} cannot be used: {_reason(error)}.{_remedy(error)}"
        ) from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The store {url} cannot be used: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")


def _remedy(error: Exception) -> str:
    """The advice for *error*, with a leading space; empty if there is none."""
    message = str(error).lower()
    return next((f" {remedy}" for part, remedy in _REMEDIES if part in message), "")
