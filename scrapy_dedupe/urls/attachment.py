"""How processes come together at a shared filter: their names, what each finds, and what a job keeps of it.

**Tokens.** A process is attached under ``HOST/PID/ID``, so that others on the same machine can tell when it is
gone without having left. Of a process elsewhere they learn that when its lease has run out.

**The generation** of a filter is a name that it gets when it is begun. A job keeps it in a file: one line of
text with the generation, the token under which the job was last attached, which is certainly gone when the job
starts again, on whatever machine, and the word "whole" if the run ended cleanly, separated by spaces.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scrapy_dedupe.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis import Redis

_WHOLE = "whole"

# Those of this process that are attached now.
_held: set[str] = set()


def new_token() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


def hold(token: str) -> None:
    """Know that this process is attached under ``token``."""
    _held.add(token)


def let_go(token: str) -> None:
    """Know that this process is no longer attached under ``token``."""
    _held.discard(token)


def is_gone(token: str) -> bool:
    """Whether the process of ``token`` ran on this machine and does no more."""
    parts = token.rsplit("/", 2)
    if len(parts) < 3 or parts[0] != socket.gethostname() or not parts[1].isdecimal():
        return False
    pid = int(parts[1])
    if pid == os.getpid():
        return token not in _held
    if os.name == "nt":
        # There os.kill() with 0 sends Ctrl+C.
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # It runs, under another user.
    return False


def was_cut(redis: Redis, name: str) -> bool:
    """Whether no process uses the filter of this base of keys, and one that did ended without leaving it.

    As far as that can be told from here: of a process on another machine it shows when its lease has run out.
    """
    seconds, microseconds = redis.time()
    now_ms = seconds * 1000 + microseconds // 1000
    attached = cast(
        "list[tuple[str | bytes, float]]", redis.zrange(f"{name}:attached", 0, -1, withscores=True)
    )
    for token, until_ms in attached:
        if until_ms > now_ms and not is_gone(token if isinstance(token, str) else token.decode()):
            return False
    return bool(attached) or bool(redis.hexists(f"{name}:meta", "cut"))


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a process finds when it attaches.

    ``fingerprints`` are in the filter now; ``others`` is the number of other processes that are attached.
    ``discarded`` is the number of fingerprints in the filter that was there before and was not kept. ``was_cut``
    says whether a process that used the filter that was found ended without leaving it. ``is_another`` says
    that the filter this process wanted to go on with is no more. ``note`` is a sentence about a filter of
    another capacity.
    """

    fingerprints: int
    others: int
    discarded: int
    was_cut: bool
    is_another: bool
    note: str | None = None

    def notes(self, name: str) -> Iterator[str]:
        """What the log has to say of the filter ``name``."""
        if self.others:
            yield (
                f"The shared URL filter {name} holds {self.fingerprints:,} fingerprints and is in use by "
                f"{self.others} other process{'es' if self.others > 1 else ''}: their pages are not asked for again here."
            )
        if self.discarded and not self.was_cut:
            yield (
                f"The {self.discarded:,} fingerprints that another crawl left in the shared URL filter {name} are "
                "discarded, since no process uses it."
            )
        if self.note is not None:
            yield self.note

    def warnings(self, name: str) -> Iterator[str]:
        """What the log has to warn of."""
        if self.discarded and self.was_cut:
            yield (
                f"The last run with the shared URL filter {name} was cut: its {self.discarded:,} fingerprints are "
                "discarded, since what was queued then may be lost. Pages are asked for again."
            )
        elif self.was_cut and self.fingerprints:
            yield (
                f"A process that used the shared URL filter {name} ended without leaving it. What it had not "
                "finished counts as seen until the filter is begun anew."
            )
        if self.is_another and not self.was_cut:
            yield (
                f"The shared URL filter {name} is another one than that of this job, so its pages are asked for "
                "again. Give each job that runs by turns its own DEDUPE_URL_KEY."
            )


@dataclass(frozen=True, slots=True)
class Kept:
    """What a job keeps of the shared filter that it used; empty texts where there is nothing.

    ``is_whole`` says that the run which wrote it ended cleanly.
    """

    born: str = ""
    token: str = ""
    is_whole: bool = False

    @classmethod
    def read(cls, path: Path) -> Kept:
        """Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the file is there and cannot be read."""
        try:
            words = path.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as exc:
            raise StoreUnavailable(
                f"{path} cannot be read: {exc}. It names the shared URL filter of this job; delete it to begin "
                "that filter anew."
            ) from exc
        born, token, whole = (*words, "", "", "")[:3]
        return cls(born, token, whole == _WHOLE)

    def write(self, path: Path) -> None:
        """Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` when the folder does not take it."""
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            words = [self.born, self.token, *([_WHOLE] if self.is_whole else [])]
            temporary.write_text(" ".join(words) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as exc:
            raise StoreUnavailable(
                f"{path} cannot be written: {exc}. Make the job's folder writable."
            ) from exc
