"""Checking whether an index is intact and consistent.

The checks are:

- the manifest, and whether its files exist with the right sizes;
- each segment: its checksums, its order, and whether its texts match their digests;
- the documents: whether some segment holds the text of each, and whether each id occurs only once;
- in full, the posts: the blots of every text are computed again and compared with its stored keys. In an index without
  texts, only the count and numbering of blots can be compared with the outlines.

Posts are compared by their count and by the sum, modulo 2^64, of their hashes.
This takes 16 bytes per text for any number of posts, and does not depend on their order.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part

from .catalogue import orphans, read_manifest
from .characters import mixed
from .folder_files import missing_file
from .preparation import batches_of, prepare
from .segment_layout import DIGEST_SIZE, name_head
from .segments import Segment, key_bounds
from .snapshot import no_index, refuse_unknown_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .catalogue import Manifest
    from .segment_layout import SegmentEntry
    from .values import Parameters

MOST_PROBLEMS = 1_000
"""How many problems are reported at most."""

_TRIES = 50
_MOST_POSTS = 1 << 19  # read at a time
_MOST_CHARACTERS = 4_000_000
_MOST_TEXTS = 20  # damaged texts that are named individually


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
            problems: list[str] = []
            opened: list[tuple[SegmentEntry, Segment]] = []
            failed: list[SegmentEntry] = []
            for entry in manifest.segments:
                try:
                    segment = files.enter_context(closing(Segment(folder, entry, manifest.parameters)))
                    opened.append((entry, segment))
                except StoreRefused as error:
                    failed.append(entry)
                    problems.append(str(error))
                except FileNotFoundError as error:
                    failed.append(entry)
                    problems.append(str(missing_file(folder, error)))
            newer = read_manifest(folder)
            if failed and (newer is None or not any(entry in newer.segments for entry in failed)):
                continue  # a writer has removed these files
            # The open files stay readable even if a writer removes them.
            return _checked(folder, manifest, opened, problems, full, watch)
    raise StoreUnavailable(
        f"The passage index {folder} is being written continuously, so it cannot be checked. Check it again when no"
        " process is writing."
    )


def _checked(
    folder: Path,
    manifest: Manifest,
    opened: list[tuple[SegmentEntry, Segment]],
    problems: list[str],
    full: bool,
    watch: Progress,
) -> IndexCheck:
    def add(found: Iterator[str]) -> None:
        try:
            problems.extend(islice(found, MOST_PROBLEMS - len(problems)))
        except StoreRefused as error:
            problems.append(str(error))

    with part(watch, "check", sum(entry.size for entry, _ in opened)):
        for entry, segment in opened:
            sums = np.zeros(segment.text_count, np.uint64) if full else None
            add(check_segment(segment, watch, sums))
            if sums is not None and not problems:
                add(_wrong_posts(segment, manifest.parameters, sums, watch))
            watch.advance(entry.size)
    if not problems:
        add(_wrong_documents(folder, manifest, [segment for _, segment in opened]))
    return IndexCheck(
        tuple(problems),
        len(manifest.segments),
        sum(int(manifest.living(entry).sum()) for entry, _ in opened),
        sum(entry.texts for entry, _ in opened),
        sum(entry.posts for entry, _ in opened),
        tuple(orphans(folder, manifest)),
    )


def check_segment(
    segment: Segment, watch: Progress = NO_PROGRESS, sums: NDArray[np.uint64] | None = None
) -> Iterator[str]:
    """Yield a sentence for each problem in *segment*.

    Checksums are compared first; if one is wrong, no further checks are made. Then the order and counts of posts, names
    and digests are checked, and every blob: it must decompress, and match the digest of its text. For each text, the hashes
    of its posts are added to *sums*.
    """
    if damage := segment.damage():
        yield f"{segment.path}: {damage}."
        return
    name = segment.path.name
    with part(watch, f"{name}: posts", segment.post_count, "posts"):
        yield from _check_posts(segment, watch, sums)
    texts = segment.texts_of(segment.digests)
    if len(lost := np.flatnonzero(texts != np.arange(segment.text_count))):
        yield f"{segment.path}: {len(lost)} texts are not found by their digests, the first is text {lost[0]}."
    with part(watch, f"{name}: documents", segment.document_count, "documents"):
        yield from _check_documents(segment, watch)
    with part(watch, f"{name}: texts", segment.text_count, "texts"):
        problems = list(
            filter(None, (_problem_of(segment, text) for text in counted(range(segment.text_count), watch)))
        )
    yield from problems[:_MOST_TEXTS]
    if len(problems) > _MOST_TEXTS:
        yield f"{segment.path}: {len(problems) - _MOST_TEXTS} more texts are damaged."


def _check_posts(segment: Segment, watch: Progress, sums: NDArray[np.uint64] | None) -> Iterator[str]:
    counts = np.zeros(segment.text_count, np.int64)
    for low_key, high_key in pairwise(key_bounds([segment], _MOST_POSTS)):
        posts = segment.posts_between(low_key, high_key)
        watch.advance(len(posts))
        keys, texts, where = posts.keys, posts.texts, posts.where
        # A text has one post per key, except in an index without texts, which has one per blot.
        is_later = (texts[1:] > texts[:-1]) | ((texts[1:] == texts[:-1]) & (where[1:] > where[:-1]))
        # All posts of a key are in the same chunk, so order within the chunks is order throughout.
        if not ((keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & is_later)).all():
            yield f"{segment.path}: the posts of keys from {low_key} to {high_key} are out of order."
        counts += np.bincount(texts, minlength=segment.text_count)
        if sums is not None:
            np.add.at(sums, texts, mixed(keys if segment.has_texts else where.astype(np.uint64)))
    wrong = np.flatnonzero(counts != segment.section("post counts"))
    if len(wrong):
        yield f"{segment.path}: {len(wrong)} texts have wrong post counts, the first is text {wrong[0]}."


def _check_documents(segment: Segment, watch: Progress) -> Iterator[str]:
    documents = segment.documents
    used = np.unique(documents.texts[documents.texts < 0])
    if len(used) != len(documents.foreign):
        yield f"{segment.path}: {len(documents.foreign) - len(used)} foreign digests have no document."
    heads = np.array(
        [name_head(doc_id.encode()) for doc_id in counted(documents.doc_ids(), watch)], np.uint32
    )
    order = np.argsort(heads, kind="stable")
    if not (
        np.array_equal(heads[order], segment.section("name heads"))
        and np.array_equal(order, segment.section("name order"))
    ):
        yield f"{segment.path}: the order of its names is wrong."


def _problem_of(segment: Segment, text: int) -> str | None:
    try:
        raw = segment.blob(text)
    except StoreRefused as error:
        return str(error)
    digest = hashlib.sha256(raw).digest()[:DIGEST_SIZE]
    if segment.has_texts and digest != segment.digests[text].tobytes():
        return f"{segment.path}: text {text} does not match its digest."
    return None


def _wrong_documents(folder: Path, manifest: Manifest, segments: list[Segment]) -> Iterator[str]:
    """Documents that have no text, or that occur more than once across all segments."""
    digests = np.concatenate(
        [np.zeros((0, DIGEST_SIZE), np.uint8), *(segment.digests for segment in segments)]
    )
    held = set(digests.view(f"V{DIGEST_SIZE}").reshape(-1).tolist())
    seen: set[bytes] = set()
    for entry, segment in zip(manifest.segments, segments, strict=True):
        documents = segment.documents
        is_held = np.array([foreign.tobytes() in held for foreign in documents.foreign], np.bool_)
        for number, (doc_id, is_alive) in enumerate(
            zip(documents.doc_ids(), manifest.living(entry).tolist(), strict=True)
        ):
            text = int(documents.texts[number])
            if is_alive and text < 0 and not is_held[-1 - text]:
                yield f"{folder} has no text for document {number} of the segment {entry.name}"
            head = hashlib.blake2b(doc_id.encode(), digest_size=16).digest()
            if is_alive and head in seen:
                yield f"{folder}: the document {doc_id!r} occurs more than once"
            if is_alive:
                seen.add(head)


def _wrong_posts(
    segment: Segment, parameters: Parameters, sums: NDArray[np.uint64], watch: Progress
) -> Iterator[str]:
    """The texts of a segment whose posts do not match their blots. *sums* are those of `_check_posts`."""
    expected = (
        _expected_of_texts(segment, parameters) if parameters.has_texts else _expected_of_outlines(segment)
    )
    counts, token_counts = segment.section("post counts"), segment.section("token counts")
    with part(watch, f"{segment.name}: blots", segment.text_count, "texts"):
        for text, values, tokens in counted(expected, watch):
            name = f"{segment.name}, text {text}"
            if (int(counts[text]), sums[text]) != (len(values), mixed(values).sum(dtype=np.uint64)):
                yield f"{name}: its posts do not match its blots ({counts[text]} posts, {len(values)} expected)"
            if tokens is not None and tokens != token_counts[text]:
                yield f"{name}: it has {tokens} tokens instead of {token_counts[text]}"


def _expected_of_texts(
    segment: Segment, parameters: Parameters
) -> Iterator[tuple[int, NDArray[np.uint64], int | None]]:
    """For each text its number, and the keys of its posts and its token count, computed again."""
    counts = segment.section("char counts").tolist()
    for numbers in batches_of(range(segment.text_count), counts.__getitem__, _MOST_CHARACTERS):
        found = [("x", "", segment.blob(number).decode(errors="replace")) for number in numbers]
        prepared = prepare(found, parameters)
        bounds = np.append(0, np.cumsum(prepared.post_counts)).tolist()
        for number, text in zip(numbers, prepared.texts.tolist(), strict=True):
            keys = prepared.keys[bounds[text] : bounds[text + 1]]
            yield number, keys, int(prepared.token_counts[text])


def _expected_of_outlines(segment: Segment) -> Iterator[tuple[int, NDArray[np.uint64], int | None]]:
    for number in range(segment.text_count):
        yield number, np.arange(len(segment.outline(number).token_starts), dtype=np.uint64), None
