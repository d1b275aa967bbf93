"""Where texts and the crawl index are kept: SQLite or Redis/Valkey, behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .location import StoreLocation, parse_store_url

if TYPE_CHECKING:
    from .base import Store

__all__ = ["StoreLocation", "open_store", "parse_store_url"]


def open_store(url: str, *, timeout_s: float = 5.0, create: bool = True) -> Store:
    """Open the store at *url* (forms in :mod:`.location`).

    ``timeout_s`` is how long one call may take. With ``create=False`` an SQLite file that does not exist is
    an error. Raises :class:`~scrapy_dedupe.errors.SettingError` for a URL of another form,
    :class:`~scrapy_dedupe.errors.StoreUnavailable` when nothing answers and
    :class:`~scrapy_dedupe.errors.StoreRefused` when what is there is not ours or is newer.
    """
    location = parse_store_url(url)
    if location.is_redis:
        from .redis import RedisStore

        return RedisStore(location, timeout_s=timeout_s)
    from .sqlite import SqliteStore

    return SqliteStore(location, timeout_s=timeout_s, create=create)
