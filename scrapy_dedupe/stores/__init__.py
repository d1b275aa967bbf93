"""Storage for texts, the crawl index and report data: SQLite or Redis/Valkey, with one interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .location import StoreLocation, parse_store_url

if TYPE_CHECKING:
    from .base import ContentStore, ReportStore
    from .crawl_index import CrawlIndex

__all__ = ["Store", "StoreLocation", "open_store", "parse_store_url"]


class Store(Protocol):
    """An open store."""

    url: str

    @property
    def content(self) -> ContentStore:
        """The seen texts."""

    @property
    def index(self) -> CrawlIndex:
        """The crawl index."""

    @property
    def reports(self) -> ReportStore:
        """The report data of crawls."""

    def probe(self) -> None:
        """Write, read and delete a value, so that an unusable store fails at startup."""

    def close(self) -> None:
        """Close the store. Safe to repeat."""


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
