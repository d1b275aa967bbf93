"""The texts in Redis or Valkey: keys, room, lost answers, lifetimes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from content_pages import (
    A,
    B,
    C,
    claim,
    claim_near,
    copy_of,
    digest,
    fill,
    find_near,
    page,
    seen,
    signature,
)

from scrapy_dedupe.content.judge import Judge
from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import NearAnswer

if TYPE_CHECKING:
    from servers import RedisServer


PREFIX = b"dedupe:{content}:v3:"


def test_every_key_in_redis_has_the_versioned_prefix_and_one_slot(redis_url: str) -> None:
    store = open_store(redis_url)
    store.content.check_parameters({"near_bands": "16"})
    fill(store.content)
    store.close()
    with redis.Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter())
    assert {key[: len(PREFIX)] for key in keys} == {PREFIX}
    assert {key[len(PREFIX) :][:1] for key in keys} == set(map(bytes, zip(b"pnitcsbh", strict=True)))


def test_a_claim_whose_answer_was_lost_is_answered_as_the_first_time(redis_url: str) -> None:
    store, other = open_store(redis_url), open_store(redis_url)
    sent = [page(1, A), page(2, B)]
    for pending in (True, False):
        # The connection breaks when the server has already run the script.
        caller = store.content._scripts  # type: ignore[attr-defined]
        store.content.find(sent)
        real = caller._connection.read_response
        lost: list[Any] = []

        def lose(*args: Any, real: Any = real, lost: list[Any] = lost, **options: Any) -> Any:
            answer = real(*args, **options)
            if not lost:
                lost.append(answer)
                raise redis.ConnectionError("gone")
            return answer

        caller._connection.read_response = lose
        asked = [signature(sent[0], "x"), signature(sent[1], "x")]
        assert claim_near(store.content, asked, pending=pending) == [
            NearAnswer(),
            NearAnswer(seen(sent[0], pending=pending)),
        ]
        assert len(lost) == 1
        caller._connection.read_response = real
        # Whoever else comes is told.
        assert other.content.claim([page(1, C), page(2, C)]) == [
            seen(capture, pending=pending) for capture in sent
        ]
    assert store.content.statistics() == {"texts": 2, "kept": 1, "pending": 0, "templates": 0}
    store.close()
    other.close()


def test_settling_whose_answer_was_lost_is_settled(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url)
    store.content.claim([page(1, A), page(2, A)])
    redis_server.stop()
    with pytest.raises(StoreUnavailable):
        store.content.settle([page(1, A)], [page(2, A)])
    redis_server.start()
    store.content.settle([page(1, A)], [page(2, A)])
    assert store.content.find([page(1, B), page(2, B)]) == [seen(page(1, A)), None]
    store.close()


# What the whole server uses depends on which scripts and buffers it holds at the moment; what its keys use does not.
SIZE_OF_KEYS = """
local sum, cursor = 0, '0'
repeat
  local found = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = found[1]
  for _, key in ipairs(found[2]) do
    sum = sum + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
  end
