"""Writing to an index: add segments, delete documents, merge segments.

Each change takes effect atomically, when a new manifest replaces the old one; its files are on the disk by then. A
writer that is killed earlier leaves files that the next writer removes. An error may occur after the manifest was
replaced, so the manifest on the disk decides what the index contains, and no file that it names is removed.

Adding a document under an id that has another text replaces that document: the same manifest adds the new one and
deletes the old one. A text that the index already holds is not stored again for another document.

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

import contextlib
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part

from . import catalogue
from .catalogue import Manifest, encoded_deleted, segment_name
from .segment_layout import DIGEST_SIZE, new_segment
from .snapshot import IndexSnapshot, SegmentFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.tasks.progress import Progress

    from .preparation import Prepared
    from .segment_layout import SegmentEntry, SegmentWriter
    from .segments import Segment
    from .values import Parameters

    HostAndDigest = tuple[str, bytes]
    """The host of a document, and the digest of its text."""

FAN_IN = 8
"""How many segments are merged into one."""

LOWEST = 65_536
"""Segments of fewer posts and documents than this are in the lowest tier."""

LARGEST = 1 << 31
"""The largest merge, in posts and documents, which have 32-bit numbers within a segment."""

_POSTS = 1 << 19
"""How many posts are kept in memory, unless a single key has more."""

_COPIED = 1 << 12  # texts copied in one piece


@dataclass(frozen=True, slots=True)
class AddedDocuments:
    """Counts of added documents.

    *documents* were added. *replaced* counts how often one of them replaced an older text or host, including those of an
    earlier document of the same call. *unchanged* documents were already in the index. *texts* were stored, with
    *tokens*, *characters* and *posts* in total. *copies* are documents whose text was already stored.
    """

    documents: int = 0
    replaced: int = 0
    unchanged: int = 0
    texts: int = 0
    tokens: int = 0
    characters: int = 0
    posts: int = 0
    copies: int = 0

    def __add__(self, other: AddedDocuments) -> AddedDocuments:
        return AddedDocuments(
            *(getattr(self, name) + getattr(other, name) for name in AddedDocuments.__slots__)
        )


class IndexWriter:
    """Writes the index in *folder*, for which the caller holds the lock. Creates the index if there is none.

    With *atomic*, nothing is committed before `commit`. After an error the writer can be used again; a change that was
    not committed has no effect. The constructor raises StoreRefused and StoreUnavailable as `catalogue.begin` does. Every
    method raises StoreRefused if a file that it needs is damaged or missing, and StoreUnavailable in a fork of the process
    that created the writer, since the fork does not have the lock.
    """

    def __init__(self, folder: Path, parameters: Parameters, *, atomic: bool = False) -> None:
        self.folder = folder
        self.parameters = parameters
        self.manifest = catalogue.begin(folder, parameters)
        self._pid = os.getpid()
        self.is_atomic = atomic
        self.watch = NO_PROGRESS
        self._committed = self.manifest
        self._is_state_unknown = False
        self._has_leftovers = False
        self._number = 0
        self._snapshot: IndexSnapshot | None = None

    @property
    def is_committed(self) -> bool:
        """Whether all changes are committed."""
        return self.manifest == self._committed

    def check_usable(self) -> None:
        """Raise StoreUnavailable in another process, or if the state of the index on the disk is unknown."""
        if self._pid != os.getpid():
            raise StoreUnavailable(
                f"The index {self.folder} is being written by process {self._pid}, and this process is a fork of it. Open"
                " the index in this process after that process has finished."
            )
        if self._is_state_unknown:
            raise StoreUnavailable(
                f"The manifest of the index {self.folder} could not be replaced and cannot be read, so the state of the"
                " index is unknown. Check the disk, and open the index again."
            )

    def add(self, batches: Sequence[Prepared], on_commit: Callable[[AddedDocuments], object]) -> None:
        """Add documents as one new segment. Raises StoreUnavailable if the segment cannot be written.

        *on_commit* is called as soon as the index has the documents, which may be before an error is raised.
        """
        self.check_usable()
        named, given, superseded = _last_by_id(batches)
        current = self._current()
        replaced = []
        for doc_id, number in current.numbers_of(named).items():
            if (current.host_of_document(number), current.digest_of_document(number)) == named[doc_id]:
                del named[doc_id]
            else:
                replaced.append(number)
        if not named:
            on_commit(AddedDocuments(documents=superseded, replaced=superseded, unchanged=given - superseded))
            return
        entry, added = self._write_segment(batches, named)
        added = replace(
            added,
            documents=len(named) + superseded,
            replaced=len(replaced) + superseded,
            unchanged=given - len(named) - superseded,
            copies=len(named) - added.texts,
        )
        self._switch_to((*self.manifest.segments, entry), replaced, lambda: on_commit(added))

    def delete(self, doc_ids: Iterable[str]) -> list[bool]:
        """Delete documents. Returns for each whether it existed. Raises StoreUnavailable."""
        self.check_usable()
        asked = list(doc_ids)
        found = self._current().numbers_of(asked)
        if found:
            self._switch_to(self.manifest.segments, list(found.values()))
        # An id that is given twice is deleted once.
        return [found.pop(doc_id, None) is not None for doc_id in asked]

    def tidy(self, largest: int = LARGEST) -> None:
        """Drop segments that no document needs, and merge segments while there are too many of one size.

        A merged segment has at most *largest* posts and documents. Raises StoreUnavailable, and StoreRefused for a
        damaged segment; the content of the index is unchanged then.
        """
        self.check_usable()
        current = self._current()
        needed = tuple(
            entry
            for number, entry in enumerate(self.manifest.segments)
            if any(map(np.any, current.living(slice(number, number + 1))))
        )
        if len(needed) < len(self.manifest.segments):
            self._switch_to(needed)
        while (chosen := next_merge(self._sizes(), largest)) is not None:
            self._merge(chosen)

    def compact(self) -> bool:
        """Merge all segments into as few as possible, without deleted documents. Returns False if there is nothing to do.

        Raises the exceptions of `tidy`.
        """
        self.check_usable()
        is_changed = False
        for chosen in reversed(fewest(self._sizes())):
            living = self._current().living(chosen)
            if chosen.stop - chosen.start > 1 or not all(map(np.all, living)):
                self._merge(chosen)
                is_changed = True
        return is_changed

    def commit(self) -> None:
        """Commit the changes, and remove the files that are no longer needed. Raises StoreUnavailable."""
        self.check_usable()
        if not self.is_committed:
            self._replace_manifest(self.manifest)
            self._remove_leftovers()

    def close(self) -> None:
        """Close the files, and remove uncommitted ones. Ignores errors of the operating system."""
        self._forget_snapshot()
        if self._has_leftovers and self._pid == os.getpid():
            self.manifest = self._committed
            self._remove_leftovers()

    def _replace_manifest(self, manifest: Manifest) -> None:
        """Make *manifest* the current one. Its files may belong to the index even if an error is raised."""
        try:
            catalogue.replace_manifest(self.folder, manifest)
        except BaseException:
            try:
                found = catalogue.read_manifest(self.folder)
            except StoreError:
                self._is_state_unknown = True
            else:
                if found == manifest:
                    self._committed = manifest
            raise
        self._committed = manifest

    def _remove_leftovers(self) -> None:
        """Remove files that neither the index nor uncommitted changes need. The next writer removes the rest."""
        # Without a readable manifest, it is unknown which files are needed.
        with contextlib.suppress(StoreError, OSError):
            found = catalogue.read_manifest(self.folder)
            if found is not None:
                catalogue.remove_orphans(self.folder, found, self._committed, self.manifest)
                self._has_leftovers = not self.is_committed

    def _current(self) -> IndexSnapshot:
        """The index with the changes that are not committed yet."""
        if self._snapshot is None:
            files = SegmentFiles(self.folder, self.manifest)
            self._snapshot = IndexSnapshot(self.folder, self.manifest, files)
        return self._snapshot

    def _forget_snapshot(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    def _write_segment(
        self, batches: Sequence[Prepared], named: dict[str, HostAndDigest]
    ) -> tuple[SegmentEntry, AddedDocuments]:
        """Write a segment with these documents, and with their texts that the index does not hold."""
        wanted = dict.fromkeys((digest for _, digest in named.values()), -1)
        digests = np.frombuffer(b"".join(wanted), np.uint8).reshape(-1, DIGEST_SIZE)
        is_held = self._current().texts_of_digests(digests) >= 0
        held = {digest for digest, is_there in zip(wanted, is_held.tolist(), strict=True) if is_there}
        added = AddedDocuments()
        with new_segment(self.folder, self._new_name(), self.parameters) as writer:
            for batch in batches:
                chosen: list[int] = []
                for text, digest in enumerate(_digests(batch)):
                    if wanted.get(digest) == -1 and digest not in held:
                        wanted[digest] = writer.text_count + len(chosen)
                        chosen.append(text)
                if chosen:
                    added += _add_texts(writer, batch, np.array(chosen))
            for doc_id, (host, digest) in named.items():
                writer.add_document(doc_id, host, digest if digest in held else wanted[digest])
        return writer.entry, added

    def _switch_to(
        self,
        segments: tuple[SegmentEntry, ...],
        deleted: Sequence[int] = (),
        on_commit: Callable[[], object] = lambda: None,
    ) -> None:
        """Switch to these segments. *deleted* are the numbers of more deleted documents, across all present segments."""
        names = {entry.name for entry in segments}
        parts = {name: part for name, part in self.manifest.deleted.items() if name in names}
        if deleted:
            current = self._current()
            living = current.is_alive_document.copy()
            living[deleted] = False
            for entry, (start, stop) in zip(
                self.manifest.segments, pairwise(current.document_bases), strict=True
            ):
                if entry.name in names and not living[start:stop].all():
                    parts[entry.name] = encoded_deleted(~living[start:stop])
        manifest = Manifest(self.manifest.generation + 1, self.parameters, segments, parts)
        try:
            if not self.is_atomic:
                self._replace_manifest(manifest)
        finally:
            if self.is_atomic or self._committed is manifest:
                self.manifest = manifest
                self._number = 0
                self._forget_snapshot()
                on_commit()
            # Files of a failed change, or of segments that were merged before they were committed. Removing them may free
            # the space that was missing.
            self._remove_leftovers()

    def _merge(self, chosen: slice) -> None:
        entries = self.manifest.segments
        current = self._current()
        merged: tuple[SegmentEntry, ...] = ()
        if any(map(np.any, current.living(chosen))):
            merged = (merge(current, chosen, self._new_name(), self.watch),)
        start, stop, _ = chosen.indices(len(entries))
        self._switch_to((*entries[:start], *merged, *entries[stop:]))

    def _sizes(self) -> list[int]:
        return [entry.posts + entry.documents for entry in self.manifest.segments]

    def _new_name(self) -> str:
        """A name for a segment of the next manifest."""
        name = segment_name(self.manifest.generation + 1, self._number)
        self._number += 1
        self._has_leftovers = True
        return name


def _last_by_id(batches: Sequence[Prepared]) -> tuple[dict[str, HostAndDigest], int, int]:
    """The documents by id, in the order in which they were given; how many were given; how many were superseded.

    The last of several documents with one id counts. It keeps the earlier position only if text and host are the same.
    """
    named: dict[str, HostAndDigest] = {}
    given = superseded = 0
    for batch in batches:
        digests = _digests(batch)
        given += len(batch.doc_ids)
        for doc_id, host, text in zip(batch.doc_ids, batch.hosts, batch.texts.tolist(), strict=True):
            document = host, digests[text]
            if named.get(doc_id) == document:
                continue
            superseded += named.pop(doc_id, None) is not None
            named[doc_id] = document
    return named, given, superseded


def _digests(batch: Prepared) -> list[bytes]:
    data = batch.digests.tobytes()
    return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]


def _add_texts(writer: SegmentWriter, batch: Prepared, chosen: NDArray[np.int64]) -> AddedDocuments:
    """Add some texts of a batch, with their posts."""
    first = writer.text_count
    sizes = np.diff(batch.blob_bounds)
    counts = (batch.token_counts[chosen], batch.char_counts[chosen], batch.post_counts[chosen])
    of_texts = np.full(len(sizes), -1, np.int64)
    of_texts[chosen] = first + np.arange(len(chosen))
    of_posts = np.repeat(of_texts, batch.post_counts)
    keys, blobs = batch.keys, batch.blobs
    if len(chosen) < len(sizes):
        is_chosen = of_posts >= 0
        of_posts, keys = of_posts[is_chosen], keys[is_chosen]
        blobs = b"".join(blobs[batch.blob_bounds[text] : batch.blob_bounds[text + 1]] for text in chosen)
    columns = (*counts, sizes[chosen], batch.raw_sizes[chosen], batch.blob_checksums[chosen])
    writer.add_texts(batch.digests[chosen].tobytes(), columns, blobs)
    writer.add_posts(keys, of_posts)
    tokens, characters, posts = (int(column.sum()) for column in counts)
    return AddedDocuments(texts=len(chosen), tokens=tokens, characters=characters, posts=posts)


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
