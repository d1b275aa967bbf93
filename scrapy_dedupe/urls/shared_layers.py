"""The layers of a shared filter: how they are planned, and what they err.

There are two kinds. A layer of **bits** is Bloom's filter: *k* slices of *m* bits, one bit of each slice for a
fingerprint. A layer of **tags** is a cuckoo filter (Fan, Andersen, Kaminsky, Mitzenmacher 2014): buckets of 4
tags of *t* bytes, and a fingerprint's tag lies in one of two buckets. In Lua each bit costs a command, or the
part of one; a tag costs two reads and one write, whatever the error rate. Bits are smaller where much error is
allowed, tags where it is not.

The first layer holds tags if those cost at most 1.1 times the optimum of Bloom's filter, which is the case at one
in a million (0.89 times), else bits; the others, which a filter of the right size has not, if they cost at most
1.25 times that. *t* is the least number of bytes from 2 on that keeps the layer's share of the
error, and the buckets are as many as are filled to 94 % at capacity. *k* is the fewest hashes up to 15 that cost
at most 1.09 times the optimum (or the cheapest, where none does), with the narrowest slices that keep the share, as
:func:`~scrapy_dedupe.urls.bloom.narrowest_slice` finds them.
"The optimum" is that of error p x 0.3^i for layer *i* (from 0), whose share is 0.7 p x 0.3^i as in
:mod:`~scrapy_dedupe.urls.bloom`.

**Errors.** Two fingerprints whose tags agree meet if one of the two buckets of one is a given bucket of the
other: with *N* tags and *B* buckets, a stored one agrees with a new one with probability 2 / (N B), so *n* of
them call it seen with 1 - (1 - 2 / (N B))^n. Words are 32 bits taken modulo *B* or *m*; the slight preference
of the low results is counted, and so is that of the tag which stands for "empty" and is stored as another one.

**Shards.** A layer larger than 16 MiB is spread over shards of at most that size, with room for four standard
deviations in each, since fingerprints fall into them at random.

**Format.** A layer is a line of text: ``tags CAPACITY TAG_BYTES BUCKETS SHARDS`` or ``bits CAPACITY HASHES
SLICE_BITS SHARDS``, where buckets and bits are those of one shard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.urls.bloom import (
    expected_lost,
    layer_capacity,
    layer_share,
    narrowest_slice,
    optimal_bits,
    slice_error,
    sum_over,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARD_BYTES = 1 << 24
SLOTS = 4
_WORD_BITS = 32
_MOST_HASHES = 15
_LOAD = 0.94
_MOST_TAG_BYTES = 32
_TAGS_FACTOR = 1.1
_LATER_TAGS_FACTOR = 1.25
_BITS_FACTOR = 1.09
# Far more than can be filled: the last one holds 10^12 times the first.
_PLANNED = 40


@dataclass(frozen=True, slots=True)
class BitLayer:
    """``hashes`` slices of ``slice_bits`` bits in each shard."""

    capacity: int
    hashes: int
    slice_bits: int
    shards: int

    def __str__(self) -> str:
        return f"bits {self.capacity} {self.hashes} {self.slice_bits} {self.shards}"

    @property
    def size_bytes(self) -> int:
        return self.shards * ((self.hashes * self.slice_bits + 7) // 8)

    def fill_at(self, count: float) -> float:
        """Share of the bits that are set after ``count`` additions, as expected."""
        return slice_error(self.slice_bits, count / self.shards, _WORD_BITS)

    def error_at(self, count: float) -> float:
        """Probability that a fingerprint which was not added is found, after ``count`` additions."""
        return self.fill_at(count) ** self.hashes

    def lost_by(self, count: int) -> float:
        """Sum of :meth:`error_at` over the additions 0 to ``count`` - 1."""
        return sum_over(self.error_at, count)


@dataclass(frozen=True, slots=True)
class TagLayer:
    """``buckets`` buckets of 4 tags of ``tag_bytes`` bytes in each shard."""

    capacity: int
    tag_bytes: int
    buckets: int
    shards: int

    def __str__(self) -> str:
        return f"tags {self.capacity} {self.tag_bytes} {self.buckets} {self.shards}"

    @property
    def size_bytes(self) -> int:
        return self.shards * self.buckets * SLOTS * self.tag_bytes

    def fill_at(self, count: float) -> float:
        """Share of the places for tags that are taken after ``count`` additions."""
        return count / (self.shards * self.buckets * SLOTS)

    def error_at(self, count: float) -> float:
        """Probability that a fingerprint which was not added is found, after ``count`` additions."""
        tags = 256**self.tag_bytes
        # The tag 1 comes up twice as often as each other one, since it stands for 0 too.
        same_tag = (tags + 2) / tags**2
        return -math.expm1(
            count / self.shards * math.log1p(-min(0.5, 2 * _same_word(self.buckets) * same_tag))
        )

    def lost_by(self, count: int) -> float:
        """Sum of :meth:`error_at` over the additions 0 to ``count`` - 1."""
        return sum_over(self.error_at, count)


SharedLayer = BitLayer | TagLayer


def parse_layer(line: str) -> SharedLayer:
    """The layer that a line describes.

    >>> parse_layer("tags 1000000 3 265958 1")
    TagLayer(capacity=1000000, tag_bytes=3, buckets=265958, shards=1)
    """
    kind, *numbers = line.split()
    return (TagLayer if kind == "tags" else BitLayer)(*map(int, numbers))


def plan_layer(capacity: int, error_rate: float, number: int) -> SharedLayer:
    """Layer ``number`` (from 0) of a filter that is made for ``capacity`` fingerprints.

    >>> plan_layer(1_000_000, 1e-6, 0), plan_layer(1_000_000, 0.01, 0)
    (TagLayer(capacity=1000000, tag_bytes=3, buckets=265958, shards=1), BitLayer(capacity=1000000, hashes=6, slice_bits=1740409, shards=1))
    """
    holds, share = layer_capacity(capacity, number), layer_share(error_rate, number)
    optimum = optimal_bits(holds, share / layer_share(1.0, 0))
    tags = _tag_layer(holds, share)
    factor = _LATER_TAGS_FACTOR if number else _TAGS_FACTOR
    if tags is not None and 8 * tags.size_bytes <= factor * optimum:
        return tags
    costs = [(_bits_each(share, hashes), hashes) for hashes in range(1, _MOST_HASHES + 1)]
    few = (hashes for bits_each, hashes in costs if holds * bits_each <= _BITS_FACTOR * optimum)
    return _bit_layer(holds, share, next(few, min(costs)[1]))


@lru_cache(maxsize=16)
def plan(capacity: int, error_rate: float) -> str:
    """All layers that such a filter can have, a line for each."""
    return "\n".join(str(plan_layer(capacity, error_rate, number)) for number in range(_PLANNED))


@dataclass(frozen=True, slots=True)
class Description:
    """A shared filter as it was at one moment: ``layers`` and the fingerprints in each, oldest first.

    ``forgotten`` is the number of fingerprints that count as new once more.
    """

    layers: tuple[SharedLayer, ...] = ()
    counts: tuple[int, ...] = ()
    forgotten: int = 0

    @property
    def seen(self) -> int:
        """Distinct fingerprints recorded, by all processes."""
        return sum(self.counts)

    @property
    def capacity(self) -> int:
        """What the first layer holds; 0 where there is no filter."""
        return self.layers[0].capacity if self.layers else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of the layers, once every shard was written to."""
        return sum(layer.size_bytes for layer in self.layers)

    @property
    def fill_ratio(self) -> float:
        """Share of the bits that are set and of the places for tags that are taken, as expected."""
        if not self.layers:
            return 0.0
        filled = (
            layer.fill_at(count) * layer.size_bytes
            for layer, count in zip(self.layers, self.counts, strict=True)
        )
        return sum(filled) / self.size_bytes

    @property
    def estimated_error(self) -> float:
        """Probability that the next new fingerprint is called seen."""
        return abs(
            math.expm1(
                sum(
                    math.log1p(-layer.error_at(count))
                    for layer, count in zip(self.layers, self.counts, strict=True)
                )
            )
        )

    @property
    def expected_lost(self) -> float:
        """Expected number of new fingerprints that were called seen on the way to the present size."""
        return expected_lost(self.layers, self.counts)


