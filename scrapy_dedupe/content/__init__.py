"""Content deduplication: canonical text, exact and near duplicates, verdicts."""

from __future__ import annotations

from .canonical import canonical_text
from .deduplicator import Deduplicator, Document
from .judge import Judge, Page
from .options import JudgeOptions, NearOptions
from .verdict import Verdict

__all__ = [
    "Deduplicator",
    "Document",
    "Judge",
    "JudgeOptions",
    "NearOptions",
    "Page",
    "Verdict",
    "canonical_text",
]
