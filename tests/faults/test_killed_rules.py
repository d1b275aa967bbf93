"""kill -9 at random moments of crawls in which URL rules filter and are suspended: no page is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from faults_site import Hold, start_crawl
from rules_site import text
from sampling import sampled

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

PAGES = 24
RULE = '[[rule]]\nhost = "*"\nkind = "ignore-parameter"\nparameter = '


def add_tree(web: WebServer) -> None:
    """Lists of pages; ``part`` changes the text of a page, ``sid`` does not."""
    lists = [f"/list{number}" for number in range(4)]
    web.page("/", "".join(f'<a href="{path}">x</a>' for path in lists))
    for place, path in enumerate(lists):
        links = []
        for number in range(place, PAGES, len(lists)):
            for query, more in {"": "", "?sid=1": "", "?part=1": " first", "?part=2": " second"}.items():
                web.page(f"/p{number}{query}", text(number, more))
                links.append(f"/p{number}{query}")
        random.shuffle(links)
        web.page(path, "".join(f'<a href="{link}">x</a>' for link in [*links, *lists]))


@pytest.mark.parametrize("seed", sampled(range(10), [3]))
def test_killed_crawls_with_suspended_rules_lose_no_page(
    seed: int, web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    random.seed(seed)
    add_tree(web)
    rules = tmp_path / "rules.toml"
    rules.write_text(f'version = 1\n{RULE}"sid"\n{RULE}"part"\n')
    settings |= {
        "JOBDIR": str(tmp_path / "job"),
        "DEDUPE_URL_RULES": str(rules),
        "DEDUPE_URL_FLUSH_SECONDS": 0.05,
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_WARC_ENABLED": False,
        "LOG_LEVEL": "INFO",
    }
    asked: set[str] = set()
    is_stop = random.random() < 0.5
    for number in range(4):
        answers = random.randint(3, 60) if number < 3 else 1_000_000
        # A clean stop between two kills keeps the queue and the filtered requests.
        own = {**settings, "CLOSESPIDER_PAGECOUNT": 12} if is_stop and number == 1 else settings
        log = tmp_path / f"log-{number}"
        hold = Hold(web, answers)
        with log.open("wb") as file:
            process = start_crawl(own, web.url("/"), stderr=file.fileno())
        try:
            if number < 3:
                hold.is_reached(process)
                process.kill()
            else:
                assert process.wait(240) == 0, log.read_text()
        finally:
            process.kill()
            hold.end()
        asked |= set(web.paths)
        web.paths.clear()
    bodies = {page.body for page in web.pages.values()}  # type: ignore[union-attr]
    assert {web.pages[path].body for path in asked if path in web.pages} == bodies  # type: ignore[union-attr]
    assert "is suspended" in "".join(path.read_text() for path in tmp_path.glob("log-*"))
