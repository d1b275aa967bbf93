"""The one who writes an index: adds segments, deletes documents, merges segments.

Whatever is done becomes the index's at once, by the manifest that names it, and is on the disk then; a writer that is
killed before leaves files behind that the next one removes. The new manifest is written last. An error may come after
it was replaced, so what the index consists of is what the manifest on the disk says, and no file is removed that it
names.

A document that is added under a name that another text has replaces it: the same manifest brings the new document and
deletes the old one. A text that the index holds is not stored again, whoever has it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.tasks.progress import NO_PROGRESS

from . import catalogue
from .catalogue import Manifest, segment_name
from .folder_files import lacking
from .merging import merge
from .preparation import DIGEST_SIZE
from .segment_writing import SegmentWriter
from .segments import Segment
from .tiers import LARGEST, fewest, next_merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .preparation import Prepared
    from .segments import SegmentEntry
    from .values import Parameters


@dataclass(frozen=True, slots=True)
class AddedDocuments:
    """What was added to an index.

    *documents* were taken, *replaced* times one of them in place of an older text or host, also of one that was given
    just before; *unchanged* ones were there already. *texts* were stored, with so many *tokens*, *characters* and
    *posts*; *copies* are documents whose text was stored already.
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


@dataclass(frozen=True, slots=True)
class _NewDocument:
    """A document to be added: its host, and the digest of its text."""

    host: str
    digest: bytes


