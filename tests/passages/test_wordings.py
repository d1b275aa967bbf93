"""Texts have the same words, or not, as their words tell, however quickly that is seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.extraction import words_digest
from scrapy_dedupe.passages.tokens import tokeniser_named

written = st.text("aAb1_ \n,-éÉ\u0301\u00ad漢", max_size=8) | st.text("aAb1_ ,\x1f\x7f", max_size=8)


@given(shown=written, others=st.lists(written, max_size=5), name=st.sampled_from(["words", "cjk", "code"]))
def test_groups_are_those_of_the_words(shown: str, others: list[str], name: str) -> None:
    tokeniser = tokeniser_named(name)
    known: dict[bytes, bytes] = {}
    texts = [shown, *others]
    groups = [words_digest(text, tokeniser, known) for text in texts]
    for text, group in zip(texts, groups, strict=True):
        for other, its_group in zip(texts, groups, strict=True):
            assert (group == its_group) is (tokeniser.words(text) == tokeniser.words(other))


@pytest.mark.parametrize(("name", "is_same"), [("words", True), ("cjk", True), ("code", False)])
def test_case_and_punctuation_count_where_the_tokeniser_tells_so(name: str, is_same: bool) -> None:
    first, second = (words_digest(text, tokeniser_named(name), {}) for text in ("One, two", "one two!"))
    assert (first == second) is is_same
