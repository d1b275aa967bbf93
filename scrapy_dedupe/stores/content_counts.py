"""How many texts a purge would forget. Reads what :mod:`.sqlite_content` and :mod:`.redis_content` describe."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from .faults import redis_faults, sqlite_faults
from .location import StoreLocation, parse_store_url
from .redis_content import PREFIX

if TYPE_CHECKING:
    import redis

_AT_ONCE: Final = 1_000


def count_texts(
    location: StoreLocation | str,
    *,
    before_ms: int | None = None,
    crawl: str | None = None,
    timeout_s: float = 5.0,
) -> int:
    """The texts whose first capture is older than ``before_ms``, and was made by ``crawl``. With neither: all.

    Nothing is written. On Redis every text is looked at. Raises :class:`~scrapy_dedupe.errors.StoreError`.
    """
    if isinstance(location, str):
        location = parse_store_url(location)
    if not location.is_redis:
        return _count_in_sqlite(location, before_ms, crawl, timeout_s)
    from .redis import connect

    with redis_faults(location.shown), closing(connect(location, timeout_s)) as client:
        return _count_in_redis(client, before_ms, crawl)


def _count_in_sqlite(
    location: StoreLocation, before_ms: int | None, crawl: str | None, timeout_s: float
) -> int:
    assert location.path is not None
    conditions, values = ["1"], list[Any]()
    if before_ms is not None:
        conditions.append("seen_ms < ?")
        values.append(before_ms)
    if crawl is not None:
        conditions.append("crawl = (SELECT number FROM content_crawls WHERE id = ?)")
        values.append(crawl)
    statement = f"SELECT count(*) FROM content_first WHERE {' AND '.join(conditions)}"  # noqa: S608
    uri = f"{location.path.absolute().as_uri()}?mode=ro"
    with (
        sqlite_faults(location.url),
        closing(sqlite3.connect(uri, uri=True, timeout=timeout_s)) as connection,
    ):
        return int(connection.execute(statement, values).fetchone()[0])


def _count_in_redis(client: redis.Redis, before_ms: int | None, crawl: str | None) -> int:
    prefix = PREFIX.encode()
    place = None
    if crawl is not None:
        place = cast("bytes | None", client.hget(cast("Any", prefix + b"i"), crawl))
        if place is None:
            return 0
    keys = cast("Any", client.scan_iter(match=prefix + b"t*", count=_AT_ONCE))
    # A scan may give a key twice.
    seen: set[bytes] = set()
    count = 0
    while batch := list(islice(keys, _AT_ONCE)):
        some = [key for key in dict.fromkeys(batch) if key not in seen]
        seen.update(some)
        for value in cast("list[bytes | None]", client.mget(some) if some else []):
            if value is None:
                continue
            _, ms, its_place, _ = value.split(b" ", 3)
            count += (before_ms is None or int(ms) < before_ms) and (place is None or its_place == place)
    return count
