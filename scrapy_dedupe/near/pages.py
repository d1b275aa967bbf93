"""The pages of one WARC or ARC file, as rows of Parquet files.

`read_file` needs only the file and its options, so it can run in any process or on any machine. It writes two files.

**Pages**: one row for each page, in the order of the file::

    file VARCHAR        the name of the file
    offset BIGINT       where the record begins, in stored bytes
    position BIGINT     where its block begins: records in one gzip member have the same offset
    uri VARCHAR         WARC-Target-URI
    date VARCHAR        WARC-Date as written
    date_ms BIGINT      the same in milliseconds since 1970; NULL if it cannot be parsed
    text_key BLOB       16 bytes (scrapy_dedupe.content.pages); NULL for a revisit
    chars BIGINT        the length of the canonical text in code points; NULL for a revisit
    mime VARCHAR        the MIME type
    host VARCHAR        the host of the URI
    is_compared BOOLEAN whether the near layer compares the text; NULL for a revisit
    names VARCHAR[]     the title and the main heading without numbers
    text BLOB           the canonical text, UTF-8, compressed with zlib; NULL if an earlier row of the file has it, or if it is
                        not compared
    has_text BOOLEAN    whether the row has it
    reference VARCHAR   for a revisit: the fields of its `Reference`, as JSON; NULL for a page, like the next two
    reference_digest VARCHAR    the digest in it
    reference_keys BLOB[]       its other keys (`reference_keys`)

**Captures**: one row for each record that may be the original of a revisit: the name of its file, and the fields of
`CaptureRow`.

A page is what the content layer of a crawl judges: a response with status 200 and a text Content-Type, not truncated, of
at most ``max_bytes`` when decoded. ``robots.txt`` is left out, since a crawl does not judge it. A revisit is a page with
the text of its original. Other records are counted by the reason for which they are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zlib_ng import zlib_ng

from scrapy_dedupe.content.candidates import Candidates, near_layers
from scrapy_dedupe.content.canonical import kind_of, mime_of
from scrapy_dedupe.content.options import JudgeOptions
from scrapy_dedupe.content.pages import Page, PageReading, host_of, read_page
from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import reading
from scrapy_dedupe.warc.codings import Oversized, Undecodable, codings_of, decoded_body
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import capture_row, milliseconds, reference_keys, reference_of

from .tables import RowsWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from scrapy_dedupe.warc.capture import Headers
    from scrapy_dedupe.warc.codings import DecodedPage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

PAGES: Final = {
    "file": "VARCHAR",
    "offset": "BIGINT",
    "position": "BIGINT",
    "uri": "VARCHAR",
    "date": "VARCHAR",
    "date_ms": "BIGINT",
    "text_key": "BLOB",
    "chars": "BIGINT",
    "mime": "VARCHAR",
    "host": "VARCHAR",
    "is_compared": "BOOLEAN",
    "names": "VARCHAR[]",
    "text": "BLOB",
    "has_text": "BOOLEAN",
    "reference": "VARCHAR",
    "reference_digest": "VARCHAR",
    "reference_keys": "BLOB[]",
}
CAPTURES: Final = {
    "file": "VARCHAR",
    "date_ms": "BIGINT",
    "digest": "VARCHAR",
    "offset": "BIGINT",
    "block_position": "BIGINT",
    "id": "BLOB",
    "uri": "BLOB",
    "is_partial": "BOOLEAN",
    "is_page": "BOOLEAN",
}

COUNTED_REASONS: Final = {
    "status": "responses with another status than 200",
    "method": "responses to HEAD requests",
    "type": "responses that are not text, or not of the wanted types",
    "truncated": "truncated responses",
    "damaged": "pages that are damaged",
    "robots": "robots.txt files",
    "no text": "pages without text",
    "revisit": "revisits whose original is not among these pages",
}
"""Reasons for leaving out a record that are expected, with a description. They are only counted."""

REPORTED_REASONS: Final = {
    "size": "pages that are too large",
    "coding": "pages whose content coding cannot be decoded",
    "encoding": "pages whose declared encoding is not a known charset",
    "markup": "pages whose markup would take too long",
}
"""Reasons that the user must know about, with a description."""

_WHY: Final = {
    "size": "the page is too large",
    "coding": "its content coding cannot be decoded",
    "encoding": "its declared encoding is not a known charset",
    "markup": "its markup would take too long to parse",
}

_LEVEL: Final = 1  # of zlib; the rows are read once or twice


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How pages are read. Can be pickled.

    *decoded_page* decodes a page, given its URL, its headers and its body without content codings; it returns ``type`` or
    ``encoding`` for a page that cannot be decoded. With *mimes*, only these MIME types are read.
    """

    decoded_page: Callable[[str, Headers, bytes], DecodedPage | str]
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    max_bytes: int = 4_000_000
    mimes: frozenset[str] = frozenset()


@dataclass(slots=True)
class FileCounts:
    """What a file has: documents (pages and revisits), and the records left out by reason.

    ``named`` are the first records with one of the `REPORTED_REASONS`.
    """

    documents: int = 0
    revisits: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    named: list[Fault] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FileCounts:
        """The counts from the JSON form of `asdict`."""
        return cls(**{**value, "named": [Fault(**fault) for fault in value["named"]]})


