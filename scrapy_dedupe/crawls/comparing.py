"""Compares the records of a WARC file with the index entries that name them.

Both are processed in order of offset, so a file is read once and only the entries of one offset are held.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.tasks.progress import Reached, counted
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.codings import Undecodable, codings_of, decoded_body
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.framing import open_block
from scrapy_dedupe.warc.reading import read_record, read_records

from .findings import IndexFinding
from .values import known_digest, plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .sorted_entries import Entry, SortedEntries

_MAX_BLANK_LINES = 8
_STREAMED_BYTES = 64 << 20
_MAX_DECODED_BYTES = 1 << 30


class CrawlComparison:
    """Compares the records in the files of one crawl with its entries.

    ``on_record`` is called with every response and revisit, the method of its request, and whether an entry names it. With
    ``has_payloads`` payloads are hashed. ``records`` counts the responses and revisits that were read.
    """

    def __init__(
        self,
        crawl: str,
        ledger: SortedEntries,
        on_finding: Callable[[IndexFinding], None],
        *,
        is_imported: bool,
        has_payloads: bool,
        watch: Progress,
    ) -> None:
        self.records = 0
        self._crawl = crawl
        self._ledger = ledger
        self._on_finding = on_finding
        self._is_imported = is_imported
        self._has_payloads = has_payloads
        self._has_unplaced = ledger.without_place() > 0
        self._watch = watch

    def read(
        self, name: str, file: ReadableFile, on_record: Callable[[str, StoredRecord, str, bool], None]
    ) -> None:
        """Read a file, which is called *name* in the entries."""
        entries = _Queue(self._ledger.of_file(name))
        reached = Reached(self._watch)
        try:
            for record, method in self._exchanges(name, file):
                reached(record.offset)
                self.records += 1
                for passed in entries.before(record.offset):
                    self._add_unmet(passed)
                is_entered = record.type == "response" and self._meets(entries, record)
                if self._has_payloads and (fault := payload_fault(record)):
                    self._add("damage", f"{name}, offset {record.offset}: {fault}", name, record.offset)
                on_record(name, record, method, is_entered)
        except (OSError, ArchiveError, DamagedInput) as error:
            text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self._add("damage", f"{name} cannot be read to its end: {text}", name)
        for passed in entries.before(None):
            self._add_unmet(passed)

    def compare_some(self, entries: Sequence[Entry], files: dict[str, ReadableFile]) -> None:
        """Compare single entries, without reading the rest of their files; entries of absent files are skipped."""
        for entry in counted(entries, self._watch):
            file = files.get(entry.file)
            if file is None:
                continue
            self.records += 1
            try:
                record = read_record(file, entry.offset)
            except (DamagedInput, ArchiveError, OSError):
                self._add_unmet(entry)
                continue
            if record.type != "response":
                self._add_unmet(entry)
            elif found := differences(entry, record):
                self._add_different(entry, found)
            elif self._has_payloads and (fault := payload_fault(record)):
                self._add("damage", f"{entry.file}, offset {entry.offset}: {fault}", entry.file, entry.offset)

    def _exchanges(self, name: str, file: ReadableFile) -> Iterator[tuple[StoredRecord, str]]:
        def on_damage(damage: Damage) -> None:
            text = f"{name}, offset {damage.offset}: {damage.reason} ({damage.length} bytes skipped)."
            self._add("damage", text, name, damage.offset)

        records = self._ledger.captures.noted(read_records(file, on_damage=on_damage))
        return exchanges(records, unknown_method="GET" if self._is_imported else "")

    def _meets(self, entries: _Queue, record: StoredRecord) -> bool:
        """Whether an entry names this record. An entry with its location but other values becomes a finding."""
        here = entries.at(record.offset)
        if not here:
            return self._meets_unplaced(record)
        same = next((entry for entry in here if _is_payload(entry, record)), here[0])
        found = differences(same, record)
        if found and not record.length:
            # The record shares its gzip member with others; the entry may mean one of those.
            return False
        here.remove(same)
        if found:
            self._add_different(same, found)
        return not found

    def _meets_unplaced(self, record: StoredRecord) -> bool:
        """Whether an entry without a location is the entry of this record."""
        if not self._has_unplaced or not record.target_uri:
            return False
        for number, entry in self._ledger.unmet(plain_url(record.target_uri), digits_of(record.date or "")):
            if not differences(entry, record):
                self._ledger.meet(number)
                return True
        return False

    def _add_unmet(self, entry: Entry) -> None:
        text = f"The entry of {entry.url} names {entry.file}, offset {entry.offset}, where no response record begins."
        self._add("entry", text, entry.file, entry.offset)

    def _add_different(self, entry: Entry, found: Sequence[str]) -> None:
        what = " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))
        text = f"The entry of {entry.url} names {entry.file}, offset {entry.offset}; the record there has another {what}."
        self._add("entry", text, entry.file, entry.offset)

    def _add(self, kind: str, text: str, file: str, offset: int | None = None) -> None:
        self._on_finding(IndexFinding(kind, self._crawl, text, file, offset))


class _Queue:
    """Entries in order of offset, taken offset by offset."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries
        self._next = next(entries, None)
        self._here: list[Entry] = []
        self._offset = -1

    def before(self, offset: int | None) -> Iterator[Entry]:
        """Take the remaining entries before *offset* (None: all)."""
        if offset == self._offset:
            return
        yield from self._here
        self._here = []
        while self._next is not None and (offset is None or self._next.offset < offset):
            yield self._next
            self._next = next(self._entries, None)

    def at(self, offset: int) -> list[Entry]:
        """The entries at *offset*; the caller removes an entry from the list to take it."""
        if offset != self._offset:
            self._offset = offset
            while self._next is not None and self._next.offset == offset:
                self._here.append(self._next)
                self._next = next(self._entries, None)
        return self._here


