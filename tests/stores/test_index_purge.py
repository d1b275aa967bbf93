"""The contract of removal and replacement in the crawl index, on both stores."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.errors import CrawlStateError, StoreUnavailable
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
HOME = "https://example.com/"


def numbered(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def record(digest: str = ONE, crawl: str = "a", **changes: Any) -> Original:
    usual = Original(digest, crawl, "20260801120000", HOME, 1_000, file=f"{crawl}.warc.gz", offset=7)
    return replace(usual, **changes)


def source(name: str = "a.wacz", crawl: str = "a") -> Source:
    return Source(name, crawl, f"/archives/{name}", is_container=True, hash="f" * 64, size=5_000)


def enter(index: CrawlIndex, crawl: str, *digests: str, counts: Counts | None = None) -> None:
    index.start(crawl, "stored")
    url = UrlCapture(HOME, digests[0] if digests else ONE, "20260801120000", crawl.encode())
    index.add(crawl, [record(digest, crawl) for digest in digests], counts or Counts(), [url])


def commit(index: CrawlIndex, crawl: str, *digests: str, counts: Counts | None = None) -> None:
    enter(index, crawl, *digests, counts=counts)
    index.commit(crawl)


def import_whole(index: CrawlIndex, entered: Source, *digests: str, counts: Counts | None = None) -> None:
    index.begin_source(entered, "stored")
    index.add_imported(entered, [record(digest, entered.crawl) for digest in digests])
    index.end_source(entered, counts or Counts())


def states(index: CrawlIndex) -> dict[str, str]:
    return {info.id: info.state for info in index.crawls()}


# Purge


def test_a_payload_that_a_kept_crawl_has_too_is_that_crawls_after_the_purge(index: CrawlIndex) -> None:
    for crawl in ("a", "b", "c"):
        commit(index, crawl, ONE, *([TWO] if crawl == "a" else [THREE]))
    assert index.find("x", [ONE, TWO, THREE]) == [record(), record(TWO), record(THREE, "b")]
    index.purge(["a"])
    assert index.find("x", [ONE, TWO, THREE]) == [record(ONE, "b"), None, record(THREE, "b")]
    index.purge(["b"])
    assert index.find("x", [ONE, TWO, THREE]) == [record(ONE, "c"), None, record(THREE, "c")]
    assert states(index) == {"c": "committed"}


def test_nothing_of_a_purged_crawl_is_shown_or_counted(index: CrawlIndex) -> None:
    commit(index, "a", ONE, counts=Counts(1, 2, 3, 4))
    enter(index, "b", TWO, counts=Counts(10, 20, 30, 40))
    index.set_container("b", "b.wacz", "e" * 64, 9)
    index.add("b", [], Counts(), needs=[Need("a", 0, "a.warc.gz")], waiting=[Waiting(THREE, 5)])
    index.commit("b")
    index.purge(["b"])
    assert states(index) == {"a": "committed"}
    assert index.counts == Counts(1, 2, 3, 4)
    assert index.containers("b") == index.needs("b") == list(index.records("b")) == []
    assert index.find("b", [TWO]) == [None]
    assert index.find_urls("b", [HOME]) == index.find_urls("x", [HOME])
    assert index.done_sources(["b.wacz"]) == [False]
    commit(index, "c", THREE)
    assert index.resolve() == 0


def test_the_captures_of_a_purged_crawl_are_forgotten(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    commit(index, "b", TWO)
    index.purge(["b"])
    assert index.find_urls("x", [HOME]) == [UrlCapture(HOME, ONE, "20260801120000", b"a")]
    index.purge(["a"])
    assert index.find_urls("x", [HOME]) == [None]


def test_what_others_need_of_a_purged_crawl_stays_known(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    enter(index, "b")
    index.add("b", [], Counts(), needs=[Need("a", 0, "a.warc.gz")])
    index.commit("b")
    index.purge(["a"])
    assert index.needs("b") == [Need("a", 0, "a.warc.gz")]


def test_a_purge_can_be_repeated_and_of_unknown_crawls_there_is_nothing_to_do(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    commit(index, "b", ONE, counts=Counts(1))
    for _ in range(3):
        index.purge(["a", "never", "a"])
    index.purge([])
    assert index.counts == Counts(1)
    assert states(index) == {"b": "committed"}
    assert index.unfinished_purge() == []


def test_a_purge_with_an_uncommitted_crawl_does_nothing(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    enter(index, "b", TWO)
    index.begin_source(source("c.wacz", "c"), "stored")
    before = index.crawls()
    for crawl in ("b", "c"):
        with pytest.raises(CrawlStateError, match=f"The crawl {crawl} .* cannot be purged"):
            index.purge(["a", crawl])
    assert index.crawls() == before
    assert index.find("x", [ONE]) == [record()]
    assert index.unfinished_purge() == []


def test_a_canceled_crawl_is_shown_until_it_is_purged(index: CrawlIndex) -> None:
    enter(index, "a", ONE)
    index.cancel("a")
    assert states(index) == {"a": "canceled"}
    index.purge(["a"])
    assert states(index) == {}


def test_a_purged_id_can_be_crawled_and_imported_again(index: CrawlIndex) -> None:
    commit(index, "a", ONE, TWO, counts=Counts(5))
    index.purge(["a"])
    commit(index, "a", TWO, counts=Counts(1))
    assert index.find("x", [ONE, TWO]) == [None, record(TWO)]
    assert index.counts == Counts(1)
    index.purge(["a"])
    import_whole(index, source(), THREE, counts=Counts(2))
    assert index.find("x", [ONE, TWO, THREE]) == [None, None, record(THREE)]
    assert [(info.state, info.imported, info.counts) for info in index.crawls()] == [
        ("committed", True, Counts(2))
    ]


def test_a_purged_import_can_be_imported_again(index: CrawlIndex) -> None:
    import_whole(index, source(), ONE, counts=Counts(1))
    import_whole(index, source("b.wacz"), TWO, counts=Counts(1))
    index.purge(["a"])
    assert index.crawls() == []
    assert index.find("a", [ONE, TWO]) == [None, None]
    assert index.done_sources(["a.wacz", "b.wacz"]) == [False, False]
    assert index.queue_sources([source()]) == 1
    import_whole(index, source(), TWO, counts=Counts(7))
    assert index.find("x", [ONE, TWO]) == [None, record(TWO)]
    assert index.counts == Counts(7)
    assert [container["filename"] for container in index.containers("a")] == ["a.wacz"]


def test_another_connection_sees_a_purge_and_the_crawl_that_comes_after_it(store_url: str) -> None:
    one, other = open_store(store_url), open_store(store_url)
    commit(one.index, "a", ONE)
    assert other.index.find("a", [ONE, TWO]) == [record(), None]
    one.index.purge(["a"])
    assert other.index.find("a", [ONE, TWO]) == [None, None]
    enter(one.index, "a", TWO)
    other.index.add("a", [record(THREE)], Counts(3))
    assert other.index.find("a", [ONE, TWO, THREE]) == [None, record(TWO), record(THREE)]
    assert one.index.find("a", [ONE, TWO, THREE]) == [None, record(TWO), record(THREE)]
    one.close()
    other.close()


def test_a_large_crawl_is_purged_whole(index: CrawlIndex) -> None:
    digests = [numbered(number) for number in range(3_000)]
    commit(index, "a", *digests)
    commit(index, "b", *digests[::3])
    index.purge(["a"])
    found = index.find("x", digests)
    assert found[::3] == [record(digest, "b") for digest in digests[::3]]
    assert found[1::3] == found[2::3] == [None] * 1_000
    assert index.merged_faults() == 0


@pytest.mark.parametrize("change", ["purge", "cancel", "commit"])
def test_long_work_tells_how_many_are_done_of_all(index: CrawlIndex, store_url: str, change: str) -> None:
    records = [record(numbered(number)) for number in range(2_500)]
    seen = UrlCapture(HOME, ONE, "20260801120000", b"a")
    index.start("a", "stored")
    if change == "purge":
        commit(index, "kept", *map(numbered, range(1_000, 3_500)))
    index.add("a", records, Counts(2_500))
    index.add("a", [], Counts(), [seen._replace(url=f"{HOME}{number}") for number in range(1_500)])
    told: list[tuple[str, int, int]] = []

    def on_done(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    if change == "purge":
        index.commit("a")
        index.purge(["a"], on_done)
    elif change == "cancel":
        index.cancel("a", on_done)
    else:
        index.commit("a", on_done=on_done)
    is_redis = store_url.startswith("redis")
    records_told = [(done, total) for what, done, total in told if what == "records"]
    # In SQLite a commit is one row.
    if is_redis or change != "commit":
        assert len(records_told) > 2
        assert records_told[-1] == (2_500, 2_500)
    assert [done for done, _ in records_told] == sorted(done for done, _ in records_told)
    assert {total for _, total in records_told} <= {2_500}
    urls_told = [(done, total) for what, done, total in told if what == "URLs"]
    if is_redis or change == "commit":
        assert urls_told == []
    else:
        assert urls_told[-1] == (1_500, 1_500)
        assert urls_told[0] == (1_000, pytest.approx(1_500, rel=0.2))


def test_the_merged_index_agrees_with_the_crawls_and_can_be_made_anew(index: CrawlIndex) -> None:
    commit(index, "a", ONE, TWO, counts=Counts(2, 0, 0, 20))
    commit(index, "b", TWO, THREE, counts=Counts(2, 0, 0, 20))
    import_whole(index, source("c.wacz", "c"), THREE, counts=Counts(1))
    assert index.merged_faults() == 0
    index.rebuild_merged()
    assert index.merged_faults() == 0
    assert index.find("x", [ONE, TWO, THREE]) == [record(), record(TWO), record(THREE, "b")]
    assert index.counts == Counts(5, 0, 0, 40)


# Replace


def test_a_committed_crawl_takes_over_what_the_other_one_has(index: CrawlIndex) -> None:
    enter(index, "a", ONE, TWO, counts=Counts(2, 0, 0, 20))
    index.set_container("a", "a.wacz", "e" * 64, 9)
    index.add("a", [], Counts(), needs=[Need("z")])
    index.commit("a", {"pages": 3})
    commit(index, "b", ONE, TWO)
    (before,) = (info for info in index.crawls() if info.id == "a")
    enter(index, "new", TWO, THREE, counts=Counts(7, 1, 5, 70))
    index.add_file("new", "new.warc.gz")
    index.add("new", [], Counts(), needs=[Need("y", 1, "y.warc.gz")])
    index.replace("a", "new")
    taken = [record(digest, "a", file="new.warc.gz") for digest in (TWO, THREE)]
    assert index.find("x", [ONE, TWO, THREE]) == [record(ONE, "b"), *taken]
    assert sorted(index.records("a"), key=lambda found: found.digest) == taken
    assert index.find_urls("a", [HOME]) == [UrlCapture(HOME, TWO, "20260801120000", b"new")]
    assert index.needs("a") == [Need("y", 1, "y.warc.gz")]
    assert index.containers("a") == [{"filename": "a.wacz", "hash": "e" * 64, "size": 9}]
    (after,) = (info for info in index.crawls() if info.id == "a")
    assert after == replace(before, counts=Counts(7, 1, 5, 70), files=("new.warc.gz",))
    assert "new" not in states(index)
    assert index.find("new", [THREE]) == [taken[1]]
    assert index.counts == Counts(7, 1, 5, 70)
    assert index.merged_faults() == 0


def test_a_replacement_can_be_repeated(index: CrawlIndex) -> None:
    commit(index, "a", ONE, counts=Counts(1))
    enter(index, "new", TWO, counts=Counts(2))
    for _ in range(3):
        index.replace("a", "new")
    assert states(index) == {"a": "committed"}
    assert index.find("x", [ONE, TWO]) == [None, record(TWO, file="new.warc.gz")]
    assert index.counts == Counts(2)
    assert index.unfinished_purge() == []


def test_an_id_is_free_after_it_took_the_place_of_another(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    enter(index, "new", TWO)
    index.replace("a", "new")
    commit(index, "new", THREE)
    assert index.find("x", [ONE, TWO, THREE]) == [
        None,
        record(TWO, file="new.warc.gz"),
        record(THREE, "new"),
    ]
    enter(index, "newer", ONE)
    index.replace("a", "newer")
    assert index.find("x", [ONE, TWO, THREE]) == [
        record(file="newer.warc.gz"),
        None,
        record(THREE, "new"),
    ]


def test_an_imported_crawl_can_be_replaced(index: CrawlIndex) -> None:
    import_whole(index, source(), ONE, counts=Counts(1))
    import_whole(index, source("b.wacz"), TWO, counts=Counts(1))
    enter(index, "new", TWO, THREE, counts=Counts(9))
    index.replace("a", "new")
    files = {"file": "new.warc.gz"}
    assert index.find("x", [ONE, TWO, THREE]) == [None, record(TWO, **files), record(THREE, **files)]
    assert [container["filename"] for container in index.containers("a")] == ["a.wacz", "b.wacz"]
    assert index.done_sources(["a.wacz", "b.wacz"]) == [True, True]
    assert [(info.imported, info.counts) for info in index.crawls()] == [(True, Counts(9))]
    import_whole(index, source("c.wacz"), ONE, counts=Counts(1))
    assert index.find("x", [ONE]) == [record()]
    assert index.counts == Counts(10)


@pytest.mark.parametrize(("crawl", "by"), [("a", "unknown"), ("a", "b"), ("c", "d"), ("unknown", "c")])
def test_only_an_uncommitted_crawl_takes_the_place_of_a_committed_one(
    index: CrawlIndex, crawl: str, by: str
) -> None:
    commit(index, "a", ONE)
    commit(index, "b", TWO)
    enter(index, "c", THREE)
    enter(index, "d", THREE)
    before = index.crawls()
    with pytest.raises(CrawlStateError):
        index.replace(crawl, by)
    assert index.crawls() == before
    assert index.find("x", [ONE, TWO, THREE]) == [record(), record(TWO, "b"), None]


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_crawl_that_was_added_to_while_it_was_repaired_is_not_replaced(
    index: CrawlIndex, is_ended: bool
) -> None:
    import_whole(index, source(), ONE, counts=Counts(1))
    enter(index, "new", ONE, counts=Counts(1))
    late = source("late.wacz")
    index.begin_source(late, "stored")
    index.add_imported(late, [record(TWO)])
    if is_ended:
        index.end_source(late, Counts(1))
    with pytest.raises(CrawlStateError, match=r"The crawl a .*was extended while it was repaired"):
        index.replace("a", "new")
    assert states(index) == {"a": "committed", "new": "uncommitted"}
    index.end_source(late, Counts(1))
    assert index.find("x", [ONE, TWO]) == [record(), record(TWO)]
    assert index.counts == Counts(2)
    index.cancel("new")
    index.purge(["new"])
    enter(index, "new", ONE, TWO, counts=Counts(2))
    index.replace("a", "new")
    assert index.counts == Counts(2)
    assert None not in index.find("x", [ONE, TWO])
    assert index.merged_faults() == 0


def test_a_source_that_was_begun_and_dropped_does_not_stop_a_repair(index: CrawlIndex) -> None:
    import_whole(index, source(), ONE)
    late = source("late.wacz")
    index.begin_source(late, "stored")
    enter(index, "new", TWO)
    index.drop_source(late)
    index.replace("a", "new")
    assert index.find("x", [ONE, TWO]) == [None, record(TWO, file="new.warc.gz")]


def test_a_source_that_was_begun_before_the_repair_and_ended_since_is_not_lost(index: CrawlIndex) -> None:
    import_whole(index, source(), ONE)
    late = source("late.wacz")
    index.begin_source(late, "stored")
    index.add_imported(late, [record(TWO)])
    enter(index, "new", ONE)
    index.end_source(late, Counts(1))
    with pytest.raises(CrawlStateError, match=r"was extended while it was repaired"):
        index.replace("a", "new")
    assert index.find("x", [TWO]) == [record(TWO)]


def test_a_payload_is_listed_once_after_a_replacement_and_a_further_import(index: CrawlIndex) -> None:
    import_whole(index, source(), ONE)
    enter(index, "new", ONE, TWO)
    index.replace("a", "new")
    import_whole(index, source("b.wacz"), ONE, THREE)
    import_whole(index, source("c.wacz"), TWO, THREE)
    assert sorted(found.digest for found in index.records("a")) == [ONE, TWO, THREE]
    assert index.find("x", [ONE]) == [record(file="new.warc.gz")]


def test_a_purge_forgets_how_many_crawls_a_manifest_did_not_name(index: CrawlIndex) -> None:
    commit(index, "a", ONE)
    commit(index, "b", TWO)
    index.note_imports(ImportNotes(1.0, "2026-08-01T12:00:00.000Z", 2, 123))
    index.purge(["a"])
    assert index.import_notes == ImportNotes(1.0, "2026-08-01T12:00:00.000Z", 0, 0)


# SQLite alone: what is cut off


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'index.sqlite'}"


def cut_off(index: Any, after: int) -> None:
    """Let the connection die after so many transactions."""
    transaction, left = index._transaction, after

    def dying() -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("killed")
        return transaction()

    index._transaction = dying


def left_over(index: Any) -> dict[str, int]:
    tables = ("original", "crawl_url", "crawl_file", "crawl_container", "crawl_need", "crawl_waiting")
    query = "SELECT count(*) FROM {}"
    rows = {table: index._connection.execute(query.format(table)).fetchone()[0] for table in tables}
    return {table: rows[table] for table in tables if rows[table]}


@pytest.mark.parametrize("after", range(1, 9))
def test_a_purge_that_was_cut_off_has_taken_effect_and_is_ended_later(sqlite_url: str, after: int) -> None:
    store = open_store(sqlite_url)
    digests = [numbered(number) for number in range(2_500)]
    enter(store.index, "a", *digests)
    store.index.add("a", [], Counts(1), needs=[Need("z")], waiting=[Waiting(ONE, 1)])
    store.index.commit("a")
    cut_off(store.index, after)
    try:
        store.index.purge(["a"])
        ended = True
    except StoreUnavailable:
        ended = False
    store.close()
    store = open_store(sqlite_url)
    assert store.index.unfinished_purge() == ([] if ended else ["a"])
    assert store.index.find("a", digests) == [None] * 2_500
    assert store.index.find_urls("x", [HOME]) == [None]
    assert (store.index.crawls(), store.index.counts) == ([], Counts())
    store.index.purge(["a"])
    assert store.index.unfinished_purge() == []
    assert left_over(store.index) == {}
    store.close()


def test_a_purge_that_was_cut_off_does_not_touch_a_crawl_that_was_begun_since(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    commit(store.index, "a", ONE, TWO)
    cut_off(store.index, 1)
    with pytest.raises(StoreUnavailable):
        store.index.purge(["a"])
    store.close()
    store = open_store(sqlite_url)
    commit(store.index, "a", THREE, counts=Counts(1))
    assert store.index.unfinished_purge() == []
    store.index.purge(["another"])
    assert store.index.find("x", [ONE, TWO, THREE]) == [None, None, record(THREE)]
    assert left_over(store.index) == {"original": 1, "crawl_url": 1, "crawl_file": 1}
    store.close()


@pytest.mark.parametrize("action", ["cancel", "reset", "drop_source", "begin_source", "replace"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_was_cut_off_while_it_forgot_is_ended_by_the_next_purge(
    sqlite_url: str, action: str, after: int
) -> None:
    store = open_store(sqlite_url)
    index = store.index
    enter(index, "a", ONE)
    index.begin_source(source("b.wacz", "b"), "stored")
    index.add_imported(source("b.wacz", "b"), [record(TWO, "b")])
    arguments: dict[str, tuple[Any, ...]] = {
        "cancel": ("a",),
        "reset": ("a",),
        "drop_source": (source("b.wacz", "b"),),
        "begin_source": (source("b.wacz", "b"), "stored"),
        "replace": ("c", "a"),
    }
    commit(index, "c", THREE)
    cut_off(index, after)
    with pytest.raises(StoreUnavailable):
        getattr(index, action)(*arguments[action])
    store.close()
    store = open_store(sqlite_url)
    gone = {"replace": THREE, "cancel": ONE, "reset": ONE}.get(action, TWO)
    crawl = {"replace": "c", "cancel": "a", "reset": "a"}.get(action, "b")
    assert store.index.find(crawl, [gone]) == [None]
    assert store.index.unfinished_purge() == []
    store.index.purge([])
    kept = store.index._connection.execute("SELECT count(*) FROM original")  # type: ignore[attr-defined]
    assert kept.fetchone() == (2,)
    store.close()


def test_a_canceled_crawl_is_forgotten_without_a_trace_and_no_other(index: CrawlIndex) -> None:
    commit(index, "kept", TWO)
    for crawl in ("a", "running"):
        enter(index, crawl, ONE, THREE)
    index.cancel("a")
    for crawl in ("a", "a", "kept", "running", "unknown"):
        index.forget_canceled(crawl)
    assert [(info.id, info.state) for info in index.crawls()] == [
        ("kept", "committed"),
        ("running", "uncommitted"),
    ]
    assert index.find("running", [ONE, TWO]) == [record(ONE, "running"), record(TWO, "kept")]
    enter(index, "a", ONE)
    assert index.find("a", [ONE]) == [record(ONE, "a")], "its id is free"


def test_an_empty_server_is_empty_again_once_its_only_crawl_is_forgotten(
    redis_index: CrawlIndex, client: Any
) -> None:
    enter(redis_index, "a", ONE)
    redis_index.cancel("a")
    assert client.keys("*")
    redis_index.forget_canceled("a")
    assert client.keys("*") == []
