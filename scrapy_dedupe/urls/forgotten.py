"""Fingerprints that a filter has and that may be asked for once more.

A Bloom filter cannot give up what it holds, so what it should forget is noted beside it: requests that failed,
and URLs that somebody wants again. A request that the filter calls seen and that is noted here passes, once a
run. Two Bloom filters keep the memory small: what is noted, and what has passed since. An error of the first
makes one request twice, an error of the second leaves one forgotten URL seen; both happen with a probability of
one in a million.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.urls.bloom import GrowingBloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

_ERROR_RATE = 1e-6
_FIRST_CAPACITY = 1_000


class Forgotten:
    """A set of fingerprints of which each may be taken once. ``fingerprints`` are those of earlier runs."""

    def __init__(self, fingerprints: Iterable[bytes] = ()) -> None:
        self._noted: GrowingBloomFilter | None = None
        self._taken = GrowingBloomFilter(_FIRST_CAPACITY, _ERROR_RATE)
        self.add_many(fingerprints)

    def __len__(self) -> int:
        """How many are noted and were not taken."""
        return 0 if self._noted is None else max(0, len(self._noted) - len(self._taken))

    def __contains__(self, fingerprint: bytes) -> bool:
        return self._noted is not None and fingerprint in self._noted and fingerprint not in self._taken

    def add_many(self, fingerprints: Iterable[bytes]) -> None:
        """Note fingerprints. One that was taken stays taken."""
        for fingerprint in fingerprints:
            # Most jobs have none, and then nothing is asked.
            if self._noted is None:
                self._noted = GrowingBloomFilter(_FIRST_CAPACITY, _ERROR_RATE)
            self._noted.add(fingerprint)

    def take(self, fingerprint: bytes) -> bool:
        """Whether the fingerprint is noted and was not taken before; it is taken then."""
        return self._noted is not None and fingerprint in self._noted and self._taken.add(fingerprint)

    @property
    def has_taken(self) -> bool:
        """Whether any was taken."""
        return len(self._taken) > 0

    def was_taken(self, fingerprint: bytes) -> bool:
        return fingerprint in self._taken
