"""Random sequences of crawls whose HTTP cache is the archive, compared with a plain model of RFC 9111."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from crawling import collecting, crawl, crawl_test
from sampling import sampled
from test_httpcache import Reading
from webserver import Page

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.live.archive import cache

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

NAMES = "abc"
WORDS = " ".join(f"{word:x}" for word in range(400))


@dataclass(frozen=True)
class Served:
    """A page of the server. It varies with the header X-Kind if ``varies``; ``validator`` is etag, modified or none."""

    name: str
    version: int = 0
    varies: bool = False
    is_lasting: bool = False
    is_stored: bool = True
    validator: str = "etag"

    def text(self, kind: str) -> str:
        return f"<p>{self.name} {self.version} {kind if self.varies else ''} {WORDS}"

    def headers(self, kind: str) -> list[tuple[str, str]]:
        controls = ["max-age=3600" if self.is_lasting else "max-age=0"]
        if not self.is_stored:
            controls.append("no-store")
        headers = [("Cache-Control", control) for control in controls]
        if self.varies:
            headers.append(("Vary", "X-Kind"))
        second = self.version * 2 + (kind == "two" and self.varies)
        if self.validator == "etag":
            headers.append(("ETag", f'"{self.name}{second}"'))
        elif self.validator == "modified":
            headers.append(("Last-Modified", f"Sat, 28 Nov 2020 10:{second // 60:02}:{second % 60:02} GMT"))
        return headers


@dataclass(frozen=True)
class Answer:
    """What the server last said about a page to a crawl."""

    crawl: str
    page: Served
    kind: str


class ClockBack(datetime):
    """The time, two hours ago."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) - timedelta(hours=2)


@pytest.mark.parametrize("seed", sampled(range(60), 2))
@crawl_test
async def test_no_stale_page_is_used_as_fresh_and_no_page_of_another_request(
    seed: int, web: WebServer, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    pages = {name: Served(name) for name in NAMES}
    answers: list[Answer] = []
    asked: dict[str, str] = {}
    current = ""

    def answer(handler: Any) -> Page:
        page, kind = pages[handler.path[1:]], handler.headers["X-Kind"]
        headers = page.headers(kind)
        by_name = dict(headers)
        tag = handler.headers.get("If-None-Match")
        since = handler.headers.get("If-Modified-Since")
        known = [dict(one.page.headers(one.kind)) for one in usable(page.name, kind)]
        assert tag is None or tag in [one.get("ETag") for one in known], "the validator of another page"
        assert since is None or since in [one.get("Last-Modified") for one in known]
        is_same = tag == by_name.get("ETag") if tag else bool(since) and since == by_name.get("Last-Modified")
        asked[page.name] = "304" if is_same else "200"
        answers.append(Answer(current, page, kind))
        if is_same:
            return Page(b"", 304, headers, content_type=None)
        return Page(page.text(kind).encode(), 200, headers)

    def usable(name: str, kind: str) -> list[Answer]:
        return [
            one
            for one in answers
            if one.crawl in committed
            and one.page.name == name
            and one.page.is_stored
            and (not one.page.varies or one.kind == kind)
        ]

    for name in NAMES:
        web.pages[f"/{name}"] = answer
    committed: set[str] = set()
    values = {**settings, "DEDUPE_HTTPCACHE": True, "COOKIES_ENABLED": False}
    for number in range(12):
        for name, page in pages.items():
            change = chance.choice(
                ["version", "version", "is_lasting", "varies", "is_stored", "validator", "", ""]
            )
            if change == "version":
                pages[name] = replace(page, version=page.version + 1)
            elif change == "validator":
                pages[name] = replace(
                    page, version=page.version + 1, validator=chance.choice(["etag", "modified", "none"])
                )
            elif change == "varies":
                pages[name] = replace(page, version=page.version + 1, varies=not page.varies)
            elif change:
                pages[name] = replace(page, **{change: not getattr(page, change)})
        current, kind = f"crawl-{number}", chance.choice(["one", "two"])
        has_end = chance.random() < 0.8
        is_clock_back = chance.random() < 0.1
        monkeypatch.setattr(cache, "datetime", ClockBack if is_clock_back else datetime)
        asked.clear()
        spider, items = collecting(Reading)
        crawler = await crawl(
            spider,
            {
                **values,
                "DEDUPE_CRAWL_ID": current,
                "DEDUPE_COMMIT_REASONS": ["finished"] if has_end else ["never"],
            },
            urls=" ".join(web.url(f"/{name}") for name in NAMES),
            asking={"headers": {"X-Kind": kind}},
        )
        assert len(items) == len(NAMES)
        assert not crawler.stats.get_value("dedupe/errors/cache")
        for item in items:
            page = pages[item["url"].rpartition("/")[2]]
            if page.name in asked:
                assert item["text"] == page.text(kind), "the current page"
                assert item["cached"] == (asked[page.name] == "304")
                continue
            assert not is_clock_back, "the age of a page from the future is unknown"
            last = next(
                one for one in reversed(answers) if one.page.name == page.name and one.crawl in committed
            )
            assert last in usable(page.name, kind), "the last answer may be used for this request"
            assert last.page.is_lasting, "it is fresh"
            assert item["text"] == last.page.text(kind)
        if has_end:
            committed.add(current)
        event = chance.random()
        if event < 0.15 and committed:
            purged = chance.choice(sorted(committed))
            assert main(["purge", purged, "--store", settings["DEDUPE_STORE_URL"], "--force"]) == 0
            committed.remove(purged)
        elif event < 0.25:
            # A page with a missing record is requested without validators.
            chance.choice(sorted((tmp_path / "warcs").glob("*.gz"))).unlink()
