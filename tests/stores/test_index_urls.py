"""What crawls recorded last of each URL, on both stores."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sampling import examples
from servers import LossyLine

from scrapy_dedupe.errors import CrawlStateError, SettingError, StoreRefused
from scrapy_dedupe.stores import Store, open_store
from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture
from scrapy_dedupe.stores.index_values import (
    capture_file_number,
    need_order,
    packed_capture,
    read_capture,
    url_hash,
)

if TYPE_CHECKING:
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
HOME, PAGE = "https://example.com/", "https://example.com/page?q=ü"
EARLY, LATE = "20260801120000123", "20260801120000124"


def capture(url: str = HOME, digest: str = ONE, date: str = EARLY) -> UrlCapture:
    return UrlCapture(url, digest, date)


def crawl_with(index: CrawlIndex, crawl: str, *captures: UrlCapture) -> None:
    index.start(crawl, "stored")
    index.add(crawl, [], Counts(), captures)


# Looking up


def test_a_crawl_finds_what_it_recorded_itself(index: CrawlIndex) -> None:
    crawl_with(index, "a", capture())
    assert index.find_urls("a", [PAGE, HOME, HOME]) == [None, capture(), capture()]
    assert index.find_urls("a", []) == []


def test_a_capture_has_the_place_of_its_record(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add_file("a", "/warcs/first.warc.gz")
    original = Original(ONE, "", EARLY, HOME, 9, file="/warcs/second.warc.gz", offset=3)
    own = UrlCapture(HOME, ONE, EARLY, b"v", "/warcs/second.warc.gz", 3)
    other = UrlCapture(PAGE, TWO, EARLY, b"", "/warcs/third.warc.gz", 2**40 - 2)
    index.add("a", [original], Counts(1), [own, other])
    assert index.find_urls("a", [HOME, PAGE]) == [own, other]
    index.rename_file("a", "/warcs/second.warc.gz", "s3://bucket/second.warc.gz")
    index.commit("a")
    index.start("b", "stored")
    index.add("b", [], Counts(), [capture()])
    moved = own._replace(file="s3://bucket/second.warc.gz")
    assert index.find_urls("c", [HOME, PAGE]) == [moved, other]
    assert index.find_urls("b", [HOME, PAGE]) == [capture(), other]


def test_the_last_capture_of_a_crawl_wins_whatever_its_date_is(index: CrawlIndex) -> None:
    crawl_with(index, "a", capture(digest=ONE, date=LATE), capture(digest=TWO, date=EARLY))
    assert index.find_urls("a", [HOME]) == [capture(digest=TWO, date=EARLY)]
    index.add("a", [], Counts(), [capture(digest=THREE, date=EARLY), capture(PAGE)])
    assert index.find_urls("a", [HOME, PAGE]) == [capture(digest=THREE, date=EARLY), capture(PAGE)]


def test_other_crawls_find_a_url_after_the_commit_alone(index: CrawlIndex) -> None:
    crawl_with(index, "a", capture())
    index.start("b", "stored")
    assert index.find_urls("b", [HOME]) == [None]
    index.commit("a")
    for crawl in ("a", "b", "unknown"):
        assert index.find_urls(crawl, [HOME]) == [capture()]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_committed_crawls_the_latest_date_wins(index: CrawlIndex, order: str) -> None:
    crawl_with(index, "a", capture(digest=TWO, date=EARLY))
    crawl_with(index, "b", capture(digest=ONE, date=LATE))
    for crawl in order:
        index.commit(crawl)
    assert index.find_urls("c", [HOME]) == [capture(digest=ONE, date=LATE)]


@pytest.mark.parametrize("date", ["20260801120000", "20260801120000000", "20260801115959999"])
def test_dates_of_both_lengths_are_compared_as_times(index: CrawlIndex, date: str) -> None:
    crawl_with(index, "a", capture(digest=TWO, date=date))
    crawl_with(index, "b", capture(digest=ONE, date="20260801120000001"))
    index.commit("b")
    index.commit("a")
    assert index.find_urls("c", [HOME]) == [capture(digest=ONE, date="20260801120000001")]
    assert index.find_urls("a", [HOME]) == [capture(digest=TWO, date=date)]


@pytest.mark.parametrize(("greater", "smaller"), [(TWO, ONE), ("0" * 128, "0" * 64)])
def test_both_stores_take_the_same_one_of_two_captures_at_one_time(
    index: CrawlIndex, greater: str, smaller: str
) -> None:
    for crawl, home, page in (("a", greater, smaller), ("b", smaller, greater)):
        crawl_with(index, crawl, capture(HOME, home), capture(PAGE, page))
        index.commit(crawl)
    assert index.find_urls("c", [HOME, PAGE]) == [capture(HOME, greater), capture(PAGE, greater)]


def test_the_own_capture_comes_before_a_later_one_of_another_crawl(index: CrawlIndex) -> None:
    crawl_with(index, "a", capture(digest=ONE, date=LATE))
    index.commit("a")
    crawl_with(index, "b", capture(digest=TWO, date=EARLY))
    assert index.find_urls("b", [HOME]) == [capture(digest=TWO, date=EARLY)]


def test_of_two_captures_of_the_same_time_both_stores_give_the_same(index: CrawlIndex) -> None:
    for crawl, digest in (("a", TWO), ("b", ONE)):
        index.start(crawl, "stored")
        originals = [Original(digest, crawl, EARLY, HOME, 9)] if crawl == "a" else []
        index.add(crawl, originals, Counts(1), [UrlCapture(HOME, digest, EARLY)])
        index.commit(crawl)
    assert index.find_urls("c", [HOME]) == [UrlCapture(HOME, TWO, EARLY)]


def test_many_urls_are_answered_in_their_order(index: CrawlIndex) -> None:
    urls = [f"https://example.com/{number}" for number in range(2_500)]
    captures = [capture(url, f"{number:064x}") for number, url in enumerate(urls)]
    crawl_with(index, "a", *captures[::2])
    index.commit("a")
    crawl_with(index, "b", *captures[1::4])
    found = index.find_urls("b", urls)
    assert found[::2] == captures[::2]
    assert found[1::4] == captures[1::4]
    assert found[3::4] == [None] * 625


@pytest.mark.parametrize("digest", ["3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "f" * 32, "c" * 128])
def test_digests_of_any_form_come_back(index: CrawlIndex, digest: str) -> None:
    crawl_with(index, "a", capture(digest=digest, date="20260801120000"))
    assert index.find_urls("a", [HOME]) == [capture(digest=digest, date="20260801120000")]


# States


@pytest.mark.parametrize("action", ["reset", "cancel"])
def test_reset_and_cancel_forget_the_urls_of_the_crawl_alone(index: CrawlIndex, action: str) -> None:
    crawl_with(index, "a", capture())
    crawl_with(index, "b", capture(digest=TWO), capture(PAGE))
    getattr(index, action)("b")
    assert index.find_urls("b", [HOME, PAGE]) == [None, None]
    assert index.find_urls("a", [HOME]) == [capture()]
    crawl_with(index, "b", capture(digest=THREE))
    assert index.find_urls("b", [HOME, PAGE]) == [capture(digest=THREE), None]


def test_a_refused_addition_leaves_no_urls(index: CrawlIndex) -> None:
    crawl_with(index, "a", capture())
    index.commit("a")
    for crawl in ("a", "unknown"):
        with pytest.raises(CrawlStateError):
            index.add(crawl, [], Counts(1), [capture(digest=TWO), capture(PAGE)])
    assert index.find_urls("b", [HOME, PAGE]) == [capture(), None]


def test_records_urls_needs_and_counts_go_in_together(index: CrawlIndex) -> None:
    index.start("a", "stored")
    added = [
        Original(digest, "a", EARLY, HOME, 9, 1, None, file, offset)
        for digest, file, offset in ((ONE, "x", 0), (TWO, None, None), (THREE, "y", 7))
    ]
    needs = [Need("b", 0, "z"), Need("c", 1)]
    index.add("a", added, Counts(3, 1, 2, 3), [capture(), capture(PAGE, TWO)], needs)
    assert index.find("a", [ONE, TWO, THREE]) == added
    assert index.find_urls("a", [HOME, PAGE]) == [capture(), capture(PAGE, TWO)]
    assert index.needs("a") == needs
    assert [info.counts for info in index.crawls()] == [Counts(3, 1, 2, 3)]


def test_an_addition_that_fails_on_the_way_leaves_nothing(index: CrawlIndex) -> None:
    index.start("a", "stored")
    broken = capture(PAGE, TWO, "no date")
    with pytest.raises(ValueError, match="no date"):
        index.add("a", [Original(ONE, "a", EARLY, HOME, 9)], Counts(1), [capture(), broken])
    assert index.find("a", [ONE]) == [None]
    assert index.find_urls("a", [HOME]) == [None]
    assert [info.counts for info in index.crawls()] == [Counts()]


# Normalising


def test_a_url_is_found_in_any_spelling_of_its_white_space(store: Store) -> None:
    index = store.index
    index.start("a")
    index.add("a", [], urls=[UrlCapture(f"{HOME}a b\n", f"sha256:{ONE.upper()}", "2026-08-01T12:00:00Z")])
    spellings = [f"{HOME}a b\n", f"{HOME}a%20b\n", f"{HOME}a%20b%0A"]
    assert index.find_urls("a", spellings) == [UrlCapture(url, ONE, "20260801120000") for url in spellings]
    assert index.find_urls("a", [HOME]) == [None]


@pytest.mark.parametrize("broken", [{"url": ""}, {"digest": "sha256:xyz"}, {"date": "2026"}])
def test_what_is_no_capture_is_refused(store: Store, broken: dict[str, str]) -> None:
    index = store.index
    index.start("a")
    usual = {"url": HOME, "digest": ONE, "date": EARLY}
    with pytest.raises(SettingError, match=r"URL|digest|date"):
        index.add("a", [Original(TWO, "", EARLY, HOME, 9)], urls=[UrlCapture(**(usual | broken))])
    assert index.find("a", [TWO]) == [None]


def test_names_hashes_and_needs_that_say_nothing_are_refused(store: Store) -> None:
    index = store.index
    index.start("a")
    index.add_file("a", "x")
    for call, match in (
        (lambda: index.add_file("a", ""), "WARC file without a name"),
        (lambda: index.rename_file("a", "x", ""), "WARC file without a name"),
        (lambda: index.rename_file("a", "x", "y\0"), "NUL"),
        (lambda: index.add_container("a", ""), "WACZ file without a name"),
        (lambda: index.set_container("a", "", ONE, 5), "WACZ file without a name"),
        (lambda: index.set_container("a", "x.wacz", "f" * 40, 5), "Allowed: a SHA-256 in hex"),
        (lambda: index.add("a", [], needs=[Need("")]), "names no container"),
        (lambda: index.add("a", [], needs=[Need("b", -1)]), "names no container"),
    ):
        with pytest.raises(SettingError, match=match):
            call()
    with pytest.raises(SettingError, match="The crawl id is"):
        index.find_urls("a b", [HOME])
    # Another program may have given its crawls such ids.
    assert (index.needs("a b"), index.containers("a b")) == ([], [])
    assert (index.needs("a"), index.containers("a"), index.crawls()[0].files) == ([], [], ("x",))
    index.set_container("a", "x.wacz", f"sha256:{'AB' * 32}", 5)
    assert index.containers("a") == [{"filename": "x.wacz", "hash": "ab" * 32, "size": 5}]


# Old and foreign stores


def test_an_index_of_browsertrix_knows_no_urls(redis_index: CrawlIndex, client: redis.Redis) -> None:
    client.sadd("allcrawls", "bx-1")
    client.hset("h:bx-1", ONE, f"0 {EARLY} {HOME} 2048")
    client.rpush("c:bx-1:wacz", '{"filename":"one.wacz"}')
    redis_index.start("a", "decoded")
    for crawl in ("a", "bx-1"):
        assert redis_index.find_urls(crawl, [HOME]) == [None]
        assert redis_index.needs(crawl) == []
    assert redis_index.containers("bx-1") == [{"filename": "one.wacz"}]
    with pytest.raises(CrawlStateError, match="no WARC file x"):
        redis_index.rename_file("bx-1", "x", "y")
    assert not client.keys("dedupe:*:bx-1")


@pytest.mark.parametrize("value", [b"", b"x" * 8, b"\xff" * 40, bytes(40), b"no capture at all"])
def test_a_value_that_does_not_parse_is_not_found_and_counted(
    redis_index: Any, client: redis.Redis, value: bytes
) -> None:
    crawl_with(redis_index, "a", capture(PAGE))
    client.hset("dedupe:urls:a", url_hash(HOME), value)
    assert redis_index.find_urls("a", [HOME, PAGE, "other"]) == [None, capture(PAGE), None]
    assert redis_index.unreadable == 1


@pytest.mark.parametrize("key", ["dedupe:urls:a", "dedupe:needs:a"])
def test_keys_of_another_type_are_refused_untouched(redis_url: str, client: redis.Redis, key: str) -> None:
    client.set(key, "mine")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused, match=key):
        store.index.start("a", "stored")
    store.close()
    assert client.keys() == [key.encode()]


@pytest.mark.parametrize("action", ["cancel", "reset"])
def test_redis_keeps_nothing_of_a_forgotten_crawl(
    redis_index: CrawlIndex, client: redis.Redis, action: str
) -> None:
    redis_index.start("a", "stored")
    redis_index.add("a", [Original(ONE, "a", EARLY, HOME, 9, file="x")], Counts(1), [capture()], [Need("b")])
    redis_index.add_container("a", "x.wacz")
    getattr(redis_index, action)("a")
    kept = {key for key in client.scan_iter() if key.endswith((b":a", b":wacz", b":counts"))}
    files = {b"dedupe:files:a", b"c:a:wacz"} if action == "reset" else set()
    # Another program may take the id of a canceled crawl, so nothing may say that the crawl is ours.
    assert kept == files | ({b"dedupe:crawl:a"} if action == "reset" else set())


# A lost connection


def test_an_addition_whose_answer_was_lost_is_entered_once(redis_url: str) -> None:
    with LossyLine(redis_url) as line, closing(open_store(line.url)) as store:
        index = store.index
        crawl_with(index, "a", capture(digest=THREE))
        line.lose_next_answer()
        added = Original(ONE, "a", EARLY, HOME, 9)
        index.add("a", [added], Counts(1, 0, 5, 7), [capture(digest=TWO)], [Need("b")])
        assert line.lost == [b"$2\r\nok\r\n"]
        assert (index.find("a", [ONE]), index.find_urls("a", [HOME])) == ([added], [capture(digest=TWO)])
        assert index.needs("a") == [Need("b")]
        assert [info.counts for info in index.crawls()] == [Counts(1, 0, 5, 7)]
        line.lose_next_answer()
        assert index.add_container("a", "x.wacz") == 0
        line.lose_next_answer()
        index.set_container("a", "x.wacz", ONE, 5)
        assert len(line.lost) == 3
        assert index.containers("a") == [{"filename": "x.wacz", "hash": ONE, "size": 5}]


# Random lives against a model

CRAWLS = st.sampled_from(["a", "b", "c"])
URLS = st.sampled_from([HOME, PAGE])
DATES = st.sampled_from(["20260801120000", "20260801120000000", EARLY, LATE, "20251231235959"])
DIGESTS = st.sampled_from([ONE, TWO])
FILES = st.sampled_from(["x", "y y", "s3://z"])


class Lives(RuleBasedStateMachine):
    """Crawls in any order of steps."""

    url = ""

    @initialize()
    def begin(self) -> None:
        self.store = open_store(self.url)
        self.index = self.store.index
        if self.url.startswith("redis"):
            with redis.Redis.from_url(self.url) as client:
                client.flushall()
        else:
            connection = self.index._connection  # type: ignore[attr-defined]
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'probe'"
            ).fetchall():
                connection.execute(f"DELETE FROM {table}")
        self.states: dict[str, str] = {}
        self.urls: dict[str, dict[str, UrlCapture]] = {}
        self.needs: dict[str, set[Need]] = {}
        # The files by their numbers, and the number of the file of each payload.
        self.files: dict[str, list[str]] = {}
        self.places: dict[str, dict[str, int]] = {}
        self.containers: dict[str, list[str]] = {}

    def step(self, action: str, crawl: str, is_allowed: bool, *arguments: Any) -> bool:
        try:
            getattr(self.index, action)(crawl, *arguments)
        except CrawlStateError:
            assert not is_allowed, f"{action} {crawl} was refused"
            return False
        assert is_allowed, f"{action} {crawl} was not refused"
        return True

    def forget(self, crawl: str) -> None:
        self.urls[crawl], self.needs[crawl], self.places[crawl] = {}, set(), {}

    @rule(crawl=CRAWLS)
    def start(self, crawl: str) -> None:
        if self.step("start", crawl, self.states.get(crawl) != "committed", "stored"):
            if self.states.get(crawl) != "uncommitted":
                self.forget(crawl)
                self.files[crawl], self.containers[crawl] = [], []
            self.states[crawl] = "uncommitted"

    @rule(
        crawl=CRAWLS,
        captures=st.lists(
            st.tuples(URLS, DIGESTS, DATES).map(lambda values: UrlCapture(*values)), max_size=3
        ),
        needs=st.lists(st.builds(Need, CRAWLS, st.integers(0, 1), st.none() | FILES), max_size=2),
        record=st.none() | st.tuples(DIGESTS, FILES),
    )
    def add(
        self, crawl: str, captures: list[UrlCapture], needs: list[Need], record: tuple[str, str] | None
    ) -> None:
        originals = [] if record is None else [Original(record[0], crawl, EARLY, HOME, 9, file=record[1])]
        is_allowed = self.states.get(crawl) == "uncommitted"
        if self.step("add", crawl, is_allowed, originals, Counts(1), captures, needs):
            self.urls[crawl].update((capture.url, capture) for capture in captures)
            self.needs[crawl].update(needs)
            for digest, file in [record] if record else []:
                files = self.files[crawl]
                if file not in files:
                    files.append(file)
                self.places[crawl].setdefault(digest, files.index(file))

    @rule(crawl=CRAWLS, old=FILES, new=FILES)
    def rename_file(self, crawl: str, old: str, new: str) -> None:
        files = self.files.get(crawl, [])
        is_allowed = self.states.get(crawl) in ("uncommitted", "committed") and bool({old, new} & {*files})
        # A file that is there under the new name alone was renamed before; the two are the same for old == new.
        if self.step("rename_file", crawl, is_allowed, old, new):
            self.files[crawl] = [new if name == old else name for name in files]
            for other, needs in self.needs.items():
                self.needs[other] = {
                    Need(crawl, need.wacz_index, new) if (need.crawl, need.file) == (crawl, old) else need
                    for need in needs
                }

    @rule(crawl=CRAWLS, name=FILES)
    def add_container(self, crawl: str, name: str) -> None:
        is_allowed = self.states.get(crawl) == "uncommitted"
        if self.step("add_container", crawl, is_allowed, name) and name not in self.containers[crawl]:
            self.containers[crawl].append(name)

    @rule(crawl=CRAWLS)
    def commit(self, crawl: str) -> None:
        if self.step("commit", crawl, self.states.get(crawl) in ("uncommitted", "committed")):
            self.states[crawl] = "committed"

    @rule(crawl=CRAWLS)
    def cancel(self, crawl: str) -> None:
        if self.step("cancel", crawl, self.states.get(crawl) in ("uncommitted", "canceled")):
            self.states[crawl] = "canceled"
            self.forget(crawl)
            self.files[crawl], self.containers[crawl] = [], []

    @rule(crawl=CRAWLS)
    def reset(self, crawl: str) -> None:
        if self.step("reset", crawl, self.states.get(crawl) == "uncommitted"):
            self.forget(crawl)

    @invariant()
    def finds_the_urls_that_the_model_knows(self) -> None:
        for crawl in ("a", "b", "c", "other"):
            expected = []
            for url in (HOME, PAGE):
                own = self.urls.get(crawl, {}).get(url)
                committed = [
                    known[url]
                    for other, known in self.urls.items()
                    if self.states[other] == "committed" and url in known
                ]
                latest = max(committed, key=_order, default=None)
                expected.append(own or latest)
            assert self.index.find_urls(crawl, [HOME, PAGE]) == expected

    @invariant()
    def names_the_files_and_needs_that_the_model_knows(self) -> None:
        known = {info.id: (info.state, info.files) for info in self.index.crawls()}
        assert known == {
            crawl: (state, tuple(dict.fromkeys(self.files[crawl]))) for crawl, state in self.states.items()
        }
        for crawl in self.states:
            assert self.index.needs(crawl) == sorted(self.needs[crawl], key=need_order)
            assert [item["filename"] for item in self.index.containers(crawl)] == self.containers[crawl]
            found = self.index.find(crawl, list(self.places[crawl]))
            assert [record and record.file for record in found] == [
                self.files[crawl][number] for number in self.places[crawl].values()
            ]

    def teardown(self) -> None:
        self.store.close()


def _order(capture: UrlCapture) -> tuple[str, int, str]:
    # Equal times are rare; any order will do if it is the same in both stores.
    return capture.date.ljust(17, "0"), len(capture.date), capture.digest


@pytest.mark.hypothesis
def test_any_lives_of_several_crawls_agree_with_a_model(store_url: str) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        type("Here", (Lives,), {"url": store_url}),
        settings=settings(
            max_examples=examples(25),
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Forms


def test_the_bytes_of_what_is_kept_of_a_url() -> None:
    assert url_hash("https://example.com/ü").hex() == "d44aa7ca6efc858133617f0d"
    assert packed_capture(capture(digest="00" * 20, date="20260801120000")) == bytes.fromhex(
        "008ff62ebb3eb000" + "ff" * 8 + "00" + "00" * 20
    )
    assert packed_capture(capture(digest="A" * 32, date="20260801120000001")) == bytes.fromhex(
        "008ff62ebb3eb003" + "ff" * 8 + "00" + "20" + "00" * 20
    )
    validated = UrlCapture(HOME, "00" * 20, "20260801120000", b"\x01\x02\x03", "a.warc.gz", 5)
    assert packed_capture(validated, 7) == bytes.fromhex(
        "008ff62ebb3eb000" + "000007" + "0000000005" + "03" + "010203" + "00" * 20
    )


@given(
    date=st.datetimes().map(lambda time: f"{time:%Y%m%d%H%M%S}".rjust(14, "0")),
    milliseconds=st.none() | st.integers(0, 999),
    digest=st.binary(min_size=20, max_size=20) | st.binary(min_size=32, max_size=32),
    validators=st.binary(max_size=255),
    place=st.none() | st.tuples(st.integers(0, 2**24 - 2), st.integers(0, 2**40 - 2)),
)
def test_a_capture_is_read_as_it_was_written(
    date: str, milliseconds: int | None, digest: bytes, validators: bytes, place: tuple[int, int] | None
) -> None:
    digits = date if milliseconds is None else f"{date}{milliseconds:03}"
    if place is None:
        written = UrlCapture(HOME, digest.hex(), digits, validators)
        value = packed_capture(written)
        assert (read_capture(HOME, value), capture_file_number(value)) == (written, None)
        return
    number, offset = place
    written = UrlCapture(HOME, digest.hex(), digits, validators, "a.warc.gz", offset)
    value = packed_capture(written, number)
    assert (read_capture(HOME, value, "a.warc.gz"), capture_file_number(value)) == (written, number)


@given(st.binary(max_size=50))
def test_reading_a_capture_never_raises(value: bytes) -> None:
    found = read_capture(HOME, value)
    assert found is None or (found.url == HOME and len(found.date) in (14, 17))


@given(st.lists(st.tuples(st.datetimes(), st.booleans()), min_size=2, max_size=2))
def test_of_two_values_the_later_capture_is_the_greater_one(times: list[Any]) -> None:
    dates = [
        f"{time:%Y%m%d%H%M%S}".rjust(14, "0") + (f"{time.microsecond // 1000:03}" if has else "")
        for time, has in times
    ]
    first, second = (packed_capture(capture(digest=ONE, date=date)) for date in dates)
    filled = [date.ljust(17, "0") for date in dates]
    if filled[0] != filled[1]:
        assert (first < second) == (filled[0] < filled[1])
