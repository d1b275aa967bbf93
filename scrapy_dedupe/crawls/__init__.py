"""Crawls and their index: which payloads are stored, by which crawl, and which crawls may refer to them."""

from __future__ import annotations

from scrapy_dedupe.stores.crawl_index import CrawlIndex

from .index import new_crawl_id, open_index

__all__ = ["CrawlIndex", "new_crawl_id", "open_index"]
