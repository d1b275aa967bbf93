"""Redis or Valkey servers: whether their configuration keeps the data safe."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import redis

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.reports.wording import size
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.stores.redis_faults import redis_faults

from .context import Finding, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scrapy_dedupe.stores.location import StoreLocation

_PINGS = 20
_SLOW_S = 0.02
_OLDEST = 5
_FULL = 0.9
_APPEND = "Set appendonly yes: CONFIG SET appendonly yes, and in the server's configuration file."


def check(location: StoreLocation, timeout_s: float) -> Iterator[Finding]:
    """Check the server. Yields nothing if it does not answer, since opening the store reports that."""
    shown = location.shown
    try:
        client = connect(location, timeout_s, is_used_by_one_thread=True)
    except (redis.RedisError, OSError, ValueError):
        return
    try:
        with redis_faults(shown):
            times = []
            for _ in range(_PINGS):
                start = time.perf_counter()
                client.ping()
                times.append(time.perf_counter() - start)
        took = statistics.median(times)
        round_trip = f"A round trip to {shown} takes {1000 * took:.2f} ms."
        if took < _SLOW_S:
            yield ok(round_trip)
        else:
            yield warning(
                round_trip, "Use a server nearer to the crawler: each page waits for several round trips."
            )
        try:
            info: Mapping[str, Any] = client.info()
        except redis.RedisError as error:
            yield note(
                f"The server {shown} does not allow INFO ({error}), so its memory and persistence are unknown.",
                "Give the user the permission to call INFO, or check that maxmemory-policy is noeviction.",
            )
            return
        yield from _configuration(info, client, shown)
    except StoreUnavailable:
        return
    finally:
        client.close()


def _configuration(info: Mapping[str, Any], client: redis.Redis, shown: str) -> Iterator[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "of an unknown version")
    if version.partition(".")[0].isdigit() and int(version.partition(".")[0]) < _OLDEST:
        yield problem(f"The server {shown} is {name} {version}.", f"Upgrade it to {_OLDEST}.0 or later.")
    else:
        yield ok(f"It is {name} {version}.")
    if info.get("role") in ("slave", "replica"):
        yield problem(
            f"The server {shown} is a read-only replica of {info.get('master_host')}.",
            "Name the primary server in the URL.",
        )
    if info.get("cluster_enabled"):
        yield problem(
            f"The server {shown} is part of a cluster. The texts and the crawl index need a single server with all keys.",
            "Name a server that is not in a cluster.",
        )
    yield from _memory(info, shown)
    yield from _persistence(info, client, shown)


def _memory(info: Mapping[str, Any], shown: str) -> Iterator[Finding]:
    limit, used = int(info.get("maxmemory", 0) or 0), int(info.get("used_memory", 0) or 0)
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield warning(
            f"The server {shown} does not report its maxmemory-policy.",
            "Check that it is noeviction: any other policy evicts data when memory is full.",
        )
    elif policy != "noeviction":
        make = problem if limit else warning
        yield make(
            f"The maxmemory-policy of {shown} is {policy}: when memory is full, data is evicted.",
            "Set it to noeviction: CONFIG SET maxmemory-policy noeviction, and in the server's configuration file.",
        )
    if limit and used > _FULL * limit:
        yield warning(
            f"The server {shown} uses {size(used)} of {size(limit)} of memory.",
            "Raise maxmemory, or purge unneeded data (scrapy dedupe purge, scrapy dedupe content purge).",
        )
    elif policy == "noeviction":
        of = f" of {size(limit)}" if limit else ", without a limit"
        yield ok(f"It uses {size(used)}{of}, and evicts nothing (noeviction).")


def _persistence(info: Mapping[str, Any], client: redis.Redis, shown: str) -> Iterator[Finding]:
    if "aof_enabled" not in info:
        yield note(f"The server {shown} does not report whether it keeps its data on disk.")
        return
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            yield problem(
                f"The last write of the server {shown} to its append-only file failed.",
                "Check its disk and its log.",
            )
        else:
            yield ok("It keeps its data in an append-only file.")
        return
    try:
        save = str(client.config_get("save").get("save", ""))
    except redis.RedisError:
        yield warning(
            f"The server {shown} has no append-only file, and does not report whether it saves snapshots.",
            "Check that appendonly is yes: data that is only in memory is lost at a restart.",
        )
        return
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem(
            f"The server {shown} could not save its last snapshot, and may refuse writes.",
            "Check its disk and its log.",
        )
    elif save:
        yield warning(
            f"The server {shown} saves only snapshots ({save}): changes after the last one are lost in a crash.",
            _APPEND,
        )
    else:
        yield warning(
            f"The server {shown} keeps nothing on disk: a restart loses every text and every crawl.", _APPEND
        )
