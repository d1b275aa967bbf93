"""Crawls and their index: which payloads are stored, by which crawl, and which crawls may refer to them."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.crawl_index import CrawlIndex

__all__ = ["CrawlIndex", "new_crawl_id", "open_index"]


def open_index(url: str, *, timeout_s: float = 5.0, create: bool = True) -> CrawlIndex:
    """Open the index of the store at *url*. Closing the index closes the store.

    With ``create=False`` an SQLite file that does not exist is an error. Raises the
    exceptions of :func:`~scrapy_dedupe.stores.open_store`.
    """
    store = open_store(url, timeout_s=timeout_s, create=create)
    try:
        index = store.index
    except StoreRefused:
        store.close()
        raise
    index.on_close = store.close
    return index


def new_crawl_id(spider_name: str) -> str:
    """A new crawl id: the spider's name, the time (UTC) and a random part."""
    return f"{plain_name(spider_name, 96)}-{datetime.now(UTC):%Y%m%d%H%M%S}-{secrets.token_hex(4)}"


def plain_name(spider_name: str, most_chars: int) -> str:
    """The name of a spider as a prefix of crawl ids and file names; *crawl* if no character of it can be used.

    Characters other than ASCII letters, digits, dots, underscores and hyphens become hyphens. Different spiders may get
    the same name, so it identifies nothing.

    >>> plain_name("news/2026", 64), plain_name("новости", 64), plain_name("..", 64)
    ('news-2026', 'crawl', 'crawl')
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spider_name).lstrip(".-")[:most_chars].rstrip(".-")
    return name or "crawl"
