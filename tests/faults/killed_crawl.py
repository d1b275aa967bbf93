"""Runs one crawl in a process of its own, so that a test can kill it: settings as JSON, then the first URL."""

from __future__ import annotations

import json
import sys

from crawling import AsyncCrawlerProcess, LinkSpider


def main() -> None:
    process = AsyncCrawlerProcess(json.loads(sys.argv[1]))
    process.crawl(LinkSpider, urls=sys.argv[2])
    process.start()


if __name__ == "__main__":
    main()