@lru_cache(1_000)  # the date of a record is needed several times in a row
def digits_of(date: str) -> str:
    """The digits of a WARC-Date in the form of an import: 14, or 17 if it has a fraction; empty if it is invalid.

    >>> digits_of("2026-08-01T12:00:00.1Z"), digits_of("2026-08-01T12:00:00Z"), digits_of("now")
    ('20260801120000100', '20260801120000', '')
    """
    try:
        return date_digits(date)
    except ValueError:
        return ""


def payload_fault(record: StoredRecord) -> str | None:
    """Why the payload of a response does not match its digest; None if it does."""
    digest = record.payload_digest
    if record.type != "response" or digest is None or digest.label not in hashlib.algorithms_available:
        return None
    try:
        is_right = any(_has_digest(pieces, digest.label, str(digest)) for pieces in _payloads(record))
    except DamagedInput as error:
        return str(error)
    return None if is_right else "the payload does not have the digest that the record gives."


def _payloads(record: StoredRecord) -> Iterator[Iterator[bytes]]:
    """The possible inputs of the digest: the body without transfer coding, with it, or decoded."""
    http = record.http
    skipped = http.length if http else 0
    codings = codings_of(record.http_headers)
    is_framed = http is not None and http.get(b"Transfer-Encoding") is not None
    if record.frame.block_length > _STREAMED_BYTES:
        yield _after(open_block(record.path, record.frame), skipped)
        if not (codings or is_framed):
            return
    payload = record.payload()
    yield iter((payload,))
    if is_framed:
        yield iter((record.block()[skipped:],))
    if codings:
        try:
            yield iter((decoded_body(payload, codings, _MAX_DECODED_BYTES),))
        except Undecodable:
            return


def _after(pieces: Iterator[bytes], skipped: int) -> Iterator[bytes]:
    for piece in pieces:
        yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def _has_digest(pieces: Iterator[bytes], label: str, digest: str) -> bool:
    made = hashlib.new(label, usedforsecurity=False)
    for piece in pieces:
        made.update(piece)
    return str(parse_digest(f"{label}:{made.hexdigest()}")) == digest


def _is_payload(entry: Entry, record: StoredRecord) -> bool:
    return known_digest(record) == entry.digest


def differences(entry: Entry, record: StoredRecord) -> list[str]:
    """The values of an entry that differ from the record at its location."""
    found = []
    digest = known_digest(record)
    # Records of old crawlers have no digest; the digest of the entry came from an imported index.
    if digest is not None and digest != entry.digest:
        found.append("payload digest")
    url = record.target_uri or ""
    if url != entry.url and (not url or plain_url(url) != entry.url):
        found.append("URI")
    date = digits_of(record.date or "")
    count = min(len(date), len(entry.date))
    if not date or date[:count] != entry.date[:count]:
        found.append("date")
    # Writers of CDXJ disagree whether the blank lines after an uncompressed record are part of it.
    blank = record.length - record.frame.block_position - record.frame.block_length
    if not 0 <= record.length - entry.size <= (blank if 0 <= blank <= _MAX_BLANK_LINES else 0):
        found.append("length")
    return found
