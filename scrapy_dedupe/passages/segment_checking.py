"""Checking a whole segment; each problem is described in a sentence."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part

from .segment_layout import DIGEST_SIZE, name_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .segments import Segment

_POSTS = 1 << 19  # posts read at a time
_MOST_TEXTS = 20  # damaged texts that are named individually


def check_segment(segment: Segment, watch: Progress = NO_PROGRESS) -> Iterator[str]:
    """Yield a sentence for each problem in *segment*.

    Checksums are compared first; if one is wrong, no further checks are made. Then the order, ranges and counts of posts,
    names and digests are checked, and every blob: it must decompress, and match the digest of its text.
    """
    damage = list(segment.damage())
    yield from damage
    if damage:
        return
    for unit, total, part_check in (
        ("posts", segment.post_count, _check_posts),
        ("texts", segment.text_count, _check_texts),
        ("documents", segment.document_count, _check_documents),
    ):
        try:
            with part(watch, f"{segment.path.name}: {unit}", total, unit):
                yield from part_check(segment, watch)
        except StoreRefused as error:
            yield str(error)
    with part(watch, segment.blobs_path.name, segment.text_count, "texts"):
        yield from _check_blobs(segment, watch)


def _check_posts(segment: Segment, watch: Progress) -> Iterator[str]:
    counts = np.zeros(segment.text_count, np.int64)
    seen = None if segment.has_texts else np.zeros(segment.post_count, np.bool_)
    total = 0
    bounds = segment.key_chunks(_POSTS)
    for low_key, high_key in pairwise(bounds):
        posts = segment.posts_between(low_key, high_key)
        total += len(posts.keys)
        watch.advance(len(posts.keys))
        keys, texts, where = posts.keys, posts.texts, posts.where
        # All posts of a key are in the same chunk, so order within the chunks is order throughout.
        is_after = (
            (keys[1:] > keys[:-1])
            | (
                (keys[1:] == keys[:-1])
                & (
                    (texts[1:] > texts[:-1])
                    # A text has one post per key, except in an index without texts, which has one per blot.
                    | ((seen is not None) & (texts[1:] == texts[:-1]) & (where[1:] > where[:-1]))
                )
            )
        )
        if not is_after.all():
            yield f"{segment.path}: the posts of keys from {low_key} to {high_key} are out of order."
        counts += np.bincount(texts, minlength=segment.text_count)
        if seen is not None:
            seen[segment.first_ordinals[texts] + where] = True
    if total != segment.post_count:
        yield f"{segment.path}: only {total} of {segment.post_count} posts can be reached."
    wrong = np.flatnonzero(counts != segment.post_counts)
    if len(wrong):
        yield f"{segment.path}: {len(wrong)} texts have wrong post counts, the first is text {wrong[0]}."
    if seen is not None and not seen.all():
        yield f"{segment.path}: {np.count_nonzero(~seen)} blots have no post."


def _check_texts(segment: Segment, watch: Progress) -> Iterator[str]:
    texts = segment.texts_of_digests(segment.digests)
    lost = np.flatnonzero(texts != np.arange(segment.text_count))
    if len(lost):
        yield f"{segment.path}: {len(lost)} texts are not found by their digests, the first is text {lost[0]}."


def _check_documents(segment: Segment, watch: Progress) -> Iterator[str]:
    _ = segment.document_texts, segment.document_hosts, segment.hosts  # accessing them checks their ranges
    used = np.unique(segment.document_texts[segment.document_texts < 0])
    if len(used) != len(segment.foreign):
        yield f"{segment.path}: {len(segment.foreign) - len(used)} foreign digests have no document."
    heads = np.fromiter(
        (name_head(doc_id.encode()) for doc_id in counted(segment.doc_ids(), watch)),
        np.uint32,
        segment.document_count,
    )
    order = np.argsort(heads, kind="stable")
    sorted_heads, name_order = segment.name_tables()
    if not (np.array_equal(heads[order], sorted_heads) and np.array_equal(order, name_order)):
        yield f"{segment.path}: the order of its names is wrong."


def _check_blobs(segment: Segment, watch: Progress) -> Iterator[str]:
    found = 0
    for text in counted(range(segment.text_count), watch):
        try:
            problem = _problem_of(segment, text)
        except StoreRefused as error:
            problem = str(error)
        if problem:
            found += 1
            if found <= _MOST_TEXTS:
                yield problem
    if found > _MOST_TEXTS:
        yield f"{segment.blobs_path}: {found - _MOST_TEXTS} more texts are damaged."


def _problem_of(segment: Segment, text: int) -> str | None:
    if not segment.has_texts:
        segment.outline(text)
        return None
    raw = segment.blob(text)
    if hashlib.sha256(raw).digest()[:DIGEST_SIZE] != _digest(segment.digests, text):
        return f"{segment.blobs_path}: text {text} does not match its digest."
    try:
        length = len(raw.decode())
    except UnicodeDecodeError:
        return f"{segment.blobs_path}: text {text} is not valid UTF-8."
    if length != int(segment.char_counts[text]):
        return f"{segment.blobs_path}: text {text} has a wrong length."
    return None


def _digest(digests: NDArray[np.uint8], text: int) -> bytes:
    return digests[text].tobytes()
