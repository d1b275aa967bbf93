"""The layers of a shared filter: how they are planned, and their error rates.

There are two kinds. A layer of **bits** is a Bloom filter: *k* slices of *m* bits; a fingerprint sets one bit in
each slice. A layer of **tags** is a cuckoo filter (Fan, Andersen, Kaminsky, Mitzenmacher 2014): buckets of 4 tags
of *t* bytes; the tag of a fingerprint is in one of two buckets. In Lua each bit costs a command or a part of one; a
tag costs two reads and one write for any error rate. Bits take less memory at high error rates, tags at low ones.

The first layer has tags if they take at most 1.1 times the optimum of a Bloom filter, which is the case at one in a
million (0.89 times), and bits otherwise. For later layers, which a filter of the right size does not need, the
limit is 1.25 times. *t* is the smallest number of bytes, at least 2, that keeps the layer's share of the error rate;
the number of buckets gives a load of 94 % at capacity. *k* is the smallest number of hashes, up to 15, with a size of
at most 1.09 times the optimum (or with the smallest size, if none is within the limit). The slices are the narrowest
that keep the share; see :func:`~scrapy_dedupe.urls.bloom.narrowest_slice`. The optimum for layer *i* (from 0) is that
of a Bloom filter with the error rate p x 0.3^i; the layer's share is 0.7 p x 0.3^i as in
:mod:`~scrapy_dedupe.urls.bloom`.

**Errors.** A stored fingerprint causes a false positive if its tag equals that of the new fingerprint and it is
in one of the two buckets of the new one. With *N* possible tags and *B* buckets the probability is 2 / (N B), so
*n* stored fingerprints cause a false positive with probability 1 - (1 - 2 / (N B))^n. Two biases are taken into
account: 32-bit words modulo *B* or *m* prefer low results, and the tag 0, which means "empty", is stored as 1.

**Shards.** A layer larger than 16 MiB is divided into shards of at most that size. Fingerprints are distributed
randomly, so each shard has room for four standard deviations more than the mean.

**Format.** A layer is a line of text: ``tags CAPACITY TAG_BYTES BUCKETS SHARDS`` or ``bits CAPACITY HASHES
SLICE_BITS SHARDS``, where BUCKETS and SLICE_BITS are numbers per shard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.urls.bloom import (
    expected_figures,
    layer_capacity,
    layer_share,
    narrowest_slice,
    optimal_bits,
    slice_error,
)

if TYPE_CHECKING:
    from scrapy_dedupe.urls.bloom import Figures

SHARD_BYTES = 1 << 24
SLOTS = 4
_WORD_BITS = 32
_MOST_HASHES = 15
_LOAD = 0.94
_MOST_TAG_BYTES = 32
_TAGS_FACTOR = 1.1
_LATER_TAGS_FACTOR = 1.25
_BITS_FACTOR = 1.09
# Never used up: the last layer has 10^12 times the capacity of the first.
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
        """Expected share of the bits that are set after ``count`` additions."""
        return slice_error(self.slice_bits, count / self.shards, _WORD_BITS)

    def error_at(self, count: float) -> float:
        """Probability of a false positive after ``count`` additions."""
        return self.fill_at(count) ** self.hashes


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
        """Share of the places for tags that are used after ``count`` additions."""
        return count / (self.shards * self.buckets * SLOTS)

    def error_at(self, count: float) -> float:
        """Probability of a false positive after ``count`` additions."""
        tags = 256**self.tag_bytes
        # The tag 1 is twice as frequent as any other, since the tag 0 is stored as 1.
        same_tag = (tags + 2) / tags**2
        return -math.expm1(
            count / self.shards * math.log1p(-min(0.5, 2 * _same_word(self.buckets) * same_tag))
        )


SharedLayer = BitLayer | TagLayer


def parse_layer(line: str) -> SharedLayer:
    """The layer described by a line.

    >>> parse_layer("tags 1000000 3 265958 1")
    TagLayer(capacity=1000000, tag_bytes=3, buckets=265958, shards=1)
    """
    kind, *numbers = line.split()
    return (TagLayer if kind == "tags" else BitLayer)(*map(int, numbers))


def plan_layer(capacity: int, error_rate: float, number: int) -> SharedLayer:
    """Layer ``number`` (from 0) of a filter for ``capacity`` fingerprints.

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
    """All layers of a filter with these parameters, one per line."""
    return "\n".join(str(plan_layer(capacity, error_rate, number)) for number in range(_PLANNED))


@dataclass(frozen=True, slots=True)
class Description:
    """The state of a shared filter at one time: its layers and the number of fingerprints in each, oldest first.

    ``forgotten`` is the number of fingerprints that count as new again.
    """

    layers: tuple[SharedLayer, ...] = ()
    counts: tuple[int, ...] = ()
    forgotten: int = 0

    @classmethod
    def of(cls, head: dict[str, str]) -> Description:
        """The description in the head of a filter; empty if there is no filter."""
        if not head:
            return cls()
        return cls(
            tuple(map(parse_layer, head["used"].split("\n"))),
            (*map(int, head["full"].split()), int(head["count"])),
            int(head.get("forgotten", 0)),
        )

    @property
    def seen(self) -> int:
        """Number of distinct fingerprints recorded by all processes."""
        return sum(self.counts)

    def figures(self) -> Figures:
        """The figures expected for the number of fingerprints, with the size when every shard has been written to."""
        return expected_figures(self.layers, self.counts)


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
    """Number of shards for a layer of ``size_bytes``, and the capacity of each shard in fingerprints."""
    shards = math.ceil(size_bytes / SHARD_BYTES)
    if shards <= 1:
        return 1, holds
    # Two percent more shards, so that they stay below the limit with the extra room for random variation.
    shards = math.ceil(1.02 * size_bytes / SHARD_BYTES)
    most = math.ceil(holds / shards)
    return shards, most + math.ceil(4 * math.sqrt(most))


def _same_word(results: int) -> float:
    """Probability that two words are equal modulo ``results``."""
    each, more_often = divmod(1 << _WORD_BITS, results)
    total: int = more_often * (each + 1) ** 2 + (results - more_often) * each**2
    return total / 4.0**_WORD_BITS
