"""``content explain`` and ``content check``, on what real crawls have left."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, OneByOneSpider, crawl, crawl_test

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from webserver import WebServer

LONG = "<title>Long</title><p>" + " ".join(
    f"Sentence number {number} of a text that is long enough to be compared." for number in range(40)
)
NEAR = LONG.replace("number 20 of", "number twenty of")
DIFF = [
    "@@ -20,3 +20,3 @@",
    " Sentence number 19 of a text that is long enough to be compared.",
    "-Sentence number 20 of a text that is long enough to be compared.",
    "+Sentence number twenty of a text that is long enough to be compared.",
    " Sentence number 21 of a text that is long enough to be compared.",
]


@pytest.fixture(params=["sqlite", "redis"])
def settings(request: pytest.FixtureRequest, settings: dict[str, Any]) -> dict[str, Any]:
    if request.param == "redis":
        settings["DEDUPE_STORE_URL"] = request.getfixturevalue("redis_url")
    return {
        **settings,
        "DEDUPE_CRAWL_ID": "first",
        "DEDUPE_URL_STORE_URL": "local",
        "DEDUPE_WARC_MIN_SIZE": 1,
    }


def site(web: WebServer) -> str:
    """Serves a text, an equal and a similar one; returns the URLs in this order."""
    web.page("/a", LONG)
    web.page("/b", LONG)
    web.page("/c", gzip.compress(NEAR.encode()), headers=[("Content-Encoding", "gzip")])
    return " ".join(map(web.url, ("/a", "/b", "/c")))


def store_of(settings: dict[str, Any]) -> tuple[str, str]:
    return ("--store", settings["DEDUPE_STORE_URL"])


def where(settings: dict[str, Any]) -> tuple[str, ...]:
    return (*store_of(settings), "--warc-dir", settings["DEDUPE_WARC_DIR"])


def statistics(settings: dict[str, Any]) -> dict[str, int]:
    store = open_store(settings["DEDUPE_STORE_URL"])
    try:
        return store.content.statistics()
    finally:
        store.close()


def cut(folder: str) -> Path:
    """Leave an eighth of the only file in the folder."""
    (path,) = Path(folder).iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 8])
    return path


def written(html: str) -> str:
    Path("page.html").write_text(html)
    return "page.html"


def only_text(called: Any) -> dict[str, Any]:
    assert (called.code, called.err) == (0, "")
    [text] = called.json["texts"]
    return dict(text)


@crawl_test
async def test_each_verdict_is_explained(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    texts = {
        path: only_text(call("content", "explain", *where(settings), web.url(path), "--json"))
        for path in ("/a", "/b", "/c")
    }
    assert {path: text["kind"] for path, text in texts.items()} == {
        "/a": "unique",
        "/b": "exact",
        "/c": "near",
    }
    assert {text["crawl"] for text in texts.values()} == {"first"}
    original = {"url": web.url("/a"), "crawl": "first", "seen": texts["/a"]["seen"]}
    assert [texts[path]["original"] for path in ("/a", "/b", "/c")] == [None, original, original]
    assert texts["/b"]["digest"] == texts["/a"]["digest"] != texts["/c"]["digest"]
    assert texts["/a"]["why"] == [
        "It was new: no text known at that time was equal, or similar outside the template of the host."
    ]
    assert texts["/b"]["why"] == ["The canonical text is exactly that of the original."]
    why, compared = texts["/c"]["why"]
    similarity = texts["/c"]["similarity"]
    equal = round(128 * (similarity * 255 / 256 + 1 / 256))
    assert why.startswith(f"{equal} of 128 rows of the signatures are equal, an estimated similarity of 0.")
    assert "texts are near from 0.85" in why
    assert compared.startswith(
        "Compared as well: titles without numbers: equal; last two path segments and query: different; estimated"
        " similarity without templates: 0."
    )
    assert [texts["/a"]["diff"], texts["/b"]["diff"]] == [None, None]
    diff = texts["/c"]["diff"]
    assert diff["lines"] == [
        f"--- {web.url('/a')}  {original['seen']}",
        f"+++ {web.url('/c')}  {texts['/c']['seen']}",
        *DIFF,
    ]
    assert (diff["left_out"], diff["missing"]) == (0, None)


@crawl_test
async def test_an_explanation_says_whether_the_rest_decided(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    menu = " ".join(f"Entry {number} of the menu." for number in range(200))

    def text(page: int, sentences: int) -> str:
        return f"<p>{menu}<p>" + " ".join(f"{page * number} words, {page}." for number in range(sentences))

    pages = {
        "/x/aa": text(1, 3),
        "/x/bb": text(2, 3),
        "/1.0/y/guide": text(3, 200),
        **{f"/{number}": text(number, 500) for number in range(100, 140)},
        "/2.0/y/guide": f"{text(3, 200)} More words.",
    }
    for path, html in pages.items():
        web.page(path, html)
    await crawl(OneByOneSpider, settings, urls=" ".join(map(web.url, pages)))
    early, late = (
        only_text(call("content", "explain", *where(settings), web.url(path), "--json"))
        for path in ("/x/bb", "/2.0/y/guide")
    )
    assert early["why"][-1].endswith(
        "; the rest without the template had to be similar too, and was by the smaller template known when the page was"
        " judged."
    )
    assert late["why"][-1].endswith(
        "; the rest did not have to be similar, because the path and the query are equal and the titles do not differ."
    )


@crawl_test
async def test_an_explanation_reads_well(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    text = only_text(call("content", "explain", *where(settings), web.url("/c"), "--json"))
    called = call("content", "explain", *where(settings), web.url("/c#top"))
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines() == [
        web.url("/c"),
        f"near       {text['seen']}, crawl first",
        f"           of {web.url('/a')}, {text['original']['seen']}, crawl first",
        *(f"           {line}" for line in text["why"]),
        *(f"           {line}" for line in text["diff"]["lines"]),
    ]


@crawl_test
async def test_every_text_that_a_url_had_is_told_the_oldest_first(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    for crawl_id, html in (("first", LONG), ("second", NEAR), ("third", "<p>Something else")):
        web.page("/", html)
        await crawl(LinkSpider, {**settings, "DEDUPE_CRAWL_ID": crawl_id}, urls=web.url())
    called = call("content", "explain", *where(settings), web.url(), "--json")
    assert [(text["kind"], text["crawl"]) for text in called.json["texts"]] == [
        ("unique", "first"),
        ("near", "second"),
        ("unique", "third"),
    ]
    assert called.json["texts"][1]["original"]["crawl"] == "first"
    assert called.json["texts"][1]["diff"]["lines"][2:] == DIFF


@crawl_test
async def test_a_long_diff_is_cut_unless_it_is_asked_for(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    urls = site(web)
    web.page("/c", NEAR.replace("number 3 of", "number three of").replace("number 38 of", "number 38 in"))
    # Three changes are more than the default threshold allows.
    await crawl(OneByOneSpider, {**settings, "DEDUPE_NEAR_THRESHOLD": 0.6}, urls=urls)
    short = only_text(call("content", "explain", *where(settings), web.url("/c"), "--json"))["diff"]
    full = only_text(call("content", "explain", *where(settings), web.url("/c"), "--json", "--full"))["diff"]
    assert len(short["lines"]) == 12
    assert full["lines"][:12] == short["lines"]
    assert len(full["lines"]) == 12 + short["left_out"] == 2 + 3 * len(DIFF)
    text = call("content", "explain", *where(settings), web.url("/c")).out
    assert text.splitlines()[-1].strip() == f"({short['left_out']} more lines; --full shows them)"


@crawl_test
async def test_a_payload_that_was_stored_for_another_url_is_found(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    # The first text is forgotten, so that of /b is the original, whose record is a revisit.
    assert call("content", "purge", *store_of(settings), "--all", "--yes").code == 0
    second = {**settings, "DEDUPE_CRAWL_ID": "second"}
    crawler = await crawl(OneByOneSpider, second, urls=f"{web.url('/b')} {web.url('/c')}")
    assert crawler.stats.get_value("dedupe/warc/revisit") == 2
    text = only_text(call("content", "explain", *where(settings), web.url("/c"), "--json"))
    assert (text["original"]["url"], text["original"]["crawl"]) == (web.url("/b"), "second")
    assert text["diff"]["lines"][2:] == DIFF


@crawl_test
async def test_files_are_found_where_they_were_moved_to(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    shutil.move(settings["DEDUPE_WARC_DIR"], tmp_path / "moved")
    words = ("content", "explain", *store_of(settings), web.url("/c"), "--json")
    assert "are no WARC files of the crawl first" in only_text(call(*words))["diff"]["missing"]
    moved = ("--warc-dir", str(tmp_path / "moved"))
    assert only_text(call(*words, *moved))["diff"]["lines"][2:] == DIFF
    for path in (tmp_path / "moved").iterdir():
        path.rename(f"{path}{OPEN_SUFFIX}")  # as while the crawl runs
    assert only_text(call(*words, *moved))["diff"]["lines"][2:] == DIFF


@crawl_test
async def test_what_the_archive_lacks_is_told_in_a_sentence(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    path = cut(settings["DEDUPE_WARC_DIR"])
    called = call("content", "explain", *where(settings), web.url("/c"), "--json")
    missing = only_text(called)["diff"]["missing"]
    assert f"The archive does not have this text of {web.url('/a')}: no record in the WARC file of" in missing
    assert called.json["notes"] != []
    assert str(path) in called.json["notes"][0]


def test_a_text_that_no_crawl_has_read_is_explained_without_an_archive(
    call: Callable[..., Any], settings: dict[str, Any]
) -> None:
    with Deduplicator(settings["DEDUPE_STORE_URL"]) as dedupe:
        dedupe.check_many([Document("http://a/", LONG), Document("http://b/", NEAR)])
    text = only_text(call("content", "explain", *where(settings), "http://b/", "--json"))
    assert (text["kind"], text["original"]["url"], text["crawl"]) == ("near", "http://a/", "deduplicator")
    assert text["diff"]["missing"].startswith("There are no WARC files of the crawl deduplicator")


def test_a_copy_of_a_forgotten_text_says_so(call: Callable[..., Any], settings: dict[str, Any]) -> None:
    with Deduplicator(settings["DEDUPE_STORE_URL"]) as dedupe:
        dedupe.check_many([Document("http://a/", LONG), Document("http://b/", NEAR)])
        dedupe.forget("http://a/")
    text = only_text(call("content", "explain", *where(settings), "http://b/", "--json"))
    assert (text["kind"], text["original"], text["diff"]) == ("near", None, None)
    assert text["why"][-1] == "The original has been forgotten since."


def test_of_an_unknown_url_that_is_told_with_exit_code_4(
    call: Callable[..., Any], settings: dict[str, Any]
) -> None:
    Deduplicator(settings["DEDUPE_STORE_URL"]).close()
    called = call("content", "explain", *where(settings), "http://a/")
    assert (called.code, called.out) == (4, "")
    assert called.err.startswith("scrapy-dedupe content explain: There are no texts of http://a/ in ")
    assert len(called.err.splitlines()) == 1
    assert call("content", "explain", *where(settings), "no url", "--json").json["texts"] == []


def test_other_settings_than_the_stores_do_not_stop_an_explanation(
    call: Callable[..., Any], settings: dict[str, Any]
) -> None:
    with Deduplicator(settings["DEDUPE_STORE_URL"], near_num_perm=256) as dedupe:
        dedupe.check_many([Document("http://a/", LONG), Document("http://b/", NEAR)])
    called = call("content", "explain", *where(settings), "http://b/", "--json")
    assert " of 256 rows of the signatures" in only_text(called)["why"][0]
    assert "near_num_perm" in called.json["notes"][0]
    # A verdict of now needs the same parameters.
    Path("page.html").write_text(LONG)
    called = call("content", "check", *where(settings), "page.html")
    assert (called.code, called.out) == (3, "")
    assert "near_num_perm = 256" in called.err


# check


@crawl_test
async def test_a_file_gets_the_verdict_that_a_crawl_would_give_it(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any]
) -> None:
    await crawl(OneByOneSpider, settings, urls=site(web))
    before = statistics(settings)
    found = {}
    for name, html, url in (
        ("unique", "<p>Something else", web.url("/a")),
        ("unchanged", LONG, web.url("/a")),
        ("exact", LONG, web.url("/new")),
        ("near", NEAR.replace("number 2 of", "number two of"), web.url("/new")),
    ):
        called = call("content", "check", *where(settings), written(html), "--url", url, "--json")
        assert (called.code, called.err) == (0, "")
        found[name] = called.json
    assert {name: result["verdict"]["kind"] for name, result in found.items()} == {
        name: name for name in found
    }
    assert {result["verdict"]["original_url"] for result in found.values()} == {None, web.url("/a")}
    assert found["near"]["diff"]["lines"][-5:] == DIFF
    assert found["near"]["diff"]["lines"][1] == "+++ page.html"
    assert "rows of the signatures are equal" in found["near"]["why"][0]
    assert found["exact"]["digest"] == found["unchanged"]["digest"]
    assert statistics(settings) == before


def test_looking_at_a_new_store_records_no_parameters(
    call: Callable[..., Any], settings: dict[str, Any]
) -> None:
    store = open_store(settings["DEDUPE_STORE_URL"])
    try:
        Path("page.html").write_text(LONG)
        assert call("content", "check", *where(settings), "page.html").code == 0
        assert store.content.parameters() == {}
    finally:
        store.close()


def test_a_check_reads_well_and_takes_standard_input(
    call: Callable[..., Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Deduplicator(settings["DEDUPE_STORE_URL"], crawl_id="first") as dedupe:
        dedupe.check(Document("http://a/", "Grüße", "text/plain"))

    class Input:
        buffer = io.BytesIO("Grüße".encode("latin-1"))

    monkeypatch.setattr(sys, "stdin", Input())
    words = ("--url", "http://b/", "--content-type", "text/plain; charset=iso-8859-1")
    called = call("content", "check", *where(settings), "-", *words)
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == "exact      http://b/"
    assert lines[1].startswith("           of http://a/, 2")
    assert lines[1].endswith("Z, crawl first")
    assert lines[2:] == ["           The canonical text is exactly that of the original."]


@pytest.mark.parametrize(
    ("name", "html", "reason"),
    [
        ("page.html", "<title>App</title><div id=root></div>", "no text"),
        ("page.html", "<div>" * 40_000 + "text", "markup"),
        ("page.html", "x" * 4_000_001, "size"),
        ("page.pdf", "%PDF-1.4", "type"),
    ],
)
def test_a_page_that_is_not_judged_says_why(
    call: Callable[..., Any], tmp_path: Path, name: str, html: str, reason: str
) -> None:
    url = f"sqlite:///{tmp_path / 'texts.sqlite'}"
    Deduplicator(url).close()
    Path(name).write_text(html)
    result = call("content", "check", "--store", url, name, "--json").json
    assert (result["verdict"]["kind"], result["verdict"]["reason"]) == ("unknown", reason)
    assert result["why"][0].startswith("It was not judged: ")
    assert not result["why"][0].endswith(f": {reason}.")


def test_what_a_template_kept_out_is_told(call: Callable[..., Any], settings: dict[str, Any]) -> None:
    menu = " ".join(f"Entry {number} of the menu." for number in range(100))

    def html(page: int) -> str:
        return f"<p>{menu}<p>" + " ".join(f"Word {word} of page {page}." for word in range(3))

    with Deduplicator(settings["DEDUPE_STORE_URL"]) as dedupe:
        dedupe.check_many(Document(f"http://a/{page}", html(page)) for page in range(40))
    Path("page.html").write_text(html(41))
    words = ("content", "check", *where(settings), "page.html", "--json")
    known = call(*words, "--url", "http://a/41").json
    assert (known["verdict"]["kind"], known["template"]) == ("unique", True)
    assert known["template_share"] > 0.8
    assert known["why"] == [
        "A known text is similar, but only in the template of the host; the rest is not similar.",
        f"{known['template_share']:.0%} of the text is the template of the host.",
    ]
    other = call(*words, "--url", "http://elsewhere/").json
    assert (other["verdict"]["kind"], other["template"], other["template_share"]) == ("near", False, 0)


def test_a_file_that_cannot_be_read_is_told(call: Callable[..., Any], settings: dict[str, Any]) -> None:
    Deduplicator(settings["DEDUPE_STORE_URL"]).close()
    called = call("content", "check", *where(settings), "missing.html")
    assert (called.code, called.out) == (3, "")
    assert "missing.html cannot be read" in called.err


@pytest.mark.parametrize(
    "words", [("explain", "http://a/"), ("check", "page.html"), ("stats",), ("purge", "--all")]
)
def test_a_store_that_is_not_there_is_told_and_not_made(
    call: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]
) -> None:
    Path("page.html").write_text(LONG)
    path = tmp_path / "none.sqlite"
    called = call("content", words[0], "--store", f"sqlite:///{path}", *words[1:])
    assert (called.code, called.out) == (3, "")
    assert len(called.err.splitlines()) == 1
    assert not path.exists()
