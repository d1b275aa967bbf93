from __future__ import annotations

import hashlib
import math
import multiprocessing
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples
from servers import LossyLine

from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.urls.bloom import optimal_bits
from scrapy_dedupe.urls.shared import SharedBloomFilter
from scrapy_dedupe.urls.shared_layers import TagLayer

if TYPE_CHECKING:
    from collections.abc import Iterator


def fingerprints(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha1(f"{salt}{number}".encode()).digest() for number in range(count)]


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def test_a_fingerprint_is_new_to_one_process_alone(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 1000, 1e-6) for _ in range(2))
    assert one.add(b"page")
    assert not two.add(b"page")
    assert not one.add(b"page")
    assert two.add(b"other")
    assert b"other" in one
    assert b"third" not in one
    assert len(one) == len(two) == 2


def test_a_batch_is_answered_in_order(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 1000, 1e-6)
    shared.add(b"a")
    assert shared.add_many([b"b", b"a", b"c", b"b"]) == [True, False, True, False]
    for either in (shared, SharedBloomFilter(client, "spider", 1000, 1e-6)):
        assert either.contains_many([b"c", b"d", b"a", b"d"]) == [True, False, True, False]
        assert either.contains_many([]) == []
    assert shared.add_many([]) == []


def test_it_grows_with_all_processes_attached(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 50, 1e-6, cache_size=1) for _ in range(2))
    items = fingerprints(2000)
    assert all(one.add_many(items[:40]))
    # A batch larger than several layers, from a process that has not seen them grow.
    assert two.add_many(items) == [False] * 40 + [True] * 1960
    assert not any(one.add_many(items))
    found = one.describe()
    assert [layer.capacity for layer in found.layers] == [50, 100, 200, 400, 800, 1600]
    assert sum(found.counts) == found.seen == len(one) == 2000
    assert found.figures().capacity == one.capacity == 50


@pytest.mark.parametrize("error_rate", [0.01, 0.001])
def test_the_error_rate_holds_from_once_to_64_times_the_capacity(
    client: redis.Redis, error_rate: float
) -> None:
    shared = SharedBloomFilter(client, "spider", 300, error_rate, cache_size=1)
    items, others = fingerprints(300 * 64), fingerprints(10_000, "other")
    added = 0
    for factor in (1, 7, 64):
        shared.add_many(items[added : 300 * factor])
        added = 300 * factor
        wrong = shared._ask(b"has", others).count(b"1")
        assert wrong <= error_rate * len(others) + 4 * math.sqrt(error_rate * len(others))
        assert shared.describe().figures().estimated_error <= error_rate
        expected = shared.describe().figures().estimated_error * len(others)
        assert abs(wrong - expected) <= 5 * math.sqrt(expected) + 0.15 * expected + 5
    lost = shared.describe().figures().expected_lost
    assert abs(added - len(shared) - lost) <= 5 * math.sqrt(lost) + 2


def test_tags_err_as_their_account_says(client: redis.Redis) -> None:
    # At one in a million there is nothing to measure; tags of two bytes err often enough.
    shared = SharedBloomFilter(client, "spider", 5000, 2e-4, cache_size=0)
    assert sum(shared.add_many(fingerprints(5000))) == len(shared) > 4990
    layer = shared.describe().layers[0]
    assert isinstance(layer, TagLayer)
    assert layer.tag_bytes == 2
    probes = 300_000
    expected = layer.error_at(5000) * probes
    assert expected > 30
    wrong = shared._ask(b"has", fingerprints(probes, "other")).count(b"1")
    assert abs(wrong - expected) <= 5 * math.sqrt(expected)