def _tag_layer(holds: int, share: float) -> TagLayer | None:
    for tag_bytes in range(2, _MOST_TAG_BYTES + 1):
        shards, most = _spread(holds, holds * tag_bytes / _LOAD)
        layer = TagLayer(holds, tag_bytes, math.ceil(most / (SLOTS * _LOAD)), shards)
        if layer.error_at(holds) <= share:
            return layer
    return None


def _bits_each(share: float, hashes: int) -> float:
    return -hashes / math.log1p(-(share ** (1 / hashes)))


def _bit_layer(holds: int, share: float, hashes: int) -> BitLayer:
    slice_bits = narrowest_slice(holds, share, hashes)
    shards, most = _spread(holds, hashes * slice_bits / 8)
    if shards > 1:
        slice_bits = narrowest_slice(most, share, hashes)
    return BitLayer(holds, hashes, slice_bits, shards)


def _spread(holds: int, size_bytes: float) -> tuple[int, int]:
    """Shards of a layer of ``size_bytes``, and for how many fingerprints each of them is made."""
    shards = math.ceil(size_bytes / SHARD_BYTES)
    if shards <= 1:
        return 1, holds
    # Two percent more shards, so that the room for chance keeps them below the limit.
    shards = math.ceil(1.02 * size_bytes / SHARD_BYTES)
    most = math.ceil(holds / shards)
    return shards, most + math.ceil(4 * math.sqrt(most))


def _same_word(results: int) -> float:
    """Probability that two words agree modulo ``results``."""
    each, more_often = divmod(1 << _WORD_BITS, results)
    total: int = more_often * (each + 1) ** 2 + (results - more_often) * each**2
    return total / 4.0**_WORD_BITS


def describe(lines: Sequence[str], full: Sequence[int], count: int, forgotten: int) -> Description:
    """A description from what the head holds: the layers in use, and how many each has."""
    return Description(tuple(map(parse_layer, lines)), (*full, count), forgotten)
