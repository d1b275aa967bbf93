"""Stores: whether each answers, how fast, whether it fits the settings, and whether a server keeps the data safe.

Also the leftovers of earlier crawls: unfinished files, uncommitted crawls, and files that were not moved.
"""

from __future__ import annotations

import statistics
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import redis

from scrapy_dedupe.commands.content import read_only_judge
from scrapy_dedupe.commands.output import listed
from scrapy_dedupe.errors import DedupeError, StoreUnavailable
from scrapy_dedupe.reports.wording import counted, moment, size
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.index_values import payload_mode_message
from scrapy_dedupe.stores.normal_forms import algorithm_of
from scrapy_dedupe.stores.redis import open_client
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX
from scrapy_dedupe.warc.files import warc_files
from scrapy_dedupe.warc.salvage import is_held

from .context import Finding, from_error, note, ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.location import StoreLocation

    from .context import DoctorContext

_SLOW_S = 0.05
_PINGS = 20
_SLOW_PING_S = 0.02
_OLDEST = 5
_FULL = 0.9
_SAMPLE = 20  # originals of a crawl

_SHOWN: Final = 5
_AGE: Final = timedelta(days=1)


def check(context: DoctorContext) -> Iterator[Finding]:
    layers_of: dict[str, list[str]] = {}
    for layer, url in context.store_urls.items():
        layers_of.setdefault(url, []).append(layer)
    for url, layers in layers_of.items():
        location = parse_store_url(url)
        if location.is_redis:
            yield from _check_servers(location, context.timeout_s)
        else:
            assert location.path is not None
            result = file_state(location.path, location.shown)
            if result is not None:
                if context.is_store_given and not location.path.exists():
                    result = warning(result.sentence, "Check that --store names the right file.")
                yield result
                continue
        yield from _look(context, location, layers)


def file_state(path: Path, shown: str) -> Finding | None:
    """Return a finding for an SQLite file that must not be opened now, or None if it can be opened."""
    if not path.exists():
        return note(f"There is no store {shown} yet: the first crawl creates it.")
    if path.stat().st_size == 0:
        return note(f"The store {shown} is an empty file: the first crawl creates the store.")
    return None


def _look(context: DoctorContext, location: StoreLocation, layers: list[str]) -> Iterator[Finding]:
    try:
        with closing(open_store(location.url, timeout_s=context.timeout_s, create=False)) as store:
            took = _seconds(store.probe)
            sentence = (
                f"The store {location.shown} writes, reads and deletes a value in {1000 * took:.1f} ms."
            )
            remedy = "Use a nearer or faster one: each page of a crawl waits for it about as long."
            yield ok(sentence) if took < _SLOW_S else warning(sentence, remedy)
            if "index" in layers and not store.has_index and context.is_store_given:
                yield note(f"The store {location.shown} is a cluster, so it has no crawl index.")
            elif "index" in layers:
                yield from _index(context, store, location.shown)
                if location.is_redis:
                    yield from _files_elsewhere(context)
            if "content" in layers:
                yield from _content(context, store, location)
    except DedupeError as error:
        # Further advice, in addition to that in the error.
        is_silent = "does not answer" in str(error)
        remedy = "To crawl without a server, remove the setting that names it: a local file is used then."
        is_setting = location.is_redis and not context.is_store_given
        yield from_error(error, remedy if is_silent and is_setting else "")


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _index(context: DoctorContext, store: Store, shown: str) -> Iterator[Finding]:
    crawls = store.index.crawls()
    modes = {info.payload for info in crawls if info.state != "canceled"}
    yield ok(
        f"The crawl index holds {counted(len(crawls), 'crawl')}"
        + (f", with digests of {' and '.join(sorted(modes))} payloads." if modes else ".")
    )
    settings = context.settings
    if settings is not None and modes and settings.warc.payload not in modes:
        make = note if context.is_store_given else problem
        yield make(payload_mode_message(settings.warc.payload, next(iter(modes)), shown))
    if settings is not None:
        yield from _digests(
            store, [info.id for info in crawls if info.state == "committed"], settings.warc.digest
        )
    crawl_id = None if settings is None else settings.warc.crawl_id
    if any(info.id == crawl_id and info.state == "committed" for info in crawls):
        yield problem(
            f"The crawl {crawl_id}, which DEDUPE_CRAWL_ID names, is committed, so no other crawl with this id can start.",
            "Use another id, or none.",
        )
    if store.index.unreadable:
        yield warning(
            f"{counted(store.index.unreadable, 'value')} of the index cannot be read, and skipped.",
            "`scrapy dedupe check --repair` rebuilds the entries from the files.",
        )


