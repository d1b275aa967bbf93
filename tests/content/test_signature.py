from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_dedupe.content import signature
from scrapy_dedupe.content.signature import (
    band_probability,
    bands,
    base_hashes,
    min_equal,
    minhash,
    row_bytes,
    similarity,
)

WORD = 0xFFFFFFFF

GOLDEN_ROWS = [76713587, 157189853, 229499324]
GOLDEN_BAND = "ef42a2d2101d8c9e"


def base_hash(shingle: str) -> int:
    """The base hash as the docstring of the module defines it, with plain integers."""
    codes = [ord(character) for character in shingle.ljust(7, "\0")]

    def mix(value: int, shift: int) -> int:
        return value ^ (value >> shift)

    pairs = [mix((x * 0x9E3779B1 + y * 0x85EBCA77) & WORD, 15) for x, y in itertools.pairwise(codes)]
    fours = [mix((pairs[i] * 0xC2B2AE3D + pairs[i + 2]) & WORD, 13) for i in range(4)]
    return (fours[0] * 0x27D4EB2F + fours[3]) & WORD


def with_datasketch(hashes: list[int]) -> np.ndarray:
    sketch = MinHash(num_perm=128, hashfunc=int)
    sketch.update_batch(hashes)
    return sketch.hashvalues


text = st.text(st.characters(exclude_categories=()), min_size=1, max_size=60)


@given(text)
def test_base_hashes_are_those_of_the_documented_formula(text: str) -> None:
    shingles = [text[i : i + 7] for i in range(max(1, len(text) - 6))]
    assert base_hashes(text).tolist() == [base_hash(shingle) for shingle in shingles]


@given(text)
@settings(max_examples=40)
def test_rows_are_those_of_datasketch(text: str) -> None:
    assert np.array_equal(minhash(text), with_datasketch(base_hashes(text).tolist()))


@pytest.mark.parametrize("length", [signature._CHUNK + extra for extra in (-1, 0, 1, 5, 6, 7, 8)] + [20_000])
def test_rows_of_long_texts_are_those_of_datasketch(length: int) -> None:
    text = "".join(random.Random(length).choices("abcdefghij klmnop\u00e9\u4e00", k=length))
    hashes = base_hashes(text)
    assert len(hashes) == length - 6
    assert np.array_equal(minhash(text), with_datasketch(hashes.tolist()))


def test_datasketch_opens_and_compares_our_signatures() -> None:
    one, other = ("".join(random.Random(seed).choices("abcd efgh", k=3000)) for seed in (1, 2))
    mixed = one[:2000] + other[2000:]
    sketches = [MinHash(hashvalues=minhash(text), scheme="affine32") for text in (one, mixed)]
    shingles = [{text[i : i + 7] for i in range(len(text) - 6)} for text in (one, mixed)]
    jaccard = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
    assert sketches[0].jaccard(sketches[1]) == pytest.approx(jaccard, abs=0.12)


def test_a_short_text_is_one_shingle() -> None:
    assert len(base_hashes("abc")) == len(base_hashes("abcdefg")) == 1
    assert not np.array_equal(minhash("abc"), minhash("abd"))


def test_order_of_shingles_does_not_matter_but_order_of_characters_does() -> None:
    assert base_hashes("abcdefg") != base_hashes("gfedcba")
    assert np.array_equal(minhash("abcdefgabcdefgabcdefg"), minhash("abcdefgabcdefgabcdefgabcdefg"))


def test_base_hashes_of_similar_shingles_do_not_collide() -> None:
    numbers = [f"id{number:05}" for number in range(100_000)]
    hashes = {int(base_hashes(shingle)[0]) for shingle in numbers[::10]}
    assert len(hashes) >= 9_998  # 0.01 collisions are expected


@given(st.integers(0, 128))
def test_similarity_grows_with_equal_bytes(equal: int) -> None:
    assert 0 <= similarity(equal) <= 1
    assert equal == 0 or similarity(equal) >= similarity(equal - 1)


@given(st.floats(0.5, 1))
def test_min_equal_is_the_smallest_number_that_reaches_the_threshold(threshold: float) -> None:
    equal = min_equal(threshold)
    assert similarity(equal) >= threshold
    assert similarity(equal - 1) < threshold


def test_estimate_from_bytes_is_unbiased() -> None:
    words = random.Random(3)
    errors = []
    for _ in range(60):
        common = "".join(words.choices("abcdefgh ", k=2000))
        one, other = (common + "".join(words.choices("ijklmnop ", k=600)) for _ in range(2))
        shingles = [{text[i : i + 7] for i in range(len(text) - 6)} for text in (one, other)]
        jaccard = len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])
        rows = [row_bytes(minhash(text)) for text in (one, other)]
        errors.append(similarity(sum(x == y for x, y in zip(*rows, strict=True))) - jaccard)
    assert abs(sum(errors) / len(errors)) < 0.02


def test_bands_depend_on_their_number_and_namespace() -> None:
    rows = np.zeros(128, dtype=np.uint32)
    found = bands(rows, "text/1")
    assert len(found) == len(set(found)) == 16
    assert {len(band) for band in found} == {8}
    assert not set(found) & set(bands(rows, "html/1"))


def test_a_band_is_shared_exactly_when_its_eight_rows_are() -> None:
    rows = minhash("the quick brown fox jumps over the lazy dog")
    changed = rows.copy()
    changed[17] ^= 1
    same = [one == other for one, other in zip(bands(rows, "text/1"), bands(changed, "text/1"), strict=True)]
    assert same == [band != 2 for band in range(16)]


def test_format_of_keys_does_not_change() -> None:
    """These values are in stores on disk: another value needs another version."""
    rows = minhash("To be, or not to be, that is the question.")
    assert base_hashes("To be, ").tolist() == [base_hash("To be, ")]
    assert rows[:3].tolist() == GOLDEN_ROWS
    assert bands(rows, "text/1")[0].hex() == GOLDEN_BAND
    assert row_bytes(rows)[:3] == bytes(row & 255 for row in GOLDEN_ROWS)


def test_candidates_at_the_threshold_are_found() -> None:
    assert band_probability(0.85) > 0.99
    assert band_probability(0.3) < 0.01
