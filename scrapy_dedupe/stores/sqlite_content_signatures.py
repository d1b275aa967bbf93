"""The signatures and buckets of kept texts in SQLite.

A kept text has 16 buckets at random positions of a big table, each on another page of the file. Therefore a signature is
first appended to the small table ``content_recent``, which costs one page per transaction. Many of them are moved
together to the tables ``content_signatures`` and ``content_bands``, in the order of their keys, so that neighbours share
a page.

Each process has the rows of ``content_recent`` in memory. It reads new rows at the beginning of each transaction, so a
text that one process has kept is found by all others at once, and a kill loses nothing. If the last row in memory is no
longer in the table, another process has moved the rows, and all are read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .content_values import REF_BYTES, bucket_numbers, compare_in_order
from .sqlite_file import rows_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Sequence
    from typing import TypeAlias

    from .base import NearAnswer, SeenText, Signature, TextMatch

    _Row: TypeAlias = tuple[bytes, bytes, bytes]
    """Digest, signature and bands of a text."""

# Moving this many takes about 30 ms, in which other processes cannot write.
_MOST = 1_024

_RECENT = "SELECT number, digest, row_bytes, bands FROM content_recent WHERE number >= ? ORDER BY number"
_BANDS = "SELECT hash, ref FROM content_bands WHERE hash IN ({})"
_SIGNATURES = "SELECT ref, digest, row_bytes FROM content_signatures WHERE ref IN ({})"


class KeptSignatures:
    """The signatures of kept texts. All methods need an open transaction of *connection*.

    ``first_capture`` returns the first capture of a text for the answer to a capture, with the given similarity; None
    if it has none.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        first_capture: Callable[[bytes, SeenText, float], TextMatch | None],
    ) -> None:
        self._connection = connection
        self._first_capture = first_capture
        # The rows of content_recent; what they say about each bucket; and about each text, by its reference.
        self._rows: dict[int, _Row] = {}
        self._buckets: dict[int, int] = {}
        self._kept: dict[int, tuple[bytes, bytes]] = {}

    def near(self, signatures: Sequence[Signature], *, keep: bool) -> list[NearAnswer]:
        """The near texts of *signatures*. With *keep*, texts that are near to none are kept."""
        self._read_recent()
        numbers = [bucket_numbers(b"".join((*it.bands, *it.more_bands))) for it in signatures]
        everything = set().union(*numbers)
        buckets = dict(rows_of(self._connection, _BANDS, [*everything]))
        buckets.update((it, self._buckets[it]) for it in everything & self._buckets.keys())
        refs = {*buckets.values()}
        kept: dict[int, tuple[bytes, bytes]] = {
            ref: (digest, row_bytes)
            for ref, digest, row_bytes in rows_of(self._connection, _SIGNATURES, [*refs])
        }
        kept.update((ref, self._kept[ref]) for ref in refs & self._kept.keys())
        answers, new = compare_in_order(
            signatures, numbers, buckets, kept, _reference, self._first_capture, keep=keep
        )
        for number in new:
            signature = signatures[number]
            row = (*kept[_reference(signature.capture.digest)], b"".join(signature.bands))
            self._append(row, numbers[number][: len(signature.bands)])
        if keep and len(self._rows) >= _MOST:
            self.move()
        return answers

    def drop(self, digests: Collection[bytes]) -> None:
        """Delete texts. Their buckets are kept: without a signature they are ignored until another text replaces them."""
        if not digests:
            return
        self._read_recent()
        numbers = [number for number, row in self._rows.items() if row[0] in digests]
        for number in numbers:
            del self._rows[number]
        for digest in digests:
            self._kept.pop(_reference(digest), None)
        many = self._connection.executemany
        many("DELETE FROM content_recent WHERE number = ?", [(number,) for number in numbers])
        many(
            "DELETE FROM content_signatures WHERE ref = ? AND digest = ?",
            [(_reference(digest), digest) for digest in digests],
        )

    def move(self) -> None:
        """Move all recent signatures to the big tables."""
        # The memory may still have rows that other processes have deleted.
        self.clear()
        self._read_recent()
        many = self._connection.executemany
        many(
            "INSERT OR REPLACE INTO content_signatures VALUES (?, ?, ?)",
            sorted((ref, *row) for ref, row in self._kept.items()),
        )
        many("INSERT OR REPLACE INTO content_bands VALUES (?, ?)", sorted(self._buckets.items()))
        self._connection.execute("DELETE FROM content_recent")
        self.clear()

    def clear(self) -> None:
        """Forget what is in memory, because it may not have been written. It is read again when it is needed."""
        self._rows.clear()
        self._buckets.clear()
        self._kept.clear()

    @property
    def _last(self) -> int:
        return next(reversed(self._rows), 0)

    def _read_recent(self) -> None:
        last = self._last
        rows = self._connection.execute(_RECENT, (last,)).fetchall()
        if last and rows and rows[0][1:] == self._rows[last]:
            del rows[0]
        elif last:
            self.clear()
            rows = self._connection.execute(_RECENT, (0,)).fetchall()
        for number, *row in rows:
            self._remember(number, tuple(row), bucket_numbers(row[2]))

    def _append(self, row: _Row, buckets: Sequence[int]) -> None:
        number = self._last + 1
        self._connection.execute("INSERT INTO content_recent VALUES (?, ?, ?, ?)", (number, *row))
        self._remember(number, row, buckets)

    def _remember(self, number: int, row: _Row, buckets: Sequence[int]) -> None:
        ref = _reference(row[0])
        self._rows[number] = row
        self._kept[ref] = row[:2]
        self._buckets.update(dict.fromkeys(buckets, ref))


def _reference(digest: bytes) -> int:
    """The number by which buckets refer to a text."""
    return int.from_bytes(digest[:REF_BYTES], "big")
