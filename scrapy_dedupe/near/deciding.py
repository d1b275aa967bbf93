"""Which texts are kept, and which kept text the others are near to.

The texts are decided in the order of their documents, as a crawl would: a text is compared with the kept texts in its
buckets, and is kept if none is near. A bucket has one text, the last that was kept. So a text has at most as many
candidates as buckets, however many texts share a bucket.

Only buckets of several texts matter, so the join (`job`) numbers these buckets densely, and leaves out texts without one.

**Decisions**: one row for each text that shares a bucket::

    number BIGINT          the number of the first document with this text
    kept BIGINT            the number of the kept text: its own, or of the text that it is near to
    similarity DOUBLE      the estimated Jaccard similarity to the kept text
    component BIGINT       the smallest number in its component; a text is connected with each kept text to which it is near
    is_own_version BOOLEAN whether the URI of the document had the kept text before
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.content.signature import similarity
from scrapy_dedupe.stores.base import SeenText, Signature
from scrapy_dedupe.stores.content_values import near_candidates, packed_signature

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DECISIONS: Final = {
    "number": "BIGINT",
    "kept": "BIGINT",
    "similarity": "DOUBLE",
    "component": "BIGINT",
    "is_own_version": "BOOLEAN",
}

SIGNED: Final = (
    "text_key",
    "row_bytes",
    "rare_rows",
    "identity",
    "min_equal",
    "min_equal_rare",
    "min_equal_named",
)
"""The columns of a signature that a decision needs."""

_NOWHERE: Final = SeenText(b"", "", "", 0)
_EMPTY: Final = -1
_BITS: Final = 40


class Decisions:
    """Decides texts in the order of their documents. *bucket_count* is the number of shared buckets.

    Memory: about 600 bytes for each kept text, 8 for each bucket, 100 for each text of a URI with several texts.
    """

    def __init__(self, bucket_count: int) -> None:
        self._last = array("q", [_EMPTY]) * bucket_count
        self._kept: dict[int, tuple[bytes, bytes]] = {}
        self._had: set[int] = set()
        self._parents: dict[int, int] = {}
        self._numbers, self._originals = array("q"), array("q")
        self._similarities = array("d")
        self._own = bytearray()

    def add(self, number: int, text: int, uri: int | None, signed: Sequence[Any] | None) -> None:
        """Take the next document, by its number.

        *text* is the number of the first document with its text. *uri* is the number of its URI if this has several texts.
        *signed* is given for the first document of a text in shared buckets: the buckets into which the text is put, other
        buckets, and the fields of its signature from ``text_key`` on (see `SIGNED`).
        """
        if signed is not None:
            self._decide(number, uri, *signed)
        if uri is not None:
            self._had.add(uri << _BITS | text)

    def _decide(
        self,
        number: int,
        uri: int | None,
        puts: Sequence[int] | None,
        others: Sequence[int] | None,
        key: bytes,
        row_bytes: bytes,
        rare_rows: bytes,
        identity: bytes,
        min_equal: int,
        min_equal_rare: int,
        min_equal_named: int,
    ) -> None:
        signature = Signature(
            _NOWHERE, (), row_bytes, min_equal, rare_rows, min_equal_rare, (), identity, min_equal_named
        )
        last, puts = self._last, puts or ()
        found = {last[bucket] for bucket in (*puts, *(others or ()))} - {_EMPTY}
        numbers = {self._kept[other][0]: other for other in found}
        near, _ = near_candidates(signature, [self._kept[other] for other in found])
        original, share, is_own = number, 1.0, False
        if near:
            original = numbers[near[0].digest]
            share = similarity(near[0].equal, len(row_bytes))
            is_own = uri is not None and (uri << _BITS | original) in self._had
            for it in near:
                self._connect(number, numbers[it.digest])
        else:
            self._kept[number] = key, packed_signature(signature)
            for bucket in puts:
                last[bucket] = number
        self._numbers.append(number)
        self._originals.append(original)
        self._similarities.append(share)
        self._own.append(is_own)

    def rows(self) -> Iterator[tuple[object, ...]]:
        """The rows of `DECISIONS`, after all documents were added."""
        decided = zip(self._numbers, self._originals, self._similarities, self._own, strict=True)
        for number, kept, share, is_own in decided:
            yield number, kept, share, self._root(number), bool(is_own)

    def _connect(self, one: int, other: int) -> None:
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first

    def _root(self, number: int) -> int:
        parents = self._parents
        root = number
        while (parent := parents.get(root, root)) != root:
            root = parent
        while number != root:  # shorten the path, so that the next search is fast
            parents[number], number = root, parents[number]
        return root
