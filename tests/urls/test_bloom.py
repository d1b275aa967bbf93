from __future__ import annotations

import hashlib
import math
import random
import struct
from dataclasses import replace

import pytest
from bitarray import bitarray
from hypothesis import given, settings
from hypothesis import strategies as st
from pybloom_live import BloomFilter
from sampling import examples, sampled

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls import bloom
from scrapy_dedupe.urls.bloom import (
    Geometry,
    GrowingBloomFilter,
    layer_capacity,
    layer_geometry,
    layer_share,
    narrowest_slice,
    optimal_bits,
)


def fingerprints(count: int, salt: str = "") -> list[bytes]:
    return [hashlib.sha1(f"{salt}{number}".encode()).digest() for number in range(count)]


def layers_of(bloom: GrowingBloomFilter) -> list[tuple[Geometry, int, bytes]]:
    return [(geometry, count, b"".join(parts)) for geometry, count, parts in bloom.dump_layers()]


def test_a_fingerprint_is_new_once() -> None:
    seen = GrowingBloomFilter(1000, 1e-6)
    assert seen.add(b"one")
    assert not seen.add(b"one")
    assert b"one" in seen
    assert b"two" not in seen
    assert len(seen) == 1


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=400))
@settings(max_examples=examples(50), deadline=None)
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


@pytest.mark.parametrize("capacity", [1, 10_000])
def test_fingerprints_are_added_together_unless_one_is_known(capacity: int) -> None:
    seen = GrowingBloomFilter(capacity, 1e-6)
    seen.add_many([b"plain", b"first"])
    assert not seen.add_all_unless(b"plain", [b"a", b"b"])
    assert not seen.add_all_unless(b"other", [b"first", b"a"])
    assert not any(item in seen for item in (b"a", b"b", b"other"))
    assert seen.add_all_unless(b"other", [b"a", b"first", b"b"])
    assert all(item in seen for item in (b"a", b"b"))
    assert b"other" not in seen
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("capacity", "error_rate", "probes"),
    sampled(
        [(500, 0.01, 20_000), (500, 0.001, 100_000), (1_500, 0.01, 20_000), (1_500, 0.001, 100_000)],
        [(500, 0.001, 100_000), (1_500, 0.01, 20_000)],
    ),
)
def test_the_error_rate_holds_up_to_64_times_the_first_capacity(
    capacity: int, error_rate: float, probes: int
) -> None:
    seen = GrowingBloomFilter(capacity, error_rate)
    items = fingerprints(capacity * 64)
    others = fingerprints(probes, "other")
    allowed = error_rate * probes
    added = lost = 0
    # A filter errs most where its last layer is full: at 1, 3, 7 ... 63 times the first capacity.
    for factor in (1, 3, 15, 63, 64):
        lost += seen.add_many(items[added : capacity * factor]).count(False)
        added = capacity * factor
        wrong = sum(item in seen for item in others)
        # Four standard deviations of a binomial count. The first layer alone uses up most of 0.7 of the rate: with far
        # fewer errors than that the probes would tell nothing.
        assert 0.55 * allowed - 4 * math.sqrt(0.7 * allowed) <= wrong <= allowed + 4 * math.sqrt(allowed)
        assert seen.figures().estimated_error <= error_rate
        expected = seen.figures().estimated_error * probes
        assert abs(wrong - expected) <= 5 * math.sqrt(expected)
    assert seen.layers == 7
    assert 0 < lost <= error_rate * added + 4 * math.sqrt(error_rate * added)


@given(
    st.integers(1, 3_000_000) | st.integers(5_000, 30_000),
    st.floats(-9, -0.1).map(lambda exponent: 10**exponent),
)
@settings(deadline=None, max_examples=examples(50))
def test_the_full_layers_of_64_times_the_first_capacity_add_up_to_no_more_than_the_error_rate(
    capacity: int, error_rate: float
) -> None:
    right = 1.0
    for number in range(7):
        holds = layer_capacity(capacity, number)
        right *= 1 - layer_geometry(holds, layer_share(error_rate, number)).error_at(holds)
    assert 1 - right <= error_rate


@given(
    st.integers(1, 400),
    st.floats(-6, -0.05).map(lambda exponent: 10**exponent) | st.sampled_from([0.01, 0.001, 1e-6]),
    st.integers(1, 64),
    st.integers(0, 2**32),
)
@settings(max_examples=examples(60))
def test_the_bits_that_are_set_keep_the_error_rate_at_any_size(
    capacity: int, error_rate: float, factor: int, seed: int
) -> None:
    seen, draw = GrowingBloomFilter(capacity, error_rate), random.Random(seed)
    for _ in range(capacity * factor):
        seen.add(draw.randbytes(8))
    # Each layer as a plain product of its fills, whatever the filter says of itself.
    total = 0.0
    for number, (geometry, _, data) in enumerate(layers_of(seen)):
        bits = bitarray(endian="little")
        bits.frombytes(data)
        width = geometry.slice_bits
        fills = [bits.count(1, start, start + width) / width for start in range(0, geometry.bits, width)]
        assert math.prod(fills) <= layer_share(error_rate, number) * (1 + 1e-9)
        total += math.prod(fills)
    assert total <= error_rate
    assert seen.figures().estimated_error <= error_rate


