"""The pages in WARC and ARC files, as stored.

A revisit is indexed under its own URL with the payload of its original. The original may be in a file that is read later,
so revisits wait in a temporary SQLite file until all files have been read. A page with the same URL that is read later
replaces them.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DamagedInput, SettingError
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import CaptureTable, Reference, reference_of
from scrapy_dedupe.warc.remote import shown

from .preparation import checked_name
from .text_reading import PAGE, RawDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .text_reading import Skipped


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of reading.

    *kind_of* returns the kind of a page for a Content-Type, None if it is not a text type. *url_field* and *text_field* are
    fields of JSON lines. *host* is the host of all documents; None derives it from their ids.

    The ids of files are relative to *base*. *without* is a folder to exclude, such as the index itself. Documents larger
    than *max_bytes* are skipped.
    """

    kind_of: Callable[[str], str | None]
    max_bytes: int
    url_field: str = "url"
    text_field: str = "text"
    host: str | None = None
    base: Path | None = None
    without: Path | None = None


class Pages:
    """The pages in the files of a run. Only the identifying fields of captures and revisits are kept, on disk.

    Closed by `close`.
    """

    def __init__(self, options: SourceOptions, *, faults: Faults, skipped: Skipped) -> None:
        self._options = options
        self._faults = faults
        self._skipped = skipped
        self._captures = CaptureTable()
        # The empty name makes a temporary file that SQLite removes itself.
        self._waiting = sqlite3.connect("", isolation_level=None)
        self._waiting.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE revisits (url BLOB, fields TEXT, is_replaced INTEGER DEFAULT 0);"
            "CREATE INDEX by_url ON revisits (url);"
        )
        self._has_revisits = False

    def close(self) -> None:
        """Delete the temporary data."""
        self._captures.close()
        self._waiting.close()

    def in_file(self, file: ReadableFile) -> Iterator[RawDocument]:
        """Yield the responses to GET requests with status 200 and a text Content-Type, in the order of the file.

        Raises OSError if the file cannot be read, and what `Faults.add` raises.
        """
        records = self._captures.noted(read_records(file, on_damage=self._faults.add_damage))
        for record, method in exchanges(records):
            place = f"{shown(str(file))}, offset {record.offset}"
            if record.type == "revisit":
                self._wait(record, method, place)
            elif reason := _reason_against(record, method):
                self._skipped.add(reason)
            else:
                assert record.http is not None
                yield from self._document(record.target_uri or "", _content_type(record), record, place)

    def note(self, doc_id: str) -> None:
        """Record that a document was indexed, so that no older revisit replaces it."""
        if self._has_revisits:
            self._waiting.execute("UPDATE revisits SET is_replaced = 1 WHERE url = ?", (_bytes(doc_id),))

    def of_revisits(self) -> Iterator[RawDocument]:
        """Yield the pages of the revisits. Call it after all files have been read."""
        rows = self._waiting.execute("SELECT fields, is_replaced FROM revisits ORDER BY rowid")
        for fields, is_replaced in rows:
            url, content_type, place, values = json.loads(fields)
            found = self._captures.original(Reference(**values))
            if found is None:
                self._skipped.add("revisit")
                continue
            if is_replaced:
                continue
            try:
                original = self._captures.record_of(found)
            except (OSError, DamagedInput) as error:
                self._faults.add(place, f"its original cannot be read again ({error})")
                continue
            if original.http is not None and original.http.status != 200 and content_type is None:
                self._skipped.add("status")
                continue
            yield from self._document(url, content_type or _content_type(original), original, place)

    def _wait(self, revisit: StoredRecord, method: str, place: str) -> None:
        reference = reference_of(revisit)
        # The head of a 304 does not describe the page.
        has_head = revisit.http is not None and not reference.is_unmodified
        if reason := _reason_against(revisit, method) if has_head else _reason_against_method(method):
            self._skipped.add(reason)
            return
        content_type = _content_type(revisit) if has_head else None
        if content_type and self._options.kind_of(content_type) is None:
            self._skipped.add("type")
            return
        self._has_revisits = True
        url = revisit.target_uri or ""
        fields = json.dumps([url, content_type, place, asdict(reference)])
        self._waiting.execute("INSERT INTO revisits (url, fields) VALUES (?, ?)", (_bytes(url), fields))

    def _document(
        self, url: str, content_type: str, source: StoredRecord, place: str
    ) -> Iterator[RawDocument]:
        """Yield the page of *url* with the payload of *source*, unless it cannot be indexed."""
        # The body decides about a page without Content-Type.
        if content_type and self._options.kind_of(content_type) is None:
            self._skipped.add("type")
            return
        try:
            url = checked_name(url)
        except SettingError as error:
            self._faults.add(place, str(error))
            return
        # Compute the size of the body, so that it is not read into memory if it is too large.
        head_bytes = source.http.length if source.http is not None else 0
        if source.frame.block_length - head_bytes > self._options.max_bytes:
            self._skipped.add("large", place, f"{url} has more than {self._options.max_bytes} bytes")
            return
        try:
            body = source.payload()
        except DamagedInput as error:
            self._faults.add(place, str(error))
            return
        yield RawDocument(
            url, self._options.host, body, PAGE, f"{place} ({url})", _headers(source, content_type)
        )


def _content_type(record: StoredRecord) -> str:
    if record.http is None:
        return record.get("Content-Type") or ""
    # Scrapy reads the last one.
    *_, value = b"", *record.http.get_all(b"Content-Type")
    return value.decode("latin-1")


def _headers(source: StoredRecord, content_type: str) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of *source*, whose payload is indexed, with this Content-Type."""
    headers = () if source.http is None else source.http.headers
    others = tuple((name, value) for name, value in headers if name.lower() != b"content-type")
    return (*others, (b"Content-Type", content_type.encode("latin-1"))) if content_type else others


def _reason_against(record: StoredRecord, method: str) -> str | None:
    if record.http is None or record.http.status is None:
        return "type"
    return "status" if record.http.status != 200 else _reason_against_method(method)


def _reason_against_method(method: str) -> str | None:
    return None if method.upper() == "GET" else "method"


def _bytes(url: str) -> bytes:
    return url.encode("utf-8", "surrogatepass")
