"""Read access to an index as it is at one point in time. Later writes do not change a snapshot.

Texts are numbered across all segments: in the order of the segments in the manifest, then in the order within each
segment. A document may have a text that another segment holds. A text is therefore alive if any document in any segment
has it and is not deleted.

No lock is taken. A writer that merges segments removes the files of the merged segments; a reader with a manifest that
still names these files reads the manifest again. Files that are already open stay readable until they are closed.

Opening reads only the few bytes per document and text that decide which texts are alive. Names of documents, posts and
texts are read on demand.
"""

from __future__ import annotations

import bisect
import contextlib
import json
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import SettingError, StoreRefused

from .blots import blotter_of, key_bits
from .catalogue import read_deleted, read_manifest, refuse_other_files
from .folder_files import damaged, missing_file
from .segment_layout import DIGEST_SIZE, blobs_name
from .segments import Segment, key_bounds
from .tokens import tokeniser_named
from .values import IndexedDocument, Posts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from .catalogue import Manifest
    from .segment_layout import SegmentEntry
    from .values import Outline, Parameters

DEFAULT_SCAN_POSTS = 2_000_000
"""Default number of posts per piece of `IndexSnapshot.scan`."""

_TRIES = 50  # each retry needs a new manifest, so only an index that is written continuously exhausts them
_MIN_POSTS = 1_024  # a segment knows the position of a key only to within some posts


