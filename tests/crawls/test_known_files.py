"""Files that another one has replaced since the index was written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from recorded_crawls import record_crawl

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.live_index import KnownFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.stores.base import Original


@pytest.fixture
def index(tmp_path: Path) -> Iterator[CrawlIndex]:
    with open_index(f"sqlite:///{tmp_path / 'index.sqlite'}") as index:
        yield index


def originals(index: CrawlIndex, crawl: str) -> list[Original]:
    return sorted(index.records(crawl), key=lambda original: original.offset or 0)


def test_a_file_counts_while_it_holds_what_the_index_says(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1, 2], commit=True)
    first, second = originals(index, "one")
    assert KnownFiles("two").hold(first)
    assert KnownFiles("two").hold(second)
    assert not KnownFiles("two").hold(replace(first, offset=second.offset))
    assert not KnownFiles("two").hold(replace(first, url="https://example.org/another"))
    assert not KnownFiles("two").hold(replace(first, date="20200101000000"))
    assert not KnownFiles("two").hold(replace(first, digest="0" * 64))


def test_a_file_that_another_one_has_replaced_does_not_count(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1], commit=True)
    record_crawl(index, tmp_path, "two", [2], commit=True)
    (one,), (two,) = originals(index, "one"), originals(index, "two")
    assert one.file is not None
    assert two.file is not None
    (tmp_path / "one" / one.file).write_bytes((tmp_path / "two" / two.file).read_bytes())
    files = KnownFiles("three")
    assert not files.hold(one)
    assert files.hold(two)
    (tmp_path / "two" / two.file).unlink()
    assert not files.hold(two)


def test_a_file_that_begins_as_before_holds_no_more_than_that(index: CrawlIndex, tmp_path: Path) -> None:
    record_crawl(index, tmp_path, "one", [1, 2], commit=True)
    first, second = originals(index, "one")
    assert first.file is not None
    assert second.offset is not None
    path = tmp_path / "one" / first.file
    path.write_bytes(path.read_bytes()[: second.offset])
    files = KnownFiles("two")
    assert files.hold(first)
    assert not files.hold(second)
    path.write_bytes(b"")
    assert not KnownFiles("two").hold(first)
