"""Which passages repeat? An index of documents that finds the text they share, word by word, and says where it stands."""

from __future__ import annotations

from .index import PassageIndex
from .tokens import TOKENISERS, Tokeniser
from .values import Hit, IndexedDocument, Passage, Place

__all__ = ["TOKENISERS", "Hit", "IndexedDocument", "Passage", "PassageIndex", "Place", "Tokeniser"]
