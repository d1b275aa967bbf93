"""How processes attach to a shared URL filter, and what a job stores about its attachment.

**Tokens.** A process attaches with the token ``HOST/PID/ID``. Another process on the same machine can therefore check
whether a process that never detached is still running. A process on another machine counts as running until its
lease expires.

**Generations.** A filter gets a random name, its generation, when it is created. A job stores a line of text in
a file: the generation, the token of the last attachment, and the word "whole" if the run ended cleanly,
separated by spaces. When the job starts again, the process of that token no longer runs, even if it ran on
another machine.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis import Redis

_WHOLE = "whole"

# Tokens with which this process is attached.
_own_tokens: set[str] = set()


def new_token() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


def register(token: str) -> None:
    """Note that this process is attached with ``token``."""
    _own_tokens.add(token)


def unregister(token: str) -> None:
    """Note that this process is no longer attached with ``token``."""
    _own_tokens.discard(token)


def is_gone(token: str) -> bool:
    """Whether the process of ``token`` ran on this machine and has ended."""
    parts = token.rsplit("/", 2)
    if len(parts) < 3 or parts[0] != socket.gethostname() or not parts[1].isdecimal():
        return False
    pid = int(parts[1])
    if pid == os.getpid():
        return token not in _own_tokens
    if os.name == "nt":
        # On Windows os.kill() with signal 0 sends Ctrl+C.
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # The process is running as another user.
    return False


def was_cut(redis: Redis, name: str) -> bool:
    """Whether no process uses the filter with this key prefix, and one of its processes ended without detaching.

    A process on another machine counts as running until its lease expires.
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
    """The state of the shared filter when a process attaches.

    ``fingerprints`` is the number of fingerprints in the filter now, ``others`` the number of other attached
    processes. ``discarded`` is the number of fingerprints in an earlier filter that was deleted. ``was_cut``: a
    process that used the earlier filter ended without detaching. ``is_other_filter``: the filter that this job
    used last no longer exists. ``note`` is a sentence for the log if the filter has another capacity than requested.
    """

    fingerprints: int
    others: int
    discarded: int
    was_cut: bool
    is_other_filter: bool
    note: str | None = None

    def notes(self, name: str) -> Iterator[str]:
        """Sentences about the filter ``name`` for the log, at level INFO."""
        if self.others:
            yield (
                f"The shared URL filter {name} holds {self.fingerprints:,} fingerprints and is used by "
                f"{self.others} other process{'es' if self.others > 1 else ''}. Their pages are not requested again."
            )
        if self.discarded and not self.was_cut:
            yield (
                f"Discarded {self.discarded:,} fingerprints of an earlier crawl from the shared URL filter {name}: no "
                "process is using it."
            )
        if self.note is not None:
            yield self.note

    def warnings(self, name: str) -> Iterator[str]:
        """Sentences about the filter ``name`` for the log, at level WARNING."""
        if self.discarded and self.was_cut:
            yield (
                f"The last run with the shared URL filter {name} did not end cleanly. Its {self.discarded:,} "
                "fingerprints were discarded, because its queue may have lost requests. Pages are requested again."
            )
        elif self.was_cut and self.fingerprints:
            yield (
                f"A process that used the shared URL filter {name} ended without detaching. Requests that it did not "
                "finish count as seen until the filter is recreated."
            )
        if self.is_other_filter and not self.was_cut:
            yield (
                f"The shared URL filter {name} was recreated since the last run of this job, so pages are requested "
                "again. If several jobs run alternately, give each its own DEDUPE_URL_KEY."
            )


@dataclass(frozen=True, slots=True)
class LastAttachment:
    """What a job stores about the shared filter that it used. ``generation`` and ``token`` are empty for a new job.

    ``is_clean``: the run that wrote the file ended cleanly.
    """

    generation: str = ""
    token: str = ""
    is_clean: bool = False

    @classmethod
    def read(cls, path: Path) -> LastAttachment:
        """Read the file; empty values if it does not exist.

        Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if the file cannot be read.
        """
        try:
            words = path.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as exc:
            raise StoreUnavailable(
                f"{path} cannot be read: {exc}. It names the shared URL filter of this job. Delete it to recreate "
                "that filter."
            ) from exc
        generation, token, whole = (*words, "", "", "")[:3]
        return cls(generation, token, whole == _WHOLE)

    def write(self, path: Path) -> None:
        """Write the file. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable` if it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            words = [self.generation, self.token, *([_WHOLE] if self.is_clean else [])]
            whole_file.replace(path, f"{' '.join(words)}\n".encode(), suffix=".tmp", durable=False)
        except OSError as exc:
            raise StoreUnavailable(
                f"{path} cannot be written: {exc}. Make the job's folder writable."
            ) from exc
