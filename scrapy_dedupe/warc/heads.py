r"""Fast parsing of WARC record heads that have the same field names in the same order.

Nearly all heads of one program do. They are matched by one pattern that is built from an earlier head:
``WARC/\d.*\r\nWARC-Type:(.*)\r\n...\r\n``. This is much faster than parsing line by line and gives the same result: a
name contains no colon, a dot matches no line feed, so each field is one line and the blank line after them is the first
one. Only ASCII heads match, which need no decoding.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Limits for files whose field names keep changing: few patterns in total, and few attempts for each record.
_MOST_KINDS: Final = 64
_MOST_OF_A_KIND: Final = 6
_MOST_FIELDS: Final = 60
_KIND_BYTES: Final = 24  # "WARC/1.1", a line end and, mostly, the beginning of WARC-Type


class Layout:
    """The field names of a head; `places` maps each name in lower case to the number of its first field, from 1."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple([name.strip() for name in names])
        self.places: dict[str, int] = {}
        for place, name in enumerate(self.names, 1):
            self.places.setdefault(name.lower(), place)
        self.length_place = self.places.get("content-length", 0)
        fields = b"".join(re.escape(name.encode()) + rb":(.*)\r\n" for name in names)
        self.match = re.compile(rb"WARC/\d.*\r\n" + fields + rb"\r\n").match


class KnownHeads:
    """The layouts that occurred so far in one file."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, list[Layout]] = {}

    def match(self, data: bytes | bytearray) -> tuple[Layout, re.Match[bytes]] | None:
        """The layout and the values of the head at the beginning of *data*, if its layout is known."""
        # Responses and requests alternate, so try only layouts with the same first field.
        for layout in self._kinds.get(_kind(data), ()):
            if (match := layout.match(data)) is not None:
                return (layout, match) if data[: match.end()].isascii() else None
        return None

    def learn(self, data: bytes | bytearray, names: Sequence[str]) -> None:
        """Remember the layout of the head of *data*, which is in the standard form and has these field names."""
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