@pytest.mark.parametrize("error_rate", [1e-9, 1e-6, 1e-4, 1e-2])
def test_a_full_filter_costs_at_most_one_byte_a_fingerprint_more_than_the_optimum(
    client: redis.Redis, error_rate: float
) -> None:
    shared = SharedBloomFilter(client, "spider", 10_000, error_rate, cache_size=0)
    items = fingerprints(10_000)
    shared.add_many(items)
    assert not any(shared.add_many(items))
    found = shared.describe()
    assert len(found.layers) == 1
    stored = sum(client.strlen(key) for key in client.scan_iter() if b":bits:" in key)
    assert stored == pytest.approx(found.figures().bytes, abs=1)
    assert 8 * stored <= optimal_bits(10_000, error_rate) + 8 * 10_000
    assert found.figures().estimated_error <= 0.7 * error_rate
    assert 0.3 < found.figures().fill_ratio < 0.95


def test_a_layer_is_spread_over_shards_of_at_most_16_mib(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 20_000_000, 1e-6)
    items = fingerprints(60)
    assert all(shared.add_many(items))
    layer = shared.describe().layers[0]
    assert layer.shards == 4
    keys = [key for key in client.scan_iter() if b":bits:" in key]
    assert len(keys) == 4
    assert all(client.strlen(key) <= 16 * 2**20 for key in keys)
    shared._seen.clear()
    assert not any(shared.add_many(items))
    assert layer.error_at(20_000_000) < 0.7e-6


