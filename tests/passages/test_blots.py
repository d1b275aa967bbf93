"""Blots: against plain Python, and what each blotter promises."""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.passages import blots as blots_module
from scrapy_dedupe.passages.blots import Blots, Interleaved, Rolling, Xor, blotter_of, key_bits, keys
from scrapy_dedupe.passages.tokens import tokeniser_named, tokens_of_all

M64 = (1 << 64) - 1

# Few different tokens, so that blots repeat, and some with large hashes.
HASHES = st.lists(st.one_of(st.integers(0, 2), st.integers(0, M64)), max_size=80)
TEXTS = st.lists(HASHES, max_size=6)
ROLLING = st.builds(Rolling, k=st.integers(1, 12), window=st.integers(1, 12))
XOR = st.builds(Xor, k=st.integers(1, 12), bits=st.sampled_from([8, 18, 32]))
INTERLEAVED = st.builds(Interleaved, streams=st.integers(1, 4), k=st.integers(1, 7))
BLOTTERS = st.one_of(ROLLING, XOR, INTERLEAVED)


def arrays(texts: list[list[int]]) -> tuple[Any, Any]:
    bounds = np.cumsum([0, *map(len, texts)])
    return np.array([value for text in texts for value in text], dtype=np.uint64), bounds


def mixed(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & M64
    return value ^ (value >> 31)


def plain_windows(text: list[int], blotter: Any) -> list[int]:
    """The blot of every window of one text."""
    values = []
    for first in range(len(text) - blotter.span + 1):
        window = text[first : first + blotter.span]
        if isinstance(blotter, Rolling):
            values.append(
                mixed(
                    sum(value * pow(0xD1342543DE82EF95, j, 1 << 64) for j, value in enumerate(window)) & M64
                )
            )
        else:
            blot = 0
            for value in window[:: getattr(blotter, "streams", 1)]:
                blot ^= value & 0xFFFFFFFF
            values.append(blot % (1 << blotter.bits))
    return values


def plain_winnowing(values: list[int], window: int) -> list[int]:
    """The smallest of each window; of equal neighbours in a block, the first and the last."""
    smallest: set[int] = set()
    for first in range(max(len(values) - window + 1, 1) if values else 0):
        places = range(first, min(first + window, len(values)))
        smallest.update(place for place in places if values[place] == min(values[at] for at in places))
    groups = groupby(sorted(smallest), lambda place: (values[place], place // window))
    return sorted({place for _, group in groups for place in itemgetter(0, -1)(list(group))})


def plain_blots(texts: list[list[int]], blotter: Any, every: bool = False) -> list[tuple[int, int]]:
    result, begin = [], 0
    for text in texts:
        values = plain_windows(text, blotter)
        is_winnowed = isinstance(blotter, Rolling) and not every
        places = plain_winnowing(values, blotter.window) if is_winnowed else range(len(values))
        result += [(values[place], begin + place) for place in places]
        begin += len(text)
    return result


def listed(blots: Blots) -> list[tuple[int, int]]:
    return list(zip(blots.values.tolist(), blots.starts.tolist(), strict=True))


@given(BLOTTERS, TEXTS)
@example(Rolling(3, 4), [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [], [1], [1, 1, 1, 1, 1, 1, 1]])
@example(Rolling(1, 1), [[0]])
@example(Rolling(8, 8), [])
def test_blots_are_those_of_a_plain_python_blotter(blotter: Any, texts: list[list[int]]) -> None:
    hashes, bounds = arrays(texts)
    assert listed(blotter.all_blots(hashes, bounds)) == plain_blots(texts, blotter, every=True)
    assert listed(blotter.blots(hashes, bounds)) == plain_blots(texts, blotter)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 20))
def test_every_window_keeps_its_smallest_blot(values: list[int], window: int) -> None:
    kept = set(plain_winnowing(values, window))
    for first in range(max(len(values) - window + 1, 1) if values else 0):
        places = range(first, min(first + window, len(values)))
        assert any(values[place] == min(values[at] for at in places) for place in kept.intersection(places))


@given(
    st.builds(Rolling, k=st.integers(1, 9), window=st.integers(1, 9)),
    st.data(),
)
def test_a_shared_run_of_the_guaranteed_length_has_a_shared_blot(
    blotter: Rolling, data: st.DataObject
) -> None:
    word = st.integers(0, 4)
    run = data.draw(st.lists(word, min_size=blotter.guarantee, max_size=blotter.guarantee))
    texts = [
        data.draw(st.lists(word, max_size=30)) + run + data.draw(st.lists(word, max_size=30))
        for _ in range(2)
    ]
    first, second = (set(blotter.blots(*arrays([text])).values.tolist()) for text in texts)
    inside = set(blotter.all_blots(*arrays([run])).values.tolist())
    assert first & second & inside


@settings(max_examples=examples(300))
@given(BLOTTERS, st.lists(st.lists(st.integers(0, 2), max_size=120), max_size=4), st.integers(1, 30))
def test_a_text_that_is_worked_on_in_pieces_has_the_same_blots(
    blotter: Any, texts: list[list[int]], piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blots_module, "_PIECE", piece)
        hashes, bounds = arrays(texts)
        assert listed(blotter.all_blots(hashes, bounds)) == plain_blots(texts, blotter, every=True)
        assert listed(blotter.blots(hashes, bounds)) == plain_blots(texts, blotter)


def test_a_shorter_run_may_share_none() -> None:
    # So the guarantee is no larger than it could be.
    blotter = Rolling(4, 4)
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(200):
        a, run, b, c, d = (
            rng.integers(0, M64, 12, dtype=np.uint64, endpoint=True).tolist() for _ in range(5)
        )
        one, two = [*a, *run[:6], *b], [*c, *run[:6], *d]
        missed += not set(blotter.blots(*arrays([one])).values.tolist()) & set(
            blotter.blots(*arrays([two])).values.tolist()
        )
    assert missed > 0


@pytest.mark.parametrize("words", [1, 2, 3, 7])
def test_about_one_blot_a_window_is_kept_of_what_repeats_itself(words: int) -> None:
    text = " ".join("abcdefg"[:words] * 4000)
    tokens = tokeniser_named("words").tokens(text.replace("", " "))
    count = len(tokens)
    kept = len(Rolling().blots(tokens.hashes, np.array([0, count])))
    assert count // 9 <= kept <= count // 4


def test_of_random_words_about_two_in_nine_are_kept() -> None:
    hashes = np.random.default_rng(1).integers(0, M64, 100_000, dtype=np.uint64, endpoint=True)
    kept = len(Rolling().blots(hashes, np.array([0, len(hashes)])))
    assert 0.215 < kept / len(hashes) < 0.23


@given(BLOTTERS, st.integers(1, 40))
def test_a_text_of_as_many_tokens_as_a_blot_has_one_and_a_shorter_none(blotter: Any, longer: int) -> None:
    span = blotter.span
    for count in range(span):
        assert not len(blotter.blots(*arrays([list(range(count))])))
        assert not len(blotter.all_blots(*arrays([list(range(count))])))
    assert blotter.blots(*arrays([list(range(span))])).starts.tolist() == [0]
    assert blotter.all_blots(*arrays([list(range(span + longer))])).starts.tolist() == list(range(longer + 1))


def test_the_last_token_is_in_a_blot() -> None:
    blotter = Rolling(k=2, window=2)
    for text in ([1, 2, 3, 4], [5, 1, 2, 3, 4]):
        other = [*text[:-1], 99]
        assert blotter.all_blots(*arrays([text])).values[-1] != blotter.all_blots(*arrays([other])).values[-1]


@given(st.permutations(range(1, 9)))
def test_rolling_knows_the_order_and_xor_does_not(order: list[int]) -> None:
    assume(order != sorted(order))
    one, other = list(range(1, 9)), order
    assert Rolling(8).blots(*arrays([one])).values != Rolling(8).blots(*arrays([other])).values
    assert Xor(8).blots(*arrays([one])).values == Xor(8).blots(*arrays([other])).values


def test_equal_tokens_cancel_each_other_in_xor_alone() -> None:
    for first, second in ((1, 2), (40, 50)):
        a, b = arrays([[first] * 10]), arrays([[second] * 10])
        assert Xor(10).blots(*a).values.tolist() == Xor(10).blots(*b).values.tolist() == [0]
        assert Rolling(10).blots(*a).values.tolist() != Rolling(10).blots(*b).values.tolist()


def test_interleaved_survives_a_word_that_was_replaced() -> None:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "runs", "away"]
    tokeniser = tokeniser_named("words")
    for place in range(len(words)):
        other = [*words[:place], "replaced", *words[place + 1 :]]
        tokens, bounds = tokens_of_all([" ".join(words), " ".join(other)], tokeniser)

        def shared(blotter: Any, tokens: Any = tokens, bounds: Any = bounds) -> set[int]:
            one, two = (
                blotter.blots(tokens.hashes[first:last], np.array([0, last - first])).values.tolist()
                for first, last in pairwise(bounds.tolist())
            )
            return set(one) & set(two)

        assert shared(Interleaved(streams=2, k=5))
        if 2 <= place <= 9:
            assert not shared(Interleaved(streams=1, k=10))


