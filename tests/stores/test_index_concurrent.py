"""The contract of crawls whose records others may refer to before the commit, on both stores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores.base import Counts, Original, UrlCapture, Waiting

if TYPE_CHECKING:
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)
HOME = "https://example.com/"


def record(digest: str = ONE, crawl: str = "a", **changes: Any) -> Original:
    usual = Original(digest, crawl, "20260801120000", HOME, 1_000, file=f"{crawl}.warc.gz", offset=7)
    return replace(usual, **changes)


def enter(index: CrawlIndex, crawl: str, *digests: str, counts: Counts | None = None) -> None:
    index.add(crawl, [record(digest, crawl) for digest in digests], counts or Counts())


def test_others_find_the_records_of_a_concurrent_crawl_at_once(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    enter(index, "a", ONE, counts=Counts(1))
    index.start("b", "stored")
    enter(index, "b", TWO)
    assert index.find("x", [ONE, TWO]) == [record(), None]
    assert [(info.id, info.state, info.concurrent) for info in index.crawls()] == [
        ("a", "uncommitted", True),
        ("b", "uncommitted", False),
    ]
    assert index.counts == Counts()
    index.commit("a")
    assert index.find("x", [ONE]) == [record()]
    assert index.counts == Counts(1)
    assert index.merged_faults() == 0


def test_the_captures_of_a_concurrent_crawl_are_found_by_others_after_the_commit(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    capture = UrlCapture(HOME, ONE, "20260801120000")
    index.add("a", [record()], Counts(), [capture])
    assert index.find_urls("a", [HOME]) == [capture]
    assert index.find_urls("x", [HOME]) == [None]
    index.commit("a")
    assert index.find_urls("x", [HOME]) == [capture]


@pytest.mark.parametrize("concurrent", [True, False])
def test_whether_a_crawl_is_concurrent_is_decided_when_it_begins(index: CrawlIndex, concurrent: bool) -> None:
    index.start("a", "stored", concurrent=concurrent)
    index.start("a", "stored", concurrent=not concurrent)
    enter(index, "a", ONE)
    assert index.find("x", [ONE]) == [record() if concurrent else None]
    assert [info.concurrent for info in index.crawls()] == [concurrent]
    index.cancel("a")
    index.start("a", "stored", concurrent=not concurrent)
    enter(index, "a", ONE)
    assert index.find("x", [ONE]) == [None if concurrent else record()]


def test_a_cancel_removes_exactly_what_the_crawl_has(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    index.start("b", "stored", concurrent=True)
    index.start("c", "stored")
    enter(index, "a", ONE, TWO)
    enter(index, "b", TWO, THREE)
    enter(index, "c", ONE)
    index.commit("c")
    index.cancel("a")
    assert index.find("x", [ONE, TWO, THREE]) == [record(ONE, "c"), record(TWO, "b"), record(THREE, "b")]
    index.cancel("b")
    index.cancel("b")
    assert index.find("x", [ONE, TWO, THREE]) == [record(ONE, "c"), None, None]
    assert index.counts == Counts()
    assert index.merged_faults() == 0


def test_a_reset_takes_the_records_of_a_concurrent_crawl_back(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    enter(index, "a", ONE, TWO, counts=Counts(2))
    index.reset("a")
    assert index.find("x", [ONE, TWO]) == [None, None]
    enter(index, "a", TWO, counts=Counts(1))
    assert index.find("x", [ONE, TWO]) == [None, record(TWO)]
    index.commit("a")
    assert index.find("x", [ONE, TWO]) == [None, record(TWO)]
    assert index.counts == Counts(1)


def test_one_payload_of_two_concurrent_crawls_belongs_to_one_and_each_has_its_own(index: CrawlIndex) -> None:
    for crawl in ("a", "b"):
        index.start(crawl, "stored", concurrent=True)
        enter(index, crawl, ONE)
    assert index.find("a", [ONE]) == [record()]
    assert index.find("b", [ONE]) == [record(ONE, "b")]
    assert index.find("x", [ONE]) == [record()]
    index.commit("b")
    index.commit("a")
    assert index.find("x", [ONE]) == [record()]
    index.purge(["a"])
    assert index.find("x", [ONE]) == [record(ONE, "b")]
    assert index.merged_faults() == 0


def test_a_revisit_that_waits_is_not_given_an_original_that_may_yet_be_canceled(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    enter(index, "a", ONE)
    index.start("b", "stored")
    index.add("b", [], Counts(1, 1), waiting=[Waiting(ONE, 400)])
    assert index.resolve() == 0
    index.commit("a")
    assert [need.crawl for need in index.needs("b")] == ["a"]
    assert {info.id: info.counts for info in index.crawls()}["b"] == Counts(1, 1, 600)


def test_a_concurrent_crawl_is_not_purged_before_its_commit(index: CrawlIndex) -> None:
    index.start("a", "stored", concurrent=True)
    enter(index, "a", ONE)
    with pytest.raises(CrawlStateError):
        index.purge(["a"])
    assert index.find("x", [ONE]) == [record()]
    index.commit("a")
    index.purge(["a"])
    assert index.find("x", [ONE]) == [None]


def test_a_concurrent_crawl_can_take_the_place_of_a_committed_one(index: CrawlIndex) -> None:
    index.start("a", "stored")
    enter(index, "a", ONE)
    index.commit("a")
    index.start("b", "stored", concurrent=True)
    enter(index, "b", TWO)
    index.replace("a", "b")
    assert index.find("x", [ONE, TWO]) == [None, record(TWO, file="b.warc.gz")]
    assert [(info.id, info.state, info.concurrent) for info in index.crawls()] == [("a", "committed", False)]
    assert index.merged_faults() == 0
