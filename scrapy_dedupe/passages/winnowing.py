"""Winnowing: of every few blots in a row the smallest is kept.

After Schleimer, Wilkerson and Aiken, "Winnowing: local algorithms for document fingerprinting" (SIGMOD 2003), in its robust
form: among equal ones the one that was kept before, if it is in the window, and otherwise the last. So of "a a a a ..." too
one blot a window is kept, and not every one.

What is kept of a window does not depend on what stands around it, unless some of its smallest are equal, so of a stretch of
blots as long as a window, wherever it stands, one of the same value is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .groups import ranges

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Chains of equal blots are walked along side by side for so many steps, and after that one by one.
_STEPS_TOGETHER: Final = 32


def winnowed(
    values: NDArray[np.uint64], counts: NDArray[np.int64], window: int, before: int = -1
) -> NDArray[np.int64]:
    """The numbers of the blots that are kept; *counts* tells how many each text has.

    If *values* go on where others ended, so that the first window is the one after the last of those, *before* is the
    number of the last blot that was kept of them. If that is not below 0, it may be kept again.
    """
    if window == 1:
        return np.arange(len(values))
    ends = np.cumsum(counts)
    is_short = (counts > 0) & (counts < window)
    short = _smallest_of_short(values, (ends - counts)[is_short], counts[is_short])
    if len(values) < window:
        return short
    smallest = windows(values, window, 1, _smaller)
    # Those that reach into the next text are none. A blot of 0 is the smallest wherever it is.
    crossing = (ends[:-1] - (window - 1))[:, None] + np.arange(window - 1)
    smallest[crossing[(crossing >= 0) & (crossing < len(smallest))]] = 0
    padded = np.zeros(len(smallest) + 2 * (window - 1), dtype=np.uint64)
    padded[window - 1 : len(padded) - (window - 1)] = smallest
    # A blot is the smallest of a window if the largest of the minima of its windows is not below it.
    is_kept = values == windows(padded, window, 1, _larger)
    if len(short):
        is_kept[np.repeat(is_short, counts)] = False
    kept = _without_ties(np.flatnonzero(is_kept), values, smallest, ends, window, before)
    return np.sort(np.concatenate((kept, short))) if len(short) else kept


def _smallest_of_short(
    values: NDArray[np.uint64], begins: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The number of the smallest blot, the last of equal ones, of each text that has not a whole window."""
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
    """Of candidates, each the smallest of some window, those that robust winnowing keeps.

    It has a choice in chains of equal candidates of a text, each less than a *window* behind the one before. Nothing
    between two of them is smaller, so the windows that choose among a chain lie in a row: the first of them takes the
    last of the chain that it has, and the first that has not that one any more the last that it has, and so on.
    """
    is_tied = values[kept[1:]] == values[kept[:-1]]
    is_tied &= kept[1:] - kept[:-1] < window
    links = np.flatnonzero(is_tied)
    if len(links):
        # One text often begins as the one before has ended.
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
    """The *members* of chains that are kept; each chain begins with one that *is_linked* is not set of."""
    heads = np.flatnonzero(~is_linked)
    tails = np.append(heads[1:], len(members)) - 1
    last_of = np.repeat(tails, tails - heads + 1)
    texts = np.searchsorted(ends, members, "right")
    text_ends = ends[texts]
    text_begins = np.append(0, ends)[texts[heads]]
    value = values[members]

    def last_before(limits: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(members, limits, "right") - 1, last)

    # After a member comes the last one of the first window without it, if a member is the smallest there.
    windows = members + 1
    is_whole = windows <= text_ends - window
    goes_on = is_whole & (smallest[np.where(is_whole, windows, 0)] == value)
    following = np.where(goes_on, last_before(members + window, last_of), -1)
    following[following <= np.arange(len(members))] = -1

    # The first window of a chain: those that begin earlier have something smaller.
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
    """Go on in each chain alone. In "a a a a ..." all steps are equal, so that one slice has the whole chain."""
    steps = following - np.arange(len(following))
    turns = [*(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for place in places:
        at = place
        while at >= 0:
            turn = turns[bisect_right(turns, at)]
            step = int(steps[at])
            if following[at] < 0:
                is_chosen[at] = True
                break
            is_chosen[at:turn:step] = True
            last = at + (turn - 1 - at) // step * step
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
    """What *join* makes of values[i], values[i + step], ..., values[i + (k - 1) x step], for every i.

    It is given the results of shorter windows and how many items the first one has, so that log2(k) calls are enough.
    """
    # Windows of 1, 2, 4, ... items; those that make up k are put one behind the other.
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
