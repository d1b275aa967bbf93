"""A report in lines of text."""

from __future__ import annotations

from datetime import UTC, datetime

from made_reports import empty_report

from scrapy_dedupe.commands.report import table
from scrapy_dedupe.reports.figures import DuplicateGroup, Report
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


def report_with(pages: list[int], more: int | None) -> Report:
    groups = [
        DuplicateGroup(f"https://a.com/{number}", count, count, 0, 1.0, [], False)
        for number, count in enumerate(pages)
    ]
    return empty_report(groups=groups, more_groups=more)


def test_groups_that_are_left_out_are_told_by_their_number() -> None:
    assert list(table(report_with([9, 4, 2], 0)))[-1].split() == ["2", "https://a.com/2"]
    assert list(table(report_with([9, 4, 2], 7)))[-1] == "  and 7 more"
    assert list(table(report_with([9] * 12, 0)))[-1] == "  and 2 more"
    # Those that one page repeats are not in the list.
    assert list(table(report_with([9, 4, 2] + [1] * 27, 1_000)))[-1] == "  and 1,027 more"
    assert list(table(report_with([9, 4, 2], None)))[-1] == "  and more, which were too many to count"
    assert "Bytes" in list(table(report_with([1, 1], 5)))[-1], "no list, and nothing is left out of it"
