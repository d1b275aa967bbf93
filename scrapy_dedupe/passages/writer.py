"""Writing to an index: add segments, delete documents, merge segments.

Each change takes effect atomically, when a new manifest replaces the old one; its files are on the disk by then. A
writer that is killed earlier leaves files that the next writer removes. An error may occur after the manifest was
replaced, so the manifest on the disk decides what the index contains, and no file that it names is removed.

Adding a document under an id that has another text replaces that document: the same manifest adds the new one and
deletes the old one. A text that the index already holds is not stored again for another document.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.tasks.progress import NO_PROGRESS

from . import catalogue
from .catalogue import Manifest, segment_name
from .folder_files import missing_file
from .merging import LARGEST, fewest, merge, next_merge
from .segment_layout import DIGEST_SIZE
from .segment_writing import SegmentWriter
from .segments import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .preparation import Prepared
    from .segments import SegmentEntry
    from .values import Parameters

    HostAndDigest = tuple[str, bytes]
    """The host of a document, and the digest of its text."""


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
        self._segments: dict[str, Segment] = {}
        self._living_of: dict[str, NDArray[np.bool_]] = {}

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
        replaced: dict[str, list[int]] = {}
        for doc_id, found in self._find_all(named).items():
            segment, number = found
            if _host_and_digest(segment, number) == named[doc_id]:
                del named[doc_id]
            else:
                replaced.setdefault(segment.name, []).append(number)
        if not named:
            on_commit(AddedDocuments(documents=superseded, replaced=superseded, unchanged=given - superseded))
            return
        entry, added = self._write_segment(batches, named)
        added = replace(
            added,
            documents=len(named) + superseded,
            replaced=sum(map(len, replaced.values())) + superseded,
            unchanged=given - len(named) - superseded,
            copies=len(named) - added.texts,
        )
        self._switch_to((*self.manifest.segments, entry), replaced, lambda: on_commit(added))

    def delete(self, doc_ids: Iterable[str]) -> list[bool]:
        """Delete documents. Returns for each whether it existed. Raises StoreUnavailable."""
        self.check_usable()
        asked = list(doc_ids)
        found = self._find_all(dict.fromkeys(asked))
        numbers: dict[str, list[int]] = {}
        for segment, number in found.values():
            numbers.setdefault(segment.name, []).append(number)
        if numbers:
            self._switch_to(self.manifest.segments, numbers)
        # An id that is given twice is deleted once.
        return [found.pop(doc_id, None) is not None for doc_id in asked]

    def tidy(self, largest: int = LARGEST) -> None:
        """Drop segments that no document needs, and merge segments while there are too many of one size.

        A merged segment has at most *largest* posts and documents. Raises StoreUnavailable, and StoreRefused for a
        damaged segment; the content of the index is unchanged then.
        """
        self.check_usable()
        needed = tuple(entry for entry in self.manifest.segments if self._living(entry).any())
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
            entries = self.manifest.segments[chosen]
            if len(entries) > 1 or not self._living(entries[0]).all():
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
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
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

    def _segment(self, entry: SegmentEntry) -> Segment:
        segment = self._segments.get(entry.name)
        if segment is None:
            # Only the lock holder removes files, so a missing file is lost.
            try:
                segment = self._segments[entry.name] = Segment(self.folder, entry, self.parameters)
            except FileNotFoundError as error:
                raise missing_file(self.folder, error) from error
        return segment

    def _all_segments(self) -> list[Segment]:
        return [self._segment(entry) for entry in self.manifest.segments]

    def _living_documents(self, segment: Segment) -> NDArray[np.bool_]:
        """For each document of a segment, whether it is not deleted."""
        name = segment.name
        living = self._living_of.get(name)
        if living is None:
            living = np.ones(segment.document_count, bool)
            file = self.manifest.deleted.get(name)
            if file is not None:
                try:
                    living[catalogue.read_deleted(self.folder, file, segment.document_count)] = False
                except FileNotFoundError as error:
                    raise missing_file(self.folder, error) from error
            self._living_of[name] = living
        return living

    def _find_all(self, doc_ids: Iterable[str]) -> dict[str, tuple[Segment, int]]:
        """The segments and numbers of the documents with these ids that are not deleted."""
        asked = list(doc_ids)
        found: dict[str, tuple[Segment, int]] = {}
        for segment in self._all_segments():
            living = self._living_documents(segment)
            for place, number in segment.documents.named(asked).items():
                if living[number]:
                    found[asked[place]] = segment, number
        return found

    def _write_segment(
        self, batches: Sequence[Prepared], named: dict[str, HostAndDigest]
    ) -> tuple[SegmentEntry, AddedDocuments]:
        """Write a segment with these documents, and with their texts that the index does not hold."""
        wanted = dict.fromkeys((digest for _, digest in named.values()), -1)
        held = self._stored_digests(list(wanted))
        added = AddedDocuments()
        with SegmentWriter(self.folder, self._new_name(), self.parameters) as writer:
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
            return writer.close(), added

    def _stored_digests(self, digests: list[bytes]) -> set[bytes]:
        """The digests whose texts the index holds, including texts of deleted documents."""
        array = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_SIZE)
        is_held = np.zeros(len(digests), bool)
        for segment in self._all_segments():
            is_held |= segment.digests.texts_of(array) >= 0
        return {digests[number] for number in np.flatnonzero(is_held)}

    def _switch_to(
        self,
        segments: tuple[SegmentEntry, ...],
        deleted: Mapping[str, list[int]] = MappingProxyType({}),
        on_commit: Callable[[], object] = lambda: None,
    ) -> None:
        """Switch to these segments. *deleted* has the numbers of more deleted documents by the name of their segment."""
        names = {entry.name for entry in segments}
        files = {name: file for name, file in self.manifest.deleted.items() if name in names}
        changed: dict[str, NDArray[np.bool_]] = {}
        generation = self.manifest.generation + 1
        manifest = None
        try:
            for entry in self.manifest.segments:
                if numbers := deleted.get(entry.name):
                    living = self._living_documents(self._segment(entry)).copy()
                    living[numbers] = False
                    self._has_leftovers = True
                    files[entry.name] = catalogue.write_deleted(
                        self.folder, entry.name, generation, np.flatnonzero(~living)
                    )
                    changed[entry.name] = living
            manifest = Manifest(generation, self.parameters, segments, files)
            if not self.is_atomic:
                self._replace_manifest(manifest)
        finally:
            if manifest is not None and (self.is_atomic or self._committed is manifest):
                self.manifest = manifest
                self._number = 0
                self._living_of.update(changed)
                for name in self._segments.keys() - names:
                    self._segments.pop(name).close()
                for name in self._living_of.keys() - names:
                    del self._living_of[name]
                on_commit()
            # Files of a failed change, or of segments that were merged before they were committed. Removing them may free
            # the space that was missing.
            self._remove_leftovers()

    def _merge(self, chosen: slice) -> None:
        entries = self.manifest.segments
        segments = [self._segment(entry) for entry in entries[chosen]]
        living = [self._living_documents(segment) for segment in segments]
        texts = self._living_texts(segments)
        merged: tuple[SegmentEntry, ...] = ()
        if any(map(np.any, (*living, *texts))):
            name = self._new_name()
            merged = (merge(segments, living, texts, self.folder, name, self.parameters, self.watch),)
        start, stop, _ = chosen.indices(len(entries))
        self._switch_to((*entries[:start], *merged, *entries[stop:]))

    def _sizes(self) -> list[int]:
        return [entry.posts + entry.documents for entry in self.manifest.segments]

    def _living(self, entry: SegmentEntry) -> NDArray[np.bool_]:
        """For each document and then for each text of a segment, whether it is needed."""
        segment = self._segment(entry)
        return np.concatenate((self._living_documents(segment), *self._living_texts([segment])))

    def _living_texts(self, segments: Sequence[Segment]) -> list[NDArray[np.bool_]]:
        """For each text of these segments, whether any segment has a document with this text that is not deleted."""
        living = [np.zeros(segment.text_count, bool) for segment in segments]
        for segment, texts in zip(segments, living, strict=True):
            own = segment.documents.texts[self._living_documents(segment)]
            texts[own[own >= 0]] = True
        for other in self._all_segments():
            own = other.documents.texts[self._living_documents(other)]
            digests = other.documents.foreign[np.unique(-1 - own[own < 0])]
            for segment, texts in zip(segments, living, strict=True):
                found = segment.digests.texts_of(digests)
                texts[found[found >= 0]] = True
        return living

    def _new_name(self) -> str:
        """A name for a segment of the next manifest."""
        name = segment_name(self.manifest.generation + 1, self._number)
        self._number += 1
        self._has_leftovers = True
        return name


def _host_and_digest(segment: Segment, number: int) -> HostAndDigest:
    documents = segment.documents
    text = int(documents.texts[number])
    digest = documents.foreign[-1 - text] if text < 0 else segment.digests.array[text]
    return documents.hosts[documents.host_numbers[number]], digest.tobytes()


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
    counts = np.stack([batch.token_counts, batch.char_counts, batch.post_counts])[:, chosen]
    of_texts = np.full(len(sizes), -1, np.int64)
    of_texts[chosen] = first + np.arange(len(chosen))
    of_posts = np.repeat(of_texts, batch.post_counts)
    keys, spots, blobs = batch.keys, batch.spots, batch.blobs
    if len(chosen) < len(sizes):
        is_chosen = of_posts >= 0
        of_posts, keys = of_posts[is_chosen], keys[is_chosen]
        spots = spots[is_chosen] if len(spots) else spots
        blobs = b"".join(blobs[batch.blob_bounds[text] : batch.blob_bounds[text + 1]] for text in chosen)
    writer.add_stored_texts(
        batch.digests[chosen],
        counts,
        memoryview(blobs),
        sizes[chosen],
        batch.raw_sizes[chosen],
        batch.blob_checksums[chosen],
    )
    writer.add_posts(keys, of_posts, spots if len(spots) else None)
    tokens, characters, posts = (int(column.sum()) for column in counts)
    return AddedDocuments(texts=len(chosen), tokens=tokens, characters=characters, posts=posts)