def _digests(store: Store, crawls: Sequence[str], digest: str) -> Iterator[Finding]:
    """Find originals with digests that crawls do not look up, in a sample: a count would read the whole index."""
    sample = (found for crawl in crawls for found in islice(store.index.records(crawl), _SAMPLE))
    for algorithm in sorted({algorithm_of(found.digest) for found in sample} - {digest}):
        yield warning(
            f"The crawl index has originals with {algorithm} digests. Crawls do not find them, and store their payloads again,"
            f" since DEDUPE_WARC_DIGEST is {digest}.",
            "Use one algorithm for all crawls and imports of an index.",
        )


def _files_elsewhere(context: DoctorContext) -> Iterator[Finding]:
    settings = context.crawl
    if settings is not None and "archive" in context.layers and settings.warc.check_files:
        yield note(
            "The crawl index is on a server, and DEDUPE_WARC_CHECK_FILES is on: payloads whose file is not visible to this"
            " machine are stored again.",
            "If machines share the index but not their WARC folder, set DEDUPE_WARC_CHECK_FILES = False.",
        )


def _content(context: DoctorContext, store: Store, location: StoreLocation) -> Iterator[Finding]:
    if context.settings is not None and store.content.parameters():
        try:
            read_only_judge(store.content, context.settings.content, location.shown)
        except DedupeError as error:
            yield note(str(error)) if context.is_store_given else from_error(error)
            return
    if location.is_redis:
        # Not counted: the server would have to scan all of its keys.
        yield ok("The content layer compares texts with the parameters of the settings.")
        return
    texts = counted(store.content.statistics()["texts"], "text")
    yield ok(f"The content layer has {texts}, and compares them with the parameters of the settings.")


def _check_servers(location: StoreLocation, timeout_s: float) -> Iterator[Finding]:
    """Check the server, or the masters of a cluster. Yields nothing if the server does not answer.

    Opening the store reports that.
    """
    try:
        client = open_client(location, timeout_s, is_used_by_one_thread=True)
    except DedupeError:
        return
    with closing(client), suppress(StoreUnavailable), redis_faults(location.shown):
        if not isinstance(client, redis.RedisCluster):
            yield from _check_server(client, location.shown)
            return
        masters = client.get_primaries()
        yield ok(f"The store {location.shown} is a cluster of {counted(len(masters), 'master')}.")
        for node in masters:
            yield from _check_server(client.get_redis_connection(node), node.name)


def _check_server(client: redis.Redis, shown: str) -> Iterator[Finding]:
    took = statistics.median(_seconds(client.ping) for _ in range(_PINGS))
    round_trip = f"A round trip to {shown} takes {1000 * took:.2f} ms."
    remedy = "Use a server nearer to the crawler: each page waits for several round trips."
    yield ok(round_trip) if took < _SLOW_PING_S else warning(round_trip, remedy)
    try:
        info: Mapping[str, Any] = client.info()
    except redis.ResponseError as error:
        yield note(
            f"The server {shown} does not allow INFO ({error}), so its memory and persistence are unknown.",
            "Give the user the permission to call INFO, or check that maxmemory-policy is noeviction.",
        )
        return
    yield from _configuration(info, client, shown)


def _configuration(info: Mapping[str, Any], client: redis.Redis, shown: str) -> Iterator[Finding]:
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "of an unknown version")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _OLDEST:
        yield problem(f"The server {shown} is {name} {version}.", f"Upgrade it to {_OLDEST}.0 or later.")
    else:
        yield ok(f"It is {name} {version}.")
    if info.get("role") in ("slave", "replica"):
        yield problem(
            f"The server {shown} is a read-only replica of {info.get('master_host')}.",
            "Name the primary server in the URL.",
        )
    yield from _memory(info, shown)
    yield _persistence(info, client, shown)


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


