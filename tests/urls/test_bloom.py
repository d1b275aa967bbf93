from __future__ import annotations

import hashlib
import math
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pybloom_live import BloomFilter

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls import bloom
from scrapy_dedupe.urls.bloom import (
    Geometry,
    GrowingBloomFilter,
    layer_geometry,
    layer_share,
    optimal_bits,
    slice_error,
)


def fingerprints(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha1(f"{salt}{number}".encode()).digest() for number in range(count)]


def test_a_fingerprint_is_new_once() -> None:
    seen = GrowingBloomFilter(1000, 1e-6)
    assert seen.add(b"one")
    assert not seen.add(b"one")
    assert b"one" in seen
    assert b"two" not in seen
    assert len(seen) == 1


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=400))
@settings(max_examples=50, deadline=None)
def test_it_answers_like_a_set_through_all_its_layers(items: list[bytes]) -> None:
    seen = GrowingBloomFilter(20, 1e-9)
    plain: set[bytes] = set()
    for item in items:
        assert seen.add(item) == (item not in plain)
        plain.add(item)
    assert len(seen) == len(plain)
    assert all(item in seen for item in plain)


def test_add_many_answers_in_order() -> None:
    assert GrowingBloomFilter(10, 1e-6).add_many([b"a", b"b", b"a"]) == [True, True, False]


@pytest.mark.parametrize("error_rate", [0.01, 0.001])
@pytest.mark.parametrize("capacity", [500, 1500])
def test_the_error_rate_holds_up_to_64_times_the_first_capacity(capacity: int, error_rate: float) -> None:
    seen = GrowingBloomFilter(capacity, error_rate)
    items = fingerprints(capacity * 64)
    others = fingerprints(30_000, "other")
    added = 0
    for factor in (1, 3, 7, 31, 64):
        seen.add_many(items[added : capacity * factor])
        added = capacity * factor
        wrong = sum(item in seen for item in others)
        expected = seen.estimated_error * len(others)
        # Four standard deviations of a binomial count.
        assert wrong <= error_rate * len(others) + 4 * math.sqrt(error_rate * len(others))
        assert seen.estimated_error <= error_rate * 1.05
        assert abs(wrong - expected) <= 5 * math.sqrt(expected) + 0.1 * expected + 5


def test_expected_lost_is_what_is_lost() -> None:
    lost = expected = 0.0
    for salt in range(6):
        seen = GrowingBloomFilter(2000, 0.02)
        items = fingerprints(20_000, f"{salt}-")
        lost += len(items) - sum(seen.add_many(items))
        expected += seen.expected_lost
    assert abs(lost - expected) < 5 * math.sqrt(expected)


def test_the_error_of_a_biased_draw_is_accounted_for() -> None:
    # 16-bit words modulo 26,000: the first 13,536 positions come up 1.5 times as often as the others.
    width, count = 26_000, 18_000
    draw = random.Random(1)
    bits = bytearray(width)
    for _ in range(count):
        bits[draw.getrandbits(16) % width] = 1
    probes = 400_000
    found = sum(bits[draw.getrandbits(16) % width] for _ in range(probes)) / probes
    even = 1 - (1 - 1 / width) ** count
    assert slice_error(width, count, 16) > 1.01 * even
    assert found == pytest.approx(slice_error(width, count, 16), abs=0.006)


def test_the_bits_that_are_set_tell_the_error() -> None:
    geometry = Geometry(capacity=18_000, error_rate=0.01, hashes=7, slice_bits=26_000)
    seen = GrowingBloomFilter.from_layers(18_000, 0.01, [(geometry, 0, bytes(geometry.size_bytes))])
    seen.add_many(fingerprints(18_000))
    probes = 100_000
    wrong = sum(item in seen for item in fingerprints(probes, "x"))
    assert abs(wrong - probes * geometry.error_at(18_000)) < 5 * math.sqrt(wrong) + 0.02 * wrong
    assert seen.estimated_error == pytest.approx(geometry.error_at(18_000), rel=0.05)


@pytest.mark.parametrize("error_rate", [0.3, 1e-6, 1e-12])
def test_pybloom_live_reads_a_layer_and_we_read_what_it_writes(error_rate: float) -> None:
    seen = GrowingBloomFilter(1000, error_rate)
    ours, theirs = fingerprints(300), fingerprints(300, "theirs")
    seen.add_many(ours)
    layer = seen._newest
    assert all(BloomFilter.__contains__(layer, item) for item in ours)
    for item in theirs:
        BloomFilter.add(layer, item)
    assert all(item in seen for item in theirs)
    others = fingerprints(2000, "others")
    assert [item in seen for item in others] == [BloomFilter.__contains__(layer, item) for item in others]


