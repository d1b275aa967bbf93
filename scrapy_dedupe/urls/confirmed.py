"""A Bloom filter whose hits are confirmed in an exact set: no fingerprint is lost to a false positive.

The Bloom filter answers from memory for new fingerprints; an exact set on disk would have to read a page for each of
them. A hit of the Bloom filter is looked up in the exact set. If the set does not have the fingerprint, the hit was
a false positive: the fingerprint counts as new and is added to the set. The memory needed is that of the Bloom filter
and a bounded part of the exact set.

When the exact set cannot answer, or had to drop fingerprints, an unconfirmed hit counts as new: a request may be made
twice, but no page is lost. Each fingerprint passes this way only once; otherwise the links of every page would be
requested repeatedly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.bloom import GrowingBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.urls.exact import ExactSet

_PASSED_CAPACITY = 10_000
_PASSED_ERROR_RATE = 1e-6


class ConfirmedBloomFilter:
    """A :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter` and an :class:`~scrapy_dedupe.urls.exact.ExactSet`.

    Both must hold the same fingerprints. ``confirmed`` counts the hits of the Bloom filter that the exact set
    confirmed, ``false_positives`` the hits that it did not. Errors of the exact set are passed to ``on_error`` and
    are not raised. Not thread-safe, except for the methods of the exact set that are.
    """

    def __init__(
        self, bloom: GrowingBloomFilter, exact: ExactSet, on_error: Callable[[StoreError], object]
    ) -> None:
        self.bloom = bloom
        self.exact = exact
        self.confirmed = 0
        self.false_positives = 0
        self._on_error = on_error
        # Fingerprints that passed unconfirmed.
        self._passed: GrowingBloomFilter | None = None

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new."""
        if not self.bloom.add(fingerprint):
            is_there = self._look_up(fingerprint)
            if is_there:
                self.confirmed += 1
                return False
            if is_there is not None:
                self.false_positives += 1
            if (is_there is None or self.exact.forgotten) and not self._passes_once(fingerprint):
                return False
        try:
            self.exact.add(fingerprint)
        except StoreError as error:
            self._on_error(error)
        return True

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; True for each that is new."""
        return [self.add(fingerprint) for fingerprint in fingerprints]

    def load(self, fingerprints: Iterable[bytes]) -> None:
        """Record many fingerprints in bounded memory. Call this on the thread that writes the exact set.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if they cannot be written.
        """

        def recorded() -> Iterator[bytes]:
            for fingerprint in fingerprints:
                self.bloom.add(fingerprint)
                yield fingerprint

        self.exact.add_all(recorded())

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self.bloom and bool(self._look_up(fingerprint))

    def __len__(self) -> int:
        """Number of distinct fingerprints recorded. If the exact set fails, the number is that of the Bloom filter
        plus its known false positives.
        """
        try:
            return len(self.exact)
        except StoreError as error:
            self._on_error(error)
            return len(self.bloom) + self.false_positives

    @property
    def capacity(self) -> int:
        return self.bloom.capacity

    @property
    def error_rate(self) -> float:
        """Error rate of the Bloom filter: the share of new fingerprints that need a lookup on disk."""
        return self.bloom.error_rate

    @property
    def layers(self) -> int:
        return self.bloom.layers

    @property
    def size_bytes(self) -> int:
        """Size of the Bloom filter's bits."""
        return self.bloom.size_bytes

    @property
    def fill_ratio(self) -> float:
        return self.bloom.fill_ratio

    @property
    def estimated_error(self) -> float:
        """Probability that the next new fingerprint needs a lookup on disk; none is lost."""
        return self.bloom.estimated_error

    @property
    def expected_lost(self) -> float:
        """Always 0: the exact set confirms each hit, so a fingerprint can be lost only if the exact set fails."""
        return 0.0

    def _passes_once(self, fingerprint: bytes) -> bool:
        if self._passed is None:
            self._passed = GrowingBloomFilter(_PASSED_CAPACITY, _PASSED_ERROR_RATE)
        return self._passed.add(fingerprint)

    def _look_up(self, fingerprint: bytes) -> bool | None:
        try:
            return fingerprint in self.exact
        except StoreError as error:
            self._on_error(error)
            return None