def test_the_keys_share_a_hash_tag_and_a_version(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    shared.forget([b"page"])
    names = sorted(key.decode() for key in client.scan_iter())
    kinds = ("attached", "bits:0:0", "forgotten", "meta")
    assert names == [f"dedupe:urls:2:{{spider}}:{name}" for name in kinds]
    head = client.hgetall("dedupe:urls:2:{spider}:meta")
    assert len(head.pop(b"born")) == 32
    plan = head.pop(b"plan").split(b"\n")
    assert plan[:2] == [b"tags 200 4 54 1", b"tags 400 4 107 1"]
    assert head == {
        b"version": b"2",
        b"hash": b"blake2b-32",
        b"fingerprinter": b"",
        b"capacity": b"100",
        b"error_rate": b"1e-06",
        b"used": b"tags 100 3 27 1",
        b"full": b"",
        b"count": b"1",
        b"forgotten": b"1",
        b"call:" + shared.token.encode(): b"2 ",
    }
    assert client.smembers("dedupe:urls:2:{spider}:forgotten") == {hashlib.blake2b(b"page").digest()[:16]}


def test_the_tag_of_a_fingerprint(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    digest = hashlib.blake2b(b"page").digest()
    bucket = int.from_bytes(digest[4:8], "big") % 27
    stored = client.get("dedupe:urls:2:{spider}:bits:0:0")
    assert stored == bytes(12 * bucket) + digest[8:11] + bytes(27 * 12 - 12 * bucket - 3)


def test_every_tag_is_in_one_of_its_two_buckets(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 2000, 1e-6, cache_size=0)
    items = fingerprints(2000)
    assert all(shared.add_many(items))
    assert len(shared.describe().layers) == 1
    stored = client.get("dedupe:urls:2:{spider}:bits:0:0")
    slots = [stored[at : at + 3] for at in range(0, len(stored), 3)]
    expected = Counter()
    found = Counter((number // 4, tag) for number, tag in enumerate(slots) if any(tag))
    moved = 0
    buckets = len(slots) // 4
    for item in items:
        digest = hashlib.blake2b(item).digest()
        tag, first = digest[8:11], int.from_bytes(digest[4:8], "big") % buckets
        second = (163841641 * int.from_bytes(tag, "big") - first) % buckets
        moved += not found[first, tag]
        expected[first if found[first, tag] else second, tag] += 1
    assert found == expected
    assert moved > 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error_rate": 0.01}, r"the error rate .*it has 1e-06, but this process has 0\.01"),
        (
            {"fingerprinter": "b.Maker"},
            r"REQUEST_FINGERPRINTER_CLASS.*it has a\.Maker, but this process has b\.Maker",
        ),
    ],
)
def test_other_parameters_are_refused_with_both(
    client: redis.Redis, changes: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"error_rate": 1e-6, "fingerprinter": "a.Maker"}
    SharedBloomFilter(client, "spider", 100, **given).attach()
    other = SharedBloomFilter(client, "spider", 100, **{**given, **changes})
    with pytest.raises(StoreRefused, match=message):
        other.attach()
    assert client.zcard("dedupe:urls:2:{spider}:attached") == 1


def test_another_hash_version_is_refused(client: redis.Redis) -> None:
    SharedBloomFilter(client, "spider", 100, 1e-6).attach()
    client.hset("dedupe:urls:2:{spider}:meta", "hash", "later")
    with pytest.raises(StoreRefused, match="it has later, but this process has blake2b-32"):
        SharedBloomFilter(client, "spider", 100, 1e-6).add(b"page")


def test_another_capacity_is_noted_and_the_store_decides(client: redis.Redis) -> None:
    assert not any(SharedBloomFilter(client, "spider", 100, 1e-6).attach().notes())
    *_, note = SharedBloomFilter(client, "spider", 5000, 1e-6).attach().notes()
    assert "100 fingerprints, but this process is configured for 5,000" in note


def test_a_key_of_somebody_else_is_refused(client: redis.Redis) -> None:
    client.set("dedupe:urls:2:{spider}:meta", "a string")
    with pytest.raises(StoreRefused, match="not written by scrapy-dedupe"):
        SharedBloomFilter(client, "spider", 100, 1e-6).add(b"page")


def test_a_name_with_braces_is_refused(client: redis.Redis) -> None:
    with pytest.raises(SettingError, match="without braces"):
        SharedBloomFilter(client, "{spider}", 100, 1e-6)


def test_the_last_one_to_leave_deletes_and_none_before(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 100, 1e-6) for _ in range(2))
    one.add(b"page")
    two.attach()
    assert not one.detach(delete=True)
    assert not two.add(b"page")
    assert two.detach(delete=True)
    assert client.keys() == []
    assert one.add(b"page")


def left(client: redis.Redis, **options: Any) -> str:
    """A filter with one page that a process has left; its generation."""
    one = SharedBloomFilter(client, "spider", 100, 1e-6)
    one.add(b"page")
    born = one.generation
    assert born is not None
    assert not one.detach(**options)
    assert one.generation is None
    return born


def test_a_filter_that_nobody_uses_is_begun_anew(client: redis.Redis) -> None:
    born = left(client)
    two = SharedBloomFilter(client, "spider", 100, 1e-6)
    found = two.attach()
    assert (found.fingerprints, found.others, found.discarded, found.was_cut) == (0, 0, 1, False)
    assert two.generation != born
    assert not [key for key in client.scan_iter() if b":bits:" in key]
    assert two.add(b"page")


def test_every_layer_and_shard_goes_with_a_filter_that_is_begun_anew(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 50, 1e-6)
    one.add_many(fingerprints(400))
    one.detach()
    assert SharedBloomFilter(client, "spider", 50, 1e-6).attach().discarded == 400
    assert sorted(client.keys()) == [b"dedupe:urls:2:{spider}:attached", b"dedupe:urls:2:{spider}:meta"]


def test_the_job_that_used_a_filter_goes_on_with_it(client: redis.Redis) -> None:
    two = SharedBloomFilter(client, "spider", 100, 1e-6, keep=left(client))
    found = two.attach()
    assert (found.fingerprints, found.discarded, found.was_cut, found.is_other_filter) == (1, 0, False, False)
    assert not two.add(b"page")


def test_another_job_begins_anew_and_the_first_one_is_told(client: redis.Redis) -> None:
    first = left(client)
    second = left(client)
    assert first != second
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=first).attach()
    assert (found.discarded, found.is_other_filter) == (1, True)
    assert any("DEDUPE_URL_KEY" in sentence for sentence in found.warnings())