@pytest.mark.parametrize("error_rate", [0.01, 0.001, 1e-6])
def test_a_layer_of_the_least_default_capacity_is_filled_to_its_capacity(error_rate: float) -> None:
    for salt in range(5):
        seen = GrowingBloomFilter(10_000, error_rate)
        count = 0
        while seen.layers == 1:
            count += 1
            seen.add(b"%d %d" % (salt, count))
        # Those that the filter takes for seen are not in it.
        assert [held for _, held, _ in seen.dump_layers()] == [10_000, 1]


def test_a_layer_that_has_used_up_its_share_is_full_before_its_capacity() -> None:
    # As an earlier version sized it: for the expected number of bits, without room for chance.
    geometry = Geometry(2_000, 0.007, 7, 2_900)
    assert geometry.error_at(2_000) > 0.007
    seen = GrowingBloomFilter.from_layers(2_000, 0.01, [(geometry, 0, [bytes(geometry.size_bytes)])])
    seen.add_many(fingerprints(4_000))
    assert 1_500 < seen.dump_layers()[0][1] < 2_000
    assert seen.figures().estimated_error <= 0.01


def test_expected_lost_is_what_is_lost() -> None:
    lost = expected = 0.0
    for salt in range(6):
        seen = GrowingBloomFilter(2000, 0.02)
        items = fingerprints(20_000, f"{salt}-")
        lost += len(items) - sum(seen.add_many(items))
        expected += seen.figures().expected_lost
    assert abs(lost - expected) < 5 * math.sqrt(expected)


def test_the_bits_that_are_set_tell_the_error() -> None:
    geometry = Geometry(capacity=18_000, error_rate=0.01, hashes=7, slice_bits=26_000)
    seen = GrowingBloomFilter.from_layers(18_000, 0.01, [(geometry, 0, [bytes(geometry.size_bytes)])])
    seen.add_many(fingerprints(18_000))
    probes = 100_000
    wrong = sum(item in seen for item in fingerprints(probes, "x"))
    assert abs(wrong - probes * geometry.error_at(18_000)) < 5 * math.sqrt(wrong) + 0.02 * wrong
    assert seen.figures().estimated_error == pytest.approx(geometry.error_at(18_000), rel=0.05)


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
    seen = GrowingBloomFilter.from_layers(1000, 1e-12, [(geometry, 0, [bytes(geometry.size_bytes)])])
    seen.add(b"abc")
    digests = hashlib.blake2b(b"abc").digest() + hashlib.blake2b(b"abc", salt=b"\1" + bytes(15)).digest()
    words = struct.unpack(f"<{geometry.hashes}I", digests[: 4 * geometry.hashes])
    expected = {i * geometry.slice_bits + word % geometry.slice_bits for i, word in enumerate(words)}
    _, _, bits = layers_of(seen)[0]
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
    # Chance takes more room in a small filter.
    assert geometry.bits <= (1.1 + 2 / math.sqrt(capacity)) * optimal_bits(capacity, error_rate)


@given(st.integers(1000, 3_000_000), st.floats(-9, -0.1).map(lambda exponent: 10**exponent))
@settings(deadline=None)
def test_a_layer_with_fewer_hashes_would_be_too_large(capacity: int, error_rate: float) -> None:
    share = layer_share(error_rate, 0)
    geometry = layer_geometry(capacity, share)
    for hashes in range(max(1, geometry.hashes - 3), geometry.hashes):
        fewer = hashes * narrowest_slice(capacity, share, hashes)
        assert fewer > geometry.bits
        assert fewer > 1.06 * optimal_bits(capacity, error_rate)


@pytest.mark.parametrize(("error_rate", "most_bytes"), [(1e-6, 4_000_000), (0.01, 1_300_000)])
def test_a_filter_of_a_million_is_small(error_rate: float, most_bytes: int) -> None:
    seen = GrowingBloomFilter(1_000_000, error_rate)
    assert seen.size_bytes <= most_bytes
    assert sum(len(bits) for _, _, bits in layers_of(seen)) == seen.size_bytes


def test_a_crowded_layer_is_asked_for_all_of_its_bits() -> None:
    # Nine of ten bits are set: 17 % of the others have their first 16 bits, 9 % all 22.
    geometry = Geometry(1000, 0.2, 22, 434)
    seen = GrowingBloomFilter.from_layers(1000, 0.2, [(geometry, 0, [bytes(geometry.size_bytes)])])
    seen.add_many(fingerprints(1000))
    assert seen.figures().fill_ratio == pytest.approx(0.9, abs=0.01)
    others = fingerprints(2000, "others")
    found = [item in seen for item in others]
    assert found == [BloomFilter.__contains__(seen._newest, item) for item in others]
    assert 100 < sum(found) < 300
    assert seen.add_many(others[:1]) == [not found[0]]


