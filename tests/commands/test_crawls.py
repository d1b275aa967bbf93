from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from recorded_crawls import record_crawl

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import Counts, Need, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_crawls_lists_every_crawl_with_its_state(call: Callable[..., Any], store_url: str) -> None:
    called = call("crawls", "--store", store_url)
    assert called.code == 0
    first, second = called.out.splitlines()
    assert first.split()[:2] == ["first", "committed"]
    assert second.split()[:2] == ["second", "uncommitted"]
    assert "10 responses" in first


def test_crawls_as_json_has_every_field(call: Callable[..., Any], store_url: str) -> None:
    first, second = call("crawls", "--store", store_url, "--json").json
    assert first.pop("started") <= first.pop("committed")
    assert first.pop("software").startswith("scrapy-dedupe ")
    assert first == {
        "id": "first",
        "state": "committed",
        "payload": "stored",
        "counts": {"totalUrls": 10, "dupeUrls": 4, "conservedSize": 2_500, "totalCrawlSize": 70_000},
        "files": ["first.warc.gz"],
        "containers": [],
        "requires": [],
        "incomplete": False,
        "imported": False,
        "concurrent": False,
        "waiting": 0,
        "marked": False,
    }
    assert (second["id"], second["committed"]) == ("second", None)


def test_crawls_of_browsertrix_are_listed_with_their_containers(
    call: Callable[..., Any], redis_url: str
) -> None:
    container = {"filename": "one.wacz", "hash": "ab", "size": 5}
    with redis.Redis.from_url(redis_url) as client:
        client.sadd("allcrawls", "bx")
        client.rpush("c:bx:wacz", json.dumps(container), "no json")
    (crawl,) = call("crawls", "--store", redis_url, "--json").json
    assert (crawl["id"], crawl["payload"], crawl["started"]) == ("bx", "decoded", None)
    assert crawl["software"] is None
    assert crawl["containers"] == [container, {}], "each keeps its place"


