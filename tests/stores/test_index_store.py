"""The contract of the crawl index, on both stores."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sampling import examples

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.stores.index_values import (
    digest_key,
    packed_digest,
    packed_record_id,
    read_entry,
    unpacked_digest,
    unpacked_record_id,
)

if TYPE_CHECKING:
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)


def numbered(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def original(digest: str = ONE, crawl: str = "a", **changes: Any) -> Original:
    usual = Original(
        digest=digest,
        crawl=crawl,
        date="20260801120000123",
        url="https://example.com/page",
        size=1234,
        record_id=f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest + crawl)}>",
        file=f"{crawl}-00000.warc.gz",
        offset=4321,
    )
    return replace(usual, **changes)


def crawl_with(index: CrawlIndex, crawl: str, *digests: str, counts: Counts | None = None) -> list[Original]:
    index.start(crawl, "stored")
    originals = [original(digest, crawl) for digest in digests]
    index.add(crawl, originals, counts or Counts())
    return originals


# Finding


def test_a_crawl_finds_its_own_records_before_it_is_committed(index: CrawlIndex) -> None:
    (added,) = crawl_with(index, "a", ONE)
    assert index.find("a", [ONE, TWO]) == [added, None]


def test_other_crawls_find_a_record_after_the_commit_alone(index: CrawlIndex) -> None:
    (added,) = crawl_with(index, "a", ONE)
    index.start("b", "stored")
    assert index.find("b", [ONE]) == [None]
    index.commit("a")
    assert index.find("b", [ONE]) == [added]


def test_the_own_record_comes_before_that_of_a_committed_crawl(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE)
    index.commit("a")
    (own,) = crawl_with(index, "b", ONE)
    assert index.find("b", [ONE]) == [own]


def test_the_crawl_that_was_committed_first_owns_a_payload(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE)
    (first,) = crawl_with(index, "b", ONE)
    index.commit("b")
    index.commit("a")
    assert index.find("c", [ONE]) == [first]


def test_the_first_record_of_a_payload_stays(index: CrawlIndex) -> None:
    (first,) = crawl_with(index, "a", ONE)
    second = original(url="https://example.com/later", offset=9, record_id=f"<urn:uuid:{uuid.uuid4()}>")
    index.add("a", [second, second], Counts())
    assert index.find("a", [ONE]) == [first]


def test_many_digests_are_answered_in_their_order(index: CrawlIndex) -> None:
    digests = [numbered(number) for number in range(2_500)]
    added = crawl_with(index, "a", *digests[::2])
    index.commit("a")
    index.start("b", "stored")
    found = index.find("b", digests)
    assert found[::2] == added
    assert found[1::2] == [None] * 1_250
    assert index.find("b", []) == []


def test_digests_of_other_forms_are_kept_apart(index: CrawlIndex) -> None:
    digests = ["3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "f" * 32, "0" * 128]
    added = crawl_with(index, "a", *digests)
    assert index.find("a", digests) == added


@pytest.mark.parametrize(
    "place",
    [
        {"record_id": None, "file": None, "offset": None},
        {"record_id": "urn:example:1", "file": None, "offset": None},
        {"record_id": "<urn:uuid:ABCDEF00-0000-4000-8000-000000000000>", "file": "x.warc", "offset": 0},
        {"record_id": None, "file": "naïve\nname.warc", "offset": 2**39},
        {"url": "https://example.com/ü?q=%20", "date": "20260801120000"},
    ],
)
def test_a_record_comes_back_as_it_was_added(index: CrawlIndex, place: dict[str, Any]) -> None:
    index.start("a", "stored")
    added = original(**place)
    index.add("a", [added], Counts())
    assert index.find("a", [ONE]) == [added]


# States


def test_a_committed_id_cannot_be_crawled_again(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE)
    index.commit("a")
    with pytest.raises(CrawlStateError, match=r"The crawl a is committed .* cannot be crawled again"):
        index.start("a", "stored")


@pytest.mark.parametrize("action", ["add", "add_file", "set_counts", "mark_incomplete", "reset"])
def test_a_committed_crawl_does_not_change(index: CrawlIndex, action: str) -> None:
    (added,) = crawl_with(index, "a", ONE)
    index.commit("a")
    before = index.crawls()
    arguments: dict[str, tuple[Any, ...]] = {
        "add": ([original(TWO)], Counts(1)),
        "add_file": ("z.warc.gz",),
        "set_counts": (Counts(9),),
        "mark_incomplete": (True,),
        "reset": (),
    }
    with pytest.raises(CrawlStateError):
        getattr(index, action)("a", *arguments[action])
    assert index.crawls() == before
    assert index.find("b", [ONE, TWO]) == [added, None]


def test_commit_and_cancel_can_be_repeated(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE, counts=Counts(5, 1, 100, 1_000))
    crawl_with(index, "b", TWO, counts=Counts(7))
    for _ in range(3):
        index.commit("a", {"pages": 5})
        index.cancel("b")
    assert index.counts == Counts(5, 1, 100, 1_000)
    assert {info.id: info.state for info in index.crawls()} == {"a": "committed", "b": "canceled"}


def test_what_the_states_do_not_allow_is_refused(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE)
    index.commit("a")
    crawl_with(index, "b", TWO)
    index.cancel("b")
    for action, crawl in ((index.cancel, "a"), (index.commit, "b"), (index.commit, "x"), (index.cancel, "x")):
        with pytest.raises(CrawlStateError, match=f"The crawl {crawl} "):
            action(crawl)
    with pytest.raises(CrawlStateError):
        index.add("x", [original()], Counts())


def test_a_canceled_crawl_leaves_nothing_and_can_be_started_again(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE, counts=Counts(5))
    index.add_file("a", "other.warc.gz")
    index.mark_incomplete("a", True)
    index.cancel("a")
    assert index.find("a", [ONE]) == [None]
    (info,) = index.crawls()
    assert (info.state, info.counts, info.files, info.incomplete) == ("canceled", Counts(), (), False)
    (again,) = crawl_with(index, "a", TWO)
    assert index.find("a", [ONE, TWO]) == [None, again]
    assert [info.state for info in index.crawls()] == ["uncommitted"]


def test_a_started_crawl_goes_on_after_a_restart(index: CrawlIndex) -> None:
    (added,) = crawl_with(index, "a", ONE, counts=Counts(1))
    index.start("a", "stored")
    index.add("a", [], Counts(2))
    assert index.find("a", [ONE]) == [added]
    assert [info.counts for info in index.crawls()] == [Counts(3)]


def test_reset_forgets_records_and_counts_but_not_the_files(index: CrawlIndex) -> None:
    crawl_with(index, "a", ONE, TWO, counts=Counts(2))
    index.reset("a")
    assert index.find("a", [ONE, TWO]) == [None, None]
    (info,) = index.crawls()
    assert (info.counts, info.files) == (Counts(), ("a-00000.warc.gz",))
    index.add("a", [original(TWO)], Counts(1))
    index.commit("a")
    assert index.find("b", [ONE, TWO]) == [None, original(TWO)]


def test_the_index_refuses_the_other_payload_mode(index: CrawlIndex) -> None:
    index.start("a", "stored")
    with pytest.raises(StoreRefused, match='DEDUPE_PAYLOAD = "stored"'):
        index.start("b", "decoded")
    assert [info.id for info in index.crawls()] == ["a"]


# What is told of a crawl


def test_crawls_tell_all_that_is_known(index: CrawlIndex) -> None:
    index.start("a", "decoded")
    index.add_file("a", "a-1.warc.gz")
    index.add_file("a", "a-0.warc.gz")
    index.add_file("a", "a-1.warc.gz")
    index.set_counts("a", Counts(4, 3, 2, 1))
    index.mark_incomplete("a", True)
    (before,) = index.crawls()
    assert (before.state, before.incomplete, before.committed) == ("uncommitted", True, None)
    index.mark_incomplete("a", False)
    index.commit("a", {"pages": 3, "seconds": 0.5, "reason": "finished", "none": None})
    (info,) = index.crawls()
    assert (info.id, info.state, info.payload) == ("a", "committed", "decoded")
    assert info.files == ("a-1.warc.gz", "a-0.warc.gz")
    assert info.counts == Counts(4, 3, 2, 1)
    assert info.stats == {"pages": 3, "seconds": 0.5, "reason": "finished", "none": None}
    assert info.started is not None
    assert info.committed is not None
    assert info.started <= info.committed
    assert info.committed.endswith("Z")
    assert not info.incomplete


def test_totals_are_those_of_committed_crawls(index: CrawlIndex) -> None:
    for crawl, counts in (("a", Counts(1, 2, 3, 4)), ("b", Counts(10, 20, 30, 40)), ("c", Counts(100))):
        crawl_with(index, crawl, counts=counts)
    assert index.counts == Counts()
    index.commit("a")
    index.commit("b")
    assert index.counts == Counts(11, 22, 33, 44)


# Random lives against a model

CRAWLS = st.sampled_from(["a", "b", "c"])
DIGESTS = st.sampled_from([ONE, TWO, THREE])


class Lives(RuleBasedStateMachine):
    """Crawls in any order of steps. ``kills`` says whether a client may die in the middle of a step."""

    url = ""
    kills = False

    @initialize()
    def begin(self) -> None:
        self.store = open_store(self.url)
        self.index = self.store.index
        self.forget()
        self.states: dict[str, str] = {}
        self.records: dict[str, dict[str, Original]] = {}
        self.counts: dict[str, Counts] = {}
        self.order: list[str] = []
        self.serial = 0

    def forget(self) -> None:
        if self.url.startswith("redis"):
            with redis.Redis.from_url(self.url) as client:
                client.flushall()
        else:
            connection = self.index._connection  # type: ignore[attr-defined]
            for table in ("crawl", "crawl_file", "crawl_url", "crawl_waiting", "original", "index_mark"):
                connection.execute(f"DELETE FROM {table}")

    def step(self, action: str, crawl: str, is_allowed: bool, *arguments: Any) -> bool:
        try:
            getattr(self.index, action)(crawl, *arguments)
        except CrawlStateError:
            assert not is_allowed, f"{action} {crawl} was refused"
            return False
        assert is_allowed, f"{action} {crawl} was not refused"
        return True

    @rule(crawl=CRAWLS)
    def start(self, crawl: str) -> None:
        if self.step("start", crawl, self.states.get(crawl) != "committed", "stored"):
            if self.states.get(crawl) != "uncommitted":
                self.records[crawl], self.counts[crawl] = {}, Counts()
            self.states[crawl] = "uncommitted"

    @rule(crawl=CRAWLS, digest=DIGESTS, total=st.integers(0, 3))
    def add(self, crawl: str, digest: str, total: int) -> None:
        self.serial += 1
        added = original(digest, crawl, offset=self.serial)
        counts = Counts(total, 0, self.serial, 1)
        if self.step("add", crawl, self.states.get(crawl) == "uncommitted", [added], counts):
            self.records[crawl].setdefault(digest, added)
            self.counts[crawl] += counts

    @rule(crawl=CRAWLS)
    def commit(self, crawl: str) -> None:
        if self.step("commit", crawl, self.states.get(crawl) in ("uncommitted", "committed")):
            self.states[crawl] = "committed"
            if crawl not in self.order:
                self.order.append(crawl)

    @rule(crawl=CRAWLS)
    def cancel(self, crawl: str) -> None:
        if self.step("cancel", crawl, self.states.get(crawl) in ("uncommitted", "canceled")):
            self.states[crawl] = "canceled"
            self.records[crawl], self.counts[crawl] = {}, Counts()

    @rule(crawl=CRAWLS)
    def reset(self, crawl: str) -> None:
        if self.step("reset", crawl, self.states.get(crawl) == "uncommitted"):
            self.records[crawl], self.counts[crawl] = {}, Counts()

    @invariant()
    def finds_what_the_model_knows(self) -> None:
        for crawl in ("a", "b", "c", "other"):
            for digest, found in zip(
                (ONE, TWO, THREE), self.index.find(crawl, [ONE, TWO, THREE]), strict=True
            ):
                own = self.records.get(crawl, {}).get(digest)
                committed = [
                    self.records[name][digest] for name in self.order if digest in self.records[name]
                ]
                if own is not None:
                    assert found == own
                elif committed and self.kills:
                    assert found in committed
                else:
                    assert found == (committed[0] if committed else None)

    @invariant()
    def counts_what_the_model_counts(self) -> None:
        infos = {info.id: info for info in self.index.crawls()}
        assert {crawl: info.state for crawl, info in infos.items()} == self.states
        assert {crawl: info.counts for crawl, info in infos.items()} == self.counts
        assert self.index.counts == sum((self.counts[crawl] for crawl in self.order), Counts())

    def teardown(self) -> None:
        self.store.close()


class LivesWithKills(Lives):
    """The same on Redis, with clients that die after a number of calls; what was cut off is done again later."""

    kills = True

    def die_in(self, calls: int, action: str, crawl: str, allowed: tuple[str, ...]) -> None:
        if self.states.get(crawl) not in allowed:
            return
        run = self.index._run  # type: ignore[attr-defined]
        left = calls

        def dying(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise StoreUnavailable("killed")
            left -= 1
            return run(*arguments)

        self.index._run = dying  # type: ignore[attr-defined]
        try:
            getattr(self.index, action)(crawl)
        except StoreUnavailable:
            pass
        finally:
            self.index._run = run  # type: ignore[attr-defined]
        self.after_death(action, crawl)

    def after_death(self, action: str, crawl: str) -> None:
        state = {info.id: info.state for info in self.index.crawls()}[crawl]
        if action == "commit" and state == "committed":
            self.commit(crawl)
        elif action == "commit":
            # It may be resumed, canceled, or the crawl may go on.
            choice = self.serial % 3
            self.serial += 1
            if choice == 0:
                self.finds_what_the_model_knows()
                self.commit(crawl)
            elif choice == 1:
                self.start(crawl)
        elif state == "canceled":
            self.cancel(crawl)

    @rule(crawl=CRAWLS, calls=st.integers(0, 3))
    def die_in_commit(self, crawl: str, calls: int) -> None:
        self.die_in(calls, "commit", crawl, ("uncommitted",))

    @rule(crawl=CRAWLS, calls=st.integers(0, 3))
    def die_in_cancel(self, crawl: str, calls: int) -> None:
        self.die_in(calls, "cancel", crawl, ("uncommitted",))

    @rule(crawl=CRAWLS, digest=DIGESTS, total=st.integers(0, 3))
    def add(self, crawl: str, digest: str, total: int) -> None:
        if self.states.get(crawl) == "uncommitted":
            # A commit that was cut off has to be taken back by a start before the crawl goes on.
            self.start(crawl)
        self.serial += 1
        added, counts = original(digest, crawl, offset=self.serial), Counts(total, 0, self.serial, 1)
        if self.step("add", crawl, self.states.get(crawl) == "uncommitted", [added], counts):
            self.records[crawl].setdefault(digest, added)
            self.counts[crawl] += counts


def lives(machine: type[Lives], url: str, examples: int) -> None:
    here = type(machine.__name__, (machine,), {"url": url})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.hypothesis
def test_any_lives_of_several_crawls_agree_with_a_model(store_url: str) -> None:
    lives(Lives, store_url, examples(20))


@pytest.mark.hypothesis
def test_any_lives_with_kills_between_the_steps_agree_with_a_model(redis_url: str) -> None:
    lives(LivesWithKills, redis_url, examples(40))


@pytest.mark.parametrize("calls", range(8))
def test_a_commit_that_is_killed_at_any_step_is_finished_by_the_next_one(
    redis_index: Any, client: redis.Redis, calls: int
) -> None:
    digests = [numbered(number) for number in range(3_000)]
    added = crawl_with(redis_index, "a", *digests, counts=Counts(3_000, 1, 2, 3))
    run, left = redis_index._run, calls

    def dying(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("killed")
        return run(*arguments)

    redis_index._run = dying
    try:
        redis_index.commit("a", {"pages": 1})
    except StoreUnavailable:
        assert client.scard("allcrawls") == 0 or client.hlen("alldupes") == 3_000
    redis_index._run = run
    redis_index.commit("a")
    assert redis_index.find("b", digests) == added
    assert redis_index.counts == Counts(3_000, 1, 2, 3)
    assert redis_index.crawls()[0].stats == ({"pages": 1} if calls else None)
    assert client.exists("dedupe:committing", "uncommittedcrawls") == 0


def test_the_digests_of_a_commit_that_was_cut_off_go_to_another_crawl_when_it_is_canceled(
    redis_index: Any, client: redis.Redis
) -> None:
    crawl_with(redis_index, "a", ONE, TWO)
    (kept,) = crawl_with(redis_index, "b", ONE)
    client.hset("alldupes", mapping={ONE: "a", TWO: "a"})
    redis_index.commit("b")
    assert redis_index.find("c", [ONE, TWO]) == [kept, None]
    redis_index.cancel("a")
    assert redis_index.find("c", [ONE, TWO]) == [kept, None]
    assert client.hgetall("alldupes") == {ONE.encode(): b"b"}


def test_counts_are_added_once_though_a_client_asks_twice(redis_index: Any) -> None:
    redis_index.start("a", "stored")
    run = redis_index._run
    redis_index._run = lambda *arguments: (run(*arguments), run(*arguments))[1]
    redis_index.add("a", [original()], Counts(1, 0, 5, 7))
    redis_index._run = run
    redis_index.add("a", [], Counts(1, 0, 5, 7))
    assert redis_index.crawls()[0].counts == Counts(2, 0, 10, 14)


# Browsertrix


def fill_like_browsertrix(client: redis.Redis) -> None:
    client.sadd("allcrawls", "bx-1")
    client.sadd("uncommittedcrawls", "bx-2")
    client.hset("h:bx-1", ONE, "1 20260701000000123 https://example.org/a 2048")
    client.hset("h:bx-1", TWO, "0 20260701000000 https://example.org/has space 99")
    client.hset("h:bx-2", THREE, "0 20260702000000001 https://example.org/c 77")
    client.hset("alldupes", mapping={ONE: "bx-1", TWO: "bx-1", "4" * 64: "bx-0"})
    counts = {"totalUrls": 10, "dupeUrls": 2, "conservedSize": 300, "totalCrawlSize": 4000}
    client.hset("h:bx-1:counts", mapping=counts)
    client.hset("h:bx-2:counts", mapping={"totalUrls": 1, "dupeUrls": 0})
    client.hset("allcounts", mapping={**counts, "updateProgress": "0.5"})
    client.rpush("c:bx-1:wacz", json.dumps({"filename": "one.wacz", "hash": "ab", "size": 5}))
    client.rpush("c:bx-2:wacz", json.dumps({"filename": "two.wacz"}))


def test_an_index_of_browsertrix_is_refused_under_the_default(redis_index: Any, client: redis.Redis) -> None:
    fill_like_browsertrix(client)
    with pytest.raises(StoreRefused, match=r'made by Browsertrix .* DEDUPE_PAYLOAD = "decoded"'):
        redis_index.start("a", "stored")
    assert not client.exists("dedupe:index", "dedupe:crawl:a")
    assert client.smembers("uncommittedcrawls") == {b"bx-2"}


def test_an_index_of_browsertrix_is_read_and_extended(redis_index: Any, client: redis.Redis) -> None:
    fill_like_browsertrix(client)
    redis_index.start("a", "decoded")
    found, spaced, uncommitted, gone = redis_index.find("a", [ONE, TWO, THREE, "4" * 64])
    assert found == Original(ONE, "bx-1", "20260701000000123", "https://example.org/a", 2048, 1)
    assert (spaced, uncommitted, gone) == (None, None, None)
    assert redis_index.unreadable == 1
    redis_index.add("a", [original("5" * 64, wacz_index=0)], Counts(3, 2, 1, 0))
    redis_index.commit("a")
    redis_index.commit("bx-2")
    assert client.hget("h:a", "5" * 64) == b"0 20260801120000123 https://example.com/page 1234"
    assert client.hget("alldupes", "5" * 64) == b"a"
    assert client.hget("alldupes", THREE) == b"bx-2"
    assert client.smembers("allcrawls") == {b"a", b"bx-1", b"bx-2"}
    assert client.smembers("src:d") == {b"two.wacz"}
    assert redis_index.counts == Counts(14, 4, 301, 4000)
    assert client.hget("allcounts", "updateProgress") == b"0.5"
    assert redis_index.containers("bx-1") == [{"filename": "one.wacz", "hash": "ab", "size": 5}]
    assert [info.payload for info in redis_index.crawls()] == ["decoded"] * 3


def test_an_index_of_a_newer_format_is_refused_untouched(redis_url: str, client: redis.Redis) -> None:
    client.hset("dedupe:index", mapping={"format": 3, "payload": "stored"})
    store = open_store(redis_url)
    for use in (
        lambda: store.index.start("a", "stored"),
        lambda: store.index.find("a", [ONE]),
        lambda: store.index.commit("a"),
        store.index.crawls,
    ):
        with pytest.raises(StoreRefused, match="has format 3"):
            use()
    store.close()
    assert client.keys() == [b"dedupe:index"]


@pytest.mark.parametrize("key", ["h:a", "alldupes", "allcrawls", "dedupe:where:a", "dedupe:index"])
def test_a_key_of_another_type_is_refused_untouched(redis_url: str, client: redis.Redis, key: str) -> None:
    client.set(key, "mine")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused, match=key):
        store.index.start("a", "stored")
    store.close()
    assert client.keys() == [key.encode()]
    assert client.get(key) == b"mine"


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"0 20260801120000123 https://example.com/",
        b"0 20260801120000123 https://example.com/ many",
        b"0 20261301120000123 https://example.com/ 1",
        b"x 20260801120000123 https://example.com/ 1",
        b"0 2026 https://example.com/ 1",
        b"0 20260801120000123  1",
        b"0 20260801120000123 \xff 1",
        b"0 20260801120000123 \x00 1\x00",
    ],
)
def test_an_entry_that_does_not_parse_is_not_found_and_counted(
    redis_index: Any, client: redis.Redis, entry: bytes
) -> None:
    redis_index.start("a", "stored")
    client.hset("h:a", ONE, entry)
    assert redis_index.find("a", [ONE]) == [None]
    assert redis_index.unreadable == 1


def test_a_lost_place_does_not_lose_the_record(redis_index: Any, client: redis.Redis) -> None:
    crawl_with(redis_index, "a", ONE)
    client.hset("dedupe:where:a", digest_key(ONE), b"short")
    (found,) = redis_index.find("a", [ONE])
    assert found == original(record_id=None, file=None, offset=None)


def test_digests_that_begin_alike_do_not_take_each_others_place(redis_index: Any) -> None:
    alike = ["a" * 63 + end for end in "123"]
    crawl_with(redis_index, "a", *alike, TWO)
    *found, other = redis_index.find("a", [*alike, TWO])
    assert found == [original(digest, record_id=None, file=None, offset=None) for digest in alike]
    assert other == original(TWO)


# Several processes


def write_many(url: str, crawl: str, first: int) -> None:
    store = open_store(url, timeout_s=240)
    store.index.start(crawl, "stored")
    for number in range(first, first + 200):
        store.index.add(crawl, [original(numbered(number), crawl)], Counts(1))
    store.index.commit(crawl)
    store.close()


def test_two_processes_write_into_one_store(store_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=write_many, args=(store_url, f"c{n}", n * 150)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
    assert [writer.exitcode for writer in writers] == [0, 0]
    store = open_store(store_url)
    assert store.index.counts == Counts(400)
    assert None not in store.index.find("other", [numbered(number) for number in range(350)])
    store.close()


# Forms


@given(st.binary(min_size=16, max_size=64) | st.text(max_size=70))
def test_a_packed_digest_gives_back_the_digest(value: bytes | str) -> None:
    for digest in (value.hex(), value.hex().upper()) if isinstance(value, bytes) else (value,):
        if "\0" not in digest and all(not "\ud800" <= letter <= "\udfff" for letter in digest):
            assert unpacked_digest(packed_digest(digest)) == digest


@pytest.mark.parametrize(
    ("digest", "packed"),
    [
        ("00" * 32, bytes(32)),
        ("A" * 32, b"\x20" + bytes(20)),
        ("DA39A3EE", b"\x00DA39A3EE"),
        ("q" * 15, b"\x00\x00" + b"q" * 15),
    ],
)
def test_the_bytes_of_packed_digests(digest: str, packed: bytes) -> None:
    assert packed_digest(digest) == packed
    assert unpacked_digest(packed) == digest


@given(st.uuids().map(lambda number: f"<urn:uuid:{number}>") | st.text(min_size=1, max_size=60))
def test_a_packed_record_id_gives_back_the_id(record_id: str) -> None:
    if record_id.strip("\0") == record_id and all(not "\ud800" <= letter <= "\udfff" for letter in record_id):
        assert unpacked_record_id(packed_record_id(record_id)) == record_id


@pytest.mark.parametrize("value", ["{} 20260801120000 https://a 1", "1 20260801120000 https://a {}"])
def test_a_number_that_sqlite_cannot_hold_is_no_part_of_an_entry(value: str) -> None:
    assert read_entry(value.format(2**63 - 1).encode()) is not None
    assert read_entry(value.format(2**63).encode()) is None


@given(st.binary(max_size=80))
def test_reading_an_entry_never_raises(value: bytes) -> None:
    parts = read_entry(value)
    assert parts is None or f"{parts[0]} {parts[1]} {parts[2]} {parts[3]}".split(" ")[2] == parts[2]
