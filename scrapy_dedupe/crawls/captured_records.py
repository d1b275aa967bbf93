"""Records that the crawl index names: whether they are still the indexed ones, and what a 304 means for them.

A file may have been moved, replaced or damaged since its records were indexed. So a record is compared with its index entry
before it is used.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scrapy_dedupe.errors import DamagedInput, DedupeError
from scrapy_dedupe.stores.normal_forms import known_digest, plain_url
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import names, paired
from scrapy_dedupe.warc.raw_heads import stored_uri
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import is_unmodified, milliseconds
from scrapy_dedupe.warc.remote import is_url

from .crawl_files import readable
from .entries import is_whole_original
from .reuse import RENEWAL_FIELD, renewal, renewed_headers, why_not_reused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_dedupe.stores.base import Original, UrlCapture
    from scrapy_dedupe.warc.capture import Capture, Headers
    from scrapy_dedupe.warc.framing import Damage, Layouts
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .reuse import Renewal

T = TypeVar("T")

_MOST_RECENT = 1_000


def is_capture(record: StoredRecord, capture: UrlCapture) -> bool:
    """Whether *record* is the one that the index names as a capture: a file may have been replaced."""
    uri, date = record.target_uri, record.date
    if not uri or not date or (uri != capture.url and plain_url(uri) != plain_url(capture.url)):
        return False
    if date_digits(date)[:14] != capture.date[:14]:
        return False
    if record.get("WARC-Payload-Digest") is not None and known_digest(record) != capture.digest:
        return False
    if record.type == "revisit":
        return True
    # An entry with validators was derived from its record, which was whole.
    return record.type == "response" and (bool(capture.validators) or is_whole_original(record))


def is_original_record(record: StoredRecord, original: Original, *, is_whole: bool = False) -> bool:
    """Whether *record* is the one that the index names as an original: a file may have been replaced.

    *is_whole*: a response is known to be a whole original.
    """
    if record.type != "response" or not record.target_uri or not record.date:
        return False
    text = record.get("WARC-Payload-Digest")
    # An index that was imported without its WARC files may also name truncated records.
    if text is not None and known_digest(record) != original.digest:
        return False
    if not (is_whole or is_whole_original(record)):
        return False
    # A revisit must name the URL exactly as it is stored. In the index white space is percent-encoded, or stripped by a
    # reader. The date in the index may have only seconds.
    is_its_url = stored_uri(record) == original.url.encode("utf-8", "surrogatepass")
    return is_its_url and date_digits(record.date)[:14] == original.date[:14]


@dataclass(slots=True)
class _Recent:
    """A record that was read, its request if that was looked for, and the index entries that name the record."""

    record: StoredRecord
    request: StoredRecord | None = None
    has_request: bool = False
    capture: UrlCapture | None = None
    original: Original | None = None


class RecentExchanges:
    """The records that were read last, so that a cache and a recorder read and check each of them once.

    The methods raise DamagedInput if there is no whole record or another one, or OSError. ``captures``, by URL, and
    ``originals``, by digest, are what the cache has found last in the index: the recorder needs the same a moment later.
    Of the records that were read before the last one only the heads are in memory. With *needs_body* the whole record is
    read again: its file may have been renamed or replaced since.
    """

    def __init__(self) -> None:
        self.captures: dict[str, UrlCapture] = {}
        self.originals: dict[str, Original] = {}
        self._known: OrderedDict[tuple[str, int], _Recent] = OrderedDict()
        self._last: StoredRecord | None = None
        self._paths: dict[str, Path] = {}
        self._layouts: Layouts = {}

    def capture(
        self, capture: UrlCapture, *, needs_body: bool = False
    ) -> tuple[StoredRecord, StoredRecord | None] | None:
        """The record of a capture and its request, None if no request follows. None if there is no such file."""
        assert capture.file is not None
        assert capture.offset is not None
        known = self._held(capture.file, capture.offset, needs_body=needs_body)
        if known is None or not known.has_request:
            exchange = self._read(self._exchange_at, capture.file, capture.offset)
            if exchange is None:
                return None
            known = _Recent(*exchange, has_request=True)
            self._keep(capture.file, capture.offset, known)
        if known.capture != capture:
            if not is_capture(known.record, capture):
                raise _another(capture.file, capture.offset)
            known.capture = capture
        _note(self.captures, capture.url, capture)
        return known.record, known.request

    def found(self, digests: Iterable[str], originals: Iterable[Original | None]) -> None:
        """Note what was found in the index for payloads."""
        for digest, original in zip(digests, originals, strict=True):
            if original is None:
                self.originals.pop(digest, None)
            else:
                _note(self.originals, digest, original)

    def original(self, original: Original, *, needs_body: bool = False) -> StoredRecord | None:
        """The record of an original; None if its file does not exist."""
        if original.file is None or original.offset is None:
            return None
        known = self._held(original.file, original.offset, needs_body=needs_body)
        if known is None:
            record = self._read(read_record, original.file, original.offset)
            if record is None:
                return None
            known = _Recent(record)
            self._keep(original.file, original.offset, known)
        if not self._is_original(known, original):
            raise _another(original.file, original.offset)
        return known.record

    def forget(self, file: str, offset: int) -> None:
        """Forget a record that is not needed again."""
        self._known.pop((file, offset), None)

    def holds(self, original: Original) -> bool | None:
        """Whether an original is the record at its place; None if that record was not read recently."""
        if original.file is None or original.offset is None:
            return None
        known = self._known.get((original.file, original.offset))
        return None if known is None else self._is_original(known, original)

    def has(self, file: str, offset: int) -> bool:
        """Whether the record at *offset* was read recently."""
        return (file, offset) in self._known

    def _held(self, file: str, offset: int, *, needs_body: bool) -> _Recent | None:
        known = self._known.get((file, offset))
        if known is not None and needs_body and not known.record.frame.is_held:
            # If the file no longer has the record, no new revisit may refer to it either.
            self.forget(file, offset)
            return None
        return known

    def _is_original(self, known: _Recent, original: Original) -> bool:
        if known.original != original:
            # A response that is a capture was found to be whole.
            if not is_original_record(known.record, original, is_whole=known.capture is not None):
                return False
            known.original = original
        return True

    def _keep(self, file: str, offset: int, known: _Recent) -> None:
        if self._last is not None:
            self._last.frame.keep_only(self._last.http.length if self._last.http else 0)
        self._last = known.record
        self._known.pop((file, offset), None)
        self._known[file, offset] = known
        if len(self._known) > _MOST_RECENT:
            self._known.popitem(last=False)

    def _read(self, read: Callable[[ReadableFile, int], T], file: str, offset: int) -> T | None:
        """Call *read* with the file of this name; None if there is no such file."""
        path: ReadableFile | None = self._paths.get(file)
        if path is not None:
            # The crawl's own file gets another name when it is finished.
            with suppress(FileNotFoundError):
                return read(path, offset)
        path = readable(file)
        if path is None:
            return None
        if isinstance(path, Path):
            _note(self._paths, file, path)
        return read(path, offset)

    def _exchange_at(self, file: ReadableFile, offset: int) -> tuple[StoredRecord, StoredRecord | None]:
        damages: list[Damage] = []
        records = read_records(file, on_damage=damages.append, start=offset, layouts=self._layouts)
        first = list(islice(records, 2))
        if len(first) == 2:
            record, request = first
            # As this package writes them.
            is_pair = record.type in ("response", "revisit") and request.type == "request"
            if record.offset == offset and is_pair and names(request, record):
                return record, request
        for record, found in paired(chain(first, records)):
            if record.offset != offset:
                break
            return record, found
        raise DamagedInput(f"{file}, offset {offset}: there is no whole record.")


def _note(noted: dict[str, T], key: str, value: T) -> None:
    if len(noted) >= _MOST_RECENT:
        noted.clear()
    noted[key] = value


def _another(file: str, offset: int) -> DamagedInput:
    return DamagedInput(f"{file}, offset {offset}: this is another record.")


def confirms(record: StoredRecord, source: StoredRecord) -> bool:
    """Whether a server-not-modified record refers to *source*."""
    return record.refers_to_uri == source.target_uri and milliseconds(record.refers_to_date) == milliseconds(
        source.date
    )


def page_headers(record: StoredRecord, source: StoredRecord) -> Headers:
    """The headers of the page of a capture, whose payload is that of *source*.

    Raises DamagedInput for a server-not-modified record that does not say how it changes those of *source*.
    """
    if record.type == "revisit" and is_unmodified(record):
        headers = renewed_headers(source.http_headers, record.get(RENEWAL_FIELD))
        if headers is None or not confirms(record, source):
            raise _another(str(record.path), record.offset)
        return headers
    return (source if record.http_status is None else record).http_headers


def renewal_of(
    confirmation: Capture, last: UrlCapture, original: Original, exchanges: RecentExchanges
) -> Renewal | None:
    """The :func:`.renewal` of the *last* capture of a URL, whose payload is that of *original*, by a 304.

    None if the 304 does not renew the capture: its records cannot be read, or it may not answer this request.
    """
    places = [
        (named.file, named.offset)
        for named in (last, original)
        if named.file is not None and named.offset is not None
    ]
    # Remote files are read only by the cache.
    if len(places) < 2 or any(is_url(file) and not exchanges.has(file, offset) for file, offset in places):
        return None
    try:
        found, source = exchanges.capture(last), exchanges.original(original)
        if found is None or source is None:
            return None
        record, request = found
        headers = page_headers(record, source)
    except (DedupeError, OSError, ValueError):
        return None
    finally:
        # Otherwise the garbage collector would often visit many of them.
        for place in places:
            exchanges.forget(*place)
    asked = request.http_headers if request is not None and request.http is not None else None
    if why_not_reused(headers, asked, confirmation.request_headers) is not None:
        return None
    return renewal(headers, confirmation.response_headers, source.http_headers)
