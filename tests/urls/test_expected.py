from __future__ import annotations

import pytest

from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.expected import expected_figures


@pytest.mark.parametrize("error_rate", [1e-2, 1e-6])
@pytest.mark.parametrize("held", [0, 1, 1_500, 2_000, 9_000])
def test_what_is_expected_is_what_is_counted(held: int, error_rate: float) -> None:
    bloom = GrowingBloomFilter(2_000, error_rate)
    for number in range(held):
        bloom.add(b"%d" % number)
    figures = expected_figures(bloom.layer_heads())
    assert figures["seen"] == len(bloom)
    assert figures["capacity"] == 2_000
    assert figures["layers"] == bloom.layers
    assert figures["bytes"] == bloom.size_bytes
    assert figures["expected_lost"] == bloom.expected_lost
    assert figures["fill_ratio"] == pytest.approx(bloom.fill_ratio, rel=0.02)
    # The product over all slices of a deviation of one percent in each.
    assert figures["estimated_error"] == pytest.approx(bloom.estimated_error, rel=0.5)
    assert 0 <= figures["estimated_error"] <= error_rate
