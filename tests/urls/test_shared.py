from __future__ import annotations

import hashlib
import math
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
import redis

from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.urls.bloom import layer_geometry, layer_share
from scrapy_dedupe.urls.shared import SharedBloomFilter, words
from scrapy_dedupe.urls.standin import SteadySharedFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    assert shared.add_many([]) == []


def test_it_grows_with_all_processes_attached(client: redis.Redis) -> None:
    one, two = (SharedBloomFilter(client, "spider", 50, 1e-6, cache_size=1) for _ in range(2))
    items = fingerprints(2000)
    assert all(one.add_many(items[:40]))
    # A batch larger than several layers, from a process that has not seen them grow.
    assert two.add_many(items) == [False] * 40 + [True] * 1960
    assert not any(one.add_many(items))
    assert [layer.capacity for layer in one.describe()] == [50, 100, 200, 400, 800, 1600]
    assert sum(layer.count for layer in one.describe()) == len(one) == 2000
    assert one.layers == 6
    assert one.capacity == 50


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
        wrong = sum(shared._ask("has", others))
        assert wrong <= error_rate * len(others) + 4 * math.sqrt(error_rate * len(others))
        assert shared.estimated_error <= error_rate
        expected = shared.estimated_error * len(others)
        assert abs(wrong - expected) <= 5 * math.sqrt(expected) + 0.15 * expected + 5
    assert abs(added - len(shared) - shared.expected_lost) <= 5 * math.sqrt(shared.expected_lost) + 2


def test_a_layer_is_as_large_as_that_of_the_local_filter(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100_000, 1e-6)
    shared.add(b"page")
    local = layer_geometry(100_000, layer_share(1e-6, 0))
    assert shared.size_bytes == pytest.approx(local.size_bytes, rel=0.002)
    assert shared.fill_ratio > 0


def test_bits_are_spread_over_shards_of_at_most_16_mib(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 20_000_000, 1e-6)
    items = fingerprints(60)
    assert all(shared.add_many(items))
    layer = shared.describe()[0]
    assert layer.shards == 5
    keys = [key for key in client.scan_iter() if b":bits:" in key]
    assert len(keys) == 5
    assert all(client.strlen(key) <= 16 * 2**20 * 1.01 for key in keys)
    shared._seen.clear()
    assert not any(shared.add_many(items))
    assert layer.error_at(20_000_000) < 0.7e-6


