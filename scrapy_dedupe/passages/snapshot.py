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
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable

from .blots import blotter_of, key_bits
from .catalogue import read_manifest
from .folder_files import damaged, missing_file
from .segments import Segment, key_bounds
from .tokens import tokeniser_named
from .values import IndexedDocument, Posts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from numpy.typing import NDArray

    from .catalogue import Manifest
    from .segment_layout import SegmentEntry
    from .values import Outline, Parameters

    PostColumns = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]

DEFAULT_SCAN_POSTS = 2_000_000
"""Default number of posts per piece of `IndexSnapshot.scan`."""

_TRIES = 50  # each retry needs a new manifest, so only an index that is written continuously exhausts them
_MIN_POSTS = 1_024  # a segment knows the position of a key only to within some posts


class SegmentFiles:
    """The files of the segments of *manifest*, opened; the files that are damaged or missing are in *errors*."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        refuse_unknown_parameters(folder, manifest.parameters)
        self.segments: list[Segment] = []
        self.errors: list[StoreRefused] = []
        self.failed: list[SegmentEntry] = []
        for entry in manifest.segments:
            try:
                self.segments.append(Segment(folder, entry, manifest.parameters))
            except (FileNotFoundError, StoreRefused) as error:
                self.errors.append(error if isinstance(error, StoreRefused) else missing_file(folder, error))
                self.failed.append(entry)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the files. Safe to repeat."""
        while self.segments:
            self.segments.pop().close()


def open_files(folder: Path) -> tuple[Manifest, SegmentFiles]:
    """The current manifest of the index in *folder*, and its files, some of which may be damaged or missing.

    Raises StoreRefused if there is no index, or one of another version, or if its manifest is damaged; StoreUnavailable
    if it cannot be read, or if it is written so often that files are always removed before they can be opened.
    """
    for _ in range(_TRIES):
        manifest = read_manifest(folder)
        if manifest is None:
            raise no_index(folder)
        files = SegmentFiles(folder, manifest)
        if not files.failed:
            return manifest, files
        # A writer may have removed or replaced these files since the manifest was read.
        newer = read_manifest(folder)
        if newer is not None and any(entry in newer.segments for entry in files.failed):
            return manifest, files
        files.close()
    raise StoreUnavailable(
        f"The passage index {folder} is being written continuously, so it cannot be opened. Try again when no process is"
        " writing."
    )


