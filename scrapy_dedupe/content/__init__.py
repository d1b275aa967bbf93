"""Have we read this text? Canonical text, exact and near copies, verdicts."""

from __future__ import annotations

from .canonical import canonical_text
from .deduplicator import Deduplicator, Document
from .judge import Judge, JudgeOptions
from .verdict import Verdict

__all__ = ["Deduplicator", "Document", "Judge", "JudgeOptions", "Verdict", "canonical_text"]
