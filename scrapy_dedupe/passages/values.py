"""The values that travel through the passage index.

A *text* is what is indexed; documents with the same text share it. A *token* is a word of a text, and is told by its
number, from 0. A *blot* is a fingerprint of a few tokens in a row; a *key* is what of it the index stores. A *passage*
is a run of tokens that stands in several places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEY_BITS = 40
"""How many bits of a blot an index stores, unless the blotter gives fewer.

In 10 million blots one that is looked up and is not there is taken for one of them once in 100,000 times. Where the index
keeps texts, whatever is reported is compared word by word afterwards.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a passage stands. Ends are behind the last token, or character; characters are code points of the text."""

    doc_id: str
    token_start: int
    token_end: int
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of *tokens* tokens that stands in all of *places*, which are in the order in which documents were added.

    *text* is how it is written in the first place; None if the index keeps no texts. In the answer to a question,
    *asked* is where it stands in the text that was asked about, whose ``doc_id`` is empty.
    """

    text: str | None
    tokens: int
    places: tuple[Place, ...]
    asked: Place | None = None

    @property
    def documents(self) -> int:
        """In how many documents it stands."""
        return len({place.doc_id for place in self.places})

    @property
    def score(self) -> int:
        """What it would save to have it once: tokens x (documents - 1)."""
        return self.tokens * (self.documents - 1)


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that shares passages with a text.

    *score* is the containment of the text in the document: which share of the text's tokens stands in a shared passage,
    from 0 to 1 (after Broder, "On the resemblance and containment of documents", 1997).
    """

    doc_id: str
    score: float
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A name under which a text was added, and the host whose page it is ("" if none)."""

    doc_id: str
    host: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """How an index was made; all its segments have the same.

    *tokeniser* is name and version, such as ``words/1``; *blotter* what `blots.blotter_of` makes one from.
    """

    tokeniser: str
    blotter: dict[str, Any]
    has_texts: bool
    key_bits: int = KEY_BITS


@dataclass(frozen=True, slots=True)
class Posts:
    """Which keys stand in which texts: three arrays of the same length.

    *keys* are uint64; *texts* int64 numbers of texts; *where* int64. Where the index keeps texts, a text has one post
    of a key, and *where* is its spot (see the module `spots`). Else it has one of each blot, and *where* is the ordinal:
    the number of the blot among all blots of its text, in the order of the text.
    """

    keys: NDArray[np.uint64]
    texts: NDArray[np.int64]
    where: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outline:
    """Where the blots of one text stand, in the order of the text: what an index without texts keeps instead.

    Arrays of int64 of the same length: the first token of each blot, the character where that begins, and the character
    behind the blot's last token.
    """

    token_starts: NDArray[np.int64]
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]
