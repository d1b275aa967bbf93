"""A redirect to a page that only a start request recorded: a login, a language choice, an age gate."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
import redis
import scrapy
from crawling import LinkSpider, crawl, crawl_test
from sampling import sampled
from scrapy.dupefilters import RFPDupeFilter
from webserver import Page

from scrapy_dedupe.dupefilters import BloomDupeFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from webserver import WebServer

# Of scrapy-redis.
pytestmark = pytest.mark.filterwarnings("default::scrapy.exceptions.ScrapyDeprecationWarning")


class FormSpider(LinkSpider):
    """Sends the form of a page, and follows its links; keeps the title of each page that it reads."""

    name = "forms"
    read: list[str]
    body = "user=me"

    def parse(self, response: Any, **kwargs: Any) -> Any:
        self.read.append(response.css("title::text").get(""))
        for action in response.css("form::attr(action)").getall():
            yield scrapy.Request(response.urljoin(action), method="POST", body=self.body)
        yield from super().parse(response)


def form_spider() -> tuple[type[FormSpider], list[str]]:
    read: list[str] = []
    return type("OneFormSpider", (FormSpider,), {"read": read}), read


def page(title: str, *links: str, form: str = "", head: str = "") -> Page:
    anchors = "".join(f'<a href="{link}">{link}</a>' for link in links)
    action = f'<form method="post" action="{form}"><input name="user"></form>' if form else ""
    return Page(f"<title>{title}</title>{head}<p>{title}</p>{anchors}{action}".encode())


def moved(target: str, cookie: str = "", status: int = 302) -> Page:
    headers = [("Location", target), *([("Set-Cookie", f"state={cookie}; Path=/")] if cookie else [])]
    return Page(status=status, headers=headers)


def by_cookie(pages: dict[str, Page], otherwise: Page) -> Callable[[Any], Page]:
    """A page that depends on what the visitor was given."""

    def answer(handler: Any) -> Page:
        state = (handler.headers.get("Cookie") or "").partition("state=")[2].partition(";")[0]
        return pages.get(state, otherwise)

    return answer


def login(web: WebServer) -> list[str]:
    inside = page("inside", "/", "/a", "/b", "/")
    web.pages |= {
        "/": by_cookie({"in": inside}, page("outside", form="/login")),
        "/login": moved("/", "in"),
        "/a": page("a", "/"),
        "/b": page("b", "/"),
    }
    return ["a", "b", "inside", "outside"]


def cookie_link(web: WebServer) -> list[str]:
    web.pages |= {
        "/": by_cookie({"in": page("inside", "/a", "/")}, page("outside", "/enter")),
        "/enter": moved("/", "in", 307),
        "/a": page("a", "/"),
    }
    return ["a", "inside", "outside"]


def consent(web: WebServer) -> list[str]:
    # The start request is redirected to the consent page, and from there back to where it began.
    web.pages |= {
        "/": by_cookie({"yes": page("inside", "/a", "/", "/consent")}, moved("/consent")),
        "/consent": page("consent", "/accept"),
        "/accept": moved("/", "yes", 303),
        "/a": page("a", "/"),
    }
    return ["a", "consent", "inside"]


def consent_form(web: WebServer) -> list[str]:
    consent(web)
    web.pages |= {"/consent": page("consent", form="/accept")}
    return ["a", "consent", "inside"]


def language(web: WebServer) -> list[str]:
    # The second choice ends where the first one did: once is all that Scrapy's own filter gives as well.
    home = page("choice", "/lang/de", "/lang/de?again")
    web.pages |= {
        "/": by_cookie({"de": page("deutsch", "/a", "/")}, home),
        "/lang/de": moved("/", "de"),
        "/lang/de?again": moved("/", "de"),
        "/a": page("a", "/"),
    }
    return ["a", "choice", "deutsch"]


def age_gate(web: WebServer) -> list[str]:
    refresh = '<meta http-equiv="refresh" content="0; url=/">'
    over = page("over", head=refresh)
    over.headers.append(("Set-Cookie", "state=old; Path=/"))
    web.pages |= {
        "/": by_cookie({"old": page("inside", "/a", "/")}, page("gate", "/over18")),
        "/over18": over,
        "/a": page("a", "/"),
    }
    return ["a", "gate", "inside"]


SITES = [login, cookie_link, consent, consent_form, language, age_gate]
FILTERS = ["scrapy", "local", "confirm", "shared", "scrapy-redis"]


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The dupefilter alone, one request at a time."""
    return {
        **settings,
        "DUPEFILTER_CLASS": BloomDupeFilter,
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "CONCURRENT_REQUESTS": 1,
    }


