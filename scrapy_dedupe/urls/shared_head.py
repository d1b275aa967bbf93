"""The key prefix of a shared filter and its head: the fields of its hash ``meta`` with its parameters and counts.

The fields are described in :mod:`~scrapy_dedupe.urls.shared`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls.shared_layers import Description, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

VERSION = "2"

# bloom_members.lua returns the fields in the same order.
_FIELDS = ("version", "hash", "fingerprinter", "capacity", "error_rate", "born", "used", "full", "count",
           "forgotten")  # fmt: skip


def name_of(key: str) -> str:
    """The prefix of the filter's keys in Redis.

    Raises :class:`~scrapy_dedupe.errors.SettingError` if ``key`` is empty or has braces.
    """
    if not key or "{" in key or "}" in key:
        raise SettingError(f"The name of a shared URL filter is {key!r}; it must be text without braces.")
    return f"dedupe:urls:{VERSION}:{{{key}}}"


def read_head(redis: Redis, meta: str) -> dict[str, str]:
    """The head of the filter; empty if there is no filter."""
    return head_of(redis.hmget(meta, list(_FIELDS)))


def head_of(values: Iterable[str | bytes | None]) -> dict[str, str]:
    """The head as a dictionary of its values, given in the order of the fields. Missing fields are left out."""
    return {field: text(value) for field, value in zip(_FIELDS, values, strict=True) if value is not None}


def description(head: dict[str, str]) -> Description:
    """The layers that are described by the head."""
    if not head:
        return Description()
    return describe(
        head["used"].split("\n"),
        [int(count) for count in head["full"].split()],
        int(head["count"]),
        int(head.get("forgotten", 0)),
    )


def text(value: str | bytes) -> str:
    """A reply of the server as text, whether or not the client decodes replies."""
    return value if isinstance(value, str) else value.decode()
