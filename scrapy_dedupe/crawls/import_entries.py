"""Adds the records of one source to the index, from the lines of its CDXJ or from its WARC files.

The counts are those of a crawl: every HTTP ``response`` and ``revisit``, and the bytes that revisits save, which are
``max(0, size of the original - size of the revisit)``. A server-not-modified revisit and one without a payload save
nothing. :mod:`.rules` decides which responses are originals; responses with status 200 take precedence over others with
the same payload, regardless of the order of the lines.

Revisits may precede their originals, so they wait in a temporary file until all originals are added. The index finds
an original by its digest. A revisit without a digest, or with a digest of another algorithm, may name any record of
its own source in another way (see :mod:`scrapy_dedupe.warc.references`); it saves nothing. Revisits whose original is
not found then wait in the index, until it resolves them. Revisits whose original is in another crawl wait too, while
other sources may still add the original to their own crawl: the order of sources must make no difference. Memory is
bounded, however many revisits wait.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Self, overload

from scrapy_dedupe.errors import CrawlStateError, DamagedInput, SettingError, TakenOver
from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture, Waiting
from scrapy_dedupe.warc.cdxj_reading import CdxFault, read_cdxj
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import CaptureTable, Reference, is_unmodified, reference_of
from scrapy_dedupe.warc.remote import shown

from .imported_records import imported_record
from .rebuilding import CONSERVES_NOTHING
from .rules import is_http, line_may_be_original
from .sources import unreadable
from .values import EMPTY_PAYLOADS, digest_and_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from scrapy_dedupe.stores.base import Source
    from scrapy_dedupe.warc.cdxj_reading import CdxCapture
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .index import CrawlIndex

_BATCH = 1_000
_SPOOL_BYTES = 4 << 20
# Indexers write this status for a server-not-modified revisit, or none if the record has no HTTP headers.
_NOT_MODIFIED = frozenset({None, 304})


@dataclass(frozen=True, slots=True)
class EnteredSource:
    """The result for a source: its counts, the number of possible originals, and the missing WARC files that it names."""

    counts: Counts
    originals: int
    absent: tuple[str, ...] = ()


class SourceEntries:
    """Adds one begun source; a context manager that deletes its temporary files.

    ``wacz_index`` is the position of its container; ``is_last``: its crawl gets no other source. ``alive`` is called
    before every batch, ``on_fault`` with a sentence for each skipped line or record. Raises what the index raises, and
    :class:`~scrapy_dedupe.errors.CrawlStateError` if the index has lost the source in the meantime.
    """

    def __init__(
        self,
        index: CrawlIndex,
        source: Source,
        wacz_index: int,
        *,
        is_last: bool,
        alive: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._index = index
        self._source = source
        self._wacz_index = wacz_index
        self._is_last = is_last
        self._alive = alive
        self._report_fault = on_fault
        self._first_fault: str | None = None
        self._originals: list[Original] = []
        self._urls: list[UrlCapture] = []
        self._files: dict[str, None] = {}
        self._total = self._dupes = 0
        self._entered = 0
        self._revisits = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8")  # noqa: SIM115
        self._captures = CaptureTable()
        self._others = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8")  # noqa: SIM115

    @property
    def files(self) -> list[str]:
        """The WARC files that were named so far."""
        return list(self._files)

    def take_lines(self, lines: Iterable[bytes], file_of: Callable[[str], str]) -> int:
        """Process the lines of a CDXJ; return the total size of all records that they name.

        ``file_of`` returns the location of a WARC file that a line names, and raises
        :class:`~scrapy_dedupe.errors.DamagedInput` for a name that is not allowed.
        """
        size = 0
        for line in read_cdxj(lines):
            if isinstance(line, CdxFault):
                self._on_fault(f"line {line.line}: {line.reason}")
                continue
            size += line.length
            if line.is_exchange:
                try:
                    self._take_capture(line, file_of)
                except (SettingError, DamagedInput) as error:
                    self._on_fault(f"the line of {line.url}: {error}")
        return size

    def _take_capture(self, line: CdxCapture, file_of: Callable[[str], str]) -> None:
        digest, form = digest_and_form(line.digest)
        file = None if line.filename is None else file_of(line.filename)
        if file is not None:
            self._files[file] = None
        if line.is_revisit:
            self._take_revisit(digest, line.length, line.status not in _NOT_MODIFIED)
            return
        if not line_may_be_original(digest, line.method, line.status):
            self._total += 1
            return
        assert digest is not None
        if file is None or line.offset is None:
            raise DamagedInput("it has no location of the record, which needs a filename and an offset.")
        original = Original(
            digest=digest,
            crawl=self._source.crawl,
            date=line.date,
            url=line.url,
            size=line.length,
            wacz_index=self._wacz_index,
            file=file,
            offset=line.offset,
            status=None if line.status == 200 else line.status,
            form=form,
        )
        self._total += 1
        self._take_original(original)

    def take_records(self, file: ReadableFile, progress: Callable[[int], None] = lambda offset: None) -> None:
        """Process the records of a WARC or ARC file.

        ``progress`` is called with the offset of each. Raises :class:`~scrapy_dedupe.errors.DamagedInput` for a file
        with any damage.
        """
        self._files[str(file)] = None
        try:
            for record, method in exchanges(self._captures.noted(read_records(file))):
                progress(record.offset)
                if is_http(record):
                    try:
                        self._take_record(record, method)
                    except (SettingError, DamagedInput, ValueError) as error:
                        self._on_fault(f"{file}, offset {record.offset}: {error}")
        except OSError as error:
            raise unreadable(file, error) from error

    def _take_record(self, record: StoredRecord, method: str) -> None:
        taken = imported_record(record, method)
        digest, form, status = taken.digest, taken.form, record.http_status
        if record.type == "revisit":
            self._take_revisit(digest, record.length, not is_unmodified(record), record)
        else:
            self._total += 1
        if digest is not None and taken.validators:
            self._urls.append(UrlCapture(taken.url, digest, taken.date, taken.validators))
        if digest is None or not taken.is_original:
            self._flush_when_full()
            return
        is_plain = status == 200 and not form
        original = Original(
            digest=digest,
            crawl=self._source.crawl,
            date=taken.date,
            url=taken.url,
            size=record.length,
            wacz_index=self._wacz_index,
            record_id=record.id if is_plain else None,
            file=str(record.path),
            offset=record.offset,
            status=None if status == 200 else status,
            form=form,
        )
        self._take_original(original)

    def _take_revisit(
        self, digest: str | None, size: int, conserves: bool, record: StoredRecord | None = None
    ) -> None:
        self._total += 1
        self._dupes += 1
        if digest in EMPTY_PAYLOADS or (digest is None and record is None):
            return
        # A line of a CDXJ refers to an original only by its digest.
        named = (
            None
            if record is None
            else [f"{record.path}, offset {record.offset}", asdict(reference_of(record))]
        )
        self._revisits.write(json.dumps([digest, size if conserves else CONSERVES_NOTHING, named]) + "\n")

    def _take_original(self, original: Original) -> None:
        if original.status is not None:
            # A response with status 200 may have the same payload and is preferred as original.
            self._others.write(json.dumps(_row(original)) + "\n")
            return
        self._originals.append(original)
        self._flush_when_full()

    def _flush_when_full(self) -> None:
        if len(self._originals) + len(self._urls) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._originals or self._urls:
            self._alive()
            with self._known():
                self._index.add_imported(self._source, self._originals, self._urls)
        self._entered += len(self._originals)
        self._originals, self._urls = [], []

    def finish(self, size_bytes: int, needs: Iterable[Need] = ()) -> EnteredSource:
        """Add the rest, look up the originals of the revisits, and end the source.

        ``size_bytes`` is the size of the source on disk, ``needs`` the needs from its own metadata. Raises
        :class:`~scrapy_dedupe.errors.DamagedInput` for a source without any response or revisit.
        """
        if not self._total:
            raise DamagedInput(
                f"{shown(self._source.place)} holds no record that can be added; nothing was imported."
                + (f" The first fault: {self._first_fault}" if self._first_fault else "")
            )
        # Register files with only revisits too: a check must find them.
        with self._known():
            self._index.add_imported(self._source, [], [], list(self._files))
        self._flush()
        self._others.seek(0)
        for row in self._others:
            self._originals.append(_original(json.loads(row), self._source.crawl, self._wacz_index))
            self._flush_when_full()
        self._flush()
        with tempfile.TemporaryFile(prefix="scrapy-dedupe-") as file:
            waiting = _WaitingInFile(file)
            conserved, found_needs = self._resolve(waiting)
            counts = Counts(self._total, self._dupes, conserved, size_bytes)
            self._alive()
            in_order = sorted(
                {*needs, *found_needs}, key=lambda need: (need.crawl, need.wacz_index, need.file or "")
            )
            with self._known():
                self._index.end_source(self._source, counts, in_order, waiting)
        return EnteredSource(counts, self._entered)

    def _resolve(self, waiting: _WaitingInFile) -> tuple[int, set[Need]]:
        """The bytes that revisits save and the crawls they need; appends unresolved revisits to *waiting*."""
        conserved = 0
        needs: set[Need] = set()
        self._revisits.seek(0)
        while rows := [json.loads(row) for row in islice(self._revisits, _BATCH)]:
            self._alive()
            digests = list({row[0]: None for row in rows if row[0] is not None})
            found = dict(zip(digests, self._index.find(self._source.crawl, digests), strict=True))
            for digest, size, named in rows:
                original = found.get(digest)
                if original is None and self._names_own(digest, named):
                    continue
                is_own = original is not None and original.crawl == self._source.crawl
                if original is None or not (is_own or self._is_last):
                    waiting.append(digest, size)
                    continue
                conserved += max(0, original.size - size)
                if not is_own:
                    needs.add(Need(original.crawl, original.wacz_index, original.file))
        return conserved, needs

    def _names_own(self, digest: str | None, named: list[Any] | None) -> bool:
        """Whether a revisit whose digest is not in the index is settled; otherwise it waits under its digest."""
        if named is None:
            return False
        place, values = named
        reference: Reference[str] = Reference(**values)
        if self._captures.original(reference) is not None:
            return True
        if digest is None and not reference.is_unmodified:
            self._on_fault(
                f"{place}: the revisit has no payload digest, and the record that it refers to is not in the same source."
                " The index finds records of other sources only by their digests"
            )
        return digest is None

    def _on_fault(self, sentence: str) -> None:
        self._first_fault = self._first_fault or sentence
        self._report_fault(sentence)

    @contextmanager
    def _known(self) -> Iterator[None]:
        """Explain the error if the index no longer knows the source that was begun here."""
        try:
            yield
        except TakenOver:
            raise
        except CrawlStateError as error:
            raise CrawlStateError(
                f"The index has lost {self._source.name} during its import: the index was emptied, or the crawl"
                f" {self._source.crawl} was canceled or purged. Import it again."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._revisits.close()
        self._others.close()
        self._captures.close()


class _WaitingInFile(Sequence[Waiting]):
    """Revisits in a file, since they may not fit in memory; read in slices or sequentially."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._places = array("Q")  # the file offset of each _BATCH-th revisit
        self._count = 0

    def append(self, digest: str, size: int) -> None:
        if not self._count % _BATCH:
            self._places.append(self._file.tell())
        self._file.write(f"{digest} {size}\n".encode())
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
            return self._at(range(self._count)[place], 1)[0]
        first, end, step = place.indices(self._count)
        return self._at(first, max(0, end - first))[::step]

    def _at(self, first: int, count: int) -> list[Waiting]:
        if not count:
            return []
        self._file.seek(self._places[first // _BATCH])
        rows = islice(self._file, first % _BATCH, first % _BATCH + count)
        return [Waiting(digest.decode(), int(size)) for digest, size in (row.split() for row in rows)]


def _row(original: Original) -> list[object]:
    return [
        original.digest,
        original.date,
        original.url,
        original.size,
        original.file,
        original.offset,
        original.status,
        original.form,
    ]


def _original(row: list[Any], crawl: str, wacz_index: int) -> Original:
    digest, date, url, size, file, offset, status, form = row
    return Original(digest, crawl, date, url, size, wacz_index, None, file, offset, status, form)