def read_file(
    name: str,
    file: ReadableFile,
    pages: Path,
    captures: Path,
    options: PageOptions,
    *,
    faults: Faults,
    advance: Callable[[int], None] = lambda size_bytes: None,
) -> FileCounts:
    """Write the rows of *file*, called *name* in them, to the new files *pages* and *captures*.

    *advance* is called with the number of stored bytes that were read. Damaged places are added to *faults*, which belongs
    to this file only. Raises ArchiveError for a system error, and the exceptions of `Faults.add`.
    """
    with (
        reading(file),
        RowsWriter(captures, CAPTURES) as captures_writer,
        RowsWriter(pages, PAGES) as pages_writer,
    ):
        reader = _PageReader(name, options, faults)

        def noted() -> Generator[StoredRecord]:
            done = records = 0
            for record in read_records(file, on_damage=faults.add_damage):
                records += 1
                advance(max(0, record.offset - done))
                done = max(done, record.offset)
                if (row := capture_row(record)) is not None:
                    captures_writer.write((storable(name), *row))
                yield record
            if not records and not faults.count:
                faults.add(str(file), "the file is empty")

        with closing(noted()) as records:
            for record, method in exchanges(records):
                row = reader.row_of(record, method)
                if row is not None:
                    pages_writer.write(row)
    counts = reader.counts
    counts.skipped, counts.named = dict(reader.skipped), reader.named.first
    return counts


class _PageRow(NamedTuple):
    """A row of `PAGES`."""

    file: str
    offset: int
    position: int
    uri: str
    date: str
    date_ms: int | None
    text_key: bytes | None
    chars: int | None
    mime: str | None
    host: str
    is_compared: bool | None
    names: list[str] | None
    text: bytes | None
    has_text: bool
    reference: str | None
    reference_digest: str | None
    reference_keys: list[bytes] | None


class _PageReader:
    """Makes the rows of one file."""

    def __init__(self, name: str, options: PageOptions, faults: Faults) -> None:
        self._name = name
        self._options = options
        self._faults = faults
        self._candidates = Candidates(options.judge, near_layers(options.judge), None)
        self._known: set[bytes] = set()
        self.counts = FileCounts()
        self.skipped = Counter[str]()
        self.named = Faults(keep_going=True)

    def row_of(self, record: StoredRecord, method: str) -> _PageRow | None:
        """The row of a response or revisit; None if it is not a page."""
        reason = _reason_against(record, method)
        found = reason or (self._revisit(record) if record.type == "revisit" else self._page(record))
        if not isinstance(found, str):
            self.counts.documents += 1
            return found
        self.skipped[found] += 1
        if found in REPORTED_REASONS:
            place = f"{self._name}, offset {record.offset} ({record.target_uri})"
            self.named.add(place, _WHY[found])
        return None

    def _revisit(self, record: StoredRecord) -> _PageRow:
        self.counts.revisits += 1
        reference = reference_of(record)
        return self._row(
            record,
            reference=json.dumps(asdict(reference)),
            reference_digest=reference.digest,
            reference_keys=reference_keys(reference),
        )

    def _page(self, record: StoredRecord) -> _PageRow | str:
        found = self._reading(record)
        if isinstance(found, str):
            return found
        assert found.capture is not None
        digest, text = found.capture.digest, None
        is_compared = self._candidates.layer_of(found) is not None
        if is_compared and digest not in self._known:
            self._known.add(digest)
            text = zlib_ng.compress(found.text.encode(), _LEVEL)
        return self._row(
            record,
            text_key=digest,
            chars=len(found.text),
            mime=found.mime,
            is_compared=is_compared,
            names=[*found.names],
            text=text,
        )

    def _row(self, record: StoredRecord, **values: Any) -> _PageRow:
        uri, date = storable(record.target_uri or ""), storable(record.date or "")
        values = {
            "file": storable(self._name),
            "offset": record.offset,
            "position": record.frame.block_position,
            "uri": uri,
            "date": date,
            "date_ms": milliseconds(date),
            "host": host_of(uri),
            "has_text": values.get("text") is not None,
            **values,
        }
        return _PageRow._make(values.get(name) for name in PAGES)

    def _reading(self, record: StoredRecord) -> PageReading | str:
        """The text of a page, or the reason why it is not judged."""
        assert record.http is not None
        options, headers = self._options, record.http_headers
        if record.frame.block_length - record.http.length > options.max_bytes:
            return "size"
        try:
            body = decoded_body(record.payload(), codings_of(headers), options.max_bytes)
        except DamagedInput as error:
            self._faults.add(f"{self._name}, offset {record.offset}", str(error))
            return "damaged"
        except Oversized:
            return "size"
        except Undecodable:
            return "coding"
        url = storable(record.target_uri or "")
        page = options.decoded_page(url, headers, body)
        if isinstance(page, str):
            return page
        mime = mime_of(page.content_type)
        if options.mimes and mime not in options.mimes:
            return "type"
        found = read_page(Page(url, page.text, "", page.kind, mime, 0), options.judge.canonicalizer)
        return found if found.reason is None else found.reason


def storable(text: str) -> str:
    r"""A text that Parquet can store: other characters, which come from invalid bytes, are escaped.

    >>> storable("caf\udce9"), storable("a\0b")
    ('caf\\udce9', 'a\\x00b')
    """
    if "\0" in text:
        text = text.replace("\0", r"\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def _reason_against(record: StoredRecord, method: str) -> str | None:
    """Why a response or revisit is not a page, as far as its head says so."""
    status = record.http_status
    if record.type == "response" and status is None:
        return "type"
    # A revisit of a page may record a 304, or have no HTTP head.
    if status not in ((200,) if record.type == "response" else (None, 200, 304)):
        return "status"
    if method == "HEAD":
        return "method"
    if record.is_truncated:
        return "truncated"
    if _is_robots_txt(record.target_uri or ""):
        return "robots"
    types = [] if record.http is None else record.http.get_all(b"Content-Type")
    # Scrapy reads the last one.
    if types and types[-1] and kind_of(types[-1].decode("latin-1")) is None:
        return "type"
    return None


def _is_robots_txt(url: str) -> bool:
    path = url.partition("://")[2].partition("/")[2]
    return path.partition("#")[0].partition("?")[0] == "robots.txt"
