"""What tests of the doctor write into a project, and read of what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ADDON = 'ADDONS = {"scrapy_dedupe.Addon": 500}\n'


def of(findings: list[dict[str, str]], *levels: str) -> str:
    """Sentences and remedies of the findings of these levels."""
    return "\n".join(f"{item['sentence']} {item['remedy']}" for item in findings if item["level"] in levels)


def listing(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in str(path)}
