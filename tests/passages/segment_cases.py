"""Small segments for the tests: what goes in, how it is written, and what has to come out."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from deflate import deflate_compress
from hypothesis import strategies as st

from scrapy_dedupe.passages.segment_layout import SegmentWriter, encode_outline, new_segment
from scrapy_dedupe.passages.segments import Segment
from scrapy_dedupe.passages.values import Outline, Parameters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scrapy_dedupe.passages.segment_layout import SegmentEntry

KEY_BITS = 12
"""So few that keys, and buckets, are shared."""


@dataclass(frozen=True)
class Text:
    """A text and the keys of its blots, in the order of the text."""

    text: str
    keys: tuple[int, ...]

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.text.encode()).digest()[:16]


@dataclass(frozen=True)
class Name:
    """A document: its text is the number of one, or, if it stands in another segment, a digest."""

    doc_id: str
    host: str
    text: int | bytes


@dataclass(frozen=True)
class Case:
    texts: tuple[Text, ...]
    documents: tuple[Name, ...]

    def posts(self, *, has_texts: bool) -> list[tuple[int, int, int]]:
        """Key, text and ordinal (with texts: 0) of all posts, sorted."""
        if has_texts:
            return sorted({(key, number, 0) for number, text in enumerate(self.texts) for key in text.keys})
        return sorted(
            (key, number, ordinal)
            for number, text in enumerate(self.texts)
            for ordinal, key in enumerate(text.keys)
        )


def parameters(*, has_texts: bool, key_bits: int = KEY_BITS) -> Parameters:
    blotter = {"name": "xor/1", "k": 8, "bits": key_bits} if key_bits <= 32 else {"name": "rolling/1"}
    return Parameters("words/1", blotter, has_texts, key_bits)


def outline_of(text: Text) -> Outline:
    starts = np.arange(len(text.keys), dtype=np.int64)
    return Outline(starts * 3, starts * 20, starts * 20 + 45)


def add_text(
    writer: SegmentWriter, digest: bytes, tokens: int, chars: int, posts: int, blob: bytes, size: int
) -> int:
    """Add one text, and return its number."""
    columns = [np.array([number]) for number in (tokens, chars, posts, len(blob), size, zlib.crc32(blob))]
    writer.add_texts(digest, columns, blob)
    return writer.text_count - 1


def write(folder: Path, name: str, case: Case, *, has_texts: bool) -> SegmentEntry:
    with new_segment(folder, name, parameters(has_texts=has_texts)) as writer:
        for text in case.texts:
            raw = text.text.encode() if has_texts else encode_outline(outline_of(text))
            keys = _keys_of(text, has_texts=has_texts)
            number = add_text(
                writer,
                text.digest,
                3 * len(text.text),
                len(text.text),
                len(keys),
                deflate_compress(raw),
                len(raw),
            )
            writer.add_posts(keys, np.full(len(keys), number))
        for document in case.documents:
            writer.add_document(document.doc_id, document.host, document.text)
    return writer.entry


def written(folder: Path, case: Case, *, has_texts: bool, name: str = "one") -> Segment:
    return Segment(folder, write(folder, name, case, has_texts=has_texts), parameters(has_texts=has_texts))


def posts_of(
    keys: NDArray[np.uint64], texts: NDArray[np.int64], where: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    return list(zip(keys.tolist(), texts.tolist(), where.tolist(), strict=True))


def _keys_of(text: Text, *, has_texts: bool) -> NDArray[np.uint64]:
    keys: Sequence[int] = tuple(dict.fromkeys(text.keys)) if has_texts else text.keys
    return np.array(keys, np.uint64)


_words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_keys = st.integers(0, (1 << KEY_BITS) - 1) | st.sampled_from([0, 7, 8, 9, (1 << KEY_BITS) - 1])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw what a segment may hold: texts without posts and without documents, names of the same text, others' texts."""
    texts = draw(
        st.lists(
            st.builds(Text, _words, st.lists(_keys, max_size=30).map(tuple)),
            max_size=12,
            unique_by=lambda t: t.text,
        )
    )
    known = st.integers(0, len(texts) - 1) if texts else st.nothing()
    others = st.sampled_from([hashlib.sha256(bytes([n])).digest()[:16] for n in range(4)])
    documents = draw(
        st.lists(
            st.builds(
                Name, _words.filter(bool), st.sampled_from(["", "a.org", "bücher.example"]), known | others
            ),
            max_size=80,
            unique_by=lambda document: document.doc_id,
        )
    )
    return Case(tuple(texts), tuple(documents))
