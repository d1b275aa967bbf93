"""What a check finds: how grave it is, one sentence, and what to do."""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from scrapy_dedupe.errors import DedupeError, folder_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    is_of_full_disk: bool = False


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
    return Said("problem", str(error), remedy, _is_of_full_disk(error))


def tried(what: str, attempt: Callable[[], Said]) -> Iterator[Said]:
    """What an attempt gives; what it raises is a problem of *what*."""
    try:
        yield attempt()
    except DedupeError as error:
        yield told(error, f"Until then the {what} does not work.")
    except OSError as error:
        # Where no file is named, it is of no use to look for what stands in the way.
        reason, remedy = (
            (error.strerror or str(error), _remedy(error))
            if error.filename is None
            else folder_fault(Path(error.filename).parent, error)
        )
        yield Said("problem", f"The {what} cannot be tried: {reason}.", remedy, _is_of_full_disk(error))


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Whether it, or what it came of, is what a full disk gives; SQLite may call that an I/O error."""
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
        return "Make room, of bytes or of files (inodes), or name a folder on another disk."
    if error.errno == errno.EROFS:
        return "Name a folder on another file system."
    return "Change the permissions of the folder, or name another one."
