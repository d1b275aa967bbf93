"""``commit`` and ``warc pack`` for crawls that were imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import Counts, Source

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Source("theirs.wacz", "theirs", "/nowhere/theirs.wacz", True, "ab" * 32, 9_000)


@pytest.fixture
def store_url(each_store_url: str) -> str:
    return each_store_url


def test_one_whose_import_was_cut_off_is_not_committed(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.begin_source(SOURCE, "stored")
    called = call("commit", "--store", store_url, "theirs")
    assert called.code == 3
    assert "theirs" in called.err
    assert "import" in called.err
    with open_index(store_url) as index:
        assert [info.state for info in index.crawls()] == ["uncommitted"]


def test_one_that_is_committed_stays_as_it_is_and_is_not_packed(
    call: Callable[..., Any], store_url: str
) -> None:
    with open_index(store_url) as index:
        index.begin_source(SOURCE, "stored")
        index.end_source(SOURCE, Counts(total_urls=3))
    called = call("commit", "--store", store_url, "theirs")
    assert (called.code, called.err) == (0, "")
    assert called.out == "The crawl theirs is committed.\n"


def test_one_is_not_packed_by_hand_either(call: Callable[..., Any], store_url: str) -> None:
    source = Source("/nowhere/theirs.warc.gz", "theirs", "/nowhere/theirs.warc.gz")
    with open_index(store_url) as index:
        index.begin_source(source, "stored")
        index.end_source(source, Counts(total_urls=3))
    called = call("warc", "pack", "--store", store_url, "theirs")
    assert called.code == 3
    assert "The crawl theirs was imported" in called.err