class IndexSnapshot:
    """The index in *folder* as described by *manifest*; `open` reads the manifest first.

    Raises StoreRefused if a file is damaged or the parameters of the index are unknown, FileNotFoundError if a file is
    missing.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        refuse_unknown_parameters(folder, manifest.parameters)
        self.folder = folder
        self.manifest = manifest
        self._files = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._files.close)
            self.segments: tuple[Segment, ...] = tuple(map(self._opened, manifest.segments))
            self._bases = [0, *accumulate(segment.text_count for segment in self.segments)]
            self._first_documents = [0, *accumulate(segment.document_count for segment in self.segments)]
            self._deleted = tuple(map(self._deleted_of, range(len(self.segments))))
            self.is_alive_document: NDArray[np.bool_] = self._living_documents()
            self.text_numbers: NDArray[np.int64] = self._text_numbers()
            self.is_alive: NDArray[np.bool_] = self._living_texts()
            self._has_dead = tuple(
                not bool(self.is_alive[self._span(i)].all()) for i in range(len(self.segments))
            )
            undo.pop_all()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The current state of the index.

        Raises StoreRefused if there is no index, or if it is damaged or of another version; StoreUnavailable if it cannot
        be read.
        """
        manifest = read_manifest(folder)
        tries = 0
        while manifest is not None:
            tries += 1
            try:
                return cls(folder, manifest)
            except (FileNotFoundError, StoreRefused) as error:
                # A writer may have removed or replaced files since the manifest was read.
                newer = read_manifest(folder)
                if newer == manifest or tries >= _TRIES:
                    if isinstance(error, FileNotFoundError):
                        raise missing_file(folder, error) from error
                    raise
                manifest = newer
        raise no_index(folder)

    @property
    def parameters(self) -> Parameters:
        """The parameters that the index was made with."""
        return self.manifest.parameters

    # Texts

    @property
    def text_count(self) -> int:
        """How many texts are stored, including those that no document has any more. All text numbers are below this."""
        return self._bases[-1]

    @cached_property
    def token_counts(self) -> NDArray[np.uint32]:
        """How many tokens each text has."""
        return _joined([segment.token_counts for segment in self.segments], np.uint32)

    @cached_property
    def char_counts(self) -> NDArray[np.uint32]:
        """How many characters (code points) each text has."""
        return _joined([segment.char_counts for segment in self.segments], np.uint32)

    @cached_property
    def document_counts(self) -> NDArray[np.int64]:
        """How many documents have each text."""
        living = self.text_numbers[self.is_alive_document]
        return np.bincount(living, minlength=self.text_count).astype(np.int64, copy=False)

    def text(self, number: int) -> str:
        """The text with this number. Raises StoreRefused if the index stores no texts, or if it is damaged."""
        if not self.parameters.has_texts:
            raise StoreRefused(
                f"The index {self.folder} stores no texts. Index the documents again without --no-text."
            )
        segment, own = self._segment_and_number(number)
        try:
            return segment.blobs.inflated(own).decode()
        except UnicodeDecodeError as error:
            raise damaged(
                self.folder / blobs_name(segment.name), f"has invalid UTF-8 in text {own}"
            ) from error

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """The texts with these numbers. Raises the exceptions of `text`."""
        return [self.text(number) for number in numbers]

    def outline(self, number: int) -> Outline:
        """The positions of the blots of a text, in an index without texts. Raises StoreRefused if it is damaged."""
        segment, own = self._segment_and_number(number)
        return segment.outline(own)

    def text_of_digest(self, digest: bytes) -> int | None:
        """The number of the text with this digest, alive or not; None if no segment holds it."""
        for base, segment in zip(self._bases, self.segments, strict=False):
            own = segment.digests.text_of(digest)
            if own is not None:
                return base + own
        return None

    def texts_of_digests(self, digests: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The numbers of the texts with these digests (n x 16 bytes), alive or not; -1 for unknown digests."""
        numbers = np.full(len(digests), -1, np.int64)
        for base, segment in zip(self._bases, self.segments, strict=False):
            left = np.flatnonzero(numbers < 0)
            if not left.size:
                break
            own = np.asarray(segment.digests.texts_of(digests[left]), np.int64)
            numbers[left] = np.where(own < 0, -1, own + base)
        return numbers

    # Documents

    @property
    def document_count(self) -> int:
        """How many documents there are, without deleted ones."""
        return int(np.count_nonzero(self.is_alive_document))

    def document_numbers_of(self, text: int) -> list[int]:
        """The numbers of the documents with this text, across all segments, in the order in which they were added."""
        return self._documents_by_text(text).tolist()

    def doc_id(self, number: int) -> str:
        """The id of a document, given its number across all segments."""
        segment = bisect.bisect_right(self._first_documents, number) - 1
        return self.segments[segment].documents.doc_id(number - self._first_documents[segment])

    def text_of_document(self, doc_id: str) -> int | None:
        """The number of the text of the document with this id; None if there is no such document."""
        number = self.document_number(doc_id)
        return None if number is None else int(self.text_numbers[number])

    def document_number(self, doc_id: str) -> int | None:
        """The number, across all segments, of the document with this id; None if there is no such document."""
        for first, segment in zip(reversed(self._first_documents[:-1]), reversed(self.segments), strict=True):
            own = segment.documents.number_of(doc_id)
            if own is not None and self.is_alive_document[first + own]:
                return first + own
        return None

    def host_of_document(self, number: int) -> str:
        """The host of a document, given its number across all segments; "" if it has none."""
        return self.host_names[self._document_hosts[number]]

    def iter_documents(self) -> Iterator[IndexedDocument]:
        """All documents, in the order in which they were added."""
        return map(self._document, np.flatnonzero(self.is_alive_document).tolist())

    def deleted(self, segment: int) -> NDArray[np.int64]:
        """The numbers of the deleted documents of a segment, ascending."""
        return self._deleted[segment]

    # Hosts

    @property
    def host_names(self) -> list[str]:
        """The names of all hosts, in the order of their first documents. "" is the host of documents without one."""
        return self._hosts[0]

    @property
    def _document_hosts(self) -> NDArray[np.int64]:
        return self._hosts[1]

    @cached_property
    def _hosts(self) -> tuple[list[str], NDArray[np.int64]]:
        """The names of all hosts, and for each document the number of its host."""
        numbers: dict[str, int] = {}
        parts = []
        for segment in self.segments:
            here = [numbers.setdefault(name, len(numbers)) for name in segment.documents.hosts]
            parts.append(np.array(here, np.int64)[segment.documents.host_numbers])
        return list(numbers), _joined(parts, np.int64)

    @cached_property
    def documents_per_host(self) -> NDArray[np.int64]:
        """How many documents each host has."""
        living = self._document_hosts[self.is_alive_document]
        return np.bincount(living, minlength=len(self.host_names)).astype(np.int64, copy=False)

    @cached_property
    def text_host(self) -> NDArray[np.int64]:
        """For each text, the host of the first document that has it; -1 if no document has it."""
        hosts = np.full(self.text_count, -1, np.int64)
        living = np.flatnonzero(self.is_alive_document)[::-1]
        # If an index occurs several times, NumPy keeps the last value: that of the first document.
        hosts[self.text_numbers[living]] = self._document_hosts[living]
        return hosts

    # Posts

    def find(
        self, keys: NDArray[np.uint64], *, in_order: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The posts of *keys* in texts that are alive. *keys* must be sorted and unique.

        Returns three arrays of the same length: positions in *keys*, text numbers, and the `where` values of `Posts`;
        sorted by key, then by text. With *in_order* False they are only sorted within each segment, which is faster.
        """
        parts = []
        for base, segment, has_dead, span in zip(
            self._bases, self.segments, self._has_dead, self._spans, strict=False
        ):
            numbers, texts, where = segment.find(keys)
            if has_dead and len(texts):
                living = self.is_alive[span][texts]
                numbers, texts, where = numbers[living], texts[living], where[living]
            if len(texts):
                parts.append((numbers, texts + base, where))
        if len(parts) == 1:
            return parts[0]
        numbers, texts, where = (_joined([part[i] for part in parts], np.int64) for i in range(3))
        if not in_order:
            return numbers, texts, where
        # The segments are in the order of their text numbers, so a stable sort by key is enough.
        order = np.argsort(numbers, kind="stable")
        return numbers[order], texts[order], where[order]

    def scan(self, most_posts: int = DEFAULT_SCAN_POSTS) -> Iterator[Posts]:
        """All posts of texts that are alive, in pieces: sorted by key, then by text, across all segments.

        All posts of a key are in the same piece. A piece has at most *most_posts* posts (at least 1,024), unless a single
        key, or a few keys within 2^-16 of the key space, have more.
        """
        for low, high in pairwise(key_bounds(self.segments, max(most_posts, _MIN_POSTS))):
            posts = self._posts_between(low, high)
            if len(posts.keys):
                yield posts

    def close(self) -> None:
        """Close the files. Arrays taken from the snapshot must not be used afterwards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _posts_between(self, low: int, high: int) -> Posts:
        parts = []
        for base, segment, has_dead, span in zip(
            self._bases, self.segments, self._has_dead, self._spans, strict=False
        ):
            posts = segment.posts_between(low, high)
            if has_dead and len(posts.keys):
                living = self.is_alive[span][posts.texts]
                posts = Posts(posts.keys[living], posts.texts[living], posts.where[living])
            if len(posts.keys):
                parts.append(Posts(posts.keys, posts.texts + base, posts.where))
        if len(parts) == 1:
            return parts[0]
        posts = _concatenated(parts)
        order = np.argsort(posts.keys, kind="stable")
        return Posts(posts.keys[order], posts.texts[order], posts.where[order])

    def _opened(self, entry: SegmentEntry) -> Segment:
        refuse_other_files(self.folder, entry)
        segment = Segment(self.folder, entry, self.parameters)
        self._files.callback(segment.close)
        return segment

    def _deleted_of(self, number: int) -> NDArray[np.int64]:
        name = self.manifest.deleted.get(self.manifest.segments[number].name)
        if name is None:
            return np.zeros(0, np.int64)
        return read_deleted(self.folder, name, self.segments[number].document_count)

    def _living_documents(self) -> NDArray[np.bool_]:
        living = np.ones(self._first_documents[-1], np.bool_)
        for first, deleted in zip(self._first_documents, self._deleted, strict=False):
            living[first + deleted] = False
        return living

    def _text_numbers(self) -> NDArray[np.int64]:
        """For each document, the number of its text across all segments; -1 if no segment holds it."""
        parts = []
        for base, segment in zip(self._bases, self.segments, strict=False):
            own = np.asarray(segment.documents.texts, np.int64)
            foreign = np.flatnonzero(own < 0)
            own = own + base
            if foreign.size:
                own[foreign] = self.texts_of_digests(_digests(segment))[base - 1 - own[foreign]]
            parts.append(own)
        return _joined(parts, np.int64)

    def _living_texts(self) -> NDArray[np.bool_]:
        living = self.text_numbers[self.is_alive_document]
        if living.size and int(living.min()) < 0:
            document = int(np.flatnonzero(self.is_alive_document & (self.text_numbers < 0))[0])
            number = bisect.bisect_right(self._first_documents, document) - 1
            own = document - self._first_documents[number]
            raise damaged(
                self.folder,
                f"has no text for document {own} of the segment {self.manifest.segments[number].name}",
            )
        alive = np.zeros(self.text_count, np.bool_)
        alive[living] = True
        return alive

    def _span(self, segment: int) -> slice:
        return slice(self._bases[segment], self._bases[segment + 1])

    @cached_property
    def _spans(self) -> tuple[slice, ...]:
        return tuple(map(self._span, range(len(self.segments))))

    def _segment_and_number(self, text: int) -> tuple[Segment, int]:
        """The segment that holds a text, and the number of the text within the segment."""
        if not 0 <= text < self.text_count:
            raise IndexError(f"There is no text {text}; there are {self.text_count}.")
        segment = bisect.bisect_right(self._bases, text) - 1
        return self.segments[segment], text - self._bases[segment]

    def _document(self, number: int) -> IndexedDocument:
        return IndexedDocument(self.doc_id(number), self.host_of_document(number))

    def _documents_by_text(self, text: int) -> NDArray[np.int64]:
        documents, bounds = self._names
        return documents[bounds[text] : bounds[text + 1]]

    @cached_property
    def _names(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The documents sorted by text, then by the order of adding, and the bounds of each text's documents."""
        living = np.flatnonzero(self.is_alive_document)
        documents = living[np.argsort(self.text_numbers[living], kind="stable")]
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.document_counts)))
        return documents, bounds


