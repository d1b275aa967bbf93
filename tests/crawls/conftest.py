"""An empty crawl index of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.crawls import CrawlIndex


@pytest.fixture
def index(each_store_url: str) -> Iterator[CrawlIndex]:
    with open_index(each_store_url) as index:
        yield index
