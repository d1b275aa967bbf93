"""Merging segments: which ones to merge, and how.

The memory use of a merge does not depend on the number of posts. Posts are read by ranges of keys from all segments, and written sorted. Segments are compared with their checksums before
they are copied, so that damage is refused instead of getting a new, valid checksum. Blobs keep their checksums.

The choice of segments keeps their number small, no matter how the index grew. A segment belongs to a tier by its size: the lowest tier holds segments below 65,536, each further tier segments up to
eight times larger. Eight neighbours of about the same size are merged, so everything is written again once per tier, and
a tier has at most seven segments. Only neighbours are merged, since their order is the order in which documents were
added. Smaller segments between two of a tier count as part of that tier; otherwise they could pile up there. No merge
exceeds the largest possible segment. This is the logarithmic merge policy of Lucene (LogMergePolicy), with one addition:
the cheapest of the possible merges is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.tasks.progress import NO_PROGRESS, part

from .segment_layout import DIGEST_SIZE, SegmentEntry, new_segment
from .segments import Segment, key_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .segment_layout import SegmentWriter
    from .values import Parameters, Posts

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


def merge(
    segments: Sequence[Segment],
    alive: Sequence[NDArray[np.bool_]],
    texts_alive: Sequence[NDArray[np.bool_]],
    folder: Path,
    name: str,
    parameters: Parameters,
    watch: Progress = NO_PROGRESS,
) -> SegmentEntry:
    """Write the living documents and texts of *segments* as the segment *name*, in their order.

    *alive* has a mask of the documents to keep for each segment, *texts_alive* a mask of the texts. A text that several
    segments hold is kept once, in its first position, and all its documents refer to that copy. Raises StoreRefused for a
    damaged segment, StoreUnavailable if the folder cannot be written to, ValueError if a document is kept but its text,
    in one of the segments, is not.
    """
    for segment in segments:
        segment.refuse_damage()
    numbers = _number_texts(segments, texts_alive)
    with new_segment(folder, name, parameters) as writer:
        with part(watch, "merge texts", numbers.count, "texts"):
            for segment, kept in zip(segments, numbers.kept, strict=True):
                _copy_texts(segment, kept, writer, watch)
        with part(watch, "merge documents", sum(map(len, alive)), "documents"):
            for place, segment in enumerate(segments):
                _copy_documents(segments, place, alive[place], numbers, writer)
                segment.forget()
                watch.advance(len(alive[place]))
        _merge_posts(segments, numbers, parameters, writer, watch)
    return writer.entry


@dataclass(frozen=True, slots=True)
class _Numbers:
    """For the texts of each segment: the new numbers (-1 if not kept), and which are copied from this segment."""

    new: list[NDArray[np.int64]]
    kept: list[NDArray[np.bool_]]
    count: int


def _number_texts(segments: Sequence[Segment], texts_alive: Sequence[NDArray[np.bool_]]) -> _Numbers:
    digests = np.concatenate(
        [np.zeros((0, DIGEST_SIZE), np.uint8), *(segment.digests for segment in segments)]
    )
    is_alive = np.concatenate([np.zeros(0, np.bool_), *texts_alive])
    if len(is_alive) != len(digests):
        raise ValueError("texts_alive must have one value per text")
    texts = np.flatnonzero(is_alive)
    halves = digests[texts].view("<u8")
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: of equal digests, the first text comes first
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (halves[order[1:]] != halves[order[:-1]]).any(axis=1)
    firsts = texts[order[is_first]]
    kept = np.zeros(len(digests), np.bool_)
    kept[firsts] = True
    new = np.full(len(digests), -1, np.int64)
    new[kept] = np.arange(len(firsts))
    new[texts[order]] = new[firsts[np.cumsum(is_first) - 1]]
    bounds = list(pairwise(accumulate((segment.text_count for segment in segments), initial=0)))
    return _Numbers(
        [new[start:stop] for start, stop in bounds], [kept[start:stop] for start, stop in bounds], len(firsts)
    )


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


def _copy_documents(
    segments: Sequence[Segment],
    place: int,
    alive: NDArray[np.bool_],
    numbers: _Numbers,
    writer: SegmentWriter,
) -> None:
    segment = segments[place]
    if len(alive) != segment.document_count:
        raise ValueError("alive must have one value per document")
    foreign = segment.documents.foreign
    foreign_numbers = _numbers_of(foreign, segments, numbers)
    hosts, document_hosts = segment.documents.hosts, segment.documents.host_numbers
    texts = segment.documents.texts
    for number, doc_id in enumerate(segment.documents.doc_ids()):
        if not alive[number]:
            continue
        text = int(texts[number])
        new: int | bytes
        if text >= 0:
            new = int(numbers.new[place][text])
            if new < 0:
                raise ValueError(f"the document {doc_id!r} is alive, but its text is not")
        else:
            new = int(foreign_numbers[-1 - text])
            if new < 0:
                new = foreign[-1 - text].tobytes()
        writer.add_document(doc_id, hosts[document_hosts[number]], new)


def _numbers_of(
    digests: NDArray[np.uint8], segments: Sequence[Segment], numbers: _Numbers
) -> NDArray[np.int64]:
    """The new numbers of the texts with these digests; -1 for digests that no segment holds."""
    found = np.full(len(digests), -1, np.int64)
    for segment, new in zip(segments, numbers.new, strict=True):
        texts = segment.texts_of(digests)
        is_here = texts >= 0
        found[is_here] = np.maximum(found[is_here], new[texts[is_here]])
    return found


def _merge_posts(
    segments: Sequence[Segment],
    numbers: _Numbers,
    parameters: Parameters,
    writer: SegmentWriter,
    watch: Progress,
) -> None:
    # Only the copy of a text that is kept provides its posts.
    sources = [
        np.where(kept, new, -1).astype(np.int32) for new, kept in zip(numbers.new, numbers.kept, strict=True)
    ]
    counts = [
        segment.section("post counts")[kept] for segment, kept in zip(segments, numbers.kept, strict=True)
    ]
    first_ordinals = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]), dtype=np.int64)
    n_posts = int(first_ordinals[-1])
    bounds = key_bounds(segments, _POSTS)
    with part(watch, "merge posts", n_posts, "posts"):
        for low_key, high_key in pairwise(bounds):
            keys, values = [], []
            for segment, source in zip(segments, sources, strict=True):
                posts = segment.posts_between(low_key, high_key)
                some_keys, some_values = _renumbered(
                    posts, source, None if parameters.has_texts else first_ordinals
                )
                keys.append(some_keys)
                values.append(some_values)
                segment.forget()
            writer.add_sorted_posts(np.concatenate(keys), np.concatenate(values))
            watch.advance(sum(map(len, keys)))


def _renumbered(
    posts: Posts, source: NDArray[np.int32], first_ordinals: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    texts = source[posts.texts].astype(np.int64)
    stays = texts >= 0
    if not stays.all():
        posts, texts = posts.picked(stays), texts[stays]
    return posts.keys, texts if first_ordinals is None else first_ordinals[texts] + posts.where
