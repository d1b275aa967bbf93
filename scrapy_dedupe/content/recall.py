"""The share of pairs of texts of a given similarity that is reported as near.

A pair is near if it shares a band and its estimated similarity reaches the threshold. Two texts of Jaccard similarity
s agree in a row with probability s, and in the stored byte of the row with p = s + (1 - s) / 256.

The estimate reaches the threshold if at least *min_equal* of the n bytes are equal; the probability is a tail of the
binomial distribution of n and p. Both events depend on the same rows, so their probabilities must not be multiplied.
In a band of r rows that is not shared, k bytes are equal with the binomial probability of k, reduced by s^r for k = r.
The distribution over all bands if none is shared is the b-fold convolution of that, and its tail is the loss:

    recall = P(estimate reaches) - P(estimate reaches and no band is shared)

The formula treats rows as independent. It ignores that the index holds one text per bucket, and the template guard.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .signature import CHANCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .banding import Banding


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
