"""Reading a segment: its files are mapped into memory, and only the parts that a query needs are read.

Opening reads the two headers and compares them with the entry in the manifest. All other data is compared with its
checksum on first use: tables as a whole, posts by the block, blobs one by one. A query therefore refuses only damage in
data that it needs, and names what is damaged. Every number from the files is range-checked before use, as protection
against crafted files. `checking.check_segment` reads everything. The layout is described in `segment_layout`.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from deflate import DeflateError, deflate_decompress

from scrapy_dedupe.errors import StoreRefused

from .segment_files import Blobs, PostsFile
from .segment_layout import (
    DIGEST_SIZE,
    GROUP_BITS,
    MAX_INFLATION,
    NAMES_PER_BLOCK,
    SPOT_BITS,
    Section,
    SegmentEntry,
    decode_outline,
    name_head,
)
from .values import Outline, Parameters, Posts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .packing import CheckedBlocks

_KEPT_BLOCKS = 64


__all__ = ["Segment", "SegmentEntry", "key_bounds"]

_SCAN = 64  # buckets of up to this many posts are read completely; larger ones are searched for a key
_SPLIT_BITS = 16  # key bounds are multiples of 2 ** -16 of the key space
_NOTHING: NDArray[np.int64] = np.zeros(0, np.int64)
_READ = ("_packed", "_blocks", "_bases", "_buckets", "post_counts", "documents", "digests")


class Segment:
    """The segment of *entry* in *folder*.

    Raises FileNotFoundError if one of its files is missing, StoreRefused for a file that is not the one of the entry, is
    damaged, or was made with other parameters.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, parameters: Parameters) -> None:
        self.entry = entry
        self.name = entry.name
        self.has_texts = parameters.has_texts
        self.post_count, self.text_count, self.document_count = entry.posts, entry.texts, entry.documents
        self._file = PostsFile(folder, entry)
        try:
            self.blobs = Blobs(folder, entry)
        except BaseException:
            self._file.close()
            raise
        layout = self._file.layout
        if (layout.has_texts, layout.key_bits) != (parameters.has_texts, parameters.key_bits):
            self.close()
            raise StoreRefused(
                f"{self.path} was written {'with' if layout.has_texts else 'without'} texts and with keys of"
                f" {layout.key_bits} bits, the index {'with' if self.has_texts else 'without'} texts and with keys of"
                f" {parameters.key_bits} bits. Restore the right segment from a backup."
            )
        self.key_bits = layout.key_bits
        self._low_bits, self._value_bits = np.uint64(layout.low_bits), np.uint64(layout.value_bits)
        self._low_mask = np.uint64((1 << layout.low_bits) - 1)
        self._value_mask = np.uint64((1 << layout.value_bits) - 1)
        self._packed = self._file.posts()
        self.documents = Documents(self._file)
        self.digests = Digests(self._file)

    @property
    def path(self) -> Path:
        """The path of the posts file."""
        return self._file.path

    def close(self) -> None:
        """Close the files. Arrays that were returned stay readable; the segment cannot be used any more."""
        if "documents" in self.__dict__:
            self.documents.close()
        for name in _READ:
            self.__dict__.pop(name, None)
        self.blobs.close()
        self._file.close()

    # Posts

    def find(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the posts of *keys*, which must be sorted and unique.

        Returns for each post the position of its key in *keys*, its text number and its `where` value (see `Posts`).
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
            # A crafted file may be unsorted: the stop must still not be before the start.
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
        """Return the posts with keys in ``[low_key, high_key)``, sorted by key, then text, then `where`."""
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
        # Posts in the first and the last bucket may be outside of the range.
        bounds = keys.searchsorted(np.array([low_key, high_key], np.uint64))
        inside = slice(int(bounds[0]), int(bounds[1]))
        values = (posts[inside] & self._value_mask).view(np.int64)
        return Posts(keys[inside], *self._texts_and_where(values))

    def posts_below(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return lower and upper bounds of the number of posts with keys smaller than each of *keys*."""
        if not self.post_count:
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        low_bits = int(self._low_bits)
        return self._start_of(keys >> low_bits), self._start_of(-(-keys >> low_bits))

    @cached_property
    def first_ordinals(self) -> NDArray[np.int64]:
        """For each text, the number of its first blot in the segment, and a final item: the count of all blots."""
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

    def outline(self, text: int) -> Outline:
        """Return the outline of a text. Only for an index without texts."""
        if self.has_texts:
            raise ValueError("an index that stores its texts has no outlines")
        try:
            outline = decode_outline(self.blobs.inflated(text))
        except ValueError:
            self.blobs.refuse_text(text)
        if len(outline.token_starts) != int(self.post_counts[text]):
            self.blobs.refuse_text(text)
        return outline

    # Checks

    def damage(self) -> Iterator[str]:
        """Compare everything except the blobs with its checksum, and yield a sentence for each damaged file."""
        if problem := self._file.damage():
            yield f"{self.path}: {problem}."
        if problem := self.blobs.damage():
            yield f"{self.blobs.file.path}: {problem}."

    def refuse_damage(self) -> None:
        """Compare everything except the blobs with its checksum. Raises StoreRefused for damage."""
        if problem := self._file.damage():
            self._file.refuse(problem)
        if problem := self.blobs.damage():
            self.blobs.file.refuse(problem)

    def forget(self) -> None:
        """Let the operating system free the memory of pages that were read; they are read again when needed."""
        self._file.forget()
        self.blobs.file.forget()

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
        """Compare posts with their checksums. Must be called before the posts are used."""
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
        """Return, for each of *posts*, the first position between its start and stop whose post is not smaller."""
        low, high = starts, stops
        every = []
        for _ in range(int((stops - starts).max()).bit_length()):
            middle = (low + high) >> 1
            looked_at = np.minimum(middle, self.post_count - 1)
            every.append(looked_at)
            is_smaller = (self._packed.gather(looked_at) < posts) & (low < high)
            low = np.where(is_smaller, middle + 1, low)
            high = np.where(is_smaller, high, middle)
        # Check all probed posts together: a corrupt one can misdirect the search but not leave the range.
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
    """Return key bounds, from 0 to the end of the key space.

    Between two adjacent bounds, *segments* together have at most *most_posts* posts, or more if a single key, or a few
    keys within 2 ** -16 of the key space, have more. Empty if there are no segments.
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


class Documents:
    """The documents of a segment: their ids, hosts and texts. Raises StoreRefused where they are damaged."""

    def __init__(self, file: PostsFile) -> None:
        self._file = file
        self._count = file.layout.documents
        self._blocks: dict[int, list[str]] = {}
        # Threads that share a snapshot add and remove blocks at the same time.
        self._blocks_lock = threading.Lock()

    def doc_id(self, number: int) -> str:
        """Return the doc id of a document."""
        if not 0 <= number < self._count:
            raise IndexError(f"there is no document {number}")
        block, place = divmod(number, NAMES_PER_BLOCK)
        return self._block(block)[place]

    def doc_ids(self) -> Iterator[str]:
        """Yield all doc ids, in the order of their numbers."""
        for block in range(-(-self._count // NAMES_PER_BLOCK)):
            yield from self._block(block)

    def named(self, doc_ids: Sequence[str]) -> dict[int, int]:
        """Return the numbers of the documents with these ids, by position in *doc_ids*; the last document of each id."""
        found: dict[int, int] = {}
        if not self._count or not doc_ids:
            return found
        sorted_heads, order = self.sorted_names()
        # A string that cannot be encoded is not the id of any document: "surrogatepass" gives bytes that no stored id
        # has.
        names = (doc_id.encode(errors="surrogatepass") for doc_id in doc_ids)
        heads = np.array([name_head(name) for name in names], np.uint32)
        places = np.searchsorted(sorted_heads, heads)
        places[places == self._count] = 0
        for asked in np.flatnonzero(sorted_heads[places] == heads).tolist():
            place = int(places[asked])
            while place < self._count and sorted_heads[place] == heads[asked]:
                number = int(order[place])
                if number >= self._count:
                    self._file.refuse_section(Section.NAME_ORDER)
                if self.doc_id(number) == doc_ids[asked]:
                    found[asked] = max(number, found.get(asked, -1))
                place += 1
        return found

    def number_of(self, doc_id: str) -> int | None:
        """Return the number of the last document with this doc id."""
        return self.named([doc_id]).get(0)

    def sorted_names(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the sorted heads of the doc ids, and the document numbers in this order."""
        return self._file.section(Section.NAME_HEADS, "<u4"), self._file.section(Section.NAME_ORDER, "<u4")

    @cached_property
    def hosts(self) -> list[str]:
        """The hosts, by their numbers."""
        data = self._file.section(Section.HOSTS, "u1").tobytes()
        return self._split(data, self._file.layout.hosts, Section.HOSTS)

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """For each document the number of its text, or -1 - i for the i-th foreign digest."""
        texts = self._file.section(Section.DOCUMENT_TEXTS, "<i4").astype(np.int64)
        layout = self._file.layout
        if len(texts) and (texts.min() < -layout.foreign or texts.max() >= layout.texts):
            self._file.refuse_section(Section.DOCUMENT_TEXTS)
        return texts

    @cached_property
    def host_numbers(self) -> NDArray[np.int32]:
        """For each document the number of its host."""
        hosts = self._file.section(Section.DOCUMENT_HOSTS, "<u4")
        if len(hosts) and hosts.max() >= self._file.layout.hosts:
            self._file.refuse_section(Section.DOCUMENT_HOSTS)
        return hosts.astype(np.int32)

    @property
    def foreign(self) -> NDArray[np.uint8]:
        """The digests of texts that other segments hold, n x 16."""
        return self._file.section(Section.FOREIGN, "u1").reshape(-1, DIGEST_SIZE)

    def close(self) -> None:
        """Discard the cached doc ids."""
        with self._blocks_lock:
            self._blocks.clear()

    def _block(self, block: int) -> list[str]:
        names = self._blocks.get(block)
        if names is None:
            names = self._read_block(block)
            with self._blocks_lock:
                if len(self._blocks) >= _KEPT_BLOCKS:
                    del self._blocks[next(iter(self._blocks))]  # the block that was read first
                self._blocks[block] = names
        return names

    def _read_block(self, block: int) -> list[str]:
        ends: NDArray[np.uint64] = self._file.section(Section.NAME_ENDS, "<u8")
        sizes: NDArray[np.uint32] = self._file.section(Section.NAME_SIZES, "<u4")
        start = int(ends[block - 1]) if block else 0
        stop, size = int(ends[block]), int(sizes[block])
        data = self._file.section(Section.NAMES, "u1")
        if not start <= stop <= len(data) or size > (stop - start) * MAX_INFLATION:
            self._file.refuse_section(Section.NAME_ENDS)
        try:
            raw = deflate_decompress(data[start:stop].tobytes(), size)
        except DeflateError:
            self._file.refuse_section(Section.NAMES)
        count = min(NAMES_PER_BLOCK, self._count - block * NAMES_PER_BLOCK)
        return self._split(bytes(raw), count, Section.NAMES)

    def _split(self, data: bytes, count: int, section: Section) -> list[str]:
        try:
            names = data.decode().split("\0")
        except UnicodeDecodeError:
            self._file.refuse_section(section)
        if len(names) != count + 1 or names.pop():
            self._file.refuse_section(section)
        return names


class Digests:
    """The digests of a segment's texts, and the lookup of texts by digest."""

    def __init__(self, file: PostsFile) -> None:
        self._file = file

    @property
    def array(self) -> NDArray[np.uint8]:
        """The digests, n x 16."""
        return self._file.section(Section.DIGESTS, "u1").reshape(-1, DIGEST_SIZE)

    def texts_of(self, digests: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the numbers of the texts with these digests, n x 16; -1 for a digest that is not in this segment."""
        count = self._file.layout.texts
        texts = np.full(len(digests), -1, np.int64)
        if not len(digests) or not count:
            return texts
        heads = np.ascontiguousarray(digests[:, :4]).view(">u4").reshape(-1).astype(np.uint32)
        own, sorted_heads = self.array, self._file.section(Section.DIGEST_HEADS, "<u4")
        order = self._file.section(Section.DIGEST_ORDER, "<u4")
        places = np.searchsorted(sorted_heads, heads)
        asked = np.arange(len(digests))
        while len(asked):  # repeat for the few digests whose head another digest shares
            inside = places < count
            asked, places = asked[inside], places[inside]
            same = sorted_heads[places] == heads[asked]
            asked, places = asked[same], places[same]
            candidates = order[places].astype(np.int64)
            if len(candidates) and candidates.max() >= count:
                self._file.refuse_section(Section.DIGEST_ORDER)
            found = (own[candidates] == digests[asked]).all(axis=1)
            texts[asked[found]] = candidates[found]
            asked, places = asked[~found], places[~found] + 1
        return texts
