"""Records that the crawl index names: whether they are still the indexed ones, and what a 304 means for them.

A file may have been moved, replaced or damaged since its records were indexed. So a record is compared with its index entry
before it is used.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput, DedupeError
from scrapy_dedupe.stores.normal_forms import known_digest, plain_url
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import paired
from scrapy_dedupe.warc.raw_heads import stored_uri
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import is_unmodified, milliseconds
from scrapy_dedupe.warc.remote import is_url

from .crawl_files import readable
from .entries import is_whole_original
from .reuse import RENEWAL_FIELD, renewal, renewed_headers, why_not_reused

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Original, UrlCapture
    from scrapy_dedupe.warc.capture import Capture, Headers
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

_MOST_RECENT = 1_000
_RECENT_BYTES = 16 << 20


def is_capture(record: StoredRecord, capture: UrlCapture) -> bool:
    """Whether *record* is the one that the index names as a capture: a file may have been replaced."""
    if not record.target_uri or not record.date or plain_url(record.target_uri) != plain_url(capture.url):
        return False
    if date_digits(record.date)[:14] != capture.date[:14]:
        return False
    if record.get("WARC-Payload-Digest") is not None and known_digest(record) != capture.digest:
        return False
    return record.type == "revisit" or (record.type == "response" and is_whole_original(record))


def is_original_record(record: StoredRecord, original: Original) -> bool:
    """Whether *record* is the one that the index names as an original: a file may have been replaced."""
    if record.type != "response" or not record.target_uri or not record.date:
        return False
    text = record.get("WARC-Payload-Digest")
    # An index that was imported without its WARC files may also name truncated records.
    if (text is not None and known_digest(record) != original.digest) or not is_whole_original(record):
        return False
    # A revisit must name the URL exactly as it is stored. In the index white space is percent-encoded, or stripped by a
    # reader. The date in the index may have only seconds.
    is_its_url = stored_uri(record) == original.url.encode("utf-8", "surrogatepass")
    return is_its_url and date_digits(record.date)[:14] == original.date[:14]


def original_record(original: Original) -> StoredRecord | None:
    """The record of an original; None if its file does not exist. Raises DamagedInput for another record."""
    file = None if original.file is None else readable(original.file)
    if file is None or original.offset is None:
        return None
    record = read_record(file, original.offset)
    if not is_original_record(record, original):
        raise DamagedInput(f"{original.file}, offset {original.offset}: this is another record.")
    return record


class RecentExchanges:
    """The exchanges that were read last, with their requests, so that a cache and a recorder read each of them once."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int], tuple[StoredRecord, StoredRecord | None]] = OrderedDict()
        self._bytes = 0

    def at(self, file: str, offset: int) -> tuple[StoredRecord, StoredRecord | None]:
        """The record at *offset* and its request, None if no request follows.

        Raises ArchiveError if there is no such file, DamagedInput if there is no whole record, or OSError.
        """
        known = self._known.get((file, offset))
        if known is None:
            path = readable(file)
            if path is None:
                raise ArchiveError(f"The file {file} does not exist.")
            known = _exchange_at(path, offset)
            self._known[file, offset] = known
            self._bytes += len(known[0].frame.kept)
            while self._bytes > _RECENT_BYTES or len(self._known) > _MOST_RECENT:
                _, (oldest, _) = self._known.popitem(last=False)
                self._bytes -= len(oldest.frame.kept)
        return known

    def known(self, file: str, offset: int) -> StoredRecord | None:
        """The record at *offset* if it was read recently."""
        known = self._known.get((file, offset))
        return None if known is None else known[0]


def _exchange_at(file: ReadableFile, offset: int) -> tuple[StoredRecord, StoredRecord | None]:
    damages: list[Damage] = []
    records = read_records(file, on_damage=damages.append, start=offset)
    for record, request in paired(records):
        if record.offset != offset:
            break
        return record, request
    raise DamagedInput(f"{file}, offset {offset}: there is no whole record.")


def confirms(record: StoredRecord, source: StoredRecord) -> bool:
    """Whether a server-not-modified record refers to *source*."""
    return record.refers_to_uri == source.target_uri and milliseconds(record.refers_to_date) == milliseconds(
        source.date
    )


def page_headers(record: StoredRecord, source: StoredRecord) -> Headers:
    """The headers of the page of a capture, whose payload is that of *source*.

    Raises DamagedInput for a server-not-modified record that does not say how it changes those of *source*.
    """
    if is_unmodified(record):
        headers = renewed_headers(source.http_headers, record.get(RENEWAL_FIELD))
        if headers is None or not confirms(record, source):
            raise DamagedInput(f"{record.path}, offset {record.offset}: this is another record.")
        return headers
    return (source if record.http_status is None else record).http_headers


def renewal_of(
    confirmation: Capture, last: UrlCapture, original: Original, exchanges: RecentExchanges
) -> str | None:
    """The :func:`.renewal` of the *last* capture of a URL, whose payload is that of *original*, by a 304.

    None if the 304 does not renew the capture: its records cannot be read, or it may not answer this request.
    """
    if last.file is None or last.offset is None:
        return None
    try:
        if is_url(last.file) and exchanges.known(last.file, last.offset) is None:
            return None
        record, request = exchanges.at(last.file, last.offset)
        is_own = (last.file, last.offset) == (original.file, original.offset)
        source = record if is_own else original_record(original)
        if source is None or not is_capture(record, last):
            return None
        headers = page_headers(record, source)
    except (DedupeError, OSError, ValueError):
        return None
    asked = request.http_headers if request is not None and request.http is not None else None
    if why_not_reused(headers, asked, confirmation.request_headers) is not None:
        return None
    return renewal(headers, confirmation.response_headers, source.http_headers)
