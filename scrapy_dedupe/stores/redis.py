"""The shared store: Redis or Valkey, for several processes and machines at once.

Nothing beyond the core commands and Lua scripts is needed. The keys are described in
:mod:`.redis_content` and :mod:`.redis_index`.
"""

from __future__ import annotations

import re
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_dedupe.errors import SettingError, StoreUnavailable

from .faults import redis_faults
from .location import StoreLocation, parse_store_url
from .redis_content import RedisContent
from .redis_index import RedisIndex
from .redis_reports import RedisReports


def connect(
    location: StoreLocation | str, timeout_s: float = 5.0, *, is_used_by_one_thread: bool = False
) -> redis.Redis:
    """A client whose every call ends after *timeout_s* seconds. One of one thread connects at once.

    Raises :class:`~scrapy_dedupe.errors.SettingError` for a URL with options that there are not.

    A client of one thread needs no pool of connections, whose price is a third of a short call.

    A connection that the server closed meanwhile is opened again once; a server that is silent is not asked
    twice, since that would double the time that the caller waits.
    """
    if isinstance(location, str):
        location = parse_store_url(location)
    try:
        client: redis.Redis = redis.Redis.from_url(
            location.url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            # redis-py 5 looks at retry only with this beside it.
            retry_on_error=[redis.ConnectionError],
            decode_responses=False,
            single_connection_client=is_used_by_one_thread,
        )
        # A pool would look at the options at the first call. Nothing is connected by this.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        unknown = re.search(r"unexpected keyword argument ('[^']*')", str(error))
        reason = f"redis-py knows no option {unknown[1]}" if unknown else str(error).rstrip(".")
        raise SettingError(
            f"The URL of the store {location.shown} cannot be used: {reason}. See to the options behind its ?, such as"
            " ?ssl_ca_certs=FILE."
        ) from error
    return client


class RedisStore:
    """An open Redis store. Raises :class:`StoreUnavailable` or :class:`StoreRefused` when it cannot be used."""

    def __init__(self, location: StoreLocation | str, *, timeout_s: float = 5.0) -> None:
        if isinstance(location, str):
            location = parse_store_url(location)
        self.url = location.shown
        with redis_faults(self.url):
            self._client = connect(location, timeout_s, is_used_by_one_thread=True)
            self._client.ping()
        self.content = RedisContent(self._client, self.url)
        self.index = RedisIndex(self._client, self.url)
        self.reports = RedisReports(self._client, self.url)

    def probe(self) -> None:
        """Write, read and delete a value; a read-only replica or a full server fails here."""
        key = f"dedupe:probe:{uuid.uuid4().hex}"
        with redis_faults(self.url):
            self._client.set(key, b"probe", ex=60)
            found = self._client.get(key)
            self._client.delete(key)
        if found != b"probe":
            raise StoreUnavailable(
                f"The store {self.url} did not give back what was written into it. See to the server."
            )

    def close(self) -> None:
        """Close the connections. Safe to repeat."""
        self.content.close()
        self.index.close()
        with redis_faults(self.url):
            self._client.close()