def test_crawls_tell_which_others_they_refer_to(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.start("third")
        index.add("third", [], needs=[Need("first", 0, "first.warc.gz"), Need("first", 1, None)])
    third = call("crawls", "--store", store_url, "--json").json[-1]
    assert (third["id"], third["requires"]) == ("third", ["first"])


def test_an_empty_index_says_so(call: Callable[..., Any], redis_url: str) -> None:
    assert call("crawls", "--store", redis_url).out == "The index has no crawls.\n"
    assert call("crawls", "--store", redis_url, "--json").json == []


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An index with two committed crawls on disk: "two" needs the WACZ of "one"."""
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    archive = tmp_path / "archive"
    archive.mkdir()
    with open_index(url) as index:
        record_crawl(index, archive, "one", [1], in_wacz=True)
        record_crawl(index, archive, "two", [1, 2])
    return url


def test_show_tells_all_of_one_crawl(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    wacz = tmp_path / "archive" / "one.wacz"
    called = call("crawls", "show", "two", "--store", url, "--json")
    assert (called.code, called.err) == (0, "")
    crawl = called.json
    assert (crawl["id"], crawl["state"], crawl["needed_by"], crawl["waiting"]) == ("two", "committed", [], 0)
    assert (crawl["counts"]["totalUrls"], crawl["counts"]["dupeUrls"]) == (3 - 1, 1)
    assert [file["present"] for file in crawl["files"]] == [True]
    assert crawl["needs"] == [
        {
            "crawl": "one",
            "state": "committed",
            "name": "one.wacz",
            "place": str(wacz),
            "present": True,
            "missing": False,
        }
    ]
    one = call("crawls", "show", "one", "--store", url, "--json").json
    assert (one["needed_by"], one["needs"]) == (["two"], [])
    (box,) = one["containers"]
    assert (box["filename"], box["size"], box["place"], box["present"]) == (
        "one.wacz",
        wacz.stat().st_size,
        str(wacz),
        True,
    )


def test_show_reads_well(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    wacz = tmp_path / "archive" / "one.wacz"
    lines = call("crawls", "show", "two", "--store", url).out.splitlines()
    assert lines[:2] == ["Crawl       two", "State       committed"]
    assert f"  one: one.wacz (present: {wacz})" in lines
    lines = call("crawls", "show", "one", "--store", url).out.splitlines()
    assert "Needed by   two" in lines


def test_show_is_exit_4_when_something_is_missing_that_the_crawl_needs(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    (tmp_path / "archive" / "one.wacz").unlink()
    called = call("crawls", "show", "two", "--store", url)
    assert called.code == 4
    assert "The crawl two needs files that are missing: one (one.wacz)." in called.err
    assert "  one: one.wacz (missing: " in called.out
    assert call("crawls", "show", "one", "--store", url).code == 0


def test_show_is_exit_4_when_a_crawl_is_not_in_the_index(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.add("second", [], needs=[Need("lost", 0, None)])
    called = call("crawls", "show", "second", "--store", store_url)
    assert called.code == 4
    assert "  lost: a file whose name is not in the index, the crawl is not in the index" in called.out


def test_show_names_a_crawl_once_that_is_not_in_the_index(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.add(
            "second", [], needs=[Need("lost", 0, None), Need("lost", 0, store_url[len("sqlite:///") :])]
        )
    err = call("crawls", "show", "second", "--store", store_url).err
    assert "needs files that are missing: lost (the crawl is not in the index).\n" in err


def test_show_says_when_the_hash_of_a_container_is_not_known(
    call: Callable[..., Any], store_url: str
) -> None:
    with open_index(store_url) as index:
        sources = [Source(name, "third", f"/nowhere/{name}", True) for name in ("a.wacz", "b.wacz")]
        index.queue_sources(sources)
        claimed = index.claim_source()
        assert claimed is not None
        index.begin_source(claimed, "stored")
        index.end_source(replace(claimed, size=2_000), Counts())
        claimed = index.claim_source()
        assert claimed is not None
        index.begin_source(claimed, "stored")
    lines = call("crawls", "show", "third", "--store", store_url).out.splitlines()
    assert "  a.wacz, 2.0 kB, SHA-256 not known (place not known)" in lines
    assert "  b.wacz, not packed" in lines


def test_show_of_an_unknown_crawl_is_exit_3(call: Callable[..., Any], store_url: str) -> None:
    called = call("crawls", "show", "third", "--store", store_url)
    assert (called.code, called.out) == (3, "")
    assert "The index has no crawl third." in called.err


def test_show_says_when_nobody_knows_what_a_crawl_needs(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.mark_incomplete("second", True)
    called = call("crawls", "show", "second", "--store", store_url)
    assert "  The crawl is running, or did not end well, so it may need more." in called.out


def test_options_count_before_and_behind_a_verb_of_crawls(call: Callable[..., Any], store_url: str) -> None:
    for words in (
        ("crawls", "--store", store_url, "--json", "show", "first"),
        ("crawls", "--json", "show", "first", "--store", store_url),
        ("crawls", "show", "first", "--store", store_url, "--json"),
    ):
        assert call(*words).json["id"] == "first"
    assert call("crawls", "--store", "sqlite:///none.sqlite", "show", "first").code == 3
    assert call("crawls", "first", "--store", store_url).code == 2


GRAPH = r"""digraph crawls {
  rankdir=LR;
  node [shape=box];
  "first" [label="first\ncommitted"];
  "second" [label="second\nuncommitted\nmay need more"];
  "a \"b\" \\" [label="a \"b\" \\\nnot in the index", style=dashed];
  "second" -> "a \"b\" \\" [label="", style=dashed];
  "second" -> "first" [label="first.warc.gz", style=dashed];
}
"""


def test_graph_is_dot_and_what_is_missing_is_dashed(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        needs = [Need("first", 0, "/nowhere/first.warc.gz"), Need('a "b" \\', 0, None)]
        index.add("second", [], Counts(), needs=needs)
        index.mark_incomplete("second", True)
    called = call("crawls", "graph", "--store", store_url)
    assert (called.code, called.out) == (0, GRAPH)


def test_graph_as_json_has_nodes_and_edges(call: Callable[..., Any], url: str) -> None:
    for words in (("--format", "json"), ("--json",)):
        graph = call("crawls", "graph", "--store", url, *words).json
        assert [(node["id"], node["state"]) for node in graph["nodes"]] == [
            ("one", "committed"),
            ("two", "committed"),
        ]
        assert graph["edges"] == [
            {"crawl": "two", "needs": "one", "names": ["one.wacz"], "missing": [], "is_missing": False}
        ]
