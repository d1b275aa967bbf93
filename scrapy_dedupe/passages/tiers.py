"""The choice of segments to merge, which keeps their number small, no matter how the index grew.

A segment belongs to a tier by its size: the lowest tier holds segments below 65,536, each further tier segments up to
eight times larger. Eight neighbours of about the same size are merged, so everything is written again once per tier, and
a tier has at most seven segments. Only neighbours are merged, since their order is the order in which documents were
added. Smaller segments between two of a tier count as part of that tier; otherwise they could pile up there. No merge
exceeds the largest possible segment. This is the logarithmic merge policy of Lucene (LogMergePolicy), with one addition:
the cheapest of the possible merges is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FAN_IN = 8
"""How many segments are merged into one."""

LOWEST = 65_536
"""Segments of fewer posts and documents than this are in the lowest tier."""

LARGEST = 1 << 31
"""The largest merge, in posts and documents, which have 32-bit numbers within a segment."""


def next_merge(sizes: Sequence[int], largest: int = LARGEST) -> slice | None:
    """The segments to merge next, given the sizes of all in posts and documents; None if there are few enough.

    The merged segment has at most *largest* posts and documents.

    >>> next_merge([500_000, 9, 9, 9, 9, 9, 9, 9, 9])
    slice(1, 9, None)
    >>> next_merge([500_000, 9, 9, 9]) is None
    True
    """
    tiers = [_tier(size) for size in sizes]
    begin = 0
    merges: list[slice] = []
    while begin < len(tiers):
        highest = max(tiers[begin:])
        end = len(tiers) - tiers[::-1].index(highest)
        merges += [slice(start, start + FAN_IN) for start in range(begin, end - FAN_IN + 1)]
        begin = end
    totals = [sum(sizes[merge]) for merge in merges]
    if not totals or min(totals) > min(largest, LARGEST):
        return None
    return merges[totals.index(min(totals))]


def fewest(sizes: Sequence[int]) -> list[slice]:
    """The merges of neighbours that leave as few segments as possible.

    >>> fewest([5, 5, LARGEST, 5])
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    groups: list[slice] = []
    total = 0
    for number, size in enumerate(sizes):
        if groups and total + size <= LARGEST:
            groups[-1] = slice(groups[-1].start, number + 1)
            total += size
        else:
            groups.append(slice(number, number + 1))
            total = size
    return groups


def _tier(size: int) -> int:
    tier = 0
    while size >= LOWEST:
        size //= FAN_IN
        tier += 1
    return tier
