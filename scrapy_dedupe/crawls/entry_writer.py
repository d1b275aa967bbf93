"""Adds the entries of a crawl or of a source to the index, in batches and in bounded memory.

Originals with status 200 are added first: they take precedence over others with the same payload, regardless of the
order of the records. Revisits may precede their originals, so they wait in a temporary file until all originals are
added, and are then looked up by their digests. A revisit without a digest in the index may name a record of the same
source in another way (see :mod:`scrapy_dedupe.warc.references`); it saves nothing. Other revisits whose original is not
found wait in the index, until it resolves them.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import astuple
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture, Waiting
from scrapy_dedupe.stores.crawl_index import Addition
from scrapy_dedupe.stores.index_values import need_order
from scrapy_dedupe.warc.references import CaptureTable, Reference, reference_of

from .entries import conserved_size, need_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.reading import StoredRecord

    from .entries import IndexEntry

T = TypeVar("T")

_BATCH = 1_000
_SPOOL_BYTES = 4 << 20


class _Spooled(NamedTuple):
    """A revisit to look up; ``named`` is its place in a file, and the values of its reference to its original."""

    digest: str | None
    size: int
    named: tuple[str, list[Any]] | None


class EntryWriter:
    """Adds entries to an uncommitted crawl. Closed by :meth:`close`.

    ``captures`` has the records that a revisit may name. Without *settles_others* revisits whose original is in another
    crawl wait too. Raises the exceptions of the index.
    """

    def __init__(self, index: CrawlIndex, crawl: str, *, settles_others: bool = True) -> None:
        self.index = index
        self.crawl = crawl
        self.captures = CaptureTable()
        self.total = self.dupes = self.added = 0
        self._settles_others = settles_others
        self._added_at_once = index.added_at_once
        self._originals: list[Original] = []
        self._urls: list[UrlCapture] = []
        # Responses with another status than 200: those with status 200 are preferred as originals.
        self._others = _Rows(Original)
        self._revisits = _Rows(_Spooled)
        self._waiting = _Rows(Waiting)

    def take(self, entry: IndexEntry, revisit: StoredRecord | None = None) -> None:
        """Add an entry. The record of a *revisit* may name its original by URI, date or id."""
        self.total += 1
        self.dupes += entry.is_revisit
        if entry.revisit is not None:
            named = None
            if revisit is not None:
                named = f"{revisit.path}, offset {revisit.offset}", astuple(reference_of(revisit))
            self._revisits.append(*entry.revisit, named)
        if entry.url is not None:
            self._urls.append(entry.url)
        if entry.original is not None and entry.original.status is not None:
            self._others.append(*astuple(entry.original))
        elif entry.original is not None:
            self._originals.append(entry.original)
        self._flush_when_full()

    def finish(self, size_bytes: int, needs: Iterable[Need] = ()) -> Counts:
        """Add the rest, look up the originals of the revisits, and return the counts.

        ``size_bytes`` is the size on disk, ``needs`` are known in addition to those of the revisits.
        """
        self._flush()
        for original in self._others:
            self._originals.append(original)
            self._flush_when_full()
        self._flush()
        conserved, found = self._resolve()
        counts = Counts(self.total, self.dupes, conserved, size_bytes)
        self.end(counts, sorted({*needs, *found}, key=need_order), self._waiting)
        return counts

    def add(self, originals: Sequence[Original], urls: Sequence[UrlCapture]) -> None:
        """Add a batch to the index."""
        self.index.add_plain(self.crawl, Addition(originals, urls=urls))

    def end(self, counts: Counts, needs: Sequence[Need], waiting: Iterable[Waiting]) -> None:
        """Add the rest to the index; ``waiting`` may not fit in memory."""
        self.index.add(self.crawl, [], counts, needs=needs)
        rest = iter(waiting)
        while batch := list(islice(rest, _BATCH)):
            self.index.add(self.crawl, [], waiting=batch)

    def check(self) -> None:
        """Called before each batch; may raise an exception to stop."""

    def on_unnamed(self, place: str) -> None:
        """Called for a revisit without a digest that names no record of its source."""

    def _flush_when_full(self) -> None:
        if len(self._originals) >= self._added_at_once or len(self._urls) >= self._added_at_once:
            self._flush()

    def _flush(self) -> None:
        if self._originals or self._urls:
            self.check()
            self.add(self._originals, self._urls)
        self.added += len(self._originals)
        self._originals, self._urls = [], []

    def _resolve(self) -> tuple[int, set[Need]]:
        """The bytes that revisits save and the crawls they need; unresolved revisits wait."""
        conserved = 0
        needs: set[Need] = set()
        rest = iter(self._revisits)
        while rows := list(islice(rest, _BATCH)):
            self.check()
            digests = list({row.digest: None for row in rows if row.digest is not None})
            found = dict(zip(digests, self.index.find(self.crawl, digests), strict=True))
            for digest, size, named in rows:
                original = None if digest is None else found.get(digest)
                if original is None and self._is_settled(digest, named):
                    continue
                is_own = original is not None and original.crawl == self.crawl
                if original is None or not (is_own or self._settles_others):
                    self._waiting.append(digest, size)
                    continue
                conserved += conserved_size(original.size, size)
                if not is_own:
                    needs.add(need_of(original))
        return conserved, needs

    def _is_settled(self, digest: str | None, named: tuple[str, list[Any]] | None) -> bool:
        """Whether a revisit whose digest is not in the index is settled; otherwise it waits under its digest."""
        if named is not None:
            place, values = named
            reference: Reference[str] = Reference(*values)
            if self.captures.original(reference) is not None:
                return True
            if digest is None and not reference.is_unmodified:
                self.on_unnamed(place)
        return digest is None

    def close(self) -> None:
        """Delete the temporary files."""
        for temporary in (self._others, self._revisits, self._waiting, self.captures):
            temporary.close()


class _Rows(Generic[T]):
    """Values in a temporary file, since they may not fit in memory; *made* makes one from its row of JSON."""

    def __init__(self, made: Callable[..., T]) -> None:
        self._made = made
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8")  # noqa: SIM115

    def append(self, *row: object) -> None:
        self._file.write(json.dumps(row) + "\n")

    def __iter__(self) -> Iterator[T]:
        self._file.seek(0)
        return (self._made(*json.loads(row)) for row in self._file)

    def close(self) -> None:
        self._file.close()
