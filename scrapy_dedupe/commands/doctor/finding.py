"""What a check finds: how grave it is, one sentence, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "note", "warning", "problem"]

LEVELS: Final[tuple[Level, ...]] = ("problem", "warning", "note", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``remedy`` is empty where nothing has to be done."""

    section: str
    level: Level
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """A finding before it is known in which section it stands."""

    level: Level
    sentence: str
    remedy: str = ""


def ok(sentence: str) -> Said:
    return Said("ok", sentence)


def note(sentence: str, remedy: str = "") -> Said:
    return Said("note", sentence, remedy)


def warning(sentence: str, remedy: str) -> Said:
    return Said("warning", sentence, remedy)


def problem(sentence: str, remedy: str) -> Said:
    return Said("problem", sentence, remedy)


def told(error: Exception, remedy: str = "") -> Said:
    """An error that says itself what is wrong and what to do."""
    return Said("problem", str(error), remedy)
