from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.segment_layout import decode_outline, encode_outline
from scrapy_dedupe.passages.values import Outline


def outline(tokens: list[int], starts: list[int], ends: list[int]) -> Outline:
    return Outline(*(np.array(column, np.int64) for column in (tokens, starts, ends)))


def test_the_bytes_of_an_outline() -> None:
    data = encode_outline(outline([0, 4, 300], [2, 30, 2000], [40, 70, 2045]))
    # token starts 0, + 4, + 296; char starts 2, + 28, + 1970; lengths 38, 40, 45
    lowest, next_higher = [0, 4, 0x28, 2, 28, 0xB2, 38, 40, 45], [0, 0, 1, 0, 0, 7, 0, 0, 0]
    assert data == bytes([*lowest, *next_higher]) + bytes(18)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))))
def test_an_outline_is_read_as_it_was_written(blots: list[tuple[int, int, int]]) -> None:
    steps = np.array(blots, np.int64).reshape(-1, 3).T
    starts = np.cumsum(steps[1])
    wanted = Outline(np.cumsum(steps[0]), starts, starts + steps[2])
    found = decode_outline(encode_outline(wanted))
    assert np.array_equal(found.token_starts, wanted.token_starts)
    assert np.array_equal(found.char_starts, wanted.char_starts)
    assert np.array_equal(found.char_ends, wanted.char_ends)
