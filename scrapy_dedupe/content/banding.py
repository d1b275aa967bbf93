"""The bands of a signature, and how many near pairs they find.

Two texts of Jaccard similarity s agree in each row of their signatures with probability s (Broder, *On the
resemblance and containment of documents*, 1997), hence in all r rows of a band with s^r, and in at least one of b
bands with

    P(s) = 1 - (1 - s^r)^b

(Leskovec, Rajaraman, Ullman, *Mining of Massive Datasets*, chapter 3). Short bands find more near pairs; long bands
bring together fewer dissimilar pairs, so fewer comparisons are needed.

A pair is reported as near if it shares a band and its estimated similarity reaches the threshold. Two texts agree in
the stored byte of a row with p = s + (1 - s) / 256. The estimate reaches the threshold if at least *min_equal* of the n
bytes are equal; the probability is a tail of the binomial distribution of n and p. Both events depend on the same rows,
so their probabilities must not be multiplied. In a band of r rows that is not shared, k bytes are equal with the
binomial probability of k, reduced by s^r for k = r. The distribution over all bands if none is shared is the b-fold
convolution of that, and its tail is the loss:

    recall = P(estimate reaches) - P(estimate reaches and no band is shared)

The formula treats rows as independent. It ignores that the index holds one text per bucket, and the template guard.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The probability that the lowest bytes of different rows are equal.
CHANCE: Final = 1 / 256


@dataclass(frozen=True, slots=True)
class Banding:
    """The division of a signature: *bands* bands of *rows* rows each."""

    bands: int
    rows: int

    def __post_init__(self) -> None:
        if self.bands < 1 or self.rows < 1:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows are not possible. Both must be at least 1."
            )

    @classmethod
    def for_recall(cls, threshold: float, recall: float, num_perm: int) -> Banding:
        """Return the longest bands of *num_perm* rows that find at least *recall* of the pairs at *threshold*.

        Rows that do not fill a band are not used. Raises ValueError if even bands of one row find too few pairs.

        >>> Banding.for_recall(0.85, 0.99, 128)
        Banding(bands=16, rows=8)
        """
        if not 0 < threshold <= 1 or not 0 < recall < 1 or num_perm < 1:
            raise ValueError(
                f"There are no bands for threshold {threshold}, recall {recall} and {num_perm} rows. Allowed: a"
                " threshold above 0 and at most 1; a recall above 0 and below 1; at least 1 row."
            )
        for rows in range(num_perm, 0, -1):
            banding = cls(num_perm // rows, rows)
            if banding.probability(threshold) >= recall:
                return banding
        best = cls(num_perm, 1).probability(threshold)
        raise ValueError(
            f"Bands of {num_perm} rows cannot find {recall:.6g} of the pairs at the threshold {threshold:g};"
            f" bands of one row find {best:.6g}. Use a smaller recall or more rows."
        )

    def third(self, threshold: float, recall: float) -> Banding:
        """Return a third of the bands, the longest that find at least *recall* of the pairs at *threshold*.

        >>> Banding(16, 8).third(0.85, 0.99)
        Banding(bands=5, rows=3)
        """
        bands = max(1, self.bands // 3)
        for rows in range(self.rows, 1, -1):
            third = Banding(bands, rows)
            if third.probability(threshold) >= recall:
                return third
        return Banding(bands, 1)

    def probability(self, jaccard: float) -> float:
        """The probability that two texts of this Jaccard similarity share at least one band.

        >>> round(Banding(16, 8).probability(0.85), 3), round(Banding(16, 8).probability(0.5), 3)
        (0.994, 0.061)
        """
        in_one = math.pow(jaccard, self.rows)
        # For a probability near 0 or 1 the plain formula would lose all digits.
        return 1.0 if in_one == 1 else -math.expm1(self.bands * math.log1p(-in_one))


def estimate_probability(jaccard: float, num_perm: int, min_equal: int) -> float:
    """The probability that the estimate for a pair of this similarity reaches the threshold.

    >>> round(estimate_probability(0.85, 128, 109), 3), round(estimate_probability(0.95, 128, 109), 3)
    (0.548, 1.0)
    """
    return _tail(_binomial(num_perm, _byte_probability(jaccard)), min_equal)


def recall(jaccard: float, banding: Banding, num_perm: int, min_equal: int) -> float:
    """The probability that a pair of this similarity shares a band and its estimate reaches the threshold."""
    one = _byte_probability(jaccard)
    not_shared = _binomial(banding.rows, one)
    # The difference is 0 for the similarity 1; rounding must not make it negative.
    not_shared[-1] = max(0.0, not_shared[-1] - math.pow(jaccard, banding.rows))
    in_no_band = _binomial(num_perm - banding.bands * banding.rows, one)
    lost = np.convolve(_sum_of(banding.bands, not_shared), in_no_band)
    return max(0.0, estimate_probability(jaccard, num_perm, min_equal) - _tail(lost, min_equal))


def estimate_deviation(jaccard: float, num_perm: int) -> float:
    """The standard deviation of the estimate for a pair of this similarity.

    >>> round(estimate_deviation(0.85, 128), 3)
    0.032
    """
    one = _byte_probability(jaccard)
    return math.sqrt(one * (1 - one) / num_perm) / (1 - CHANCE)


def _byte_probability(jaccard: float) -> float:
    return jaccard + (1 - jaccard) * CHANCE


def _binomial(number: int, probability: float) -> NDArray[np.float64]:
    """The probabilities of 0 ... *number* successes."""
    return _sum_of(number, np.array([1 - probability, probability]))


def _sum_of(number: int, distribution: NDArray[np.float64]) -> NDArray[np.float64]:
    """The distribution of the sum of *number* independent variables with this distribution."""
    total = np.ones(1)
    while number:
        if number & 1:
            total = np.convolve(total, distribution)
        number >>= 1
        if number:
            distribution = np.convolve(distribution, distribution)
    return total


def _tail(distribution: NDArray[np.float64], least: int) -> float:
    return min(1.0, math.fsum(distribution[least:]))
