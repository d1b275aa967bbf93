"""Storage for texts, the crawl index and report data: SQLite or Redis/Valkey, with one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .location import StoreLocation, parse_store_url

if TYPE_CHECKING:
    from .redis import RedisStore
    from .sqlite import SqliteStore

__all__ = ["Store", "StoreLocation", "open_store", "parse_store_url"]

Store: TypeAlias = "SqliteStore | RedisStore"
"""An open store, with the seen texts (``content``), the crawl ``index`` and the ``reports`` of crawls."""


def open_store(url: str, *, timeout_s: float = 5.0, create: bool = True) -> Store:
    """Open the store at *url*; see :mod:`.location` for the forms of URLs.

    ``timeout_s`` limits the duration of each call. With ``create=False`` a missing SQLite file is an error. Raises
    :class:`~scrapy_dedupe.errors.SettingError` for a URL of another form,
    :class:`~scrapy_dedupe.errors.StoreUnavailable` if the store does not answer, and
    :class:`~scrapy_dedupe.errors.StoreRefused` if it was written by another program or another version.
    """
    location = parse_store_url(url)
    if location.is_redis:
        from .redis import RedisStore

        return RedisStore(location, timeout_s=timeout_s)
    from .sqlite import SqliteStore

    return SqliteStore(location, timeout_s=timeout_s, create=create)
