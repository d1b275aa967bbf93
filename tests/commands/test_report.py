from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.commands import report as verb
from scrapy_dedupe.reports import sums
from scrapy_dedupe.reports.observations import Observations, pack
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = 1_793_000_000.0


def seen(*, spider: str = "shop", start: float = T) -> Observations:
    """A crawl that filtered a request, judged three pages and recorded two."""
    times = iter(range(1000))
    crawl = Observations(lambda: start + next(times), spider=spider)
    crawl.filtered("https://example.com/a")
    crawl.judged("https://example.com/", "text/html", 200, "unique")
    crawl.judged("https://example.com/b", "text/html", 200, "exact", "https://example.com/", 1.0, True)
    crawl.judged("https://example.org/c", "text/html", 200, "near", "https://example.com/", 0.91)
    crawl.recorded("https://example.com/", "text/html", 200, "response", 1_000, 0)
    crawl.recorded("https://example.com/b", "text/html", 200, "revisit", 400, 600)
    crawl.set_stats({"dedupe/url/seen": 5, "dedupe/url/capacity": 10_000, "dedupe/url/expected_lost": 0.0})
    return crawl


def save(url: str, crawl: str, data: bytes) -> None:
    store = open_store(url)
    store.reports.save(crawl, data)
    store.close()


def test_without_an_id_all_crawls_are_summed_up(call: Callable[..., Any], store_url: str) -> None:
    save(store_url, "second", pack(seen()))
    called = call("report", "--store", store_url, "--json")
    assert called.code == 0
    report = called.json
    assert [(crawl["id"], crawl["state"], crawl["has_details"]) for crawl in report["crawls"]] == [
        ("first", "committed", False),
        ("second", "uncommitted", True),
    ]
    # Of the first crawl the index knows the counts; of the second it has one record more than were seen.
    assert report["totals"]["responses"] == 6 + 2
    assert report["totals"]["revisits"] == 4 + 1
    assert report["totals"]["bytes_conserved"] == 2_500 + 200
    assert report["totals"]["requests_filtered"] == 1
    assert (report["totals"]["pages_judged"], report["totals"]["duplicates"]) == (3, 2)
    notes = " ".join(report["notes"])
    assert "There are no observations of the crawl first" in notes
    assert "more records of the crawl second than were observed" in notes
    assert "Not committed: the crawl second." in notes
    assert report["unreadable"] == []
    assert report["output"] is None


def test_a_crawl_that_is_named_is_alone_in_its_report(call: Callable[..., Any], store_url: str) -> None:
    save(store_url, "second", pack(seen()))
    report = call("report", "first", "--store", store_url, "--json").json
    assert [crawl["id"] for crawl in report["crawls"]] == ["first"]
    assert report["hosts"] == []
    assert report["totals"]["bytes_written"] == 70_000
    assert report["graph"] == {
        "nodes": [
            {
                "id": "first",
                "state": "committed",
                "needs_unknown": None,
                "is_in_report": True,
                "started": report["crawls"][0]["started"],
            }
        ],
        "edges": [],
        "left_out": 0,
    }


def test_a_crawl_of_the_content_layer_alone_is_reported(call: Callable[..., Any], store_url: str) -> None:
    save(store_url, "texts-only", pack(seen()))
    report = call("report", "texts-only", "--store", store_url, "--json").json
    (crawl,) = report["crawls"]
    assert (crawl["state"], crawl["spider"], crawl["responses"], crawl["revisits"]) == (
        "not in the index",
        "shop",
        1,
        1,
    )
    assert crawl["started"] == "2026-10-26T07:33:20.000Z"
    assert [share["name"] for share in report["hosts"]] == ["example.com", "example.org"]
    assert report["groups"][0]["url"] == "https://example.com/"
    assert report["groups"][0]["examples"][0] == {
        "url": "https://example.com/b",
        "kind": "exact",
        "similarity": 1.0,
    }
    assert report["url_filters"][0]["seen"] == 5
    assert report["graph"] == {"nodes": [], "edges": [], "left_out": 0}


