"""Formatting of counts, numbers and sizes, as in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.reports.wording import number as number_text
from scrapy_dedupe.reports.wording import size as size_text

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Counts

__all__ = ["counted", "counts_dict", "counts_text", "number_text", "size_text"]


def counts_dict(counts: Counts) -> dict[str, int]:
    """Return the counts of a crawl under the names of Browsertrix. Sizes in bytes."""
    return {
        "totalUrls": counts.total_urls,
        "dupeUrls": counts.dupe_urls,
        "conservedSize": counts.conserved_size,
        "totalCrawlSize": counts.total_crawl_size,
    }


def counts_text(counts: Counts) -> str:
    """Return the counts of a crawl as one sentence."""
    return (
        f"{counted(counts.total_urls, 'response')}, {number_text(counts.dupe_urls)} of them duplicates;"
        f" {size_text(counts.conserved_size)} saved, {size_text(counts.total_crawl_size)} on disk"
    )
