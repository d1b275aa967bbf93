"""The contract of importing into the crawl index, on both stores."""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, TakenOver
from scrapy_dedupe.stores import open_store, sqlite_index_imports
from scrapy_dedupe.stores.base import Counts, ImportNotes, Need, Original, Source, UrlCapture, Waiting
from scrapy_dedupe.stores.index_values import FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
HOME = "https://example.com/"


def numbered(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def source(name: str = "a.wacz", crawl: str = "a", **changes: Any) -> Source:
    usual = Source(name, crawl, f"/archives/{name}", is_container=True, hash="f" * 64, size=5_000)
    return replace(usual, **changes)


def record(digest: str = ONE, crawl: str = "a", size: int = 1_000, **changes: Any) -> Original:
    usual = Original(
        digest,
        crawl,
        "20260801120000",
        HOME,
        size,
        file=f"/archives/{crawl}.wacz/archive/x.warc.gz",
        offset=77,
    )
    return replace(usual, **changes)


def capture(digest: str = ONE, date: str = "20260801120000", url: str = HOME) -> UrlCapture:
    return UrlCapture(url, digest, date)


def import_whole(
    index: CrawlIndex,
    entered: Source,
    *originals: Original,
    counts: Counts | None = None,
    needs: Sequence[Need] = (),
    waiting: Sequence[Waiting] = (),
) -> None:
    index.begin_source(entered, "stored")
    index.add_imported(entered, originals)
    index.end_source(entered, counts or Counts(), needs, waiting)


def crawl_whole(index: CrawlIndex, crawl: str, *originals: Original, counts: Counts | None = None) -> None:
    index.start(crawl, "stored")
    index.add(crawl, originals, counts or Counts())
    index.commit(crawl)


# A lease that may run out at once: nobody takes the source over before a test says so.
LEAST_S = 0.01


def claim(index: CrawlIndex, lease_s: float = 60) -> Source:
    claimed = index.claim_source(lease_s)
    assert claimed is not None
    return claimed


def counts_of(index: CrawlIndex) -> dict[str, Counts]:
    return {info.id: info.counts for info in index.crawls()}


# The life of a source


def test_nobody_finds_a_record_before_its_source_has_ended(index: CrawlIndex) -> None:
    entered = source()
    assert index.begin_source(entered, "stored") == 0
    index.add_imported(entered, [record()], [capture()])
    assert index.find("a", [ONE, TWO]) == [record(), None]
    assert index.find("b", [ONE]) == [None]
    assert index.find_urls("b", [HOME]) == [None]
    (info,) = index.crawls()
    assert (info.state, info.imported, info.counts) == ("uncommitted", True, Counts())
    assert list(index.records("a")) == []
    index.end_source(entered, Counts(5, 2, 300, 5_000))
    assert index.find("b", [ONE, TWO]) == [record(), None]
    assert index.find_urls("b", [HOME]) == [capture()]
    (info,) = index.crawls()
    assert (info.state, info.imported, info.counts) == ("committed", True, Counts(5, 2, 300, 5_000))
    assert info.committed is not None
    assert info.files == ("/archives/a.wacz/archive/x.warc.gz",)
    assert index.counts == Counts(5, 2, 300, 5_000)
    assert index.containers("a") == [{"filename": "a.wacz", "hash": "f" * 64, "size": 5_000}]
    assert list(index.records("a")) == [record()]


def test_a_further_source_extends_the_committed_crawl_and_is_hidden_until_it_ends(index: CrawlIndex) -> None:
    import_whole(index, source(), record(), counts=Counts(1, 0, 0, 10))
    (before,) = index.crawls()
    second = source("b.wacz")
    late = record(TWO, file="/archives/b.wacz/archive/y.warc.gz", wacz_index=1)
    assert index.begin_source(second, "stored") == 1
    index.add_imported(second, [late], [capture(TWO)])
    assert index.find("x", [ONE, TWO]) == [record(), None]
    assert index.find_urls("x", [HOME]) == [None]
    assert list(index.records("a")) == [record()]
    assert index.counts == Counts(1, 0, 0, 10)
    index.end_source(second, Counts(2, 0, 0, 20))
    assert index.find("x", [ONE, TWO]) == [record(), late]
    assert index.find_urls("x", [HOME]) == [capture(TWO)]
    (info,) = index.crawls()
    assert (info.committed, info.counts) == (before.committed, Counts(3, 0, 0, 30))
    assert [container["filename"] for container in index.containers("a")] == ["a.wacz", "b.wacz"]
    assert {found.digest for found in index.records("a")} == {ONE, TWO}


def test_the_first_record_of_a_payload_wins_in_its_source_and_over_later_ones(index: CrawlIndex) -> None:
    first, second = source(), source("b.wacz")
    index.begin_source(first, "stored")
    index.add_imported(first, [record(offset=1), record(offset=2)])
    index.add_imported(first, [record(offset=3)])
    index.end_source(first, Counts())
    import_whole(index, second, record(offset=4), record(TWO, offset=5))
    assert index.find("x", [ONE, TWO]) == [record(offset=1), record(TWO, offset=5)]
    assert sorted(found.offset or 0 for found in index.records("a")) == [1, 5]


def test_the_latest_capture_of_a_url_is_found_in_whatever_order_sources_come(index: CrawlIndex) -> None:
    for name, date in (("a.wacz", "20260803000000"), ("b.wacz", "20260801000000")):
        index.begin_source(source(name), "stored")
        index.add_imported(source(name), [record()], [capture(ONE, date), capture(TWO, "20260701000000")])
        index.end_source(source(name), Counts())
    assert index.find_urls("x", [HOME]) == [capture(ONE, "20260803000000")]


def test_a_crawl_that_was_committed_before_the_import_owns_the_payload(index: CrawlIndex) -> None:
    crawl_whole(index, "b", record(crawl="b"))
    import_whole(index, source(), record())
    assert index.find("x", [ONE]) == [record(crawl="b")]
    assert index.find("a", [ONE]) == [record()]


@pytest.mark.parametrize("status", [None, 404])
@pytest.mark.parametrize("form", FORMS)
def test_the_status_and_the_form_of_an_imported_record_come_back(
    index: CrawlIndex, status: int | None, form: str
) -> None:
    added = record(status=status, form=form)
    import_whole(index, source(), added)
    assert index.find("x", [ONE]) == [added]
    assert list(index.records("a")) == [added]


def test_every_step_of_an_import_can_be_repeated(index: CrawlIndex) -> None:
    entered = source()
    counts = Counts(1, 1, 5, 100)
    needs, waiting = [Need("z", 2, "z.warc.gz")], [Waiting(TWO, 10)]
    for _ in range(2):
        assert index.queue_sources([entered]) in (0, 1)
    for _ in range(2):
        index.begin_source(entered, "stored")
    for _ in range(2):
        index.add_imported(entered, [record()], [capture()])
    for _ in range(3):
        index.end_source(entered, counts, needs, waiting)
    assert index.counts == counts
    assert index.needs("a") == needs
    assert [info.waiting for info in index.crawls()] == [1]
    assert list(index.records("a")) == [record()]
    index.drop_source(entered)
    index.drop_source(entered)
    assert index.find("x", [ONE]) == [record()]
    assert index.queue_length() == (0, 0)


def test_a_source_that_was_cut_off_is_entered_anew_though_its_content_changed(index: CrawlIndex) -> None:
    entered = source()
    index.begin_source(entered, "stored")
    index.add_imported(entered, [record(), record(TWO, offset=9)], [capture()])
    assert index.unfinished_sources() == [entered]
    assert index.begin_source(entered, "stored") == 0
    assert index.find("a", [ONE, TWO]) == [None, None]
    index.add_imported(entered, [record(TWO, offset=3)], [capture(TWO, url="https://example.org/")])
    index.end_source(entered, Counts(1))
    assert index.unfinished_sources() == []
    assert index.find("x", [ONE, TWO]) == [None, record(TWO, offset=3)]
    assert index.find_urls("x", [HOME, "https://example.org/"]) == [
        None,
        capture(TWO, url="https://example.org/"),
    ]
    assert index.counts == Counts(1)
    assert index.containers("a") == [{"filename": "a.wacz", "hash": "f" * 64, "size": 5_000}]


def test_drop_forgets_exactly_what_the_source_entered(index: CrawlIndex) -> None:
    import_whole(index, source(), record(), counts=Counts(1))
    before = index.crawls()
    second, third = source("b.wacz"), source("c.wacz")
    index.begin_source(second, "stored")
    assert index.begin_source(third, "stored") == 2
    index.add_imported(second, [record(), record(TWO, file="b")], [capture(TWO)])
    index.add_imported(third, [record(TWO, file="c"), record(THREE, file="c")])
    index.drop_source(second)
    with pytest.raises(CrawlStateError, match=r"a does not accept this source, which was not begun"):
        index.add_imported(second, [record(TWO)])
    with pytest.raises(CrawlStateError, match=r"a does not accept this source"):
        index.end_source(second, Counts(100))
    assert index.crawls() == before
    index.end_source(third, Counts(1))
    assert index.find("x", [ONE, TWO, THREE]) == [record(), record(TWO, file="c"), record(THREE, file="c")]
    assert index.find_urls("x", [HOME]) == [None]
    assert index.counts == Counts(2)
    assert index.containers("a")[2]["filename"] == "c.wacz"


def test_a_crawl_that_has_nothing_but_a_dropped_source_is_forgotten(index: CrawlIndex) -> None:
    entered = source()
    index.begin_source(entered, "stored")
    index.add_imported(entered, [record()])
    index.drop_source(entered)
    assert index.crawls() == []
    assert index.containers("a") == []
    assert index.find("a", [ONE]) == [None]
    index.start("a", "stored")
    assert [(info.state, info.imported) for info in index.crawls()] == [("uncommitted", False)]


def test_a_dropped_source_that_was_never_begun_changes_nothing(index: CrawlIndex) -> None:
    import_whole(index, source(), record())
    before = index.crawls()
    index.drop_source(source("other.wacz"))
    index.drop_source(source("b.wacz", "b"))
    assert index.crawls() == before


def test_a_large_source_is_entered_and_dropped_whole(index: CrawlIndex) -> None:
    import_whole(index, source(), record())
    entered = source("large.wacz")
    originals = [record(numbered(number), offset=number) for number in range(3_500)]
    urls = [capture(ONE, url=f"{HOME}{number}") for number in range(3_500)]
    index.begin_source(entered, "stored")
    index.add_imported(entered, originals, urls)
    index.drop_source(entered)
    assert list(index.records("a")) == [record()]
    index.begin_source(entered, "stored")
    index.add_imported(entered, originals, urls)
    index.end_source(entered, Counts())
    assert index.find("x", [original.digest for original in originals]) == originals
    assert sum(1 for _ in index.records("a")) == 3_501
    assert None not in index.find_urls("x", [url.url for url in urls])


def test_each_record_keeps_the_place_of_its_container(index: CrawlIndex) -> None:
    names = ["c.wacz", "a.wacz", "b.wacz"]
    for number, name in enumerate(names):
        place = index.begin_source(source(name), "stored")
        assert place == number
        index.add_imported(source(name), [record(numbered(number), wacz_index=place)])
        index.end_source(source(name), Counts())
    for number, name in enumerate(names):
        (found,) = index.find("x", [numbered(number)])
        assert found is not None
        assert index.containers("a")[found.wacz_index]["filename"] == name


def test_a_source_that_is_no_container_gives_the_crawl_none(index: CrawlIndex) -> None:
    entered = source("/archives/x.warc.gz", is_container=False, hash=None, size=None)
    assert index.begin_source(entered, "stored") == 0
    index.end_source(entered, Counts())
    assert index.containers("a") == []
    assert index.done_sources([entered.name]) == [True]


# States


def test_a_crawl_that_was_crawled_here_takes_no_source(index: CrawlIndex) -> None:
    index.start("a", "stored")
    with pytest.raises(CrawlStateError, match=r"The crawl a is not committed"):
        index.begin_source(source(), "stored")
    index.commit("a")
    with pytest.raises(CrawlStateError, match=r"The crawl a was crawled here"):
        index.begin_source(source(), "stored")
    assert index.unfinished_sources() == []


def test_a_crawl_whose_import_was_cut_off_is_neither_crawled_nor_committed(index: CrawlIndex) -> None:
    index.begin_source(source(), "stored")
    for action in (lambda: index.start("a", "stored"), lambda: index.commit("a")):
        with pytest.raises(CrawlStateError, match=r"The crawl a is only partly imported"):
            action()


def test_a_crawl_whose_import_was_cut_off_can_be_canceled_and_imported_again(index: CrawlIndex) -> None:
    index.begin_source(source(), "stored")
    index.add_imported(source(), [record()], [capture()])
    index.cancel("a")
    assert index.unfinished_sources() == []
    assert index.find("a", [ONE]) == [None]
    assert index.find_urls("a", [HOME]) == [None]
    with pytest.raises(CrawlStateError):
        index.add_imported(source(), [record()])
    import_whole(index, source(), record(offset=2))
    assert index.find("x", [ONE]) == [record(offset=2)]
    assert [info.state for info in index.crawls()] == ["committed"]


def test_an_import_with_the_other_payload_mode_is_refused(index: CrawlIndex) -> None:
    import_whole(index, source(), record())
    with pytest.raises(StoreRefused, match=r"The source b\.wacz holds .*--payload stored") as refusal:
        index.begin_source(source("b.wacz", "b"), "decoded")
    # A file is what it is, whatever the setting.
    assert "DEDUPE_PAYLOAD" not in str(refusal.value)
    with pytest.raises(StoreRefused, match='DEDUPE_PAYLOAD = "stored"'):
        index.start("b", "decoded")
    assert [info.id for info in index.crawls()] == ["a"]


def drop_all(index: CrawlIndex) -> None:
    index.begin_source(source(), "stored")
    index.add_imported(source(), [record()])
    index.drop_source(source())


def cancel_all(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.cancel("a")


def cancel_an_import(index: CrawlIndex) -> None:
    index.begin_source(source(), "stored")
    index.cancel("a")


def purge_all(index: CrawlIndex) -> None:
    import_whole(index, source(), record())
    crawl_whole(index, "b", record(crawl="b"))
    index.start("c", "stored")
    index.cancel("c")
    index.purge(["a", "b"])


@pytest.mark.parametrize("empty", [drop_all, cancel_all, cancel_an_import, purge_all])
def test_an_index_whose_crawls_are_all_gone_takes_either_payload_mode(
    index: CrawlIndex, empty: Callable[[CrawlIndex], None]
) -> None:
    empty(index)
    index.start("decoded", "decoded")
    assert [info.payload for info in index.crawls() if info.id == "decoded"] == ["decoded"]
    with pytest.raises(StoreRefused):
        index.begin_source(source("d.wacz", "d"), "stored")


def test_a_crawl_that_is_begun_keeps_the_payload_mode(index: CrawlIndex) -> None:
    crawl_whole(index, "b", record(crawl="b"))
    index.begin_source(source(), "stored")
    index.purge(["b"])
    with pytest.raises(StoreRefused):
        index.start("c", "decoded")
    index.start("c", "stored")
    index.drop_source(source())
    with pytest.raises(StoreRefused):
        index.start("d", "decoded")


def test_a_source_that_is_done_is_not_begun_again(index: CrawlIndex) -> None:
    entered = source()
    import_whole(index, entered, record(), counts=Counts(1))
    index.start("b", "stored")
    index.set_container("b", "b.wacz", "e" * 64, 7)
    index.commit("b")
    before = index.crawls(), index.containers("a")
    for done in (entered, source("b.wacz", "c")):
        with pytest.raises(CrawlStateError, match=r"was imported into the index .* before"):
            index.begin_source(done, "stored")
    with pytest.raises(CrawlStateError):
        index.add_imported(entered, [record(TWO)])
    index.end_source(entered, Counts(1))
    index.drop_source(entered)
    assert (index.crawls(), index.containers("a")) == before
    assert index.done_sources([entered.name, "b.wacz"]) == [True, True]
    assert index.find("x", [ONE, TWO]) == [record(), None]


def test_a_file_of_an_imported_crawl_can_be_renamed_everywhere(index: CrawlIndex) -> None:
    for name in ("a.wacz", "b.wacz"):
        import_whole(
            index,
            source(name),
            record(numbered(len(name)), file="old.warc.gz"),
            record(numbered(ord(name[0]))),
        )
    crawl_whole(index, "b")
    index.start("c", "stored")
    index.add("c", [], Counts(), needs=[Need("a", 0, "old.warc.gz")])
    index.rename_file("a", "old.warc.gz", "new.warc.gz")
    (found,) = index.find("x", [numbered(6)])
    assert found is not None
    assert found.file == "new.warc.gz"
    assert index.needs("c") == [Need("a", 0, "new.warc.gz")]
    assert "old.warc.gz" not in next(info for info in index.crawls() if info.id == "a").files


@pytest.mark.parametrize("is_import", [True, False])
def test_a_capture_has_its_digest_whenever_its_record_was_entered(index: CrawlIndex, is_import: bool) -> None:
    urls = [
        UrlCapture(f"{HOME}{number}", digest, "20260801120000123", b"v" * number)
        for number, digest in enumerate((ONE, TWO, THREE, "Z" * 32, numbered(1)))
    ]
    first, second = [record(), record("Z" * 32)], [record(TWO), record(TWO), record(THREE)]
    if is_import:
        index.begin_source(source(), "stored")
        index.add_imported(source(), first)
        index.add_imported(source(), second, urls)
        index.end_source(source(), Counts())
    else:
        index.start("a", "stored")
        index.add("a", first, Counts())
        index.add("a", second, Counts(), urls)
        index.commit("a")
    for crawl in ("a", "x"):
        assert index.find_urls(crawl, [capture.url for capture in urls]) == urls


# The queue


def test_sources_leave_the_queue_in_their_order_and_each_once(index: CrawlIndex) -> None:
    sources = [source(f"{number}.wacz") for number in range(3)]
    assert index.queue_sources(sources[:2]) == 2
    assert index.queue_sources(sources) == 1
    assert index.queue_length() == (3, 0)
    claimed = [index.claim_source(60) for _ in range(4)]
    assert claimed == [*sources, None]
    assert index.queue_length() == (0, 3)
    assert index.queue_sources(sources) == 0
    for entered in filter(None, claimed):
        index.begin_source(entered, "stored")
        index.end_source(entered, Counts())
    assert index.queue_length() == (0, 0)
    assert index.queue_sources(sources) == 0


def test_what_a_source_says_of_itself_comes_back_from_the_queue(index: CrawlIndex) -> None:
    sources = [
        Source("https://example.com/ü x.warc.gz", "a", "https://example.com/ü x.warc.gz"),
        Source("b.wacz", "b", "s3://archive/b.wacz", True, "e" * 64, 0),
    ]
    index.queue_sources(sources)
    assert [index.claim_source(60), index.claim_source(60)] == sources


def test_a_lease_that_ran_out_is_given_to_the_next_before_the_rest_of_the_queue(index: CrawlIndex) -> None:
    first, second = source("1.wacz"), source("2.wacz")
    index.queue_sources([first, second])
    assert index.claim_source(LEAST_S) == first
    time.sleep(2 * LEAST_S)
    assert index.claim_source(60) == first
    assert index.claim_source(60) == second
    assert index.claim_source(60) is None


def test_a_renewed_lease_does_not_run_out(index: CrawlIndex) -> None:
    index.queue_sources([source()])
    claimed = claim(index, LEAST_S)
    assert claimed == source()
    index.renew_lease(claimed, 60)
    time.sleep(2 * LEAST_S)
    assert index.claim_source(60) is None


def test_a_released_source_can_be_queued_again(index: CrawlIndex) -> None:
    index.queue_sources([source()])
    claimed = claim(index)
    index.release_source(claimed)
    index.release_source(claimed)
    assert index.queue_length() == (0, 0)
    assert index.claim_source(60) is None
    assert index.queue_sources([source()]) == 1


# What another process took over


def taken_over(index: CrawlIndex, *, is_begun: bool = True) -> tuple[Source, Source]:
    """A source as the process has it whose lease ran out, and as that one which has claimed it since."""
    index.queue_sources([source()])
    first = claim(index, LEAST_S)
    if is_begun:
        index.begin_source(first, "stored")
        index.add_imported(first, [record()], [capture()])
    time.sleep(2 * LEAST_S)
    second = claim(index)
    assert first.token != second.token
    assert "" not in (first.token, second.token)
    return first, second


STEPS: dict[str, Callable[[CrawlIndex, Source], object]] = {
    "renew": lambda index, entered: index.renew_lease(entered, 60),
    "begin": lambda index, entered: index.begin_source(entered, "stored"),
    "add": lambda index, entered: index.add_imported(entered, [record(TWO)]),
    "files": lambda index, entered: index.add_imported(entered, [], files=["x.warc.gz"]),
    "end": lambda index, entered: index.end_source(entered, Counts(100), waiting=[Waiting(THREE, 1)]),
    "drop": lambda index, entered: index.drop_source(entered),
    "release": lambda index, entered: index.release_source(entered),
}


@pytest.mark.parametrize("is_begun_again", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_who_was_silent_for_too_long_changes_nothing_of_a_source_that_another_claimed(
    index: CrawlIndex, step: str, is_begun_again: bool
) -> None:
    first, second = taken_over(index)
    if is_begun_again:
        index.begin_source(second, "stored")
        index.add_imported(second, [record(offset=1)])
    with pytest.raises(TakenOver, match=r"another process took over"):
        STEPS[step](index, first)
    if not is_begun_again:
        index.begin_source(second, "stored")
        index.add_imported(second, [record(offset=1)])
    index.renew_lease(second, 60)
    index.end_source(second, Counts(1))
    assert index.find("x", [ONE, TWO]) == [record(offset=1), None]
    (info,) = index.crawls()
    assert (info.counts, info.waiting, info.files) == (Counts(1), 0, (record().file,))
    assert index.queue_length() == (0, 0)


def test_a_source_that_another_has_ended_is_ended(index: CrawlIndex) -> None:
    first, second = taken_over(index)
    index.begin_source(second, "stored")
    index.add_imported(second, [record()])
    index.end_source(second, Counts(1))
    for step in ("begin", "add"):
        with pytest.raises(CrawlStateError):
            STEPS[step](index, first)
    index.end_source(first, Counts(1))
    index.drop_source(first)
    index.release_source(first)
    assert index.counts == Counts(1)
    assert list(index.records("a")) == [record()]


def test_nobody_has_what_was_begun_before_without_beginning_it(index: CrawlIndex) -> None:
    _, second = taken_over(index)
    for step in ("add", "end"):
        with pytest.raises(CrawlStateError, match=r"was not begun"):
            STEPS[step](index, second)
    index.drop_source(second)
    index.release_source(second)
    assert index.crawls() == index.unfinished_sources() == []
    assert index.queue_length() == (0, 0)


def test_a_source_that_nobody_took_over_is_still_that_of_who_was_silent(index: CrawlIndex) -> None:
    index.queue_sources([source()])
    entered = claim(index, LEAST_S)
    index.begin_source(entered, "stored")
    time.sleep(2 * LEAST_S)
    index.add_imported(entered, [record()])
    index.end_source(entered, Counts(1))
    assert index.find("x", [ONE]) == [record()]
    assert index.queue_length() == (0, 0)


@pytest.mark.parametrize("step", STEPS)
def test_a_claimed_source_is_not_touched_by_who_has_not_claimed_it(index: CrawlIndex, step: str) -> None:
    _, second = taken_over(index, is_begun=False)
    with pytest.raises(TakenOver):
        STEPS[step](index, source())
    index.begin_source(second, "stored")
    index.end_source(second, Counts(1))
    assert index.counts == Counts(1)


def test_done_are_sources_that_ended_and_containers_of_committed_crawls(index: CrawlIndex) -> None:
    import_whole(index, source())
    index.begin_source(source("begun.wacz"), "stored")
    index.start("b", "stored")
    index.set_container("b", "b.wacz", "e" * 64, 7)
    names = ["a.wacz", "begun.wacz", "b.wacz", "unknown.wacz"]
    assert index.done_sources(names) == [True, False, False, False]
    index.commit("b")
    assert index.done_sources(names) == [True, False, True, False]
    assert index.queue_sources([source(name) for name in names]) == 2


def claim_all(url: str, claimed: Any) -> None:
    store = open_store(url, timeout_s=240)
    while (entered := store.index.claim_source(60)) is not None:
        claimed.put(entered.name)
    store.close()


def test_two_processes_never_claim_the_same_source(store_url: str) -> None:
    names = [f"{number}.wacz" for number in range(60)]
    store = open_store(store_url)
    store.index.queue_sources([source(name) for name in names])
    context = multiprocessing.get_context("forkserver")
    claimed = context.Queue()
    workers = [context.Process(target=claim_all, args=(store_url, claimed)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [claimed.get(timeout=240) for _ in names]
    for worker in workers:
        worker.join(240)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sorted(found) == sorted(names)
    assert claimed.empty()
    assert store.index.queue_length() == (0, 60)
    store.close()


# Revisits that wait


def test_a_revisit_that_waits_is_resolved_once(index: CrawlIndex) -> None:
    import_whole(index, source(), counts=Counts(1, 1), waiting=[Waiting(ONE, 300), Waiting(ONE, 300)])
    assert index.resolve() == 0
    assert [info.waiting for info in index.crawls() if info.id == "a"] == [1]
    crawl_whole(index, "b", record(crawl="b", wacz_index=0, file="b.warc.gz"))
    assert index.resolve() == 0
    assert counts_of(index)["a"] == Counts(1, 1, 1_400)
    assert index.counts == Counts(1, 1, 1_400)
    assert index.needs("a") == [Need("b", 0, "b.warc.gz")]
    assert [info.waiting for info in index.crawls()] == [0, 0]


def test_an_original_of_the_own_crawl_comes_first_and_is_no_need(index: CrawlIndex) -> None:
    crawl_whole(index, "b", record(crawl="b", size=9_000))
    import_whole(index, source(), waiting=[Waiting(ONE, 300), Waiting(TWO, 2_000)])
    import_whole(index, source("b.wacz"), record(), record(TWO))
    assert index.resolve() == 2
    assert counts_of(index)["a"] == Counts(0, 0, 700, 0)
    assert index.needs("a") == []


def test_a_revisit_waits_for_a_commit_and_not_for_what_is_hidden(index: CrawlIndex) -> None:
    import_whole(index, source(), waiting=[Waiting(ONE, 300), Waiting(TWO, 300)])
    index.start("b", "stored")
    index.add("b", [record(crawl="b")], Counts())
    index.begin_source(source("b.wacz"), "stored")
    index.add_imported(source("b.wacz"), [record(TWO)])
    assert index.resolve() == 0
    index.commit("b")
    assert [info.waiting for info in index.crawls() if info.id == "a"] == [1]
    index.end_source(source("b.wacz"), Counts())
    assert index.resolve() == 1


def test_revisits_of_a_running_crawl_can_wait(index: CrawlIndex) -> None:
    index.start("a", "stored")
    index.add("a", [], Counts(1, 1), waiting=[Waiting(ONE, 300)])
    assert [info.waiting for info in index.crawls()] == [1]
    index.add("a", [record()], Counts(), waiting=[Waiting(ONE, 400)])
    assert index.resolve() == 2
    assert counts_of(index)["a"] == Counts(1, 1, 1_300)
    index.add("a", [], Counts(), waiting=[Waiting(TWO, 400)])
    index.cancel("a")
    crawl_whole(index, "b", record(TWO, "b"))
    assert index.resolve() == 0
    assert [info.waiting for info in index.crawls()] == [0, 0]


def test_what_an_unfinished_source_waits_for_is_not_resolved(index: CrawlIndex) -> None:
    crawl_whole(index, "b", record(crawl="b"))
    import_whole(index, source())
    index.begin_source(source("b.wacz"), "stored")
    assert index.resolve() == 0
    index.end_source(source("b.wacz"), Counts(), waiting=[Waiting(ONE, 300)])
    assert index.resolve() == 1
    assert counts_of(index)["a"] == Counts(0, 0, 700)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_counts_and_needs_are_the_same_in_whatever_order_sources_come(
    index: CrawlIndex, order: tuple[int, ...]
) -> None:
    """One source has the original, two have revisits: one of the same crawl, one of another."""
    steps = [
        lambda: import_whole(index, source("1.wacz"), record(file="1"), counts=Counts(1)),
        lambda: import_whole(index, source("2.wacz"), counts=Counts(1, 1), waiting=[Waiting(ONE, 300)]),
        lambda: import_whole(
            index,
            source("3.wacz", "b"),
            counts=Counts(2, 2),
            waiting=[Waiting(ONE, 200), Waiting(ONE, 1_200)],
        ),
    ]
    for number in order:
        steps[number]()
    assert index.resolve() == 3
    assert counts_of(index) == {"a": Counts(2, 1, 700), "b": Counts(2, 2, 800)}
    assert index.needs("a") == []
    ((needed, file),) = {(need.crawl, need.file) for need in index.needs("b")}
    assert (needed, file) == ("a", "1")


def test_many_revisits_are_resolved(index: CrawlIndex) -> None:
    digests = [numbered(number) for number in range(2_300)]
    import_whole(index, source(), waiting=[Waiting(digest, 10) for digest in digests])
    crawl_whole(index, "b", *(record(digest, "b", size=11) for digest in digests[::2]))
    assert counts_of(index)["a"] == Counts(0, 0, 1_150)
    (info, _) = sorted(index.crawls(), key=lambda info: info.id)
    assert info.waiting == 1_150


# Notes


def test_notes_of_imports_come_back(index: CrawlIndex) -> None:
    assert index.import_notes == ImportNotes()
    notes = ImportNotes(0.25, "2026-08-01T12:00:00.000Z", 3, 123_456)
    index.note_imports(notes)
    assert index.import_notes == notes
    index.note_imports(ImportNotes())
    assert index.import_notes == ImportNotes()


# Several processes


def import_many(url: str, first: int) -> None:
    store = open_store(url, timeout_s=240)
    for number in range(first, first + 10):
        entered = source(f"{number}.wacz", "imported")
        place = store.index.begin_source(entered, "stored")
        digests = [numbered(number * 50 + step) for step in range(75)]
        for start in range(0, 75, 25):
            batch = [
                record(digest, "imported", wacz_index=place, file=entered.name)
                for digest in digests[start : start + 25]
            ]
            store.index.add_imported(entered, batch, [capture(ONE, url=f"{HOME}{start}")])
        store.index.end_source(entered, Counts(75, 0, 0, 1), waiting=[Waiting(numbered(10**6 + number), 5)])
    store.close()


def crawl_many(url: str) -> None:
    store = open_store(url, timeout_s=240)
    store.index.start("crawled", "stored")
    for number in range(150):
        store.index.add("crawled", [record(numbered(10**6 + number), "crawled")], Counts(1))
        store.index.find("crawled", [numbered(number)])
    store.index.commit("crawled")
    store.index.resolve()
    store.close()


def test_two_importers_into_one_crawl_and_a_running_crawl_do_not_disturb_each_other(store_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    workers = [
        context.Process(target=import_many, args=(store_url, 0)),
        context.Process(target=import_many, args=(store_url, 10)),
        context.Process(target=crawl_many, args=(store_url,)),
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    store = open_store(store_url)
    index = store.index
    index.resolve()
    assert counts_of(index) == {
        "imported": Counts(1_500, 0, 20 * 995, 20),
        "crawled": Counts(150),
    }
    found = index.find("x", [numbered(number) for number in range(1_025)])
    assert None not in found
    places = {container["filename"]: place for place, container in enumerate(index.containers("imported"))}
    assert sorted(places.values()) == list(range(20))
    assert {(original.file, original.wacz_index) for original in found if original} <= set(places.items())
    digests = [original.digest for original in index.records("imported")]
    assert len(digests) == len(set(digests)) == 1_025
    store.close()


# SQLite alone: what lies under its crawls, and stores of earlier versions


def test_two_sources_with_one_payload_may_overlap_and_one_be_dropped(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'index.sqlite'}")
    first, second, third = (source(f"{number}.wacz") for number in range(3))
    for number, entered in enumerate((first, second, third)):
        store.index.begin_source(entered, "stored")
        store.index.add_imported(entered, [record(offset=number)])
    store.index.drop_source(first)
    store.index.end_source(third, Counts())
    assert store.index.find("x", [ONE]) == [record(offset=2)]
    store.index.end_source(second, Counts())
    assert store.index.find("x", [ONE]) == list(store.index.records("a")) == [record(offset=1)]
    store.close()


def test_a_crawl_finds_what_has_ended_before_what_may_yet_be_dropped(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'index.sqlite'}")
    first, second = source("1.wacz"), source("2.wacz")
    for number, entered in enumerate((first, second)):
        store.index.begin_source(entered, "stored")
        store.index.add_imported(entered, [record(offset=number)])
    assert store.index.find("a", [ONE]) == [record(offset=0)]
    store.index.end_source(second, Counts())
    assert store.index.find("a", [ONE]) == [record(offset=1)]
    store.close()


def test_others_may_write_while_many_sources_are_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    store, other = open_store(url), open_store(url, timeout_s=0.1)
    written: list[float] = []

    def write(began: float) -> None:
        other.index.note_imports(ImportNotes())
        written.append(began)

    monkeypatch.setattr(sqlite_index_imports, "let_others_write", write)
    sources = [source(f"{number}.wacz") for number in range(2_500)]
    assert store.index.queue_sources(sources) == 2_500
    assert store.index.queue_sources(sources[:10]) == 0
    assert len(written) == 2
    store.close()
    other.close()


def test_nothing_is_left_of_sources_that_were_dropped(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'index.sqlite'}")
    store.index.begin_source(source(), "stored")
    store.index.add_imported(source(), [record()], [capture()])
    store.index.begin_source(source(), "stored")
    store.index.drop_source(source())
    for table in ("original", "crawl_url", "crawl_file", "crawl_container", "source_begun"):
        rows = store.index._connection.execute(f"SELECT count(*) FROM {table}")  # type: ignore[attr-defined]
        assert rows.fetchone() == (0,), table
    store.close()
