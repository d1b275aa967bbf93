from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.urls.fallback import FallbackSharedFilter
from scrapy_dedupe.urls.shared import SharedBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable


class Watch:
    """A guard without pauses that counts."""

    open = False

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.returns = 0

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def worked(self, *, has_written: bool = False) -> None:
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
    shared = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    steady = FallbackSharedFilter(shared, watch, at_once)
    assert steady.add(b"before")
    redis_server.stop()
    assert [steady.add(item) for item in (b"before", b"during", b"during", b"before")] == [
        False,
        True,
        False,
        False,
    ]
    assert steady.is_offline
    assert len(watch.failures) == 1
    steady.tick()
    steady.tick()
    assert len(watch.failures) >= 2
    redis_server.start()
    for _ in range(3):
        steady.tick()
    assert not steady.is_offline
    assert watch.returns == 1
    other = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    assert not other.add(b"during")
    assert steady.add(b"after")


def test_many_are_looked_up_with_and_without_the_server(redis_server: Any) -> None:
    shared = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    other = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    filter_ = FallbackSharedFilter(shared, Watch(), at_once)
    filter_.add(b"own")
    other.add(b"another's")
    asked = [b"own", b"another's", b"new"]
    assert filter_.contains_many([]) == []
    assert filter_.contains_many(asked) == [item in filter_ for item in asked] == [True, True, False]
    redis_server.stop()
    assert filter_.contains_many(asked) == [item in filter_ for item in asked] == [True, False, False]
    assert filter_.is_offline


def test_a_busy_crawl_comes_back_to_the_server(redis_server: Any) -> None:
    waiting: list[Callable[[], None]] = []

    def later(function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            done = at_once(function, *args)
            if error := done.exception():
                future.set_exception(error)
            else:
                future.set_result(done.result())

        waiting.append(run)
        return future

    watch = Watch()
    steady = FallbackSharedFilter(
        SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6), watch, later
    )
    redis_server.stop()
    assert steady.add(b"during")
    redis_server.start()
    steady.tick()
    # While the worker tells the server, more is found.
    assert steady.add(b"meanwhile")
    waiting.pop()()
    assert steady.is_offline
    steady.tick()
    assert not steady.is_offline
    assert watch.returns == 1
    other = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    assert other.add_many([b"during", b"meanwhile", b"new"]) == [False, False, True]


def test_what_is_owed_is_paid_on_leaving(redis_server: Any) -> None:
    shared = SharedBloomFilter(connect(parse_store_url(redis_server.url), 30.0), "spider", 100, 1e-6)
    steady = FallbackSharedFilter(shared, Watch(), at_once)
    steady.add(b"before")
    redis_server.stop()
    steady.add(b"during")
    redis_server.start()
    born = shared.generation or ""
    steady.leave(delete=False)
    assert not SharedBloomFilter(
        connect(parse_store_url(redis_server.url)), "spider", 100, 1e-6, keep=born
    ).add(b"during")


def steady_filter(url: str, **options: Any) -> FallbackSharedFilter:
    shared = SharedBloomFilter(connect(parse_store_url(url), 30.0), "spider", 100, 1e-6)
    return FallbackSharedFilter(shared, Watch(), at_once, **options)


def tick_until_back(steady: FallbackSharedFilter) -> None:
    for _ in range(3):
        steady.tick()
    assert not steady.is_offline


def test_what_is_in_it_can_be_asked_while_the_server_is_away(redis_server: Any) -> None:
    steady = steady_filter(redis_server.url)
    steady.add(b"before")
    assert b"before" in steady
    assert b"other" not in steady
    redis_server.stop()
    assert b"before" in steady
    assert b"other" not in steady
    assert steady.is_offline
    assert b"before" in steady
    assert steady.add(b"other")
    assert b"other" in steady


def test_what_is_to_be_forgotten_is_told_on_leaving(redis_server: Any) -> None:
    steady, other = steady_filter(redis_server.url), steady_filter(redis_server.url)
    steady.add(b"a")
    other.add(b"b")
    steady.leave(delete=False, failed=[b"a"])
    assert other.add(b"a")
    redis_server.stop()
    other.add(b"c")
    with pytest.raises(StoreUnavailable):
        other.leave(delete=False, failed=[b"b"])
    redis_server.start()
    other.leave(delete=False, failed=[b"b"])
    third = SharedBloomFilter(connect(parse_store_url(redis_server.url)), "spider", 100, 1e-6, keep="*")
    assert third.add_many([b"a", b"b", b"c"]) == [False, True, False]


