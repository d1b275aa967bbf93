"""In the crawl of a documented spider or component: which of its functions were called, in calls.txt."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import scrapy


def keep(file: str) -> None:
    """Keep the names of the functions of *file* that are called from now on, each once."""
    seen: set[str] = set()

    def called(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename == file and code.co_name not in seen:
            seen.add(code.co_name)
            with Path("calls.txt").open("a", encoding="utf-8") as kept:
                kept.write(f"{code.co_name}\n")

    sys.setprofile(called)


class PathSpider(scrapy.Spider):
    """Asks for pages of each kind; if it has an errback, copies are dropped, so that it hears of them."""

    async def start(self) -> Any:
        errback = getattr(self, "errback", None)
        for path in ("/", "/news", "/news?ref=letter", "/herons", "/herons/print"):
            meta = {"dedupe_action": "drop"} if errback else {}
            yield scrapy.Request(f"https://example.com{path}", errback=errback, meta=meta, dont_filter=True)

    def parse(self, response: Any) -> Any:
        return None
