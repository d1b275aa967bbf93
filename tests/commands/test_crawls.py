from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import redis

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores.base import Need

if TYPE_CHECKING:
    from collections.abc import Callable


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
    assert first == {
        "id": "first",
        "state": "committed",
        "payload": "stored",
        "counts": {"totalUrls": 10, "dupeUrls": 4, "conservedSize": 2_500, "totalCrawlSize": 70_000},
        "files": ["first.warc.gz"],
        "containers": [],
        "requires": [],
        "incomplete": False,
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
    assert crawl["containers"] == [container, {}], "each keeps its place"


def test_crawls_tell_which_others_they_refer_to(call: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        index.start("third")
        index.add("third", [], needs=[Need("first", 0, "first.warc.gz"), Need("first", 1, None)])
    third = call("crawls", "--store", store_url, "--json").json[-1]
    assert (third["id"], third["requires"]) == ("third", ["first"])


def test_an_empty_index_says_so(call: Callable[..., Any], redis_url: str) -> None:
    assert call("crawls", "--store", redis_url).out == "The index knows no crawls.\n"
    assert call("crawls", "--store", redis_url, "--json").json == []
