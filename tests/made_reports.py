"""Reports made by hand: a small one, one with everything in it, and one without anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from scrapy_dedupe.reports.figures import (
    OTHERS,
    Bin,
    CacheFigures,
    CrawlFigures,
    CrawlGraph,
    DuplicateGroup,
    Example,
    GraphEdge,
    GraphNode,
    Report,
    Share,
    TimeSlice,
    Totals,
    Trap,
    UrlFilterFigures,
)

START = datetime(2026, 11, 28, 22, 10, tzinfo=UTC)
MADE = "2026-11-29T09:00:00+00:00"


def empty_report(**values: object) -> Report:
    """A report on nothing, but for *values*."""
    nothing: dict[str, object] = {
        "made": MADE,
        "version": "1.0",
        "crawls": [],
        "totals": Totals(*[0] * 8),
        "timeline": [],
        "hosts": [],
        "mime_types": [],
        "statuses": [],
        "verdicts": {},
        "similarities": [],
        "groups": [],
        "more_groups": 0,
        "url_filters": [],
        "http_caches": [],
        "url_rules": [],
        "graph": CrawlGraph([], []),
        "traps": [],
        "notes": [],
    }
    return Report(**{**nothing, **values})  # type: ignore[arg-type]


def time_slice(start: datetime, seconds: int = 60, pages: int = 10, duplicates: int = 4) -> TimeSlice:
    return TimeSlice(start.isoformat(), seconds, 7, pages, duplicates, 12_345 * pages, 2_000 * duplicates)


def share(name: str, pages: int) -> Share:
    """A row whose other counts follow from its pages."""
    return Share(name, pages, pages // 4, 2 * pages, pages + 1, pages // 5, 9_000 * pages, 1_100 * pages)


def answered(name: str, pages: int) -> Share:
    """A row of a MIME type or status."""
    return replace(share(name, pages), requests_filtered=None)


def crawl(number: int, state: str = "committed") -> CrawlFigures:
    started = START + timedelta(days=7 * number)
    ended = (started + timedelta(hours=2)).isoformat()
    return CrawlFigures(
        id=f"site-{number}",
        spider="site",
        state=state,
        started=started.isoformat(),
        ended=ended,
        committed=ended if state == "committed" else None,
        has_details=number > 0,
        requests_filtered=1_000,
        responses=9_000 + number,
        revisits=1_200,
        bytes_written=100_000_000,
        bytes_conserved=30_000_000,
        verdicts={"unique": 5_000, "exact": 1_000, "near": 200, "unchanged": 800},
    )


def full_report(hosts: int = 14, crawls: int = 3) -> Report:
    """A report in which every section has something."""
    times = [START + timedelta(days=6 * run, seconds=64 * slot) for run in range(2) for slot in range(60)]
    ids = [f"site-{number}" for number in range(crawls)]
    needs = [
        GraphEdge(ids[later], ids[earlier], 2, False) for later in range(crawls) for earlier in range(later)
    ]
    return Report(
        made=MADE,
        version="1.0",
        crawls=[
            crawl(number, "uncommitted" if number == crawls - 1 else "committed") for number in range(crawls)
        ],
        totals=Totals(51_234, 9_000, 3_000, 120, 12_345, 2_345, 293_456_789, 98_765_432),
        timeline=[time_slice(when, 64, 30 + slot % 60, slot % 30) for slot, when in enumerate(times)],
        hosts=[share(f"www{row}.example.org", 4_000 // (row + 1)) for row in range(hosts)]
        + [share(OTHERS, 300)],
        mime_types=[
            answered("text/html", 9_000),
            answered("application/pdf", 0),
            answered("text/<b>html</b>", 3),
        ],
        statuses=[answered("200", 9_000), answered("301", 40), answered("404", 9)],
        verdicts={"unique": 6_000, "unchanged": 1_200, "exact": 1_300, "near": 480, "unknown": 20},
        similarities=[Bin(0.85 + 0.01 * step, 0.86 + 0.01 * step, 3 * step) for step in range(15)],
        groups=[
            DuplicateGroup(
                f"https://example.org/search?q={number}",
                412 - number,
                400 - number,
                12,
                0.871,
                [Example(f"https://example.org/search?q={number}&page=2", "near", 0.871)],
                number == 0,
            )
            for number in range(12)
        ],
        more_groups=0,
        url_rules=[],
        url_filters=[
            UrlFilterFigures(one, 120_000, 200_000, 2, 1_234_567, 0.31, 3.4e-9, 0.0004, None, None)
            for one in ids
        ],
        http_caches=[CacheFigures(ids[-1], 2_000, 1_912, 58_000_000, 41_000)],
        graph=CrawlGraph(
            [
                *(GraphNode(one, "committed") for one in ids),
                GraphNode("lost", None),
                GraphNode("old", "committed", "why"),
            ],
            [*needs, GraphEdge(ids[-1], "lost", 1, True)],
        ),
        traps=[
            Trap(
                "example.com/calendar/{n}/{n}",
                3_120,
                2_690,
                100,
                200,
                2_990 / 3_120,
                ["https://example.com/calendar/2031/12"],
            )
        ],
        notes=["The crawl old was imported; what it saw is not kept."],
    )
