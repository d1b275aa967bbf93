from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.writer import FAN_IN, LARGEST, LOWEST, fewest, next_merge


def grown(additions: list[int]) -> tuple[list[int], int, int]:
    """The segments after these additions, the most there ever were, and how much was written altogether."""
    sizes: list[int] = []
    most = written = 0
    for addition in additions:
        sizes.append(addition)
        written += addition
        while (merge := next_merge(sizes)) is not None:
            total = sum(sizes[merge])
            sizes[merge] = [total]
            written += total
        most = max(most, len(sizes))
    return sizes, most, written


def test_few_segments_stay_as_they_are() -> None:
    assert next_merge([]) is None
    assert next_merge([5] * (FAN_IN - 1)) is None


def test_eight_neighbours_of_one_size_become_one() -> None:
    assert next_merge([5] * FAN_IN) == slice(0, FAN_IN)


def test_a_large_segment_is_not_written_again_for_small_ones_behind_it() -> None:
    assert next_merge([100 * LOWEST, *[5] * FAN_IN]) == slice(1, 1 + FAN_IN)


def test_small_segments_between_large_ones_do_not_pile_up() -> None:
    sizes, most, _ = grown([LOWEST, 1, 1, 1] * 200)
    assert sum(sizes) == 200 * (LOWEST + 3)
    assert most <= 20


def test_a_thousand_single_additions_leave_few_segments() -> None:
    sizes, most, written = grown([300] * 1_000)
    assert most <= 12
    assert len(sizes) <= 12
    # all in the lowest tier, where writing again costs little
    assert written < 20 * sum([300] * 1_000)


@given(st.lists(st.integers(0, 10**8), max_size=120))
def test_whatever_is_added_there_are_fewer_than_eight_a_tier(additions: list[int]) -> None:
    sizes, most, _ = grown(additions)
    assert sum(sizes) == sum(additions)
    tiers = 1
    while LOWEST * FAN_IN ** (tiers - 1) <= max(sum(additions), 1):
        tiers += 1
    assert most <= tiers * (FAN_IN - 1)


@given(st.lists(st.integers(0, 10**8), max_size=60))
def test_a_merge_takes_eight_neighbours(sizes: list[int]) -> None:
    merge = next_merge(sizes)
    if merge is not None:
        assert len(sizes[merge]) == FAN_IN


def test_nothing_is_merged_that_would_be_too_large() -> None:
    assert next_merge([LARGEST // 2] * FAN_IN) is None
    assert next_merge([*[LARGEST // 2] * FAN_IN, *[1] * FAN_IN]) == slice(FAN_IN, 2 * FAN_IN)


def test_a_bound_keeps_large_segments_from_being_merged_and_small_ones_not() -> None:
    assert next_merge([LOWEST] * FAN_IN, FAN_IN * LOWEST) == slice(0, FAN_IN)
    assert next_merge([LOWEST] * FAN_IN, FAN_IN * LOWEST - 1) is None
    assert next_merge([*[LOWEST] * FAN_IN, *[1] * FAN_IN], LOWEST) == slice(FAN_IN, 2 * FAN_IN)
    assert next_merge([LARGEST] * FAN_IN, 100 * LARGEST) is None


@given(st.lists(st.integers(0, LARGEST), max_size=30))
def test_the_fewest_segments_are_all_and_none_too_large(sizes: list[int]) -> None:
    groups = fewest(sizes)
    assert [size for group in groups for size in sizes[group]] == sizes
    totals = [sum(sizes[group]) for group in groups]
    assert all(total <= LARGEST for total in totals)
    assert all(
        first + then > LARGEST
        for first, then in zip(totals, [sizes[group][0] for group in groups[1:]], strict=False)
    )