def test_a_job_that_was_cut_begins_anew_unless_its_queue_is_in_redis(client: redis.Redis) -> None:
    born = left(client, cut=True)
    kept = SharedBloomFilter(client, "spider", 100, 1e-6, keep="*")
    assert kept.attach().discarded == 0
    assert not kept.add(b"page")
    kept.detach(cut=True)
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=born).attach()
    assert (found.discarded, found.was_cut) == (1, True)
    assert ["did not end cleanly" in sentence for sentence in found.warnings()] == [True]
    assert not client.hexists("dedupe:urls:2:{spider}:meta", "cut")


def test_who_attaches_to_a_filter_in_use_joins_whatever_it_may_keep(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6)
    one.add(b"page")
    for keep in ("", "*", "another"):
        two = SharedBloomFilter(client, "spider", 100, 1e-6, keep=keep)
        found = two.attach()
        assert (found.fingerprints, found.others, found.discarded) == (1, 1, 0)
        assert "1 fingerprints and is used by 1 other process" in next(found.notes())
        assert not two.add(b"page")
        two.detach()


def test_an_attach_that_is_sent_twice_keeps_what_the_first_one_began(client: redis.Redis) -> None:
    left(client)
    two = SharedBloomFilter(client, "spider", 100, 1e-6)
    run, sent = two._caller.run, []

    def twice(script: Any, key: bytes, *arguments: bytes) -> Any:
        sent.append(arguments[0])
        run(script, key, *arguments)
        return run(script, key, *arguments)

    two._caller.run = twice  # type: ignore[method-assign]
    two.attach()
    two._caller.run = run  # type: ignore[method-assign]
    assert sent == [b"attach"]
    assert two.generation is not None
    assert client.hget("dedupe:urls:2:{spider}:meta", "born") == two.generation.encode()
    assert two.add(b"page")


ATTACHED = """
import sys, time
import redis
from scrapy_dedupe.urls.shared import SharedBloomFilter
shared = SharedBloomFilter(redis.Redis.from_url(sys.argv[1]), "spider", 100, 1e-6)
shared.add(b"page")
print(shared.generation, flush=True)
time.sleep(600)
"""


def killed(redis_url: str) -> str:
    """A filter with one page whose process was killed; its generation."""
    process = subprocess.Popen([sys.executable, "-c", ATTACHED, redis_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        born = process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert born
    return born


def test_a_killed_process_on_this_machine_is_known_at_once(client: redis.Redis, redis_url: str) -> None:
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=killed(redis_url)).attach()
    assert (found.others, found.discarded, found.was_cut) == (0, 1, True)


def test_who_joins_is_told_of_a_killed_process(client: redis.Redis, redis_url: str) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6)
    one.attach()
    killed(redis_url)
    found = SharedBloomFilter(client, "spider", 100, 1e-6).attach()
    assert (found.others, found.fingerprints, found.discarded, found.was_cut) == (1, 1, 0, True)
    assert "ended without detaching" in next(found.warnings())
    assert not one.add(b"page")


def test_the_last_one_deletes_though_a_killed_one_was_attached(client: redis.Redis, redis_url: str) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6)
    one.attach()
    killed(redis_url)
    assert one.detach(delete=True)
    assert client.keys() == []


def test_a_token_that_a_job_kept_is_gone_wherever_it_was(client: redis.Redis) -> None:
    elsewhere = SharedBloomFilter(client, "spider", 100, 1e-6)
    elsewhere.token = "elsewhere/1/a"
    elsewhere.add(b"page")
    assert SharedBloomFilter(client, "spider", 100, 1e-6).attach().others == 1
    client.flushall()
    elsewhere.add(b"other")
    born = elsewhere.generation or ""
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=born, gone=["elsewhere/1/a"]).attach()
    assert (found.others, found.discarded, found.was_cut) == (0, 1, True)


def lease_over(client: redis.Redis) -> None:
    """Wait until every lease has run out."""
    scores = client.zrange("dedupe:urls:2:{spider}:attached", 0, -1, withscores=True)
    while time.time() * 1000 <= max(score for _, score in scores):
        time.sleep(0.01)


