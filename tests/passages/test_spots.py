"""Where in its text a key stands: as a byte, and as characters again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.blots import blotter_of, key_bits, keys
from scrapy_dedupe.passages.preparation import prepare
from scrapy_dedupe.passages.segment_layout import WHOLE, characters_of, parts_of, spots_between
from scrapy_dedupe.passages.tokens import tokeniser_named
from scrapy_dedupe.passages.values import Parameters


def spot_of(places: list[int], count: int) -> int:
    parts = parts_of(np.array(places), np.full(len(places), count))
    return int(spots_between(parts.min(keepdims=True), parts.max(keepdims=True))[0])


@given(st.data())
def test_a_spot_has_all_the_places_and_no_smaller_one_has(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 1 << 32))
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))
    spot = spot_of(places, count)
    (begin,), (end,) = characters_of(np.array([spot]), count)
    assert begin <= min(places) <= max(places) < end
    if spot < 128:
        begins, ends = characters_of(np.array([2 * spot, 2 * spot + 1]), count)
        assert not any(b <= min(places) and max(places) < e for b, e in zip(begins, ends, strict=True))


@pytest.mark.parametrize("count", [1, 100, 127, 128, 129, 1000, (1 << 32) - 1])
def test_the_spots_of_a_size_lie_side_by_side_over_the_whole_text(count: int) -> None:
    for depth in range(8):
        begins, ends = characters_of(np.arange(1 << depth, 2 << depth), count)
        assert (begins[0], ends[-1]) == (0, count)
        assert np.array_equal(begins[1:], ends[:-1])


@pytest.mark.parametrize("blotter", ["rolling", "xor", "interleaved"])
def test_each_key_is_stored_with_the_spot_of_all_its_blots(blotter: str) -> None:
    made = blotter_of(blotter)
    line = " ".join(f"w{number}" for number in range(30))
    texts = [f"{line}. {' '.join(f'x{number}' for number in range(900))} {line}", line, "", f"{line}\n{line}"]
    given_parameters = Parameters("words/1", made.spec, True, key_bits(made))
    prepared = prepare([(f"d{number}", "", text) for number, text in enumerate(texts)], given_parameters)
    at = 0
    for text, count in zip(texts, prepared.post_counts.tolist(), strict=True):
        tokens = tokeniser_named("words").tokens(text)
        blots = made.blots(tokens.hashes, np.array([0, len(tokens)]))
        places: dict[int, list[int]] = {}
        for key, start in zip(keys(blots.values, made).tolist(), blots.starts.tolist(), strict=True):
            places.setdefault(key, []).append(int(tokens.starts[start]))
        expected = [(key, spot_of(its, len(text))) for key, its in sorted(places.items())]
        found = zip(
            prepared.keys[at : at + count].tolist(), prepared.spots[at : at + count].tolist(), strict=True
        )
        assert list(found) == expected
        at += count
    assert WHOLE in prepared.spots
    assert prepared.spots.max() >= 128


def test_more_texts_than_are_sorted_together_have_the_keys_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made = blotter_of("rolling")
    given_parameters = Parameters("words/1", made.spec, True, 40)
    texts = [("d", "", " ".join(f"a{seed}b{number % 40}" for number in range(80))) for seed in range(9)]
    expected = prepare(texts, given_parameters)
    monkeypatch.setattr("scrapy_dedupe.passages.preparation.SORTED_BITS", 49)
    found = prepare(texts, given_parameters)
    for one, other in ((expected.keys, found.keys), (expected.spots, found.spots)):
        assert np.array_equal(one, other)
    assert np.array_equal(expected.post_counts, found.post_counts)
