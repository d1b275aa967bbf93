"""``urls learn``, ``check-rules`` and ``explain`` on real crawls."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from crawling import LinkSpider, crawl, crawl_test
from rules_site import PAGES, add_site
from sampling import sampled
from webserver import Page

from scrapy_dedupe.commands.urls import crawled_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Called
    from webserver import WebServer


# So few pages are not enough for a rule by default.
ENOUGH = ("--min-share", "0.9")


@pytest.fixture
def crawled(web: WebServer, settings: dict[str, Any], call: Callable[..., Called]) -> Callable[..., Any]:
    """A function that crawls the site and then calls a verb on the crawl."""

    async def run(*words: str, crawls: bool = True, **own: Any) -> Called:
        if crawls:
            await crawl(LinkSpider, {**settings, **own}, urls=web.url())
        return call(*words, "--store", settings["DEDUPE_STORE_URL"])

    return run


def write_rules(name: str, *parameters: str, more: str = "") -> None:
    rules = [f'[[rule]]\nhost = "*"\nkind = "ignore-parameter"\nparameter = "{it}"\n' for it in parameters]
    Path(name).write_text("".join(["version = 1\n", *rules, more]))


def read_tables(name: str) -> list[dict[str, Any]]:
    return tomllib.loads(Path(name).read_text())["rule"]  # type: ignore[no-any-return]


@crawl_test
async def test_rules_are_learnt_from_a_crawl(
    web: WebServer, stored: dict[str, Any], crawled: Callable[..., Any]
) -> None:
    add_site(web, "?sid=1", "?part=2")
    doubtful = await crawled("urls", "learn", "-o", "doubtful.toml", "--json")
    assert (doubtful.code, doubtful.json["rules"]) == (0, [])
    learnt = await crawled("urls", "learn", "-o", "rules.toml", *ENOUGH, "--json", crawls=False)
    assert learnt.code == 0, learnt.err
    host = web.url("").removeprefix("http://")
    assert [rule["rule"] for rule in learnt.json["rules"]] == [f"ignore-parameter sid on {host}"]
    (rule,) = read_tables("rules.toml")
    assert rule["evidence"]["for"] == rule["evidence"]["downloads"] == PAGES
    assert rule["evidence"]["bytes"] > PAGES * 50
    again = await crawled("urls", "learn", "-o", "rules.toml", crawls=False)
    assert again.code == 3
    assert "--force" in again.err


@crawl_test
async def test_canonical_links_nominate_rules_that_are_not_enabled(
    web: WebServer, crawled: Callable[..., Any]
) -> None:
    add_site(web, pages=0, lists=[f"/p{number}?sid={number}" for number in range(22)])
    for number in range(22):
        link, header = f"<LINK href='p{number}' rel=canonical>", [("Link", f'<p{number}>; rel="canonical"')]
        body = f"{link if number % 2 else ''}<p>Page {number}".encode()
        web.pages[f"/p{number}?sid={number}"] = Page(body, 200, [] if number % 2 else header)
    learnt = await crawled("urls", "learn", "-o", "rules.toml")
    assert "not enabled, since only 22 canonical links suggest it" in learnt.out
    (rule,) = read_tables("rules.toml")
    assert (rule["parameter"], rule["enabled"], rule["evidence"]["canonical_links"]) == ("sid", False, 22)
    checked = await crawled("urls", "check-rules", "rules.toml", crawls=False)
    assert checked.code == 0


@crawl_test
async def test_equal_payloads_are_enough(web: WebServer, crawled: Callable[..., Any]) -> None:
    add_site(web, "?sid=1", "?part=2")
    learnt = await crawled("urls", "learn", "-o", "-", *ENOUGH, DEDUPE_CONTENT_ENABLED=False)
    assert learnt.code == 0, learnt.err
    rules = tomllib.loads(learnt.out)["rule"]
    assert [(rule["kind"], rule["parameter"]) for rule in rules] == [("ignore-parameter", "sid")]
    # Different payloads may have the same text, so they are no evidence against a rule.
    assert rules[0]["evidence"]["against"] == 0


@crawl_test
async def test_rule_is_learnt_from_redirects(web: WebServer, crawled: Callable[..., Any]) -> None:
    add_site(web, lists=[f"/p{number}/" for number in range(PAGES)] + ["/gone1", "/gone2"])
    for number in range(PAGES):
        web.page(f"/p{number}/", b"", status=301, headers=[("Location", f"/p{number}")])
        web.page(f"/gone{number}", b"", status=302, headers=[("Location", "/")])
    learnt = await crawled("urls", "learn", "-o", "rules.toml", *ENOUGH, "--json")
    assert [rule["kind"] for rule in learnt.json["rules"]] == ["trailing-slash"]


@crawl_test
@pytest.mark.parametrize("stored", sampled(["sqlite", "redis"], ["sqlite"]), indirect=True)
async def test_redirects_and_pages_without_text_are_evidence(
    web: WebServer, stored: dict[str, Any], crawled: Callable[..., Any]
) -> None:
    links = [f"/{name}?v={number}" for name in ("go", "em", "dl") for number in range(10, 20)]
    add_site(web, "?v=1", lists=links)
    for number in range(10, 20):
        web.page(f"/target{number}", f"<p>Target {number}")
        web.page(f"/go?v={number}", b"", status=302, headers=[("Location", f"/target{number}")])
        web.page(f"/em?v={number}", f"<img src={number}.png>")
        web.page(f"/dl?v={number}", bytes([number]) * 300, content_type="application/octet-stream")
    await crawled("urls", "learn", "-o", "rules.toml", *ENOUGH)
    # Only the value for which the pages are the same.
    assert [rule["values"] for rule in read_tables("rules.toml")] == [["1"]]
    write_rules("bad.toml", "v")
    bad = await crawled("urls", "check-rules", "bad.toml", "--json", crawls=False)
    assert bad.code == 4
    assert bad.json["rules"][0]["pairs_against"] == 27


@crawl_test
async def test_page_that_changes_at_every_visit_says_nothing(
    web: WebServer, crawled: Callable[..., Any]
) -> None:
    add_site(web, "?sid=1", pages=PAGES + 20)
    visits = 0

    def clock(request: Any) -> Page:
        nonlocal visits
        visits += 1
        return Page(f"<p>Visit number {visits}".encode())

    for number in range(20):
        web.pages[f"/p{number}"] = web.pages[f"/p{number}?sid=1"] = clock
    await crawled("urls", "learn", "-o", "one.toml")
    learnt = await crawled("urls", "learn", "-o", "two.toml", *ENOUGH, "--json")
    (rule,) = learnt.json["rules"]
    assert (rule["evidence"]["pairs_for"], rule["evidence"]["pairs_against"]) == (PAGES, 0)


@crawl_test
async def test_check_finds_the_pages_that_rules_would_lose(
    web: WebServer, crawled: Callable[..., Any]
) -> None:
    add_site(web, "?sid=1", "?part=2", pages=10)
    write_rules("good.toml", "sid")
    write_rules("bad.toml", "sid", "part")
    good = await crawled("urls", "check-rules", "good.toml", "--json")
    assert good.code == 0, good.err
    assert (good.json["saved"], good.json["pages"], good.json["lost"]) == (10, 31, [])
    bad = await crawled("urls", "check-rules", "bad.toml", "--json", crawls=False)
    assert bad.code == 4
    assert [rule["precision"] for rule in bad.json["rules"]] == [1.0, 0.0]
    # Which of the pages is requested first depends on the order of the crawl.
    assert len(bad.json["lost"]) == 10
    for page in bad.json["lost"]:
        assert page["url"].partition("?")[0] == page["requested"].partition("?")[0]
        number = page["url"].partition("?")[0].rpartition("/p")[2]
        more = " part" if "part" in page["url"] else ""
        assert page["text"] == f"Page {number} The text of page {number}{more}."
    shown = await crawled("urls", "check-rules", "bad.toml", crawls=False)
    assert "10 pages would have been lost" in shown.err
    assert "100 %" in shown.out


@crawl_test
async def test_only_committed_crawls_are_read(web: WebServer, crawled: Callable[..., Any]) -> None:
    add_site(web, pages=1)
    found = await crawled("urls", "learn", "other", "-o", "rules.toml")
    assert found.code == 3
    assert "The crawl other is unknown." in found.err


def test_explanation_of_a_url(call: Callable[..., Called]) -> None:
    write_rules("rules.toml", "sid", more='[[rule]]\nhost = "*"\nkind = "trailing-slash"\nenabled = false\n')
    found = call("urls", "explain", "http://a.org/b/?sid=1&c=2", "--rules", "rules.toml")
    assert found.code == 0, found.err
    assert found.out.splitlines() == [
        "URL       http://a.org/b/?sid=1&c=2",
        "Identity  http://a.org/b/?c=2",
        "Rule      ignore-parameter sid on *",
    ]
    other = call("urls", "explain", "http://a.org/", "--rules", "rules.toml")
    assert other.out.splitlines()[-1] == "No rule in rules.toml changes it."
    assert call("urls", "explain", "a.org", "--rules", "rules.toml").code == 2


def test_a_link_with_much_white_space_takes_little_time() -> None:
    white = b" " * 60_000
    begin = time.process_time()
    for pattern in (crawled_pages._IS_CANONICAL, crawled_pages._HEADER):
        assert not pattern.search(b"<a>; rel=" + white)
    assert time.process_time() - begin < 1
