"""How the tests of this room read pages: by functions that show what they were given."""

from __future__ import annotations

from scrapy_dedupe.live.responses import decoded_page
from scrapy_dedupe.passages.text_reading import ReadingOptions


class TooMuch(Exception):
    """What `canonical` raises for a page that says hostile."""


def canonical(kind: str, text: str) -> str:
    if "hostile" in text:
        raise TooMuch("It would take too long.")
    return f"{kind}:{text}"


def kind_of(content_type: str) -> str | None:
    mime = content_type.partition(";")[0]
    return {"text/html": "html", "text/plain": "text"}.get(mime)


def reading(max_bytes: int = 1_000_000) -> ReadingOptions:
    return ReadingOptions(canonical, (TooMuch,), max_bytes, decoded_page)
