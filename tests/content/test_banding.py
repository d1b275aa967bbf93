from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scrapy_dedupe.content.banding import Banding, estimate_deviation, estimate_probability, recall
from scrapy_dedupe.content.signature import band_hashes, min_equal, row_bytes, rows_of, similarity

bandings = st.builds(Banding, st.integers(1, 32), st.integers(1, 16))
shares = st.floats(0, 1)


@given(bandings, shares)
def test_the_probability_is_that_of_the_textbook(banding: Banding, jaccard: float) -> None:
    plain = 1 - (1 - jaccard**banding.rows) ** banding.bands
    assert banding.probability(jaccard) == pytest.approx(plain, abs=1e-12)


@given(bandings, shares, shares)
def test_the_more_similar_a_pair_the_more_likely_it_is_brought_together(
    banding: Banding, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert 0 <= banding.probability(less) <= banding.probability(more) <= 1


@given(bandings)
def test_equal_texts_are_always_brought_together_and_others_never(banding: Banding) -> None:
    assert banding.probability(1) == 1
    assert banding.probability(0) == 0


def test_the_bands_of_the_defaults() -> None:
    assert Banding.for_recall(0.85, 0.99, 128) == Banding(16, 8)


@given(st.floats(0.5, 0.999), st.floats(0.5, 0.9999), st.integers(16, 512))
def test_bands_reach_the_recall_and_longer_ones_do_not(
    threshold: float, wanted: float, num_perm: int
) -> None:
    assume(1 - (1 - threshold) ** num_perm >= wanted)
    banding = Banding.for_recall(threshold, wanted, num_perm)
    assert banding.bands == num_perm // banding.rows
    assert banding.probability(threshold) >= wanted
    for rows in range(banding.rows + 1, num_perm + 1):
        assert Banding(num_perm // rows, rows).probability(threshold) < wanted


def test_a_recall_that_no_bands_reach_is_refused() -> None:
    sentence = (
        "Bands of 2 rows cannot find 0.99 of the pairs at the threshold 0.5; bands of one row find 0.75"
    )
    with pytest.raises(ValueError, match=sentence):
        Banding.for_recall(0.5, 0.99, 2)


@pytest.mark.parametrize(
    ("threshold", "wanted", "num_perm"),
    [(0, 0.9, 128), (1.1, 0.9, 128), (0.8, 0, 128), (0.8, 1, 128), (0.8, 0.9, 0), (math.nan, 0.9, 128)],
)
def test_values_that_mean_nothing_are_refused(threshold: float, wanted: float, num_perm: int) -> None:
    with pytest.raises(ValueError, match="There are no bands for"):
        Banding.for_recall(threshold, wanted, num_perm)


@pytest.mark.parametrize(("bands", "rows"), [(0, 8), (8, 0), (-1, 8)])
def test_bands_without_rows_are_none(bands: int, rows: int) -> None:
    with pytest.raises(ValueError, match=f"{bands} bands of {rows} rows are not possible"):
        Banding(bands, rows)


# Recall


def drawn(jaccard: float, banding: Banding, num_perm: int, pairs: int) -> tuple[float, float, float, float]:
    """The shares of drawn pairs that share a band, whose estimate reaches 0.85, and both; the estimates' deviation."""
    numbers = np.random.default_rng(int(jaccard * 1000))
    rows = numbers.random((pairs, num_perm)) < jaccard
    equal_bytes = rows | (numbers.random((pairs, num_perm)) < 1 / 256)
    in_bands = rows[:, : banding.bands * banding.rows].reshape(pairs, banding.bands, banding.rows)
    shares = np.any(np.all(in_bands, axis=2), axis=1)
    counts = equal_bytes.sum(axis=1)
    reaches = counts >= min_equal(0.85, num_perm)
    deviation = np.std([similarity(int(count), num_perm) for count in counts])
    return float(shares.mean()), float(reaches.mean()), float((shares & reaches).mean()), float(deviation)


@pytest.mark.parametrize("banding", [Banding(16, 8), Banding(8, 16), Banding(4, 25)])
@pytest.mark.parametrize("jaccard", [0.75, 0.82, 0.85, 0.9])
def test_the_probabilities_are_those_of_drawn_pairs(jaccard: float, banding: Banding) -> None:
    pairs, num_perm = 20_000, 128
    shares, reaches, both, deviation = drawn(jaccard, banding, num_perm, pairs)
    least = min_equal(0.85, num_perm)
    margin = 5 * 0.5 / math.sqrt(pairs)
    assert banding.probability(jaccard) == pytest.approx(shares, abs=margin)
    assert estimate_probability(jaccard, num_perm, least) == pytest.approx(reaches, abs=margin)
    assert recall(jaccard, banding, num_perm, least) == pytest.approx(both, abs=margin)
    assert estimate_deviation(jaccard, num_perm) == pytest.approx(deviation, rel=0.05)


def test_bands_and_estimate_are_not_taken_for_independent() -> None:
    banding, jaccard = Banding(8, 16), 0.85
    both = recall(jaccard, banding, 128, 109)
    product = banding.probability(jaccard) * estimate_probability(jaccard, 128, 109)
    assert both > product + 0.05


@given(bandings, st.integers(0, 20), shares, st.data())
@settings(deadline=None)
def test_a_pair_is_called_near_no_more_often_than_either_condition_allows(
    banding: Banding, spare: int, jaccard: float, data: st.DataObject
) -> None:
    num_perm = banding.bands * banding.rows + spare
    least = data.draw(st.integers(0, num_perm))
    found = recall(jaccard, banding, num_perm, least)
    reaches = estimate_probability(jaccard, num_perm, least)
    shares = banding.probability(jaccard)
    assert 0 <= found <= min(reaches, shares) + 1e-9
    assert found >= reaches + shares - 1 - 1e-9


@given(bandings, st.integers(0, 20))
def test_equal_texts_are_always_called_near(banding: Banding, spare: int) -> None:
    num_perm = banding.bands * banding.rows + spare
    assert recall(1, banding, num_perm, num_perm) == 1


def test_one_band_of_one_row_can_be_counted_by_hand() -> None:
    jaccard = 0.6
    # Both rows equal, or the first one alone; of the second its byte may be equal by chance.
    byte = jaccard + (1 - jaccard) / 256
    assert recall(jaccard, Banding(1, 1), 2, 2) == pytest.approx(jaccard * byte)
    assert recall(jaccard, Banding(1, 1), 2, 1) == pytest.approx(jaccard)
    assert recall(jaccard, Banding(2, 1), 2, 1) == pytest.approx(1 - (1 - jaccard) ** 2)


def test_signatures_keep_to_the_curve() -> None:
    numbers, banding = np.random.default_rng(7), Banding(16, 8)
    pairs, least, shared = 400, min_equal(0.85), 0.85
    found = 0
    for _ in range(pairs):
        hashes = numbers.integers(0, 2**32, 1150, dtype=np.uint32)
        # 850 of 1,000 shingles in common
        one, other = rows_of(hashes[:925]), rows_of(np.concatenate([hashes[:850], hashes[925:1000]]))
        bands = [set(band_hashes(rows, banding, "text/1")) for rows in (one, other)]
        equal = sum(x == y for x, y in zip(row_bytes(one), row_bytes(other), strict=True))
        found += bool(bands[0] & bands[1]) and equal >= least
    expected = recall(shared, banding, 128, least)
    assert found / pairs == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(pairs))
