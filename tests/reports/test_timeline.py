"""Counters over time: bounded number of slots, exact sums, correct times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.reports.tallies import MOST_SLOTS, Timeline

START = 1_793_000_000


def test_a_short_run_has_slots_of_one_second() -> None:
    timeline = Timeline(2)
    timeline.count(START + 0.2, [(0, 1)])
    timeline.count(START + 0.9, [(0, 1), (1, 5)])
    timeline.count(START + 3, [(1, 1)])
    assert timeline.seconds == 1
    # Seconds without events have slots, too.
    assert timeline.slices() == [
        (START, [2, 5]),
        (START + 1, [0, 0]),
        (START + 2, [0, 0]),
        (START + 3, [0, 1]),
    ]


def test_the_width_doubles_as_the_run_grows() -> None:
    timeline = Timeline(1)
    for second in range(1_000):
        timeline.count(START + second, [(0, 1)])
    slices = timeline.slices()
    assert timeline.seconds == 16
    assert len(slices) <= MOST_SLOTS
    assert sum(row[0] for _, row in slices) == 1_000
    assert {row[0] for _, row in slices[1:-1]} == {16}
    assert [second for second, _ in slices] == list(range(slices[0][0], slices[-1][0] + 1, 16))


def test_times_between_two_runs_have_no_slots() -> None:
    first = Timeline(1)
    for second in range(3):
        first.count(START + second, [(0, 1)])
    second_run = Timeline(1)
    second_run.take(first.as_dict())
    week = START + 7 * 86_400
    second_run.count(week, [(0, 1)])
    second_run.count(week + 1)
    assert second_run.seconds == 1
    assert [second for second, _ in second_run.slices()] == [START, START + 1, START + 2, week, week + 1]


def test_a_pause_within_a_run_has_slots() -> None:
    timeline = Timeline(1)
    timeline.count(START, [(0, 1)])
    timeline.count(START + 86_400, [(0, 1)])
    slices = timeline.slices()
    assert 60 < len(slices) <= MOST_SLOTS
    assert [row[0] for _, row in slices if row[0]] == [1, 1]
    assert [second for second, _ in slices] == list(range(slices[0][0], slices[-1][0] + 1, timeline.seconds))


def test_a_clock_that_is_set_back_loses_no_counts() -> None:
    timeline = Timeline(1)
    for now in (START + 100, START, START + 50, START + 101, -5, float(10**18)):
        timeline.count(now, [(0, 1)])
    assert sum(row[0] for _, row in timeline.slices()) == 6
    assert len(timeline.slices()) <= MOST_SLOTS


@pytest.mark.parametrize("now", [-5.0, 2.0**37 - 1, 2.0**37, 1e12, 1e18])
def test_the_end_of_each_slot_can_be_converted_to_a_date(now: float) -> None:
    timeline = Timeline(1)
    for moment in (START, now):
        timeline.count(moment, [(0, 1)])
    again = Timeline(1)
    again.take(timeline.as_dict())
    assert again.slices() == timeline.slices()
    for start, _ in timeline.slices():
        assert datetime.fromtimestamp(start, UTC) + timedelta(seconds=timeline.seconds)


MOMENTS = st.lists(
    st.one_of(st.integers(START, START + 500), st.integers(START, START + 10**7), st.integers(0, 4 * 10**9)),
    max_size=300,
)


@given(MOMENTS)
def test_sums_are_exact_with_a_bounded_number_of_slots(moments: list[int]) -> None:
    timeline = Timeline(1)
    for moment in moments:
        timeline.count(moment, [(0, 1)])
    slices = timeline.slices()
    assert sum(row[0] for _, row in slices) == len(moments)
    assert len(slices) <= MOST_SLOTS
    for moment in moments:
        slot = moment - moment % timeline.seconds
        assert any(second == slot and row[0] for second, row in slices)


@given(MOMENTS, MOMENTS)
def test_sums_are_exact_after_a_merge(first: list[int], second: list[int]) -> None:
    timelines = Timeline(1), Timeline(1)
    for timeline, moments in zip(timelines, (first, second), strict=True):
        for moment in moments:
            timeline.count(moment, [(0, 1)])
    merged, other = timelines
    merged.merge(other)
    slices = merged.slices()
    assert sum(row[0] for _, row in slices) == len(first) + len(second)
    assert len(slices) <= MOST_SLOTS
    occupied = {moment - moment % merged.seconds for moment in (*first, *second)}
    assert {start for start, row in slices if row[0]} == occupied


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"seconds": 3, "slots": []},
        {"seconds": 0, "slots": []},
        {"seconds": 1, "slots": [[1]]},
        {"seconds": 1, "slots": [[1, -1]]},
        {"seconds": 1, "slots": [[1, 1.5]]},
        {"seconds": 1, "slots": [[10**12, 1]]},
        {"seconds": 1, "slots": [[2**37, 1]]},
        {"seconds": 2**37, "slots": [[1, 1]]},
        {"seconds": 2**38, "slots": [[0, 1]]},
        {"seconds": 2**79, "slots": [[0, 1]]},
        {"seconds": 1, "slots": [[number, 1] for number in range(121)]},
    ],
)
def test_damaged_values_are_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        Timeline(1).take(data)