class IndexWriter:
    """Writes the index in *folder*, whose lock the caller has; it is begun if there is none.

    With *at_once* nothing becomes the index's before `commit`. After an error the writer can be used again; what did not
    become the index's is as if it had not been asked for. Raises StoreRefused and StoreUnavailable as `catalogue.begin`
    does. Every method raises StoreRefused if a file that it needs is damaged or gone, and StoreUnavailable in a copy of the
    process that made the writer, which has no lock.
    """

    def __init__(self, folder: Path, parameters: Parameters, *, at_once: bool = False) -> None:
        self.folder = folder
        self.parameters = parameters
        self.manifest = catalogue.begin(folder, parameters)
        self._pid = os.getpid()
        self.is_at_once = at_once
        self.watch = NO_PROGRESS
        self._committed = self.manifest
        self._is_doubtful = False
        self._has_leftovers = False
        self._number = 0
        self._segments: dict[str, Segment] = {}
        self._living: dict[str, NDArray[np.bool_]] = {}

    @property
    def is_committed(self) -> bool:
        """Whether all that was done is the index's."""
        return self.manifest == self._committed

    def prove_usable(self) -> None:
        """Raise StoreUnavailable in another process, or if nobody knows what the index consists of."""
        if self._pid != os.getpid():
            raise StoreUnavailable(
                f"The index {self.folder} is being written by process {self._pid}, of which this one is a copy. Open"
                " the index in this process, after the end of that."
            )
        if self._is_doubtful:
            raise StoreUnavailable(
                f"The manifest of the index {self.folder} could not be replaced and cannot be read, so nobody knows what"
                " it says. See to the disk, and open the index again."
            )

    def add(self, batches: Sequence[Prepared], then: Callable[[AddedDocuments], object]) -> None:
        """Add documents, as one new segment. Raises StoreUnavailable if that cannot be written.

        *then* is called as soon as the index has them, which may be before an error is raised.
        """
        self.prove_usable()
        named, given, overtaken = _last_of_each_name(batches)
        replaced: dict[str, list[int]] = {}
        for doc_id, found in self._find_all(named).items():
            segment, number = found
            if self._is_as(segment, number, named[doc_id]):
                del named[doc_id]
            else:
                replaced.setdefault(segment.name, []).append(number)
        if not named:
            then(AddedDocuments(documents=overtaken, replaced=overtaken, unchanged=given - overtaken))
            return
        entry, added = self._written(batches, named)
        added = replace(
            added,
            documents=len(named) + overtaken,
            replaced=sum(map(len, replaced.values())) + overtaken,
            unchanged=given - len(named) - overtaken,
            copies=len(named) - added.texts,
        )
        self._change((*self.manifest.segments, entry), replaced, lambda: then(added))

    def delete(self, doc_ids: Iterable[str]) -> list[bool]:
        """Delete documents, and tell of each whether it was there. Raises StoreUnavailable."""
        self.prove_usable()
        asked = list(doc_ids)
        found = self._find_all(dict.fromkeys(asked))
        numbers: dict[str, list[int]] = {}
        for segment, number in found.values():
            numbers.setdefault(segment.name, []).append(number)
        if numbers:
            self._change(self.manifest.segments, numbers)
        # A name that is given twice is deleted once.
        return [found.pop(doc_id, None) is not None for doc_id in asked]

    def tidy(self, largest: int = LARGEST) -> None:
        """Leave out segments of which nothing is needed, and merge some as long as there are too many of one size.

        What is merged has at most *largest* posts and documents. Raises StoreUnavailable, and StoreRefused for a segment
        that is damaged; the index has all the same what it had before.
        """
        self.prove_usable()
        needed = tuple(entry for entry in self.manifest.segments if self._is_needed(entry))
        if len(needed) < len(self.manifest.segments):
            self._become(needed, dict(self.manifest.deleted))
        while (chosen := next_merge(self._sizes(), largest)) is not None:
            self._merge(chosen)

    def compact(self) -> bool:
        """Merge all segments, as far as one can hold them, without what is deleted; False if there is nothing to do.

        Raises as `tidy` does.
        """
        self.prove_usable()
        is_changed = False
        for chosen in reversed(fewest(self._sizes())):
            entries = self.manifest.segments[chosen]
            if len(entries) > 1 or not self._is_whole(entries[0]):
                self._merge(chosen)
                is_changed = True
        return is_changed

    def commit(self) -> None:
        """Make what was done the index's, and remove the files that it no longer needs. Raises StoreUnavailable."""
        self.prove_usable()
        if not self.is_committed:
            self._replace(self.manifest)
            self._remove_leftovers()

    def close(self) -> None:
        """Close the files, and remove what was not committed. Raises nothing that the system says."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        if self._has_leftovers and self._pid == os.getpid():
            self.manifest = self._committed
            self._remove_leftovers()

    def _replace(self, manifest: Manifest) -> None:
        """Make *manifest* that of the index. Its files belong to the index also if an error is raised afterwards."""
        try:
            catalogue.replace_manifest(self.folder, manifest)
        except BaseException:
            try:
                found = catalogue.read_manifest(self.folder)
            except StoreError:
                self._is_doubtful = True
            else:
                if found == manifest:
                    self._committed = manifest
            raise
        self._committed = manifest

    def _remove_leftovers(self) -> None:
        """Remove files that belong neither to the index nor to what is to become of it. What stays is for the next one."""
        # Without a manifest that can be read nobody knows what is needed.
        with contextlib.suppress(StoreError, OSError):
            found = catalogue.read_manifest(self.folder)
            if found is not None:
                catalogue.remove_orphans(self.folder, found, self._committed, self.manifest)
                self._has_leftovers = not self.is_committed

    def _segment(self, entry: SegmentEntry) -> Segment:
        segment = self._segments.get(entry.name)
        if segment is None:
            # Nobody else removes files meanwhile, so one that is gone is lost.
            try:
                catalogue.refuse_other_files(self.folder, entry)
                segment = self._segments[entry.name] = Segment(self.folder, entry, self.parameters)
            except FileNotFoundError as error:
                raise lacking(self.folder, error) from error
        return segment

    def _all_segments(self) -> list[Segment]:
        return [self._segment(entry) for entry in self.manifest.segments]

    def _living_documents(self, segment: Segment) -> NDArray[np.bool_]:
        """For each document of a segment whether it is not deleted."""
        name = segment.name
        living = self._living.get(name)
        if living is None:
            living = np.ones(segment.document_count, bool)
            file = self.manifest.deleted.get(name)
            if file is not None:
                try:
                    living[catalogue.read_deleted(self.folder, file, segment.document_count)] = False
                except FileNotFoundError as error:
                    raise lacking(self.folder, error) from error
            self._living[name] = living
        return living

    def _find_all(self, doc_ids: Iterable[str]) -> dict[str, tuple[Segment, int]]:
        """Where the documents of these names stand that are not deleted."""
        asked = list(doc_ids)
        found: dict[str, tuple[Segment, int]] = {}
        for segment in self._all_segments():
            living = self._living_documents(segment)
            for place, number in segment.documents_named(asked).items():
                if living[number]:
                    found[asked[place]] = segment, number
        return found

    def _is_as(self, segment: Segment, number: int, named: _NewDocument) -> bool:
        """Whether a document of a segment has the same text and host as one that is to be added."""
        text = int(segment.document_texts[number])
        digest = segment.foreign[-1 - text] if text < 0 else segment.digests[text].tobytes()
        return digest == named.digest and segment.hosts[segment.document_hosts[number]] == named.host

    def _written(
        self, batches: Sequence[Prepared], named: dict[str, _NewDocument]
    ) -> tuple[SegmentEntry, AddedDocuments]:
        """Write a segment of these documents, with those of their texts that the index does not hold."""
        wanted = dict.fromkeys((each.digest for each in named.values()), -1)
        held = self._held(list(wanted))
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
            for doc_id, each in named.items():
                writer.add_document(
                    doc_id, each.host, each.digest if each.digest in held else wanted[each.digest]
                )
            return writer.close(), added

    def _held(self, digests: list[bytes]) -> set[bytes]:
        """Those digests whose texts the index holds, alive or not."""
        array = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_SIZE)
        is_held = np.zeros(len(digests), bool)
        for segment in self._all_segments():
            is_held |= segment.texts_of_digests(array) >= 0
        return {digests[number] for number in np.flatnonzero(is_held)}

    def _change(
        self,
        segments: tuple[SegmentEntry, ...],
        deleted: dict[str, list[int]],
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Make the next manifest: of these segments, and with more documents deleted of some of them."""
        generation = self.manifest.generation + 1
        files = dict(self.manifest.deleted)
        changed: dict[str, NDArray[np.bool_]] = {}
        try:
            for entry in self.manifest.segments:
                numbers = deleted.get(entry.name)
                if numbers:
                    living = self._living_documents(self._segment(entry)).copy()
                    living[numbers] = False
                    self._has_leftovers = True
                    files[entry.name] = catalogue.write_deleted(
                        self.folder, entry.name, generation, np.flatnonzero(~living)
                    )
                    changed[entry.name] = living
        except BaseException:
            self._remove_leftovers()  # whose room may be what is lacking
            raise
        self._become(segments, files, changed, then)

    def _become(
        self,
        segments: tuple[SegmentEntry, ...],
        files: dict[str, str],
        changed: dict[str, NDArray[np.bool_]] | None = None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Go over to these segments; *changed* tells which of their documents are alive, where that is not as before."""
        names = {entry.name for entry in segments}
        kept = {name: file for name, file in files.items() if name in names}
        manifest = Manifest(self.manifest.generation + 1, self.parameters, segments, kept)
        try:
            if not self.is_at_once:
                self._replace(manifest)
        finally:
            if self.is_at_once or self._committed is manifest:
                self.manifest = manifest
                self._number = 0
                self._living.update(changed or {})
                for name in self._segments.keys() - names:
                    self._segments.pop(name).close()
                for name in self._living.keys() - names:
                    del self._living[name]
                then()
            # Of a change that failed, or of segments that were merged before they ever belonged to the index.
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
        self._become((*entries[:start], *merged, *entries[stop:]), dict(self.manifest.deleted))

    def _sizes(self) -> list[int]:
        return [entry.posts + entry.documents for entry in self.manifest.segments]

    def _is_needed(self, entry: SegmentEntry) -> bool:
        """Whether any document of a segment, or any of its texts, is not deleted."""
        segment = self._segment(entry)
        return bool(self._living_documents(segment).any()) or bool(self._living_texts([segment])[0].any())

    def _is_whole(self, entry: SegmentEntry) -> bool:
        """Whether no document of a segment, and none of its texts, is deleted."""
        segment = self._segment(entry)
        return bool(self._living_documents(segment).all()) and bool(self._living_texts([segment])[0].all())

    def _living_texts(self, segments: Sequence[Segment]) -> list[NDArray[np.bool_]]:
        """For each text of these segments whether a document that is not deleted has it, in whichever segment."""
        living = [np.zeros(segment.text_count, bool) for segment in segments]
        for segment, texts in zip(segments, living, strict=True):
            own = segment.document_texts[self._living_documents(segment)]
            texts[own[own >= 0]] = True
        for other in self._all_segments():
            own = other.document_texts[self._living_documents(other)]
            numbers = np.unique(-1 - own[own < 0])
            if not len(numbers):
                continue
            digests = np.frombuffer(b"".join(other.foreign), np.uint8).reshape(-1, DIGEST_SIZE)[numbers]
            for segment, texts in zip(segments, living, strict=True):
                found = segment.texts_of_digests(digests)
                texts[found[found >= 0]] = True
        return living

    def _new_name(self) -> str:
        """A name for a segment that the next manifest brings."""
        name = segment_name(self.manifest.generation + 1, self._number)
        self._number += 1
        self._has_leftovers = True
        return name


def _last_of_each_name(batches: Sequence[Prepared]) -> tuple[dict[str, _NewDocument], int, int]:
    """The documents by their names, in the order in which they were given; how many were given; how many were overtaken.

    Of several under one name the last one counts, at its own place unless it is as the one before.
    """
    named: dict[str, _NewDocument] = {}
    given = overtaken = 0
    for batch in batches:
        digests = _digests(batch)
        given += len(batch.doc_ids)
        for doc_id, host, text in zip(batch.doc_ids, batch.hosts, batch.texts.tolist(), strict=True):
            before = named.get(doc_id)
            if before is not None:
                if before.digest == digests[text] and before.host == host:
                    continue
                del named[doc_id]
                overtaken += 1
            named[doc_id] = _NewDocument(host, digests[text])
    return named, given, overtaken


def _digests(batch: Prepared) -> list[bytes]:
    data = batch.digests.tobytes()
    return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]


def _add_texts(writer: SegmentWriter, batch: Prepared, chosen: NDArray[np.int64]) -> AddedDocuments:
    """Add some texts of a batch with their posts."""
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
        counts.astype(np.uint32),
        memoryview(blobs),
        sizes[chosen].astype(np.uint32),
        batch.raw_sizes[chosen].astype(np.uint32),
        batch.blob_checksums[chosen].astype(np.uint32),
    )
    writer.add_posts(keys, of_posts, spots if len(spots) else None)
    tokens, characters, posts = (int(column.sum()) for column in counts)
    return AddedDocuments(texts=len(chosen), tokens=tokens, characters=characters, posts=posts)
