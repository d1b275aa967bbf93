"""Every error that scrapy-dedupe raises on purpose, one class a cause.

The message of each says what is wrong, where, and what to do. ``exit_code`` is what the command line
returns for it (see the reference page of the commands).
"""

from __future__ import annotations


class DedupeError(Exception):
    """Base of all errors below."""

    exit_code = 1


class SettingError(DedupeError, ValueError):
    """A setting or an argument has a value that is not allowed."""

    exit_code = 2


class UsageError(DedupeError):
    """A command was called with words that it does not take."""

    exit_code = 2


class StoreError(DedupeError):
    """A store stands in the way."""

    exit_code = 3


class StoreUnavailable(StoreError):
    """The store does not answer: no server, no permission, no disk, a time-out."""


class StoreRefused(StoreError):
    """What is stored there is not ours, is newer than we are, or was made with other parameters."""


class CrawlStateError(StoreError):
    """The crawl is not in a state that allows this: unknown, already committed, canceled."""


class TakenOver(CrawlStateError):
    """Another process has taken over a source that this one did not renew its claim of in time."""


class ArchiveError(DedupeError):
    """A folder or file of the archive cannot be used: not writable, in use, in the way."""

    exit_code = 3


class DamagedInput(DedupeError):
    """A file that was read is damaged. The message names the file and the offset in bytes."""

    exit_code = 4
