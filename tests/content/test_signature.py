from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.content import signature
from scrapy_dedupe.content.banding import Banding
from scrapy_dedupe.content.signature import (
    as_minhash,
    band_hashes,
    base_hashes,
    min_equal,
    minhash,
    row_bytes,
    rows_of,
    shingle_hashes,
    similarity,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

WORD = 0xFFFFFFFF
DEFAULT = Banding(16, 8)

GOLDEN_ROWS = [76713587, 157189853, 229499324]
GOLDEN_BAND = "ef42a2d2101d8c9e"
GOLDEN_BASE_HASHES = {
    2: 0xFB71414C,
    5: 0x27A91182,
    7: 0x3C2E70A3,
    8: 0xFBE4555B,
    13: 0xB97020B2,
    64: 0x7C429694,
}
TEXT = "To be, or not to be, that is the question."


def mix(value: int, bits: int) -> int:
    return value ^ (value >> bits)


def run_hash(codes: list[int]) -> int:
    """The hash of a run whose length is a power of two, as the docstring of the module defines it."""
    if len(codes) == 2:
        return mix((codes[0] * 0x9E3779B1 + codes[1] * 0x85EBCA77) & WORD, 15)
    half = len(codes) // 2
    return mix((run_hash(codes[:half]) * 0xC2B2AE3D + run_hash(codes[half:])) & WORD, 13)


def base_hash(shingle: str, size: int) -> int:
    """The base hash of a shingle, with plain integers."""
    codes = [ord(character) for character in shingle.ljust(size, "\0")]
    width = 1 << (size.bit_length() - 1)
    if width == size:
        return run_hash(codes)
    return (run_hash(codes[:width]) * 0x27D4EB2F + run_hash(codes[-width:])) & WORD


def base_hash_of_seven(shingle: str) -> int:
    """The base hash of the default size, written out as in the first version of the package."""
    codes = [ord(character) for character in shingle.ljust(7, "\0")]
    pairs = [mix((x * 0x9E3779B1 + y * 0x85EBCA77) & WORD, 15) for x, y in itertools.pairwise(codes)]
    fours = [mix((pairs[i] * 0xC2B2AE3D + pairs[i + 2]) & WORD, 13) for i in range(4)]
    return (fours[0] * 0x27D4EB2F + fours[3]) & WORD


def finalised(value: int) -> int:
    value = mix(value, 16) * 0x85EBCA6B & WORD
    value = mix(value, 13) * 0xC2B2AE35 & WORD
    return mix(value, 16)


def shingles_of(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(max(1, len(text) - size + 1))]


def with_datasketch(hashes: list[int], num_perm: int = 128) -> np.ndarray:
    sketch = MinHash(num_perm=num_perm, hashfunc=int)
    sketch.update_batch(hashes)
    return sketch.hashvalues


def random_text(seed: int, length: int, letters: str = "abcdefghij klmnopé一") -> str:
    return "".join(random.Random(seed).choices(letters, k=length))


def hashes_of(shingles: Iterable[str], size: int) -> set[int]:
    return set(base_hashes("".join(shingles), size)[::size].tolist())


def jaccard(one: str, other: str, size: int = 7) -> float:
    shingles = [set(shingles_of(text, size)) for text in (one, other)]
    return len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])


text = st.text(st.characters(exclude_categories=()), min_size=1, max_size=90)
size = st.integers(2, 64)
num_perm = st.integers(16, 512)


# Shingles


@given(text, size)
def test_base_hashes_are_those_of_the_documented_formula(text: str, size: int) -> None:
    assert base_hashes(text, size).tolist() == [base_hash(item, size) for item in shingles_of(text, size)]


@given(text)
def test_base_hashes_of_seven_code_points_are_those_of_the_first_version(text: str) -> None:
    assert base_hashes(text).tolist() == [base_hash_of_seven(item) for item in shingles_of(text, 7)]


@given(text, size)
def test_shingle_hashes_are_finalised_sorted_and_each_once(text: str, size: int) -> None:
    wanted = sorted({finalised(base_hash(shingle, size)) for shingle in shingles_of(text, size)})
    assert shingle_hashes(text, size).tolist() == wanted


@pytest.mark.parametrize("size", [2, 3, 7, 8, 33, 64])
@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 7, 63, 64, 16_384])
def test_where_a_text_is_cut_for_work_is_not_seen(size: int, extra: int) -> None:
    text = random_text(extra, signature._CHUNK + extra)
    hashes = base_hashes(text, size)
    assert len(hashes) == len(text) - size + 1
    around = range(signature._CHUNK - 70, min(len(hashes), signature._CHUNK + 70))
    assert [int(hashes[i]) for i in around] == [base_hash(text[i : i + size], size) for i in around]