def no_index(folder: Path) -> StoreRefused:
    """The error for a folder without an index."""
    return StoreRefused(
        f"There is no passage index in {folder}. Create one with `scrapy-dedupe passages index`, or name its folder with"
        " --root."
    )


def refuse_unknown_parameters(folder: Path, parameters: Parameters) -> None:
    """Raise StoreRefused for an unknown tokeniser or blotter, for example in an index made by a later version."""
    what = f"the tokeniser {parameters.tokeniser!r}"
    try:
        is_known = tokeniser_named(parameters.tokeniser).name == parameters.tokeniser
        if is_known:
            what = f"the blotter {json.dumps(parameters.blotter, sort_keys=True)} and keys of {parameters.key_bits} bits"
            is_known = key_bits(blotter_of(parameters.blotter)) == parameters.key_bits
    except SettingError:
        is_known = False
    if not is_known:
        raise StoreRefused(
            f"The passage index {folder} was made with {what}, which this version of scrapy-dedupe does not know. Use"
            " the version that made it, or index again into another folder."
        )


def _digests(segment: Segment) -> NDArray[np.uint8]:
    """The foreign digests of a segment, n x 16 bytes."""
    return np.frombuffer(b"".join(segment.documents.foreign), np.uint8).reshape(-1, DIGEST_SIZE)


def _joined(parts: Sequence[NDArray], dtype: type) -> NDArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _concatenated(parts: Sequence[Posts]) -> Posts:
    return Posts(
        _joined([part.keys for part in parts], np.uint64),
        _joined([part.texts for part in parts], np.int64),
        _joined([part.where for part in parts], np.int64),
    )