@pytest.mark.parametrize("hashes", [1, 8, 9, 20])
def test_slices_of_8_mib_take_words_of_64_bits(hashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Positions need no bits, which would be gigabytes.
    monkeypatch.setattr(bloom, "bitarray", lambda _, endian: bitarray(endian=endian))
    width = (1 << 26) + 11
    layer = bloom._Layer(Geometry(10**9, 0.5, hashes, width))
    salts = [bytes([number]) + bytes(15) for number in range(3)]
    digests = b"".join(hashlib.blake2b(b"abc", salt=salt).digest() for salt in salts)
    words = struct.unpack(f"<{hashes}Q", digests[: 8 * hashes])
    assert layer.locate(b"abc")[1] == [number * width + word % width for number, word in enumerate(words)]


def test_a_filter_whose_first_layer_takes_several_digests_grows_and_forgets_nothing() -> None:
    # The geometry is stored with the bits, so it need not be one that would be chosen now.
    geometry = Geometry(6_000, 0.7e-6, 20, 9_000)
    seen = GrowingBloomFilter.from_layers(6_000, 1e-6, [(geometry, 0, [bytes(geometry.size_bytes)])])
    items = fingerprints(40_000)
    assert all(seen.add_many(items))
    assert seen.dump_layers()[0][0] == geometry
    assert seen.layers == 3
    assert not any(seen.add_many(items))
    assert all(item in seen for item in items)
    assert not any(item in seen for item in fingerprints(10_000, "other"))


def test_layers_double_and_the_size_is_that_of_their_bits() -> None:
    seen = GrowingBloomFilter(100, 1e-6)
    empty = seen.figures()
    assert (empty.layers, empty.capacity, empty.fill_ratio, empty.expected_lost) == (1, 100, 0, 0)
    items = fingerprints(701)
    seen.add_many(items[:100])
    assert seen.layers == 1
    assert not seen.add(items[5])
    assert seen.layers == 1
    seen.add_many(items)
    assert seen.layers == 4
    assert [geometry.capacity for geometry, _, _ in seen.dump_layers()] == [100, 200, 400, 800]
    assert seen.size_bytes == sum(len(bits) for _, _, bits in layers_of(seen))
    assert 0 < seen.figures().fill_ratio < 0.55


def test_a_filter_comes_back_from_its_layers() -> None:
    seen = GrowingBloomFilter(50, 1e-6)
    items = fingerprints(333)
    seen.add_many(items)
    again = GrowingBloomFilter.from_layers(50, 1e-6, seen.dump_layers())
    assert len(again) == 333
    assert again.figures().estimated_error == seen.figures().estimated_error
    assert layers_of(again) == layers_of(seen)
    assert not any(again.add_many(items))
    assert again.add(b"another")


def test_layers_of_another_size_are_refused() -> None:
    geometry, count, (bits,) = GrowingBloomFilter(50, 1e-6).dump_layers()[0]
    with pytest.raises(ValueError, match="bytes for a layer"):
        GrowingBloomFilter.from_layers(50, 1e-6, [(geometry, count, [bits[:-1]])])


def test_a_capacity_that_memory_cannot_hold_is_refused_with_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bloom, "memory_bytes", lambda: 1_000_000)
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
    assert layers_of(a) == layers_of(b)


def test_an_empty_filter_has_no_error_and_no_sign_before_it() -> None:
    assert str(GrowingBloomFilter(1_000, 1e-6).figures().estimated_error) == "0.0"


def test_the_errors_that_are_counted_at_63_times_the_first_capacity_are_within_the_rate() -> None:
    # Fingerprints that chance gives more bits than expected: sized for the expected number, the filter erred 1.02 %.
    seen = GrowingBloomFilter(1_000, 0.01)
    seen.add_many(b"0-%d" % number for number in range(63_000))
    assert seen.figures().estimated_error <= 0.01
    probes = 200_000
    assert sum(b"other %d" % number in seen for number in range(probes)) <= 0.01 * probes


@pytest.mark.parametrize("error_rate", [1e-2, 1e-6])
@pytest.mark.parametrize("held", [0, 1, 1_500, 2_000, 9_000])
def test_what_is_expected_is_what_is_counted(held: int, error_rate: float) -> None:
    seen = GrowingBloomFilter(2_000, error_rate)
    for number in range(held):
        seen.add(b"%d" % number)
    figures, counted = seen.expected_figures(), seen.figures()
    assert replace(figures, fill_ratio=0, estimated_error=0) == replace(
        counted, fill_ratio=0, estimated_error=0
    )
    assert (figures.seen, figures.capacity, figures.bytes) == (len(seen), 2_000, seen.size_bytes)
    assert figures.fill_ratio == pytest.approx(counted.fill_ratio, rel=0.02)
    # The product over all slices of a deviation of one percent in each.
    assert figures.estimated_error == pytest.approx(counted.estimated_error, rel=0.5)
    assert 0 <= figures.estimated_error <= error_rate
