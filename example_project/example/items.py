"""What the spider yields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A page, picture or file. ``verdict`` is what scrapy-dedupe says of its text, None without its middleware."""

    url: str
    title: str | None
    verdict: str | None
