from __future__ import annotations

import gzip
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_commit_makes_a_crawl_visible_and_can_be_repeated(call: Callable[..., Any], store_url: str) -> None:
    for _ in range(2):
        called = call("commit", "second", "--store", store_url)
        assert (called.code, called.out, called.err) == (0, "The crawl second is committed.\n", "")
    assert call("stats", "--store", store_url, "--json").json["urls"] == 13


def test_commit_as_json(call: Callable[..., Any], store_url: str) -> None:
    result = call("commit", "second", "--store", store_url, "--json").json
    assert result["committed"].endswith("Z")
    assert (result["id"], result["state"], result["rebuilt"]) == ("second", "committed", False)
    assert result["counts"]["totalUrls"] == 3


def test_commit_of_an_unknown_crawl_is_refused(call: Callable[..., Any], store_url: str) -> None:
    called = call("commit", "third", "--store", store_url)
    assert (called.code, called.out) == (3, "")
    assert called.err.startswith("scrapy-dedupe commit: The crawl third is unknown")
    assert len(called.err.splitlines()) == 1


def test_commit_keeps_the_stats_of_a_committed_crawl(call: Callable[..., Any], store_url: str) -> None:
    assert call("commit", "first", "--store", store_url).code == 0
    with open_index(store_url) as index:
        assert index.crawls()[0].stats == {"finish_reason": "finished"}


def warc_record(kind: str, number: int, block: bytes, *fields: str) -> bytes:
    head = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{number:012}>",
        "WARC-Date: 2026-08-01T12:00:00.123Z",
        *fields,
        f"Content-Length: {len(block)}",
    ]
    return gzip.compress("\r\n".join(head).encode() + b"\r\n\r\n" + block + b"\r\n\r\n")


@pytest.fixture
def incomplete(store_url: str) -> str:
    with open_index(store_url) as index:
        index.mark_incomplete("second", True)
    return store_url


@pytest.mark.parametrize("is_made", [True, False])
def test_an_incomplete_crawl_is_not_committed_without_its_files(
    call: Callable[..., Any], incomplete: str, tmp_path: Path, is_made: bool
) -> None:
    folder = tmp_path / "warcs"
    if is_made:
        folder.mkdir()
    called = call("commit", "second", "--store", incomplete, "--warc-dir", str(folder))
    assert called.code == 3
    assert f"none of them is in {folder}" in called.err
    crawl = call("crawls", "--store", incomplete, "--json").json[1]
    assert (crawl["state"], crawl["counts"]["totalUrls"]) == ("uncommitted", 3)


def test_a_file_that_is_not_there_is_told_when_the_others_are_read(
    call: Callable[..., Any], incomplete: str, tmp_path: Path
) -> None:
    folder = tmp_path / "warcs"
    folder.mkdir()
    info = warc_record("warcinfo", 1, b"isPartOf: second\r\n", "Content-Type: application/warc-fields")
    (folder / "second.warc.gz").write_bytes(info)
    with open_index(incomplete) as index:
        index.add_file("second", str(folder / "gone.warc.gz"))
    called = call("commit", "second", "--store", incomplete, "--warc-dir", str(folder))
    assert called.code == 4
    assert "gone.warc.gz could not be read" in called.err
    assert call("crawls", "--store", incomplete, "--json").json[1]["state"] == "committed"


def test_an_incomplete_crawl_is_read_from_its_files(
    call: Callable[..., Any], incomplete: str, tmp_path: Path
) -> None:
    folder = tmp_path / "warcs"
    folder.mkdir()
    body = b"x" * 2_000
    digest = hashlib.sha256(body).hexdigest()
    uri = "WARC-Target-URI: https://example.com/new"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2000\r\n\r\n" + body
    http = "Content-Type: application/http; msgtype="
    (folder / "second.warc.gz").write_bytes(
        warc_record("warcinfo", 1, b"isPartOf: second\r\n", "Content-Type: application/warc-fields")
        + warc_record("response", 2, answer, uri, f"WARC-Payload-Digest: sha256:{digest}", f"{http}response")
        + warc_record(
            "request",
            3,
            b"GET /new HTTP/1.1\r\nHost: example.com\r\n\r\n",
            uri,
            "WARC-Concurrent-To: <urn:uuid:00000000-0000-4000-8000-000000000002>",
            f"{http}request",
        )
    )
    result = call("commit", "second", "--store", incomplete, "--warc-dir", str(folder), "--json").json
    assert result["rebuilt"]
    assert result["counts"]["totalUrls"] == 1
    assert not call("crawls", "--store", incomplete, "--json").json[1]["incomplete"]
    assert result["missing"] == []
    with open_index(incomplete) as index:
        (found,) = index.find("other", [digest])
    assert found is not None
    assert (found.url, found.crawl) == ("https://example.com/new", "second")
