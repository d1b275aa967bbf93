from __future__ import annotations

import pytest

from scrapy_dedupe.content.canonical import title_of


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>Reed</title><title>Warbler</title>", "Reed"),
        ("<TITLE>Reed</TITLE lang=en\n>", "Reed"),
        ("<title>Reed</titles></title>", "Reed</titles>"),
        ("<body><svg><title>Reed</title></svg>", None),
        ("<title>Reed", None),
        ("<title>Reed</title", None),
        # Each of them is looked at once, or this page alone would take a minute.
        ("<title>Reed" + "</title " * 40_000, None),
    ],
)
def test_the_title_is_that_of_the_first_title_that_ends(html: str, title: str | None) -> None:
    assert title_of(html) == title
