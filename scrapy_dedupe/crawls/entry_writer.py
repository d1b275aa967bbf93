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
from collections.abc import Sequence
from dataclasses import astuple
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, overload

from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture, Waiting
from scrapy_dedupe.warc.references import CaptureTable, Reference, reference_of

from .entries import conserved_size, need_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.reading import StoredRecord

    from .entries import IndexEntry

_BATCH = 1_000
_SPOOL_BYTES = 4 << 20
_DIGEST_WIDTH = 128  # a SHA-512 in hex
_SIZE_WIDTH = 20
_ROW_BYTES = _DIGEST_WIDTH + _SIZE_WIDTH + 1


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
        self._originals: list[Original] = []
        self._urls: list[UrlCapture] = []
        self._revisits = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8")  # noqa: SIM115
        self._others = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8")  # noqa: SIM115

    def take(self, entry: IndexEntry, revisit: StoredRecord | None = None) -> None:
        """Add an entry. The record of a *revisit* may name its original by URI, date or id."""
        self.total += 1
        self.dupes += entry.is_revisit
        if entry.revisit is not None:
            named = None
            if revisit is not None:
                named = [f"{revisit.path}, offset {revisit.offset}", astuple(reference_of(revisit))]
            self._revisits.write(json.dumps([*entry.revisit, named]) + "\n")
        if entry.url is not None:
            self._urls.append(entry.url)
        if entry.original is not None and entry.original.status is not None:
            # A response with status 200 may have the same payload and is preferred as original.
            self._others.write(json.dumps(astuple(entry.original)) + "\n")
        elif entry.original is not None:
            self._originals.append(entry.original)
        self._flush_when_full()

    def finish(self, size_bytes: int, needs: Iterable[Need] = ()) -> Counts:
        """Add the rest, look up the originals of the revisits, and return the counts.

        ``size_bytes`` is the size on disk, ``needs`` are known in addition to those of the revisits.
        """
        self._flush()
        self._others.seek(0)
        for row in self._others:
            self._originals.append(Original(*json.loads(row)))
            self._flush_when_full()
        self._flush()
        with tempfile.TemporaryFile(prefix="scrapy-dedupe-") as file:
            waiting = _WaitingInFile(file)
            conserved, found = self._resolve(waiting)
            counts = Counts(self.total, self.dupes, conserved, size_bytes)
            in_order = sorted(
                {*needs, *found}, key=lambda need: (need.crawl, need.wacz_index, need.file or "")
            )
            self.end(counts, in_order, waiting)
        return counts

    def add(self, originals: Sequence[Original], urls: Sequence[UrlCapture]) -> None:
        """Add a batch to the index."""
        self.index.add_plain(self.crawl, originals, urls=urls)

    def end(self, counts: Counts, needs: Sequence[Need], waiting: Sequence[Waiting]) -> None:
        """Add the rest to the index: ``waiting`` may be read in slices, since it may not fit in memory."""
        self.index.add(self.crawl, [], counts, needs=needs, waiting=waiting[:_BATCH])
        for first in range(_BATCH, len(waiting), _BATCH):
            self.index.add(self.crawl, [], waiting=waiting[first : first + _BATCH])

    def check(self) -> None:
        """Called before each batch; may raise an exception to stop."""

    def on_unnamed(self, place: str) -> None:
        """Called for a revisit without a digest that names no record of its source."""

    def _flush_when_full(self) -> None:
        if len(self._originals) + len(self._urls) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._originals or self._urls:
            self.check()
            self.add(self._originals, self._urls)
        self.added += len(self._originals)
        self._originals, self._urls = [], []

    def _resolve(self, waiting: _WaitingInFile) -> tuple[int, set[Need]]:
        """The bytes that revisits save and the crawls they need; appends unresolved revisits to *waiting*."""
        conserved = 0
        needs: set[Need] = set()
        self._revisits.seek(0)
        while rows := [json.loads(row) for row in islice(self._revisits, _BATCH)]:
            self.check()
            digests = list({digest: None for digest, _, _ in rows if digest is not None})
            found = dict(zip(digests, self.index.find(self.crawl, digests), strict=True))
            for digest, size, named in rows:
                original = found.get(digest)
                if original is None and self._is_settled(digest, named):
                    continue
                is_own = original is not None and original.crawl == self.crawl
                if original is None or not (is_own or self._settles_others):
                    waiting.append(digest, size)
                    continue
                conserved += conserved_size(original.size, size)
                if not is_own:
                    needs.add(need_of(original))
        return conserved, needs

    def _is_settled(self, digest: str | None, named: list[Any] | None) -> bool:
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
        self._revisits.close()
        self._others.close()
        self.captures.close()


class _WaitingInFile(Sequence[Waiting]):
    """Revisits in a file, since they may not fit in memory; read in slices or sequentially."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    def append(self, digest: str, size: int) -> None:
        self._file.write(f"{digest:<{_DIGEST_WIDTH}}{size:>{_SIZE_WIDTH}}\n".encode())
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting]:
        for first in range(0, self._count, _BATCH):
            yield from self[first : first + _BATCH]

    @overload
    def __getitem__(self, place: int) -> Waiting: ...
    @overload
    def __getitem__(self, place: slice) -> list[Waiting]: ...
    def __getitem__(self, place: int | slice) -> Waiting | list[Waiting]:
        if isinstance(place, int):
            first = range(self._count)[place]
            return self[first : first + 1][0]
        first, end, step = place.indices(self._count)
        self._file.seek(first * _ROW_BYTES)
        rows = self._file.read(max(0, end - first) * _ROW_BYTES).decode().splitlines()
        return [Waiting(row[:_DIGEST_WIDTH].rstrip(), int(row[_DIGEST_WIDTH:])) for row in rows][::step]
