"""Only ranges of long texts are read, with the same result as reading whole texts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.passages import queries, text_ranges
from scrapy_dedupe.passages.index import PassageIndex
from scrapy_dedupe.passages.queries import like
from scrapy_dedupe.passages.text_ranges import token_count
from scrapy_dedupe.passages.tokens import tokeniser_named

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.passages.values import Hit


@pytest.fixture(autouse=True)
def short_texts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read ranges of short texts too, with margins so small that ranges must be widened."""
    monkeypatch.setattr(text_ranges, "_SHORT", 0)
    monkeypatch.setattr(text_ranges, "_CHARACTERS_A_TOKEN", 2)


def by_whole_texts(index: PassageIndex, asked: str, **how: object) -> list[Hit]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries._Search, "_spots_in", lambda self, texts: None)
        with index.snapshot() as snapshot:
            return like(snapshot, asked, **how)  # type: ignore[arg-type]


def long_text(seed: int, pieces: list[str], gap: int) -> str:
    """The pieces with many other words before, between and behind them, some in other scripts."""
    rng = random.Random(seed)

    def others() -> str:
        return " ".join(
            rng.choice(["soft\u00adhyphen", "漢字", "word", "-- ", "Wörter"]) + f"{rng.randrange(10**6)}"
            for _ in range(rng.randrange(gap))
        )

    return " ".join([others(), *(f"{piece} {others()}" for piece in pieces)])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from(["shared", "again", "a a a", "long", "shared shared"]), min_size=1, max_size=8),
    st.sampled_from(["words", "cjk", "code"]),
    st.sampled_from(["rolling", "xor"]),
    st.sampled_from([None, 40, 5]),
)
def test_ranges_give_the_same_hits_as_whole_texts(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    names: list[str],
    tokeniser: str,
    blotter: str,
    least: int | None,
) -> None:
    runs = {
        "shared": " ".join(f"s{number}" for number in range(17)),
        "again": " ".join(f"g{number}" for number in range(60)),
        "a a a": "a " * 70,
        "long": " ".join(f"l{number}" for number in range(900)),
    }
    runs["shared shared"] = f"{runs['shared']}. {runs['shared']}"
    pieces = [runs[name] for name in names]
    with PassageIndex(tmp_path_factory.mktemp("index") / "i", tokeniser=tokeniser, blotter=blotter) as index:
        index.add("one", long_text(seed, pieces, 1200))
        index.add("two", long_text(seed + 1, pieces[:2], 4000))
        index.add("three", long_text(seed + 2, pieces[::-1], 30))
        asked = long_text(seed + 3, pieces, 20)
        found = index.like(asked, min_tokens=least)
        assert found == by_whole_texts(index, asked, min_tokens=least)
        assert found or least == 40


def test_little_of_a_long_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    tokens_of_all = text_ranges.tokens_of_all

    def counting(texts, tokeniser):  # type: ignore[no-untyped-def]
        read.append(sum(map(len, texts)))
        return tokens_of_all(texts, tokeniser)

    shared = " ".join(f"s{number}" for number in range(40))
    text = long_text(1, [shared], 30_000)
    monkeypatch.setattr(text_ranges, "_CHARACTERS_A_TOKEN", 16)
    monkeypatch.setattr(text_ranges, "tokens_of_all", counting)
    with PassageIndex(tmp_path / "i") as index:
        index.add("a", text)
        (hit,) = index.like(shared)
        (place,) = hit.passages[0].places
    assert text[place.char_start : place.char_end] == shared
    assert place.token_start == len(tokeniser_named("words").tokens(text[: place.char_start]))
    assert sum(read) < len(text) / 20


def test_a_run_of_characters_too_long_for_a_token_is_cut_as_in_the_whole_text(tmp_path: Path) -> None:
    shared = " ".join(f"s{number}" for number in range(40))
    text = f"{'x' * 200_000} {shared} {'y' * 200_000} {shared} {'z ' * 400_000}"
    with PassageIndex(tmp_path / "i") as index:
        index.add("a", text)
        asked = f"{'x' * (3 * 65_536 - 200_000 % 65_536)} {shared} {'y' * 70_000}"
        assert index.like(asked) == by_whole_texts(index, asked) != []


@given(st.text(st.sampled_from("ab_+ \n\u00ad漢é9"), max_size=60), st.sampled_from(["words", "cjk", "code"]))
def test_tokens_are_counted_as_they_are_cut(text: str, name: str) -> None:
    tokeniser = tokeniser_named(name)
    assert token_count(text, tokeniser) == len(tokeniser.tokens(text))


@pytest.mark.parametrize("name", ["words", "cjk", "code"])
@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, f"{'a' * 65_537}é b", "a b " * 200_000, "a" * (1 << 18) + " b", "ab\u00ad" * 90_000],
)
def test_tokens_of_long_texts_are_counted_as_they_are_cut(text: str, name: str) -> None:
    tokeniser = tokeniser_named(name)
    assert token_count(text, tokeniser) == len(tokeniser.tokens(text))
