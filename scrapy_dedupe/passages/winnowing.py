"""Winnowing: keep the smallest blot of every window of consecutive blots.

See Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document fingerprinting" (SIGMOD 2003). If several blots
of a window are the smallest, at least one of them is kept. In a series of equal blots such as that of "a a a a ...", one
in four is kept, if the window has eight.

The value that is kept of a window does not depend on the blots around the window. So wherever the same series of blots of
at least the length of a window occurs, a blot with the same value is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .groups import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def smallest_of_windows(
    values: NDArray[np.uint64], counts: NDArray[np.int64], window: int
) -> NDArray[np.int64]:
    """Return the indexes of the blots that are the smallest of a window, with all equal ones.

    *counts* is the number of blots of each text. A text with fewer blots than a window counts as one window.
    """
    ends = np.cumsum(counts)
    is_smallest = np.zeros(len(values), np.bool_)
    if len(values) >= window:
        smallest = windows(values, window, 1, _smaller)
        # Ignore windows that reach into the next text: 0 as their minimum keeps no blot, except blots of 0, which are the
        # smallest in any window.
        crossing = (ends[:-1] - (window - 1))[:, None] + np.arange(window - 1)
        smallest[crossing[(crossing >= 0) & (crossing < len(smallest))]] = 0
        padded = np.zeros(len(smallest) + 2 * (window - 1), dtype=np.uint64)
        padded[window - 1 : len(padded) - (window - 1)] = smallest
        # A blot is the smallest of some window if the largest minimum of the windows that contain it equals the blot.
        is_smallest = values == windows(padded, window, 1, _larger)
    short = np.flatnonzero((counts > 0) & (counts < window))
    if len(short):
        few = counts[short]
        places = ranges(ends[short] - few, few)
        smallest = np.minimum.reduceat(values[places], np.cumsum(few) - few)
        is_smallest[places] = values[places] == smallest.repeat(few)
    return np.flatnonzero(is_smallest)


def without_ties(
    values: NDArray[np.uint64], starts: NDArray[np.int64], bounds: NDArray[np.int64], window: int
) -> NDArray[np.bool_]:
    """Return which of the smallest blots to keep. *starts* are their tokens, *bounds* the first tokens of the texts.

    Of equal neighbours in a block of *window* tokens, the first and the last are enough: any window with another one of them
    contains the first or the last too.
    """
    is_kept = np.ones(len(values), np.bool_)
    ties = np.flatnonzero(values[1:] == values[:-1])
    texts = bounds.searchsorted(starts[ties], "right") - 1
    same_text = starts[ties + 1] < bounds[texts + 1]
    first, second = starts[ties] - bounds[texts], starts[ties + 1] - bounds[texts]
    ties = ties[same_text & (first // window == second // window)]
    # A blot that is tied with the one before and with the one after.
    is_kept[ties[1:][np.diff(ties) == 1]] = False
    return is_kept


def _smaller(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return np.minimum(first, second)


def _larger(first: NDArray[np.uint64], second: NDArray[np.uint64], done: int) -> NDArray[np.uint64]:
    return np.maximum(first, second)


def windows(
    values: NDArray[np.uint64],
    k: int,
    step: int,
    join: Callable[[NDArray[Any], NDArray[Any], int], NDArray[Any]],
) -> NDArray[np.uint64]:
    """Return *join* applied to values[i], values[i + step], ..., values[i + (k - 1) x step], for every i.

    *join* gets the results of two shorter windows and the number of items of the first one, so about log2(k) calls are
    enough.
    """
    # Compute windows of 1, 2, 4, ... items, and join those whose sizes add up to k.
    size, doubled = 1, values
    result, done = None, 0
    while True:
        if k & size:
            result = doubled if result is None else _joined(result, doubled, done, step, join)
            done += size
        if 2 * size > k:
            break
        doubled = _joined(doubled, doubled, size, step, join)
        size *= 2
    assert result is not None  # k is at least 1
    return result


def _joined(
    first: NDArray[Any],
    second: NDArray[Any],
    done: int,
    step: int,
    join: Callable[..., NDArray[Any]],
) -> NDArray[Any]:
    length = max(len(second) - done * step, 0)
    return join(first[:length], second[done * step : done * step + length], done)
