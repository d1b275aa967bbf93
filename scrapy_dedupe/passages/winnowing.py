"""Winnowing: keep the smallest blot of every window of consecutive blots.

This is the robust form of Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document fingerprinting" (SIGMOD
2003). If several blots of a window are the smallest, the one that the previous window kept is kept if it is among them,
otherwise the last one. So even of "a a a a ..." only one blot per window is kept.

The value that is kept of a window does not depend on the blots around the window. So wherever the same series of blots of
at least the length of a window occurs, a blot with the same value is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .groups import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Chains of equal blots are processed in parallel for this many steps, and then one by one.
_STEPS_TOGETHER: Final = 32


def winnowed(
    values: NDArray[np.uint64], counts: NDArray[np.int64], window: int, before: int = -1
) -> NDArray[np.int64]:
    """Return the indexes of the blots to keep. *counts* is the number of blots of each text.

    If *values* continue an earlier part, so that their first window follows the last window of that part, *before* is the
    index of the last blot that was kept there, relative to *values*. It may be returned again if it is not negative.
    """
    if window == 1:
        return np.arange(len(values))
    ends = np.cumsum(counts)
    is_short = (counts > 0) & (counts < window)
    short = _smallest_of_short(values, (ends - counts)[is_short], counts[is_short])
    if len(values) < window:
        return short
    smallest = windows(values, window, 1, _smaller)
    # Ignore windows that reach into the next text: 0 as their minimum keeps no blot, except blots of 0, which are the
    # smallest in any window.
    crossing = (ends[:-1] - (window - 1))[:, None] + np.arange(window - 1)
    smallest[crossing[(crossing >= 0) & (crossing < len(smallest))]] = 0
    padded = np.zeros(len(smallest) + 2 * (window - 1), dtype=np.uint64)
    padded[window - 1 : len(padded) - (window - 1)] = smallest
    # A blot is the smallest of some window if the largest minimum of the windows that contain it equals the blot.
    is_kept = values == windows(padded, window, 1, _larger)
    if len(short):
        is_kept[np.repeat(is_short, counts)] = False
    kept = _without_ties(np.flatnonzero(is_kept), values, smallest, ends, window, before)
    return np.sort(np.concatenate((kept, short))) if len(short) else kept


def _smallest_of_short(
    values: NDArray[np.uint64], begins: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The index of the smallest blot (the last of equal ones) of each text with fewer blots than a window."""
    if not len(begins):
        return begins
    firsts = np.cumsum(counts) - counts
    places = ranges(begins, counts)
    texts = np.repeat(np.arange(len(begins)), counts)
    order = np.lexsort((-places, values[places], texts))
    return places[order[firsts]]


def _without_ties(
    kept: NDArray[np.int64],
    values: NDArray[np.uint64],
    smallest: NDArray[np.uint64],
    ends: NDArray[np.int64],
    window: int,
    before: int,
) -> NDArray[np.int64]:
    """The candidates that robust winnowing keeps. Each candidate is the smallest blot of some window.

    There is a choice only in chains: equal candidates of a text at distances of less than *window*. No blot between two
    candidates of a chain is smaller, so the windows that select from a chain are consecutive. The first of them keeps its
    last candidate; the first window without this candidate keeps its own last candidate, and so on.
    """
    is_tied = values[kept[1:]] == values[kept[:-1]]
    is_tied &= kept[1:] - kept[:-1] < window
    links = np.flatnonzero(is_tied)
    if len(links):
        # A text often begins with the blot with which the previous text ends.
        links = links[
            np.searchsorted(ends, kept[links], "right") == np.searchsorted(ends, kept[links + 1], "right")
        ]
    if not len(links):
        return kept
    is_member = np.zeros(len(kept), dtype=bool)
    is_member[links] = is_member[links + 1] = True
    is_linked = np.zeros(len(kept), dtype=bool)
    is_linked[links + 1] = True
    chosen = _chosen(kept[is_member], is_linked[is_member], values, smallest, ends, window, before)
    return np.sort(np.concatenate((kept[~is_member], chosen)))


def _chosen(
    members: NDArray[np.int64],
    is_linked: NDArray[np.bool_],
    values: NDArray[np.uint64],
    smallest: NDArray[np.uint64],
    ends: NDArray[np.int64],
    window: int,
    before: int,
) -> NDArray[np.int64]:
    """The *members* of chains that are kept. *is_linked* is false for the first member of each chain."""
    heads = np.flatnonzero(~is_linked)
    tails = np.append(heads[1:], len(members)) - 1
    last_of = np.repeat(tails, tails - heads + 1)
    texts = np.searchsorted(ends, members, "right")
    text_ends = ends[texts]
    text_begins = np.append(0, ends)[texts[heads]]
    value = values[members]

    def last_before(limits: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(members, limits, "right") - 1, last)

    # The next kept member is the last one in the first window without this member, if this window's minimum is in the
    # chain.
    windows = members + 1
    is_whole = windows <= text_ends - window
    has_next = is_whole & (smallest[np.where(is_whole, windows, 0)] == value)
    following = np.where(has_next, last_before(members + window, last_of), -1)
    following[following <= np.arange(len(members))] = -1

    # Find the first window of each chain. Earlier windows have a smaller minimum.
    offsets = members[heads][:, None] + np.arange(1 - window, 1)
    is_inside = (offsets >= text_begins[:, None]) & (offsets <= text_ends[heads][:, None] - window)
    choosing = is_inside & (smallest[np.where(is_inside, offsets, 0)] == value[heads][:, None])
    firsts = members[heads] + 1 - window + np.argmax(choosing, axis=1)
    at = last_before(firsts + window - 1, tails)
    kept = int(np.searchsorted(members, before))
    if kept < len(members) and members[kept] == before:
        at[np.searchsorted(heads, kept, "right") - 1] = kept

    is_chosen = np.zeros(len(members), dtype=bool)
    for _ in range(_STEPS_TOGETHER):
        is_chosen[at] = True
        at = following[at]
        at = at[at >= 0]
        if not len(at):
            break
    else:
        _walk(at.tolist(), following, is_chosen)
    return members[is_chosen]


def _walk(places: list[int], following: NDArray[np.int64], is_chosen: NDArray[np.bool_]) -> None:
    """Continue each chain separately. In "a a a a ..." all steps are equal, so one slice selects the whole chain."""
    steps = following - np.arange(len(following))
    step_changes = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for place in places:
        at = place
        while at >= 0:
            step_change = step_changes[bisect_right(step_changes, at)]
            step = int(steps[at])
            if following[at] < 0:
                is_chosen[at] = True
                break
            is_chosen[at:step_change:step] = True
            last = at + (step_change - 1 - at) // step * step
            at = int(following[last])


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
