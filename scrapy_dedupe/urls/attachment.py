"""How processes attach to a shared URL filter.

**Tokens.** A process attaches with the token ``HOST/PID/ID``. Another process on the same machine can therefore check
whether a process that never detached is still running. A process on another machine counts as running until its
lease expires.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis, RedisCluster

# Tokens with which this process is attached.
own_tokens: set[str] = set()


def new_token() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex}"


def is_gone(token: str) -> bool:
    """Whether the process of ``token`` ran on this machine and has ended."""
    parts = token.rsplit("/", 2)
    if len(parts) < 3 or parts[0] != socket.gethostname() or not parts[1].isdecimal():
        return False
    pid = int(parts[1])
    if pid == os.getpid():
        return token not in own_tokens
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


def was_cut(redis: Redis | RedisCluster, name: str) -> bool:
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
    """The state of the shared filter ``name`` when a process attaches.

    ``fingerprints`` is the number of fingerprints in the filter now, ``others`` the number of other attached
    processes. ``discarded`` is the number of fingerprints in an earlier filter that was deleted. ``was_cut``: a
    process that used the earlier filter ended without detaching. ``is_other_filter``: the filter that this job
    used last no longer exists. ``capacities`` are the capacity of the filter and the capacity in the settings of
    this process.
    """

    name: str
    fingerprints: int
    others: int
    discarded: int
    was_cut: bool
    is_other_filter: bool
    capacities: tuple[int, int]

    def notes(self) -> Iterator[str]:
        """Sentences for the log, at level INFO."""
        if self.others:
            yield (
                f"The shared URL filter {self.name} holds {self.fingerprints:,} fingerprints and is used by "
                f"{self.others} other process{'es' if self.others > 1 else ''}. Their pages are not requested again."
            )
        if self.discarded and not self.was_cut:
            yield (
                f"Discarded {self.discarded:,} fingerprints of an earlier crawl from the shared URL filter {self.name}: "
                "no process is using it."
            )
        stored, wanted = self.capacities
        if stored != wanted:
            yield (
                f"The shared URL filter {self.name} has a capacity of {stored:,} fingerprints, but this process is "
                f"configured for {wanted:,}. It keeps its capacity and grows when it is full."
            )

    def warnings(self) -> Iterator[str]:
        """Sentences for the log, at level WARNING."""
        if self.discarded and self.was_cut:
            yield (
                f"The last run with the shared URL filter {self.name} did not end cleanly. Its {self.discarded:,} "
                "fingerprints were discarded, because its queue may have lost requests. Pages are requested again."
            )
        elif self.was_cut and self.fingerprints:
            yield (
                f"A process that used the shared URL filter {self.name} ended without detaching. Requests that it did "
                "not finish count as seen until the filter is recreated."
            )
        if self.is_other_filter and not self.was_cut:
            yield (
                f"The shared URL filter {self.name} was recreated since the last run of this job, so pages are requested "
                "again. If several jobs run alternately, give each its own DEDUPE_URL_KEY."
            )
