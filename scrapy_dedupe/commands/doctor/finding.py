"""Findings: a level, one sentence, and a remedy."""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.files.folders import folder_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Level = Literal["ok", "note", "warning", "problem"]

LEVELS: Final[tuple[Level, ...]] = ("problem", "warning", "note", "ok")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``remedy`` is empty if there is nothing to do."""

    section: str
    level: Level
    sentence: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The finding of a check, which does not know its section. ``is_disk_full``: a full disk is the cause."""

    level: Level
    sentence: str
    remedy: str = ""
    is_disk_full: bool = False


def ok(sentence: str) -> CheckFinding:
    return CheckFinding("ok", sentence)


def note(sentence: str, remedy: str = "") -> CheckFinding:
    return CheckFinding("note", sentence, remedy)


def warning(sentence: str, remedy: str) -> CheckFinding:
    return CheckFinding("warning", sentence, remedy)


def problem(sentence: str, remedy: str) -> CheckFinding:
    return CheckFinding("problem", sentence, remedy)


def from_error(error: Exception, remedy: str = "") -> CheckFinding:
    """Return a problem with the sentence of an error, which already names the remedy."""
    return CheckFinding("problem", str(error), remedy, _is_disk_full(error))


def run_probe(what: str, probe: Callable[[], CheckFinding]) -> Iterator[CheckFinding]:
    """Yield the result of a probe. Its exception becomes a problem of *what*."""
    try:
        yield probe()
    except DedupeError as error:
        yield from_error(error, f"Until then the {what} does not work.")
    except OSError as error:
        # folder_fault() needs a path to find the cause.
        reason, remedy = (
            (error.strerror or str(error), _remedy(error))
            if error.filename is None
            else folder_fault(Path(error.filename).parent, error)
        )
        yield CheckFinding("problem", f"The {what} cannot be tested: {reason}.", remedy, _is_disk_full(error))


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk has caused the error or one of its causes. SQLite may report that as an I/O error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if isinstance(error, sqlite3.Error) and any(
            words in str(error).lower() for words in ("disk is full", "disk i/o error")
        ):
            return True
        error = error.__cause__
    return False


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space or inodes, or name a folder on another disk."
    if error.errno == errno.EROFS:
        return "Name a folder on another file system."
    return "Change the permissions of the folder, or name another one."
