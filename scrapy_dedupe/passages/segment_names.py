"""Reading the doc ids, hosts and digests of a segment."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from deflate import DeflateError, deflate_decompress

from .segment_layout import DIGEST_SIZE, MAX_INFLATION, NAMES_PER_BLOCK, Section, name_head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from .segment_files import PostsFile

_KEPT_BLOCKS = 64


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

    @cached_property
    def foreign(self) -> list[bytes]:
        """The digests of texts that other segments hold."""
        data = self._file.section(Section.FOREIGN, "u1").tobytes()
        return [data[start : start + DIGEST_SIZE] for start in range(0, len(data), DIGEST_SIZE)]

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

    def text_of(self, digest: bytes) -> int | None:
        """Return the number of the text with this digest, None if it is not in this segment."""
        text = int(self.texts_of(np.frombuffer(digest, np.uint8).reshape(1, DIGEST_SIZE))[0])
        return text if text >= 0 else None

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
