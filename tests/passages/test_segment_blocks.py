from __future__ import annotations

import zlib
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages.packing import BLOCK_SIZE, BlockChecksums, CheckedBlocks, block_count


def refuse() -> NoReturn:
    raise StoreRefused("damaged")


def checksums_of(data: bytes) -> list[int]:
    return [zlib.crc32(data[start : start + BLOCK_SIZE]) for start in range(0, len(data), BLOCK_SIZE)]


@given(st.lists(st.sampled_from([0, 1, 7, 4095, 4096, 4097, 9000]), max_size=8))
def test_the_checksums_do_not_depend_on_the_pieces(sizes: list[int]) -> None:
    data = bytes(place * 7 % 251 for place in range(sum(sizes)))
    checksums = BlockChecksums()
    start = 0
    for size in sizes:
        checksums.add(data[start : start + size])
        start += size
    assert checksums.finished().tolist() == checksums_of(data)
    assert len(checksums.finished()) == block_count(len(data))


@pytest.mark.parametrize(
    ("start", "stop", "is_refused"),
    [
        (0, 8192, False),
        (0, 8193, True),
        (8192, 8193, True),
        (12287, 12288, True),
        (12288, 16384, False),
        (0, 20000, True),
        (9000, 9000, False),
    ],
)
def test_a_block_is_refused_exactly_where_a_byte_of_it_is_read(
    start: int, stop: int, is_refused: bool
) -> None:
    data = bytearray(20_000)
    checksums = np.array(checksums_of(bytes(data)), np.uint32)
    data[10_000] ^= 1  # in the third block, from 8192 to 12287
    blocks = CheckedBlocks(memoryview(data), checksums, refuse)
    starts, stops = np.array([0, start]), np.array([10, stop])
    if is_refused:
        for _ in range(2):  # and is not taken for sound afterwards
            with pytest.raises(StoreRefused):
                blocks.check(starts, stops)
    else:
        blocks.check(starts, stops)