def test_an_unknown_crawl_is_refused(call: Callable[..., Any], store_url: str) -> None:
    called = call("report", "first", "third", "--store", store_url)
    assert called.code == 3
    assert called.out == ""
    assert "The store has no crawl third" in called.err


@pytest.mark.parametrize(
    ("data", "word"),
    [(b"no zlib", "damaged"), (zlib.compress(b'{"format": 2}'), "Upgrade"), (pack(seen())[:-9], "truncated")],
)
def test_what_cannot_be_read_is_refused_by_name_and_told_of_in_a_sum(
    call: Callable[..., Any], store_url: str, data: bytes, word: str
) -> None:
    save(store_url, "second", data)
    named = call("report", "second", "--store", store_url)
    assert named.code == 3
    assert word in named.err
    summed = call("report", "--store", store_url, "--json")
    assert summed.code == 4
    assert summed.json["unreadable"] == ["second"]
    assert summed.json["totals"]["responses"] == 8
    store = open_store(store_url)
    assert store.reports.load("second") == data
    store.close()


def test_of_many_crawls_the_newest_are_reported(
    call: Callable[..., Any], store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "DEFAULT_CRAWLS", 2)
    save(store_url, "older", pack(seen(start=T - 10_000_000_000 / 10)))
    save(store_url, "newer", pack(seen(start=T + 1_000_000_000)))
    report = call("report", "--store", store_url, "--json").json
    assert [crawl["id"] for crawl in report["crawls"]][-1] == "newer"
    assert len(report["crawls"]) == 2
    assert "Only the newest 2 of 4 crawls are reported. Give ids to choose others." in report["notes"]


def test_the_newest_of_many_crawls_with_texts_alone_are_reported_in_the_order_of_time(
    call: Callable[..., Any], store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "DEFAULT_CRAWLS", 3)
    days = [4, 11, 2, 9, 0, 7, 5, 10, 1, 8, 3, 6]
    for number, day in enumerate(days):
        save(store_url, f"c{number:02}", pack(seen(start=T + 10**9 + 86_400 * day)))
    report = call("report", "--store", store_url, "--json").json
    assert [crawl["id"] for crawl in report["crawls"]] == ["c03", "c07", "c01"]
    assert "Only the newest 3 of 14 crawls are reported. Give ids to choose others." in report["notes"]


def test_canceled_crawls_are_left_out(call: Callable[..., Any], store_url: str) -> None:
    save(store_url, "second", pack(seen()))
    call("cancel", "second", "--store", store_url)
    report = call("report", "--store", store_url, "--json").json
    assert [crawl["id"] for crawl in report["crawls"]] == ["first"]
    assert [
        crawl["id"] for crawl in call("report", "second", "--store", store_url, "--json").json["crawls"]
    ] == ["second"]


def test_the_table_tells_the_totals_and_the_largest(call: Callable[..., Any], store_url: str) -> None:
    save(store_url, "texts-only", pack(seen()))
    lines = call("report", "texts-only", "--store", store_url).out.splitlines()
    assert lines[:4] == [
        "Crawls    1 not in the index",
        "Requests  1 filtered, since it had been made before",
        (
            "Pages     2 of 3 (67 %) repeat a text: 1 equal to another page, 1 nearly equal to another page;"
            " 1 of them dropped"
        ),
        "Bytes     600 B of 2.0 kB (30 %) not stored again: 1 of 2 responses had been archived before",
    ]
    assert lines[4].split() == ["Hosts", "pages", "repeated", "filtered", "revisits", "saved"]
    assert lines[5].split() == ["example.com", "2", "1", "1", "1", "600", "B"]
    assert "URL filter of texts-only: 5 of 10,000 fingerprints, no page expected to be lost" in lines


