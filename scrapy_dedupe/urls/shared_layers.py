"""The layers of a shared filter: how they are planned, and their error rates.

A layer is a cuckoo filter (Fan, Andersen, Kaminsky, Mitzenmacher 2014): buckets of 4 tags of *t* bytes; the tag of a
fingerprint is in one of two buckets. In Lua each bit of a Bloom filter would cost a command or a part of one; a tag costs
two reads and one write for any error rate. *t* is the smallest number of bytes, at least 2, that keeps the layer's share
of the error rate; the number of buckets gives a load of 94 % at capacity. A filter takes less than a Bloom filter at one
in a million (0.89 times the optimum), and at most one byte per fingerprint more at any rate.

**Errors.** A stored fingerprint causes a false positive if its tag equals that of the new fingerprint and it is
in one of the two buckets of the new one. With *N* possible tags and *B* buckets the probability is 2 / (N B), so
*n* stored fingerprints cause a false positive with probability 1 - (1 - 2 / (N B))^n. The tag 0, which means "empty",
is stored as 1, which is therefore twice as frequent.

**Shards.** A layer larger than 16 MiB is divided into shards of at most that size. Fingerprints are distributed
randomly, so each shard has room for four standard deviations more than the mean.

**Format.** A layer is a line of text: ``tags CAPACITY TAG_BYTES BUCKETS SHARDS``, where BUCKETS is a number per shard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.urls.bloom import expected_figures, layer_capacity, layer_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.urls.bloom import Figures

SHARD_BYTES = 1 << 24
SLOTS = 4
_LOAD = 0.94
_MOST_TAG_BYTES = 32
# Never used up: the last layer has 10^12 times the capacity of the first.
_PLANNED = 40


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
        collision = min(0.5, 2 * same_tag / self.buckets)
        return -math.expm1(count / self.shards * math.log1p(-collision))


def parse_layer(line: str) -> TagLayer:
    """The layer described by a line. Raises StoreRefused for a layer of another kind.

    >>> parse_layer("tags 1000000 3 265958 1")
    TagLayer(capacity=1000000, tag_bytes=3, buckets=265958, shards=1)
    """
    kind, *numbers = line.split()
    if kind != "tags":
        raise StoreRefused(
            f"The shared URL filter has layers of {kind}, which this version of scrapy-dedupe does not read. Use another"
            " filter with DEDUPE_URL_KEY."
        )
    return TagLayer(*map(int, numbers))


def plan_layer(capacity: int, error_rate: float, number: int) -> TagLayer:
    """Layer ``number`` (from 0) of a filter for ``capacity`` fingerprints.

    >>> plan_layer(1_000_000, 1e-6, 0)
    TagLayer(capacity=1000000, tag_bytes=3, buckets=265958, shards=1)
    """
    holds = layer_capacity(capacity, number)
    for tag_bytes in range(2, _MOST_TAG_BYTES + 1):
        shards, most = _spread(holds, holds * tag_bytes / _LOAD)
        layer = TagLayer(holds, tag_bytes, math.ceil(most / (SLOTS * _LOAD)), shards)
        if layer.error_at(holds) <= layer_share(error_rate, number):
            break
    return layer


@lru_cache(maxsize=16)
def plan(capacity: int, error_rate: float) -> str:
    """All layers of a filter with these parameters, one per line."""
    return "\n".join(str(plan_layer(capacity, error_rate, number)) for number in range(_PLANNED))


@dataclass(frozen=True, slots=True)
class Description:
    """The state of a shared filter at one time: its layers and the number of fingerprints in each, oldest first.

    ``forgotten`` is the number of fingerprints that count as new again.
    """

    layers: tuple[TagLayer, ...] = ()
    counts: tuple[int, ...] = ()
    forgotten: int = 0

    @classmethod
    def of(cls, heads: Sequence[dict[str, str]]) -> Description:
        """The description in the heads of all parts of a filter; empty if there is no filter.

        Parts have the same layers as long as they have the same capacity, so together they are one layer with the shards
        of all of them.
        """
        layers: list[TagLayer] = []
        counts: list[int] = []
        for head in filter(None, heads):
            its_counts = (*map(int, head["full"].split()), int(head["count"]))
            for number, (line, count) in enumerate(zip(head["used"].split("\n"), its_counts, strict=True)):
                layer = parse_layer(line)
                if number == len(layers):
                    layers.append(layer)
                    counts.append(count)
                else:
                    known = layers[number]
                    layers[number] = replace(
                        known, capacity=known.capacity + layer.capacity, shards=known.shards + layer.shards
                    )
                    counts[number] += count
        forgotten = sum(int(head.get("forgotten", 0)) for head in heads)
        return cls(tuple(layers), tuple(counts), forgotten)

    @property
    def seen(self) -> int:
        """Number of distinct fingerprints recorded by all processes."""
        return sum(self.counts)

    def figures(self) -> Figures:
        """The figures expected for the number of fingerprints, with the size when every shard has been written to."""
        return expected_figures(self.layers, self.counts)


def part_capacity(capacity: int, parts: int) -> int:
    """The capacity of each of *parts* parts of a filter, with room for random variation.

    >>> part_capacity(1_000_000, 1), part_capacity(1_000_000, 16)
    (1000000, 63500)
    """
    return capacity if parts == 1 else _with_room(math.ceil(capacity / parts))


def _with_room(mean: int) -> int:
    return mean + math.ceil(4 * math.sqrt(mean))


def _spread(holds: int, size_bytes: float) -> tuple[int, int]:
    """Number of shards for a layer of ``size_bytes``, and the capacity of each shard in fingerprints."""
    shards = math.ceil(size_bytes / SHARD_BYTES)
    if shards <= 1:
        return 1, holds
    # Two percent more shards, so that they stay below the limit with the extra room for random variation.
    shards = math.ceil(1.02 * size_bytes / SHARD_BYTES)
    return shards, _with_room(math.ceil(holds / shards))
