"""The crawl index when two processes do at once what shuts each other out, and when answers are lost.

The first part is for both stores, the second for Redis, where a call consists of several scripts.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from index_steps import Killed, before_script, crawl_with, import_of, kill, record, source
from redis.exceptions import ConnectionError as RedisConnectionError

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, TakenOver
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Source, UrlCapture, Waiting
from scrapy_dedupe.stores.redis_index_base import index_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
MANY = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3_000)]


def claimed(index: CrawlIndex, of: Source, lease_s: float = 60) -> Source:
    index.queue_sources([of])
    found = index.claim_source(lease_s)
    assert found is not None
    return found


def owners(index: CrawlIndex, *digests: str) -> list[str | None]:
    """Whose records another crawl is given."""
    return [found.crawl if found else None for found in index.find("reader", digests)]


@pytest.fixture
def other(store_url: str) -> Iterator[CrawlIndex]:
    """The index as another process has it open."""
    store = open_store(store_url)
    yield store.index
    store.close()


@pytest.fixture
def mine(redis_url: str) -> Iterator[Any]:
    store = open_store(redis_url)
    yield store.index
    store.close()


@pytest.fixture
def theirs(redis_url: str) -> Iterator[Any]:
    store = open_store(redis_url)
    yield store.index
    store.close()


def lose_answer(index: Any, script: str, between: Callable[[], object] = lambda: None) -> None:
    """Let the connection break after the server has run the next call of a script, before its answer comes."""
    run, has_lost = index._run, False

    def losing(name: str, *arguments: Any) -> Any:
        nonlocal has_lost
        if name == script and not has_lost:
            has_lost = True
            if index._scripts._connection is None:
                index._scripts._connect()
            connection = index._scripts._connection
            read = connection.read_response

            def read_response(*words: Any, **options: Any) -> Any:
                answer = read(*words, **options)
                connection.read_response = read
                between()
                raise RedisConnectionError(f"The answer {answer!r} was lost.")

            # The first call may be of a script that the server does not know, which is answered as it is.
            index._client.script_load(index_script(script).text)
            connection.read_response = read_response
        return run(name, *arguments)

    index._run = losing


# Both stores


def test_a_process_that_was_taken_over_loses_nothing_of_the_one_that_did(
    index: CrawlIndex, other: CrawlIndex
) -> None:
    first = claimed(index, source(), 0.01)
    index.begin_source(first, "stored")
    index.add_imported(first, [record(ONE)])
    second = None
    while second is None:
        second = other.claim_source(60)
    other.begin_source(second, "stored")
    with pytest.raises(TakenOver):
        index.add_imported(first, [record(TWO)])
    with pytest.raises(TakenOver):
        index.end_source(first, Counts(2))
    other.add_imported(second, [record(ONE), record(TWO)])
    other.end_source(second, Counts(2))
    assert owners(index, ONE, TWO) == ["a", "a"]
    assert index.counts == Counts(2)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_crawl_that_was_added_to_while_it_was_repaired_stays_as_it_is(
    index: CrawlIndex, other: CrawlIndex, has_ended: bool
) -> None:
    import_of(index, source("first.wacz"), ONE)
    index.start("a~repair", "stored")
    index.add("a~repair", [record(ONE, "a~repair")], Counts(1))
    added = source("second.wacz")
    if has_ended:
        import_of(other, added, TWO)
    else:
        other.begin_source(added, "stored")
        other.add_imported(added, [record(TWO)])
    with pytest.raises(CrawlStateError, match=r"was extended while it was repaired.* [Rr]epair it again"):
        index.replace("a", "a~repair")
    if not has_ended:
        other.end_source(added, Counts(1, 0, 0, 5_000))
    assert owners(index, ONE, TWO) == ["a", "a"]
    assert index.counts == Counts(2, 0, 0, 10_000)
    assert index.merged_faults() == 0
    index.cancel("a~repair")
    index.start("a~repair", "stored")
    index.add("a~repair", [record(ONE, "a~repair"), record(TWO, "a~repair")], Counts(2))
    index.replace("a", "a~repair")
    assert owners(index, ONE, TWO) == ["a", "a"]


def test_a_container_that_a_committed_crawl_is_given_is_done(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE)
    index.set_container("a", "a.wacz", "f" * 64, 5_000)
    assert index.done_sources(["a.wacz"]) == [True]
    assert index.queue_sources([source()]) == 0


def test_a_source_of_the_other_payload_mode_is_refused_by_its_name(index: CrawlIndex) -> None:
    crawl_with(index, "b", ONE)
    with pytest.raises(
        StoreRefused, match=r"The source a\.wacz .*decoded .*stored .*--payload stored"
    ) as found:
        index.begin_source(source(), "decoded")
    assert "DEDUPE_PAYLOAD" not in str(found.value)


# Redis


def test_an_end_after_a_cancel_is_refused(mine: Any, theirs: Any) -> None:
    mine.begin_source(source(), "stored")
    mine.add_imported(source(), [record(ONE)])
    with (
        before_script(mine, "index_source_end", lambda: theirs.cancel("a")),
        pytest.raises(CrawlStateError, match="was not begun"),
    ):
        mine.end_source(source(), Counts(1))
    with before_script(theirs, "index_source_drop", kill):
        mine.begin_source(source(), "stored")
        mine.add_imported(source(), [record(ONE)])
        with pytest.raises(Killed):
            theirs.cancel("a")
    # Nothing is unfinished of what is being forgotten.
    assert mine.unfinished_sources() == []
    with pytest.raises(CrawlStateError):
        mine.end_source(source(), Counts(1))
    theirs.cancel("a")
    assert [(info.id, info.state) for info in mine.crawls()] == [("a", "canceled")]
    assert (mine.counts, mine.done_sources(["a.wacz"])) == (Counts(), [False])
    assert mine.merged_faults() == 0


def test_a_commit_during_a_reset_is_refused(mine: Any, theirs: Any) -> None:
    mine.start("a", "stored")
    mine.add("a", [record(digest) for digest in MANY], Counts(len(MANY)))
    with (
        before_script(mine, "index_release", lambda: theirs.commit("a")),
        pytest.raises(CrawlStateError, match="is being reset"),
    ):
        mine.reset("a")
    theirs.reset("a")
    theirs.add("a", [record(ONE)], Counts(1))
    theirs.commit("a")
    assert owners(mine, MANY[0], ONE) == [None, "a"]
    assert mine.merged_faults() == 0


def test_a_reset_that_was_overtaken_takes_nothing_out(mine: Any, theirs: Any) -> None:
    mine.start("a", "stored")
    mine.add("a", [record(ONE)], Counts(1))

    def reset_and_add() -> None:
        theirs.reset("a")
        theirs.add("a", [record(TWO)], Counts(1))

    with before_script(mine, "index_release", reset_and_add):
        mine.reset("a")
    theirs.commit("a")
    assert owners(mine, ONE, TWO) == [None, "a"]
    assert mine.counts == Counts(1)


def test_a_cancel_that_was_overtaken_takes_nothing_out_of_the_next_crawl(mine: Any, theirs: Any) -> None:
    def cancel_and_crawl_again() -> None:
        theirs.cancel("a")
        crawl_with(theirs, "a", *MANY)

    mine.start("a", "stored", concurrent=True)
    mine.add("a", [record(digest) for digest in MANY], Counts(1))
    with before_script(mine, "index_release", cancel_and_crawl_again):
        mine.cancel("a")
    assert owners(mine, *MANY) == ["a"] * len(MANY)
    assert mine.merged_faults() == 0


def test_a_commit_does_not_end_the_one_that_came_after_a_start(mine: Any, theirs: Any) -> None:
    mine.start("a", "stored")
    mine.add("a", [record(digest) for digest in MANY], Counts(1))

    def start_and_begin_to_commit() -> None:
        theirs.start("a", "stored")
        theirs.add("a", [record(ONE), record(TWO)], Counts(1))
        with pytest.raises(Killed), before_script(theirs, "index_commit_batch", kill):
            theirs.commit("a")

    with (
        before_script(mine, "index_commit_end", start_and_begin_to_commit),
        pytest.raises(CrawlStateError, match="was started again"),
    ):
        mine.commit("a")
    assert owners(mine, MANY[0], ONE) == [None, None]
    mine.commit("a")
    assert owners(mine, MANY[0], ONE, TWO) == ["a", "a", "a"]
    assert mine.merged_faults() == 0


def test_what_is_dropped_during_a_replacement_stays_in_the_new_index_if_the_repair_has_it(
    mine: Any, theirs: Any
) -> None:
    import_of(mine, source("first.wacz"), ONE)
    mine.start("a~repair", "stored")
    mine.add("a~repair", [record(ONE, "a~repair"), record(TWO, "a~repair")], Counts(2))
    theirs.begin_source(source("second.wacz"), "stored")
    theirs.add_imported(source("second.wacz"), [record(TWO), record(THREE)])
    with pytest.raises(Killed), before_script(theirs, "index_source_end", kill):
        theirs.end_source(source("second.wacz"), Counts(2))
    with before_script(mine, "index_merged_swap", lambda: theirs.drop_source(source("second.wacz"))):
        mine.replace("a", "a~repair")
    assert owners(mine, ONE, TWO, THREE) == ["a", "a", None]
    assert mine.merged_faults() == 0


def test_what_ends_during_a_replacement_hides_nothing_of_another_crawl(mine: Any, theirs: Any) -> None:
    import_of(mine, source("first.wacz"), ONE)
    mine.start("a~repair", "stored")
    mine.add("a~repair", [record(ONE, "a~repair")], Counts(1))
    crawl_with(mine, "b", THREE)

    def import_third() -> None:
        import_of(theirs, source("third.wacz"), THREE)

    with (
        before_script(mine, "index_merged_batch", import_third),
        pytest.raises(CrawlStateError, match="was extended"),
    ):
        mine.replace("a", "a~repair")
    assert None not in owners(mine, ONE, THREE)
    assert mine.merged_faults() == 0


def test_a_replacement_whose_answer_was_lost_has_succeeded(mine: Any, client: redis.Redis) -> None:
    crawl_with(mine, "a", ONE)
    mine.start("b", "stored")
    mine.add("b", [record(ONE, "b"), record(TWO, "b")], Counts(2))
    lose_answer(mine, "index_merged_swap")
    mine.replace("a", "b")
    mine.replace("a", "b")
    assert [(info.id, info.counts.total_urls) for info in mine.crawls()] == [("a", 2)]
    assert not client.exists("dedupe:replacing", "dedupe:removing", "dedupe:rebuilding", "dedupe:rebuilt")


def test_an_addition_whose_answer_was_lost_counts_once_whoever_added_meanwhile(
    mine: Any, theirs: Any
) -> None:
    mine.start("a", "stored")
    lose_answer(mine, "index_add", lambda: theirs.add("a", [record(TWO)], Counts(1)))
    mine.add("a", [record(ONE)], Counts(1))
    assert mine.crawls()[0].counts == Counts(2)


def test_a_claim_whose_answer_was_lost_is_given_again(mine: Any) -> None:
    mine.queue_sources([source("first.wacz"), source("second.wacz")])
    lose_answer(mine, "index_queue")
    assert mine.claim_source(60) == source("first.wacz")
    assert mine.claim_source(60) == source("second.wacz")


def test_two_processes_that_end_one_source_lose_no_revisit_that_waits(mine: Any, theirs: Any) -> None:
    mine.begin_source(source(), "stored")
    mine.add_imported(source(), [record(ONE)])
    waiting = [Waiting(THREE, 5)]

    def end_in_part() -> None:
        with pytest.raises(Killed), before_script(theirs, "index_source_stage", kill):
            theirs.end_source(source(), Counts(1), (), waiting)

    with before_script(mine, "index_source_end", end_in_part):
        mine.end_source(source(), Counts(1), (), waiting)
    theirs.end_source(source(), Counts(1), (), waiting)
    assert [(info.id, info.waiting, info.counts) for info in mine.crawls()] == [("a", 1, Counts(1))]


def test_a_source_that_is_dropped_while_it_is_ending_leaves_no_key(
    mine: Any, theirs: Any, client: redis.Redis
) -> None:
    mine.begin_source(source(), "stored")
    mine.add_imported(source(), [record(ONE)], [UrlCapture("https://example.com/", ONE, "20260801120000")])
    with (
        before_script(mine, "index_source_stage", lambda: theirs.drop_source(source())),
        pytest.raises(CrawlStateError),
    ):
        mine.end_source(source(), Counts(1), (), [Waiting(THREE, 5)])
    assert client.keys() == [b"dedupe:index"]


@pytest.mark.parametrize("step", ["release", "forget"])
def test_a_reset_that_was_killed_is_ended_by_the_next_start(mine: Any, theirs: Any, step: str) -> None:
    mine.start("a", "stored", concurrent=True)
    mine.add("a", [record(digest) for digest in MANY], Counts(1))
    script = "index_release" if step == "release" else "index_note"
    run, seen = mine._run, []

    def dying(name: str, *arguments: Any) -> Any:
        seen.append(name)
        if name == script and (step == "release" or seen.count(name) == 2):
            raise Killed
        return run(name, *arguments)

    mine._run = dying
    with pytest.raises(Killed):
        mine.reset("a")
    with pytest.raises(CrawlStateError, match="is being reset"):
        theirs.commit("a")
    theirs.start("a", "stored", concurrent=True)
    assert theirs.find("a", MANY) == theirs.find("reader", MANY) == [None] * len(MANY)
    theirs.add("a", [record(ONE)], Counts(1))
    assert owners(theirs, ONE) == ["a"]
    assert theirs.merged_faults() == 0


@pytest.mark.parametrize(
    "key",
    ["src:q", "src:qset", "src:d", "pending:q", "dedupe:merging", "dedupe:waiters", "dedupe:entered:a.wacz"],
)
def test_an_import_into_keys_of_another_type_is_refused_untouched(
    mine: Any, client: redis.Redis, key: str
) -> None:
    client.set(key, "theirs")
    with pytest.raises(StoreRefused, match=f"The key {key} .* is a string"):
        mine.begin_source(source(), "stored")
    if key.startswith(("src", "pending")):
        for step in (lambda: mine.queue_sources([source()]), lambda: mine.claim_source(60)):
            with pytest.raises(StoreRefused, match=f"The key {key} .* is a string"):
                step()
    assert client.keys() == [key.encode()]


def test_a_script_that_takes_out_digests_asks_so_many_crawls_and_no_more(
    mine: Any, client: redis.Redis
) -> None:
    mine.start("a", "stored", concurrent=True)
    mine.add("a", [record(digest) for digest in MANY[:50]], Counts(1))
    pipeline = client.pipeline(transaction=False)
    for number in range(3_000):
        pipeline.sadd("allcrawls", f"c{number}")
    pipeline.execute()
    client.config_resetstat()
    mine.cancel("a")
    calls: Any = client.info("commandstats")
    asked, scripts = calls["cmdstat_hexists"]["calls"], calls["cmdstat_evalsha"]["calls"]
    assert asked >= 50 * 3_000
    # So each has asked 20,000 at most.
    assert scripts >= asked / 20_000
    assert client.hlen("alldupes") == 0
