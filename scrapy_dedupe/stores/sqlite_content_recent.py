"""The signatures that were kept last, in the table ``content_recent`` and in memory.

A kept text has 16 buckets at random positions of a big table, each on another page of the file. Therefore a signature is
first appended to the small table ``content_recent``, which costs one page per transaction. Many of them are moved
together to the tables ``content_signatures`` and ``content_bands``, in the order of their keys, so that neighbours share
a page.

Each process has the rows of ``content_recent`` in memory. It reads new rows at the beginning of each transaction, so a
text that one process has kept is found by all others at once, and a kill loses nothing. If the last row in memory is no
longer in the table, another process has moved the rows, and all are read again.
"""

from __future__ import annotations

from struct import unpack
from typing import TYPE_CHECKING

from .content_values import BAND_BYTES, REF_BYTES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

# Moving this many takes about 30 ms, in which other processes cannot write.
_MOST = 1_024

_ROWS = "SELECT number, digest, row_bytes, bands FROM content_recent WHERE number >= ? ORDER BY number"


class RecentSignatures:
    """The rows of ``content_recent``. All methods need an open transaction of *connection*.

    ``buckets`` are the numbers of bands, each with the reference of the last text in it; ``kept`` are the digests and
    row bytes of the texts by their reference.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.buckets: dict[int, int] = {}
        self.kept: dict[int, tuple[bytes, bytes]] = {}

    @property
    def is_full(self) -> bool:
        return len(self._rows) >= _MOST

    def read(self) -> None:
        """Read the rows that other processes have added."""
        last = self._last
        rows = self._connection.execute(_ROWS, (last,)).fetchall()
        if last and rows and rows[0][1:] == self._rows[last]:
            del rows[0]
        elif last:
            self.clear()
            rows = self._connection.execute(_ROWS, (0,)).fetchall()
        for number, *row in rows:
            self._remember(number, *row)

    def keep(self, digest: bytes, row_bytes: bytes, bands: bytes) -> None:
        """Add a text; *bands* are joined."""
        row = (self._last + 1, digest, row_bytes, bands)
        self._connection.execute("INSERT INTO content_recent VALUES (?, ?, ?, ?)", row)
        self._remember(*row)

    def drop(self, digests: Iterable[bytes]) -> None:
        """Delete texts. Their buckets are kept: without a signature they are ignored until another text replaces them."""
        dropped = set(digests)
        numbers = [number for number, row in self._rows.items() if row[0] in dropped] if dropped else []
        for number in numbers:
            del self._rows[number]
        for digest in dropped:
            self.kept.pop(reference(digest), None)
        self._connection.executemany(
            "DELETE FROM content_recent WHERE number = ?", [(number,) for number in numbers]
        )

    def move(self) -> None:
        """Move all rows to the other tables."""
        # The memory may still have rows that other processes have deleted.
        self.clear()
        self.read()
        many = self._connection.executemany
        many(
            "INSERT OR REPLACE INTO content_signatures VALUES (?, ?, ?)",
            sorted((ref, *row) for ref, row in self.kept.items()),
        )
        many("INSERT OR REPLACE INTO content_bands VALUES (?, ?)", sorted(self.buckets.items()))
        self._connection.execute("DELETE FROM content_recent")
        self.clear()

    def clear(self) -> None:
        """Forget what is in memory; the next :meth:`read` reads all rows."""
        self._rows.clear()
        self.buckets.clear()
        self.kept.clear()

    @property
    def _last(self) -> int:
        return next(reversed(self._rows), 0)

    def _remember(self, number: int, digest: bytes, row_bytes: bytes, bands: bytes) -> None:
        ref = reference(digest)
        self._rows[number] = (digest, row_bytes, bands)
        self.kept[ref] = (digest, row_bytes)
        self.buckets.update(dict.fromkeys(band_numbers(bands), ref))


def reference(digest: bytes) -> int:
    """The number by which a kept text is stored."""
    return int.from_bytes(digest[:REF_BYTES], "big")


def band_numbers(bands: bytes) -> list[int]:
    """The numbers by which the buckets of 8-byte band hashes, joined, are stored."""
    return [number >> 8 * (8 - BAND_BYTES) for number in unpack(f">{len(bands) // 8}Q", bands)]
