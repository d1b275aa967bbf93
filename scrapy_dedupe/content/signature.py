"""MinHash signatures, and the band hashes that index them.

**Shingles** of size k are all runs of k code points. A shorter text is one shingle, padded with zeros at its end;
an empty text has no shingle. No Python object is created per shingle.

**Base hash** of the shingle c(0) ... c(k - 1), all arithmetic modulo 2^32. A run of w code points has the hash
h(w), for w a power of two::

    h2(i)     = mix15(c(i) * 0x9E3779B1 + c(i + 1) * 0x85EBCA77)
    h(2w)(i)  = mix13(h(w)(i) * 0xC2B2AE3D + h(w)(i + w))
    base      = h(w)(0) * 0x27D4EB2F + h(w)(k - w)      w: the largest power of two below k
    base      = h(k)(0)                                 if k is a power of two itself
    mixN(h)   = h ^ (h >> N)

**Shingle hash**: the base hash after the finaliser of MurmurHash3, which is one-to-one.

**Rows** are those of datasketch 2.0's default scheme (``affine32``, seed 1) for these base hashes: row j is the
minimum of a_j * h + b_j over all shingle hashes h. Therefore datasketch can read and compare these signatures
(:func:`as_minhash`). The a_j, made odd, and then the b_j come from numpy's ``RandomState``, whose numbers never
change. The b_j depend on the number of rows, so signatures with different numbers of rows cannot be compared. The
share of equal rows of two signatures estimates the Jaccard similarity of their shingle sets (Broder, *On the
resemblance and containment of documents*, 1997).

**Band hash**: consecutive rows, hashed to 64 bits together with the band's number and a namespace. The numbers of
bands and of rows per band are a :class:`~.banding.Banding`.

**Row bytes**: the lowest byte of each row. They decide whether two texts that share a band are near. The bytes of
different rows are equal by chance with probability 1/256, which :func:`similarity` corrects for (Li and Koenig,
*b-bit minwise hashing*, 2010).
"""

from __future__ import annotations

import threading
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from scrapy_dedupe import kernel

from .banding import CHANCE

if TYPE_CHECKING:
    from datasketch import MinHash
    from numpy.typing import NDArray

    from .banding import Banding

    Hashes = NDArray[np.uint32]

ROWS: Final = 128
SHINGLE_SIZE: Final = 7
# Raise this whenever the identity of a page changes: with the keys of an earlier version another page could be near.
# In version 2 the last bit of the key of a title was not 0.
VERSION: Final = "affine32/3"
EARLIER_VERSION: Final = "affine32/1"
"""Signatures without the identity of a page."""

SHINGLE_SIZES: Final = range(2, 65)
ROW_NUMBERS: Final = range(16, 513)

# The default seed of datasketch.
_SEED: Final = 1

_NOTHING: Final = 0xFFFFFFFF

# The number of shingles per step, and of 32-bit numbers in a block of rows times shingle hashes. Both must fit into
# the processor's second-level cache, and be large enough that few numpy calls are needed.
_CHUNK: Final = 16_384
_BLOCK: Final = 65_536

# numpy copies an operand that is repeated along the inner axis into a buffer if several runs of that axis fit into
# the buffer. For runs of at least this length the copy takes longer than the calls that it saves.
_WORTH_NO_BUFFER: Final = 256
_SMALLEST_BUFFER: Final = 16


def _word(number: int) -> Hashes:
    # A zero-dimensional array: numpy handles it in half the time of a Python number.
    return np.array(number, dtype=np.uint32)


_LEFT, _RIGHT, _LONGER, _WHOLE = map(_word, (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F))
_FINAL_1, _FINAL_2 = map(_word, (0x85EBCA6B, 0xC2B2AE35))
_13, _15, _16 = map(_word, (13, 15, 16))


class _Workspace(threading.local):
    """Reused memory of one thread: allocating it takes longer than filling it."""

    def __init__(self) -> None:
        self.block = np.empty(_BLOCK, dtype=np.uint32)
        self.one = np.empty(_CHUNK + SHINGLE_SIZES.stop, dtype=np.uint32)
        self.other = np.empty_like(self.one)


_workspace: Final = _Workspace()


def minhash(text: str, size: int = SHINGLE_SIZE, num_perm: int = ROWS) -> Hashes:
    """The signature of *text*: *num_perm* unsigned 32-bit rows over its shingles of *size* code points.

    >>> rows = minhash("To be, or not to be, that is the question.")
    >>> rows.shape, rows.dtype.name, int(rows[0])
    ((128,), 'uint32', 76713587)
    """
    return rows_of(shingle_hashes(text, size), num_perm)


def shingle_hashes(text: str, size: int = SHINGLE_SIZE) -> Hashes:
    """The distinct hashes of all shingles of *text*, in ascending order. *size* is from 2 to 64.

    >>> len(shingle_hashes("abcabcabc", 3)), len(shingle_hashes("ab", 3)), len(shingle_hashes("", 3))
    (3, 1, 0)
    """
    hashes = _room_for_hashes(text, size)
    return hashes[: distinct_hashes(text, size, hashes)]


