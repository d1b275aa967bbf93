"""Turns what sqlite3 and redis-py raise into this package's two store errors."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

# What SQLite says of a file that is no database, or is a damaged one.
_NOT_OURS = ("file is not a database", "malformed", "not a database")


@contextmanager
def sqlite_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`sqlite3.Error` inside."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if any(words in str(error) for words in _NOT_OURS):
            raise StoreRefused(
                f"The file of the store {url} is not a sound SQLite database ({error}). It was left as it is;"
                " move it away, or name another file in DEDUPE_STORE_URL."
            ) from error
        raise StoreUnavailable(f"The store {url} does not answer: {_reason(error)}.") from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The store {url} does not answer: {_reason(error)}.") from error


@contextmanager
def redis_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`redis.RedisError` inside."""
    try:
        yield
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise StoreRefused(
                f"A key in the store {url} holds something that is not ours ({error}). It was left as it is;"
                " use another database number in the URL."
            ) from error
        raise StoreUnavailable(f"The store {url} refused a command: {_reason(error)}.") from error
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"The store {url} does not answer: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")
