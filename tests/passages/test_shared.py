"""What a text shares with others, by the windows of all of it and by those around shared blots."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.blots import blotter_of
from scrapy_dedupe.passages.shared_passages import QueryText, SharedPassage, shares_in_texts
from scrapy_dedupe.passages.tokens import tokeniser_named
from scrapy_dedupe.passages.values import Place

BLOTTERS = [
    {"name": "rolling", "k": 3, "window": 4},
    {"name": "rolling", "k": 2, "window": 1},
    {"name": "xor", "k": 3},
    {"name": "interleaved", "streams": 2, "k": 2},
]
WORDS = tokeniser_named("words")


def query_with(text: str, blotter: object = "rolling", least: int | None = None) -> QueryText:
    made = blotter_of(blotter)  # type: ignore[arg-type]
    return QueryText.of(text, WORDS, made, (), made.guarantee if least is None else least)


def words_of(numbers: list[int]) -> str:
    return " ".join(f"w{number}" for number in numbers)


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4),
    st.data(),
)
def test_no_hidden_token_is_in_a_passage_and_every_other_shared_run_is(
    asked: list[int], others: list[list[int]], data: st.DataObject
) -> None:
    hidden = np.array(data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked))), np.bool_)
    made = query_with(words_of(asked), least=2)
    found = shares_in_texts(made, [words_of(other) for other in others], hidden)
    for other, shares in zip(others, found, strict=True):
        covered = {
            token for share in shares for token in range(share.query.token_start, share.query.token_end)
        }
        pairs = set(pairwise(other))
        expected = [
            at
            for at, pair in enumerate(pairwise(asked))
            if pair in pairs and not hidden[at] and not hidden[at + 1]
        ]
        assert covered == {token for at in expected for token in (at, at + 1)}


def test_two_runs_of_a_long_text_stand_where_they_are_told() -> None:
    make = Random(3)
    words = [f"x{make.randrange(10**9)}" for _ in range(60_000)]
    asked = query_with(" ".join(words))
    first, second = " ".join(words[:15]), " ".join(words[59_000:59_400])
    text = f"before {second.upper()} between {first}"
    (shares,) = shares_in_texts(asked, [text], np.zeros(60_000, np.bool_))
    at = len(" ".join(words[:59_000])) + 1
    assert [share.query for share in shares] == [
        Place("", 59_000, 59_400, at, at + len(second)),
        Place("", 0, 15, 0, len(first)),
    ]
    assert shares[0].spans == ((1, 401, 7, 7 + len(second)),)
    assert shares[0].text == second.upper()
    assert asked.tokens_covered(shares) == 415


def test_tokens_in_several_shares_count_once() -> None:
    asked = query_with(words_of(list(range(100))))
    spans = [(5, 20), (10, 15), (18, 30), (50, 60), (60, 70)]
    shares = [SharedPassage(Place("", start, end, 0, 0), None, ()) for start, end in spans]
    assert asked.tokens_covered(shares) == 25 + 20
    assert asked.tokens_covered([]) == 0
