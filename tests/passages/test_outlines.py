from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe.passages.segment_layout import decode_outline, encode_outline
from scrapy_dedupe.passages.values import Outline


def outline(tokens: list[int], starts: list[int], ends: list[int]) -> Outline:
    return Outline(np.array(tokens, np.int64), np.array(starts, np.int64), np.array(ends, np.int64))


def test_the_bytes_of_an_outline() -> None:
    data = encode_outline(outline([0, 4, 300], [2, 30, 2000], [40, 70, 2045]))
    count, tokens = [3], [0, 4, 0xA8, 0x02]  # 0, + 4, + 296
    starts, lengths = [2, 28, 0xB2, 0x0F], [38, 40, 45]  # 2, + 28, + 1970
    assert data == bytes([*count, *tokens, *starts, *lengths])


def test_a_text_without_blots_has_an_outline_of_one_byte() -> None:
    assert encode_outline(outline([], [], [])) == b"\0"
    assert len(decode_outline(b"\0").token_starts) == 0


gaps = st.lists(st.tuples(*[st.integers(0, 1 << 40) | st.integers(0, 300)] * 3), max_size=200)


@given(gaps)
def test_an_outline_is_read_as_it_was_written(blots: list[tuple[int, int, int]]) -> None:
    steps = np.array(blots, np.int64).reshape(-1, 3)
    starts = np.cumsum(steps[:, 1])
    wanted = Outline(np.cumsum(steps[:, 0]), starts, starts + steps[:, 2])
    found = decode_outline(encode_outline(wanted))
    assert np.array_equal(found.token_starts, wanted.token_starts)
    assert np.array_equal(found.char_starts, wanted.char_starts)
    assert np.array_equal(found.char_ends, wanted.char_ends)


@pytest.mark.parametrize(
    ("tokens", "starts", "ends"), [([4, 0], [0, 9], [5, 12]), ([0, 4], [9, 0], [12, 5]), ([0], [9], [8])]
)
def test_an_outline_out_of_order_is_refused(tokens: list[int], starts: list[int], ends: list[int]) -> None:
    with pytest.raises(ValueError, match="in text order"):
        encode_outline(outline(tokens, starts, ends))


@given(st.binary(max_size=60))
@example(b"")
@example(b"\x80")
@example(b"\x01\x00\x00")
@example(b"\x01" + b"\xff" * 8 + b"\x7f" + b"\xff" * 8 + b"\x7f" + b"\xff" * 8 + b"\x7f")
@example(b"\xff" * 9 + b"\x01")
def test_any_bytes_are_an_outline_or_refused(data: bytes) -> None:
    try:
        found = decode_outline(data)
    except ValueError:
        return
    assert np.all(np.diff(found.token_starts, prepend=0) >= 0)
    assert np.all(np.diff(found.char_starts, prepend=0) >= 0)
    assert np.all(found.char_ends >= found.char_starts)
