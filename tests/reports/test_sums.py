"""The report over several crawls: figures from the more complete source, sums that add up, notes on unknown data."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from parsel import Selector

from scrapy_dedupe.reports.figures import OTHERS, CacheFigures, CrawlGraph, GraphNode, Report, UrlRuleFigures
from scrapy_dedupe.reports.observations import Observations, pack, unpack
from scrapy_dedupe.reports.page import page
from scrapy_dedupe.reports.sums import CrawlSeen, report_of
from scrapy_dedupe.stores.base import Counts, CrawlInfo

T = 1_793_000_000.0


def seen(host: str = "example.com", pages: int = 3, start: float = T, **values: Any) -> Observations:
    """A crawl of one host: its start page, *pages* copies of it, and their records."""
    times = iter(range(10_000_000))
    crawl = Observations(lambda: start + next(times), **values)
    crawl.filtered(f"https://{host}/")
    crawl.judged(f"https://{host}/", "text/html", 200, "unique")
    crawl.recorded(f"https://{host}/", "text/html", 200, "response", 1_000, 0)
    for number in range(pages):
        url = f"https://{host}/{number}"
        crawl.judged(url, "text/html", 200, "exact", f"https://{host}/", 1.0)
        crawl.recorded(url, "text/html", 200, "revisit", 300, 700)
    return crawl


def info(crawl: str, counts: Counts, **values: Any) -> CrawlInfo:
    known = {
        "state": "committed",
        "payload": "stored",
        "started": "2026-10-26T07:00:00.000Z",
        "committed": "2026-10-26T08:00:00.000Z",
        "counts": counts,
        **values,
    }
    return CrawlInfo(id=crawl, **known)


def test_counts_are_summed_over_the_crawls() -> None:
    crawls = [
        CrawlSeen("a", info("a", Counts(4, 3, 2_100, 2_000)), seen("a.com", spider="one")),
        CrawlSeen("b", None, seen("b.com", pages=5, spider="two")),
    ]
    report = report_of(crawls, made=datetime(2026, 11, 29, tzinfo=UTC))
    assert report.made == "2026-11-29T00:00:00.000Z"
    assert [(crawl.id, crawl.spider, crawl.state, crawl.has_details) for crawl in report.crawls] == [
        ("a", "one", "committed", True),
        ("b", "two", "not in the index", True),
    ]
    assert report.totals.requests_filtered == 2
    assert (report.totals.pages_judged, report.totals.duplicates, report.totals.dropped) == (10, 8, 0)
    assert (report.totals.responses, report.totals.revisits) == (2, 8)
    assert (report.totals.bytes_written, report.totals.bytes_conserved) == (2_000 + 2_400, 8 * 700)
    for shares in (report.hosts, report.mime_types, report.statuses):
        assert sum(share.pages for share in shares) == report.totals.pages_judged
        assert sum(share.revisits for share in shares) == report.totals.revisits
        assert sum(share.bytes_conserved for share in shares) == report.totals.bytes_conserved
    assert sum(share.requests_filtered for share in report.hosts) == 2
    # A filtered request has no response.
    assert {share.requests_filtered for share in [*report.mime_types, *report.statuses]} == {None}
    assert [share.name for share in report.hosts] == ["b.com", "a.com"]
    assert sum(slice_.pages for slice_ in report.timeline) == 10
    assert sum(slice_.bytes_written for slice_ in report.timeline) == report.totals.bytes_written
    assert [(group.url, group.pages) for group in report.groups] == [
        ("https://b.com/", 5),
        ("https://a.com/", 3),
    ]
    assert report.verdicts == {"unique": 2, "unchanged": 0, "changed": 0, "exact": 8, "near": 0, "unknown": 0}
    assert report.notes == []


def test_crawls_that_are_not_in_the_index_are_archived_elsewhere_or_not_archived() -> None:
    texts = Observations(lambda: T)
    texts.judged("https://c.com/", "text/html", 200, "unique")
    crawls = [CrawlSeen("b", None, seen("b.com")), CrawlSeen("c", None, texts)]
    report = report_of(crawls, made=datetime.now(UTC))
    assert [crawl.state for crawl in report.crawls] == ["not in the index", "not archived"]


def test_summing_does_not_change_the_crawls() -> None:
    observations = [seen("a.com"), seen("b.com", start=T + 10**7)]
    before = [crawl.as_dict() for crawl in observations]
    crawls = [CrawlSeen(name, None, crawl) for name, crawl in zip("ab", observations, strict=True)]
    first = report_of(crawls, made=datetime.now(UTC))
    for crawl, plain in zip(observations, before, strict=True):
        changed = crawl.as_dict()
        assert {**changed, "ended": 0, "timeline": 0} == {**plain, "ended": 0, "timeline": 0}
        assert changed["timeline"]["seconds"] == plain["timeline"]["seconds"]
    assert report_of(crawls).totals == first.totals


def test_groups_that_are_left_out_are_counted_if_their_number_is_known() -> None:
    def of(groups: int) -> Report:
        observations = Observations(lambda: T)
        for number in range(groups):
            for copy in range(2):
                url = f"https://a.com/{number}"
                observations.judged(f"{url}/{copy}", "text/html", 200, "exact", original_url=url)
        return report_of([CrawlSeen("a", None, observations)])

    assert (len(of(30).groups), of(30).more_groups) == (30, 0)
    assert (len(of(33).groups), of(33).more_groups) == (30, 3)
    assert (len(of(500).groups), of(500).more_groups) == (30, None)


def test_the_report_over_no_crawls_is_empty() -> None:
    report = report_of([])
    assert not any(asdict(report.totals).values())
    assert (report.timeline, report.hosts, report.groups, report.similarities, report.traps) == (
        [],
        [],
        [],
        [],
        [],
    )


def test_a_crawl_without_observations_is_counted_from_the_index_and_its_stats() -> None:
    stats = {
        "dupefilter/filtered": 12,
        "dedupe/content/exact": 4,
        "dedupe/content/unique": 6,
        "dedupe/content/dropped": 2,
        "finish_time": "2026-10-26T09:00:00+02:00",
        "dedupe/content/near": "many",
    }
    crawl = CrawlSeen("old", info("old", Counts(10, 4, 500, 9_000), stats=stats))
    report = report_of([crawl])
    (figures,) = report.crawls
    assert not figures.has_details
    assert (figures.started, figures.ended) == ("2026-10-26T07:00:00.000Z", "2026-10-26T07:00:00.000Z")
    assert (figures.responses, figures.revisits, figures.bytes_written) == (6, 4, 9_000)
    assert (figures.requests_filtered, figures.verdicts["exact"], figures.verdicts["near"]) == (12, 4, 0)
    assert (report.totals.pages_judged, report.totals.dropped) == (10, 2)
    assert report.notes[0].startswith("There are no observations of the crawl old:")


def test_pages_that_changed_little_are_not_counted_as_near() -> None:
    stats = {"dedupe/content/near": 5, "dedupe/content/changed": 2}
    report = report_of([CrawlSeen("old", info("old", Counts(), stats=stats))])
    assert (report.verdicts["near"], report.verdicts["changed"], report.totals.duplicates) == (3, 2, 5)


def test_a_killed_crawl_is_counted_from_the_index() -> None:
    crawl = CrawlSeen(
        "cut", info("cut", Counts(50, 40, 9_999, 0), state="uncommitted", committed=None), seen()
    )
    report = report_of([crawl])
    assert (report.totals.responses, report.totals.revisits, report.totals.bytes_conserved) == (10, 40, 9_999)
    # The index gets the size of the files at the end of a crawl.
    assert report.totals.bytes_written == 1_900
    assert any("more records of the crawl cut than were observed" in note for note in report.notes)
    assert any("so the crawl cut may have written more bytes than shown" in note for note in report.notes)
    assert any(note.startswith("Not committed: the crawl cut.") for note in report.notes)


def test_a_running_crawl_is_counted_from_its_observations() -> None:
    crawl = CrawlSeen("runs", info("runs", Counts(1, 0, 0, 0), state="uncommitted"), seen())
    report = report_of([crawl])
    assert (report.totals.responses, report.totals.revisits) == (1, 3)
    assert not any("more records" in note for note in report.notes)


def test_given_notes_and_the_graph_are_passed_on() -> None:
    graph = CrawlGraph([GraphNode("a", "committed")], [])
    report = report_of([CrawlSeen("a")], graph=graph, notes=["A note."])
    assert report.graph == graph
    assert report.notes[0] == "A note."


def test_the_most_frequent_hosts_are_named_and_all_others_share_a_row() -> None:
    crawl = Observations(lambda: T)
    for number in range(1_000):
        for _ in range(2 if number == 0 else 1):
            crawl.filtered(f"https://host{number}.com/")
    report = report_of([CrawlSeen("many", None, crawl)])
    assert len(report.hosts) == 51
    assert report.hosts[-1].name == OTHERS
    assert sum(share.requests_filtered for share in report.hosts) == 1_001
    assert any(share.is_bound for share in report.hosts)
    assert any(note.startswith("There were too many hosts to count") for note in report.notes)
    assert any("lower bounds" in note for note in report.notes)


def test_all_names_are_listed_if_there_are_few() -> None:
    report = report_of([CrawlSeen("a", None, seen())])
    assert [share.name for share in report.hosts] == ["example.com"]
    assert not report.hosts[0].is_bound


@pytest.mark.parametrize(
    ("similarities", "first", "bins"),
    [
        ([0.85, 0.859, 0.999, 1.0], (0.85, 0.86, 2), 15),
        ([0.8], (0.8, 0.81, 1), 20),
        ([0.61, 0.95], (0.6, 0.65, 1), 8),
        ([0.0], (0.0, 0.05, 1), 20),
        ([1.0], (0.99, 1.0, 1), 1),
    ],
)
def test_bins_of_similarities_have_no_gaps(
    similarities: list[float], first: tuple[float, float, int], bins: int
) -> None:
    crawl = Observations(lambda: T)
    for similarity in similarities:
        crawl.judged("http://a/", "", 200, "near", "http://b/", similarity)
    found = report_of([CrawlSeen("a", None, crawl)]).similarities
    assert (found[0].low, found[0].high, found[0].pages) == first
    assert len(found) == bins
    assert all(one.high == other.low for one, other in pairwise(found))
    assert found[-1].high == 1.0
    assert sum(one.pages for one in found) == len(similarities)


def test_the_url_filter_is_read_from_the_commit_or_the_observations() -> None:
    committed = {"dedupe/url/capacity": 20_000, "dedupe/url/seen": 9, "dedupe/url/fill_ratio": 0.25}
    running = seen()
    running.set_stats({"dedupe/url/capacity": 10_000, "dedupe/url/confirmed": 3, "dedupe/url/seen": -1})
    report = report_of(
        [
            CrawlSeen("a", info("a", Counts(), stats=committed)),
            CrawlSeen("b", None, running),
            CrawlSeen("c", info("c", Counts(), stats={"dedupe/url/capacity": "much"})),
            CrawlSeen(
                "d",
                info("d", Counts(), stats={"dedupe/url/capacity": 10**400, "dedupe/url/fill_ratio": 10**400}),
            ),
        ]
    )
    first, second, huge = report.url_filters
    assert (huge.capacity, huge.fill_ratio) == (2**63 - 1, 2.0**63)
    assert (first.crawl, first.seen, first.capacity, first.fill_ratio, first.confirmed) == (
        "a",
        9,
        20_000,
        0.25,
        None,
    )
    assert (second.crawl, second.seen, second.capacity, second.confirmed) == ("b", None, 10_000, 3)


def test_url_rules_are_summed_up_by_rule() -> None:
    rule = "dedupe/url/rule/ignore-parameter sid on a.org/b/"
    stats = {
        f"{rule}/filtered": 90,
        f"{rule}/probes": 3,
        f"{rule}/pairs_for": 3,
        "dedupe/url/rules/filtered": 87,
    }
    stats |= {
        f"dedupe/url/rule/trailing-slash on */{name}": 1
        for name in ("filtered", "pairs_against", "suspended")
    }
    stats |= {f"dedupe/url/rule/sort-parameters on */{name}": 20 for name in ("candidate", "pairs_for")}
    report = report_of([CrawlSeen("a", info("a", Counts(), stats=stats))])
    assert report.url_rules == [
        UrlRuleFigures("a", "ignore-parameter sid on a.org/b/", 90, 3, 3, 0, 1.0, is_suspended=False),
        UrlRuleFigures("a", "trailing-slash on *", 1, 0, 0, 1, 0.0, is_suspended=True),
        UrlRuleFigures("a", "sort-parameters on *", 0, 0, 20, 0, 1.0, False, candidate_downloads=20),
    ]
    table = Selector(page(report)).css("#urls table")
    states = ["applied", "suspended", "candidate, would have saved 20 downloads"]
    assert table.css("tbody td:last-child::text").getall() == states


def test_stats_of_many_rules_do_not_displace_other_stats() -> None:
    one = seen()
    one.set_stats(
        {f"dedupe/url/rule/rule {number} on {'a' * 90}/filtered": 1 for number in range(300)}
        | {"dupefilter/filtered": 7}
    )
    assert one.stats["dupefilter/filtered"] == 7
    assert len(one.stats) == 200


def test_the_http_cache_of_a_crawl() -> None:
    counts = {"found": 1_950, "missed": 50, "used": 1_912, "bytes_used": 58_000_000, "bytes_received": 41_000}
    stats = {f"dedupe/cache/{name}": count for name, count in counts.items()}
    crawls = [CrawlSeen(name, info(name, Counts(), stats=its)) for name, its in (("a", stats), ("b", {}))]
    report = report_of(crawls)
    assert report.http_caches == [CacheFigures("a", 2_000, 1_912, 58_000_000, 41_000)]
    cells = Selector(page(report)).css("#cache tbody td::text").getall()
    assert cells == ["2,000", "1,912", "96 %", "58.0 MB", "41.0 kB"]


def test_counts_of_earlier_runs_are_in_the_report_of_a_committed_crawl() -> None:
    job = seen()
    job.set_stats(
        {"dedupe/url/capacity": 10_000, "dedupe/url/confirmed": 5, "dedupe/url/false_positives": 1}
        | {"dedupe/url/seen": 7, "dedupe/errors/report": 1}
    )
    job = unpack(pack(job), "a")
    last = {"dedupe/url/capacity": 10_000, "dedupe/url/confirmed": 2, "dedupe/url/seen": 9}
    job.set_stats(last)
    report = report_of([CrawlSeen("a", info("a", Counts(), stats=last), job)])
    (urls,) = report.url_filters
    assert (urls.seen, urls.confirmed, urls.false_positives) == (9, 7, 1)
    assert any("Observing the crawl a failed at times" in note for note in report.notes)


def test_the_timeline_has_gaps_between_runs_on_different_days() -> None:
    crawls = [CrawlSeen(str(day), None, seen(start=T + 86_400 * day)) for day in range(3)]
    report = report_of(crawls)
    gaps = [
        datetime.fromisoformat(later.start) - datetime.fromisoformat(earlier.start)
        for earlier, later in pairwise(report.timeline)
    ]
    assert sum(gap.total_seconds() > 80_000 for gap in gaps) == 2
    assert {slice_.seconds for slice_ in report.timeline} == {1}


def test_the_timeline_of_hundreds_of_crawls_has_a_bounded_length() -> None:
    crawls = [CrawlSeen(str(day), None, seen(start=T + 100_000 * day)) for day in range(150)]
    report = report_of(crawls)
    assert len(report.timeline) <= 120
    assert sum(slice_.pages for slice_ in report.timeline) == report.totals.pages_judged == 600