@pytest.mark.parametrize("size", [2, 7, 64])
def test_a_text_that_is_shorter_than_a_shingle_is_one(size: int) -> None:
    assert len(shingle_hashes("a", size)) == 1
    assert not np.array_equal(minhash("a", size), minhash("b", size))


def test_an_empty_text_has_no_shingles() -> None:
    assert len(shingle_hashes("")) == len(base_hashes("")) == 0
    assert minhash("").tolist() == [WORD] * 128


def test_order_of_shingles_does_not_matter_but_order_of_characters_does() -> None:
    assert base_hashes("abcdefg") != base_hashes("gfedcba")
    assert np.array_equal(minhash("abcdefgabcdefgabcdefg"), minhash("abcdefgabcdefgabcdefgabcdefg"))


@pytest.mark.parametrize("size", [7, 8, 9, 16, 33, 64])
def test_base_hashes_of_similar_shingles_do_not_collide(size: int) -> None:
    """30,000 numbers, filled up on both sides: 0.1 collisions are expected of a random function."""
    numbers = {f"{number:05}".center(size, "x") for number in range(30_000)}
    assert {len(number) for number in numbers} == {size}
    assert len(numbers) - len(hashes_of(numbers, size)) <= 3


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_base_hashes_of_short_shingles_do_not_collide(size: int) -> None:
    shingles = {
        "".join(item) for item in itertools.islice(itertools.product("ab 01é一", repeat=size), 20_000)
    }
    assert len(shingles) - len(hashes_of(shingles, size)) <= 3


@pytest.mark.parametrize("size", [-1, 0, 1, 65])
def test_a_shingle_size_that_is_not_allowed_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"The shingle size is {size}. Allowed: 2 to 64"):
        shingle_hashes("text", size)


# Rows


@given(text, size, num_perm)
@settings(max_examples=examples(60))
def test_rows_are_those_of_datasketch(text: str, size: int, num_perm: int) -> None:
    wanted = with_datasketch(base_hashes(text, size).tolist(), num_perm)
    assert np.array_equal(minhash(text, size, num_perm), wanted)


@pytest.mark.parametrize("num_perm", [16, 100, 128, 512])
@pytest.mark.parametrize("length", [255, 262, 263, 600, 5_000, 16_390, 16_391, 40_000])
def test_rows_of_long_texts_are_those_of_datasketch(length: int, num_perm: int) -> None:
    text = random_text(length, length)
    assert np.array_equal(minhash(text, 7, num_perm), with_datasketch(base_hashes(text).tolist(), num_perm))


@given(st.lists(st.integers(0, WORD), max_size=400), st.lists(st.integers(0, WORD), max_size=400), num_perm)
@settings(max_examples=examples(40))
def test_minima_of_two_signatures_are_the_signature_of_the_union(
    one: list[int], other: list[int], num_perm: int
) -> None:
    rows = [rows_of(np.array(hashes, dtype=np.uint32), num_perm) for hashes in (one, other, one + other)]
    assert np.array_equal(np.minimum(rows[0], rows[1]), rows[2])


def test_rows_need_not_be_given_in_order_or_once() -> None:
    hashes = shingle_hashes(random_text(1, 2_000))
    shuffled = np.random.default_rng(1).permutation(np.concatenate([hashes, hashes]))
    assert np.array_equal(rows_of(shuffled), rows_of(hashes))


def test_hashes_that_are_given_are_left_as_they_are() -> None:
    hashes = shingle_hashes(random_text(1, 2_000))
    before = hashes.copy()
    hashes.flags.writeable = False
    rows_of(hashes)
    assert np.array_equal(hashes, before)


@pytest.mark.parametrize("number", [15, 513, 0])
def test_a_number_of_rows_that_is_not_allowed_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"The number of rows is {number}. Allowed: 16 to 512"):
        rows_of(shingle_hashes("text"), number)


@pytest.mark.parametrize("length", [100, 5_000])
def test_the_buffers_of_numpy_are_as_before(length: int) -> None:
    before = np.setbufsize(4_096)
    try:
        minhash(random_text(1, length))
        assert np.getbufsize() == 4_096
    finally:
        np.setbufsize(before)


