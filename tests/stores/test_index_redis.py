"""The crawl index in Redis: Browsertrix's keys byte for byte, and what happens between two scripts."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_steps import DATE, HASH, HOME, Killed, before_script, crawl_with, import_of, kill, record, source

from scrapy_dedupe.errors import CrawlStateError, StoreRefused
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, ImportNotes, Original, UrlCapture, Waiting
from scrapy_dedupe.stores.index_values import digest_key, other_spelling
from scrapy_dedupe.stores.redis_index_base import spellings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
SHA1, SHA1_HEX = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "da39a3ee5e6b4b0d3255bfef95601890afd80709"


@pytest.fixture
def other(redis_url: str) -> Iterator[CrawlIndex]:
    """The index as another process has it open."""
    store = open_store(redis_url)
    yield store.index
    store.close()


# Browsertrix's keys


def test_an_import_writes_the_keys_of_browsertrix(redis_index: CrawlIndex, client: redis.Redis) -> None:
    redis_index.queue_sources([source()])
    entry = json.loads(client.lrange("src:q", 0, -1)[0])
    assert entry == {
        "name": "a.wacz", "url": "/archives/a.wacz", "crawlId": "a", "hash": HASH, "size": 5_000, "container": True
    }  # fmt: skip
    assert client.smembers("src:qset") == {b"a.wacz"}
    claimed = redis_index.claim_source(300)
    assert claimed == source()
    assert client.llen("src:q") == 0
    assert client.ttl("pending:q:a.wacz") in range(290, 301)
    import_of(redis_index, claimed, ONE)
    assert client.hgetall("h:a") == {ONE.encode(): f"0 {DATE} {HOME} 1000".encode()}
    assert client.hgetall("alldupes") == {ONE.encode(): b"a"}
    assert client.lrange("c:a:wacz", 0, -1) == [
        f'{{"filename":"a.wacz","hash":"{HASH}","size":5000}}'.encode()
    ]
    assert client.hgetall("allcounts") == client.hgetall("h:a:counts")
    assert client.hgetall("allcounts") == {b"totalUrls": b"1", b"totalCrawlSize": b"5000"}
    assert client.smembers("allcrawls") == {b"a"}
    assert client.smembers("src:d") == {b"a.wacz"}
    assert not client.exists("pending:q", "pending:q:a.wacz", "src:qset", "uncommittedcrawls")


def test_nothing_of_ours_is_left_of_a_source_that_ended(redis_index: CrawlIndex, client: redis.Redis) -> None:
    import_of(redis_index, source(), ONE, TWO)
    assert set(client.keys("dedupe:*")) == {
        b"dedupe:index", b"dedupe:crawl:a", b"dedupe:files:a", b"dedupe:where:a", b"dedupe:sources:a"
    }  # fmt: skip


def test_a_dropped_source_of_a_new_crawl_leaves_no_key(redis_index: CrawlIndex, client: redis.Redis) -> None:
    redis_index.begin_source(source(), "stored")
    redis_index.add_imported(source(), [record(ONE)], [UrlCapture(HOME, ONE, DATE)])
    redis_index.drop_source(source())
    assert client.keys() == [b"dedupe:index"]


def test_the_notes_of_imports_are_those_of_browsertrix(redis_index: CrawlIndex, client: redis.Redis) -> None:
    redis_index.note_imports(ImportNotes(0.5, "2026-08-01T12:00:00.000Z", 2, 77))
    assert client.hmget("allcounts", ["updateProgress", "removedCrawls", "removedCrawlSize"]) == [
        b"0.5", b"2", b"77"
    ]  # fmt: skip
    assert client.get("last_update_ts") == b"2026-08-01T12:00:00.000Z"
    client.hset("allcounts", "updateProgress", "soon")
    assert redis_index.import_notes.progress is None
    assert redis_index.unreadable == 1  # type: ignore[attr-defined]


def test_a_crawl_of_browsertrix_is_extended_and_stays_readable_for_it(
    redis_index: CrawlIndex, client: redis.Redis
) -> None:
    client.sadd("allcrawls", "a")
    client.hset("h:a", ONE, f"0 {DATE} {HOME} 1000")
    client.hset("alldupes", ONE, "a")
    client.rpush("c:a:wacz", '{"filename":"first.wacz"}')
    assert redis_index.begin_source(source("second.wacz"), "decoded") == 1
    redis_index.drop_source(source("second.wacz"))
    assert client.lrange("c:a:wacz", 0, -1) == [b'{"filename":"first.wacz"}']
    redis_index.begin_source(source("second.wacz"), "decoded")
    redis_index.add_imported(source("second.wacz"), [record(TWO, wacz_index=1)])
    redis_index.end_source(source("second.wacz"), Counts(1))
    assert client.hget("h:a", ONE) == f"0 {DATE} {HOME} 1000".encode()
    assert client.hget("h:a", TWO) == f"1 {DATE} {HOME} 1000".encode()
    (info,) = redis_index.crawls()
    assert (info.state, info.software) == ("committed", None)
    with pytest.raises(StoreRefused, match="decoded"):
        redis_index.begin_source(source("third.wacz"), "stored")


def test_a_digest_that_another_program_spelt_otherwise_is_found_as_it_was_asked_for(
    redis_index: CrawlIndex, client: redis.Redis
) -> None:
    client.sadd("allcrawls", "b")
    client.hset("h:b", SHA1_HEX, f"0 {DATE} {HOME} 1000")
    client.hset("alldupes", SHA1_HEX, "b")
    assert redis_index.find("a", [SHA1]) == [Original(SHA1, "b", DATE, HOME, 1_000)]
    redis_index.start("a", "decoded")
    redis_index.add("a", [], Counts(1, 1), waiting=[Waiting(SHA1, 400)])
    assert redis_index.resolve() == 1
    assert client.hget("h:a:counts", "conservedSize") == b"600"


def test_revisits_that_browsertrix_left_waiting_are_credited_as_it_does(
    redis_index: CrawlIndex, client: redis.Redis
) -> None:
    client.sadd("allcrawls", "a", "b")
    client.hset(f"rev:sha256:{ONE}:s", "b", 900)
    client.hset(f"rev:sha256:{ONE}:c", "b", 2)
    client.set("last_update_ts", "2026-08-01T12:00:00.000Z")
    assert redis_index.resolve() == 0
    client.hset("h:a", ONE, f"0 {DATE} {HOME} 1000")
    client.hset("alldupes", ONE, "a")
    assert redis_index.resolve() == 2
    assert client.hget("h:b:counts", "conservedSize") == client.hget("allcounts", "conservedSize") == b"1100"
    assert not client.keys("rev:*")
    assert redis_index.resolve() == 0


def test_an_entry_of_the_queue_that_does_not_parse_is_dropped_and_counted(
    redis_index: Any, client: redis.Redis
) -> None:
    client.rpush("src:q", "no JSON", '{"name":"x.wacz"}')
    client.sadd("src:qset", "x.wacz")
    assert redis_index.claim_source(300) is None
    assert redis_index.unreadable == 2
    assert not client.exists("src:q", "src:qset", "pending:q", "pending:q:x.wacz")


@given(st.binary(min_size=16, max_size=64), st.booleans())
def test_the_short_form_of_the_other_spelling_is_that_of_its_digest(raw: bytes, is_base32: bool) -> None:
    digest = raw.hex()
    if is_base32:
        digest = other_spelling(digest) or digest
    other = other_spelling(digest)
    expected = [digest, digest_key(digest), other or "", digest_key(other) if other else b""]
    assert [word or "" for word in spellings([digest])] == [word or "" for word in expected]


# Between two scripts


@pytest.mark.parametrize("script", ["index_merged_batch", "index_merged_swap"])
def test_a_commit_during_a_purge_is_in_the_new_index(
    redis_index: Any, other: CrawlIndex, client: redis.Redis, script: str
) -> None:
    crawl_with(other, "a", ONE, TWO)
    crawl_with(other, "kept", THREE)
    with before_script(redis_index, script, lambda: crawl_with(other, "new", TWO)):
        redis_index.purge(["a"])
    assert other.merged_faults() == 0
    found = other.find("reader", [ONE, TWO, THREE])
    assert [original and original.crawl for original in found] == [None, "new", "kept"]
    assert not client.exists("dedupe:alldupes", "dedupe:rebuilding", "dedupe:removing", "dedupe:rebuilt")


def test_a_source_that_ends_during_a_purge_is_in_the_new_index(redis_index: Any, other: CrawlIndex) -> None:
    crawl_with(other, "a", ONE)
    with before_script(redis_index, "index_merged_swap", lambda: import_of(other, source(crawl="b"), TWO)):
        redis_index.purge(["a"])
    assert other.merged_faults() == 0
    found = other.find("reader", [ONE, TWO])
    assert (found[0], found[1] and found[1].crawl) == (None, "b")


def test_a_source_that_was_ending_when_a_purge_began_is_whole_afterwards(
    redis_index: Any, other: Any
) -> None:
    crawl_with(redis_index, "a", ONE)
    other.begin_source(source(crawl="b"), "stored")
    other.add_imported(source(crawl="b"), [record(TWO, "b")])
    with before_script(other, "index_source_end", lambda: redis_index.purge(["a"])):
        other.end_source(source(crawl="b"), Counts(1))
    assert redis_index.find("reader", [TWO])[0] is not None
    assert redis_index.merged_faults() == 0


@pytest.mark.parametrize("script", ["index_merged_begin", "index_merged_batch", "index_merged_swap"])
def test_a_purge_that_is_killed_changed_nothing_and_can_be_repeated(
    redis_index: Any, other: CrawlIndex, script: str
) -> None:
    crawl_with(other, "a", ONE, TWO)
    crawl_with(other, "b", TWO)
    with pytest.raises(Killed), before_script(redis_index, script, kill):
        redis_index.purge(["a"])
    assert [found and found.crawl for found in other.find("reader", [ONE, TWO])] == ["a", "a"]
    # What a crawl takes back in the meantime does not come again.
    other.start("c", "stored", concurrent=True)
    other.add("c", [record(THREE, "c")], Counts(1))
    other.cancel("c")
    other.purge(["a"])
    assert [found and found.crawl for found in other.find("reader", [ONE, TWO, THREE])] == [None, "b", None]
    assert other.merged_faults() == 0
    assert other.counts == Counts(1, 0, 0, 10)


def test_two_purges_at_once_both_take_effect(redis_index: Any, other: CrawlIndex) -> None:
    for crawl, digest in (("a", ONE), ("b", TWO), ("c", THREE)):
        crawl_with(other, crawl, digest)
    with before_script(redis_index, "index_merged_swap", lambda: other.purge(["b"])):
        redis_index.purge(["a"])
    assert [info.id for info in other.crawls()] == ["c"]
    assert other.merged_faults() == 0


def test_readers_pass_over_what_a_source_that_is_ending_has_put_before_another_crawl(
    redis_index: Any, other: CrawlIndex, client: redis.Redis
) -> None:
    import_of(other, source("first.wacz", "imported"), THREE)
    redis_index.begin_source(source("second.wacz", "imported"), "stored")
    redis_index.add_imported(source("second.wacz", "imported"), [record(ONE, "imported", "second")])
    with pytest.raises(Killed), before_script(redis_index, "index_source_end", kill):
        redis_index.end_source(source("second.wacz", "imported"), Counts(1))
    assert client.hget("alldupes", ONE) == b"imported"
    assert other.find("reader", [ONE]) == [None]
    crawl_with(other, "b", ONE)
    found = other.find("reader", [ONE])[0]
    assert found is not None
    assert found.crawl == "b"
    other.drop_source(source("second.wacz", "imported"))
    assert client.hget("alldupes", ONE) == b"b"
    assert other.merged_faults() == 0


def test_what_a_source_had_first_goes_to_another_source_when_it_is_dropped(
    redis_index: CrawlIndex, other: CrawlIndex
) -> None:
    first, second = source("first.wacz"), source("second.wacz")
    for name in (first, second):
        redis_index.begin_source(name, "stored")
        redis_index.add_imported(name, [record(ONE, file=name.name)])
    other.end_source(second, Counts(1))
    found = other.find("reader", [ONE])[0]
    assert found is not None
    assert found.file == "second.wacz"
    other.drop_source(first)
    assert other.find("reader", [ONE]) == [found]
    assert [info.files for info in other.crawls()] == [("second.wacz",)]


def test_a_source_that_is_added_to_after_it_was_dropped_refuses(
    redis_index: CrawlIndex, other: CrawlIndex
) -> None:
    redis_index.begin_source(source(), "stored")
    other.drop_source(source())
    with pytest.raises(CrawlStateError, match="was not begun"):
        redis_index.add_imported(source(), [record(ONE)])
    with pytest.raises(CrawlStateError, match="was not begun"):
        redis_index.end_source(source(), Counts(1))


def test_faults_of_the_merged_index_are_counted_and_mended(
    redis_index: CrawlIndex, client: redis.Redis
) -> None:
    crawl_with(redis_index, "a", ONE, TWO)
    client.hdel("alldupes", ONE)
    client.hset("alldupes", mapping={THREE: "gone", "4" * 64: "a"})
    client.hincrby("allcounts", "totalUrls", 5)
    client.hset("allcounts", "estimatedRedundantSize", 7)
    assert redis_index.merged_faults() == 4
    redis_index.rebuild_merged()
    assert redis_index.merged_faults() == 0
    assert client.hget("allcounts", "estimatedRedundantSize") == b"7"


def test_many_records_are_listed_once_each(redis_index: CrawlIndex) -> None:
    digests = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3_000)]
    crawl_with(redis_index, "a", *digests)
    found = list(redis_index.records("a"))
    assert sorted(original.digest for original in found) == sorted(digests)
    assert {(original.file, original.offset) for original in found} == {("x.warc.gz", 77)}
