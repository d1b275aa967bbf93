"""Checking whether an index is intact and consistent.

The checks are:

- the manifest, and whether its files exist with the right sizes;
- each segment: its checksums, its order, and whether its texts match their digests;
- the deleted documents: whether their segments have them;
- the documents: whether some segment holds the text of each, and whether each id occurs only once;
- in full, the posts: the blots of every text are computed again and compared with its stored keys and spots. In an index
  without texts, only the count and numbering of blots can be compared with the outlines.

Posts are compared by their count and by the sum, modulo 2^64, of their hashes.
This takes 16 bytes per text for any number of posts, and does not depend on their order.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part

from .catalogue import orphans, read_deleted, read_manifest
from .characters import mixed
from .folder_files import missing_file
from .preparation import batches_of, prepare
from .segment_layout import DIGEST_SIZE, SPOT_BITS, name_head
from .segments import Segment, key_bounds
from .snapshot import IndexSnapshot, no_index, refuse_unknown_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .catalogue import Manifest
    from .segment_layout import SegmentEntry

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
    with part(watch, segment.blobs.file.path.name, segment.text_count, "texts"):
        yield from _check_blobs(segment, watch)


def _check_posts(segment: Segment, watch: Progress) -> Iterator[str]:
    counts = np.zeros(segment.text_count, np.int64)
    seen = None if segment.has_texts else np.zeros(segment.post_count, np.bool_)
    total = 0
    bounds = key_bounds([segment], _POSTS)
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
    texts = segment.digests.texts_of(segment.digests.array)
    lost = np.flatnonzero(texts != np.arange(segment.text_count))
    if len(lost):
        yield f"{segment.path}: {len(lost)} texts are not found by their digests, the first is text {lost[0]}."


def _check_documents(segment: Segment, watch: Progress) -> Iterator[str]:
    _ = (
        segment.documents.texts,
        segment.documents.host_numbers,
        segment.documents.hosts,
    )  # accessing them checks their ranges
    used = np.unique(segment.documents.texts[segment.documents.texts < 0])
    if len(used) != len(segment.documents.foreign):
        yield f"{segment.path}: {len(segment.documents.foreign) - len(used)} foreign digests have no document."
    heads = np.fromiter(
        (name_head(doc_id.encode()) for doc_id in counted(segment.documents.doc_ids(), watch)),
        np.uint32,
        segment.document_count,
    )
    order = np.argsort(heads, kind="stable")
    sorted_heads, name_order = segment.documents.sorted_names()
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
        yield f"{segment.blobs.file.path}: {found - _MOST_TEXTS} more texts are damaged."


def _problem_of(segment: Segment, text: int) -> str | None:
    if not segment.has_texts:
        segment.outline(text)
        return None
    raw = segment.blobs.inflated(text)
    if hashlib.sha256(raw).digest()[:DIGEST_SIZE] != segment.digests.array[text].tobytes():
        return f"{segment.blobs.file.path}: text {text} does not match its digest."
    try:
        length = len(raw.decode())
    except UnicodeDecodeError:
        return f"{segment.blobs.file.path}: text {text} is not valid UTF-8."
    if length != int(segment.char_counts[text]):
        return f"{segment.blobs.file.path}: text {text} has a wrong length."
    return None


MOST_PROBLEMS = 1_000
"""How many problems are reported at most."""

_TRIES = 50
_MOST_POSTS = 1_000_000
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

    Raises StoreRefused if there is no index, or one of another version, or if its manifest is damaged; StoreUnavailable
    if it cannot be read, or if it is written so often that files are always removed before they can be opened.
    """
    for _ in range(_TRIES):
        manifest = read_manifest(folder)
        if manifest is None:
            raise no_index(folder)
        refuse_unknown_parameters(folder, manifest.parameters)
        with ExitStack() as files:
            opened = _opened(folder, manifest, files)
            # All files are open now; they stay readable even if a writer removes them.
            if opened is not None:
                return _checked(folder, manifest, opened, full, watch)
    raise StoreUnavailable(
        f"The passage index {folder} is being written continuously, so it cannot be checked. Check it again when no"
        " process is writing."
    )


@dataclass(slots=True)
class _Opened:
    """The parts of an index that could be opened, and problems of the rest. *reason* says why there is no snapshot."""

    snapshot: IndexSnapshot | None
    segments: list[tuple[SegmentEntry, Segment, int]]  # the int is the number of deleted documents
    problems: list[str]
    reason: str = ""


def _opened(folder: Path, manifest: Manifest, files: ExitStack) -> _Opened | None:
    """Open all files; None if some are missing or replaced because a writer has changed the index."""
    try:
        snapshot = files.enter_context(IndexSnapshot(folder, manifest))
    except (StoreRefused, FileNotFoundError) as error:
        is_gone, reason = isinstance(error, FileNotFoundError), _sentence(folder, error)
    else:
        parts = zip(manifest.segments, snapshot.segments, strict=True)
        return _Opened(
            snapshot,
            [(entry, segment, len(snapshot.deleted[i])) for i, (entry, segment) in enumerate(parts)],
            [],
        )
    opened = _Opened(None, [], [], reason)
    failed: list[SegmentEntry] = []
    for entry in manifest.segments:
        try:
            segment = files.enter_context(closing(Segment(folder, entry, manifest.parameters)))
            deleted = manifest.deleted.get(entry.name)
            gone = 0 if deleted is None else len(read_deleted(folder, deleted, segment.document_count))
            opened.segments.append((entry, segment, gone))
        except (StoreRefused, FileNotFoundError) as error:
            failed.append(entry)
            opened.problems.append(_sentence(folder, error))
    newer = read_manifest(folder)
    if newer != manifest:
        # The writer has not caused damage in files that the newer manifest still names.
        is_damage = newer is not None and any(
            entry in newer.segments and newer.deleted.get(entry.name) == manifest.deleted.get(entry.name)
            for entry in failed
        )
        if (failed or is_gone) and not is_damage:
            return None
    return opened


