"""Compares the records in the files of a crawl with the index. A finding is a sentence with its crawl, file and offset.

Every entry must name a response with its payload, URI, date and length, and every original must be in an entry. The
records are counted as they were when they were recorded or imported (see :mod:`.entries`). A revisit has an original if
its payload is in the index of the crawl itself or of a committed crawl, or at least if the record that it refers to was
read (see :mod:`scrapy_dedupe.warc.references`). The bytes that revisits save can be compared only if the index has
exactly the originals that they refer to; after a removal the index may have other originals, of another size.

A revisit can be replayed as long as the record that it refers to exists in a file: then only the index is incomplete. So
files that the index does not name are read too, but only if there are such revisits.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError, DamagedInput, DedupeError
from scrapy_dedupe.stores.base import Counts
from scrapy_dedupe.stores.normal_forms import plain_url
from scrapy_dedupe.tasks.progress import Reached, counted
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import payload_fault, reference_of

from .crawl_files import crawl_of, files_in_folders, readable
from .dependencies import is_bare
from .entries import CONSERVES_NOTHING, conserved_size, derive
from .sorted_entries import digits_of, plain_or_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.references import Reference
    from scrapy_dedupe.warc.sources import ReadableFile

    from .dependencies import Needed
    from .entries import EntryRules, Revisit
    from .sorted_entries import Entry, SortedEntries

_BATCH = 500

KINDS: Final = {
    "incomplete": "crawls with records that are not in the index",
    "lost": "crawls whose files exist but which are not in the index",
    "file": "WARC files that are not where the index says",
    "damage": "damaged places in WARC files",
    "entry": "entries that name no such record",
    "record": "records that are missing from the index",
    "counts": "counts that differ from a recount",
    "revisit": "revisits without an original",
    "waiting": "revisits whose original is not in the index",
    "needs": "needs of other crawls that are missing from the index",
    "missing": "needed crawls and files that are missing",
    "container": "WACZ files that differ from what the index says",
    "unreadable": "values of the index that cannot be read",
    "empty": "committed crawls without files and records in the index",
    "merged": "faults of the merged index",
    "unfinished": "imports, removals and repairs that were interrupted",
}
"""The kinds of findings, in the order in which they are shown."""

REBUILT_KINDS: Final = frozenset(
    {"incomplete", "lost", "file", "entry", "record", "counts", "needs", "unreadable"}
)
"""Findings that reading the entries of a crawl again can repair."""


@dataclass(frozen=True, slots=True)
class IndexFinding:
    """A problem. ``kind`` is one of :data:`KINDS`.

    ``crawl``, ``file`` and ``offset`` (in bytes) give its location, if it has one.
    """

    kind: str
    crawl: str | None
    sentence: str
    file: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Thoroughness:
    """How thorough a check is.

    With ``has_payloads`` every payload and container is hashed. With ``sample`` only this many entries of each crawl
    are compared, drawn with ``seed``, and only their records are read.
    """

    has_payloads: bool = False
    sample: int | None = None
    seed: int = 0


def number_of(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> number_of(1, "entry", "entries"), number_of(2, "place")
    ('1 entry', '2 places')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def missing_needs(crawl: str, needs: Iterable[Needed]) -> Iterator[IndexFinding]:
    """The missing needs of a crawl: one finding for each crawl that the index lacks, and each file that is gone."""
    absent: dict[str, list[Needed]] = {}
    for needed in needs:
        if not needed.is_in_index:
            absent.setdefault(needed.crawl, []).append(needed)
        elif needed.is_missing:
            text = (
                f"Revisits of the crawl {crawl} refer to records of {needed.crawl} in {needed.place or needed.name},"
                " which is gone."
            )
            yield IndexFinding("missing", crawl, text, needed.place)
    for other, of_other in absent.items():
        text = (
            f"Revisits of the crawl {crawl} refer to records of {other}, which the index does not have."
            f"{_presence_text(of_other)}"
        )
        yield IndexFinding(
            "missing", crawl, text, next((needed.place for needed in of_other if needed.place), None)
        )


def _presence_text(needs: Sequence[Needed]) -> str:
    """Which files exist of a crawl that is not in the index."""
    known = [needed for needed in needs if needed.is_present is not None]
    if len(known) == 1:
        return f" {known[0].place} {'exists' if known[0].is_present else 'is gone'}."
    there = sum(bool(needed.is_present) for needed in known)
    return f" Of its files {there} of {len(known)} {'exists' if there == 1 else 'exist'}." if known else ""


class ReadRevisit(NamedTuple):
    """A revisit in a file. ``original_uri`` and ``date`` (in digits) refer to its original, in the form of the index."""

    crawl: str
    file: str
    offset: int
    original_uri: str
    date: str
    revisit: Revisit
    reference: Reference[str]


@dataclass(eq=False)
class CrawlComparison:
    """Compares the records of one crawl with its entries in ``ledger``.

    With ``has_payloads`` payloads are hashed. ``records`` counts the responses and revisits that were read. After
    :meth:`look_up_revisits`, ``counts`` are those of a recount, without the size of the crawl, and ``is_exact`` is True if the
    saved bytes can be compared. ``needed`` are the other crawls whose records are referred to, and ``unmet`` the revisits
    whose original is not in the index.
    """

    index: CrawlIndex
    rules: EntryRules
    ledger: SortedEntries
    on_finding: Callable[[IndexFinding], None]
    has_payloads: bool
    watch: Progress
    records: int = 0
    counts: Counts = field(default_factory=Counts)
    is_exact: bool = True
    needed: set[str] = field(default_factory=set)
    unmet: list[ReadRevisit] = field(default_factory=list)
    _revisits: list[ReadRevisit] = field(default_factory=list)
    _lacking: set[str] = field(default_factory=set)

    def read(self, name: str, file: ReadableFile) -> None:
        """Read a file, which is called *name* in the entries."""

        def on_damage(damage: Damage) -> None:
            text = f"{name}, offset {damage.offset}: {damage.reason} ({damage.length} bytes skipped)."
            self._add("damage", text, name, damage.offset)

        reached = Reached(self.watch)
        try:
            records = self.ledger.captures.noted(read_records(file, on_damage=on_damage))
            for record, entry in derive(records, name, self.rules):
                reached(record.offset)
                self.records += 1
                is_entered = self._is_entered(name, record)
                self._check_payload(name, record)
                if entry is None:
                    continue
                self.counts += entry.counts
                if entry.original is not None and not is_entered:
                    self._check_presence(name, record, entry.original.digest)
                if entry.revisit is not None:
                    self._take_revisit(name, record, entry.revisit)
        except (OSError, ArchiveError, DamagedInput) as error:
            text = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self._add("damage", f"{name} cannot be read to its end: {text}", name)
        for unmet in self.ledger.unmet(name):
            self._add_unmet(unmet)

    def compare_some(self, entries: Sequence[Entry], files: dict[str, ReadableFile]) -> None:
        """Compare single entries, without reading the rest of their files; entries of absent files are skipped."""
        for entry in counted(entries, self.watch):
            file = files.get(entry.file)
            if file is None:
                continue
            self.records += 1
            record = None
            with suppress(DamagedInput, ArchiveError, OSError):
                record = read_record(file, entry.offset)
            if record is None or record.type != "response":
                self._add_unmet(entry)
            elif found := entry.differences(record):
                self._add_different(entry, found)
            else:
                self._check_payload(entry.file, record)

    def _check_payload(self, name: str, record: StoredRecord) -> None:
        digest = record.payload_digest
        if not self.has_payloads or record.type != "response" or digest is None:
            return
        # A digest by an unknown algorithm cannot be computed.
        is_known = digest.label in hashlib.algorithms_available and not digest.label.startswith("shake")
        fault = payload_fault(record, str(digest)) if is_known else None
        if fault is not None:
            why = f"; {fault.rstrip('.')}" if fault else ""
            text = f"{name}, offset {record.offset}: the payload does not have the digest that the record gives{why}."
            self._add("damage", text, name, record.offset)

    def _is_entered(self, name: str, record: StoredRecord) -> bool:
        """Whether an entry names this record. An entry with its location but other values becomes a finding."""
        if record.type != "response" or (met := self.ledger.meet(name, record)) is None:
            return False
        entry, found = met
        if found:
            self._add_different(entry, found)
        return not found

    def _check_presence(self, name: str, record: StoredRecord, digest: str) -> None:
        if digest in self._lacking or self.ledger.find([digest]):
            return
        self._lacking.add(digest)
        text = (
            f"{name}, offset {record.offset}: the index lacks this record of {record.target_uri}, whose payload is in no"
            " entry of the crawl."
        )
        self._add("record", text, name, record.offset)

    def _take_revisit(self, name: str, record: StoredRecord, revisit: Revisit) -> None:
        reference = reference_of(record)
        names_original = (revisit.digest, reference.uri, reference.id) != (None, None, None)
        if reference.is_unmodified and not names_original:
            # The revisit only states that the client already had the page.
            return
        date = digits_of(record.refers_to_date) if record.refers_to_date else ""
        uri = plain_or_same(plain_url, reference.uri or "")
        self._revisits.append(
            ReadRevisit(self.rules.crawl, name, record.offset, uri, date, revisit, reference)
        )
        if len(self._revisits) >= _BATCH:
            self.look_up_revisits()

    def look_up_revisits(self) -> None:
        """Look up the originals of the revisits that were read since the last call."""
        revisits, self._revisits = self._revisits, []
        digests = list({one.revisit.digest: None for one in revisits if one.revisit.digest is not None})
        own = self.ledger.find(digests)
        asked = [digest for digest in digests if digest not in own]
        others = dict(zip(asked, self.index.find(self.rules.crawl, asked), strict=True)) if asked else {}
        for one in revisits:
            digest = one.revisit.digest or ""
            other = others.get(digest)
            if other is not None and other.crawl == self.rules.crawl:
                other = None
            found = own.get(digest, other)
            if found is None:
                self.unmet.append(one)
                continue
            is_named = (one.original_uri, one.date[:14]) == (found.url, found.date[:14])
            is_the_one = is_named or not one.original_uri
            if one.revisit.size != CONSERVES_NOTHING:
                self.counts += Counts(conserved_size=conserved_size(found.size, one.revisit.size))
                self.is_exact = self.is_exact and is_the_one
            if other is not None and is_named and one.original_uri:
                self.needed.add(other.crawl)

    def _add_unmet(self, entry: Entry) -> None:
        text = f"The entry of {entry.url} names {entry.file}, offset {entry.offset}, where no response record begins."
        self._add("entry", text, entry.file, entry.offset)

    def _add_different(self, entry: Entry, found: Sequence[str]) -> None:
        what = " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))
        text = f"The entry of {entry.url} names {entry.file}, offset {entry.offset}; the record there has another {what}."
        self._add("entry", text, entry.file, entry.offset)

    def _add(self, kind: str, text: str, file: str, offset: int | None = None) -> None:
        self.on_finding(IndexFinding(kind, self.rules.crawl, text, file, offset))


@dataclass(eq=False, slots=True)
class UnresolvedRevisits:
    """``revisits`` whose original is not in the index. ``read`` names the files whose records are in the ledger."""

    index: CrawlIndex
    ledger: SortedEntries
    folders: Sequence[Path]
    revisits: list[ReadRevisit] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def findings(self, crawls: Mapping[str, CrawlInfo]) -> Iterator[IndexFinding]:
        """Report revisits without any original, and the files that hold originals of others."""
        for crawl in dict.fromkeys(revisit.crawl for revisit in self.revisits):
            self._read_needed(crawl)
        captures = self.ledger.captures
        unmet = [revisit for revisit in self.revisits if captures.original(revisit.reference) is None]
        self._read_other_files(unmet)
        counts: Counter[tuple[str, str]] = Counter()
        for revisit in unmet:
            found = captures.original(revisit.reference)
            if found is None:
                refers_to = revisit.original_uri or revisit.reference.id or "a payload"
                text = (
                    f"{revisit.file}, offset {revisit.offset}: the revisit of {revisit.reference.own_uri} refers to"
                    f" {refers_to}, but neither the index nor a file has the original."
                )
                yield IndexFinding("revisit", revisit.crawl, text, revisit.file, revisit.offset)
            else:
                counts[revisit.crawl, str(captures.file_of(found))] += 1
        for (crawl, file), count in counts.items():
            yield IndexFinding("waiting", crawl, _backed_text(crawl, count, file, crawls), file)

    def _read_needed(self, crawl: str) -> None:
        """Add the records of the files that a crawl needs to the ledger, unless they were already read."""
        for need in self.index.needs(crawl):
            if need.file is None or is_bare(need.file) or need.file in self.read:
                continue
            self.read.add(need.file)
            file = readable(need.file)
            if file is not None:
                self._read(file)

    def _read_other_files(self, unmet: Sequence[ReadRevisit]) -> None:
        """Add the records of files in the folders, until the original of each of these revisits was read."""
        for file in files_in_folders(self.folders):
            unmet = [one for one in unmet if self.ledger.captures.original(one.reference) is None]
            if not unmet:
                return
            if str(file) not in self.read:
                self._read(file)

    def _read(self, file: ReadableFile) -> None:
        try:
            for record in read_records(file, on_damage=lambda damage: None):
                self.ledger.captures.add(record)
        except (OSError, DedupeError):
            # The check of the crawl to which the file belongs reports the error.
            return


def _backed_text(crawl: str, count: int, file: str, crawls: Mapping[str, CrawlInfo]) -> str:
    found = readable(file)
    owner = None if found is None else crawl_of(found)
    if owner is None:
        remedy = "Import that file."
    elif owner not in crawls or crawls[owner].state == "canceled":
        remedy = f"`check {owner} --repair` adds the crawl {owner}; then commit it."
    elif crawls[owner].state == "uncommitted":
        remedy = f"The crawl {owner} has the originals: commit it, `commit {owner}`."
    else:
        remedy = f"The crawl {owner} has the originals: `check {owner} --repair` adds them."
    refer, what = ("refers", "a record") if count == 1 else ("refer", "records")
    revisits = number_of(count, "revisit")
    return (
        f"{revisits} of the crawl {crawl} {refer} to {what} in {file} that the index does not have. {remedy}"
    )
