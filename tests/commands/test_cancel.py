from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


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