def with_filter(settings: dict[str, Any], kind: str, redis_url: str) -> dict[str, Any]:
    added: dict[str, Any] = {
        "scrapy": {"DUPEFILTER_CLASS": RFPDupeFilter},
        "local": {},
        "confirm": {"DEDUPE_URL_CONFIRM": True},
        "shared": {"DEDUPE_URL_STORE_URL": redis_url},
        "scrapy-redis": {
            "DEDUPE_URL_STORE_URL": redis_url,
            "REDIS_URL": redis_url,
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        },
    }[kind]
    return {**settings, **added}


@crawl_test
@pytest.mark.parametrize(
    ("site", "kind"),
    sampled(
        product(SITES, FILTERS),
        [*product(SITES, ["local"]), *product([login], FILTERS[2:]), (consent, "scrapy")],
    ),
)
async def test_the_page_after_the_redirect_is_read_as_with_scrapys_own_filter(
    site: Callable[[WebServer], list[str]],
    kind: str,
    web: WebServer,
    settings: dict[str, Any],
    redis_url: str,
) -> None:
    expected = site(web)
    spider, read = form_spider()
    crawler = await crawl(spider, with_filter(settings, kind, redis_url), addon=False, urls=web.url())
    if kind == "scrapy":
        # It asks for the start page once more, for a link to it; but loses no page either.
        assert set(read) == set(expected)
        return
    assert sorted(read) == expected, web.paths
    assert crawler.stats.get_value("dedupe/url/redirects_passed") == 1
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("dedupe:urls:*") == []


