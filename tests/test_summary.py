from __future__ import annotations

from scrapy_dedupe.live.summary import summary_lines

HEADING = "Deduplication summary:"


def test_a_crawl_without_any_layer_has_no_summary() -> None:
    assert summary_lines({"downloader/request_count": 3}, {"more": "scrapy dedupe report x"}) == []


def test_each_layer_has_a_line_with_a_share() -> None:
    stats = {
        "dedupe/url/capacity": 10_000,
        "dedupe/url/seen": 1_234,
        "dedupe/url/failed": 4,
        "dupefilter/filtered": 56,
        "scheduler/enqueued": 1_234,
        "dedupe/content/unique": 588,
        "dedupe/content/unchanged": 300,
        "dedupe/content/exact": 100,
        "dedupe/content/near": 12,
        "dedupe/content/changed": 5,
        "dedupe/content/dropped": 400,
        "dedupe/passages/documents": 1_200,
        "dedupe/passages/unchanged": 34,
        "dedupe/passages/texts": 1_150,
        "dedupe/passages/lost": 5,
        "dedupe/warc/response": 2,
        "dedupe/warc/revisit": 3,
        "dedupe/warc/bytes_written": 3_000,
        "dedupe/warc/bytes_conserved": 1_000,
        "dedupe/replay/answered": 3,
        "dedupe/cache/found": 1_950,
        "dedupe/cache/missed": 50,
        "dedupe/cache/used": 1_912,
        "dedupe/cache/bytes_used": 58_000_000,
        "dedupe/cache/bytes_received": 41_000,
        "dedupe/errors/store": 2,
        "dedupe/errors/warc": 1,
    }
    notes = {
        "warc": "a.warc.gz",
        "index": "crawl x committed to y",
        "passages": "p",
        "kernel": "compiled",
        "report": "r.html",
        "more": "scrapy dedupe report x",
    }
    assert summary_lines(stats, notes) == [
        HEADING,
        (
            "  Requests  56 of 1,290 requests (4%) were duplicates;"
            " 4 failed and may be retried in the next run"
        ),
        (
            "  Pages     412 of 1,000 pages (41%) were duplicates: 300 unchanged since an earlier visit, 100 equal to another"
            " page, 5 changed little since an earlier visit, 7 nearly equal to another page; 400 dropped"
        ),
        "  Kernel    compiled",
        (
            "  Passages  1,200 pages added to the index p, 34 unchanged; 1,150 texts stored,"
            " 5 pages not added because of an error"
        ),
        "  Bytes     1.0 kB of 4.0 kB (25%) saved: 3 of 5 responses were duplicates",
        "  Cache     1,912 of 2,000 pages (96%) were not modified: 41.0 kB instead of 58.0 MB received",
        "  WARC      a.warc.gz",
        "  Index     crawl x committed to y",
        "  Report    r.html",
        "  Replay    3 requests answered from the archive, 0 not in it",
        "  Errors    3; see the messages above, and the stats dedupe/errors/…",
        "  More      scrapy dedupe report x",
    ]


def test_the_summary_of_a_resumed_crawl_names_the_run_it_counts() -> None:
    notes = {"runs": "of this run (the report counts all runs of the crawl)"}
    assert summary_lines({"dedupe/url/capacity": 10}, notes)[0] == (
        "Deduplication summary of this run (the report counts all runs of the crawl):"
    )


def test_a_crawl_without_duplicates_says_so() -> None:
    stats = {
        "dedupe/url/capacity": 10_000,
        "scheduler/enqueued": 20,
        "dedupe/content/unique": 19,
        "dedupe/warc/response": 20,
        "dedupe/warc/bytes_written": 40_000,
    }
    assert summary_lines(stats, {"warc": "a.warc.gz"}) == [
        HEADING,
        "  Requests  0 of 20 requests were duplicates",
        "  Pages     0 of 19 pages were duplicates",
        "  Bytes     40.0 kB written for 20 responses; no duplicates",
        "  WARC      a.warc.gz",
    ]


def test_a_crawl_of_duplicates_only() -> None:
    stats = {
        "dedupe/url/capacity": 10_000,
        "dupefilter/filtered": 7,
        "scheduler/enqueued/redis": 1,
        "dedupe/content/unchanged": 1,
        "dedupe/content/unknown": 2,
        "dedupe/warc/revisit": 1,
        "dedupe/warc/bytes_written": 900,
        "dedupe/warc/bytes_conserved": 999_100,
        "dedupe/warc/not_archived": 1,
    }
    assert summary_lines(stats, {"warc": "a.warc.gz"})[1:4] == [
        "  Requests  7 of 8 requests (88%) were duplicates",
        (
            "  Pages     1 of 1 page (100%) was a duplicate: 1 unchanged since an earlier visit;"
            " 2 not judged because of an error"
        ),
        (
            "  Bytes     999.1 kB of 1.0 MB (above 99%) saved: 1 of 1 response was a duplicate;"
            " 1 response not archived because of an error"
        ),
    ]


def test_the_url_filter_without_other_layers_has_one_line() -> None:
    stats = {"dedupe/url/capacity": 10_000, "dupefilter/filtered": 1, "scheduler/enqueued": 199}
    assert summary_lines(stats, {}) == [
        HEADING,
        "  Requests  1 of 200 requests (below 1%) was a duplicate",
    ]


def test_under_a_scheduler_that_does_not_count_there_is_no_share() -> None:
    stats = {"dedupe/url/capacity": 10_000, "dupefilter/filtered": 12}
    assert summary_lines(stats, {})[1] == "  Requests  12 requests were duplicates"


def test_stats_that_are_not_numbers_count_as_zero() -> None:
    stats = {
        "dedupe/url/capacity": 10,
        "dupefilter/filtered": "many",
        "scheduler/enqueued": float("nan"),
        "dedupe/content/unique": 3,
        "dedupe/content/exact": None,
        "dedupe/errors/mine": "ValueError",
        "dedupe/errors/store": 2,
    }
    assert summary_lines(stats, {})[1:] == [
        "  Requests  0 requests were duplicates",
        "  Pages     0 of 3 pages were duplicates",
        "  Errors    2; see the messages above, and the stats dedupe/errors/…",
    ]