def test_interleaved_skips_what_is_of_the_other_stream() -> None:
    assert Interleaved(streams=2, k=3).blots(*arrays([[1, 64, 2, 128, 4, 256]])).values.tolist() == [7, 448]


@given(BLOTTERS, TEXTS)
def test_keys_tell_blots_apart(blotter: Any, texts: list[list[int]]) -> None:
    values = blotter.all_blots(*arrays(texts)).values
    found = keys(values, blotter)
    assert found.dtype == np.uint64
    assert key_bits(blotter) == min(40, blotter.bits)
    assert not len(found) or int(found.max()) < 1 << key_bits(blotter)
    assert len(np.unique(found)) == len(np.unique(values))


def test_keys_are_spread_evenly_though_the_smallest_are_kept() -> None:
    hashes = np.random.default_rng(2).integers(0, M64, 200_000, dtype=np.uint64, endpoint=True)
    blotter = Rolling()
    found = keys(blotter.blots(hashes, np.array([0, len(hashes)])).values, blotter)
    counts = np.bincount((found >> np.uint64(37)).astype(np.int64), minlength=8)
    assert counts.min() > 0.9 * counts.mean()


def test_blots_and_keys_never_change() -> None:
    # They are in every index that was written. Both are those of the plain program above.
    golden = ["03830f9b1bee5476"]
    hashes, bounds = arrays([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]])
    blots = Rolling().blots(hashes, bounds)
    assert [f"{value:016x}" for value in blots.values.tolist()] == golden
    assert [f"{value:010x}" for value in keys(blots.values, Rolling()).tolist()] == [
        f"{mixed(int(blot, 16)) >> 24:010x}" for blot in golden
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "rolling/1", "k": 5, "window": 3},
        {"name": "xor/1", "k": 10, "bits": 18},
        {"name": "interleaved/1", "streams": 3, "k": 4, "bits": 32},
    ],
)
def test_a_blotter_is_what_its_spec_says(spec: dict[str, Any]) -> None:
    assert blotter_of(spec).spec == spec
    assert blotter_of(blotter_of(spec["name"]).spec) == blotter_of(spec["name"].partition("/")[0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wolling", "no blotter 'wolling'. Choose one of rolling, xor, interleaved."),
        ({}, "no blotter None"),
        ({"name": "rolling/9"}, "no blotter 'rolling/9'"),
        ({"name": "rolling", "k": 0}, "rolling has k = 0. Give an integer from 1 to 64."),
        ({"name": "rolling", "window": 65}, "rolling has window = 65"),
        ({"name": "rolling", "k": "8"}, "rolling has k = '8'"),
        ({"name": "xor", "k": True}, "xor has k = True"),
        ({"name": "xor", "bits": 33}, "xor has bits = 33. Give an integer from 8 to 32."),
        ({"name": "interleaved", "streams": 0}, "interleaved has streams = 0"),
        ({"name": "xor", "window": 8}, "xor was given window, but its only parameters are k, bits."),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(spec: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        blotter_of(spec)
    assert message in str(caught.value)


def test_the_defaults_find_every_run_of_fifteen_tokens() -> None:
    blotter = blotter_of("rolling")
    assert (blotter.span, blotter.guarantee, blotter.bits) == (8, 15, 64)
    assert (blotter_of("xor").guarantee, blotter_of("interleaved").span) == (10, 9)
