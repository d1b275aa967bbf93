"""Which container a record of another crawl is in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_dedupe.crawls.dependencies import Container, Containers, needs_meant
from scrapy_dedupe.stores.base import Counts, CrawlInfo, Need

PACKED = {"filename": "a.wacz", "hash": "ab" * 32, "size": 7}
TO_BE_PACKED = {"filename": "a.wacz"}
MEMBER = "https://example.com/a.wacz/archive/1.warc.gz"


def info(**values: Any) -> CrawlInfo:
    return CrawlInfo("a", **({"state": "committed", "software": OURS} | values), **FIXED)


FIXED: dict[str, Any] = {"payload": "stored", "started": None, "committed": None, "counts": Counts()}
OURS = "scrapy-dedupe 1.0"


def holding(known: dict[str, object], crawl: CrawlInfo | None, file: str | None = None) -> str | None:
    found = Containers([known], crawl).holding(0, file)
    return None if found is None else found.filename


def test_a_packed_container_holds_the_records_of_its_crawl() -> None:
    assert Containers([{}, PACKED], info()).holding(1, "/warcs/1.warc.gz") == Container(
        "a.wacz", "ab" * 32, 7
    )


def test_one_that_is_not_packed_holds_those_of_a_concurrent_crawl_that_runs() -> None:
    assert holding(TO_BE_PACKED, info(state="uncommitted", concurrent=True)) == "a.wacz"


@pytest.mark.parametrize(
    "crawl",
    [info(), info(concurrent=True), info(state="uncommitted"), info(state="canceled", concurrent=True), None],
)
def test_one_that_may_never_be_packed_holds_nothing(crawl: CrawlInfo | None) -> None:
    assert holding(TO_BE_PACKED, crawl) is None


def test_the_only_one_of_another_programs_crawl_holds_its_records_without_size_and_hash() -> None:
    # As Browsertrix's importer enters it, in a crawl of its own or in one that was imported here.
    assert holding(TO_BE_PACKED, info(software=None)) == "a.wacz"
    assert holding(TO_BE_PACKED, info(imported=True)) == "a.wacz"
    assert holding(TO_BE_PACKED, info(software=None, state="uncommitted")) is None
    # It gives the records of all containers the first place.
    several = Containers([TO_BE_PACKED, {"filename": "b.wacz"}], info(software=None))
    assert several.holding(0, None) is None


def test_an_imported_one_whose_size_alone_is_known_holds_its_records() -> None:
    known = {"filename": "a.wacz", "size": 7}
    assert holding(known, info(imported=True), MEMBER) == "a.wacz"
    assert holding(known, info(imported=True)) == "a.wacz"


def test_an_imported_one_may_have_any_name() -> None:
    known = {"filename": "c2", "hash": "ab" * 32, "size": 7}
    assert holding(known, info(imported=True), MEMBER) == "a.wacz"
    assert holding(known, info(imported=True)) == "c2"
    assert holding(known, info(imported=True), "https://example.com/1.warc.gz") is None
    assert holding(known, info(), MEMBER) is None


def test_a_warc_file_that_was_imported_by_itself_is_in_no_container() -> None:
    assert holding(PACKED, info(imported=True), "https://example.com/1.warc.gz") is None


@pytest.mark.parametrize(
    "known", [{}, {"filename": 7, "size": 7}, {"filename": "a.warc.gz", "hash": "ab" * 32, "size": 7}]
)
def test_what_is_no_wacz_holds_nothing(known: dict[str, object]) -> None:
    assert holding(known, info()) is None


def test_a_place_that_is_not_there_holds_nothing() -> None:
    assert Containers([PACKED], info()).holding(1, None) is None
    assert Containers([], info()).meant(Need("a", 0)) is None


def test_a_bare_name_means_the_container_of_that_name_whatever_its_place() -> None:
    known = Containers([PACKED, {"filename": "b.wacz"}], info())
    packed, other = known.known
    assert known.meant(Need("a", 0, "b.wacz")) == other
    assert known.meant(Need("a", 0, "c.wacz")) is None
    assert known.meant(Need("a", 0, MEMBER)) == packed
    assert known.meant(Need("a", 0)) == packed
    assert known.meant(Need("a", 2)) is None


@pytest.mark.parametrize(("waiting", "moot"), [(0, []), (3, [Need("gone", 0, "b.wacz")])])
def test_a_need_of_a_crawl_under_another_id_is_that_of_who_has_the_container(
    waiting: int, moot: list[Need]
) -> None:
    crawls = {"here": info(), "mine": replace(info(waiting=waiting), id="mine")}
    # A WACZ that only the crawl itself has was imported under its id.
    own = Containers([{"filename": "d.wacz"}], None)
    containers = {"here": Containers([PACKED], info()), "mine": own}
    needs = [
        Need("base", 0, "d.wacz"),
        Need("theirs", 0, "a.wacz"),
        Need("gone", 0, "b.wacz"),
        Need("purged", 0, MEMBER),
        Need("here", 0, "c.wacz"),
        Need("mine", 0, "a.wacz"),
    ]
    found = needs_meant("mine", needs, crawls, lambda crawl: containers.get(crawl, Containers([], None)))
    assert found == [Need("here", 0, "a.wacz"), *moot, Need("purged", 0, MEMBER), Need("here", 0, "c.wacz")]
