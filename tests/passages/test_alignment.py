"""Runs of tokens that two texts share, against what a slow comparison of all pairs finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.alignment import (
    AlignedRuns,
    Occurrences,
    Windows,
    _runs,
    _sums,
    outermost,
    thinned,
)

FEW_WORDS = st.lists(st.integers(0, 3), max_size=30)
Triples = list[tuple[int, int, int]]


def hashes(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def triples(runs: AlignedRuns) -> Triples:
    return list(zip(runs.a_starts.tolist(), runs.b_starts.tolist(), runs.lengths.tolist(), strict=True))


def shared_runs(
    a: np.ndarray, b: np.ndarray, seeds: tuple[np.ndarray, np.ndarray], least: int
) -> AlignedRuns:
    return _runs(a, _sums(a), b, _sums(b), seeds, least)


def all_runs(a: list[int], b: list[int], least: int) -> Triples:
    found = []
    for i in range(len(a)):
        for j in range(len(b)):
            if i and j and a[i - 1] == b[j - 1]:
                continue
            length = 0
            while i + length < len(a) and j + length < len(b) and a[i + length] == b[j + length]:
                length += 1
            if length >= least:
                found.append((i, j, length))
    return found


@given(FEW_WORDS, FEW_WORDS, st.integers(1, 6))
def test_every_maximal_run_is_found_once(a: list[int], b: list[int], least: int) -> None:
    assert triples(Windows(hashes(a), least).runs_in(hashes(b))) == all_runs(a, b, least)


@given(FEW_WORDS, FEW_WORDS, st.integers(1, 6), st.data())
def test_runs_through_seeds_are_those_that_go_through_them(
    a: list[int], b: list[int], least: int, data: st.DataObject
) -> None:
    places = st.tuples(st.integers(0, len(a) - 1), st.integers(0, len(b) - 1))
    seeds = data.draw(st.lists(places, max_size=10)) if a and b else []
    sides = np.array([i for i, _ in seeds], np.int64), np.array([j for _, j in seeds], np.int64)
    expected = [
        (i, j, length)
        for i, j, length in all_runs(a, b, least)
        if any(y - x == j - i and i <= x < i + length for x, y in seeds)
    ]
    assert triples(shared_runs(hashes(a), hashes(b), sides, least)) == expected


@given(FEW_WORDS, FEW_WORDS, st.integers(1, 6))
def test_the_outermost_runs_cover_all_that_is_shared(a: list[int], b: list[int], least: int) -> None:
    every = Windows(hashes(a), least).runs_in(hashes(b))
    left = triples(outermost(every))
    for i, j, length in triples(every):
        assert any(x <= i and i + length <= x + n and y <= j and j + length <= y + n for x, y, n in left)
    for one in left:
        others = [other for other in left if other != one]
        assert not any(
            x <= one[0] and one[0] + one[2] <= x + n and y <= one[1] and one[1] + one[2] <= y + n
            for x, y, n in others
        )


@given(st.lists(st.integers(0, 2), max_size=300), st.lists(st.integers(0, 2), max_size=300))
def test_all_places_of_a_value_are_paired(a: list[int], b: list[int]) -> None:
    own, other = Occurrences(hashes(a)).pairs_with(hashes(b))
    pairs = list(zip(own.tolist(), other.tolist(), strict=True))
    assert sorted(pairs) == [(i, j) for i, x in enumerate(a) for j, y in enumerate(b) if x == y]


def test_a_value_that_would_make_millions_of_pairs_is_paired_at_each_of_its_places() -> None:
    a, b = hashes([1, 2, *[7] * 2_100]), hashes([*[7] * 2_000, 2, 2])
    own, other = Occurrences(a).pairs_with(b)
    pairs = set(zip(own.tolist(), other.tolist(), strict=True))
    assert len(pairs) == len(own) < 10_000
    assert all(a[i] == b[j] for i, j in pairs)
    assert {i for i, _ in pairs} == set(range(1, 2_102))
    assert {j for _, j in pairs} == set(range(2_002))
    assert {(1, 2_000), (1, 2_001)} <= pairs


@pytest.mark.parametrize("period", [1, 2, 37])
def test_of_what_repeats_without_end_few_runs_are_told_and_the_longest_is_left(period: int) -> None:
    a = np.resize(hashes(list(range(period))), 50_000)
    runs = Windows(a, 15).runs_in(a)
    assert len(runs) < 2 * len(a)
    assert triples(outermost(runs)) == [(0, 0, 50_000)]


def test_a_line_on_every_second_place_is_found_at_all_of_them() -> None:
    line = list(range(100, 120))
    page = [token for number in range(3_000) for token in (*line, 1_000 + number)]
    runs = Windows(hashes(line), 15).runs_in(hashes(page))
    assert triples(runs) == [(0, 21 * number, 20) for number in range(3_000)]


def test_texts_that_share_nothing_or_are_empty_have_no_runs() -> None:
    nothing, some = hashes([]), hashes([1, 2, 3])
    for a, b in ((nothing, nothing), (nothing, some), (some, nothing), (some, hashes([4, 5, 6]))):
        assert triples(Windows(a, 1).runs_in(b)) == []
        assert len(outermost(Windows(a, 2).runs_in(b))) == 0


def test_a_line_without_end_is_told_as_often_as_covers_it() -> None:
    line = list(range(100, 110))
    a, b = hashes(line * 20_000), hashes([1, *line * 20])
    runs = outermost(thinned(Windows(a, 15).runs_in(b)))
    assert len(runs) < 4_000
    assert int(runs.lengths.sum()) < 4 * (len(a) + len(b))
    assert runs.a_starts.min() == 0
    assert np.all(runs.a_starts[1:] <= np.maximum.accumulate(runs.a_starts + runs.lengths)[:-1])
    assert (runs.a_starts + runs.lengths).max() == len(a)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=200)
)
def test_thinned_runs_cover_in_both_texts_what_all_do(rows: list[tuple[int, int, int]]) -> None:
    every = AlignedRuns(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
    left = triples(thinned(every))
    assert set(left) <= set(rows)
    for side in (0, 1):
        spans = [
            {place for row in some for place in range(row[side], row[side] + row[2])} for some in (rows, left)
        ]
        assert spans[0] == spans[1]


def test_runs_of_texts_of_many_pieces_are_found_wherever_they_stand() -> None:
    make = np.random.default_rng(7)
    a = make.integers(0, 1 << 63, 2_500_000, np.uint64)
    b = make.integers(0, 1 << 63, 100_000, np.uint64)
    planted = [(0, 99_980, 20), (1_048_570, 20_000, 30), (1_200_000, 30_000, 40_000), (2_499_985, 0, 15)]
    for at, there, length in planted:
        b[there : there + length] = a[at : at + length]
    assert triples(Windows(a, 15).runs_in(b)) == planted


@pytest.mark.parametrize("times", [1, 3, 40])
@pytest.mark.parametrize("period", [1, 2, 3, 10, 20])
def test_all_of_a_periodic_part_is_covered_whichever_text_is_longer(period: int, times: int) -> None:
    unit = list(range(100, 100 + period))
    long = [1, *unit * (6_000 // period), 2, 3, *unit * (900 // period), *unit[: period // 2], 4]
    short = [5, *(unit * (15 * times))[: 15 * times + 7], 6, 7, *(unit * 15)[period // 2 :][:18], 2, 3]
    for a, b in ((long, short), (short, long), (long, long)):
        runs = triples(thinned(Windows(hashes(a), 15).runs_in(hashes(b))))
        assert len(runs) < 2 * (len(a) + len(b))
        for side, one, other in ((0, a, b), (1, b, a)):
            windows = {tuple(other[i : i + 15]) for i in range(len(other) - 14)}
            shared = {
                i + k for i in range(len(one) - 14) if tuple(one[i : i + 15]) in windows for k in range(15)
            }
            assert {place for run in runs for place in range(run[side], run[side] + run[2])} == shared


def test_of_one_word_in_a_short_text_and_without_end_in_the_other_few_runs_are_told() -> None:
    a, b = hashes([1] * 16), hashes([1] * 1_000_000)
    for one, other in ((a, b), (b, a)):
        runs = outermost(thinned(Windows(one, 15).runs_in(other)))
        assert 60_000 < len(runs) < 150_000