def test_the_counts_of_a_trap_are_told_apart(call: Callable[..., Any], store_url: str) -> None:
    crawl = Observations()
    for number in range(40):
        url = f"https://example.com/calendar/{number}"
        if number < 10:
            crawl.judged(url, "text/html", 200, "exact", "https://example.com/", 1.0)
        elif number < 14:
            crawl.judged(url, "text/html", 200, "near", "https://example.com/", 0.9)
        else:
            crawl.judged(url, "text/html", 200, "unique", is_bare=number < 30)
    store = open_store(store_url)
    store.reports.save("c9", pack(crawl))
    store.close()
    (trap,) = call("report", "c9", "--json", "--store", store_url).json["traps"]
    assert {name: trap[name] for name in trap if name != "examples"} == {
        "pattern": "example.com/calendar/{n}",
        "pages": 40,
        "exact": 10,
        "near": 4,
        "template": 16,
        "share": 0.75,
    }
    lines = call("report", "c9", "--store", store_url).out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("URL patterns"))
    assert lines[place].split()[-4:] == ["pages", "equal", "near", "template"]
    assert lines[place + 1].split() == ["example.com/calendar/{n}", "40", "10", "4", "16"]


def test_an_empty_store_has_an_empty_report(call: Callable[..., Any], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'empty.sqlite'}"
    open_store(url).close()
    called = call("report", "--store", url)
    assert called.code == 0
    assert called.out.splitlines()[0] == "Crawls    0"
    assert "Note: There are no crawls yet." in called.out


