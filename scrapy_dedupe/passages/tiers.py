"""Which segments of an index are made into one, so that there are few however it grew.

A segment belongs to a tier by its size: the lowest has those below 65,536, each further one those of up to eight times
more. Eight neighbours of about one size become one, so whatever is written is written again once a tier, and there are
at most seven segments a tier. Only neighbours are merged, since their order is that in which documents were added;
smaller ones between two of a tier count as of that tier, or they could pile up there. No segment gets larger than one
can be. This is the logarithmic merge policy of Lucene (LogMergePolicy), which among the choices it has takes the
cheapest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FAN_IN = 8
"""How many segments are made into one."""

LOWEST = 65_536
"""Segments of fewer posts and documents than this are in the lowest tier."""

LARGEST = 1 << 31
"""What is merged has at most so many posts and documents, which are numbered with 32 bits in a segment."""


def next_merge(sizes: Sequence[int], largest: int = LARGEST) -> slice | None:
    """Which segments to merge first, by their sizes in posts and documents; None if there are few enough.

    What is merged has at most *largest* of them.

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
    """Which neighbours to merge so that as few segments are left as can be.

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