def server_ms(client: redis.Redis) -> int:
    seconds, microseconds = client.time()
    return seconds * 1000 + microseconds // 1000


def test_a_process_whose_lease_ran_out_was_cut(client: redis.Redis) -> None:
    crashed = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    crashed.add(b"page")
    lease_over(client)
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=crashed.generation or "").attach()
    assert (found.discarded, found.was_cut) == (1, True)


def test_a_process_that_returns_after_its_lease_goes_on_with_its_filter(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    one.add(b"page")
    born = one.generation
    lease_over(client)
    found = one.attach()
    assert (found.fingerprints, found.discarded, found.was_cut, one.generation) == (1, 0, False, born)
    one.detach()
    assert not client.hexists("dedupe:urls:2:{spider}:meta", "cut")


def test_a_process_that_crashed_keeps_the_filter_no_longer_than_its_lease(client: redis.Redis) -> None:
    # First, since whoever attaches takes away those whose lease has run out.
    other = SharedBloomFilter(client, "spider", 100, 1e-6)
    other.attach()
    crashed = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    crashed.add(b"page")
    crashed_at = client.zscore("dedupe:urls:2:{spider}:attached", crashed.token)
    while time.time() * 1000 <= crashed_at:
        time.sleep(0.01)
    assert other.detach(delete=True)


def test_calls_renew_the_lease(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.attach()
    before = client.zscore("dedupe:urls:2:{spider}:attached", shared.token)
    # As if a third of the lease had passed, which is so long that it does not pass meanwhile.
    real = time.monotonic
    monkeypatch.setattr("scrapy_dedupe.urls.shared.time.monotonic", lambda: real() + 21)
    assert shared.wants_renewal
    while server_ms(client) <= before - 60_000:
        time.sleep(0.001)
    shared.add(b"page")
    assert client.zscore("dedupe:urls:2:{spider}:attached", shared.token) > before
    assert not shared.wants_renewal


def test_an_emptied_database_is_begun_anew(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    client.flushall()
    assert shared.add(b"other")
    # What was remembered as seen belonged to the old filter.
    assert shared.add(b"page")


def test_a_call_whose_answer_was_lost_is_answered_the_same_again(redis_url: str) -> None:
    with LossyLine(redis_url) as line:
        shared = SharedBloomFilter(
            connect(parse_store_url(line.url), 30.0), "spider", 100, 1e-6, cache_size=0
        )
        assert shared.add(b"first")
        line.lose_next_answer()
        assert shared.add_many([b"page", b"first", b"other"]) == [True, False, True]
        assert len(line.lost) == 1
        assert not shared.add(b"page")
        shared.forget([b"page"])
        line.lose_next_answer()
        assert shared.add(b"page")
        line.lose_next_answer()
        assert not shared.add(b"page")
        line.lose_next_answer()
        shared.forget([b"page"])
        assert len(line.lost) == 4
        assert [shared.add(b"page") for _ in range(2)] == [True, False]
        assert len(shared) == 3


def test_seen_is_remembered_within_bounds_and_new_never(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6, cache_size=3)
    shared.add_many(fingerprints(10))
    assert list(shared._seen) == fingerprints(10)[-3:]
    assert b"unknown" not in shared
    assert b"unknown" not in shared._seen


def add_range(url: str, results: Any, all_done: Any) -> None:
    with redis.Redis.from_url(url) as client:
        shared = SharedBloomFilter(client, "spider", 100, 1e-6)
        results.put([item for item in fingerprints(1500) if shared.add(item)])
        all_done.wait(240)  # If one ended before another attaches, the filter would be recreated.


def test_three_processes_at_once_get_each_fingerprint_once(redis_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    results, all_done = context.Queue(), context.Barrier(3)
    processes = [context.Process(target=add_range, args=(redis_url, results, all_done)) for _ in range(3)]
    for process in processes:
        process.start()
    got = Counter(item for _ in processes for item in results.get(timeout=240))
    for process in processes:
        process.join(240)
    assert set(got.values()) == {1}
    assert len(got) == 1500


def test_a_server_that_is_away_is_unavailable() -> None:
    shared = SharedBloomFilter(connect(parse_store_url("redis://127.0.0.1:1/0"), 0.2), "spider", 100, 1e-6)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        shared.add(b"page")


def test_what_is_forgotten_is_new_once_more_and_to_one_process_alone(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 100, 1e-6) for _ in range(2))
    one.add_many([b"a", b"b", b"c"])
    assert one.describe().forgotten == 0
    one.forget([b"a", b"b", b"a"])
    assert two.describe().forgotten == 2
    assert b"a" not in one
    assert b"a" not in two
    assert b"c" in two
    assert two.add_many([b"a", b"a", b"c"]) == [True, False, False]
    assert one.add_many([b"a", b"b", b"b"]) == [False, True, False]
    assert one.describe().forgotten == 0
    assert client.keys("*forgotten") == []
    assert len(one) == 3


def test_forgetting_what_was_never_seen_makes_it_new_no_more_than_once(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.forget([])
    shared.forget([b"page"])
    assert [shared.add(b"page") for _ in range(3)] == [True, False, False]
    assert len(shared) == 1


def test_what_another_process_remembers_as_seen_is_so_until_it_attaches_anew(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 100, 1e-6) for _ in range(2))
    one.add(b"page")
    two.add(b"page")
    one.forget([b"page"])
    assert not two.add(b"page")
    two.attach()
    assert two.add(b"page")


def test_the_forgotten_ones_go_with_the_filter(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    shared.forget([b"page"])
    assert shared.detach(delete=True)
    assert client.keys() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "has", "forget", "script flush", "flushall", "attach"]),
            st.integers(0, 2),
            st.lists(st.integers(0, 60), max_size=25),
        ),
        max_size=20,
    ),
    st.sampled_from([1e-9, 0.001]),
)
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
def test_three_clients_agree_with_a_plain_set(
    client: redis.Redis, steps: list[tuple[str, int, list[int]]], error_rate: float
) -> None:
    client.flushall()
    # So small that it grows twice, and at one in a thousand has layers of both kinds.
    clients = [SharedBloomFilter(client, "spider", 12, error_rate, cache_size=0) for _ in range(3)]
    seen: set[bytes] = set()
    forgotten: set[bytes] = set()
    wrong = 0
    for operation, number, numbers in steps:
        shared, items = clients[number], [b"%d" % n for n in numbers]
        if operation == "add":
            for item, is_new in zip(items, shared.add_many(items), strict=True):
                expected = item not in seen or item in forgotten
                # The one fault that a filter may have: "seen" of what is new.
                assert expected or not is_new
                wrong += expected and not is_new
                seen.add(item)
                forgotten.discard(item)
        elif operation == "forget":
            shared.forget(items)
            forgotten |= set(items)
        elif operation == "has":
            for item in items:
                expected = item in seen and item not in forgotten
                assert (item in shared) >= expected
                wrong += (item in shared) > expected
        elif operation == "attach":
            shared.attach()
        elif operation == "script flush":
            client.script_flush()
        else:
            client.flushall()
            seen, forgotten = set(), set()
    assert wrong <= (0 if error_rate < 1e-6 else 3)
    assert clients[0].describe().forgotten == len(forgotten)
    assert abs(len(clients[0]) - len(seen)) <= wrong
    if seen or forgotten:
        clients[0].attach()
        for shared in clients[1:]:
            shared.detach()
        assert clients[0].detach(delete=True)
    assert not client.keys("*bits*")


