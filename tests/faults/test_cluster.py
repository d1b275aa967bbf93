"""A Redis Cluster whose slots move, and whose masters restart, while crawls use it."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from content_pages import page
from crawling import LinkSpider, collecting, crawl, crawl_test
from faults_site import chain
from redis.crc import key_slot
from servers import RedisCluster

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.live import stores
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.stores.cluster import SHARDS, hash_tags
from scrapy_dedupe.stores.redis import open_client
from scrapy_dedupe.urls.shared import SharedBloomFilter, words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from webserver import WebServer


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """A cluster that belongs to one test alone."""
    cluster = RedisCluster(tmp_path)
    yield cluster
    cluster.stop()


def shared_filter(cluster: RedisCluster, timeout_s: float = 30.0, **options: Any) -> SharedBloomFilter:
    client = open_client(parse_store_url(cluster.url), timeout_s)
    return SharedBloomFilter(client, "spider", 5_000, 1e-6, cache_size=0, **options)


def fingerprints(number: int, start: int = 0) -> list[bytes]:
    return [b"page %d" % place for place in range(start, start + number)]


def test_the_shards_are_spread_evenly_over_the_masters(redis_cluster: RedisCluster) -> None:
    client = open_client(parse_store_url(redis_cluster.url))
    for name in ("content", "spider", "новости", "x" * 100):
        slots = [key_slot(tag.encode()) for tag in hash_tags(client, name)]
        assert [slot * SHARDS // 16_384 for slot in slots] == list(range(SHARDS))
        counts = Counter(redis_cluster.master_of(slot).port for slot in slots)
        assert sorted(counts.values()) == [5, 5, 6]
    client.close()


def test_a_batch_takes_one_call_for_each_shard(redis_cluster: RedisCluster) -> None:
    shared = shared_filter(redis_cluster)
    shared.attach()
    items = fingerprints(500)
    assert all(shared.add_many(items))
    before = [calls(master) for master in redis_cluster.masters]
    assert not any(shared.add_many(items))
    assert sum(calls(master) for master in redis_cluster.masters) - sum(before) == SHARDS
    assert all(redis_cluster.ask(master, "DBSIZE") for master in redis_cluster.masters)
    assert shared.detach(delete=True)
    assert not any(redis_cluster.ask(master, "DBSIZE") for master in redis_cluster.masters)


def calls(master: Any) -> int:
    """How many scripts a master has run."""
    stats = RedisCluster.ask(master, "INFO", "commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


def test_the_crawl_index_is_refused_with_the_remedy(redis_cluster: RedisCluster) -> None:
    store = open_store(redis_cluster.url)
    store.probe()
    store.reports.save("crawl", b"data")
    assert store.reports.load("crawl") == b"data"
    with pytest.raises(StoreRefused, match=r"cannot be in the cluster .* in DEDUPE_INDEX_URL\.$"):
        _ = store.index
    store.close()


def test_while_a_slot_moves_its_part_is_unavailable_and_nothing_is_lost(cluster: RedisCluster) -> None:
    shared = shared_filter(cluster)
    items = fingerprints(400)
    assert all(shared.add_many(items))
    shared.forget(items[:1])
    part = shared._part_of(words(items[0]))
    slot = key_slot(part.key)
    target = cluster.other_master(slot)
    cluster.begin_move(slot, target)
    moved: list[str] = []
    while True:
        # Whatever has moved: the part answers nothing, and writes nothing.
        with pytest.raises(StoreUnavailable, match="The cluster is moving these keys to another master"):
            shared.add(items[0])
        keys = cluster.move_keys(slot, target, 1)
        if not keys:
            break
        moved += keys
    assert {key.rpartition(":")[2] for key in moved} == {"meta", "attached", "forgotten", "0"}
    cluster.end_move(slot, target)
    assert shared.add_many(items) == [True] + [False] * 399
    assert all(shared.add_many(fingerprints(100, 400)))
    assert shared.times_lost == 0


def test_texts_are_not_written_while_their_slot_moves(cluster: RedisCluster) -> None:
    store = open_store(cluster.url, timeout_s=30)
    pages = [page(number, f"http://a/{number}") for number in range(100)]
    assert store.content.claim(pages) == [None] * 100
    slot = key_slot(store.content._shard(pages[0].digest))  # type: ignore[union-attr]
    target = cluster.other_master(slot)
    cluster.begin_move(slot, target)
    while cluster.move_keys(slot, target, 1):
        with pytest.raises(StoreUnavailable, match="The cluster is moving these keys to another master"):
            store.content.claim([page(1_000, "http://a/"), replace(pages[0], url="http://b/")])
    cluster.end_move(slot, target)
    assert [it and it.url for it in store.content.find([replace(it, url="http://b/") for it in pages])] == [
        it.url for it in pages
    ]
    store.close()


@crawl_test
async def test_a_crawl_uses_a_cluster_and_the_next_one_knows_its_pages(
    web: WebServer, settings: dict[str, Any], redis_cluster: RedisCluster
) -> None:
    chain(web, 12, {})
    settings |= on_cluster(redis_cluster)
    spider, items = collecting()
    for kind in ("unique", "unchanged"):
        items.clear()
        crawler = await crawl(spider, settings, urls=web.url("/0"))
        assert [item["kind"] for item in items[:12]] == [kind] * 12
        assert not crawler.stats.get_value("dedupe/errors/store")


@crawl_test
async def test_an_archive_with_its_index_in_a_cluster_is_refused(
    web: WebServer, settings: dict[str, Any], redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings["DEDUPE_STORE_URL"] = redis_cluster.url
    with pytest.raises(Exception):  # noqa: B017 - Scrapy may raise its own exception
        await crawl(LinkSpider, settings, urls=web.url("/0"))
    assert web.paths == []
    assert "in DEDUPE_INDEX_URL." in caplog.text


@pytest.mark.exhaustive
@crawl_test
async def test_all_shards_move_during_a_crawl(
    web: WebServer, settings: dict[str, Any], cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(stores, "LONGEST_PAUSE_S", 0.001)
    client = open_client(parse_store_url(cluster.url))
    slots = [
        key_slot(tag.encode()) for name in ("content", LinkSpider.name) for tag in hash_tags(client, name)
    ]
    client.close()
    steps: dict[int, Any] = {}
    for place, slot in enumerate(slots):
        target = cluster.other_master(slot)
        steps[5 * place + 2] = partial(cluster.begin_move, slot, target)
        steps[5 * place + 3] = partial(cluster.move_keys, slot, target, 2)
        steps[5 * place + 4] = partial(cluster.move_keys, slot, target)
        steps[5 * place + 5] = partial(cluster.end_move, slot, target)
    chain(web, 180, steps)
    settings |= on_cluster(cluster)
    spider, items = collecting()
    crawler = await crawl(spider, settings, urls=web.url("/0"))
    assert len(items) == 181, "no page was lost"
    assert {item["kind"] for item in items} == {"unique", "unknown"}
    assert crawler.stats.get_value("dedupe/errors/store") > 0
    assert all(cluster.master_of(slot) is target for slot, target in cluster._moved.items())
    items.clear()
    await crawl(spider, settings, urls=web.url("/0"))
    assert len(items) == 181
    assert {item["kind"] for item in items[-20:]} == {"unchanged"}


@pytest.mark.exhaustive
@crawl_test
async def test_one_master_is_restarted_during_a_crawl(
    web: WebServer, settings: dict[str, Any], cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(stores, "LONGEST_PAUSE_S", 0.001)
    master = cluster.masters[1]
    chain(web, 60, {20: master.stop, 40: lambda: (master.start(), cluster.wait())})
    settings |= on_cluster(cluster)
    spider, items = collecting()
    crawler = await crawl(spider, settings, urls=web.url("/0"))
    assert len(items) == 61, "no page was lost"
    kinds = [item["kind"] for item in items]
    assert kinds[:19] == ["unique"] * 19
    assert kinds[-10:] == ["unique"] * 10
    assert "unknown" in kinds
    assert crawler.stats.get_value("dedupe/errors/store") > 0


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot suspend a process")
def test_a_master_that_hangs_is_unavailable_until_it_answers(cluster: RedisCluster) -> None:
    items = fingerprints(300)
    assert all(shared_filter(cluster).add_many(items[:200]))
    shared = shared_filter(cluster, timeout_s=0.2)

    def answer(*asked: bytes) -> list[bool]:
        """Ask again if a loaded machine needs longer than the limit."""
        deadline = time.monotonic() + 240
        while True:
            try:
                return shared.contains_many(asked)
            except StoreUnavailable:
                assert time.monotonic() < deadline

    assert all(answer(*items[:200]))
    with cluster.masters[1].suspended():
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="The server cannot be reached from here, or is busy"):
                shared.add_many(items)
    # The late answers are not taken for those of other calls.
    assert [answer(item, b"unknown") for item in items[:50]] == 50 * [[True, False]]
    assert all(answer(*items[:200]))


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_run_keeps_no_part_from_which_the_last_one_could_not_detach(
    redis_cluster: RedisCluster, is_continued: bool
) -> None:
    items = fingerprints(300)
    last = shared_filter(redis_cluster)
    last.attach()
    last.add_many(items)
    # The other parts did not get this call.
    how = (0, 1) if is_continued else (1, 0)
    last._run_on(last._parts[:1], lambda part: ("detach", last.token, 0, *how))
    new = shared_filter(redis_cluster, keep=last.generation if is_continued else "")
    second = shared_filter(redis_cluster)
    assert new.attach().fingerprints == 0
    assert all(new.add_many(items))
    assert second.attach().others == 1
    assert not any(second.add_many(items))
    second.detach()
    assert new.detach(delete=True)


def test_a_closed_store_keeps_no_connection_of_its_scripts(redis_cluster: RedisCluster) -> None:
    def connections() -> set[str]:
        clients = [
            each for master in redis_cluster.masters for each in redis_cluster.ask(master, "CLIENT LIST")
        ]
        return {each["addr"] for each in clients if each["cmd"] == "evalsha"}

    texts = [SeenText(bytes([0, 0, 0, 0, shard]) + bytes(11), "", "c", 0) for shard in range(SHARDS)]
    # The second one finds the scripts on the masters.
    for _ in range(2):
        store, before = open_store(redis_cluster.url), connections()
        store.content.claim(texts)
        opened = connections() - before
        store.close()
    assert len(opened) == len(redis_cluster.masters)
    deadline = time.monotonic() + 240
    while (left := opened & connections()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_a_slot_that_a_master_gets_later(cluster: RedisCluster) -> None:
    client = open_client(parse_store_url(cluster.url))
    slot = key_slot(hash_tags(client, "content")[1].encode())
    client.close()
    cluster.ask(cluster.masters[0], "CLUSTER DELSLOTS", slot)
    store = open_store(cluster.url)
    texts = [SeenText(bytes([0, 0, 0, 0, shard]) + bytes(11), "", "c", 0) for shard in range(SHARDS)]
    with pytest.raises(StoreUnavailable):
        store.content.claim(texts)
    cluster.ask(cluster.masters[0], "CLUSTER ADDSLOTS", slot)
    cluster.wait()
    assert len(store.content.claim(texts)) == SHARDS
    store.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("hangs", [False, True])
def test_a_replica_takes_over(cluster: RedisCluster, hangs: bool) -> None:
    cluster.add_replica(cluster.masters[1])
    shared = shared_filter(cluster, timeout_s=1.0)
    items = fingerprints(300)
    assert all(shared.add_many(items))
    with cluster.masters[1].suspended() if hangs else nullcontext(cluster.masters[1].stop()):
        deadline = time.monotonic() + 60
        while True:
            try:
                assert not any(shared.add_many(items))
                break
            except StoreUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert all(shared.add_many(fingerprints(100, 300)))
    assert shared.times_lost == 0


@pytest.mark.exhaustive
def test_a_master_that_lost_its_keys_loses_only_its_parts(cluster: RedisCluster) -> None:
    shared = shared_filter(cluster)
    items = fingerprints(1_000)
    assert all(shared.add_many(items))
    cluster.masters[2].flush()
    lost = shared.add_many(items)
    assert 0.2 < sum(lost) / 1_000 < 0.5
    assert not any(shared.add_many(items))
    assert shared.times_lost == sum(
        cluster.master_of(key_slot(part.key)) is cluster.masters[2] for part in shared._parts
    )
    generation = shared.generation or ""
    shared.detach()
    shared = shared_filter(cluster, keep=generation)
    assert not shared.attach().is_other_filter
    assert not any(shared.add_many(items)), "the same job keeps all parts"


def on_cluster(cluster: RedisCluster) -> dict[str, Any]:
    return {
        "DEDUPE_URL_STORE_URL": cluster.url,
        "DEDUPE_CONTENT_STORE_URL": cluster.url,
        "DEDUPE_STORE_TIMEOUT": 30,
    }