class IndexSnapshot:
    """The index in *folder* as described by *manifest*, with its open *files*; `open` reads the manifest first.

    Raises StoreRefused if a file is damaged or missing.
    """

    def __init__(self, folder: Path, manifest: Manifest, files: SegmentFiles) -> None:
        self.folder = folder
        self.manifest = manifest
        self._files = files
        with contextlib.ExitStack() as undo:
            undo.callback(files.close)
            if files.errors:
                raise files.errors[0]
            self.segments = tuple(files.segments)
            self.text_bases = [0, *accumulate(segment.text_count for segment in self.segments)]
            """The number of the first text of each segment, and the number of all texts."""
            self.document_bases = [0, *accumulate(segment.document_count for segment in self.segments)]
            """The number of the first document of each segment, and the number of all documents."""
            self._spans = [slice(*bounds) for bounds in pairwise(self.text_bases)]
            self.is_alive_document: NDArray[np.bool_] = _joined(
                [manifest.living(entry) for entry in manifest.segments], np.bool_
            )
            self.text_numbers: NDArray[np.int64] = self._text_numbers()
            self.is_alive: NDArray[np.bool_] = self._living_texts()
            self._has_dead = [not bool(self.is_alive[span].all()) for span in self._spans]
            undo.pop_all()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The current state of the index. Raises the exceptions of `open_files`, and StoreRefused if it is damaged."""
        return cls(folder, *open_files(folder))

    @property
    def parameters(self) -> Parameters:
        """The parameters that the index was made with."""
        return self.manifest.parameters

    # Texts

    @property
    def text_count(self) -> int:
        """How many texts are stored, including those that no document has any more. All text numbers are below this."""
        return self.text_bases[-1]

    @cached_property
    def token_counts(self) -> NDArray[np.uint32]:
        """How many tokens each text has."""
        return _joined([segment.section("token counts") for segment in self.segments], np.uint32)

    @cached_property
    def char_counts(self) -> NDArray[np.uint32]:
        """How many characters (code points) each text has."""
        return _joined([segment.section("char counts") for segment in self.segments], np.uint32)

    def post_counts(self, chosen: slice) -> NDArray[np.uint32]:
        """How many posts each text of the *chosen* segments has."""
        return _joined([segment.section("post counts") for segment in self.segments[chosen]], np.uint32)

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
            return segment.blob(own).decode()
        except UnicodeDecodeError as error:
            raise damaged(segment.path, f"has invalid UTF-8 in text {own}") from error

    def outline(self, number: int) -> Outline:
        """The positions of the blots of a text, in an index without texts. Raises StoreRefused if it is damaged."""
        segment, own = self._segment_and_number(number)
        return segment.outline(own)

    def texts_of_digests(self, digests: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The numbers of the texts with these digests (n x 16 bytes), alive or not; -1 for unknown digests."""
        numbers = np.full(len(digests), -1, np.int64)
        for base, segment in zip(self.text_bases, self.segments, strict=False):
            left = np.flatnonzero(numbers < 0)
            if not left.size:
                break
            own = segment.texts_of(digests[left])
            numbers[left] = np.where(own < 0, -1, own + base)
        return numbers

    # Documents

    @property
    def document_count(self) -> int:
        """How many documents there are, without deleted ones."""
        return int(np.count_nonzero(self.is_alive_document))

    def document_numbers_of(self, text: int) -> list[int]:
        """The numbers of the documents with this text, across all segments, in the order in which they were added."""
        documents, bounds = self._documents_by_text
        return documents[bounds[text] : bounds[text + 1]].tolist()

    def doc_id(self, number: int) -> str:
        """The id of a document, given its number across all segments."""
        segment = bisect.bisect_right(self.document_bases, number) - 1
        return self.segments[segment].documents.doc_id(number - self.document_bases[segment])

    def document_number(self, doc_id: str) -> int | None:
        """The number, across all segments, of the document with this id; None if there is no such document."""
        return self.numbers_of([doc_id]).get(doc_id)

    def numbers_of(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """The numbers, across all segments, of the documents with these ids, without ids that have no document."""
        asked = list(doc_ids)
        found: dict[str, int] = {}
        for first, segment in zip(self.document_bases, self.segments, strict=False):
            for place, number in segment.documents.named(asked).items():
                if self.is_alive_document[first + number]:
                    found[asked[place]] = first + number
        return found

    def digest_of_document(self, number: int) -> bytes:
        """The digest of the text of a document, given its number across all segments."""
        segment, own = self._segment_and_number(int(self.text_numbers[number]))
        return segment.digests[own].tobytes()

    def host_of_document(self, number: int) -> str:
        """The host of a document, given its number across all segments; "" if it has none."""
        return self.host_names[self._hosts[1][number]]

    def iter_documents(self) -> Iterator[IndexedDocument]:
        """All documents, in the order in which they were added."""
        tokens, characters = self.token_counts, self.char_counts
        for number in np.flatnonzero(self.is_alive_document).tolist():
            text = self.text_numbers[number]
            yield IndexedDocument(
                self.doc_id(number), self.host_of_document(number), int(tokens[text]), int(characters[text])
            )

    @cached_property
    def first_documents(self) -> NDArray[np.int64]:
        """For each text, the number of the first document that has it; -1 if no document has it."""
        firsts = np.full(self.text_count, -1, np.int64)
        living = np.flatnonzero(self.is_alive_document)[::-1]
        # If an index occurs several times, NumPy keeps the last value: the first document.
        firsts[self.text_numbers[living]] = living
        return firsts

    # Hosts

    @property
    def host_names(self) -> list[str]:
        """The names of all hosts, in the order of their first documents. "" is the host of documents without one."""
        return self._hosts[0]

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
        living = self._hosts[1][self.is_alive_document]
        return np.bincount(living, minlength=len(self.host_names)).astype(np.int64, copy=False)

    @cached_property
    def text_host(self) -> NDArray[np.int64]:
        """For each text, the host of the first document that has it; -1 if no document has it."""
        # The additional item is the host of the document -1.
        return np.append(self._hosts[1], -1)[self.first_documents]

    # Posts

    def find(self, keys: NDArray[np.uint64]) -> PostColumns:
        """The posts of *keys* in texts that are alive. *keys* must be sorted and unique.

        Returns three arrays of the same length: positions in *keys*, text numbers, and the `where` values of `Posts`;
        sorted by key, then by text, within each segment.
        """
        return self._living_posts(lambda segment: segment.find(keys), in_order=False)

    def scan(
        self,
        most_posts: int = DEFAULT_SCAN_POSTS,
        chosen: slice = slice(None),
        *,
        in_order: bool = True,
    ) -> Iterator[Posts]:
        """All posts of texts that are alive in the *chosen* segments, in pieces: sorted by key, then by text.

        All posts of a key are in the same piece. A piece has at most about *most_posts* posts (at least 1,024), unless a
        single key has more. With *in_order* False, a piece is only sorted within each segment, which is faster.
        """
        for low, high in pairwise(key_bounds(self.segments[chosen], max(most_posts, _MIN_POSTS))):
            posts = self._living_posts(partial(_columns_between, low, high), chosen, in_order=in_order)
            if len(posts[0]):
                yield Posts(*posts)

    def close(self) -> None:
        """Close the files. Arrays taken from the snapshot must not be used afterwards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _living_posts(
        self, read: Callable[[Segment], PostColumns], chosen: slice = slice(None), *, in_order: bool
    ) -> PostColumns:
        """The posts that *read* returns for each segment, without those of dead texts, sorted by the first column."""
        none = np.zeros(0, np.int64)
        parts: list[PostColumns] = []
        columns = (self.segments[chosen], self._has_dead[chosen], self._spans[chosen])
        for segment, has_dead, span in zip(*columns, strict=True):
            keys, texts, where = read(segment)
            if has_dead and len(texts):
                living = self.is_alive[span][texts]
                keys, texts, where = keys[living], texts[living], where[living]
            if len(texts):
                parts.append((keys, texts + span.start, where))
        if len(parts) <= 1:
            return parts[0] if parts else (none, none, none)
        keys, texts, where = map(np.concatenate, zip(*parts, strict=True))
        if not in_order:
            return keys, texts, where
        # The segments are in the order of their text numbers, so a stable sort by key is enough.
        order = np.argsort(keys, kind="stable")
        return keys[order], texts[order], where[order]

    def living(self, chosen: slice) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which documents, and which texts, of the *chosen* segments are alive."""
        start, stop, _ = chosen.indices(len(self.segments))
        return (
            self.is_alive_document[self.document_bases[start] : self.document_bases[stop]],
            self.is_alive[self.text_bases[start] : self.text_bases[stop]],
        )

    def _text_numbers(self) -> NDArray[np.int64]:
        """For each document, the number of its text across all segments; -1 if no segment holds it."""
        parts = []
        for base, segment in zip(self.text_bases, self.segments, strict=False):
            own = segment.documents.texts + base
            foreign = np.flatnonzero(segment.documents.texts < 0)
            if foreign.size:
                own[foreign] = self.texts_of_digests(segment.documents.foreign)[base - 1 - own[foreign]]
            parts.append(own)
        return _joined(parts, np.int64)

    def _living_texts(self) -> NDArray[np.bool_]:
        living = self.text_numbers[self.is_alive_document]
        if living.size and int(living.min()) < 0:
            document = int(np.flatnonzero(self.is_alive_document & (self.text_numbers < 0))[0])
            number = bisect.bisect_right(self.document_bases, document) - 1
            own = document - self.document_bases[number]
            raise damaged(
                self.folder,
                f"has no text for document {own} of the segment {self.manifest.segments[number].name}",
            )
        alive = np.zeros(self.text_count, np.bool_)
        alive[living] = True
        return alive

    def _segment_and_number(self, text: int) -> tuple[Segment, int]:
        """The segment that holds a text, and the number of the text within the segment."""
        if not 0 <= text < self.text_count:
            raise IndexError(f"There is no text {text}; there are {self.text_count}.")
        segment = bisect.bisect_right(self.text_bases, text) - 1
        return self.segments[segment], text - self.text_bases[segment]

    @cached_property
    def _documents_by_text(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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


def _columns_between(low: int, high: int, segment: Segment) -> PostColumns:
    posts = segment.posts_between(low, high)
    return posts.keys, posts.texts, posts.where


def _joined(parts: Sequence[NDArray], dtype: type) -> NDArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
