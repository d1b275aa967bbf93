from __future__ import annotations

from scrapy_dedupe.summary import summary_lines


def test_a_crawl_without_any_layer_has_no_summary() -> None:
    assert summary_lines({"downloader/request_count": 3}, {}) == []


def test_each_layer_has_a_line_and_zeros_are_left_out() -> None:
    stats = {
        "dedupe/url/capacity": 10_000,
        "dedupe/url/seen": 1_234,
        "dupefilter/filtered": 56,
        "dedupe/url/failed": 4,
        "dedupe/content/unchanged": 7,
        "dedupe/content/dropped": 7,
        "dedupe/passages/documents": 1_200,
        "dedupe/passages/unchanged": 34,
        "dedupe/passages/texts": 1_150,
        "dedupe/passages/lost": 5,
        "dedupe/warc/response": 2,
        "dedupe/warc/revisit": 3,
        "dedupe/warc/bytes_written": 3_000,
        "dedupe/warc/bytes_conserved": 1_000,
        "dedupe/errors/store": 2,
        "dedupe/errors/warc": 1,
    }
    notes = {"warc": "a.warc.gz", "index": "crawl x committed to y", "passages": "p"}
    assert summary_lines(stats, notes) == [
        "What was not asked, read or stored twice:",
        (
            "  URLs   1,234 different ones recorded, 56 requests filtered as seen,"
            " 4 failed and may be asked for again in the next run"
        ),
        "  Texts  0 new, 7 unchanged since an earlier capture, 7 of them dropped",
        (
            "  Parts  1,200 pages added to the passage index p, 34 unchanged; 1,150 different texts stored,"
            " 5 pages not added because of an error"
        ),
        "  Bytes  2 responses and 3 revisits in 3.0 kB; 1.0 kB not stored again (25 %)",
        "  WARC   a.warc.gz",
        "  Index  crawl x committed to y",
        "  Errors 3; see the stats dedupe/errors/… and the messages above",
    ]
