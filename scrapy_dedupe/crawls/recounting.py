"""Recounts the records of a crawl, and finds records and revisits that the index lacks.

Each record counts as it did when it was recorded or imported: every ``response`` and ``revisit``; in an imported crawl
only those over HTTP. A revisit has an original if the payload is in the index of the crawl itself or of a committed
crawl, or at least if the record that it refers to was read (see :mod:`scrapy_dedupe.warc.references`). The bytes that
revisits save can be computed only if the index has exactly the originals that they refer to; after a removal the index
may have other originals, of another size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.base import Counts
from scrapy_dedupe.warc.references import reference_of

from .comparing import digits_of
from .findings import IndexFinding
from .imported_records import counted_record
from .rules import may_be_original
from .values import EMPTY_PAYLOADS, known_digest, plain_url

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import Original
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import Reference

    from .index import CrawlIndex
    from .rules import RevisitRules
    from .sorted_entries import SortedEntries

_BATCH = 500


class CountedRevisit(NamedTuple):
    """A revisit: where it is, and its reference. ``original_uri`` and ``date``, in digits, have the form of the index."""

    file: str
    offset: int
    uri: str
    digest: str | None
    size: int
    original_uri: str
    date: str
    conserves: bool
    reference: Reference[str]


class Recount:
    """The counts of one crawl, from its records. ``rules`` is None for an imported crawl.

    After :meth:`finish`, ``counts`` are complete except for the size of the crawl; ``is_exact`` is True if the saved
    bytes can be compared. ``needed`` are the other crawls whose records are referred to, ``unmet`` the revisits
    whose original is not in the index, ``lacking`` the records that should be in it.
    """

    def __init__(
        self, index: CrawlIndex, crawl: str, ledger: SortedEntries, rules: RevisitRules | None
    ) -> None:
        self.is_exact = True
        self.needed: set[str] = set()
        self.unmet: list[CountedRevisit] = []
        self.lacking: list[IndexFinding] = []
        self._index = index
        self._crawl = crawl
        self._ledger = ledger
        self._rules = rules
        self._total = self._dupes = self._conserved = 0
        self._revisits: list[CountedRevisit] = []
        self._candidates: dict[str, IndexFinding] = {}

    @property
    def counts(self) -> Counts:
        return Counts(self._total, self._dupes, self._conserved)

    def take(self, name: str, record: StoredRecord, method: str, is_entered: bool) -> None:
        """Count a record of the file *name*. ``is_entered``: an entry names it."""
        is_response = record.type == "response"
        taken = None if self._rules else counted_record(record, method)
        if self._rules is None and taken is None:
            return
        self._total += 1
        if is_response:
            if not is_entered:
                is_original = taken.is_original if taken else may_be_original(record, method, self._rules)
                self._take_response(name, record, is_original=is_original)
        else:
            self._dupes += 1
            self._take_revisit(name, record)

    def finish(self) -> None:
        """Look up the remaining revisits and records."""
        self._look_up_revisits()
        self._look_up_candidates()

    def _take_response(self, name: str, record: StoredRecord, *, is_original: bool) -> None:
        digest = known_digest(record)
        if digest is None or digest in self._candidates or not is_original:
            return
        text = (
            f"{name}, offset {record.offset}: the index lacks this record of {record.target_uri}, whose payload is in no"
            " entry of the crawl."
        )
        self._candidates[digest] = IndexFinding("record", self._crawl, text, name, record.offset)
        if len(self._candidates) >= _BATCH:
            self._look_up_candidates()

    def _look_up_candidates(self) -> None:
        found = self._ledger.find(list(self._candidates))
        self.lacking += [finding for digest, finding in self._candidates.items() if digest not in found]
        self._candidates = {}

    def _take_revisit(self, name: str, record: StoredRecord) -> None:
        digest = known_digest(record)
        if digest in EMPTY_PAYLOADS:
            return
        reference = reference_of(record)
        if reference.is_unmodified and digest is None and reference.uri is None and reference.id is None:
            # The revisit only states that the page is the one that a client had.
            return
        date = digits_of(record.refers_to_date) if record.refers_to_date else ""
        revisit = CountedRevisit(
            name,
            record.offset,
            record.target_uri or "",
            digest,
            record.length,
            plain_or_same(reference.uri or ""),
            date,
            not reference.is_unmodified,
            reference,
        )
        self._revisits.append(revisit)
        if len(self._revisits) >= _BATCH:
            self._look_up_revisits()

    def _look_up_revisits(self) -> None:
        revisits, self._revisits = self._revisits, []
        digests = list(dict.fromkeys(revisit.digest for revisit in revisits if revisit.digest is not None))
        own = self._ledger.find(digests)
        asked = [digest for digest in digests if digest not in own]
        others = dict(zip(asked, self._index.find(self._crawl, asked), strict=True)) if asked else {}
        for revisit in revisits:
            entry = own.get(revisit.digest or "")
            other: Original | None = None if entry else others.get(revisit.digest or "")
            if entry is not None:
                url, date, size = entry
            elif other is not None and other.crawl != self._crawl:
                url, date, size = other.url, other.date, other.size
            else:
                self.unmet.append(revisit)
                continue
            is_the_one = not revisit.original_uri or (
                revisit.original_uri == url and revisit.date[:14] == date[:14]
            )
            if revisit.conserves:
                self._conserved += max(0, size - revisit.size)
                self.is_exact = self.is_exact and is_the_one
            if other is not None and is_the_one and revisit.original_uri:
                self.needed.add(other.crawl)


def plain_or_same(url: str) -> str:
    """A URL in the form of the index; unchanged if it has no such form."""
    try:
        return plain_url(url)
    except SettingError:
        return url
