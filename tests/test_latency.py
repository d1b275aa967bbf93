from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.live.figures import BOUNDS_S, Latency

durations = st.lists(
    st.one_of(
        st.floats(0, 100),
        st.floats(1e-6, 1e-3),
        st.sampled_from(BOUNDS_S),
        # Just above a bound, and just below it.
        st.sampled_from(BOUNDS_S).map(lambda bound: math.nextafter(bound, math.inf)),
        st.sampled_from(BOUNDS_S).map(lambda bound: math.nextafter(bound, 0)),
    ),
    max_size=200,
)


@given(durations)
def test_the_counts_at_the_bounds_are_exact(seconds: list[float]) -> None:
    latency = Latency()
    for one in seconds:
        latency.add(one)
    counts, sum_s = latency.cumulative()
    assert counts == (*(sum(one <= bound for one in seconds) for bound in BOUNDS_S), len(seconds))
    assert latency.count == len(seconds)
    assert sum_s == latency.sum_s == pytest.approx(sum(seconds))


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_off_by_5_percent_at_most(seconds: list[float], share: float) -> None:
    latency = Latency()
    for one in seconds:
        latency.add(one)
    true = sorted(seconds)[max(1, math.ceil(share * len(seconds))) - 1]
    assert latency.quantile(share) == pytest.approx(true, rel=0.0501)


def test_what_takes_no_time_or_days_has_a_place() -> None:
    latency = Latency()
    assert latency.quantile(0.5) == 0
    for seconds in (0.0, -1.0, 1e6):
        latency.add(seconds)
    counts, _ = latency.cumulative()
    assert (counts[0], counts[-2], counts[-1]) == (2, 2, 3)
    assert latency.quantile(0.5) == pytest.approx(1e-6)
    assert latency.quantile(1) > 10_000


def test_threads_lose_nothing() -> None:
    latency = Latency()

    def add() -> None:
        for _ in range(20_000):
            latency.add(0.001)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts, sum_s = latency.cumulative()
    assert counts[BOUNDS_S.index(0.0005)] == 0
    assert counts[BOUNDS_S.index(0.001)] == counts[-1] == latency.count == 80_000
    assert sum_s == pytest.approx(80)
