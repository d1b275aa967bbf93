from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.content import Judge, Page
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.content.quarrycore import PARAMETERS, is_hash, key_of, keys_of_page
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import SeenText

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.content import Verdict
    from scrapy_dedupe.content.judge import Judgement
    from scrapy_dedupe.stores.base import ContentStore

# The hashes that QuarryCore gave the page, by selectolax 0.3.21 (Modest) and by BeautifulSoup 4.
PAGE = """<html>
<head><title>Test &amp; Example</title>
<script>alert('no');</script><style>body { color: red }</style></head>
<body><h1>Hello    W&ouml;rld</h1>
<!-- a comment --><p>Content<br>here <b>b</b>old</p>\xa0<noscript>On</noscript>
</body></html>
"""
BODY_TEXT = "Hello Wörld Contenthere bold On"
WHOLE_TEXT = f"Test & Example {BODY_TEXT}"
LONG = "<p>" + " ".join(f"Sentence number {number} of a text that is long enough." for number in range(40))


def quarrycore_hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_both_hashes_of_a_page_are_found() -> None:
    assert keys_of_page(PAGE) == tuple(key_of(quarrycore_hash(text)) for text in (BODY_TEXT, WHOLE_TEXT))


def test_a_page_without_a_title_has_one_hash() -> None:
    assert keys_of_page("<p>a <b>b</b>") == (key_of(quarrycore_hash("a b")),)


def test_a_page_without_text_has_none() -> None:
    assert keys_of_page("") == keys_of_page("<script>var text;</script>\n<style>p {}</style>") == ()


def test_the_key_of_a_hash_never_changes() -> None:
    assert key_of("0" * 64) == sha256(b"quarrycore/1\0" + b"0" * 64).digest()[:16]


@given(st.text())
def test_any_page_has_at_most_two_hashes(html: str) -> None:
    keys = keys_of_page(html)
    assert len(keys) <= 2
    assert len(set(keys)) == len(keys)


@given(st.lists(st.text("abc \t\n\x0b\x1c\xa0\u2003", min_size=1)))
def test_white_space_is_collapsed_as_a_regular_expression_does(words: list[str]) -> None:
    text = re.sub(r"\s+", " ", " ".join(words)).strip()
    assert keys_of_page("<p>" + " ".join(words)) == ((key_of(quarrycore_hash(text)),) if text else ())


