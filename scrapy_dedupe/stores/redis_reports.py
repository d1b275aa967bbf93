"""Report data of crawls in Redis or Valkey. The keys are described in :mod:`.redis_index_keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from . import redis_index_keys as keys_of
from .redis_faults import redis_faults
from .redis_index_base import text_of

if TYPE_CHECKING:
    import redis


class RedisReports:
    """A :class:`~.base.ReportStore` on a client with ``decode_responses=False``."""

    def __init__(self, client: redis.Redis, url: str) -> None:
        self._client = client
        self._url = url

    def save(self, crawl: str, data: bytes) -> None:
        """Save *data* of a crawl, replacing earlier data."""
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            pipeline.sadd(keys_of.REPORTS, crawl)
            pipeline.set(keys_of.report(crawl), data)
            pipeline.execute()

    def load(self, crawl: str) -> bytes | None:
        """The data of a crawl; None if there is none."""
        with redis_faults(self._url):
            return cast("bytes | None", self._client.get(keys_of.report(crawl)))

    def delete(self, crawl: str) -> None:
        """Delete the data of a crawl."""
        with redis_faults(self._url):
            pipeline = self._client.pipeline()
            pipeline.delete(keys_of.report(crawl))
            pipeline.srem(keys_of.REPORTS, crawl)
            pipeline.execute()

    def crawls(self) -> list[str]:
        """The ids of the crawls with data, in sorted order."""
        with redis_faults(self._url):
            members = cast("set[bytes]", self._client.smembers(keys_of.REPORTS))
        return sorted(text_of(member) for member in members)
