"""Fingerprints in a filter that may be requested again once.

A Bloom filter cannot remove fingerprints. Fingerprints that it should forget are therefore recorded separately:
failed requests, and URLs that a user wants to request again. A seen request that is recorded here passes once per
run. The recorded fingerprints and the passed ones are stored in two Bloom filters with an error rate of one in a
million, which take little memory. A false positive of the first filter repeats a request; a false positive of the
second one keeps a forgotten URL seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.urls.bloom import GrowingBloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterable

_ERROR_RATE = 1e-6
_FIRST_CAPACITY = 1_000


class Forgotten:
    """A set of fingerprints, each of which can be taken once."""

    def __init__(self, fingerprints: Iterable[bytes] = ()) -> None:
        self._noted: GrowingBloomFilter | None = None
        self._taken = GrowingBloomFilter(_FIRST_CAPACITY, _ERROR_RATE)
        self.add_many(fingerprints)

    def __len__(self) -> int:
        """Number of fingerprints that were added and not taken."""
        return 0 if self._noted is None else max(0, len(self._noted) - len(self._taken))

    def __contains__(self, fingerprint: bytes) -> bool:
        return self._noted is not None and fingerprint in self._noted and fingerprint not in self._taken

    def add_many(self, fingerprints: Iterable[bytes]) -> None:
        """Add fingerprints. A fingerprint that was taken stays taken."""
        for fingerprint in fingerprints:
            # Created only when needed, since most jobs have no forgotten fingerprints.
            if self._noted is None:
                self._noted = GrowingBloomFilter(_FIRST_CAPACITY, _ERROR_RATE)
            self._noted.add(fingerprint)

    def take(self, fingerprint: bytes) -> bool:
        """Take the fingerprint; True if it was added and not taken before."""
        return self._noted is not None and fingerprint in self._noted and self._taken.add(fingerprint)

    @property
    def has_taken(self) -> bool:
        """Whether any fingerprint was taken."""
        return len(self._taken) > 0

    def was_taken(self, fingerprint: bytes) -> bool:
        return fingerprint in self._taken
