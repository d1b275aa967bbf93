"""How a signature is cut into bands, and how likely a pair of texts is to meet in one.

Two texts of Jaccard similarity s agree in each row of their signatures with probability s (Broder, *On the
resemblance and containment of documents*, 1997), hence in all r rows of a band with s^r, and in at least one of b
bands with

    P(s) = 1 - (1 - s^r)^b

(Leskovec, Rajaraman, Ullman, *Mining of Massive Datasets*, chapter 3). Short bands find more of the near pairs;
long ones bring fewer of the others, which then need not be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Banding:
    """*bands* bands of *rows* rows each."""

    bands: int
    rows: int

    def __post_init__(self) -> None:
        if self.bands < 1 or self.rows < 1:
            raise ValueError(f"{self.bands} bands of {self.rows} rows are none. Both numbers are at least 1.")

    @classmethod
    def for_recall(cls, threshold: float, recall: float, num_perm: int) -> Banding:
        """The longest bands in *num_perm* rows that bring together at least *recall* of the pairs at *threshold*.

        Of *num_perm* rows those that fill no band stay out. Raises ValueError if even bands of one row bring
        together too few.

        >>> Banding.for_recall(0.85, 0.99, 128)
        Banding(bands=16, rows=8)
        """
        if not 0 < threshold <= 1 or not 0 < recall < 1 or num_perm < 1:
            raise ValueError(
                f"There are no bands for threshold {threshold}, recall {recall} and {num_perm} rows. Allowed: a"
                " threshold above 0, at most 1; a recall above 0, below 1; at least 1 row."
            )
        for rows in range(num_perm, 0, -1):
            banding = cls(num_perm // rows, rows)
            if banding.probability(threshold) >= recall:
                return banding
        best = cls(num_perm, 1).probability(threshold)
        raise ValueError(
            f"No bands of {num_perm} rows bring together {recall:.6g} of the pairs at the threshold {threshold:g};"
            f" bands of one row reach {best:.6g}. Ask for a smaller recall, or use more rows."
        )

    def probability(self, jaccard: float) -> float:
        """The probability that two texts of that similarity share at least one band.

        >>> round(Banding(16, 8).probability(0.85), 3), round(Banding(16, 8).probability(0.5), 3)
        (0.994, 0.061)
        """
        in_one = math.pow(jaccard, self.rows)
        # For a probability near 0 or 1 the plain formula would lose all digits.
        return 1.0 if in_one == 1 else -math.expm1(self.bands * math.log1p(-in_one))
