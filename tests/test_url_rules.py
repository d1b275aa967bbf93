"""URL rules in crawls of a real site: which URLs are requested, and that no page is lost."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
import tomllib
from contextlib import closing, suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import redis
from crawling import LinkSpider, collecting, crawl, crawl_test
from hypothesis import given
from hypothesis import strategies as st
from rules_site import add_site, text
from sampling import sampled
from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler
from webserver import Page

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.live.urls.fingerprints import USUAL_URL, Fingerprints, usual_fingerprint
from scrapy_dedupe.urls.rule_records import HeldRequest, RuleRecords
from scrapy_dedupe.urls.rules import UrlRule, UrlRules
from scrapy_dedupe.urls.shared import SharedBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from webserver import WebServer

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


@pytest.fixture
def rules(tmp_path: Path) -> Callable[..., str]:
    """Writes a file of rules, each a kind and a name, for all hosts; the path."""

    def write(*given: str, name: str = "rules.toml", more: str = "") -> str:
        key = {"ignore-parameter": "parameter", "default-document": "document", "remove-segment": "segment"}
        tables = []
        for rule in given:
            kind, _, word = rule.partition(" ")
            tables.append(
                f'[[rule]]\nhost = "*"\nkind = "{kind}"\n' + (f'{key[kind]} = "{word}"\n' if word else "")
            )
        path = tmp_path / name
        path.write_text("\n".join(["version = 1", *tables]) + more)
        assert "version" in tomllib.loads(path.read_text())
        return str(path)

    return write


def texts(web: WebServer, items: list[dict[str, Any]]) -> set[bytes]:
    """The bodies of the pages that the spider has received."""
    bodies = {web.url(path): page.body for path, page in web.pages.items() if isinstance(page, Page)}
    return {bodies[item["url"]] for item in items}


def stats_of(crawler: Any) -> dict[str, Any]:
    prefix = "dedupe/url/rules/"
    return {
        name.removeprefix(prefix): value
        for name, value in crawler.stats.get_stats().items()
        if name.startswith(prefix)
    }


@crawl_test
async def test_each_page_is_requested_once(
    web: WebServer, stored: dict[str, Any], rules: Callable[..., str]
) -> None:
    add_site(web, "?sid=1", "?sid=2", "?sid=3", pages=20)
    spider, items = collecting()
    candidate = "enabled = false\n[rule.evidence]\nfor = 90\ndownloads = 80\n"
    path = rules("ignore-parameter sid", "trailing-slash", more=candidate)
    own = {"DEDUPE_URL_RULES": path, "DEDUPE_URL_RULES_PROBE": 0}
    crawler = await crawl(spider, {**stored, **own}, urls=web.url())
    assert len(texts(web, items)) == 21
    # Six probes during the crawl: the first three, the 8th, the 16th and the 32nd. The others at its end.
    assert len(web.paths) == 21 + 20
    assert stats_of(crawler) == {"filtered": 54, "probes": 20, "released": 14}
    assert crawler.stats.get_value("dupefilter/filtered") == 54
    assert crawler.stats.get_value("dedupe/url/rule/trailing-slash on */candidate") == 80


@crawl_test
async def test_suspended_rule_costs_no_page(
    web: WebServer, stored: dict[str, Any], rules: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    add_site(web, "?part=1", "?sid=1", pages=30)
    spider, items = collecting()
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid", "ignore-parameter part")}
    crawler = await crawl(spider, {**stored, **own}, urls=web.url())
    assert len(texts(web, items)) == 61
    found = stats_of(crawler)
    assert found["suspended"] == 1
    assert found["released"] > 10
    warnings = [record.getMessage() for record in caplog.records if "is suspended" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("The URL rule ignore-parameter part on * is suspended")
    assert not crawler.stats.get_value("dedupe/errors/url")


# The probes during the crawl find some of the 60 pages that differ, but none of the 120 pages: these are found by the
# sample at its end, except in one of 100,000 crawls.
@crawl_test
@pytest.mark.parametrize(("wrong", "right"), [(60, {0, 1, 2}), (120, {0, 1, 2, 7, 15, 31, 63, 127})])
async def test_rule_that_is_wrong_for_some_pages_costs_no_page(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], wrong: int, right: set[int]
) -> None:
    add_site(web, "?part=1", pages=200)
    differ = set(random.Random(7).sample([number for number in range(200) if number not in right], wrong))
    for number in set(range(200)) - differ:
        web.page(f"/p{number}?part=1", text(number))
    spider, items = collecting()
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter part"), "DEDUPE_URL_RULES_PROBE": 0}
    crawler = await crawl(spider, {**settings, **own}, urls=web.url())
    assert stats_of(crawler)["suspended"] == 1
    assert len(texts(web, items)) == 1 + 200 + len(differ)


@crawl_test
@pytest.mark.parametrize(
    ("stored", "kind"),
    sampled(
        product(["sqlite", "redis"], ["text", "redirect", "no text", "binary"]),
        [("redis", "text"), ("sqlite", "redirect"), ("redis", "no text"), ("sqlite", "binary")],
    ),
    indirect=["stored"],
)
async def test_page_with_many_urls_that_a_good_rule_equates_is_not_lost(
    web: WebServer, stored: dict[str, Any], rules: Callable[..., str], kind: str
) -> None:
    others = range(20)
    for number in others:
        target = f"/target{number}"
        web.page(target, text(1000 + number))
        answer = {
            "text": Page(text(1000 + number).encode()),
            "redirect": Page(b"", 302, [("Location", target)]),
            "no text": Page(b"<img src=%d.png>" % number),
            "binary": Page(bytes([number]) * 500, content_type="application/octet-stream"),
        }[kind]
        web.pages[f"/other?v={number}"] = answer
    add_site(web, "?v=1", "?v=2", "?v=3", pages=40, lists=[f"/other?v={number}" for number in others])
    spider, _ = collecting()
    crawler = await crawl(spider, {**stored, "DEDUPE_URL_RULES": rules("ignore-parameter v")}, urls=web.url())
    requested = {path for path in web.paths if path.startswith("/other")}
    assert len(requested) == len(others)
    found = stats_of(crawler)
    assert found["split"] == 1
    # The other pages are still requested only once.
    assert found["filtered"] > 100


@crawl_test
async def test_next_url_of_a_failed_page_is_requested(
    web: WebServer, stored: dict[str, Any], rules: Callable[..., str]
) -> None:
    add_site(web, "?sid=1", "?sid=2", pages=20)
    failed: set[str] = set()

    def fail_once(request: Any) -> Page:
        number = request.path.partition("?")[0]
        if number not in failed:
            failed.add(number)
            return Page(b"broken", 500)
        return Page(text(int(number.removeprefix("/p"))).encode())

    for path in list(web.pages):
        if path != "/":
            web.pages[path] = fail_once
    spider, items = collecting()
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid"), "DEDUPE_URL_RULES_PROBE": 0}
    await crawl(spider, {**stored, **own}, urls=web.url())
    assert len({item["url"].partition("?")[0] for item in items}) == 21


@crawl_test
async def test_page_whose_first_url_is_dropped_by_a_middleware_is_requested_under_another(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str]
) -> None:
    web.page("/robots.txt", "User-agent: *\nDisallow: /print/", content_type="text/plain")
    links = [f"{folder}/p{number}" for number in range(10) for folder in ("", "/print")]
    for link in links:
        web.page(link, text(int(link.rpartition("p")[2])))
    web.page("/", "".join(f'<a href="{link}">x</a>' for link in links))
    spider, items = collecting()
    own = {"DEDUPE_URL_RULES": rules("remove-segment print"), "ROBOTSTXT_OBEY": True}
    await crawl(spider, {**settings, **own}, urls=web.url())
    assert len(texts(web, items)) == 11
    # All of the other folder are dropped.
    assert not any("print" in path for path in web.paths)


@crawl_test
async def test_changing_pages_do_not_suspend_a_rule(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str]
) -> None:
    add_site(web, "?sid=1", pages=20)
    visits = 0

    def clock(request: Any) -> Page:
        nonlocal visits
        visits += 1
        return Page(f"<p>Visit number {visits}".encode())

    for path in list(web.pages):
        if path != "/":
            web.pages[path] = clock
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid")}
    crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    found = stats_of(crawler)
    assert "suspended" not in found
    assert found["unstable"] >= 3


@crawl_test
async def test_redirect_to_another_url_of_the_page_is_followed(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str]
) -> None:
    links = [f"/p{number}/" for number in range(10)]
    web.page("/", "".join(f'<a href="{link}">x</a>' for link in links))
    for number in range(10):
        web.page(f"/p{number}/", b"", status=301, headers=[("Location", f"/p{number}?sid=1")])
        web.page(f"/p{number}?sid=1", text(number))
    spider, items = collecting()
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid", "trailing-slash")}
    await crawl(spider, {**settings, **own}, urls=web.url())
    assert len(texts(web, items)) == 11


@crawl_test
async def test_plain_urls_of_an_earlier_run_count_as_seen(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    add_site(web, pages=40)
    settings["JOBDIR"] = str(tmp_path / "job")
    await crawl(LinkSpider, settings, urls=web.url())
    add_site(web, "?sid=1", pages=40)
    web.paths.clear()
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid"), "DEDUPE_URL_RULES_PROBE": 0}
    await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    # The start page and 20 probes. The texts of the earlier run are unknown, so 20 pages are downloaded again.
    assert len(web.paths) == 1 + 20 + 20


@crawl_test
@pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])
async def test_pages_of_an_earlier_run_are_compared(
    web: WebServer,
    settings: dict[str, Any],
    rules: Callable[..., str],
    tmp_path: Path,
    redis_url: str,
    shared: bool,
) -> None:
    add_site(web, pages=60)
    settings |= {"JOBDIR": str(tmp_path / "job")} | ({"DEDUPE_URL_STORE_URL": redis_url} if shared else {})
    await crawl(LinkSpider, settings, urls=web.url())
    web.paths.clear()
    add_site(web, "?sid=1", "?part=1", pages=60)
    own = {
        "DEDUPE_URL_RULES": rules("ignore-parameter sid", "ignore-parameter part"),
        "DEDUPE_URL_RULES_PROBE": 0,
    }
    crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    assert stats_of(crawler)["suspended"] == 1
    assert {path for path in web.paths if "part" in path} == {f"/p{number}?part=1" for number in range(60)}
    assert sum("sid" in path for path in web.paths) < 50


@crawl_test
async def test_page_of_an_earlier_run_that_redirects_is_downloaded_once(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    add_site(web, pages=1)
    settings |= {"JOBDIR": str(tmp_path / "job"), "CLOSESPIDER_TIMEOUT": 20}
    await crawl(LinkSpider, settings, urls=web.url())
    web.paths.clear()
    add_site(web, "?sid=1", pages=1)
    web.pages["/p0"] = Page(b"", 302, [("Location", "/p0?sid=1")])
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid")}
    crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert sorted(web.paths) == ["/", "/p0", "/p0?sid=1", "/p0?sid=1"]


@crawl_test
async def test_rule_that_cannot_be_checked_costs_no_page(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], redis_url: str
) -> None:
    add_site(web, "?part=1", pages=20)
    settings |= {
        "DEDUPE_URL_STORE_URL": redis_url,
        "DEDUPE_URL_RULES": rules("ignore-parameter part", "ignore-parameter v"),
        "DEDUPE_URL_RULES_PROBE": 0,
    }
    # Another process requested each page, under a URL that is unknown here.
    web.page("/", "".join(f'<a href="/p{number}?v=1">x</a>' for number in range(20)))
    for number in range(20):
        web.page(f"/p{number}?v=1", f"<p>Version {number}")
    with redis.Redis.from_url(redis_url) as client:
        other = SharedBloomFilter(client, "links", 10_000, 1e-6, fingerprinter=FINGERPRINTER)
        other.attach()
        await crawl(LinkSpider, settings, urls=web.url())
        web.paths.clear()
        web.page("/", "".join(f'<a href="/p{number}?part=1">x</a>' for number in range(20)))
        crawler = await crawl(LinkSpider, settings, urls=web.url())
        other.detach(delete=True)
    assert stats_of(crawler)["filtered"] == 15
    assert sorted(web.paths) == sorted(["/", *(f"/p{number}?part=1" for number in range(20))])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.toml", "missing.toml cannot be read: No such file or directory. Check the path"),
        ("folder", "folder cannot be read: Is a directory. Check the path"),
        ("text.toml", "text.toml is not valid TOML"),
        ("binary.toml", "It must be TOML, encoded as UTF-8."),
    ],
)
@crawl_test
async def test_rules_that_cannot_be_read_are_refused_with_the_setting(
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    words: str,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.toml").write_text("x = [")
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with suppress(Exception):  # depends on the version of Scrapy
        await crawl(LinkSpider, {**settings, "DEDUPE_URL_RULES": str(tmp_path / name)}, urls=web.url())
    (message,) = [record.getMessage() for record in caplog.records if "does not start" in record.getMessage()]
    assert message.startswith("The crawl does not start. DEDUPE_URL_RULES: ")
    assert words in message
    assert web.paths == []


@crawl_test
async def test_job_with_other_rules_is_refused(
    web: WebServer,
    settings: dict[str, Any],
    rules: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_site(web, pages=1)
    settings["JOBDIR"] = str(tmp_path / "job")
    first, second = rules("ignore-parameter sid"), rules("ignore-parameter other", name="other.toml")
    await crawl(LinkSpider, {**settings, "DEDUPE_URL_RULES": first}, urls=web.url())
    web.paths.clear()
    for own, words in (({"DEDUPE_URL_RULES": second}, ["rules.toml", "other.toml"]), ({}, ["is not set"])):
        caplog.clear()
        with suppress(Exception):  # depends on the version of Scrapy
            await crawl(LinkSpider, {**settings, **own}, urls=web.url())
        messages = [
            record.getMessage() for record in caplog.records if "does not start" in record.getMessage()
        ]
        assert len(messages) == 1
        assert all(word in messages[0] for word in words)
        assert web.paths == []
    # Comments and rules that are not enabled do not count.
    candidate = '# A note\n[[rule]]\nhost = "*"\nkind = "trailing-slash"\nenabled = false\n'
    for same in (first, rules("ignore-parameter sid", name="moved.toml", more=candidate)):
        web.paths.clear()
        await crawl(LinkSpider, {**settings, "DEDUPE_URL_RULES": same}, urls=web.url())
        assert web.paths == ["/"]


@crawl_test
async def test_number_of_rules_does_not_change_the_number_of_calls(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], redis_url: str
) -> None:
    add_site(web, "?sid=1", "?sid=2", pages=30)
    calls = []
    with redis.Redis.from_url(redis_url) as client:
        for count in (1, 100):
            client.config_resetstat()
            names = [f"ignore-parameter p{number}" for number in range(count - 1)]
            own = {
                "DEDUPE_URL_STORE_URL": redis_url,
                "DEDUPE_URL_KEY": f"filter{count}",
                "DEDUPE_URL_RULES": rules("ignore-parameter sid", *names, name=f"{count}.toml"),
            }
            crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
            assert stats_of(crawler)["filtered"] > 30
            calls.append(client.info("commandstats")["cmdstat_evalsha"]["calls"])
    assert calls[1] < 1.2 * calls[0]


@crawl_test
async def test_very_many_rules_are_applied(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    add_site(web, "?sid=1", "?v=1", pages=30)
    others = "".join(
        f'[[rule]]\nhost = "host{number}.example"\nkind = "ignore-parameter"\nparameter = "v"\n'
        for number in range(10_000)
    )
    own = {
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "DEDUPE_URL_RULES": rules("ignore-parameter sid", more=others),
    }
    begun = time.process_time()
    crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    assert stats_of(crawler)["filtered"] > 20
    assert len({path for path in web.paths if "?v=" in path}) == 30
    assert time.process_time() - begun < 20


@crawl_test
async def test_rules_without_the_dupefilter_of_this_package_are_reported(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    add_site(web, pages=1)
    own = {
        "DEDUPE_URL_RULES": rules("ignore-parameter sid"),
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    }
    await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    assert "has no effect, since DUPEFILTER_CLASS is scrapy.dupefilters.RFPDupeFilter." in caplog.text


@given(st.from_regex(USUAL_URL, fullmatch=True))
def test_usual_fingerprint_is_that_of_scrapy(url: str) -> None:
    request = Request(url)
    assert usual_fingerprint(request.url) in (None, fingerprint(request))


class OwnFingerprinter:
    def fingerprint(self, request: Request) -> bytes:
        return b"own " + fingerprint(request, keep_fragments=True)


def by_kind(request: Request) -> bytes:
    return fingerprint(request) + bytes(request.meta.get("kind", b""))


@pytest.mark.parametrize(
    ("name", "patch"),
    [("fingerprint", by_kind), ("_fingerprint", partial(fingerprint, include_headers=["Accept-Language"]))],
)
@pytest.mark.parametrize("is_class", [False, True])
def test_a_patched_fingerprinter_of_scrapy_is_used(
    name: str, patch: Any, is_class: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawler = get_crawler()
    crawler.request_fingerprinter = RequestFingerprinter()
    if is_class:
        monkeypatch.setattr(RequestFingerprinter, "fingerprint", lambda self, request: patch(request))
    else:
        monkeypatch.setattr(crawler.request_fingerprinter, name, patch)
    request = Request("http://a.example/", headers={"Accept-Language": "en"}, meta={"kind": b"1"})
    assert Fingerprints(crawler).of(request) == patch(request) != fingerprint(request)


WORDS = st.text("aZ09-._~/=&?#%+;:@,!'() \u00e9", max_size=12)
HOSTS = ["a.org", "A.org", "a.org:80", "user@a.org", "a.org.", "b\u00fccher.example"]
if Request("http://[::1]:8080/").url == "http://[::1]:8080/":  # old w3lib takes the brackets away
    HOSTS.append("[::1]:8080")
URLS = st.builds(
    "{}://{}/{}?{}#{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(HOSTS),
    WORDS,
    WORDS,
    WORDS,
)
REQUESTS = st.builds(
    lambda url, verbatim, **given: Request(url, meta={"verbatim_url": True} if verbatim else {}, **given),
    URLS,
    st.booleans(),
    method=st.sampled_from(["GET", "GET", "GET", "POST"]),
    body=st.sampled_from([b"", b"", b"body"]),
)


@given(REQUESTS, URLS, st.sampled_from(["scrapy.utils.request.RequestFingerprinter", OwnFingerprinter]))
def test_fingerprints_are_those_of_the_configured_fingerprinter(
    request: Request, url: str, fingerprinter: Any
) -> None:
    crawler = get_crawler(settings_dict={"REQUEST_FINGERPRINTER_CLASS": fingerprinter})
    found = Fingerprints(crawler)
    configured = crawler.request_fingerprinter
    assert configured is not None
    assert found.of(request) == configured.fingerprint(request)
    other = request.replace(url=url)
    assert found.of(request, url) == found.of(request, other.url) == configured.fingerprint(other)


@given(
    REQUESTS | st.builds(Request, st.from_regex(USUAL_URL, fullmatch=True)),
    st.randoms(use_true_random=False),
    st.sampled_from(["scrapy.utils.request.RequestFingerprinter", OwnFingerprinter]),
)
def test_fingerprints_of_urls_with_fewer_parameters_are_those_of_the_configured_fingerprinter(
    request: Request, rng: random.Random, fingerprinter: Any
) -> None:
    crawler = get_crawler(settings_dict={"REQUEST_FINGERPRINTER_CLASS": fingerprinter})
    found = Fingerprints(crawler)
    configured = crawler.request_fingerprinter
    assert configured is not None
    rest, mark, fragment = request.url.partition("#")
    start, _, query = rest.partition("?")
    parameters = query.split("&")
    kept = "&".join(rng.sample(parameters, rng.randint(0, len(parameters))))
    url = f"{start}?{kept}{mark}{fragment}" if kept else f"{start}{mark}{fragment}"
    expected = configured.fingerprint(request.replace(url=url))
    assert found.of_identity(request, url) == expected
    found.of(request)
    assert found.of_identity(request, url) == expected


NAMES = ["a", "b", "Z", "0", "-"]
RULES = [
    *(UrlRule("ignore-parameter", "*", name) for name in NAMES),
    *(UrlRule("keep-last-value", "*", name) for name in NAMES),
    UrlRule("host-alias", "a.org", "b.org"),
    UrlRule("ignore-scheme", "*"),
    UrlRule("lowercase-path", "*"),
    UrlRule("trailing-slash", "*"),
    UrlRule("remove-segment", "*", "a"),
    UrlRule("ignore-empty-parameters", "*"),
    UrlRule("ignore-repeated-parameters", "*"),
    UrlRule("sort-parameters", "*"),
]


@given(
    st.builds(
        lambda path, query, end: Request(f"http://a.org/{path}?{query}{end}"),
        st.text("aZ/.", max_size=6),
        st.lists(st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(["", "0", "%20"]))).map(
            "&".join
        ),
        st.sampled_from(["", "", "#", "#?a=0"]),
    ),
    st.lists(st.sampled_from(RULES), min_size=1, unique=True),
    st.sampled_from(["scrapy.utils.request.RequestFingerprinter", OwnFingerprinter]),
)
def test_fingerprints_of_identities_are_those_of_the_configured_fingerprinter(
    request: Request, rules: list[UrlRule], fingerprinter: Any
) -> None:
    crawler = get_crawler(settings_dict={"REQUEST_FINGERPRINTER_CLASS": fingerprinter})
    found = Fingerprints(crawler)
    configured = crawler.request_fingerprinter
    assert configured is not None
    found.of(request)
    identity, _ = UrlRules(rules).identity(request.url)
    assert found.of_identity(request, identity) == configured.fingerprint(request.replace(url=identity))


@crawl_test
async def test_request_and_fingerprinter_stay_as_they_are(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    add_site(web, "?sid=1", pages=5)
    own = {
        "DEDUPE_URL_RULES": rules("ignore-parameter sid"),
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_DIR": str(tmp_path / "cache"),
    }
    await crawl(LinkSpider, {**settings, **own}, urls=web.url("/p1?sid=1"))
    await crawl(LinkSpider, {**settings, **own}, urls=web.url("/p1"))
    assert web.paths == ["/p1?sid=1", "/p1"]


@crawl_test
async def test_requests_that_cannot_be_stored_at_the_end_make_the_run_unclean(
    web: WebServer,
    settings: dict[str, Any],
    rules: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_site(web, "?sid=1", "?sid=2", pages=40)
    settings |= {
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_RULES": rules("ignore-parameter sid"),
        "DEDUPE_URL_FLUSH_SECONDS": 60,
        "CLOSESPIDER_PAGECOUNT": 5,
    }
    monkeypatch.setattr(RuleRecords, "hold", full_disk)
    await crawl(LinkSpider, settings, urls=web.url())
    assert "treats this run as unclean" in caplog.text
    monkeypatch.undo()
    asked = set(web.paths)
    spider, _ = collecting()
    await crawl(spider, {**settings, "CLOSESPIDER_PAGECOUNT": 0}, urls=web.url())
    asked |= set(web.paths)
    assert len({path.partition("?")[0] for path in asked}) == 41


@crawl_test
async def test_requests_that_were_due_at_a_stop_are_made_by_the_next_run(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    add_site(web, "?sid=1", pages=60)
    settings |= {
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_RULES": rules("ignore-parameter sid"),
        "DEDUPE_URL_RULES_PROBE": 0,
    }
    await crawl(LinkSpider, settings, urls=web.url())
    # The run ended after a rule was suspended and before its requests were scheduled.
    records = tmp_path / "job" / "dedupe" / "urls" / "rules.sqlite"
    with closing(sqlite3.connect(records)) as connection, connection:
        held = connection.execute("SELECT count(*) FROM held").fetchone()[0]
        connection.execute("UPDATE held SET due = 1")
        connection.execute("UPDATE tallies SET suspended = 1, pairs_against = 9")
    assert held > 30
    web.paths.clear()
    await crawl(LinkSpider, settings, urls=web.url())
    assert len(web.paths) == 1 + held


@crawl_test
async def test_page_that_was_being_compared_at_a_stop_is_not_lost(
    web: WebServer, settings: dict[str, Any], rules: Callable[..., str], tmp_path: Path
) -> None:
    # The rule is right for 100 pages, and wrong for one page with many URLs.
    others = [f"/other?v={number}" for number in range(9)]
    add_site(web, "?v=1", pages=100, lists=others)

    is_stopped = threading.Event()

    def other(request: Any) -> Page:
        if web.paths.count(request.path) > 1:
            # The second download, which is still running when the spider stops.
            assert is_stopped.wait(240)
        return Page(text(1000 + int(request.path.partition("=")[2])).encode())

    class Stopped(LinkSpider):
        received = 0

        def parse(self, response: Any, **kwargs: Any) -> Any:
            self.received += "/other" in response.url
            if self.received == 2:
                is_stopped.set()
                raise CloseSpider("enough")
            return super().parse(response)

    for path in others:
        web.pages[path] = other
    settings |= {
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_RULES": rules("ignore-parameter v"),
        "DEDUPE_URL_RULES_PROBE": 0.2,
    }
    await crawl(Stopped, settings, urls=web.url())
    assert len({path for path in web.paths if "/other" in path}) < len(others)
    await crawl(LinkSpider, settings, urls=web.url())
    assert set(others) <= set(web.paths)


@crawl_test
@pytest.mark.parametrize("action", ["sample", "remove"])
async def test_spider_closes_although_the_records_of_held_requests_fail(
    web: WebServer,
    settings: dict[str, Any],
    rules: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    # Most of these pages do not exist, so too few can be compared.
    add_site(web, "?sid=1", pages=1, lists=[f"/p0?sid={number}" for number in range(2, 12)])
    remove = RuleRecords.remove

    def cannot_remove(self: RuleRecords, requests: list[HeldRequest]) -> None:
        self._connection.execute("PRAGMA query_only = ON")
        try:
            remove(self, requests)
        finally:
            self._connection.execute("PRAGMA query_only = OFF")

    monkeypatch.setattr(RuleRecords, action, full_disk if action == "sample" else cannot_remove)
    own = {"DEDUPE_URL_RULES": rules("ignore-parameter sid"), "CLOSESPIDER_TIMEOUT": 30}
    crawler = await crawl(LinkSpider, {**settings, **own}, urls=web.url())
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert crawler.stats.get_value("dedupe/errors/url")
    assert len(web.paths) < 30


def full_disk(self: RuleRecords, *arguments: object) -> None:
    raise StoreUnavailable("The disk is full.")
