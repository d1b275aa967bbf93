"""Store URLs.

=====================================  =======================================================
``sqlite:///relative.db``              a file, seen from the working folder
``sqlite:////absolute.db``             a file by its full path
``redis://[[user]:pass@]host[:port]/db``  Redis or Valkey; ``rediss://`` with TLS
``unix://[user:pass@]/path.sock?db=0``    Redis or Valkey on a Unix socket
=====================================  =======================================================

The SQLite forms are those of SQLAlchemy, the Redis forms those of redis-py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from scrapy_dedupe.errors import SettingError

REDIS_SCHEMES = ("redis", "rediss", "unix")
ALLOWED = (
    "sqlite:///relative.db, sqlite:////absolute.db, redis://host:port/db, rediss://… or unix:///path.sock"
)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A checked store URL. ``path`` is None for a Redis URL."""

    url: str
    path: Path | None

    @property
    def is_redis(self) -> bool:
        return self.path is None

    @property
    def shown(self) -> str:
        """The URL without its password, for messages.

        >>> parse_store_url("redis://me:secret@127.0.0.1:6379/0").shown
        'redis://me:***@127.0.0.1:6379/0'
        """
        if not self.is_redis:
            return self.url
        parts = urlsplit(self.url)
        if parts.password is None:
            return self.url
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def parse_store_url(url: object, name: str = "the store URL") -> StoreLocation:
    """Check a store URL.

    Raises :class:`SettingError` that names *name*, the value and what is allowed.

    >>> parse_store_url("sqlite:///dedupe.sqlite").path.as_posix()
    'dedupe.sqlite'
    >>> parse_store_url("sqlite:////var/lib/dedupe.sqlite").path.as_posix()
    '/var/lib/dedupe.sqlite'
    """
    if isinstance(url, str):
        scheme, separator, rest = url.partition("://")
        if scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
            return StoreLocation(url, Path(unquote(rest[1:])))
        if scheme in REDIS_SCHEMES and separator and rest.strip("/"):
            try:
                _ = urlsplit(url).port
            except ValueError as error:
                raise SettingError(f"{name} is {url!r}: {error}. Allowed: {ALLOWED}.") from error
            return StoreLocation(url, None)
    raise SettingError(f"{name} is {url!r}. Allowed: {ALLOWED}.")
