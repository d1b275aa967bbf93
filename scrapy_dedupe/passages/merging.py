"""Merging segments: which ones to merge, and how.

The memory use of a merge does not depend on the number of posts: they are read by ranges of keys from all segments, and
written sorted. Segments are compared with their checksums before they are copied, so that damage is refused instead of
getting a new, valid checksum.

The choice of segments keeps their number small, no matter how the index grew. A segment belongs to a tier by its size:
the lowest tier holds segments below 65,536, each further tier segments up to eight times larger. Eight neighbours of about
the same size are merged, so everything is written again once per tier, and a tier has at most seven segments. Only
neighbours are merged, since their order is the order in which documents were added. Smaller segments between two of a tier
count as part of that tier; otherwise they could pile up there. No merge
exceeds the largest possible segment. This is the logarithmic merge policy of Lucene (LogMergePolicy), with one addition:
the cheapest of the possible merges is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.tasks.progress import NO_PROGRESS, part

from .segment_layout import new_segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .segment_layout import SegmentEntry, SegmentWriter
    from .segments import Segment
    from .snapshot import IndexSnapshot

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


_POSTS = 1 << 19
"""How many posts are kept in memory, unless a single key has more."""

_COPIED = 1 << 12  # texts copied in one piece


def merge(snapshot: IndexSnapshot, chosen: slice, name: str, watch: Progress = NO_PROGRESS) -> SegmentEntry:
    """Write the living documents and texts of the *chosen* segments as the segment *name*, in their order.

    Raises StoreRefused for a damaged segment, StoreUnavailable if the folder cannot be written to.
    """
    segments = snapshot.segments[chosen]
    for segment in segments:
        segment.refuse_damage()
    is_alive_document, is_alive = snapshot.living(chosen)
    has_texts = snapshot.parameters.has_texts
    first_text = snapshot.text_bases[chosen.start]
    numbers = np.where(is_alive, np.cumsum(is_alive) - 1, -1)
    with new_segment(snapshot.folder, name, snapshot.parameters) as writer:
        with part(watch, "merge texts", int(np.count_nonzero(is_alive)), "texts"):
            bounds = np.cumsum([segment.text_count for segment in segments])[:-1]
            for segment, kept in zip(segments, np.split(is_alive, bounds), strict=True):
                _copy_texts(segment, kept, writer, watch)
        with part(watch, "merge documents", len(is_alive_document), "documents"):
            for number in (
                np.flatnonzero(is_alive_document) + snapshot.document_bases[chosen.start]
            ).tolist():
                text = int(snapshot.text_numbers[number]) - first_text
                is_here = 0 <= text < len(numbers)
                new = int(numbers[text]) if is_here else snapshot.digest_of_document(number)
                writer.add_document(snapshot.doc_id(number), snapshot.host_of_document(number), new)
                watch.advance(1)
        with part(watch, "merge posts", writer.post_count, "posts"):
            first_ordinals = np.append(0, np.cumsum(snapshot.post_counts(chosen)[is_alive], dtype=np.int64))
            for posts in snapshot.scan(_POSTS, chosen, in_order=False):
                texts = numbers[posts.texts - first_text]
                values = texts if has_texts else first_ordinals[texts] + posts.where
                writer.add_sorted_posts(posts.keys, values)
                watch.advance(len(posts))
                for segment in segments:
                    segment.forget()
    return writer.entry


def _copy_texts(segment: Segment, kept: NDArray[np.bool_], writer: SegmentWriter, watch: Progress) -> None:
    for start, stop in _runs(kept):
        ends = segment.section("blob ends")[start:stop].astype(np.int64)
        blobs = segment.stored_blobs(start, stop)
        columns = (
            *(segment.section(f"{kind} counts")[start:stop] for kind in ("token", "char", "post")),
            np.diff(ends, prepend=ends[-1] - len(blobs)),
            segment.section("blob sizes")[start:stop],
            segment.section("blob checksums")[start:stop],
        )
        writer.add_texts(segment.digests[start:stop].tobytes(), columns, blobs)
        segment.forget()
        watch.advance(stop - start)


def _runs(kept: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each run of True; long runs are split."""
    edges = np.flatnonzero(np.diff(kept, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        for piece in range(start, stop, _COPIED):
            yield piece, min(piece + _COPIED, stop)
