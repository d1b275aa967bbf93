"""A segment as it is read: mapped into memory, and looked into where the answer is.

Opening reads the two headers and compares them with the entry in the manifest. Everything else is compared with its
checksum when it is first used: tables as a whole, posts by the block, blobs one by one. So damage is refused by name
where an answer needs what is damaged, and nothing else is read. No number of the file is followed without a look at its
range, for a file that was made to deceive. `Segment.check` reads everything. The layout is told in the module
`segment_layout`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from scrapy_dedupe.errors import StoreRefused

from .outlines import decode_outline
from .segment_blobs import Blobs
from .segment_files import PostsFile
from .segment_layout import DIGEST_SIZE, GROUP_BITS, Section, SegmentEntry
from .segment_names import Digests, Names
from .spots import SPOT_BITS
from .values import Outline, Parameters, Posts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .segment_blocks import CheckedBlocks

__all__ = ["Segment", "SegmentEntry", "key_bounds"]

_SCAN = 64  # the posts of a bucket that are all looked at; in larger ones a key is searched for
_SPLIT_BITS = 16  # bounds of keys are multiples of 2 ** -16 of all keys
_NOTHING: NDArray[np.int64] = np.zeros(0, np.int64)
_READ = ("_packed", "_blocks", "_bases", "_buckets", "post_counts", "_names", "_digests")


class Segment:
    """The segment of *entry* in *folder*.

    Raises FileNotFoundError if one of its files is not there (any more), StoreRefused for a file that is not the one
    of the entry, is damaged, or was made with other parameters.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, parameters: Parameters) -> None:
        self.entry = entry
        self.name = entry.name
        self.has_texts = parameters.has_texts
        self.post_count, self.text_count, self.document_count = entry.posts, entry.texts, entry.documents
        self._file = PostsFile(folder, entry)
        try:
            self._blobs = Blobs(folder, entry)
        except BaseException:
            self._file.close()
            raise
        layout = self._file.layout
        if (layout.has_texts, layout.key_bits) != (parameters.has_texts, parameters.key_bits):
            self.close()
            raise StoreRefused(
                f"{self.path} was written {'with' if layout.has_texts else 'without'} texts and with keys of"
                f" {layout.key_bits} bits, the index {'with' if self.has_texts else 'without'} texts and with keys of"
                f" {parameters.key_bits} bits. Restore the segment that belongs to the index from a copy."
            )
        self.key_bits = layout.key_bits
        self._low_bits, self._value_bits = np.uint64(layout.low_bits), np.uint64(layout.value_bits)
        self._low_mask = np.uint64((1 << layout.low_bits) - 1)
        self._value_mask = np.uint64((1 << layout.value_bits) - 1)
        self._packed = self._file.posts()
        self._names = Names(self._file)
        self._digests = Digests(self._file)

    @property
    def path(self) -> Path:
        """The file of the posts."""
        return self._file.path

    @property
    def blobs_path(self) -> Path:
        """The file of the blobs."""
        return self._blobs.file.path

    def close(self) -> None:
        """Let go of the files. Arrays that were handed out stay readable; nothing else can be asked any more."""
        if "_names" in self.__dict__:
            self._names.close()
        for name in _READ:
            self.__dict__.pop(name, None)
        self._blobs.close()
        self._file.close()

    # Posts

    def find(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the posts of *keys*, which are sorted and different.

        Of each post the number of its key in *keys*, of its text, and where in it (see `Posts`), in this order.
        """
        if not len(keys) or not self.post_count:
            return _NOTHING, _NOTHING, _NOTHING
        if int(keys[-1]) >> self.key_bits:
            raise ValueError("a key is too large")
        starts, stops = self._bounds_of((keys >> self._low_bits).astype(np.int64))
        low_keys = keys & self._low_mask
        sizes = stops - starts
        if int(sizes.max()) > _SCAN:
            large = np.flatnonzero(sizes > _SCAN)
            wanted = low_keys[large] << self._value_bits
            both = np.concatenate((wanted, (wanted | self._value_mask) + np.uint64(1)))
            found = self._search(np.tile(starts[large], 2), np.tile(stops[large], 2), both)
            starts[large] = found[: len(large)]
            # Not less, even in a file that has been made out of order.
            stops[large] = np.maximum(found[len(large) :], starts[large])
            sizes = stops - starts
        self._check_posts(starts, stops)
        ends = sizes.cumsum()
        positions = np.repeat(starts - (ends - sizes), sizes)
        positions += np.arange(len(positions))
        posts = self._packed.gather(positions)
        numbers = np.repeat(np.arange(len(keys)), sizes)
        found = np.flatnonzero(posts >> self._value_bits == low_keys[numbers])
        values = (posts[found] & self._value_mask).view(np.int64)
        return numbers[found], *self._texts_and_where(values)

    def posts_between(self, low_key: int, high_key: int) -> Posts:
        """Return the posts with keys from *low_key* to before *high_key*, sorted by key, then text, then where in it."""
        low_key, high_key = max(low_key, 0), min(high_key, 1 << self.key_bits)
        if low_key >= high_key or not self.post_count:
            return Posts(np.zeros(0, np.uint64), _NOTHING, _NOTHING)
        low_bits = int(self._low_bits)
        buckets = np.arange(low_key >> low_bits, ((high_key - 1) >> low_bits) + 2)
        starts = self._start_of(buckets)
        if starts[0] < 0 or starts[-1] > self.post_count or np.any(starts[1:] < starts[:-1]):
            self._file.refuse_section(Section.BUCKETS)
        self._check_posts(starts[:1], starts[-1:])
        posts = self._packed.range(int(starts[0]), int(starts[-1]))
        keys = np.repeat(buckets[:-1].astype(np.uint64) << self._low_bits, np.diff(starts))
        keys |= posts >> self._value_bits
        # Some in the first and the last bucket may be outside.
        bounds = keys.searchsorted(np.array([low_key, high_key], np.uint64))
        inside = slice(int(bounds[0]), int(bounds[1]))
        values = (posts[inside] & self._value_mask).view(np.int64)
        return Posts(keys[inside], *self._texts_and_where(values))

    def key_chunks(self, most_posts: int) -> list[int]:
        """Return bounds of keys, as `key_bounds` does for several segments."""
        return key_bounds([self], most_posts)

    def posts_below(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many posts have smaller keys than each of *keys*: at least, and at most."""
        if not self.post_count:
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        low_bits = int(self._low_bits)
        return self._start_of(keys >> low_bits), self._start_of(-(-keys >> low_bits))

    @cached_property
    def first_ordinals(self) -> NDArray[np.int64]:
        """Of each text the number of its first blot in the segment, and one item more."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.post_counts, dtype=np.int64)))

    # Texts

    @property
    def token_counts(self) -> NDArray[np.uint32]:
        """How many tokens each text has."""
        return self._file.section(Section.TOKEN_COUNTS, "<u4")

    @property
    def char_counts(self) -> NDArray[np.uint32]:
        """How many characters each text has."""
        return self._file.section(Section.CHAR_COUNTS, "<u4")

    @cached_property
    def post_counts(self) -> NDArray[np.uint32]:
        """How many posts each text has."""
        counts = self._file.section(Section.POST_COUNTS, "<u4")
        if int(counts.sum(dtype=np.uint64)) != self.post_count:
            self._file.refuse_section(Section.POST_COUNTS)
        return counts

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The digests of the texts, n x 16."""
        return self._digests.array

    def text_of_digest(self, digest: bytes) -> int | None:
        """Return the number of the text with this digest."""
        text = int(self.texts_of_digests(np.frombuffer(digest, np.uint8).reshape(1, DIGEST_SIZE))[0])
        return text if text >= 0 else None

    def texts_of_digests(self, digests: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the numbers of the texts with these digests, n x 16; -1 for one that is not here."""
        return self._digests.texts_of(digests)

    def blob(self, text: int) -> bytes:
        """Return the blob of a text, inflated: its UTF-8, or its outline in bytes."""
        return self._blobs.inflated(text)

    def stored_texts(
        self, start: int, stop: int
    ) -> tuple[memoryview, NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the blobs of texts in a row, one behind the other: their sizes, sizes inflated and checksums."""
        return self._blobs.stored_many(start, stop)

    def outline(self, text: int) -> Outline:
        """Return the outline of a text, in an index without texts."""
        if self.has_texts:
            raise ValueError("an index that keeps its texts has no outlines")
        try:
            outline = decode_outline(self.blob(text))
        except ValueError:
            self._blobs.refuse_text(text)
        if len(outline.token_starts) != int(self.post_counts[text]):
            self._blobs.refuse_text(text)
        return outline

    # Documents

    @property
    def hosts(self) -> list[str]:
        """The hosts, by their numbers."""
        return self._names.hosts

    @property
    def document_texts(self) -> NDArray[np.int64]:
        """Of each document the number of its text, or -1 - i for the i-th of `foreign`."""
        return self._names.texts

    @property
    def document_hosts(self) -> NDArray[np.int32]:
        """Of each document the number of its host."""
        return self._names.host_numbers

    @property
    def foreign(self) -> list[bytes]:
        """The digests of texts that stand in other segments."""
        return self._names.foreign

    def doc_id(self, number: int) -> str:
        """Return the doc id of a document."""
        return self._names.doc_id(number)

    def doc_ids(self) -> Iterator[str]:
        """Yield all doc ids in their order."""
        return self._names.doc_ids()

    def document_number(self, doc_id: str) -> int | None:
        """Return the number of the last document with this doc id."""
        return self.documents_named([doc_id]).get(0)

    def documents_named(self, doc_ids: Sequence[str]) -> dict[int, int]:
        """Return, by their places in *doc_ids*, the numbers of the documents with these ids: of each the last."""
        return self._names.documents_named(doc_ids)

    # The whole

    def damage(self) -> Iterator[str]:
        """Compare everything but the blobs with its checksum, and yield what is damaged."""
        if problem := self._file.damage():
            yield f"{self.path}: {problem}."
        if problem := self._blobs.damage():
            yield f"{self.blobs_path}: {problem}."

    def refuse_damage(self) -> None:
        """Compare everything but the blobs with its checksum. Raises StoreRefused for what is damaged."""
        if problem := self._file.damage():
            self._file.refuse(problem)
        if problem := self._blobs.damage():
            self._blobs.file.refuse(problem)

    def forget(self) -> None:
        """Let the system take back the memory of what was read; it is read again when it is wanted."""
        self._file.forget()
        self._blobs.file.forget()

    def name_tables(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the sorted heads of the doc ids, and the documents in their order."""
        return self._file.section(Section.NAME_HEADS, "<u4"), self._file.section(Section.NAME_ORDER, "<u4")

    @cached_property
    def _bases(self) -> NDArray[np.int64]:
        return self._file.section(Section.BASES, "<i8")

    @cached_property
    def _buckets(self) -> NDArray[np.unsignedinteger]:
        return self._file.section(Section.BUCKETS, f"<u{self._file.layout.bucket_item}")

    @cached_property
    def _blocks(self) -> CheckedBlocks:
        return self._file.post_blocks()

    def _check_posts(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Compare posts with their checksums; to be called before they are read."""
        width = self._packed.width
        self._blocks.check(starts * width >> 3, (stops * width + 7) >> 3)

    def _start_of(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._bases[buckets >> GROUP_BITS] + self._buckets[buckets]

    def _bounds_of(self, buckets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, stops = self._start_of(buckets), self._start_of(buckets + 1)
        if int(starts.min()) < 0 or int(stops.max()) > self.post_count or np.any(stops < starts):
            self._file.refuse_section(Section.BUCKETS)
        return starts, stops

    def _search(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], posts: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Return, for each of *posts*, the first place from its start to its stop where no smaller one stands."""
        low, high = starts, stops
        every = []
        for _ in range(int((stops - starts).max()).bit_length()):
            middle = (low + high) >> 1
            looked_at = np.minimum(middle, self.post_count - 1)
            every.append(looked_at)
            is_smaller = (self._packed.gather(looked_at) < posts) & (low < high)
            low = np.where(is_smaller, middle + 1, low)
            high = np.where(is_smaller, high, middle)
        # All at once: a damaged post leads astray, but not out of the range.
        looked_at = np.concatenate(every)
        self._check_posts(looked_at, looked_at + 1)
        return low

    def _texts_and_where(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        most = self.text_count << SPOT_BITS if self.has_texts else int(self.first_ordinals[-1])
        if len(values) and int(values.max()) >= most:
            self._file.refuse_section(Section.POSTS)
        if self.has_texts:
            spots = values & ((1 << SPOT_BITS) - 1)
            if not spots.all():
                self._file.refuse_section(Section.POSTS)
            return values >> SPOT_BITS, spots
        texts = self.first_ordinals.searchsorted(values, side="right") - 1
        return texts, values - self.first_ordinals[texts]


def key_bounds(segments: Sequence[Segment], most_posts: int) -> list[int]:
    """Return bounds of keys, from 0 to the end, between two of which *segments* together have at most so many posts.

    More only where one key, or a few keys that stand closer than 2 ** -16 of all keys, have more. Empty for no
    segments.
    """
    if not segments:
        return []
    key_bits = segments[0].key_bits
    if sum(segment.post_count for segment in segments) <= most_posts:
        return [0, 1 << key_bits]
    bits = min(_SPLIT_BITS, key_bits)
    keys = np.arange((1 << bits) + 1, dtype=np.int64) << (key_bits - bits)
    least, most = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    for segment in segments:
        segment_least, segment_most = segment.posts_below(keys)
        least += segment_least
        most += segment_most
    bounds = [0]
    while bounds[-1] < len(keys) - 1:
        last = bounds[-1]
        place = int(most.searchsorted(least[last] + most_posts, side="right")) - 1
        bounds.append(max(place, last + 1))
    return [int(keys[bound]) for bound in bounds]