def hashes_in_order(text: str, size: int = SHINGLE_SIZE) -> Hashes:
    """The hash of every shingle of *text*, in the order of the text. *size* is from 2 to 64.

    >>> len(hashes_in_order("abcabcabc", 3))
    7
    """
    hashes = base_hashes(text, size)
    for first in range(0, len(hashes), _CHUNK):
        _finalise(hashes[first : first + _CHUNK])
    return hashes


def rows_of(hashes: Hashes, num_perm: int = ROWS) -> Hashes:
    """The signature of a set of shingle hashes: *num_perm* rows, from 16 to 512.

    ``np.minimum(rows_of(one), rows_of(other))`` is the signature of the union. All rows of the empty set are
    0xFFFFFFFF; this does not mean that empty texts are similar.
    """
    factors, summands = _permutations(num_perm)
    rows = np.full(num_perm, _NOTHING, dtype=np.uint32)
    lower(rows, np.ascontiguousarray(hashes, dtype=np.uint32), factors, summands)
    return rows


def rows_of_parts(
    hashes: Hashes, is_template: NDArray[np.bool_], num_perm: int = ROWS
) -> tuple[Hashes, Hashes]:
    """The signatures of the shingle hashes that are not template, and of all of them."""
    factors, summands = _permutations(num_perm)
    rare = np.full(num_perm, _NOTHING, dtype=np.uint32)
    whole = rare.copy()
    lower_parts(rare, whole, hashes, is_template, factors, summands)
    return rare, whole


def base_hashes(text: str, size: int = SHINGLE_SIZE) -> Hashes:
    """The base hash of every shingle of *text*, in order: the input of datasketch.

    Raises ValueError for a size that is not allowed.
    """
    hashes = _room_for_hashes(text, size)
    text = text.ljust(size, "\0")
    for first in range(0, len(hashes), _CHUNK):
        part = text[first : first + _CHUNK + size - 1].encode("utf-32-le", "surrogatepass")
        _base_hashes(np.frombuffer(part, dtype="<u4"), size, hashes[first : first + _CHUNK])
    return hashes


def band_hashes(
    rows: Hashes, banding: Banding, namespace: str, key: bytes = b"", first: int = 0
) -> list[bytes]:
    """The band hashes of a signature, 8 bytes each.

    ``first`` is the number of the first band. ``key`` is hashed with each band.

    Equal bands of texts in different namespaces have different hashes; a namespace has at most 16 bytes in UTF-8.
    Rows after the last band are not used.
    """
    if len(rows) < banding.bands * banding.rows:
        raise ValueError(f"{banding.bands} bands of {banding.rows} rows do not fit into {len(rows)} rows.")
    data = rows.astype("<u4", copy=False).tobytes()
    return hash_bands(data, 4 * banding.rows, banding.bands, namespace.encode(), key, first)


def as_minhash(rows: Hashes) -> MinHash:
    """Convert a signature to datasketch's ``MinHash``.

    >>> as_minhash(minhash("some text")).jaccard(as_minhash(minhash("some text")))
    1.0
    """
    # Imported here because it imports scipy, which a crawl does not need.
    from datasketch import MinHash

    return MinHash(hashvalues=rows, scheme="affine32")


def row_bytes(rows: Hashes) -> bytes:
    """The lowest byte of each row."""
    return rows.astype(np.uint8).tobytes()


def similarity(equal: int, num_perm: int = ROWS) -> float:
    """The estimated Jaccard similarity of two texts with *equal* equal row bytes.

    >>> similarity(128), similarity(0), round(similarity(109), 3)
    (1.0, 0.0, 0.851)
    """
    return max(0.0, (equal / num_perm - CHANCE) / (1 - CHANCE))


def min_equal(threshold: float, num_perm: int = ROWS) -> int:
    """The smallest number of equal row bytes whose :func:`similarity` reaches *threshold*.

    >>> min_equal(0.85), min_equal(1.0), min_equal(0.85, 256)
    (109, 128, 218)
    """
    return next((equal for equal in range(num_perm) if similarity(equal, num_perm) >= threshold), num_perm)


@cache
def _permutations(num_perm: int) -> tuple[Hashes, Hashes]:
    """The odd factors and the summands of the rows, as columns."""
    if num_perm not in ROW_NUMBERS:
        raise ValueError(f"The number of rows is {num_perm}. Allowed: 16 to 512.")
    numbers = np.random.RandomState(_SEED)
    factors = 2 * numbers.randint(0, 1 << 31, num_perm, dtype=np.uint32) + 1
    summands = numbers.randint(0, 1 << 32, num_perm, dtype=np.uint32)
    return factors[:, None], summands[:, None]


def _room_for_hashes(text: str, size: int) -> Hashes:
    if size not in SHINGLE_SIZES:
        raise ValueError(f"The shingle size is {size}. Allowed: 2 to 64 code points.")
    return np.empty(max(len(text) - size + 1, min(len(text), 1)), dtype=np.uint32)


# What the compiled kernel does faster.