def test_the_keys_share_a_hash_tag_and_a_version(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    names = sorted(key.decode() for key in client.scan_iter())
    assert names == [f"dedupe:urls:1:{{spider}}:{name}" for name in ("attached", "bits:0:0", "calls", "meta")]
    head = client.hgetall("dedupe:urls:1:{spider}:meta")
    head.pop(b"born")
    assert head == {
        b"version": b"1",
        b"hash": b"blake2b-48",
        b"fingerprinter": b"",
        b"capacity": b"100",
        b"error_rate": b"1e-06",
        b"layers": b"1",
        b"layer:0": b"100 20 149 1",
        b"count:0": b"1",
    }


def test_the_positions_of_a_fingerprint(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    stored = client.get("dedupe:urls:1:{spider}:bits:0:0")
    bits = {8 * byte + bit for byte, value in enumerate(stored) for bit in range(8) if value & (0x80 >> bit)}
    data = words(b"page", 21)
    numbers = [int.from_bytes(data[i : i + 6], "big") for i in range(0, len(data), 6)]
    assert bits == {i * 149 + number % 149 for i, number in enumerate(numbers[1:])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error_rate": 0.01}, r"the error rate .*it has 1e-06, this process has 0\.01"),
        (
            {"fingerprinter": "b.Maker"},
            r"REQUEST_FINGERPRINTER_CLASS.*it has a\.Maker, this process has b\.Maker",
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
    assert client.zcard("dedupe:urls:1:{spider}:attached") == 1


def test_another_hash_version_is_refused(client: redis.Redis) -> None:
    SharedBloomFilter(client, "spider", 100, 1e-6).attach()
    client.hset("dedupe:urls:1:{spider}:meta", "hash", "later")
    with pytest.raises(StoreRefused, match="it has later, this process has blake2b-48"):
        SharedBloomFilter(client, "spider", 100, 1e-6).add(b"page")


def test_another_capacity_is_noted_and_the_store_decides(client: redis.Redis) -> None:
    assert SharedBloomFilter(client, "spider", 100, 1e-6).attach().note is None
    note = SharedBloomFilter(client, "spider", 5000, 1e-6).attach().note
    assert note is not None
    assert "100 fingerprints, this process asks for 5,000" in note


def test_a_key_of_somebody_else_is_refused(client: redis.Redis) -> None:
    client.set("dedupe:urls:1:{spider}:meta", "a string")
    with pytest.raises(StoreRefused, match="not ours"):
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
    born = one.born
    assert born is not None
    assert not one.detach(**options)
    assert one.born is None
    return born


def test_a_filter_that_nobody_uses_is_begun_anew(client: redis.Redis) -> None:
    born = left(client)
    two = SharedBloomFilter(client, "spider", 100, 1e-6)
    found = two.attach()
    assert (found.fingerprints, found.others, found.discarded, found.was_cut) == (0, 0, 1, False)
    assert two.born != born
    assert not [key for key in client.scan_iter() if b":bits:" in key]
    assert two.add(b"page")


def test_every_layer_and_shard_goes_with_a_filter_that_is_begun_anew(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 50, 1e-6)
    one.add_many(fingerprints(400))
    one.detach()
    assert SharedBloomFilter(client, "spider", 50, 1e-6).attach().discarded == 400
    assert sorted(client.keys()) == [b"dedupe:urls:1:{spider}:attached", b"dedupe:urls:1:{spider}:meta"]


def test_the_job_that_used_a_filter_goes_on_with_it(client: redis.Redis) -> None:
    two = SharedBloomFilter(client, "spider", 100, 1e-6, keep=left(client))
    found = two.attach()
    assert (found.fingerprints, found.discarded, found.was_cut, found.is_another) == (1, 0, False, False)
    assert not two.add(b"page")


def test_another_job_begins_anew_and_the_first_one_is_told(client: redis.Redis) -> None:
    first = left(client)
    second = left(client)
    assert first != second
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=first).attach()
    assert (found.discarded, found.is_another) == (1, True)
    assert any("DEDUPE_URL_KEY" in sentence for sentence in found.warnings("spider"))


def test_a_job_that_was_cut_begins_anew_unless_its_queue_is_in_redis(client: redis.Redis) -> None:
    born = left(client, cut=True)
    kept = SharedBloomFilter(client, "spider", 100, 1e-6, keep="*")
    assert kept.attach().discarded == 0
    assert not kept.add(b"page")
    kept.detach(cut=True)
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=born).attach()
    assert (found.discarded, found.was_cut) == (1, True)
    assert ["was cut" in sentence for sentence in found.warnings("spider")] == [True]
    assert not client.hexists("dedupe:urls:1:{spider}:meta", "cut")


def test_who_attaches_to_a_filter_in_use_joins_whatever_it_may_keep(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6)
    one.add(b"page")
    for keep in ("", "*", "another"):
        two = SharedBloomFilter(client, "spider", 100, 1e-6, keep=keep)
        found = two.attach()
        assert (found.fingerprints, found.others, found.discarded) == (1, 1, 0)
        assert "1 fingerprints and is in use by 1 other process:" in next(found.notes("spider"))
        assert not two.add(b"page")
        two.detach()


def test_an_attach_that_is_sent_twice_keeps_what_the_first_one_began(client: redis.Redis) -> None:
    left(client)
    two = SharedBloomFilter(client, "spider", 100, 1e-6)
    sent: list[list[Any]] = []
    script = two._script

    def twice(keys: list[str], args: list[Any]) -> Any:
        sent.append(args)
        script(keys=keys, args=args)
        return script(keys=keys, args=args)

    two._script = twice  # type: ignore[assignment]
    two.attach()
    assert [args[0] for args in sent] == ["attach"]
    assert two.born is not None
    assert client.hget("dedupe:urls:1:{spider}:meta", "born") == two.born.encode()
    assert two.add(b"page")


ATTACHED = """
import sys, time
import redis
from scrapy_dedupe.urls.shared import SharedBloomFilter
shared = SharedBloomFilter(redis.Redis.from_url(sys.argv[1]), "spider", 100, 1e-6)
shared.add(b"page")
print(shared.born, flush=True)
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
    assert "ended without leaving it" in next(found.warnings("spider"))
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
    born = elsewhere.born or ""
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=born, gone=["elsewhere/1/a"]).attach()
    assert (found.others, found.discarded, found.was_cut) == (0, 1, True)


def lease_over(client: redis.Redis) -> None:
    """Wait until every lease has run out."""
    scores = client.zrange("dedupe:urls:1:{spider}:attached", 0, -1, withscores=True)
    while time.time() * 1000 <= max(score for _, score in scores):
        time.sleep(0.01)


def test_a_process_whose_lease_ran_out_was_cut(client: redis.Redis) -> None:
    crashed = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    crashed.add(b"page")
    lease_over(client)
    found = SharedBloomFilter(client, "spider", 100, 1e-6, keep=crashed.born or "").attach()
    assert (found.discarded, found.was_cut) == (1, True)


def test_a_process_that_returns_after_its_lease_goes_on_with_its_filter(client: redis.Redis) -> None:
    one = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    one.add(b"page")
    born = one.born
    lease_over(client)
    found = one.attach()
    assert (found.fingerprints, found.discarded, found.was_cut, one.born) == (1, 0, False, born)
    one.detach()
    assert not client.hexists("dedupe:urls:1:{spider}:meta", "cut")


def test_a_process_that_crashed_keeps_the_filter_no_longer_than_its_lease(client: redis.Redis) -> None:
    crashed = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.05)
    crashed.add(b"page")
    other = SharedBloomFilter(client, "spider", 100, 1e-6)
    other.attach()
    crashed_at = client.zscore("dedupe:urls:1:{spider}:attached", crashed.token)
    while time.time() * 1000 <= crashed_at:
        time.sleep(0.01)
    assert other.detach(delete=True)


def test_calls_renew_the_lease(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6, lease_s=0.03)
    shared.attach()
    before = client.zscore("dedupe:urls:1:{spider}:attached", shared.token)
    while not shared.wants_renewal:
        time.sleep(0.005)
    shared.add(b"page")
    assert client.zscore("dedupe:urls:1:{spider}:attached", shared.token) > before
    assert not shared.wants_renewal


def test_an_emptied_database_is_begun_anew(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    shared.add(b"page")
    client.flushall()
    assert shared.add(b"other")
    # What was remembered as seen belonged to the old filter.
    assert shared.add(b"page")


def test_a_call_that_is_sent_twice_is_answered_twice_the_same(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6)
    assert shared.add(b"page")
    shared._calls -= 1
    assert shared._ask("add", [b"page"]) == [True]
    assert shared._ask("add", [b"page"]) == [False]


def test_seen_is_remembered_within_bounds_and_new_never(client: redis.Redis) -> None:
    shared = SharedBloomFilter(client, "spider", 100, 1e-6, cache_size=3)
    shared.add_many(fingerprints(10))
    assert list(shared._seen) == fingerprints(10)[-3:]
    assert b"unknown" not in shared
    assert b"unknown" not in shared._seen


def add_range(url: str, results: Any) -> None:
    with redis.Redis.from_url(url) as client:
        shared = SharedBloomFilter(client, "spider", 100, 1e-6)
        items = fingerprints(1500)
        results.put([item for item in items if shared.add(item)])


def test_three_processes_at_once_get_each_fingerprint_once(redis_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=add_range, args=(redis_url, results)) for _ in range(3)]
    for process in processes:
        process.start()
    got = Counter(item for _ in processes for item in results.get(timeout=60))
    for process in processes:
        process.join(30)
    assert set(got.values()) == {1}
    assert len(got) == 1500


def test_a_server_that_is_away_is_unavailable() -> None:
    shared = SharedBloomFilter(connect("redis://127.0.0.1:1/0", 0.2), "spider", 100, 1e-6)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        shared.add(b"page")


class Watch:
    """A guard without pauses that counts."""

    open = False

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.returns = 0

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def worked(self) -> None:
        self.returns += 1


def at_once(function: Callable[..., Any], *args: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
    return future


def test_while_the_server_is_away_links_are_not_queued_again_and_it_is_told_later(redis_server: Any) -> None:
    watch = Watch()
    shared = SharedBloomFilter(connect(redis_server.url, 1.0), "spider", 100, 1e-6)
    steady = SteadySharedFilter(shared, watch, at_once)
    assert steady.add(b"before")
    redis_server.stop()
    assert [steady.add(item) for item in (b"before", b"during", b"during", b"before")] == [
        False,
        True,
        False,
        False,
    ]
    assert steady.is_away
    assert len(watch.failures) == 1
    steady.tick()
    steady.tick()
    assert len(watch.failures) >= 2
    redis_server.start()
    for _ in range(3):
        steady.tick()
    assert not steady.is_away
    assert watch.returns == 1
    other = SharedBloomFilter(connect(redis_server.url, 1.0), "spider", 100, 1e-6)
    assert not other.add(b"during")
    assert steady.add(b"after")


def test_what_is_owed_is_paid_on_leaving(redis_server: Any) -> None:
    shared = SharedBloomFilter(connect(redis_server.url, 1.0), "spider", 100, 1e-6)
    steady = SteadySharedFilter(shared, Watch(), at_once)
    steady.add(b"before")
    redis_server.stop()
    steady.add(b"during")
    redis_server.start()
    born = shared.born or ""
    steady.leave(delete=False)
    assert not SharedBloomFilter(connect(redis_server.url), "spider", 100, 1e-6, keep=born).add(b"during")
