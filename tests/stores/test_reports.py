"""The contract of :class:`~scrapy_dedupe.stores.base.ReportStore`, on both stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import CrawlStateError, StoreRefused, StoreUnavailable
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from scrapy_dedupe.stores import Store

DATA = bytes(range(256)) * 400


def test_what_is_saved_is_found_again_by_another_process(store: Store, store_url: str) -> None:
    store.reports.save("first", DATA)
    other = open_store(store_url)
    try:
        assert other.reports.load("first") == DATA
        assert other.reports.crawls() == ["first"]
    finally:
        other.close()


def test_the_last_value_of_a_crawl_counts(store: Store) -> None:
    store.reports.save("first", b"old")
    store.reports.save("second", b"")
    store.reports.save("first", b"new")
    assert store.reports.load("first") == b"new"
    assert store.reports.load("second") == b""
    assert store.reports.crawls() == ["first", "second"]


def test_nothing_is_known_of_an_unknown_crawl(store: Store) -> None:
    assert store.reports.load("unknown") is None
    assert store.reports.crawls() == []


def test_deleting_can_be_repeated_and_leaves_others(store: Store) -> None:
    store.reports.save("first", b"1")
    store.reports.save("second", b"2")
    store.reports.delete("first")
    store.reports.delete("first")
    assert store.reports.load("first") is None
    assert store.reports.crawls() == ["second"]


def test_a_canceled_crawl_loses_its_report(store: Store) -> None:
    for crawl in ("first", "second"):
        store.index.start(crawl, "stored")
        store.reports.save(crawl, b"seen")
    store.index.cancel("first")
    assert store.reports.crawls() == ["second"]
    # A process that did not know of it yet has saved it once more.
    store.reports.save("first", b"seen")
    store.index.cancel("first")
    assert store.reports.crawls() == ["second"]


def test_a_purged_crawl_loses_its_report_and_a_kept_one_does_not(store: Store) -> None:
    for crawl in ("first", "second"):
        store.index.start(crawl, "stored")
        store.reports.save(crawl, b"seen")
        store.index.commit(crawl)
    store.index.purge(["first"])
    assert store.reports.crawls() == ["second"]
    assert store.reports.load("first") is None


def test_a_refused_cancel_or_purge_leaves_the_report(store: Store) -> None:
    store.index.start("committed", "stored")
    store.index.commit("committed")
    store.index.start("running", "stored")
    for crawl in ("committed", "running"):
        store.reports.save(crawl, b"seen")
    with pytest.raises(CrawlStateError):
        store.index.cancel("committed")
    with pytest.raises(CrawlStateError):
        store.index.purge(["committed", "running"])
    assert store.reports.crawls() == ["committed", "running"]


def test_a_crawl_that_is_replaced_keeps_its_own_report(store: Store) -> None:
    store.index.start("first", "stored")
    store.index.commit("first")
    store.reports.save("first", b"seen")
    store.index.start("first~repair", "stored")
    store.index.replace("first", "first~repair")
    assert store.reports.load("first") == b"seen"


def test_a_crawl_goes_on_with_its_report(store: Store) -> None:
    store.index.start("first", "stored")
    store.reports.save("first", b"seen")
    store.index.start("first", "stored")
    assert store.reports.load("first") == b"seen"


def test_a_key_of_something_else_is_refused_and_left(redis_url: str, client: redis.Redis) -> None:
    client.sadd("dedupe:reports", "a")
    store = open_store(redis_url)
    with pytest.raises(StoreRefused):
        store.reports.load("first")
    with pytest.raises(StoreRefused):
        store.index.start("first", "stored")
    store.close()
    assert client.smembers("dedupe:reports") == {b"a"}


def test_a_closed_file_is_told_as_a_store_that_is_away(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'dedupe.sqlite'}")
    store.close()
    for call in (store.reports.crawls, lambda: store.reports.save("a", b""), lambda: store.reports.load("a")):
        with pytest.raises(StoreUnavailable):
            call()