def _distinct_hashes(text: str, size: int, hashes: Hashes) -> int:
    """Fill *hashes* with the distinct shingle hashes in ascending order, and return their number."""
    found = hashes_in_order(text, size)
    # Twice as fast as one sort: numpy has a radix sort for 16 bits only. It leaves runs of a few hashes to sort.
    found = found.take((found >> _16).astype(np.uint16).argsort(kind="stable"))
    found.sort(kind="stable")
    is_first = np.ones(len(found), dtype=bool)
    np.not_equal(found[1:], found[:-1], out=is_first[1:])
    distinct = found.compress(is_first)
    hashes[: len(distinct)] = distinct
    return len(distinct)


def _lower(rows: Hashes, hashes: Hashes, factors: Hashes, summands: Hashes) -> None:
    """Lower *rows* to the minima over all *hashes*."""
    if len(hashes) < _WORTH_NO_BUFFER:
        _lower_block(rows, hashes, factors, summands)
        return
    buffer_size = np.setbufsize(_SMALLEST_BUFFER)
    try:
        for first in range(0, len(hashes), _CHUNK):
            _lower_block(rows, hashes[first : first + _CHUNK], factors, summands)
    finally:
        np.setbufsize(buffer_size)


def _lower_parts(
    rare: Hashes,
    whole: Hashes,
    hashes: Hashes,
    is_template: NDArray[np.bool_],
    factors: Hashes,
    summands: Hashes,
) -> None:
    """Lower *rare* to the minima over the *hashes* that are not template, and *whole* to those over all."""
    _lower(rare, hashes.compress(~is_template), factors, summands)
    _lower(whole, hashes.compress(is_template), factors, summands)
    np.minimum(rare, whole, out=whole)


def _hash_bands(data: bytes, width: int, bands: int, namespace: bytes, key: bytes, first: int) -> list[bytes]:
    """The hash of each band of *width* bytes, followed by *key*. *first* is the number of the first band."""
    hashes = []
    for band in range(bands):
        hashed = _empty_band(namespace, first + band).copy()
        hashed.update(data[width * band : width * (band + 1)] + key)
        hashes.append(hashed.digest())
    return hashes


@cache
def _empty_band(namespace: bytes, number: int) -> blake2b:
    # Copying a hash takes half the time of creating it.
    return blake2b(digest_size=8, salt=number.to_bytes(2, "little"), person=namespace)


hash_bands: Final = kernel.function("hash_bands", _hash_bands)
distinct_hashes: Final = kernel.function("distinct_hashes", _distinct_hashes)
lower: Final = kernel.function("lower", _lower)
lower_parts: Final = kernel.function("lower_parts", _lower_parts)


def _lower_block(rows: Hashes, hashes: Hashes, factors: Hashes, summands: Hashes) -> None:
    """Lower *rows* to the minima over at most ``_CHUNK`` *hashes*."""
    count = len(hashes)
    if not count:
        return
    at_once = min(len(rows), _BLOCK // count)
    block = _workspace.block[: at_once * count]
    table = block.reshape(at_once, count)
    starts = np.arange(0, len(block), count)
    minima = np.empty_like(rows)
    for first in range(0, len(rows), at_once):
        end = min(first + at_once, len(rows))
        if end - first < at_once:
            table, block, starts = table[: end - first], block[: (end - first) * count], starts[: end - first]
        np.multiply(hashes, factors[first:end], table)
        np.add(table, summands[first:end], table)
        # Faster than a minimum along an axis.
        np.minimum.reduceat(block, starts, out=minima[first:end])
    np.minimum(rows, minima, out=rows)


def _base_hashes(codes: Hashes, size: int, hashes: Hashes) -> None:
    """Fill *hashes* with the base hashes of the shingles of *codes*."""
    count = len(codes) - 1
    runs, spare = _workspace.one[:count], _workspace.other[:count]
    np.multiply(codes[:-1], _LEFT, runs)
    np.multiply(codes[1:], _RIGHT, spare)
    np.add(runs, spare, runs)
    _mix(runs, _15, spare)
    width = 2
    while 2 * width <= size:
        count -= width
        longer, spare = spare[:count], runs[:count]
        np.multiply(runs[:-width], _LONGER, longer)
        np.add(longer, runs[width:], longer)
        _mix(longer, _13, spare)
        runs, width = longer, 2 * width
    if width == size:
        hashes[:] = runs
        return
    np.multiply(runs[: width - size], _WHOLE, hashes)
    np.add(hashes, runs[size - width :], hashes)


def _finalise(hashes: Hashes) -> None:
    # MurmurHash3's 32-bit finaliser (Appleby, 2011), which datasketch applies to every base hash.
    spare = _workspace.one[: len(hashes)]
    _mix(hashes, _16, spare)
    np.multiply(hashes, _FINAL_1, hashes)
    _mix(hashes, _13, spare)
    np.multiply(hashes, _FINAL_2, hashes)
    _mix(hashes, _16, spare)


def _mix(hashes: Hashes, bits: Hashes, spare: Hashes) -> None:
    np.right_shift(hashes, bits, spare)
    np.bitwise_xor(hashes, spare, hashes)
