from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import sampled

from scrapy_dedupe.passages.packing import (
    MAX_WIDTH,
    PackedArray,
    pack,
    pack_words,
    packed_size,
)


def numbers(width: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, (1 << width) - 1), max_size=300)


packed_numbers = st.integers(0, MAX_WIDTH).flatmap(lambda width: st.tuples(st.just(width), numbers(width)))


def test_the_lowest_bit_comes_first() -> None:
    # 1, 2 and 3 in 5 bits each: 00011 00010 00001, read from the right
    assert pack(np.array([1, 2, 3], np.uint64), 5) == bytes([0b01000001, 0b00001100]) + bytes(6) + bytes(8)


@given(packed_numbers)
def test_packed_numbers_are_the_bits_of_one_large_number(case: tuple[int, list[int]]) -> None:
    width, values = case
    joined = sum(value << (place * width) for place, value in enumerate(values))
    data = pack(np.array(values, np.uint64), width)
    assert data == joined.to_bytes(packed_size(len(values), width), "little")


@given(packed_numbers, st.data())
def test_a_range_is_what_was_packed(case: tuple[int, list[int]], data: st.DataObject) -> None:
    width, values = case
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    packed = PackedArray(pack(np.array(values, np.uint64), width), width, len(values))
    assert packed.range(start, stop).tolist() == values[start:stop]


@pytest.mark.parametrize("width", sampled(range(MAX_WIDTH + 1), [0, 1, 13, 32, MAX_WIDTH]))
@pytest.mark.parametrize("start", [0, 1, 7, 8, 13])
def test_long_ranges_are_read_from_any_place(width: int, start: int) -> None:
    values = np.random.default_rng(width).integers(0, 1 << width, 20_000, dtype=np.uint64)
    packed = PackedArray(pack(values, width), width, len(values))
    for stop in (len(values), len(values) - 1, len(values) - 9):
        assert np.array_equal(packed.range(start, stop), values[start:stop])


@given(packed_numbers.filter(lambda case: bool(case[1])), st.data())
def test_gathered_numbers_come_in_the_order_asked_for(
    case: tuple[int, list[int]], data: st.DataObject
) -> None:
    width, values = case
    positions = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=50))
    packed = PackedArray(pack(np.array(values, np.uint64), width), width, len(values))
    found = packed.gather(np.array(positions, np.int64))
    assert found.tolist() == [values[position] for position in positions]


@pytest.mark.parametrize("width", [1, 13, 36, 57])
def test_multiples_of_64_numbers_can_be_packed_by_pieces(width: int) -> None:
    values = np.random.default_rng(1).integers(0, 1 << width, 1000, dtype=np.uint64)
    pieces = [
        pack_words(values[:64], width),
        pack_words(values[64:640], width),
        pack_words(values[640:], width),
    ]
    assert b"".join([*pieces, bytes(8)]) == pack(values, width)


def test_a_number_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="8 does not fit 3 bits"):
        pack(np.array([7, 8], np.uint64), 3)


@pytest.mark.parametrize("width", [-1, 58, 64])
def test_an_impossible_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="the width must be from 0 to 57 bits"):
        pack(np.zeros(1, np.uint64), width)


def test_a_buffer_that_is_too_short_is_refused() -> None:
    data = pack(np.arange(100, dtype=np.uint64), 20)
    with pytest.raises(ValueError, match="do not hold 100 numbers of 20 bits"):
        PackedArray(data[:-1], 20, 100)
    with pytest.raises(ValueError, match="is outside of the 100 numbers"):
        PackedArray(data, 20, 100).range(50, 101)
