"""What was seen during crawls without an archive is forgotten with their texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.commands.content.verbs import forget_reports
from scrapy_dedupe.reports.observations import Observations, pack
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.stores import Store

T = 1_793_000_000.0


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """Two crawls of the index, two without an archive, and one of which nobody can read when it ended."""
    store = open_store(store_url)
    for number, crawl in enumerate(("first", "second", "texts-old", "texts-new")):
        store.reports.save(crawl, pack(Observations(lambda number=number: T + 1_000 * number)))  # type: ignore[misc]
    store.reports.save("texts-odd", b"?")
    yield store
    store.close()


def test_all_but_those_of_the_index_are_forgotten(store: Store) -> None:
    assert forget_reports(store) == 3
    assert store.reports.crawls() == ["first", "second"]
    assert forget_reports(store) == 0


def test_those_of_one_crawl_are_forgotten(store: Store) -> None:
    assert forget_reports(store, crawl="texts-new") == 1
    assert forget_reports(store, crawl="first") == 0
    assert store.reports.crawls() == ["first", "second", "texts-odd", "texts-old"]


def test_those_that_ended_earlier_are_forgotten(store: Store) -> None:
    before = datetime.fromtimestamp(T + 2_500, UTC)
    assert forget_reports(store, before=before, crawl="texts-new") == 0
    assert forget_reports(store, before=before) == 1
    assert store.reports.crawls() == ["first", "second", "texts-new", "texts-odd"]


def test_purging_the_texts_of_a_crawl_forgets_what_was_seen_during_it(
    call: Callable[..., Any], store: Store, store_url: str
) -> None:
    assert call("content", "purge", "--crawl", "texts-new", "--dry-run", "--store", store_url).code == 0
    assert "texts-new" in store.reports.crawls()
    assert call("content", "purge", "--crawl", "texts-new", "--yes", "--store", store_url).code == 0
    assert "texts-new" not in store.reports.crawls()
    assert call("content", "purge", "--all", "--yes", "--store", store_url).code == 0
    assert store.reports.crawls() == ["first", "second"]
