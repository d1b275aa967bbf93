"""Items in a row in groups, such as equal ones that stand beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def group_bounds(is_new: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Where each group of *count* items begins, and *count* behind that, where the last one ends.

    *is_new* tells of each item but the first whether it begins a group.

    >>> values = np.array([7, 7, 9, 7])
    >>> group_bounds(values[1:] != values[:-1], 4).tolist(), group_bounds(np.zeros(0, np.bool_), 0).tolist()
    ([0, 2, 3, 4], [0])
    """
    begins = np.flatnonzero(is_new)
    bounds = np.zeros(len(begins) + 2, np.int64)
    np.add(begins, 1, out=bounds[1:-1])
    bounds[-1] = count
    return bounds if count else bounds[:1]
