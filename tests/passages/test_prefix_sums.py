"""Comparing ranges by sums gives the same result as comparing their items."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.repeats import PrefixSums


@given(values=st.lists(st.integers(1, 2), min_size=2, max_size=30), block=st.sampled_from([1, 4, 7, 1 << 18]))
def test_ranges_are_equal_if_their_items_are(
    values: list[int], block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scrapy_dedupe.passages.repeats._BLOCK", block)
        sequence = np.array(values, np.uint32)
        sums = PrefixSums(tmp_path_factory.mktemp("work") / "sums", sequence)
    pairs = [(a, b) for a in range(len(values)) for b in range(len(values)) if a != b]
    expected = []
    for a, b in pairs:
        length = 0
        while max(a, b) + length < len(values) and values[a + length] == values[b + length]:
            length += 1
        expected.append(length)
    ours, others = np.array(pairs).T
    most = len(values) - np.maximum(ours, others)
    assert sums.reaches(ours, others, np.zeros(len(pairs), np.int64), most).tolist() == expected
    sums.release(sequence)
    assert sums.are_equal(ours, others, np.array(expected)).all()