def test_the_figures_are_those_that_were_last_read(redis_server: Any) -> None:
    steady = steady_filter(redis_server.url, refresh_s=0)
    assert steady.shared.last_description.seen == 0
    steady.add(b"a")
    for _ in range(2):
        steady.tick()
    assert (steady.shared.last_description.seen, steady.shared.last_description.figures().capacity) == (
        1,
        100,
    )
    redis_server.stop()
    steady.add(b"b")
    steady.tick()
    assert steady.shared.last_description.seen == 1
    redis_server.start()
    steady.leave(delete=True)
    assert steady.shared.last_description.seen == 2


def test_the_figures_outlive_the_filter(redis_url: str) -> None:
    steady = steady_filter(redis_url)
    steady.add(b"a")
    steady.clear()
    assert steady.shared.last_description.seen == 1
    assert steady.add(b"a")


def test_a_start_is_taken_once_by_the_process_that_noted_it_and_once_by_another(redis_url: str) -> None:
    one, two, three = (steady_filter(redis_url) for _ in range(3))
    one.note_start(b"home")
    one.add(b"home")
    assert two.take_start(b"home")
    assert not three.take_start(b"home")
    assert [one.take_start(b"home") for _ in range(2)] == [True, False]
    two.note_start(b"home")
    assert two.take_start(b"home")
    assert not three.take_start(b"home")
    assert not three.take_start(b"other")


def test_a_start_that_was_noted_while_the_server_was_away_is_told_when_it_is_back(redis_server: Any) -> None:
    one, two = steady_filter(redis_server.url), steady_filter(redis_server.url)
    one.add(b"a")
    two.add(b"b")
    redis_server.stop()
    for item in (b"home", b"other"):
        one.note_start(item)
        one.add(item)
    assert [one.take_start(b"home") for _ in range(2)] == [True, False]
    redis_server.start()
    tick_until_back(one)
    assert [one.take_start(item) for item in (b"home", b"other")] == [False, True]
    one.note_start(b"third")
    assert [two.take_start(item) for item in (b"third", b"other")] == [True, False]


def test_starts_are_told_on_leaving_and_go_with_the_filter(redis_server: Any) -> None:
    one, two = steady_filter(redis_server.url), steady_filter(redis_server.url)
    one.add(b"a")
    two.add(b"b")
    redis_server.stop()
    one.note_start(b"home")
    one.add(b"home")
    redis_server.start()
    one.leave(delete=False)
    assert two.take_start(b"home")
    two.note_start(b"home")
    two.leave(delete=True)
    assert connect(parse_store_url(redis_server.url)).keys("*") == []


def test_what_was_asked_stays_seen_when_the_server_is_emptied(redis_url: str) -> None:
    one, scheduled = steady_filter(redis_url), steady_filter(redis_url, survives_loss=False)
    client = connect(parse_store_url(redis_url))
    for steady in (one, scheduled):
        steady.shared._cache_size = 0
        steady.add(b"a")
    client.flushall()
    assert [one.add(item) for item in (b"a", b"new")] == [False, True]
    assert b"a" in one
    assert (one.shared.times_lost, scheduled.shared.times_lost) == (1, 0)
    # Whose queue is lost too.
    client.flushall()
    assert [scheduled.add(b"a") for _ in range(2)] == [True, False]
    # One that is forgotten after that is new once more.
    one.shared.forget([b"a"])
    assert [one.add(b"a") for _ in range(2)] == [True, False]
    assert one.shared.times_lost == 2


def test_a_loss_that_only_the_figures_show_is_counted_once(redis_url: str) -> None:
    steady = steady_filter(redis_url)
    steady.add(b"a")
    connect(parse_store_url(redis_url)).flushall()
    for _ in range(2):
        assert steady.shared.describe().seen == 0
    assert not steady.add(b"a")
    assert steady.shared.times_lost == 1