until cursor == '0'
return sum
"""


@pytest.mark.parametrize("documents", [1_000, 5_000])
def test_a_document_takes_at_most_600_bytes_in_redis(redis_url: str, documents: int) -> None:
    store = open_store(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        for start in range(0, documents, 100):
            captures = [
                page(number, f"https://docs.example.org/manual/chapter/page-{number}.html", ms=number)
                for number in range(start, start + 100)
            ]
            asked = [signature(capture, rows=random.randbytes(128)) for capture in captures]
            assert store.content.claim(captures, asked) == [NearAnswer()] * 100
            store.content.settle(captures)
        assert client.eval(SIZE_OF_KEYS, 0) / documents <= 600
        # Servers with the defaults keep all of them in the compact form: Redis 7.0 calls a list quicklist.
        assert {client.object("encoding", key) for key in client.scan_iter()} <= {b"listpack", b"quicklist"}
        hashes = {key: int(count) for key, count in client.hgetall(PREFIX + b"g").items()}
        for kind, count in hashes.items():
            numbers = {int(key[len(PREFIX) + 1 :]) for key in client.scan_iter(PREFIX + kind + b"*")}
            assert numbers == set(range(count))
    assert store.content.statistics() == {
        "texts": documents,
        "kept": documents,
        "pending": 0,
        "templates": 0,
    }
    store.close()


@pytest.mark.parametrize("length", [52, 53, 54, 55, 117, 118, 119, 308, 309, 310, 700])
def test_values_of_any_length_are_read_and_replaced(redis_url: str, length: int) -> None:
    store, url = open_store(redis_url), "https://" + "u" * length
    rows = bytes(length)
    for moment, its_url in enumerate([url, A, url + "x", url]):
        capture = page(1, its_url, ms=moment)
        claim_near(store.content, [signature(capture, "x", rows=rows, min_equal=1)])
        assert store.content.find([page(1, C, ms=9)]) == [seen(capture, pending=True)]
        assert find_near(store.content, [signature(page(2, C, ms=9), "x", rows=rows, min_equal=1)]) == [
            NearAnswer(seen(capture, pending=True))
        ]
        assert [name for name, _ in store.content._records(b"t")] == [capture.digest]  # type: ignore[attr-defined]
        store.content.settle([], [capture])
        assert store.content.statistics() == {"texts": 0, "kept": 0, "pending": 0, "templates": 0}
    with redis.Redis.from_url(redis_url) as client:
        assert not client.exists(PREFIX + b"t0", PREFIX + b"s0")
    store.close()


def test_older_texts_are_refused_until_they_are_purged(redis_url: str) -> None:
    store = open_store(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("dedupe:{content}:v2:n", "c1")
        client.set(b"dedupe:{content}:v2:t\n*\xff", b"c 1 0 http://a/")
        with pytest.raises(StoreRefused, match=r"format 2.*reads format 3.*content purge --all"):
            Judge(store.content)
        assert store.content.purge() == 0
        assert list(client.scan_iter()) == []
    Judge(store.content)
    store.close()


@pytest.mark.parametrize("kind", ["i", "n", "g"])
def test_what_is_not_ours_under_one_of_our_keys_is_refused(redis_url: str, kind: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(PREFIX.decode() + kind, "something else")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused, match="not written by scrapy-dedupe"):
        store.content.claim([page(1)])
    store.close()


def test_what_came_while_a_purge_looked_stays(redis_url: str) -> None:
    store, other = open_store(redis_url), open_store(redis_url)
    claim(store.content, page(1, A))
    claim(store.content, page(2, A))
    content: Any = store.content
    read = [(b"t", *text) for text in content._records(b"t")]
    other.content.settle([copy_of(page(1, B, "c2", 2), 1)])
    assert content._forget(read) == 1
    assert store.content.find([page(1, C), page(2, C)]) == [seen(page(1, B, "c2", 2)), None]
    store.close()
    other.close()


def test_expired_texts_do_not_fill_redis(redis_url: str) -> None:
    store = open_store(redis_url)
    store.content.remember_for(1)
    for start in range(0, 4_000, 50):
        captures = [page(number, f"http://{number}/", ms=10 * number) for number in range(start, start + 50)]
        store.content.claim(captures, [signature(it, rows=random.randbytes(128)) for it in captures])
        copies = [replace(copy_of(it, it, "near", 0.9), digest=digest((it.url, "copy"))) for it in captures]
        store.content.settle([*captures, *copies])
    # A hundred captures of each kind are not older than a second.
    numbers = store.content.statistics()
    assert 200 <= numbers["texts"] <= 800
    assert 100 <= numbers["kept"] <= 400
    with redis.Redis.from_url(redis_url) as client:
        buckets = sum(client.hlen(key) for key in client.scan_iter(PREFIX + b"b*"))
        notes = sum(client.hlen(key) for key in client.scan_iter(PREFIX + b"c*"))
        assert 16 * 100 <= buckets <= 16 * 400
        assert 100 <= notes <= 400
    store.close()


def test_texts_that_are_made_for_one_hash_stay_cheap(redis_url: str) -> None:
    store = open_store(redis_url)
    captures = [
        replace(page(number, f"http://{number}/"), digest=bytes(4) + random.Random(number).randbytes(12))
        for number in range(2_000)
    ]
    for start in range(0, 2_000, 100):
        some = captures[start : start + 100]
        asked = [signature(capture, rows=random.randbytes(128)) for capture in some]
        assert store.content.claim(some, asked) == [NearAnswer()] * 100
    assert store.content.claim([replace(it, url=A) for it in captures[::100]]) == [
        seen(it, pending=True) for it in captures[::100]
    ]
    with redis.Redis.from_url(redis_url) as client:
        assert int(client.hget(PREFIX + b"g", "t") or 0) < 1_000
    assert store.content.purge() == 2_000
    store.close()


def test_purging_leaves_no_buckets_or_notes_behind(redis_url: str) -> None:
    store = open_store(redis_url)
    fill(store.content)
    store.content.purge()
    store.close()
    with redis.Redis.from_url(redis_url) as client:
        assert sorted(client.scan_iter()) == [PREFIX + b"i", PREFIX + b"n"]
