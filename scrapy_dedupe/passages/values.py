"""The value types of the passage index.

A *text* is the unit that is indexed; documents with the same text share it. A *token* is a word of a text, numbered from
0. A *blot* is a fingerprint of k consecutive tokens; a *key* is the part of a blot that the index stores. A *passage* is
a run of tokens that occurs in several places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from numpy.typing import NDArray

KEY_BITS = 40
"""How many bits of a blot an index stores, unless the blotter gives fewer.

In an index of 10 million blots, looking up an absent blot gives a false match once in 100,000 times. If the index stores
texts, every match is verified word by word before it is reported.
"""


class Columns:
    """Base of dataclasses whose fields are arrays of the same length, one item per row."""

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *columns: NDArray[Any]) -> None: ...

    def __len__(self) -> int:
        return len(getattr(self, self.__slots__[0]))

    def picked(self, which: NDArray[Any] | slice) -> Self:
        """The rows selected by a mask, a slice or an array of indexes."""
        return type(self)(*(getattr(self, name)[which] for name in self.__slots__))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all *parts*, of which there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Place:
    """A position of a passage. Ends are exclusive; characters are code points of the text."""

    doc_id: str
    token_start: int
    token_end: int
    char_start: int
    char_end: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of *tokens* tokens that occurs in all of *places*, which are in the order in which documents were added.

    *text* is the wording at the first place; None if the index stores no texts. In the result of a query, *asked* is the
    position in the text of the query, with an empty ``doc_id``.
    """

    text: str | None
    tokens: int
    places: tuple[Place, ...]
    asked: Place | None = None

    @property
    def documents(self) -> int:
        """How many documents have the passage."""
        return len({place.doc_id for place in self.places})

    @property
    def score(self) -> int:
        """How many tokens would be saved by storing the passage once: tokens x (documents - 1)."""
        return self.tokens * (self.documents - 1)


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that shares passages with a text.

    *score* is the containment of the text in the document: the share of the text's tokens that are in a shared passage,
    from 0 to 1 (after Broder, "On the resemblance and containment of documents", 1997).
    """

    doc_id: str
    score: float
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """The id of a document, its host ("" if none), and the length of its text."""

    doc_id: str
    host: str
    tokens: int
    characters: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """How an index was made. All its segments have the same parameters.

    *tokeniser* is name and version, such as ``words/1``; *blotter* is a specification for `blots.blotter_of`.
    """

    tokeniser: str
    blotter: dict[str, Any]
    has_texts: bool
    key_bits: int = KEY_BITS


@dataclass(frozen=True, slots=True)
class Posts(Columns):
    """Which keys occur in which texts: three arrays of the same length.

    *keys* are uint64; *texts* int64 text numbers; *where* int64. If the index stores texts, a text has one post per key,
    and *where* is 0. Otherwise a text has one post per blot, and *where* is the ordinal: the number of the blot among all
    blots of its text, in the order of the text.
    """

    keys: NDArray[np.uint64]
    texts: NDArray[np.int64]
    where: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outline(Columns):
    """The positions of the blots of one text, in their order. An index without texts stores outlines instead.

    Arrays of int64 of the same length: the first token of each blot, the character where that token begins, and the end
    (exclusive) of the characters of the blot's last token.
    """

    token_starts: NDArray[np.int64]
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]