@pytest.mark.parametrize("value", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n", None, 1])
def test_what_is_no_hash_is_told(value: object) -> None:
    assert not is_hash(value)


# The judge


@pytest.fixture
def content(tmp_path: Path) -> Iterator[ContentStore]:
    store = open_store(f"sqlite:///{tmp_path / 'texts.sqlite'}")
    yield store.content
    store.close()


def take_over(content: ContentStore, text: str, url: str) -> None:
    content.check_parameters(PARAMETERS)
    content.claim([SeenText(key_of(quarrycore_hash(text)), url, "quarrycore", 1_000)], pending=False)


def decide(judge: Judge, *pages: Page) -> list[Judgement]:
    return judge.decide([judge.read(page) for page in pages])


def verdicts(judge: Judge, *pages: Page) -> list[Verdict]:
    return [judged.verdict for judged in decide(judge, *pages)]


def page(url: str, html: str, kind: str = "html") -> Page:
    return Page(url, html, "now", kind, seen_ms=2_000)


@pytest.mark.parametrize("text", [BODY_TEXT, WHOLE_TEXT])
def test_a_text_that_was_imported_is_a_copy_of_the_imported_url(content: ContentStore, text: str) -> None:
    take_over(content, text, "http://old/")
    first, second = (verdicts(Judge(content), page(url, PAGE))[0] for url in ("http://new/", "http://new/2"))
    assert (first.kind, first.original_url, first.original_crawl) == ("exact", "http://old/", "quarrycore")
    assert (first.original_seen and first.original_seen.timestamp(), first.similarity) == (1.0, 1.0)
    assert not first.same_url
    # By now it is known by our own canonical text.
    assert (second.kind, second.original_url) == ("exact", "http://new/")


def test_a_page_that_was_imported_with_its_url_is_unchanged(content: ContentStore) -> None:
    take_over(content, BODY_TEXT, "http://old/")
    (verdict,) = verdicts(Judge(content), page("http://old/", PAGE))
    assert (verdict.kind, verdict.same_url) == ("unchanged", True)


def test_looking_finds_what_was_imported_and_writes_nothing(content: ContentStore) -> None:
    take_over(content, BODY_TEXT, "http://old/")
    judge = Judge(content)
    for _ in range(2):
        (judged,) = judge.find([judge.read(page("http://new/", PAGE))])
        assert judged.verdict.original_url == "http://old/"
    assert content.statistics()["texts"] == 1


def test_of_pages_in_one_call_each_gets_its_own_original(content: ContentStore) -> None:
    take_over(content, "a", "http://old/a")
    take_over(content, "c", "http://old/c")
    pages = [page(f"http://new/{place}", f"<p>{name}") for place, name in enumerate("abcc")]
    assert [verdict.original_url for verdict in verdicts(Judge(content), *pages)] == [
        "http://old/a",
        None,
        "http://old/c",
        "http://new/2",
    ]


def test_a_text_that_was_imported_is_compared_with_later_ones(content: ContentStore) -> None:
    take_over(content, re.sub("<p>", "", LONG), "http://old/")
    judge = Judge(content)
    first, near = verdicts(judge, page("http://new/", LONG), page("http://new/2", LONG + "<p>More."))
    assert (first.kind, first.original_url) == ("exact", "http://old/")
    assert (near.kind, near.original_url) == ("near", "http://new/")


def test_a_page_with_an_imported_text_that_fails_is_a_copy_again(content: ContentStore) -> None:
    take_over(content, BODY_TEXT, "http://old/")
    judge = Judge(content)
    for _ in range(2):
        (judged,) = decide(judge, page("http://new/", PAGE))
        assert judged.verdict.original_url == "http://old/"
        assert judged.capture
        judge.settle([], [judged.capture])


def test_only_html_is_looked_up(content: ContentStore) -> None:
    take_over(content, "a b", "http://old/")
    assert verdicts(Judge(content), page("http://new/", "a b", "text"))[0].kind == "unique"
    assert verdicts(Judge(content), page("http://new/2", "<p>a b</p>", "xhtml"))[0].kind == "exact"


class Counting:
    """A store that counts how often texts are looked up."""

    def __init__(self, content: ContentStore) -> None:
        self.content = content
        self.looked_up = 0

    def find(self, captures: list[SeenText], signatures: object = ()) -> object:
        self.looked_up += 1
        return self.content.find(captures, signatures)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self.content, name)


def test_a_store_without_imported_texts_is_not_asked_for_them(content: ContentStore) -> None:
    counting = Counting(content)
    judge = Judge(counting)  # type: ignore[arg-type]
    assert judge.read(page("http://new/", PAGE)).imported == ()
    verdicts(judge, page("http://new/", PAGE))
    assert counting.looked_up == 0

    take_over(content, BODY_TEXT, "http://old/")
    judge = Judge(counting)  # type: ignore[arg-type]
    pages = [page(f"http://new/{number}", f"<p>Page {number}") for number in range(10)]
    readings = [judge.read(item) for item in pages]
    for kind in ("unique", "unchanged"):
        kinds = {judged.verdict.kind for judged in judge.decide(readings, pending=False)}
        # All new pages are looked up at once, those that are known by our own text not at all.
        assert (kinds, counting.looked_up) == ({kind}, 1)


def test_hostile_markup_is_refused() -> None:
    with pytest.raises(HostileMarkup):
        keys_of_page("<div>" * 40_000)
