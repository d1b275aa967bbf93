"""The items of the spider."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A page, picture or file. ``verdict`` is the kind of its verdict, or None without the middleware of scrapy-dedupe."""

    url: str
    title: str | None
    verdict: str | None
