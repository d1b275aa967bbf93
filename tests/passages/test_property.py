"""A run of k + window - 1 tokens is always found, whatever is around it; and what is not shared is never told."""

from __future__ import annotations

import os
import tempfile
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from passages.planted import assert_is_right, assert_place_is_right, is_within, tokens_of, words_of
from sampling import examples

from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.passages.blots import blotter_of

if TYPE_CHECKING:
    from scrapy_dedupe.passages.values import Passage

EXAMPLES = int(os.environ.get("DEDUPE_EXAMPLES", examples(25)))
HARD = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])

ALPHABETS = {
    "words": (
        ["a"],
        ["a", "b"],
        ["der", "die", "das", "grüne", "ÉTÉ", "e\u0301te\u0301"],
        [f"w{number}" for number in range(40)] + ["été", "ΣΊΣΥΦΟΣ", "co\u00adop", "١٢", "Ⅻ", "नमस्ते", "𐐀𐐁"],
    ),
    "cjk": (
        ["的"],
        ["的", "是", "a"],
        [chr(0x4E00 + number) for number in range(40)] + ["word", "かな", "ไทย", "한국어"],
    ),
    "code": (
        ["{", "}"],
        ["x", "=", "("],
        [*"(){}[];.,+-*/=<>!", "if", "else", "x_1", "Größe", "for", "0x1F", "X"],
    ),
}
SPECS: tuple[dict[str, Any], ...] = (
    {"name": "rolling", "k": 8, "window": 8},
    {"name": "rolling", "k": 3, "window": 2},
    {"name": "rolling", "k": 2, "window": 6},
    {"name": "rolling", "k": 1, "window": 1},
    {"name": "xor", "k": 10},
    {"name": "interleaved", "streams": 2, "k": 5},
)


def separators(tokeniser: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [" ", "\n", "  \t"] if tokeniser == "code" else [" ", ", ", "\n", " - ", "!? ", "…"]
    )


@st.composite
def written(draw: st.DrawFn, words: list[str], tokeniser: str) -> str:
    """The words with something between them, and, where case does not count, in another case."""
    if tokeniser != "code" and draw(st.booleans()):
        words = [word.upper() if word.isascii() else word for word in words]
    return "".join(word + draw(separators(tokeniser)) for word in words)


@st.composite
def pairs(draw: st.DrawFn, tokeniser: str, count: int) -> tuple[str, str, list[str]]:
    """Two texts that share *count* tokens in a row, and whatever comes of their surroundings by chance."""
    alphabet = draw(st.sampled_from(ALPHABETS[tokeniser]))
    word = st.sampled_from(alphabet)
    run: list[str] = []
    while len(words_of(" ".join(run), tokeniser)) < count:
        run.append(draw(word))
    around = st.lists(word, max_size=30)
    texts = [
        draw(written(draw(around), tokeniser))
        + draw(written(run, tokeniser))
        + draw(written(draw(around), tokeniser))
        for _ in range(2)
    ]
    return texts[0], texts[1], words_of(" ".join(run), tokeniser)


def indexed(
    folder: str, tokeniser: str, blotter: dict[str, Any], texts: dict[str, str], **options: Any
) -> PassageIndex:
    index = PassageIndex(Path(folder) / "index", tokeniser=tokeniser, blotter=blotter, **options)
    for doc_id, text in texts.items():
        index.add(doc_id, text)
    return index


def assert_like_is_right(passage: Passage, asked: str, texts: dict[str, str], tokeniser: str) -> None:
    words = assert_is_right(passage, texts, tokeniser)
    assert passage.asked
    tokens = tokens_of(asked, tokeniser)[passage.asked.token_start : passage.asked.token_end]
    assert tuple(word for word, _, _ in tokens) == words
    assert (passage.asked.char_start, passage.asked.char_end) == (tokens[0][1], tokens[-1][2])


