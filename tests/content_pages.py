"""Captures and signatures for tests of the content stores."""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.stores.base import NearAnswer, SeenText, Signature, TextMatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.stores.base import ContentStore


def digest(name: object) -> bytes:
    return blake2b(repr(name).encode(), digest_size=16).digest()


def band(name: object) -> bytes:
    return blake2b(str(name).encode(), digest_size=8).digest()


def bands(*names: object) -> list[bytes]:
    """Sixteen bands: those named, and others that nobody shares."""
    return [band(name) for name in names] + [random.randbytes(8) for _ in range(16 - len(names))]


A, B, C = "http://a/", "http://b/", "http://c/"
ROWS = bytes(range(128))


def page(name: object, url: str = A, crawl: str = "c1", ms: int = 1, **decided: Any) -> SeenText:
    return SeenText(digest(name), url, crawl, ms, **decided)


def copy_of(capture: SeenText, original: object, kind: str = "exact", similarity: float = 1.0) -> SeenText:
    return replace(capture, kind=kind, original=digest(original), similarity=similarity)


def changed(rows: bytes, places: int) -> bytes:
    return bytes(255 - value if place < places else value for place, value in enumerate(rows))


def signature(capture: SeenText, *names: object, rows: bytes = ROWS, **others: Any) -> Signature:
    others.setdefault("min_equal_rare", others.setdefault("min_equal", 109))
    return Signature(capture, bands(*names), rows, **others)


def seen(capture: SeenText, had_this_url: bool = False, **others: Any) -> TextMatch:
    return TextMatch(capture.digest, capture.url, capture.crawl, capture.seen_ms, had_this_url, **others)


def claim(content: ContentStore, capture: SeenText, *, pending: bool = True) -> TextMatch | NearAnswer | None:
    (answer,) = content.claim([capture], pending=pending)
    return answer


def claim_near(content: ContentStore, asked: Sequence[Signature], **options: Any) -> list[Any]:
    """Claim texts with their signatures; those of pending pages are claimed again."""
    return content.claim([it.capture for it in asked], asked, **options)


def find_near(content: ContentStore, asked: Sequence[Signature]) -> list[Any]:
    return content.find([it.capture for it in asked], asked)


def near(content: ContentStore, it: Signature) -> NearAnswer:
    (answer,) = claim_near(content, [it])
    assert isinstance(answer, NearAnswer)
    return answer


def keep(content: ContentStore, capture: SeenText, *names: object, **others: Any) -> None:
    """Claim a new text that nothing is near to, and let its page go through."""
    (answer,) = claim_near(content, [signature(capture, *names, **others)], pending=False)
    assert answer.seen is None


def fill(content: ContentStore) -> None:
    """Two kept texts, one pending text, two notes and a template."""
    keep(content, page("old", A, "c1", 10), "x")
    keep(content, page("new", B, "c2", 20), "y")
    claim(content, page("pending", A, "c1", 15))
    content.settle([copy_of(page("old", C, "c2", 20), "old"), copy_of(page("new", C, "c1", 25), "new")])
    content.save_template("a", b"template")
