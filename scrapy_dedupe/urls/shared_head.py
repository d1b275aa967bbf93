"""The name of a shared filter, and its head: the fields of its hash that say how it was made and what it holds.

They are described in :mod:`~scrapy_dedupe.urls.shared`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls.shared_layers import Description, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

VERSION = "2"

# In the order in which bloom_members.lua gives them too.
_FIELDS = ("version", "hash", "fingerprinter", "capacity", "error_rate", "born", "used", "full", "count",
           "forgotten")  # fmt: skip


def name_of(key: str) -> str:
    """What the keys of the filter begin with. Raises :class:`~scrapy_dedupe.errors.SettingError`."""
    if not key or "{" in key or "}" in key:
        raise SettingError(f"The name of a shared URL filter is {key!r}; it must be text without braces.")
    return f"dedupe:urls:{VERSION}:{{{key}}}"


def read_head(redis: Redis, meta: str) -> dict[str, str]:
    """The head without the calls; empty where there is no filter."""
    return head_of(redis.hmget(meta, list(_FIELDS)))


def head_of(values: Iterable[str | bytes | None]) -> dict[str, str]:
    """The head for its values, in their order; those that are not there are left out."""
    return {field: text(value) for field, value in zip(_FIELDS, values, strict=True) if value is not None}


def description(head: dict[str, str]) -> Description:
    """What the head says of the layers."""
    if not head:
        return Description()
    return describe(
        head["used"].split("\n"),
        [int(count) for count in head["full"].split()],
        int(head["count"]),
        int(head.get("forgotten", 0)),
    )


def text(value: str | bytes) -> str:
    """What a server gave, whether the client decodes answers or not."""
    return value if isinstance(value, str) else value.decode()