def test_a_batch_that_fills_several_layers_finds_every_place(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 1, 1e-6, cache_size=0)
    items = fingerprints(1000)
    assert shared.add_many(items + items) == [True] * 1000 + [False] * 1000
    assert shared._ask(b"has", items) == b"1" * 1000


def test_another_thread_may_forget_while_one_asks(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 10_000, 1e-6, cache_size=50)
    failed = fingerprints(300, "failed")
    shared.add_many(failed)

    def forget() -> None:
        for item in failed:
            shared.forget([item])
            shared.renew()

    thread = threading.Thread(target=forget)
    thread.start()
    items = fingerprints(1500)
    answers = [shared.add(item) for item in items]
    thread.join()
    assert all(answers)
    assert shared.describe().forgotten == 300
    assert all(shared.add_many(failed))


def head_of(client: redis.Redis) -> dict[bytes, bytes]:
    return client.hgetall("dedupe:urls:2:{spider}:meta")


def test_a_tool_opens_what_is_there_with_its_own_parameters_and_leaves_no_mark(client: redis.Redis) -> None:
    crawl = SharedBloomFilter(client, "spider", 300, 1e-4, fingerprinter="a.Maker")
    crawl.add_many([b"a", b"b"])
    crawl.detach()
    before = head_of(client)
    tool = SharedBloomFilter.existing(client, "spider")
    assert tool is not None
    assert (tool.capacity, tool.error_rate, tool.fingerprinter) == (300, 1e-4, "a.Maker")
    assert tool.last_description.seen == len(tool) == 2
    assert b"a" in tool
    assert b"c" not in tool
    tool.renew()
    assert not tool.detach(delete=True, cut=True)
    assert client.keys("*attached") == []
    assert head_of(client) == before
    with pytest.raises(RuntimeError, match="cannot be attached"):
        tool.attach()


