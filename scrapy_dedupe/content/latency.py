"""How long things took: a histogram of fixed size, from which quantiles are read.

Buckets grow by a tenth, from a microsecond on, so a quantile is off by at most 5 %.
"""

from __future__ import annotations

import math
import threading
from typing import Final

_SMALLEST_S: Final = 1e-6
_GROWTH: Final = 1.1
_BUCKETS: Final = 256  # up to ten hours


class Latency:
    """A histogram of durations in seconds. Several threads may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * _BUCKETS
        self.count = 0

    def add(self, seconds: float) -> None:
        """Note that something took so long."""
        bucket = int(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S, _GROWTH))
        with self._lock:
            self._counts[min(bucket, _BUCKETS - 1)] += 1
            self.count += 1

    def quantile(self, share: float) -> float:
        """The seconds within which a *share* of all was done; 0.0 if there was nothing.

        >>> latency = Latency()
        >>> for milliseconds in range(1, 101):
        ...     latency.add(milliseconds / 1000)
        >>> 0.047 < latency.quantile(0.5) < 0.053, 0.094 < latency.quantile(0.99) < 0.104
        (True, True)
        """
        wanted = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                # The geometric middle of the bucket.
                return _SMALLEST_S * math.pow(_GROWTH, bucket + 0.5)
        return 0.0
