"""The shared store: Redis or Valkey, for several processes and machines at once.

It needs only the core commands and Lua scripts. The keys are described in :mod:`.redis_content` and
:mod:`.redis_index_keys`.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable

from . import redis_index_keys as keys_of
from .redis_cluster_content import open_content
from .redis_faults import redis_faults
from .redis_index import RedisIndex
from .redis_index_base import text_of

if TYPE_CHECKING:
    from .location import StoreLocation


def open_client(
    location: StoreLocation, timeout_s: float = 5.0, *, is_used_by_one_thread: bool = False
) -> redis.Redis | redis.RedisCluster:
    """Connect to a server, or to the cluster that it belongs to. Arguments are those of :func:`connect`.

    Raises the two store errors.
    """
    with redis_faults(location.shown):
        client = connect(location, timeout_s, is_used_by_one_thread=is_used_by_one_thread)
        try:
            if not _is_in_cluster(client):
                return client
        except BaseException:
            client.close()
            raise
        client.close()
        if location.url.startswith("unix:"):
            raise SettingError(
                f"The server {location.shown} is part of a cluster, whose other servers are not on this socket. Write"
                " redis://host:port/0 instead."
            )
        # redis-py 5 has another name for the number of retries; later versions warn about that name.
        retries = (
            {"cluster_error_retry_attempts": 1} if redis.VERSION[0] < 6 else {"retry": Retry(NoBackoff(), 1)}
        )
        return redis.RedisCluster.from_url(
            location.url, **_timeouts(timeout_s), **retries, require_full_coverage=False
        )


def connect(
    location: StoreLocation, timeout_s: float = 5.0, *, is_used_by_one_thread: bool = False
) -> redis.Redis:
    """Create a client whose calls take at most *timeout_s* seconds each.

    A client for one thread needs no connection pool, which takes a third of the time of a short call; it connects at
    once. Raises :class:`~scrapy_dedupe.errors.SettingError` if the URL has unknown options.

    If the server has closed the connection, the client reconnects once. A call that times out is not retried, since
    that would double the waiting time.
    """
    try:
        client: redis.Redis = redis.Redis.from_url(
            location.url,
            **_timeouts(timeout_s),
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            # redis-py 5 ignores retry without this.
            retry_on_error=[redis.ConnectionError],
            decode_responses=False,
            single_connection_client=is_used_by_one_thread,
        )
        # Checks the options now: a pool would check them at the first call. This does not connect.
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        unknown = re.search(r"unexpected keyword argument ('[^']*')", str(error))
        reason = f"redis-py does not know the option {unknown[1]}" if unknown else str(error).rstrip(".")
        raise SettingError(
            f"The URL of the store {location.shown} cannot be used: {reason}. Check the options after the ?, such as"
            " ?ssl_ca_certs=FILE."
        ) from error
    return client


def _timeouts(timeout_s: float) -> dict[str, Any]:
    return {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}


def _is_in_cluster(client: redis.Redis) -> bool:
    try:
        # INFO would need a permission that users of crawls may lack.
        answer = client.execute_command("HELLO")
    except redis.ResponseError:
        # Redis 5, or a proxy.
        return False
    fields = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=False)
    return (b"mode", b"cluster") in fields


class RedisStore:
    """An open Redis store. Raises :class:`StoreUnavailable` or :class:`StoreRefused` if it is unusable."""

    def __init__(self, location: StoreLocation, *, timeout_s: float = 5.0) -> None:
        self.url = location.shown
        self._client = open_client(location, timeout_s, is_used_by_one_thread=True)
        self.content = open_content(self._client, self.url)
        self.reports = RedisReports(self._client, self.url)
        self._index = (
            None if isinstance(self._client, redis.RedisCluster) else RedisIndex(self._client, self.url)
        )

    @property
    def has_index(self) -> bool:
        """Whether the crawl index can be in this store."""
        return self._index is not None

    @property
    def index(self) -> RedisIndex:
        """The crawl index. Raises :class:`StoreRefused` if the server is part of a cluster."""
        if self._index is None:
            raise StoreRefused(
                f"The crawl index cannot be in the cluster {self.url}: its keys, which Browsertrix shares, must be on one"
                " server. Name a server outside of a cluster, or an SQLite file, in DEDUPE_INDEX_URL."
            )
        return self._index

    def probe(self) -> None:
        """Write, read and delete a value. Fails on a read-only replica and on a full server."""
        key = f"dedupe:probe:{uuid.uuid4().hex}"
        with redis_faults(self.url):
            self._client.set(key, b"probe", ex=60)
            found = self._client.get(key)
            self._client.delete(key)
        if found != b"probe":
            raise StoreUnavailable(
                f"The store {self.url} did not return the value that was written to it. Check the server."
            )

    def close(self) -> None:
        """Close the connections. Safe to repeat."""
        self.content.close()
        if self._index is not None:
            self._index.release_connection()
        with redis_faults(self.url):
            self._client.close()


class RedisReports:
    """The report data of crawls, as opaque bytes. It is removed when the crawl is canceled or purged.

    The crawl need not be in the index.
    """

    def __init__(self, client: redis.Redis | redis.RedisCluster, url: str) -> None:
        self._client = client
        self._url = url

    def save(self, crawl: str, data: bytes) -> None:
        """Save *data* of a crawl, replacing earlier data in one atomic step."""
        with redis_faults(self._url):
            self._client.hset(keys_of.REPORTS, crawl, cast("str", data))

    def load(self, crawl: str) -> bytes | None:
        """The data of a crawl; None if there is none."""
        with redis_faults(self._url):
            return cast("bytes | None", self._client.hget(keys_of.REPORTS, crawl))

    def delete(self, crawl: str) -> None:
        """Delete the data of a crawl. Safe to repeat."""
        with redis_faults(self._url):
            self._client.hdel(keys_of.REPORTS, crawl)

    def crawls(self) -> list[str]:
        """The ids of the crawls with data, in sorted order."""
        with redis_faults(self._url):
            found = cast("list[bytes]", self._client.hkeys(keys_of.REPORTS))
        return sorted(map(text_of, found))
