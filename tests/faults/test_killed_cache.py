"""kill -9 at random moments of crawls whose HTTP cache is the archive: no stale page is used, and no other page."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from archives import check
from faults_site import start_crawl
from webserver import Page

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

PAGES = 20
KILLS = 10
WORDS = " ".join(f"{word:x}" for word in range(400))


@dataclass(frozen=True)
class Served:
    """A page of the server; it may be fresh for an hour, and it may forbid to be stored."""

    name: str
    version: int = 0
    is_lasting: bool = False
    is_stored: bool = True

    @property
    def text(self) -> str:
        return f"<p>{self.name} {self.version} {WORDS}"

    @property
    def tag(self) -> str:
        return f'"{self.name}-{self.version}"'

    @property
    def headers(self) -> list[tuple[str, str]]:
        age = "max-age=3600" if self.is_lasting else "max-age=0"
        return [("ETag", self.tag), ("Cache-Control", age if self.is_stored else f"{age}, no-store")]


class Seen:
    """Writes down what a crawl gets, from its cache or not: a downloader middleware outside of HttpCacheMiddleware."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def from_crawler(cls, crawler: Any) -> Seen:
        return cls(crawler.settings["SEEN_FILE"])

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        with open(self.path, "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps([request.url, response.text, "cached" in response.flags]) + "\n")
        return response


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_killed_crawls_use_no_stale_page_and_no_other_page(
    seed: int, web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(seed)
    pages = {f"p{number}": Served(f"p{number}") for number in range(PAGES)}
    # What may be the last capture of each page: the last answer to a crawl that has ended, and all that came later.
    answers: dict[str, list[Served]] = {name: [] for name in pages}
    asked: set[str] = set()
    wrong: list[str] = []
    confirmed = 0
    limit = 0
    is_time = threading.Event()

    def answer(handler: Any) -> Page:
        nonlocal confirmed
        page = pages[handler.path[1:]]
        tag = handler.headers.get("If-None-Match")
        if tag is not None and tag not in [one.tag for one in answers[page.name] if one.is_stored]:
            wrong.append(f"{page} was asked for with {tag}")
        answers[page.name].append(page)
        asked.add(page.name)
        if len(asked) >= limit:
            is_time.set()
        if tag == page.tag:
            confirmed += 1
            return Page(b"", 304, page.headers, content_type=None)
        return Page(page.text.encode(), 200, page.headers)

    for name in pages:
        web.pages[f"/{name}"] = answer
    seen_file = tmp_path / "seen.jsonl"
    settings |= {
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_HTTPCACHE": True,
        "DOWNLOADER_MIDDLEWARES": {"faults.test_killed_cache.Seen": 850},
        "SEEN_FILE": str(seen_file),
        "JOBDIR": str(tmp_path / "job"),
        "CONCURRENT_REQUESTS": 2,
        "LOG_LEVEL": "INFO",
    }
    urls = " ".join(web.url(f"/{name}") for name in pages)
    killed = fresh = 0
    for _ in range(4 * KILLS):
        is_last = killed == KILLS
        for name, page in pages.items():
            if chance.random() < 0.3:
                pages[name] = replace(
                    page,
                    version=page.version + (chance.random() < 0.6),
                    is_lasting=chance.random() < 0.4,
                    is_stored=chance.random() < 0.9,
                )
        asked.clear()
        is_time.clear()
        limit = chance.randint(1, PAGES)
        seen_file.write_text("")
        process = start_crawl(settings, urls)
        try:
            while process.poll() is None and (is_last or not is_time.wait(0.02)):
                time.sleep(0.02)
            if not is_last:
                time.sleep(chance.random() * 0.05)
        finally:
            is_ended = process.poll() is not None
            process.kill()
            _, log = process.communicate()
        assert "Traceback" not in log, log
        assert not wrong
        for line in seen_file.read_text("utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # The kill has cut it off.
            url, text, is_cached = json.loads(line)
            page = pages[url.rpartition("/")[2]]
            if page.name in asked and text == page.text:
                continue
            assert is_cached, "a page comes from the server or from the cache"
            fresh += 1
            assert text in [one.text for one in answers[page.name] if one.is_lasting and one.is_stored], (
                "a page that was last captured, or may have been, is fresh"
            )
        killed += not is_ended
        if is_ended:
            assert process.returncode == 0, log
            answers = {name: known[-1:] for name, known in answers.items()}
        if is_last:
            break
    assert killed == KILLS
    assert confirmed
    assert fresh
    check(tmp_path / "warcs")