def _persistence(info: Mapping[str, Any], client: redis.Redis, shown: str) -> Finding:
    if "aof_enabled" not in info:
        return note(f"The server {shown} does not report whether it keeps its data on disk.")
    if info["aof_enabled"]:
        if info.get("aof_last_write_status", "ok") == "ok":
            return ok("It keeps its data in an append-only file.")
        return problem(
            f"The last write of the server {shown} to its append-only file failed.",
            "Check its disk and its log.",
        )
    try:
        save = str(client.config_get("save").get("save", ""))
    except redis.RedisError:
        return warning(
            f"The server {shown} has no append-only file, and does not report whether it saves snapshots.",
            "Check that appendonly is yes: data that is only in memory is lost at a restart.",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return problem(
            f"The server {shown} could not save its last snapshot, and may refuse writes.",
            "Check its disk and its log.",
        )
    lost = f"saves only snapshots ({save}): changes after the last one are lost in a crash."
    if not save:
        lost = "keeps nothing on disk: a restart loses every text and every crawl."
    return warning(
        f"The server {shown} {lost}",
        "Set appendonly yes: CONFIG SET appendonly yes, and in the server's configuration file.",
    )


def check_leftovers(context: DoctorContext) -> Iterator[Finding]:
    found = [*_files(context), *_crawls(context)]
    yield from found or [ok("Earlier crawls left nothing to clean up.")]


def _files(context: DoctorContext) -> Iterator[Finding]:
    settings = context.crawl
    if settings is None or "archive" not in context.layers:
        return
    folder = settings.warc.folder
    if not folder.is_dir():
        return
    unfinished = sorted(folder.glob(f"*{OPEN_SUFFIX}"))
    held = [path for path in unfinished if is_held(path)]
    dead = [path for path in unfinished if path not in held]
    if held:
        yield note(
            f"{counted(len(held), 'WARC file')} in {folder} {_are(held)} being written by a running crawl."
        )
    if dead:
        yield warning(
            f"{counted(len(dead), 'WARC file')} of killed crawls {_are(dead)} unfinished: {_names(dead)}.",
            "Run `scrapy dedupe warc salvage`, or start a crawl in the same folder: both repair them and keep all"
            " complete records.",
        )
    url = settings.warc.upload_url
    # With DEDUPE_WACZ the WACZ is moved, and the WARC files may stay.
    if url is not None and not settings.wacz.enabled:
        waiting = warc_files(folder)
        if waiting and not held:
            yield warning(
                f"{counted(len(waiting), 'finished file')} in {folder} {_are(waiting)} not moved to"
                f" DEDUPE_WARC_UPLOAD_URL: {_names(waiting)}.",
                "Move them with `scrapy dedupe warc upload URL`; files of uncommitted crawls are not moved.",
            )


def _crawls(context: DoctorContext) -> Iterator[Finding]:
    url = context.store_urls.get("index")
    if url is None:
        return
    location = parse_store_url(url)
    if location.path is not None and file_state(location.path, location.shown) is not None:
        return
    # The section "stores" reports an unavailable store.
    with suppress(DedupeError), closing(open_store(url, timeout_s=context.timeout_s, create=False)) as store:
        index = store.index
        now = datetime.now(UTC)
        old = [
            info
            for info in index.crawls()
            if info.state == "uncommitted" and (started := moment(info.started)) and now - started > _AGE
        ]
        if old:
            names = listed([info.id for info in old], _SHOWN)
            have = "has" if len(old) == 1 else "have"
            yield warning(
                f"{counted(len(old), 'crawl')} that started more than a day ago {have} not been committed: {names}."
                " Other crawls cannot refer to the records of an uncommitted crawl.",
                f"If it is not running, run `scrapy dedupe commit {old[0].id}` or `scrapy dedupe cancel {old[0].id}`, or"
                " continue it with its JOBDIR.",
            )
        if unfinished := index.unfinished_purge():
            yield warning(
                f"A purge of {counted(len(unfinished), 'crawl')} was interrupted.",
                f"Complete it: `scrapy dedupe purge {' '.join(unfinished[:_SHOWN])}`.",
            )
        queued, claimed = index.queue_length()
        if queued + claimed:
            yield note(
                f"{counted(queued + claimed, 'source is', 'sources are')} waiting to be imported.",
                "`scrapy dedupe import` continues with them.",
            )


def _names(paths: Sequence[Path]) -> str:
    return listed([path.name for path in paths], _SHOWN)


def _are(paths: Sequence[Path]) -> str:
    return "is" if len(paths) == 1 else "are"
