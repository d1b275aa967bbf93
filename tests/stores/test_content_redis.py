"""The texts in Redis or Valkey: keys, room, lost answers, lifetimes."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from content_pages import (
    ROWS,
    A,
    B,
    C,
    claim,
    copy_of,
    fill,
    keep,
    near,
    page,
    seen,
    signature,
)

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import NearAnswer, Signature

if TYPE_CHECKING:
    from servers import RedisServer


PREFIX = b"dedupe:{content}:v2:"


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
        store.content.find_texts(sent)
        real = caller._connection.read_response
        lost: list[Any] = []

        def lose(*args: Any, real: Any = real, lost: list[Any] = lost, **options: Any) -> Any:
            answer = real(*args, **options)
            if not lost:
                lost.append(answer)
                raise redis.ConnectionError("gone")
            return answer

        caller._connection.read_response = lose
        assert store.content.claim_texts(sent, pending=pending) == [None, None]
        assert lost == [[None, None]]
        asked = [signature(sent[0], "x"), signature(sent[1], "x")]
        lost.clear()
        assert store.content.claim_near(asked) == [NearAnswer(), NearAnswer(seen(sent[0], pending=pending))]
        assert len(lost) == 1
        caller._connection.read_response = real
        # Whoever else comes is told.
        assert other.content.claim_texts([page(1, C), page(2, C)]) == [
            seen(capture, pending=pending) for capture in sent
        ]
    assert store.content.statistics() == {"texts": 2, "kept": 1, "pending": 0, "templates": 0}
    store.close()
    other.close()


def test_settling_whose_answer_was_lost_is_settled(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url)
    store.content.claim_texts([page(1, A), page(2, A)])
    redis_server.stop()
    with pytest.raises(StoreUnavailable):
        store.content.settle([page(1, A)], [page(2, A)])
    redis_server.start()
    store.content.settle([page(1, A)], [page(2, A)])
    assert store.content.find_texts([page(1, B), page(2, B)]) == [seen(page(1, A)), None]
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


@pytest.mark.parametrize("lifetime", [None, 3600.0])
def test_a_document_takes_at_most_a_kilobyte_in_redis(redis_url: str, lifetime: float | None) -> None:
    store = open_store(redis_url)
    store.content.remember_for(lifetime)
    with redis.Redis.from_url(redis_url) as client:
        # Buckets that lead to a text which is there, else they are cleared away.
        kept = b"digest" + bytes(10)
        client.set(PREFIX + b"s" + kept, random.randbytes(128))
        with client.pipeline(transaction=False) as pipeline:
            for bucket in range(65_536):
                pipeline.hset(PREFIX + b"b" + bucket.to_bytes(2, "big"), b"field6", kept)
            pipeline.execute()
        begun = client.eval(SIZE_OF_KEYS, 0)
        for number in range(1000):
            url = f"https://docs.example.org/manual/chapter/page-{number}.html"
            capture = page(number, url, ms=time.time_ns() // 1_000_000)
            claim(store.content, capture, pending=False)
            near(store.content, signature(capture, rows=random.randbytes(128)))
        grown = client.eval(SIZE_OF_KEYS, 0)
    store.close()
    assert begun < 10_000_000
    assert 700 <= (grown - begun) / 1000 <= 1000


@pytest.mark.parametrize("kind", ["i", "n"])
def test_what_is_not_ours_under_one_of_our_keys_is_refused(redis_url: str, kind: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(PREFIX.decode() + kind, "something else")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused, match="not written by scrapy-dedupe"):
        store.content.claim_texts([page(1)])
    store.close()


def test_what_came_while_a_purge_looked_stays(redis_url: str) -> None:
    store, other = open_store(redis_url), open_store(redis_url)
    claim(store.content, page(1, A))
    claim(store.content, page(2, A))
    content: Any = store.content
    read = list(content._stored_texts())
    other.content.settle([copy_of(page(1, B, "c2", 2), 1)])
    assert content._forget_texts(read) == 1
    assert store.content.find_texts([page(1, C), page(2, C)]) == [seen(page(1, B, "c2", 2)), None]
    store.close()
    other.close()


def test_redis_lets_what_has_a_lifetime_expire(redis_url: str) -> None:
    store = open_store(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        began = time.monotonic()
        store.content.remember_for(3600)
        keep(store.content, page(1, A), "x")
        claim(store.content, page(2, A))
        store.content.settle([page(2, A), copy_of(page(1, B), 1), copy_of(page(3, C), 1, "near", 0.9)])
        keys = {bytes(key)[len(PREFIX) :][:1]: key for key in client.scan_iter()}
        for kind in (b"t", b"s", b"c"):
            left_s = client.pttl(keys[kind]) / 1000
            assert 3600 - 1 - (time.monotonic() - began) < left_s <= 3600
        store.content.remember_for(0.001)
        claim(store.content, page(4, A))
        near(store.content, signature(page(4, A), "x"))
        deadline = time.monotonic() + 240
        while store.content.statistics()["texts"] > 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert store.content.statistics() == {"texts": 3, "kept": 1, "pending": 0, "templates": 0}
    store.close()


def test_buckets_whose_texts_expired_in_redis_go_as_others_come(redis_url: str) -> None:
    store = open_store(redis_url)
    store.content.remember_for(3600)
    with redis.Redis.from_url(redis_url) as client:
        bucket = PREFIX + b"bxx"
        for number in range(300):
            capture = page(number, ms=number)
            store.content.claim_near([Signature(capture, [b"xx" + number.to_bytes(6, "big")], ROWS, 129)])
            if number < 200:
                # As the server does it when its time is over.
                client.delete(PREFIX + b"s" + capture.digest)
        held = client.hlen(bucket)
        kept = sum(1 for _ in client.scan_iter(PREFIX + b"s*"))
        assert client.object("encoding", bucket) == b"listpack"
    store.close()
    assert kept == 100
    assert 100 <= held < 200


def test_purging_leaves_no_buckets_or_notes_behind(redis_url: str) -> None:
    store = open_store(redis_url)
    fill(store.content)
    store.content.purge()
    store.close()
    with redis.Redis.from_url(redis_url) as client:
        assert sorted(client.scan_iter()) == [PREFIX + b"i", PREFIX + b"n"]
