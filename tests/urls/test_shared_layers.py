from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.urls.bloom import Figures, layer_share, optimal_bits, sum_over
from scrapy_dedupe.urls.shared_layers import (
    SHARD_BYTES,
    Description,
    TagLayer,
    parse_layer,
    plan,
    plan_layer,
)

capacities = st.one_of(st.integers(1, 5000), st.integers(1, 10**10))
error_rates = st.floats(-12, -0.01).map(lambda exponent: 10**exponent)


@given(capacities, error_rates, st.integers(0, 20))
def test_a_layer_keeps_its_share_up_to_its_capacity(capacity: int, error_rate: float, number: int) -> None:
    layer = plan_layer(capacity, error_rate, number)
    assert layer.capacity == capacity * 2**number
    assert layer.error_at(layer.capacity) <= layer_share(error_rate, number)
    assert layer.error_at(0) == 0
    assert layer.error_at(layer.capacity // 2) <= layer.error_at(layer.capacity)


@given(capacities, error_rates, st.integers(0, 20))
def test_no_shard_is_larger_than_16_mib(capacity: int, error_rate: float, number: int) -> None:
    layer = plan_layer(capacity, error_rate, number)
    assert layer.size_bytes <= layer.shards * SHARD_BYTES
    if layer.shards == 1:
        return
    # Fingerprints fall into shards at random; the fullest of them still has room.
    in_one = capacity * 2**number / layer.shards
    fullest = in_one + 4 * math.sqrt(in_one)
    assert fullest <= 0.945 * 4 * layer.buckets


@given(st.integers(200, 10**9), st.floats(-12, -2).map(lambda exponent: 10**exponent))
def test_the_first_layer_costs_at_most_one_byte_a_fingerprint_more_than_the_optimum(
    capacity: int, error_rate: float
) -> None:
    layer = plan_layer(capacity, error_rate, 0)
    assert 8 * layer.size_bytes <= optimal_bits(capacity, error_rate) + 9 * capacity


@pytest.mark.parametrize(
    ("error_rate", "line"),
    [
        (1e-6, "tags 1000000 3 265958 1"),
        (1e-7, "tags 1000000 4 265958 1"),
        (2e-4, "tags 1000000 2 265958 1"),
        (1e-2, "tags 1000000 2 265958 1"),
    ],
)
def test_the_plan_of_a_million(error_rate: float, line: str) -> None:
    assert plan(1_000_000, error_rate).split("\n")[0] == line


@given(capacities, error_rates)
def test_the_lines_of_a_plan_are_its_layers(capacity: int, error_rate: float) -> None:
    lines = plan(capacity, error_rate).split("\n")
    assert [str(parse_layer(line)) for line in lines] == lines
    assert len(lines) == 40
    assert all(len(line.split()) == 5 for line in lines)


@given(capacities, error_rates)
def test_the_rates_of_all_layers_sum_to_less_than_the_error_rate(capacity: int, error_rate: float) -> None:
    total = 0.0
    for number in range(20):
        layer = plan_layer(capacity, error_rate, number)
        total += layer.error_at(layer.capacity)
    assert total <= error_rate


def test_the_error_of_tags_is_that_of_a_simulation() -> None:
    # Buckets and tags so few that it can be counted without a filter: two fingerprints meet when their tags agree and
    # they share a bucket.
    layer = TagLayer(capacity=50, tag_bytes=1, buckets=16, shards=1)
    draw = random.Random(7)

    def fingerprint() -> tuple[int, frozenset[int]]:
        tag, first = max(1, draw.randrange(256)), draw.randrange(16)
        return tag, frozenset({first, (163841641 * tag * 65536 - first) % 16})

    trials, wrong = 60_000, 0
    stored = [fingerprint() for _ in range(50)]
    for trial in range(trials):
        if trial % 20 == 0:
            stored = [fingerprint() for _ in range(50)]
        tag, buckets = fingerprint()
        wrong += any(tag == other and buckets & those for other, those in stored)
    expected = layer.error_at(50) * trials
    assert abs(wrong - expected) <= 6 * math.sqrt(expected)


def test_a_description_adds_up() -> None:
    layers = (plan_layer(100, 0.01, 0), plan_layer(100, 0.01, 1))
    found = Description(layers, (100, 50), forgotten=3)
    figures = found.figures()
    assert (found.seen, figures.seen, figures.capacity, figures.layers) == (150, 150, 100, 2)
    assert figures.bytes == layers[0].size_bytes + layers[1].size_bytes
    one, two = layers[0].error_at(100), layers[1].error_at(50)
    assert figures.estimated_error == pytest.approx(one + two - one * two)
    assert 0 < figures.fill_ratio < 1
    assert figures.expected_lost == pytest.approx(
        sum_over(layers[0].error_at, 100) + sum_over(layers[1].error_at, 50) + 50 * one, rel=1e-6
    )
    assert Description().figures() == Figures(0, 0, 0, 0, 0.0, 0.0, 0.0)


def test_a_layer_of_bits_is_refused() -> None:
    with pytest.raises(StoreRefused, match=r"has layers of bits.*DEDUPE_URL_KEY"):
        parse_layer("bits 1000000 6 1740409 1")
