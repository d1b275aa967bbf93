"""Reading a segment: its file is mapped into memory, and only the parts that a query needs are read.

All data is compared with its checksum on first use: sections as a whole, posts by the block, blobs one by one. A query
therefore refuses only damage in data that it needs, and names what is damaged. `Segment.damage` reads everything.
The layout is described in `segment_layout`.
"""

from __future__ import annotations

import mmap
import os
import zlib
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from deflate import deflate_decompress

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

from .folder_files import damaged, open_regular
from .groups import ranges
from .segment_layout import (
    BLOBS,
    BLOCK_SIZE,
    BUCKETS,
    DIGEST_SIZE,
    MAGIC,
    NAMES_PER_BLOCK,
    POST_CHECKSUMS,
    POSTS,
    SUFFIX,
    TYPES,
    decode_outline,
    name_head,
    post_width,
    value_bits_for,
)
from .values import Outline, Parameters, Posts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .segment_layout import SegmentEntry

_KEPT_BLOCKS = 64
_CHECKED = 1 << 24  # bytes of a section that are in memory at a time while it is compared with its checksum
_NOTHING: NDArray[np.int64] = np.zeros(0, np.int64)


class Segment:
    """The segment of *entry* in *folder*.

    Raises FileNotFoundError if its file is missing, StoreRefused for a file that has another size or is not a segment,
    StoreUnavailable if it cannot be read.
    """

    def __init__(self, folder: Path, entry: SegmentEntry, parameters: Parameters) -> None:
        self.path = folder / f"{entry.name}{SUFFIX}"
        self.entry = entry
        self.name = entry.name
        self.has_texts, self.key_bits = parameters.has_texts, parameters.key_bits
        self.post_count, self.text_count, self.document_count = entry.posts, entry.texts, entry.documents
        value_bits = value_bits_for(entry.texts if self.has_texts else entry.posts)
        low_bits = self.key_bits - entry.bucket_bits
        self._width = post_width(low_bits, value_bits)
        self._low_bits, self._value_bits = np.uint64(low_bits), np.uint64(value_bits)
        self._low_mask, self._value_mask = (np.uint64((1 << bits) - 1) for bits in (low_bits, value_bits))
        self._post_mask = np.uint64((1 << (low_bits + value_bits)) - 1)
        self._map = self._mapped()
        if self._map[: len(MAGIC)] != MAGIC:
            self._map.close()
            self.refuse("its beginning is damaged, or it has another format")
        self._sections: dict[str, NDArray[Any]] = {}
        # Words of 8 bytes that overlap: the array is a view and takes no memory.
        self._words: NDArray[np.uint64] = np.ndarray(
            (entry.posts,), "<u8", self._map, entry.sections[POSTS][0], (self._width,)
        )
        self._is_sound_block = np.zeros(entry.sections[POST_CHECKSUMS][1] // 4, np.bool_)
        self.documents = Documents(self)

    def _mapped(self) -> mmap.mmap:
        size = self.entry.size
        try:
            fd = open_regular(self.path)
            try:
                found = os.fstat(fd).st_size
                if found != size:
                    raise damaged(self.path, f"has {found} bytes instead of {size}")
                return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(
                f"{self.path} cannot be read: {error.strerror or error}. Check its permissions."
            ) from error

    def close(self) -> None:
        """Close the file. Arrays that were returned stay readable; the segment cannot be used any more."""
        self.documents.close()
        self._sections.clear()
        for name in ("_words", "first_ordinals"):
            self.__dict__.pop(name, None)
        # Arrays in use keep the mapping until they are released.
        with suppress(BufferError):
            self._map.close()
        del self._map

    def refuse(self, what: str) -> NoReturn:
        """Raise StoreRefused; *what* describes the problem."""
        raise StoreRefused(
            f"{self.path} cannot be used: {what}. Restore the index from a backup, or create it again from its sources."
        )

    def section(self, section: str) -> NDArray[Any]:
        """Return the numbers of a section without copying. Raises StoreRefused if its checksum is wrong."""
        found = self._sections.get(section)
        if found is None:
            if not self._is_sound(section):
                self.refuse_section(section)
            offset, size, _ = self.entry.sections[section]
            dtype = np.dtype(TYPES.get(section, "<u4"))
            found = np.ndarray((size // dtype.itemsize,), dtype, self._map, offset)
            self._sections[section] = found
        return found

    def refuse_section(self, section: str) -> NoReturn:
        """Raise StoreRefused for the damaged *section*."""
        self.refuse(f"its section {section!r} is damaged")

    def forget(self) -> None:
        """Let the operating system free the memory of pages that were read; they are read again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def damage(self) -> str | None:
        """Compare the whole file with its checksums, and describe the first damage; None if there is none."""
        stop = len(MAGIC)
        for section, (offset, size, _) in self.entry.sections.items():
            if not self._is_sound(section):
                return f"its section {section!r} is damaged"
            if any(self._map[stop:offset]):
                return f"the bytes before its section {section!r} are damaged"
            stop = offset + size
        return None

    def refuse_damage(self) -> None:
        """Compare the whole file with its checksums. Raises StoreRefused for damage."""
        if problem := self.damage():
            self.refuse(problem)

    def _view(self, section: str) -> memoryview:
        offset, size, _ = self.entry.sections[section]
        return memoryview(self._map)[offset : offset + size]

    def _is_sound(self, section: str) -> bool:
        view, checksum = self._view(section), 0
        for start in range(0, len(view), _CHECKED):
            checksum = zlib.crc32(view[start : start + _CHECKED], checksum)
            if len(view) > _CHECKED:
                self.forget()
        return checksum == self.entry.sections[section][2]

    # Posts

    def find(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the posts of *keys*, which must be sorted and unique.

        Returns for each post the position of its key in *keys*, its text number and its `where` value (see `Posts`).
        """
        if not len(keys) or not self.post_count:
            return _NOTHING, _NOTHING, _NOTHING
        buckets = (keys >> self._low_bits).astype(np.int64)
        starts, stops = self._starts_of(buckets), self._starts_of(buckets + 1)
        self._check_posts(starts, stops)
        sizes = stops - starts
        posts = self._words[ranges(starts, sizes)] & self._post_mask
        numbers = np.repeat(np.arange(len(keys)), sizes)
        found = np.flatnonzero(posts >> self._value_bits == (keys & self._low_mask)[numbers])
        return numbers[found], *self._texts_and_where(posts[found])

    def posts_between(self, low_key: int, high_key: int) -> Posts:
        """Return the posts with keys in ``[low_key, high_key)``, sorted by key, then text, then `where`."""
        low_key, high_key = max(low_key, 0), min(high_key, 1 << self.key_bits)
        if low_key >= high_key or not self.post_count:
            return Posts(np.zeros(0, np.uint64), _NOTHING, _NOTHING)
        low_bits = int(self._low_bits)
        buckets = np.arange(low_key >> low_bits, ((high_key - 1) >> low_bits) + 2)
        starts = self._starts_of(buckets)
        self._check_posts(starts[:1], starts[-1:])
        posts = self._words[starts[0] : starts[-1]] & self._post_mask
        keys = np.repeat(buckets[:-1].astype(np.uint64) << self._low_bits, np.diff(starts))
        keys |= posts >> self._value_bits
        # Posts in the first and the last bucket may be outside of the range.
        inside = slice(*keys.searchsorted(np.array([low_key, high_key], np.uint64)).tolist())
        return Posts(keys[inside], *self._texts_and_where(posts[inside]))

    @cached_property
    def first_ordinals(self) -> NDArray[np.int64]:
        """For each text, the number of its first blot in the segment, and a final item: the count of all blots."""
        return np.append(0, np.cumsum(self.section("post counts"), dtype=np.int64))

    def _starts_of(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = self.section(BUCKETS)[buckets].astype(np.int64)
        return starts

    def _check_posts(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Compare the blocks of posts with their checksums. Must be called before the posts are used."""
        has_posts = stops > starts
        first = starts[has_posts] * self._width // BLOCK_SIZE
        last = (stops[has_posts] * self._width - 1) // BLOCK_SIZE
        blocks = ranges(first, last - first + 1)
        data, checksums = self._view(POSTS), self.section(POST_CHECKSUMS)
        for block in np.unique(blocks[~self._is_sound_block[blocks]]).tolist():
            if zlib.crc32(data[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]) != checksums[block]:
                self.refuse_section(POSTS)
            self._is_sound_block[block] = True

    def _texts_and_where(self, posts: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        values = (posts & self._value_mask).view(np.int64)
        if self.has_texts:
            return values, np.zeros(len(values), np.int64)
        texts = self.first_ordinals.searchsorted(values, side="right") - 1
        return texts, values - self.first_ordinals[texts]

    # Texts

    def blob(self, text: int) -> bytes:
        """Return the decompressed blob of a text."""
        size = int(self.section("blob sizes")[text])
        data = self.stored_blobs(text, text + 1)
        if zlib.crc32(data) != self.section("blob checksums")[text]:
            self.refuse(f"the blob of text {text} is damaged")
        return bytes(deflate_decompress(data, size))

    def stored_blobs(self, start: int, stop: int) -> memoryview:
        """Return the blobs of consecutive texts as stored. They are not compared with their checksums."""
        ends = self.section("blob ends")
        first = int(ends[start - 1]) if start else 0
        return self._view(BLOBS)[first : int(ends[stop - 1])]

    def outline(self, text: int) -> Outline:
        """Return the outline of a text. Only for an index without texts."""
        return decode_outline(self.blob(text))

    @property
    def digests(self) -> NDArray[np.uint8]:
        """The digests of the texts, n x 16."""
        return self.section("digests").reshape(-1, DIGEST_SIZE)

    def texts_of(self, digests: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the numbers of the texts with these digests, n x 16; -1 for a digest that is not in this segment."""
        heads = np.ascontiguousarray(digests[:, :4]).view(">u4").reshape(-1).astype(np.uint32)
        asked, numbers = self.with_heads("digest", heads)
        is_same = (self.digests[numbers] == digests[asked]).all(axis=1)
        texts = np.full(len(digests), -1, np.int64)
        texts[asked[is_same]] = numbers[is_same]
        return texts

    def with_heads(
        self, kind: str, heads: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Find digests or names (*kind* is ``digest`` or ``name``) by their heads: pairs of index in *heads*, and number."""
        own = self.section(f"{kind} heads")
        firsts = own.searchsorted(heads)
        counts = own.searchsorted(heads, "right") - firsts
        return np.repeat(np.arange(len(heads)), counts), self.section(f"{kind} order")[ranges(firsts, counts)]


def key_bounds(segments: Sequence[Segment], most_posts: int) -> list[int]:
    """Return evenly spaced key bounds, from 0 to the end of the key space. Empty if there are no segments.

    Keys are hashes, so *segments* together have at most about *most_posts* posts between two adjacent bounds, or more if
    a single key has very many.
    """
    if not segments:
        return []
    posts, end = sum(segment.post_count for segment in segments), 1 << segments[0].key_bits
    pieces = min(end, -(-posts // most_posts)) or 1
    return [end * number // pieces for number in range(pieces + 1)]


class Documents:
    """The documents of a segment: their ids, hosts and texts."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._names = lru_cache(_KEPT_BLOCKS)(self._read_names)

    def doc_id(self, number: int) -> str:
        """Return the doc id of a document."""
        block, place = divmod(number, NAMES_PER_BLOCK)
        return self._names(block)[place]

    def named(self, doc_ids: Sequence[str]) -> dict[int, int]:
        """Return the numbers of the documents with these ids, by position in *doc_ids*; the last document of each id."""
        # A string that cannot be encoded is not the id of any document: "surrogatepass" gives bytes that no stored id
        # has.
        heads = [name_head(doc_id.encode(errors="surrogatepass")) for doc_id in doc_ids]
        asked, numbers = self._segment.with_heads("name", np.array(heads, np.uint32))
        # Documents with the same id are in the order of their numbers.
        return {
            place: number
            for place, number in zip(asked.tolist(), numbers.tolist(), strict=True)
            if self.doc_id(number) == doc_ids[place]
        }

    @cached_property
    def hosts(self) -> list[str]:
        """The hosts, by their numbers."""
        return self._split(self._segment.section("hosts").tobytes())

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """For each document the number of its text, or -1 - i for the i-th foreign digest."""
        return self._segment.section("document texts").astype(np.int64)

    @property
    def host_numbers(self) -> NDArray[np.uint32]:
        """For each document the number of its host."""
        return self._segment.section("document hosts")

    @property
    def foreign(self) -> NDArray[np.uint8]:
        """The digests of texts that other segments hold, n x 16."""
        return self._segment.section("foreign digests").reshape(-1, DIGEST_SIZE)

    def close(self) -> None:
        """Discard the cached doc ids."""
        self._names.cache_clear()

    def _read_names(self, block: int) -> list[str]:
        ends = self._segment.section("name ends")
        start = int(ends[block - 1]) if block else 0
        data = self._segment.section("names")[start : int(ends[block])].tobytes()
        return self._split(bytes(deflate_decompress(data, int(self._segment.section("name sizes")[block]))))

    @staticmethod
    def _split(data: bytes) -> list[str]:
        return data.decode().split("\0")[:-1]