def test_a_tool_adds_and_forgets_and_counts_as_no_process(client: redis.Redis) -> None:
    crawl = SharedBloomFilter(client, "spider", 300, 1e-6)
    crawl.add_many([b"a", b"b"])
    tool = SharedBloomFilter.existing(client, "spider")
    assert tool is not None
    assert tool.add_many([b"a", b"new"]) == [False, True]
    tool.forget([b"b"])
    assert client.zcard("dedupe:urls:2:{spider}:attached") == 1
    assert SharedBloomFilter(client, "spider", 300, 1e-6).attach().others == 1
    assert crawl.add_many([b"new", b"c"]) == [False, True]
    crawl.attach()
    assert crawl.add(b"b")


def test_a_tool_finds_no_filter_where_there_is_none(client: redis.Redis) -> None:
    assert SharedBloomFilter.existing(client, "spider") is None
    assert client.keys() == []


def test_a_tool_is_told_when_the_filter_was_begun_anew(client: redis.Redis) -> None:
    left(client)
    tool = SharedBloomFilter.existing(client, "spider")
    assert tool is not None
    SharedBloomFilter(client, "spider", 100, 1e-6).attach()
    with pytest.raises(StoreUnavailable, match="recreated meanwhile"):
        tool.add(b"page")
    client.flushall()
    with pytest.raises(StoreUnavailable, match="was deleted"):
        tool.forget([b"page"])
    assert client.keys() == []


def test_a_tool_refuses_what_it_cannot_read(client: redis.Redis) -> None:
    left(client)
    client.hset("dedupe:urls:2:{spider}:meta", "hash", "later")
    with pytest.raises(StoreRefused, match="its hash is later, but this version reads blake2b-32"):
        SharedBloomFilter.existing(client, "spider")
    client.set("dedupe:urls:2:{other}:meta", "text")
    with pytest.raises(StoreRefused, match="not written by scrapy-dedupe"):
        SharedBloomFilter.existing(client, "other")


def test_the_last_figures_are_known_while_the_server_is_away(redis_server: Any) -> None:
    shared = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    assert shared.last_description.seen == 0
    shared.add_many([b"a", b"b"])
    found = shared.describe()
    redis_server.stop()
    with pytest.raises(StoreUnavailable):
        shared.describe()
    assert shared.last_description == found
    assert found.seen == 2