def test_a_signature_is_its_own_and_not_overwritten_by_the_next() -> None:
    texts = [random_text(seed, 3_000) for seed in range(3)]
    kept = [(minhash(text), shingle_hashes(text), base_hashes(text)) for text in texts]
    for text, (rows, hashes, bases) in zip(texts, kept, strict=True):
        assert np.array_equal(rows, minhash(text))
        assert np.array_equal(hashes, shingle_hashes(text))
        assert np.array_equal(bases, base_hashes(text))


def test_threads_do_not_disturb_each_other() -> None:
    texts = [random_text(seed, 6_000) for seed in range(4)]
    wanted = [minhash(text) for text in texts]
    right = [False] * len(texts)

    def work(number: int) -> None:
        right[number] = all(np.array_equal(minhash(texts[number]), wanted[number]) for _ in range(60))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(right)


def test_datasketch_opens_and_compares_our_signatures() -> None:
    one, other = (random_text(seed, 3_000, "abcd efgh") for seed in (1, 2))
    mixed = one[:2000] + other[2000:]
    sketches = [as_minhash(minhash(text)) for text in (one, mixed)]
    assert sketches[0].jaccard(sketches[1]) == pytest.approx(jaccard(one, mixed), abs=0.12)


# Row bytes and the estimate


@given(num_perm, st.data())
def test_similarity_grows_with_equal_bytes(num_perm: int, data: st.DataObject) -> None:
    equal = data.draw(st.integers(1, num_perm))
    assert 0 <= similarity(equal - 1, num_perm) <= similarity(equal, num_perm) <= 1


@given(st.floats(0.5, 1), num_perm)
def test_min_equal_is_the_smallest_number_that_reaches_the_threshold(threshold: float, num_perm: int) -> None:
    equal = min_equal(threshold, num_perm)
    assert similarity(equal, num_perm) >= threshold
    assert similarity(equal - 1, num_perm) < threshold


@pytest.mark.parametrize(("size", "num_perm"), [(7, 128), (4, 128), (12, 128), (7, 300)])
def test_estimate_from_bytes_is_unbiased(size: int, num_perm: int) -> None:
    words = random.Random(3)
    errors = []
    for _ in range(60):
        common = "".join(words.choices("abcdefgh ", k=2000))
        one, other = (common + "".join(words.choices("ijklmnop ", k=600)) for _ in range(2))
        rows = [row_bytes(minhash(text, size, num_perm)) for text in (one, other)]
        equal = sum(x == y for x, y in zip(*rows, strict=True))
        errors.append(similarity(equal, num_perm) - jaccard(one, other, size))
    assert abs(sum(errors) / len(errors)) < 0.02


# Bands


def test_bands_depend_on_their_number_and_namespace() -> None:
    rows = np.zeros(512, dtype=np.uint32)
    found = band_hashes(rows, Banding(512, 1), "text/1")
    assert len(found) == len(set(found)) == 512
    assert {len(band) for band in found} == {8}
    assert not set(found) & set(band_hashes(rows, Banding(512, 1), "html/1"))


@given(st.integers(1, 128), st.data())
@settings(max_examples=examples(40))
def test_a_band_is_shared_exactly_when_all_its_rows_are(rows_per_band: int, data: st.DataObject) -> None:
    banding = Banding(128 // rows_per_band, rows_per_band)
    rows = minhash("the quick brown fox jumps over the lazy dog")
    changed = rows.copy()
    row = data.draw(st.integers(0, 127))
    changed[row] ^= 1
    pairs = zip(band_hashes(rows, banding, "text/1"), band_hashes(changed, banding, "text/1"), strict=True)
    same = [one == other for one, other in pairs]
    # The last rows may be in no band.
    assert same == [band != row // rows_per_band for band in range(banding.bands)]


def test_bands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="17 bands of 8 rows do not fit into 128 rows"):
        band_hashes(minhash("text"), Banding(17, 8), "text/1")


def test_format_of_keys_does_not_change() -> None:
    """These values are in stores on disk: another value needs another version."""
    rows = minhash(TEXT)
    assert rows[:3].tolist() == GOLDEN_ROWS
    assert band_hashes(rows, DEFAULT, "text/1")[0].hex() == GOLDEN_BAND
    assert row_bytes(rows)[:3] == bytes(row & 255 for row in GOLDEN_ROWS)
    assert {size: int(base_hashes(TEXT, size)[0]) for size in GOLDEN_BASE_HASHES} == GOLDEN_BASE_HASHES
