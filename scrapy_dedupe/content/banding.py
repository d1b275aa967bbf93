"""How a signature is divided into bands, and how likely two texts are to share a band.

Two texts of Jaccard similarity s agree in each row of their signatures with probability s (Broder, *On the
resemblance and containment of documents*, 1997), hence in all r rows of a band with s^r, and in at least one of b
bands with

    P(s) = 1 - (1 - s^r)^b

(Leskovec, Rajaraman, Ullman, *Mining of Massive Datasets*, chapter 3). Short bands find more near pairs; long bands
bring together fewer dissimilar pairs, so fewer comparisons are needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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

    def probability(self, jaccard: float) -> float:
        """The probability that two texts of this Jaccard similarity share at least one band.

        >>> round(Banding(16, 8).probability(0.85), 3), round(Banding(16, 8).probability(0.5), 3)
        (0.994, 0.061)
        """
        in_one = math.pow(jaccard, self.rows)
        # For a probability near 0 or 1 the plain formula would lose all digits.
        return 1.0 if in_one == 1 else -math.expm1(self.bands * math.log1p(-in_one))
