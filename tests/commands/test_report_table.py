"""A report in lines of text."""

from __future__ import annotations

from datetime import UTC, datetime

from scrapy_dedupe.commands.report_table import table
from scrapy_dedupe.reports.observations import Observations
from scrapy_dedupe.reports.sums import CrawlSeen, report_of


def test_a_small_share_is_not_called_none() -> None:
    seen = Observations(lambda: 1_793_000_000.0)
    seen.recorded("https://a.com/", "text/html", 200, "response", 5_000_000, 0)
    seen.recorded("https://a.com/b", "text/html", 200, "revisit", 300, 3_000)
    lines = list(table(report_of([CrawlSeen("a", None, seen)], made=datetime.now(UTC))))
    assert (
        "Bytes     3.0 kB of 5.0 MB (below 1 %) not stored again: 1 of 2 responses had been archived before"
        in lines
    )