@pytest.mark.parametrize("tokeniser", ALPHABETS)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_run_of_the_guaranteed_length_is_always_found(spec: dict[str, Any], tokeniser: str) -> None:
    least = blotter_of(spec).guarantee

    @HARD
    @given(pairs(tokeniser, least))
    def holds(pair: tuple[str, str, list[str]]) -> None:
        first, second, run = pair
        with (
            tempfile.TemporaryDirectory() as folder,
            indexed(folder, tokeniser, spec, {"first": first}) as index,
        ):
            hits = index.like(second)
            assert [hit.doc_id for hit in hits] == ["first"]
            (hit,) = hits
            for passage in hit.passages:
                assert passage.tokens >= least
                assert_like_is_right(passage, second, {"first": first}, tokeniser)
            assert any(_is_asked(passage, second, run, tokeniser) for passage in hit.passages)
            covered = {
                token
                for passage in hit.passages
                if passage.asked
                for token in range(passage.asked.token_start, passage.asked.token_end)
            }
            assert hit.score == pytest.approx(len(covered) / len(tokens_of(second, tokeniser)))

            index.add("second", second)
            found = list(index.extract(nested=True, min_tokens=least))
            texts = {"first": first, "second": second}
            if first == second:
                assert max(passage.tokens for passage in found) == len(words_of(first, tokeniser))
            for passage in found:
                assert passage.tokens >= least
                assert passage.documents == 2
                assert_is_right(passage, texts, tokeniser)
            assert any(_is_told(passage, run, texts, tokeniser) for passage in found), found

    holds()


def _is_asked(passage: Passage, asked: str, run: list[str], tokeniser: str) -> bool:
    assert passage.asked
    words = words_of(asked, tokeniser)[passage.asked.token_start : passage.asked.token_end]
    return is_within(run, words)


def _is_told(passage: Passage, run: list[str], texts: dict[str, str], tokeniser: str) -> bool:
    return is_within(run, assert_place_is_right(passage.places[0], texts, tokeniser))


@st.composite
def libraries(draw: st.DrawFn, tokeniser: str) -> dict[str, str]:
    """Texts that are put together from a few pieces, so that much is shared, nested and overlapping."""
    word = st.sampled_from(draw(st.sampled_from(ALPHABETS[tokeniser])))
    pieces = draw(st.lists(st.lists(word, min_size=1, max_size=12), min_size=1, max_size=5))
    texts = draw(
        st.lists(
            st.lists(st.sampled_from(pieces), max_size=8).map(lambda parts: list(chain(*parts))),
            min_size=1,
            max_size=6,
        )
    )
    return {f"doc {number}": draw(written(words, tokeniser)) for number, words in enumerate(texts)}


@pytest.mark.parametrize("tokeniser", ALPHABETS)
@pytest.mark.parametrize("nested", [False, True], ids=["best", "nested"])
def test_nothing_is_told_that_is_not_shared(tokeniser: str, nested: bool) -> None:
    @HARD
    @given(libraries(tokeniser), st.sampled_from(SPECS[:3]), st.integers(1, 3), st.integers(2, 3))
    def holds(texts: dict[str, str], spec: dict[str, Any], flushes: int, min_docs: int) -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            indexed(folder, tokeniser, spec, dict(list(texts.items())[::flushes])) as index,
        ):
            index.flush()
            for doc_id, text in texts.items():
                index.add(doc_id, text)
            told: set[tuple[str, ...]] = set()
            for passage in index.extract(nested=nested, min_docs=min_docs):
                words = assert_is_right(passage, texts, tokeniser)
                assert passage.documents >= min_docs
                assert passage.tokens >= blotter_of(spec).guarantee
                # All documents that have the words are named, and no passage is told twice.
                names = {
                    doc_id for doc_id, text in texts.items() if is_within(words, words_of(text, tokeniser))
                }
                assert {place.doc_id for place in passage.places} == names
                assert words not in told
                told.add(words)
            for asked in texts.values():
                for hit in index.like(asked):
                    for passage in hit.passages:
                        assert_like_is_right(passage, asked, texts, tokeniser)

    holds()


@HARD
@given(pairs("words", 15), st.sampled_from(SPECS[:2]))
def test_without_texts_the_same_run_is_told_by_its_place(
    pair: tuple[str, str, list[str]], spec: dict[str, Any]
) -> None:
    first, second, _ = pair
    texts = {"first": first, "second": second}
    with (
        tempfile.TemporaryDirectory() as folder,
        indexed(folder, "words", spec, {"first": first}, store_text=False) as index,
    ):
        hits = index.like(second)
        assert [hit.doc_id for hit in hits] == ["first"]
        for passage in hits[0].passages:
            assert passage.text is None
            assert_like_is_right(passage, second, texts, "words")
        index.add("second", second)
        for passage in index.extract(nested=True):
            assert_is_right(passage, texts, "words")
