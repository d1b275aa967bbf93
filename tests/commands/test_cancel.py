from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recorded_crawls import record_crawl

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_cancel_forgets_a_crawl_and_can_be_repeated(call: Callable[..., Any], store_url: str) -> None:
    for _ in range(2):
        called = call("cancel", "second", "--store", store_url)
        assert (called.code, called.err) == (0, "")
        assert called.out == "The crawl second is canceled. Its files were left where they are.\n"
    states = {crawl["id"]: crawl["state"] for crawl in call("crawls", "--store", store_url, "--json").json}
    assert states == {"first": "committed", "second": "canceled"}


def test_cancel_of_a_committed_crawl_is_refused(call: Callable[..., Any], store_url: str) -> None:
    called = call("cancel", "first", "--store", store_url, "--json")
    assert (called.code, called.out) == (3, "")
    assert "The crawl first is committed" in called.err
    assert call("stats", "--store", store_url, "--json").json["urls"] == 10


def test_cancel_as_json(call: Callable[..., Any], store_url: str) -> None:
    assert call("cancel", "second", "--store", store_url, "--json").json == {
        "id": "second",
        "state": "canceled",
    }


def test_a_concurrent_crawl_that_others_need_is_canceled_only_by_force(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    with open_index(url) as index:
        (file,) = record_crawl(index, tmp_path, "one", [1], commit=False, concurrent=True)
        record_crawl(index, tmp_path, "two", [1])
    called = call("cancel", "one", "--store", url)
    assert (called.code, called.out) == (3, "")
    assert f"  two needs one ({file.name})" in called.err.splitlines()
    assert call("crawls", "show", "one", "--store", url, "--json").json["state"] == "uncommitted"
    assert call("cancel", "one", "--force", "--store", url).code == 0
    assert file.exists()
    shown = call("crawls", "show", "two", "--store", url, "--json")
    assert (shown.code, shown.json["needs"][0]["state"]) == (4, "canceled")
    assert call("cancel", "one", "--store", url).code == 0, "repeating it does no harm"


def test_a_concurrent_crawl_is_not_canceled_while_one_runs_that_may_refer_to_it(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'index.sqlite'}"
    with open_index(url) as index:
        record_crawl(index, tmp_path, "one", [1], commit=False, concurrent=True)
        record_crawl(index, tmp_path, "alone", [2], commit=False)
        index.start("two")
        index.mark_incomplete("two", True)
    called = call("cancel", "one", "--store", url)
    assert (called.code, called.out) == (3, "")
    assert "  two is running, or did not end well, and may need it" in called.err.splitlines()
    assert call("cancel", "alone", "--store", url).code == 0, "nobody may refer to one that is not concurrent"
    assert call("cancel", "one", "--force", "--store", url).code == 0
