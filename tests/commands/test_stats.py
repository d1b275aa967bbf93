from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import ImportNotes

if TYPE_CHECKING:
    from collections.abc import Callable


def test_stats_sum_over_committed_crawls(call: Callable[..., Any], store_url: str) -> None:
    called = call("stats", "--store", store_url, "--json")
    assert called.code == 0
    assert called.json == {
        "index": store_url,
        "content": store_url,
        "crawls": {"committed": 1, "uncommitted": 1, "canceled": 0},
        "urls": 10,
        "duplicates": 4,
        "conserved_bytes": 2_500,
        "size_bytes": 70_000,
        "texts": 2,
        "kept_texts": 0,
        "removed_crawls": 0,
        "removed_bytes": 0,
        "per_crawl": None,
    }


def test_stats_show_each_crawl_when_asked(call: Callable[..., Any], store_url: str) -> None:
    crawls = call("stats", "--store", store_url, "--json", "--per-crawl").json["per_crawl"]
    assert [(crawl["id"], crawl["state"], crawl["urls"]) for crawl in crawls] == [
        ("first", "committed", 10),
        ("second", "uncommitted", 3),
    ]
    text = call("stats", "--store", store_url, "--per-crawl").out
    assert "second (uncommitted): 3 responses, 1 of them duplicates; 200 B saved, 9.0 kB on disk" in text


def test_stats_read_well(call: Callable[..., Any], store_url: str) -> None:
    assert call("stats", "--store", store_url).out == (
        "Crawls    1 committed, 1 uncommitted, 0 canceled\n"
        "Archive   10 responses, 4 of them duplicates; 2.5 kB saved, 70.0 kB on disk\n"
        "Content   2 different texts, 0 of them compared with others\n"
    )


def test_stats_tell_of_crawls_that_the_last_manifest_did_not_name(
    call: Callable[..., Any], store_url: str
) -> None:
    with open_index(store_url) as index:
        index.note_imports(ImportNotes(1.0, "2026-08-01T12:00:00Z", 1, 70_000))
    called = call("stats", "--store", store_url, "--json").json
    assert (called["removed_crawls"], called["removed_bytes"]) == (1, 70_000)
    assert (
        "Removed   1 crawl, 70.0 kB, is not in the last imported manifest"
        in call("stats", "--store", store_url).out.splitlines()
    )
