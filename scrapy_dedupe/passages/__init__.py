"""Passage index: finds text that documents share, word by word, and the positions where it occurs."""

from __future__ import annotations

from .index import PassageIndex
from .tokens import TOKENISERS, Tokeniser
from .values import Hit, IndexedDocument, Passage, Place

__all__ = ["TOKENISERS", "Hit", "IndexedDocument", "Passage", "PassageIndex", "Place", "Tokeniser"]
