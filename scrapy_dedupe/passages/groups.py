"""Groups of consecutive items, such as equal neighbours, and ranges of items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def group_bounds(is_new: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """Return the start of each group of *count* items, followed by *count*, the end of the last group.

    *is_new* is, for each item except the first, whether it begins a group.

    >>> values = np.array([7, 7, 9, 7])
    >>> group_bounds(values[1:] != values[:-1], 4).tolist(), group_bounds(np.zeros(0, np.bool_), 0).tolist()
    ([0, 2, 3, 4], [0])
    """
    begins = np.flatnonzero(is_new)
    bounds = np.zeros(len(begins) + 2, np.int64)
    np.add(begins, 1, out=bounds[1:-1])
    bounds[-1] = count
    return bounds if count else bounds[:1]


def ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenated ranges of *counts* numbers from each of *starts*.

    >>> ranges(np.array([5, 1, 9]), np.array([2, 0, 3])).tolist()
    [5, 6, 9, 10, 11]
    """
    ends = counts.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + counts, counts)


def covered(count: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of *count* items are in one of the ranges from *starts* to *ends*.

    >>> np.flatnonzero(covered(9, np.array([1, 2, 7]), np.array([3, 4, 8]))).tolist()
    [1, 2, 3, 7]
    """
    steps = np.bincount(starts, minlength=count + 1) - np.bincount(ends, minlength=count + 1)
    result: NDArray[np.bool_] = np.cumsum(steps[:count]) > 0
    return result
