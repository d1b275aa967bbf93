"""The store of either kind, its two halves, and what is particular to Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.base import ContentStore
    from scrapy_dedupe.stores.crawl_index import CrawlIndex


@pytest.fixture
def store_url(each_store_url: str) -> str:
    return each_store_url


@pytest.fixture(params=["sqlite", "redis", "cluster"])
def content_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of texts, once for each kind."""
    if request.param == "cluster":
        return str(request.getfixturevalue("redis_cluster").url)
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    store = open_store(store_url)
    yield store
    store.close()


@pytest.fixture
def content(store: Store) -> ContentStore:
    return store.content


@pytest.fixture
def index(store: Store) -> CrawlIndex:
    return store.index


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def redis_index(redis_url: str) -> Iterator[CrawlIndex]:
    store = open_store(redis_url)
    yield store.index
    store.close()
