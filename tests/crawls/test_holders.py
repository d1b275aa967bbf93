"""Which container a record of another crawl is in."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dedupe.crawls.holders import Container, Containers
from scrapy_dedupe.stores.base import Counts, CrawlInfo

PACKED = {"filename": "a.wacz", "hash": "ab" * 32, "size": 7}
TO_BE_PACKED = {"filename": "a.wacz"}
MEMBER = "https://example.com/a.wacz/archive/1.warc.gz"


def info(**values: Any) -> CrawlInfo:
    return CrawlInfo("a", **({"state": "committed"} | values), **FIXED)


FIXED: dict[str, Any] = {"payload": "stored", "started": None, "committed": None, "counts": Counts()}


def holding(known: dict[str, object], crawl: CrawlInfo | None, file: str | None = None) -> str | None:
    found = Containers([known], crawl).holding(0, file)
    return None if found is None else found.name


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


def test_an_imported_one_whose_size_alone_is_known_holds_its_records() -> None:
    known = {"filename": "a.wacz", "size": 7}
    assert holding(known, info(imported=True), MEMBER) == "a.wacz"
    assert holding(known, info(imported=True)) == "a.wacz"


def test_a_warc_file_that_was_imported_by_itself_is_in_no_container() -> None:
    assert holding(PACKED, info(imported=True), "https://example.com/1.warc.gz") is None


@pytest.mark.parametrize(
    "known", [{}, {"filename": 7, "size": 7}, {"filename": "a.warc.gz", "hash": "ab" * 32, "size": 7}]
)
def test_what_is_no_wacz_holds_nothing(known: dict[str, object]) -> None:
    assert holding(known, info()) is None


def test_a_place_that_is_not_there_holds_nothing() -> None:
    assert Containers([PACKED], info()).holding(1, None) is None
    assert Containers([], info()).named(0) is None
