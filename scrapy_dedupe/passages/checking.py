"""Checking whether an index is intact and consistent.

The checks are:

- the manifest, and whether its files exist with the right sizes;
- the checksums of each segment;
- the documents: whether some segment holds the text of each, and whether each id occurs only once;
- in full, the texts: the digest and the blots of every text are computed again and compared with those in its segment. In
  an index without texts, only the count and numbering of blots can be compared with the outlines.

Posts are compared by their count and by the sum, modulo 2^64, of their hashes.
This takes 16 bytes per text for any number of posts, and does not depend on their order.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part

from .catalogue import orphans
from .characters import mixed
from .preparation import batches_of, prepare
from .segments import key_bounds
from .snapshot import IndexSnapshot, open_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .segments import Segment
    from .values import Parameters

    Expected = tuple[int, NDArray[np.uint64], int | None, bytes | None]
    """The number of a text, the values of its posts, its token count and its digest."""

MOST_PROBLEMS = 1_000
"""How many problems are reported at most."""

_MOST_POSTS = 1 << 19  # read at a time
_MOST_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The result of a check.

    *segments*, *documents* (without deleted ones), *texts* and *posts* are counts, as far as the segments can be
    opened. *orphans* are files of a writer that is running or was stopped; the next writer removes them. They are not a
    problem.
    """

    problems: tuple[str, ...]
    segments: int
    documents: int
    texts: int
    posts: int
    orphans: tuple[str, ...] = ()


def check(folder: Path, full: bool = False, watch: Progress = NO_PROGRESS) -> IndexCheck:
    """Check the index in *folder*. With *full*, also check the posts if nothing else is wrong.

    Raises the exceptions of `snapshot.open_files`.
    """
    # Open files stay readable even if a writer removes them.
    manifest, files = open_files(folder)
    with closing(files):
        problems = list(map(str, files.errors))
        entries = [segment.entry for segment in files.segments]
        with part(watch, "check", sum(entry.size for entry in entries)):
            for segment in files.segments:
                if damage := segment.damage():
                    problems.append(f"{segment.path}: {damage}.")
                watch.advance(segment.entry.size)
        if not problems:
            try:
                found = _problems_of(IndexSnapshot(folder, manifest, files), full, watch)
                problems += islice(found, MOST_PROBLEMS)
            except StoreRefused as error:
                problems.append(str(error))
    return IndexCheck(
        tuple(problems),
        len(manifest.segments),
        sum(int(manifest.living(entry).sum()) for entry in entries),
        sum(entry.texts for entry in entries),
        sum(entry.posts for entry in entries),
        tuple(orphans(folder, manifest)),
    )


def _problems_of(snapshot: IndexSnapshot, full: bool, watch: Progress) -> Iterator[str]:
    """Yield a sentence for each document that occurs more than once and, with *full*, for each wrong text."""
    seen: set[bytes] = set()
    for document in snapshot.iter_documents():
        head = hashlib.blake2b(document.doc_id.encode(), digest_size=16).digest()
        if head in seen:
            yield f"{snapshot.folder}: the document {document.doc_id!r} occurs more than once"
        seen.add(head)
    for segment in snapshot.segments if full else ():
        yield from _wrong_texts(segment, snapshot.parameters, watch)


def _wrong_texts(segment: Segment, parameters: Parameters, watch: Progress) -> Iterator[str]:
    """The texts of a segment that do not match their digests, or whose posts do not match their blots."""
    counts, sums = _counts_and_sums(segment, watch)
    expected = (
        _expected_of_texts(segment, parameters) if parameters.has_texts else _expected_of_outlines(segment)
    )
    stored_counts, token_counts = segment.section("post counts"), segment.section("token counts")
    with part(watch, f"{segment.name}: blots", segment.text_count, "texts"):
        for text, values, tokens, digest in counted(expected, watch):
            name = f"{segment.name}, text {text}"
            if digest is not None and digest != segment.digests[text].tobytes():
                yield f"{name}: it does not match its digest"
            found = int(stored_counts[text]), int(counts[text]), sums[text]
            if found != (len(values), len(values), mixed(values).sum(dtype=np.uint64)):
                yield f"{name}: its posts do not match its blots ({counts[text]} posts, {len(values)} expected)"
            if tokens is not None and tokens != token_counts[text]:
                yield f"{name}: it has {tokens} tokens instead of {token_counts[text]}"


def _counts_and_sums(segment: Segment, watch: Progress) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """For each text how many posts it has, and the sum of their hashes."""
    counts, sums = np.zeros(segment.text_count, np.int64), np.zeros(segment.text_count, np.uint64)
    with part(watch, f"{segment.path.name}: posts", segment.post_count, "posts"):
        for low_key, high_key in pairwise(key_bounds([segment], _MOST_POSTS)):
            posts = segment.posts_between(low_key, high_key)
            counts += np.bincount(posts.texts, minlength=segment.text_count)
            hashed = posts.keys if segment.has_texts else posts.where.astype(np.uint64)
            np.add.at(sums, posts.texts, mixed(hashed))
            watch.advance(len(posts))
    return counts, sums


def _expected_of_texts(segment: Segment, parameters: Parameters) -> Iterator[Expected]:
    """What the segment must have of each text, computed again."""
    counts = segment.section("char counts").tolist()
    for numbers in batches_of(range(segment.text_count), counts.__getitem__, _MOST_CHARACTERS):
        found = [("x", "", segment.blob(number).decode(errors="replace")) for number in numbers]
        prepared = prepare(found, parameters)
        bounds = np.append(0, np.cumsum(prepared.post_counts)).tolist()
        for number, text in zip(numbers, prepared.texts.tolist(), strict=True):
            keys = prepared.keys[bounds[text] : bounds[text + 1]]
            yield number, keys, int(prepared.token_counts[text]), prepared.digests[text].tobytes()


def _expected_of_outlines(segment: Segment) -> Iterator[Expected]:
    for number in range(segment.text_count):
        yield number, np.arange(len(segment.outline(number)), dtype=np.uint64), None, None