def _sentence(folder: Path, error: StoreRefused | FileNotFoundError) -> str:
    if isinstance(error, StoreRefused):
        return str(error)
    return str(missing_file(folder, error))


def _checked(folder: Path, manifest: Manifest, opened: _Opened, full: bool, watch: Progress) -> IndexCheck:
    problems: list[str] = []
    _add(problems, opened.problems)
    documents = texts = posts = 0
    with part(watch, "check", sum(entry.posts_size + entry.blobs_size for entry, _, _ in opened.segments)):
        for entry, segment, deleted in opened.segments:
            texts += segment.text_count
            posts += segment.post_count
            documents += segment.document_count - deleted
            try:
                _add(problems, check_segment(segment, watch))
                if full and not problems:
                    _add(problems, _wrong_posts(segment, entry, manifest, watch))
            except StoreRefused as error:
                _add(problems, [str(error)])
            watch.advance(entry.posts_size + entry.blobs_size)
    if not problems:
        _add(problems, [opened.reason] if opened.snapshot is None else _wrong_documents(opened.snapshot))
    return IndexCheck(
        tuple(problems), len(manifest.segments), documents, texts, posts, tuple(orphans(folder, manifest))
    )


def _add(problems: list[str], found: Iterator[str] | list[str]) -> None:
    for problem in found:
        if len(problems) >= MOST_PROBLEMS:
            return
        problems.append(problem)


def _wrong_documents(snapshot: IndexSnapshot) -> Iterator[str]:
    """Documents that occur more than once across all segments."""
    hashes = np.fromiter(
        (_hash(document.doc_id) for document in snapshot.iter_documents()),
        np.uint64,
        snapshot.document_count,
    )
    hashes.sort()
    often = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not often:
        return
    seen = set()
    for document in snapshot.iter_documents():
        if _hash(document.doc_id) in often:
            if document.doc_id in seen:
                yield f"{snapshot.folder}: the document {document.doc_id!r} occurs more than once"
            seen.add(document.doc_id)


def _hash(doc_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(doc_id.encode(), digest_size=8).digest(), "little")


def _wrong_posts(segment: Segment, entry: SegmentEntry, manifest: Manifest, watch: Progress) -> Iterator[str]:
    """The texts of a segment whose posts do not match their blots."""
    counts = np.zeros(segment.text_count, np.int64)
    sums = np.zeros(segment.text_count, np.uint64)
    has_texts = manifest.parameters.has_texts
    bounds = key_bounds([segment], _MOST_POSTS)
    with part(watch, f"{entry.name}: posts", segment.post_count, "posts"):
        for low, high in pairwise(bounds):
            posts = segment.posts_between(low, high)
            counts += np.bincount(posts.texts, minlength=len(counts))
            where = posts.where.astype(np.uint64)
            np.add.at(sums, posts.texts, mixed(_joined(posts.keys, where) if has_texts else where))
            watch.advance(len(posts.keys))
    expected = _expected_of_texts(segment, manifest) if has_texts else _expected_of_outlines(segment)
    with part(watch, f"{entry.name}: blots", segment.text_count, "texts"):
        for text, count, total, tokens in counted(expected, watch):
            name = f"{entry.name}, text {text}"
            if (int(counts[text]), int(sums[text])) != (count, total):
                yield f"{name}: its posts do not match its blots ({counts[text]} posts, {count} expected)"
            if tokens is not None and int(segment.token_counts[text]) != tokens:
                yield f"{name}: it has {tokens} tokens instead of {segment.token_counts[text]}"


def _expected_of_texts(segment: Segment, manifest: Manifest) -> Iterator[tuple[int, int, int, int | None]]:
    """For each text its number, and the count and sum of its posts and its token count, computed again."""
    counts = segment.char_counts.tolist()
    for numbers in batches_of(range(segment.text_count), counts.__getitem__, _MOST_CHARACTERS):
        found = [("x", "", segment.blobs.inflated(number).decode(errors="replace")) for number in numbers]
        prepared = prepare(found, manifest.parameters)
        ends = np.cumsum(prepared.post_counts)
        for number, text in zip(numbers, prepared.texts.tolist(), strict=True):
            count = int(prepared.post_counts[text])
            own = slice(int(ends[text]) - count, int(ends[text]))
            posts = _joined(prepared.keys[own], prepared.spots[own])
            yield number, count, int(mixed(posts).sum(dtype=np.uint64)), int(prepared.token_counts[text])


def _expected_of_outlines(segment: Segment) -> Iterator[tuple[int, int, int, int | None]]:
    for number in range(segment.text_count):
        count = len(segment.outline(number).token_starts)
        total = mixed(np.arange(count, dtype=np.uint64)).sum(dtype=np.uint64)
        yield number, count, int(total), None


def _joined(keys: NDArray[np.uint64], spots: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Combine key and spot of each post into one number."""
    return (keys << np.uint64(SPOT_BITS)) | spots.astype(np.uint64)