@crawl_test
@pytest.mark.parametrize("kind", ["local", "shared"])
async def test_dead_links_that_lead_home_fetch_it_once_more(
    kind: str, web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    web.pages["/"] = page("home", *(f"/dead/{number}" for number in range(20)))
    web.pages |= {f"/dead/{number}": moved("/") for number in range(20)}
    await crawl(LinkSpider, with_filter(settings, kind, redis_url), addon=False, urls=web.url())
    counts = Counter(web.paths)
    assert counts.pop("/") == 2
    assert set(counts.values()) == {1}


@crawl_test
@pytest.mark.parametrize("kind", ["local", "shared"])
async def test_redirects_that_go_round_end(
    kind: str, web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    web.pages |= {
        "/": by_cookie({"round": moved("/a")}, page("home", "/a", "/b")),
        "/a": moved("/b", "round"),
        "/b": moved("/", "round"),
    }
    settings |= {"REDIRECT_MAX_TIMES": 8}
    crawler = await crawl(LinkSpider, with_filter(settings, kind, redis_url), addon=False, urls=web.url())
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert len(web.paths) <= 2 * 8 + 2


@crawl_test
async def test_a_link_to_the_start_page_is_filtered_and_a_redirect_to_it_is_not(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.pages |= {
        "/": by_cookie({"in": page("inside", "/")}, page("outside", "/", "/a", "/enter")),
        "/a": page("a", "/"),
        "/enter": moved("/", "in"),
    }
    spider, read = form_spider()
    await crawl(spider, settings, addon=False, urls=web.url())
    assert sorted(read) == ["a", "inside", "outside"]
    assert Counter(web.paths) == Counter(["/", "/", "/a", "/enter"])


@crawl_test
@pytest.mark.parametrize("record", [True, False])
async def test_a_page_that_a_link_led_to_is_not_fetched_again_by_a_redirect(
    record: bool, web: WebServer, settings: dict[str, Any]
) -> None:
    web.pages |= {
        "/": page("home", "/a", "/moved", "/also"),
        "/a": page("a"),
        "/moved": moved("/a"),
        "/also": moved("/a"),
    }
    settings |= {"DEDUPE_URL_RECORD_START": record}
    await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert Counter(web.paths) == Counter(["/", "/a", "/moved", "/also"])


@crawl_test
async def test_each_start_page_may_be_returned_to(web: WebServer, settings: dict[str, Any]) -> None:
    for site in ("one", "two"):
        web.pages |= {
            f"/{site}": by_cookie({site: page(f"inside {site}")}, page(site, f"/enter/{site}")),
            f"/enter/{site}": moved(f"/{site}", site),
        }
    spider, read = form_spider()
    await crawl(spider, settings, addon=False, urls=f"{web.url('/one')} {web.url('/two')}")
    assert sorted(read) == ["inside one", "inside two", "one", "two"]


class Resumed(FormSpider):
    """Has no start request in a run that goes on with another one."""

    async def start(self) -> Any:
        if not getattr(self, "state", {}).get("began"):
            self.state["began"] = True
            async for request in super().start():
                yield request


@crawl_test
@pytest.mark.parametrize("kind", ["local", "confirm", "shared"])
@pytest.mark.parametrize("starts_again", [True, False])
async def test_a_login_that_was_queued_at_the_stop_is_read_in_the_next_run(
    starts_again: bool,
    kind: str,
    web: WebServer,
    settings: dict[str, Any],
    redis_url: str,
    tmp_path: Path,
) -> None:
    expected = login(web)
    read: list[str] = []
    base = FormSpider if starts_again else Resumed
    spider = type("OneSpider", (base,), {"read": read})
    job = {**with_filter(settings, kind, redis_url), "JOBDIR": str(tmp_path / "job")}
    await crawl(spider, {**job, "CLOSESPIDER_PAGECOUNT": 1}, addon=False, urls=web.url())
    assert read == ["outside"]
    await crawl(spider, job, addon=False, urls=web.url())
    # The start request of the second run may come after the login, and find the page inside too.
    assert set(read) == set(expected)
    assert len(read) == len(expected) + starts_again
    # It has passed, and a start request passes anyway.
    before = len(web.paths)
    await crawl(spider, job, addon=False, urls=web.url())
    assert web.paths[before:] == (["/"] if starts_again else [])


@crawl_test
@pytest.mark.parametrize("kind", ["local", "shared"])
async def test_a_login_is_read_after_a_cut(
    kind: str, web: WebServer, settings: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    expected = login(web)
    spider, read = form_spider()
    job = {**with_filter(settings, kind, redis_url), "JOBDIR": str(tmp_path / "job")}
    await crawl(spider, {**job, "CLOSESPIDER_PAGECOUNT": 1}, addon=False, urls=web.url())
    assert read == ["outside"]
    # What a kill leaves.
    if kind == "local":
        (tmp_path / "job" / "dedupe" / "urls" / "urls.bloom").unlink()
    else:
        kept = tmp_path / "job" / "dedupe" / "urls" / "shared"
        kept.write_text(kept.read_text().replace(" whole", ""))
        with redis.Redis.from_url(redis_url) as client:
            (name,) = client.keys("dedupe:urls:*:meta")
            client.hset(name, "cut", "somebody")
    await crawl(spider, job, addon=False, urls=web.url())
    assert sorted(read) == sorted([*expected, "outside"])


@crawl_test
async def test_two_processes_that_share_the_filter_log_in_each(
    web: WebServer, settings: dict[str, Any], redis_url: str
) -> None:
    login(web)
    first, read_first = form_spider()
    second, read_second = form_spider()
    settings = with_filter(settings, "shared", redis_url)
    second.body = "user=another"
    await asyncio.gather(
        *(crawl(spider, settings, addon=False, urls=web.url()) for spider in (first, second))
    )
    for read in (read_first, read_second):
        assert {"inside", "outside"} <= set(read)
        assert read.count("inside") == 1
    assert sorted(item for item in read_first + read_second if item in "ab") == ["a", "b"]