def test_the_bits_of_a_fingerprint_are_words_of_its_digests() -> None:
    # 1e-12 takes more words than one digest has.
    geometry = layer_geometry(1000, 1e-12)
    seen = GrowingBloomFilter.from_layers(1000, 1e-12, [(geometry, 0, bytes(geometry.size_bytes))])
    seen.add(b"abc")
    digests = hashlib.blake2b(b"abc").digest() + hashlib.blake2b(b"abc", salt=b"\1" + bytes(15)).digest()
    words = struct.unpack(f"<{geometry.hashes}I", digests[: 4 * geometry.hashes])
    expected = {i * geometry.slice_bits + word % geometry.slice_bits for i, word in enumerate(words)}
    _, _, bits = seen.dump_layers()[0]
    assert {i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1} == expected
    assert geometry.hashes > 16


@given(
    st.integers(1000, 3_000_000) | st.integers(10_000, 30_000),
    st.floats(-9, -2).map(lambda exponent: 10**exponent),
)
@settings(deadline=None)
def test_the_first_layer_is_within_its_share_and_a_tenth_of_the_optimum(
    capacity: int, error_rate: float
) -> None:
    share = layer_share(error_rate, 0)
    geometry = layer_geometry(capacity, share)
    assert geometry.error_at(capacity) <= share
    assert geometry.bits <= 1.1 * optimal_bits(capacity, error_rate)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.sampled_from([32, 48, 64]))
def test_the_error_of_a_slice_is_a_probability_that_grows(
    slice_bits: int, count: int, word_bits: int
) -> None:
    error = slice_error(slice_bits, count, word_bits)
    assert 0 <= error <= 1 + 1e-12
    assert slice_error(slice_bits, count + 1, word_bits) >= error


def test_layers_double_and_the_size_is_that_of_their_bits() -> None:
    seen = GrowingBloomFilter(100, 1e-6)
    assert (seen.layers, seen.capacity, seen.fill_ratio, seen.expected_lost) == (1, 100, 0, 0)
    items = fingerprints(701)
    seen.add_many(items[:100])
    assert seen.layers == 1
    assert not seen.add(items[5])
    assert seen.layers == 1
    seen.add_many(items)
    assert seen.layers == 4
    assert [geometry.capacity for geometry, _, _ in seen.dump_layers()] == [100, 200, 400, 800]
    assert seen.size_bytes == sum(len(bits) for _, _, bits in seen.dump_layers())
    assert 0 < seen.fill_ratio < 0.55


def test_a_filter_comes_back_from_its_layers() -> None:
    seen = GrowingBloomFilter(50, 1e-6)
    items = fingerprints(333)
    seen.add_many(items)
    again = GrowingBloomFilter.from_layers(50, 1e-6, seen.dump_layers())
    assert len(again) == 333
    assert again.estimated_error == seen.estimated_error
    assert again.dump_layers() == seen.dump_layers()
    assert not any(again.add_many(items))
    assert again.add(b"another")


def test_layers_of_another_size_are_refused() -> None:
    geometry, count, bits = GrowingBloomFilter(50, 1e-6).dump_layers()[0]
    with pytest.raises(ValueError, match="bytes for a layer"):
        GrowingBloomFilter.from_layers(50, 1e-6, [(geometry, count, bits[:-1])])


def test_a_capacity_that_memory_cannot_hold_is_refused_with_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bloom, "physical_memory_bytes", lambda: 1_000_000)
    with pytest.raises(SettingError, match=r"3,8\d\d,\d{3} bytes.*DEDUPE_URL_CAPACITY"):
        GrowingBloomFilter(1_000_000, 1e-6)
    GrowingBloomFilter(100_000, 1e-6)


def test_a_capacity_beyond_every_machine_is_refused() -> None:
    with pytest.raises(SettingError, match="bytes of memory"):
        GrowingBloomFilter(10**15, 1e-6)


@pytest.mark.parametrize(("capacity", "error_rate"), [(0, 0.1), (-1, 0.1), (10, 0), (10, 1), (10, -0.1)])
def test_parameters_that_no_filter_can_have_are_refused(capacity: int, error_rate: float) -> None:
    with pytest.raises(SettingError):
        GrowingBloomFilter(capacity, error_rate)


def test_order_does_not_matter_for_membership() -> None:
    items = fingerprints(500)
    shuffled = random.Random(1).sample(items, len(items))
    a, b = GrowingBloomFilter(1000, 1e-6), GrowingBloomFilter(1000, 1e-6)
    a.add_many(items)
    b.add_many(shuffled)
    assert a.dump_layers() == b.dump_layers()
