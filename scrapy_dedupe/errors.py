"""The exceptions of scrapy-dedupe, one class per cause.

Each message says what is wrong, where, and what to do. ``exit_code`` is the exit code of the command line for it (see
the reference page of the commands).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class DedupeError(Exception):
    """Base class of all exceptions below."""

    exit_code = 1


class SettingError(DedupeError, ValueError):
    """A setting or an argument has a value that is not allowed."""

    exit_code = 2


class UsageError(DedupeError):
    """A command was called with invalid arguments."""

    exit_code = 2


class StoreError(DedupeError):
    """A store cannot be used."""

    exit_code = 3


class StoreUnavailable(StoreError):
    """The store does not answer: no server, no permission, no disk, a time-out."""


class StoreRefused(StoreError):
    """The stored data is not of this package, has a newer version, or was made with other parameters."""


class CrawlStateError(StoreError):
    """The crawl is not in a state that allows this: unknown, already committed, canceled."""


class TakenOver(CrawlStateError):
    """Another process has taken over a source because this process did not renew its claim in time."""


class ArchiveError(DedupeError):
    """A folder or file of the archive cannot be used: not writable, in use, or its name is taken."""

    exit_code = 3


class EngineError(DedupeError):
    """The Spark engine cannot be started, or gave up a task: no cluster, a killed process, no memory."""

    exit_code = 3


class DamagedInput(DedupeError):
    """A file that was read is damaged. The message names the file and the offset in bytes."""

    exit_code = 4


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Begin the messages of errors raised inside with the name of *setting*, unless they contain it."""
    try:
        yield
    except DedupeError as error:
        if setting in str(error):
            raise
        raise type(error)(f"{setting}: {error}") from error
