r"""Heads of WARC records that have the same names in the same order, as nearly all of one program have.

Such a head is one match of a pattern that is made of an earlier one: ``WARC/\d.*\r\nWARC-Type:(.*)\r\n...\r\n``. That
is much faster than to take it apart line by line, and says the same: a name holds no colon, a dot is no line feed, so
each field is one line and the blank line behind them is the first one. Only ASCII is taken, which needs no decoding.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# A file of ever new names must not cost a new pattern for each record, nor many trials.
_MOST_KINDS: Final = 64
_MOST_OF_A_KIND: Final = 6
_MOST_FIELDS: Final = 60
_KIND_BYTES: Final = 24  # "WARC/1.1", a line end and, mostly, the beginning of WARC-Type


class Layout:
    """The names of a head; `places` has the number of the first field of each name in lower case, from 1."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple([name.strip() for name in names])
        self.places: dict[str, int] = {}
        for place, name in enumerate(self.names, 1):
            self.places.setdefault(name.lower(), place)
        self.length_place = self.places.get("content-length", 0)
        fields = b"".join(re.escape(name.encode()) + rb":(.*)\r\n" for name in names)
        self.match = re.compile(rb"WARC/\d.*\r\n" + fields + rb"\r\n").match


class KnownHeads:
    """The layouts that one file has shown so far."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, list[Layout]] = {}

    def match(self, data: bytes | bytearray) -> tuple[Layout, re.Match[bytes]] | None:
        """The layout and the values of the head at the beginning of *data*, if it is a known one."""
        # Response and request take turns, so the first field tells which layout is worth a trial.
        for layout in self._kinds.get(_kind(data), ()):
            if (match := layout.match(data)) is not None:
                return (layout, match) if data[: match.end()].isascii() else None
        return None

    def learn(self, data: bytes | bytearray, names: Sequence[str]) -> None:
        """Know heads like that of *data*, which has fields of these names as they are written and is of the standard."""
        kind = _kind(data)
        layouts = self._kinds.get(kind)
        if layouts is None:
            if len(self._kinds) >= _MOST_KINDS:
                return
            layouts = self._kinds[kind] = []
        if len(layouts) < _MOST_OF_A_KIND and 0 < len(names) <= _MOST_FIELDS:
            layouts.append(Layout(names))


def _kind(data: bytes | bytearray) -> bytes:
    return bytes(data[:_KIND_BYTES])
