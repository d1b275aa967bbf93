"""Figures of a growing Bloom filter, computed from its number of fingerprints.

Counting the bits of a large filter would block the event loop for a tenth of a second. The share of set bits expected
for the number of fingerprints differs from the counted share by less than 1 %.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scrapy_dedupe.urls.bloom import expected_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.urls.bloom import Geometry


def expected_figures(layers: Sequence[tuple[Geometry, int]]) -> dict[str, float]:
    """Name and value of each figure. ``layers`` has the geometry and number of fingerprints of each layer, oldest first.

    >>> from scrapy_dedupe.urls.bloom import GrowingBloomFilter
    >>> bloom = GrowingBloomFilter(1000, 0.01)
    >>> _ = bloom.add_many(b"%d" % number for number in range(900))
    >>> figures = expected_figures(bloom.layer_heads())
    >>> figures["seen"] == len(bloom), abs(figures["fill_ratio"] - bloom.fill_ratio) < 0.01
    (True, True)
    """
    geometries = [geometry for geometry, _ in layers]
    counts = [count for _, count in layers]
    bits = sum(geometry.bits for geometry in geometries)
    filled = sum(geometry.fill_at(count) * geometry.bits for geometry, count in layers)
    kept = sum(math.log1p(-min(geometry.error_at(count), 1 - 1e-12)) for geometry, count in layers)
    return {
        "seen": sum(counts),
        "capacity": geometries[0].capacity,
        "layers": len(layers),
        "bytes": sum(geometry.size_bytes for geometry in geometries),
        "fill_ratio": filled / bits,
        "estimated_error": abs(math.expm1(kept)),
        "expected_lost": expected_lost(geometries, counts),
    }
