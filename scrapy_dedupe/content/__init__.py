"""Content deduplication: canonical text, exact and near duplicates, verdicts."""

from __future__ import annotations

from .canonical import canonical_text
from .deduplicator import Deduplicator, Document
from .judge import Judge, Judgement, Verdict
from .markup import HostileMarkup
from .options import JudgeOptions, NearOptions
from .pages import Page, PageReading
from .signature import as_minhash, minhash

__all__ = [
    "Deduplicator",
    "Document",
    "HostileMarkup",
    "Judge",
    "JudgeOptions",
    "Judgement",
    "NearOptions",
    "Page",
    "PageReading",
    "Verdict",
    "as_minhash",
    "canonical_text",
    "minhash",
]
