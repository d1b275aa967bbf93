"""MinHash signatures, and the bands under which they are found again.

**Shingles** are all runs of 7 code points; a shorter text is one shingle. No Python object is made for one.

**Base hash** of a shingle of the code points c0 ... c6, all arithmetic modulo 2^32::

    p(x, y)  = mix15(x * 0x9E3779B1 + y * 0x85EBCA77)     for the 6 neighbouring pairs
    q(i)     = mix13(p(i) * 0xC2B2AE3D + p(i + 2))        covers c(i) ... c(i + 3)
    base     = q(0) * 0x27D4EB2F + q(3)                   covers c0 ... c6
    mixN(h)  = h ^ (h >> N)

A text of fewer than 7 code points is filled up with zeros at its end.

**Rows**: 128 of them, those of datasketch 2.0's default scheme (``affine32``, seed 1) for these base hashes:
the base hash goes through the finaliser of MurmurHash3, then row k is the minimum of a_k * h + b_k over all
shingles. datasketch can therefore open and compare our signatures. The share of equal rows of two signatures
estimates the Jaccard similarity of their shingle sets (Broder, *On the resemblance and containment of
documents*, 1997).

**Bands**: 16 of 8 rows, each hashed to 64 bits together with its number and a namespace. Two texts of
Jaccard similarity s share a band with probability 1 - (1 - s^8)^16: 0.994 at s = 0.85.

**Row bytes**: the lowest byte of each row, 128 bytes. They decide whether two texts that share a band are
near; different rows agree in one byte by chance with probability 1/256, which :func:`similarity` corrects
for (Li and Koenig, *b-bit minwise hashing*, 2010).
"""

from __future__ import annotations

import math
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
from datasketch import MinHash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint32]

ROWS: Final = 128
BANDS: Final = 16
SHINGLE_SIZE: Final = 7
VERSION: Final = "affine32/1"

_ROWS_PER_BAND: Final = ROWS // BANDS
_CHANCE: Final = 1 / 256

# Shingles that are worked on at once.
_CHUNK: Final = 8_192

# 32-bit numbers in the block of rows times shingles: it has to stay in the cache, and numpy's calls to be few.
_BLOCK: Final = 1 << 17

# From this many base hashes on, it pays to sort them and leave out those that repeat.
_WORTH_SORTING: Final = 256


def minhash(text: str) -> Hashes:
    """The signature of *text*: 128 unsigned 32-bit rows.

    >>> rows = minhash("To be, or not to be, that is the question.")
    >>> rows.shape, rows.dtype.name, int(rows[0])
    ((128,), 'uint32', 76713587)
    """
    multipliers, increments = _permutations()
    rows = np.full(ROWS, 0xFFFFFFFF, dtype=np.uint32)
    for hashes in _base_hash_chunks(text):
        mixed = _without_repeats(_finalised(hashes))
        at_once = min(ROWS, max(1, _BLOCK // len(mixed)))
        block = np.empty((at_once, len(mixed)), dtype=np.uint32)
        for first in range(0, ROWS, at_once):
            some = slice(first, min(ROWS, first + at_once))
            part = block[: some.stop - some.start]
            np.multiply(multipliers[some], mixed, out=part)
            np.add(part, increments[some], out=part)
            np.minimum(rows[some], part.min(axis=1), out=rows[some])
    return rows


def base_hashes(text: str) -> Hashes:
    """The base hash of every shingle of *text*, in its order."""
    return np.concatenate(list(_base_hash_chunks(text)))


def bands(rows: Hashes, namespace: str) -> list[bytes]:
    """The 16 band hashes of a signature, 8 bytes each.

    Equal bands of texts in different namespaces differ; a namespace has at most 16 bytes in UTF-8.
    """
    data = rows.astype("<u4").tobytes()
    width = 4 * _ROWS_PER_BAND
    return [
        blake2b(
            data[width * band : width * (band + 1)],
            digest_size=8,
            salt=bytes([band]),
            person=namespace.encode(),
        ).digest()
        for band in range(BANDS)
    ]


def row_bytes(rows: Hashes) -> bytes:
    """The lowest byte of each row: 128 bytes."""
    return rows.astype(np.uint8).tobytes()


def similarity(equal: int) -> float:
    """The estimated Jaccard similarity of two texts that agree in *equal* of their 128 row bytes.

    >>> similarity(128), similarity(0), round(similarity(109), 3)
    (1.0, 0.0, 0.851)
    """
    return max(0.0, (equal / ROWS - _CHANCE) / (1 - _CHANCE))


def min_equal(threshold: float) -> int:
    """The smallest number of equal row bytes whose :func:`similarity` reaches *threshold*.

    >>> min_equal(0.85), min_equal(1.0)
    (109, 128)
    """
    return next((equal for equal in range(ROWS) if similarity(equal) >= threshold), ROWS)


def band_probability(jaccard: float) -> float:
    """The probability that two texts of that similarity share at least one band.

    >>> round(band_probability(0.85), 3), round(band_probability(0.5), 3)
    (0.994, 0.061)
    """
    return 1 - math.pow(1 - math.pow(jaccard, _ROWS_PER_BAND), BANDS)


@cache
def _permutations() -> tuple[Hashes, Hashes]:
    multipliers, increments = MinHash(num_perm=ROWS, scheme="affine32").permutations
    return multipliers[:, None], increments[:, None]


def _base_hash_chunks(text: str) -> Iterator[Hashes]:
    last = max(1, len(text) - SHINGLE_SIZE + 1)
    for first in range(0, last, _CHUNK):
        part = text[first : first + _CHUNK + SHINGLE_SIZE - 1].ljust(SHINGLE_SIZE, "\0")
        yield _base_hashes(np.frombuffer(part.encode("utf-32-le", "surrogatepass"), dtype="<u4"))


def _base_hashes(codes: Hashes) -> Hashes:
    pairs = codes[:-1] * np.uint32(0x9E3779B1)
    pairs += codes[1:] * np.uint32(0x85EBCA77)
    pairs ^= pairs >> np.uint32(15)
    fours = pairs[:-2] * np.uint32(0xC2B2AE3D)
    fours += pairs[2:]
    fours ^= fours >> np.uint32(13)
    hashes = fours[:-3] * np.uint32(0x27D4EB2F)
    hashes += fours[3:]
    return hashes.astype(np.uint32, copy=False)


def _finalised(hashes: Hashes) -> Hashes:
    # MurmurHash3's 32-bit finaliser (Appleby, 2011), which datasketch applies to every base hash.
    mixed = hashes ^ (hashes >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def _without_repeats(hashes: Hashes) -> Hashes:
    if len(hashes) < _WORTH_SORTING:
        return hashes
    hashes.sort()
    is_first = np.empty(len(hashes), dtype=bool)
    is_first[0] = True
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]
