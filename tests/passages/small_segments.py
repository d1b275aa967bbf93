"""Segments of a few texts whose keys are made up, for the tests of what reads them."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from deflate import deflate_compress
from passages.segment_cases import add_text

from scrapy_dedupe.passages.catalogue import Manifest, encoded_deleted, replace_manifest
from scrapy_dedupe.passages.segment_layout import encode_outline, new_segment
from scrapy_dedupe.passages.values import Outline, Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.passages.segment_layout import SegmentEntry

WITH_TEXTS = Parameters("words/1", {"name": "rolling/1", "k": 8, "window": 8}, True)
WITHOUT_TEXTS = Parameters("words/1", {"name": "rolling/1", "k": 8, "window": 8}, False)


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()[:16]


def keys_of(text: str) -> list[int]:
    """The made-up keys of a text: one for each of its characters, spread over all 40 bits."""
    return [ord(character) * 0x9E3779B97F % (1 << 40) for character in text]


def stored_keys(text: str, parameters: Parameters) -> list[int]:
    """What of them the posts have."""
    return sorted(set(keys_of(text))) if parameters.has_texts else keys_of(text)


def outline_of(text: str) -> Outline:
    starts = np.arange(len(text), dtype=np.int64)
    return Outline(starts, 2 * starts, 2 * starts + 5)


def write_segment(
    folder: Path,
    name: str,
    parameters: Parameters,
    texts: Sequence[str],
    documents: Sequence[tuple[str, str, str]],
) -> SegmentEntry:
    """A segment that holds *texts*; *documents* are doc id, host and text, which may stand in another segment."""
    with new_segment(folder, name, parameters) as writer:
        numbers = {}
        for text in texts:
            keys = stored_keys(text, parameters)
            raw = text.encode() if parameters.has_texts else encode_outline(outline_of(text))
            numbers[text] = add_text(
                writer, digest_of(text), len(text), len(text), len(keys), deflate_compress(raw, 1), len(raw)
            )
            writer.add_posts(np.array(keys, np.uint64), np.full(len(keys), numbers[text], np.int64))
        for doc_id, host, text in documents:
            writer.add_document(doc_id, host, numbers.get(text, digest_of(text)))
    return writer.entry


def deleted(documents: int, *numbers: int) -> str:
    """What a manifest has of a segment of so many documents, of which some are deleted."""
    return encoded_deleted(np.isin(np.arange(documents), numbers))


def write_index(
    folder: Path,
    parameters: Parameters,
    segments: Sequence[SegmentEntry],
    deleted: Mapping[str, str] | None = None,
    generation: int = 1,
) -> Manifest:
    manifest = Manifest(generation, parameters, tuple(segments), deleted or {})
    replace_manifest(folder, manifest)
    return manifest
