"""Metrics as Prometheus gets them."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import scrapy
from crawling import LinkSpider
from prometheus_client.parser import text_string_to_metric_families as parse

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

LAYERS = {"url", "canonical", "exact", "near", "verdict", "warc"}


def scraped(port: int, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=240) as response:
        return str(response.read().decode())


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and label values without the spider's, such as ("dedupe_content_pages_total", "exact")."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "spider"]
            key = (sample.name, *labels)
            assert key not in found or len({s.labels["spider"] for s in family.samples}) > 1
            found[key] = sample.value
    return found


class ScrapingSpider(LinkSpider):
    """Scrapes the metrics, off the event loop, when it goes idle: the crawl still runs then."""

    port = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.scrapes = []
        crawler.signals.connect(spider.scrape, signal=scrapy.signals.spider_idle)
        return spider

    def scrape(self) -> None:
        self.scrapes.append(scraped(int(self.port)))
