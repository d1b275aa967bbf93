"""How much a text can share at most, told by its keys: never too little."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages import alignment
from scrapy_dedupe.passages.alignment import Chains

GUARANTEE = 15


def bounds(windows: list[int], has: dict[int, set[int]], least: int = GUARANTEE) -> dict[int, int]:
    pairs = sorted((key, text) for text, keys in has.items() for key in keys)
    keys, texts = np.array(pairs, np.int64).reshape(-1, 2).T
    found, most = Chains(np.array(windows, np.int64), GUARANTEE).bounds(keys, texts, least)
    return dict(zip(found.tolist(), most.tolist(), strict=True))


def longest_runs(windows: list[int], has: dict[int, set[int]], least: int) -> dict[int, int]:
    """The same, window by window."""
    result = {}
    for text, keys in has.items():
        total = row = 0
        for key in [*windows, -2]:
            if key in keys:
                row += 1
                continue
            total += row + GUARANTEE - 1 if row and row + GUARANTEE - 1 >= least else 0
            row = 0
        if total:
            result[text] = min(total, len(windows) + GUARANTEE - 1)
    return result


def test_a_chain_ends_at_the_first_window_whose_key_is_lacking() -> None:
    windows = [0, 0, 0, 1, 1, 2, 3, 3]
    assert bounds(windows, {0: {0}, 1: {0, 1}, 2: {0, 2}, 3: {1, 2, 3}}) == {0: 17, 1: 19, 2: 22, 3: 19}


def test_a_text_that_cannot_share_so_long_a_run_is_left_out() -> None:
    windows = [0, 0, 0, 1, 1, 2, 3, 3]
    assert bounds(windows, {0: {0}, 1: {0, 1}, 2: {0, 2}, 3: {1, 2, 3}}, 19) == {1: 19, 3: 19}


def test_a_window_that_none_can_have_parts_chains() -> None:
    assert bounds([0, 0, -1, 1, 1], {0: {0, 1}}, 17) == {}
    assert bounds([0, 0, -1, 1, 1], {0: {0, 1}}, 16) == {0: 19}


KEYS = st.integers(-1, 5)


@given(
    st.lists(KEYS, max_size=30),
    st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 5))),
    st.integers(15, 25),
)
def test_bounds_are_those_that_going_through_all_windows_gives(
    windows: list[int], has: dict[int, set[int]], least: int
) -> None:
    assert bounds(windows, has, least) == longest_runs(windows, has, least)


def covered(windows: list[int], keys: set[int], least: int) -> int:
    """How many tokens are in runs, if all are as long as they can be."""
    tokens: set[int] = set()
    first = 0
    for at, key in enumerate([*windows, -2]):
        if key not in keys:
            if at > first and at - first + GUARANTEE - 1 >= least:
                tokens |= set(range(first, at + GUARANTEE - 1))
            first = at + 1
    return len(tokens)


@given(
    most=st.sampled_from([0, 8, 30]),
    windows=st.lists(KEYS, max_size=30),
    has=st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 5), min_size=1), min_size=1),
    least=st.integers(15, 25),
)
def test_keys_at_too_many_places_make_bounds_larger_and_never_smaller(
    most: int, windows: list[int], has: dict[int, set[int]], least: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "_MOST_PLACES", most)
        patch.setattr(alignment, "_LIMITS", (2, 1))
        found = bounds(windows, has, least)
    for text, keys in has.items():
        assert found.get(text, 0) >= covered(windows, keys, least)
