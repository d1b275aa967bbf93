"""Statistics of an index.

Most of them are available immediately. The number of different keys, and the number of documents per key, need a scan of
all posts, which takes bounded memory.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from .boilerplate import SHARE, Boilerplate
from .seeds import counted as counted_documents
from .seeds import numbered

if TYPE_CHECKING:
    from .snapshot import IndexSnapshot


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """The counts of one segment, including deleted documents, and the sizes of its posts and names, and of its texts."""

    name: str
    documents: int
    deleted: int
    texts: int
    posts: int
    posts_bytes: int
    texts_bytes: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """The statistics of an index; all except those of its segments exclude deleted documents.

    *copies* are documents that have the text of an earlier one. *documents_a_key_mean* and *_sigma* (the standard
    deviation) are over all different keys. *boilerplate_keys* are keys that are boilerplate on at least one host; they
    have *boilerplate_posts* posts there.

    *texts_bytes* is the size of the stored texts or of the outlines, *posts_bytes* that of everything else.
    *share_of_text* is *posts_bytes*, in an index without texts plus *texts_bytes*, divided by the number of characters of
    all texts.
    """

    parameters: dict[str, Any]
    generation: int
    documents: int
    deleted: int
    copies: int
    hosts: int
    texts: int
    tokens: int
    characters: int
    posts: int
    distinct_keys: int
    documents_a_key_mean: float
    documents_a_key_sigma: float
    boilerplate_keys: int
    boilerplate_posts: int
    posts_bytes: int
    texts_bytes: int
    share_of_text: float | None
    segments: list[InspectedSegment]


def inspect(snapshot: IndexSnapshot, boilerplate_share: float = SHARE) -> Inspected:
    """Compute the statistics. Raises SettingError for an invalid share, StoreRefused if the index is damaged."""
    of_keys = _of_keys(snapshot, boilerplate_share)
    living = snapshot.is_alive
    characters = int(snapshot.char_counts[living].sum(dtype=np.int64))
    segments = [
        InspectedSegment(
            entry.name,
            entry.documents,
            int(np.count_nonzero(~snapshot.manifest.living(entry))),
            entry.texts,
            entry.posts,
            entry.size - entry.texts_size,
            entry.texts_size,
        )
        for entry in snapshot.manifest.segments
    ]
    posts_bytes = sum(segment.posts_bytes for segment in segments)
    texts_bytes = sum(segment.texts_bytes for segment in segments)
    counted = posts_bytes if snapshot.parameters.has_texts else posts_bytes + texts_bytes
    texts = int(np.count_nonzero(living))
    return Inspected(
        parameters=asdict(snapshot.parameters),
        generation=snapshot.manifest.generation,
        documents=snapshot.document_count,
        deleted=sum(segment.deleted for segment in segments),
        copies=snapshot.document_count - texts,
        hosts=sum(
            1
            for name, documents in zip(snapshot.host_names, snapshot.documents_per_host, strict=True)
            if name and documents
        ),
        texts=texts,
        tokens=int(snapshot.token_counts[living].sum(dtype=np.int64)),
        characters=characters,
        **of_keys,
        posts_bytes=posts_bytes,
        texts_bytes=texts_bytes,
        share_of_text=counted / characters if characters else None,
        segments=segments,
    )


def _of_keys(snapshot: IndexSnapshot, boilerplate_share: float) -> dict[str, Any]:
    """The statistics that need a scan of all posts, as fields of `Inspected`."""
    boilerplate = Boilerplate(snapshot, boilerplate_share)
    posts_count = keys = boilerplate_keys = boilerplate_posts = total = squares = 0
    for posts in snapshot.scan():
        is_boilerplate = boilerplate.is_boilerplate(numbered(posts.keys), posts.texts)
        _, heads, of_keys = counted_documents(posts, snapshot.document_counts)
        posts_count += len(posts)
        keys += len(heads)
        boilerplate_keys += len(np.unique(posts.keys[is_boilerplate]))
        boilerplate_posts += int(np.count_nonzero(is_boilerplate))
        total += int(of_keys.sum())
        squares += int((of_keys * of_keys).sum())
    # In integers: the difference of two large floats would lose precision.
    variance = (squares * keys - total * total) / keys**2 if keys else 0.0
    return {
        "posts": posts_count,
        "distinct_keys": keys,
        "documents_a_key_mean": total / keys if keys else 0.0,
        "documents_a_key_sigma": sqrt(variance),
        "boilerplate_keys": boilerplate_keys,
        "boilerplate_posts": boilerplate_posts,
    }
