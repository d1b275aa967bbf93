"""Have we read this text? Canonical text, exact and near copies, verdicts."""

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