def test_a_store_that_is_not_there_is_not_made(call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "none.sqlite"
    called = call("report", "--store", f"sqlite:///{path}")
    assert called.code == 3
    assert "does not exist" in called.err
    assert not path.exists()


def test_hostile_urls_reach_the_terminal_harmlessly(call: Callable[..., Any], store_url: str) -> None:
    crawl = Observations(lambda: T)
    for number in range(30):
        crawl.judged(
            f"http://\x1b[31mred/{number}", "a\x07", 200, "exact", "http://x/\x1b]0;title\x07\n\ud800", 1.0
        )
    save(store_url, "evil", pack(crawl))
    called = call("report", "evil", "--store", store_url)
    assert called.code == 0
    assert not set(called.out) & {"\x1b", "\x07", "\ud800"}


@pytest.mark.parametrize("name", [".", "no-such-folder/page.html"])
def test_a_page_that_cannot_be_written_is_told_before_the_work(
    call: Callable[..., Any], store_url: str, name: str
) -> None:
    called = call("report", "-o", name, "--store", store_url)
    assert called.code == 3
    assert called.err.startswith("scrapy-dedupe report: ")


def test_the_page_is_written(call: Callable[..., Any], store_url: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    called = call("report", "-o", str(path), "--store", store_url)
    assert called.code == 0
    assert called.out == f"The report on 2 crawls is in {path}.\n"
    assert "first" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.glob("report.html*")] == ["report.html"]


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_takes_the_page_alone(
    name: str, call: Callable[..., Any], store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called = call("report", "-o", name, "--store", store_url)
    assert called.code == 0
    assert called.out.startswith("<!DOCTYPE html>")
    assert called.out.endswith("</html>\n")
    both = call("report", "-o", name, "--json", "--store", store_url)
    assert (both.code, both.out) == (2, "")
    assert not list(tmp_path.glob("*-*"))


def test_a_device_is_not_replaced_by_a_page(call: Callable[..., Any], store_url: str, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("/dev/null")
    called = call("report", "-o", str(tmp_path / "link.html"), "--store", store_url)
    assert called.code == 3
    assert "it is not a file" in called.err
    (tmp_path / "good.html").symlink_to(tmp_path / "real.html")
    assert call("report", "-o", str(tmp_path / "good.html"), "--store", store_url).code == 0
    assert (tmp_path / "good.html").is_symlink()
    assert (tmp_path / "real.html").stat().st_size > 1_000


def test_the_index_and_the_texts_may_have_stores_of_their_own(
    call: Callable[..., Any], store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = f"sqlite:///{tmp_path / 'texts.sqlite'}"
    save(texts, "texts-only", pack(seen()))
    store = open_store(store_url)
    store.index.add("second", [], Counts(total_crawl_size=1))
    store.close()
    (tmp_path / "reported_settings.py").write_text(
        f'DEDUPE_INDEX_URL = "{store_url}"\nDEDUPE_CONTENT_STORE_URL = "{texts}"\n'
    )
    none = tmp_path / "none.sqlite"
    (tmp_path / "textual_settings.py").write_text(
        f'DEDUPE_INDEX_URL = "sqlite:///{none}"\nDEDUPE_CONTENT_STORE_URL = "{texts}"\n'
    )
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = reported_settings\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "reported_settings")
    report = call("report", "--json").json
    assert {crawl["id"] for crawl in report["crawls"]} == {"first", "second", "texts-only"}
    # A crawl without an archive has made no index.
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "textual_settings")
    report = call("report", "--json").json
    assert [crawl["id"] for crawl in report["crawls"]] == ["texts-only"]
    assert not none.exists()


def test_a_shared_store_is_reported_as_well(call: Callable[..., Any], redis_url: str) -> None:
    store = open_store(redis_url)
    store.index.start("shared", "stored")
    store.reports.save("shared", pack(seen()))
    store.close()
    report = call("report", "shared", "--store", redis_url, "--json").json
    assert report["crawls"][0]["has_details"]
    assert report["totals"]["pages_judged"] == 3


def test_the_graph_has_what_the_crawls_need(call: Callable[..., Any], store_url: str, tmp_path: Path) -> None:
    there = tmp_path / "first-00000.warc.gz"
    there.write_bytes(b"")
    store = open_store(store_url)
    needs = [
        Need("first", 0, str(there)),
        Need("first", 0, str(tmp_path / "gone.warc.gz")),
        Need("purged", 0, "/x/y.warc.gz"),
    ]
    store.index.add("second", [], Counts(), needs=needs)
    store.close()
    graph = call("report", "second", "--store", store_url, "--json").json["graph"]
    assert [(node["id"], node["state"], node["is_in_report"]) for node in graph["nodes"]] == [
        ("second", "uncommitted", True),
        ("first", "committed", False),
        ("purged", None, False),
    ]
    edges = [
        {"crawl": "second", "needs": "first", "files": 2, "is_missing": True},
        {"crawl": "second", "needs": "purged", "files": 1, "is_missing": True},
    ]
    assert graph["edges"] == edges
    # The one that is needed tells by whom.
    graph = call("report", "first", "--store", store_url, "--json").json["graph"]
    assert [(node["id"], node["is_in_report"]) for node in graph["nodes"]] == [
        ("first", True),
        ("second", False),
    ]
    assert graph["edges"] == edges[:1]
    page = tmp_path / "page.html"
    assert call("report", "first", "-o", str(page), "--store", store_url).code == 0
    text = page.read_text("utf-8")
    assert "second needs first in 2 files, which is missing" in text
    assert "uncommitted; not in this report" in text
    assert "hollow points are crawls that are not in this report" in text


def test_the_graph_goes_on_to_what_is_needed_further_on_and_has_an_end(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'chain.sqlite'}"
    store = open_store(url)
    for number in range(8):
        store.index.start(f"c{number}", "stored")
        needs = [Need(f"c{number - 1}", 0, "/x/y.warc.gz")] if number else []
        store.index.add(f"c{number}", [], Counts(), needs=needs)
        store.index.commit(f"c{number}")
    store.close()
    graph = call("report", "c4", "--store", url, "--json").json["graph"]
    assert [node["id"] for node in graph["nodes"]] == ["c4", "c3", "c2", "c1", "c0", "c5"]
    assert {(edge["crawl"], edge["needs"]) for edge in graph["edges"]} == {
        (f"c{number}", f"c{number - 1}") for number in range(1, 6)
    }
    monkeypatch.setattr(sums, "_MOST_OUTSIDE", 2)
    report = call("report", "c4", "--store", url, "--json").json
    assert [node["id"] for node in report["graph"]["nodes"]] == ["c4", "c3", "c2"]
    assert len(report["graph"]["edges"]) == 2
    assert any("The graph leaves out 3 more crawls" in note for note in report["notes"])
