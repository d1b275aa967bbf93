"""Pages of the HTTP cache whose files change while a crawl reads them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from recorded_crawls import OpenGuard, page, record_crawl

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.cached_pages import CachedPages, PageQuery
from scrapy_dedupe.crawls.captured_records import RecentExchanges
from scrapy_dedupe.crawls.live_index import KnownFiles
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.cached_pages import Found


@pytest.fixture
def index(tmp_path: Path) -> Iterator[CrawlIndex]:
    with open_index(f"sqlite:///{tmp_path / 'index.sqlite'}") as index:
        yield index


class Cache:
    def __init__(self, index: CrawlIndex) -> None:
        self.exchanges = RecentExchanges()
        self._pages = CachedPages(index, "two", OpenGuard(), self.exchanges)

    def find(self, number: int) -> Found:
        (found,) = self._pages.find([PageQuery(page(number).url, ())], datetime.now(UTC))
        return found

    def body(self, number: int) -> bytes:
        found = self.find(number).page
        assert found is not None
        return found.playable.payload


def test_a_page_is_found_again_when_its_file_was_renamed(index: CrawlIndex, tmp_path: Path) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1, 2])
    opened = file.rename(f"{file}.open")
    cache = Cache(index)
    assert [cache.body(number) for number in (1, 2)] == [page(1).body, page(2).body]
    opened.rename(file)
    assert [cache.body(number) for number in (1, 2)] == [page(1).body, page(2).body]


def test_a_page_never_gets_the_body_of_a_record_that_has_replaced_it(
    index: CrawlIndex, tmp_path: Path
) -> None:
    (file,) = record_crawl(index, tmp_path, "one", [1, 2])
    first, second = sorted(index.records("one"), key=lambda original: original.offset or 0)
    assert first.offset is not None
    cache = Cache(index)
    assert [cache.body(number) for number in (1, 2)] == [page(1).body, page(2).body]
    data = file.read_bytes()
    members = gzip.decompress(data[first.offset :])
    others = members.replace(page(1).body, b"x" * 2_000).replace(first.digest.encode(), b"0" * 64)
    file.write_bytes(data[: first.offset] + gzip.compress(others))
    found = cache.find(1)
    assert found.page is None
    assert found.reason == "unreadable"
    assert not KnownFiles("two", cache.exchanges).hold(first)
    assert cache.exchanges.holds(second)


@pytest.mark.parametrize("is_purged", [False, True])
def test_no_revisit_refers_to_an_original_that_was_purged_after_its_page_was_used(
    is_purged: bool, index: CrawlIndex, tmp_path: Path
) -> None:
    record_crawl(index, tmp_path, "one", [1])
    cache = Cache(index)
    assert cache.body(1) == page(1).body
    if is_purged:
        index.purge(["one"])
    index.start("two", concurrent=False)
    recorder = Recorder(
        WarcWriter(tmp_path / "two", "two", info={}), index, "two", OpenGuard(), exchanges=cache.exchanges
    )
    recorded = recorder.record(page(1))
    recorder.finish()
    assert recorded.kind == ("response" if is_purged else "revisit")
