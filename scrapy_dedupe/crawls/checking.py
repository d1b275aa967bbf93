"""Compares the crawl index with its files.

The check verifies that every entry with a known file names a ``response`` record with its payload digest, URI, date
and length; that every revisit in the files has an original; that counts equal a recount; that crawls have what they
need; and that the merged index equals the entries of the crawls. A note, which is not a finding, reports what could not
be checked.

Files are read sequentially, once. Memory is bounded, except for the findings.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, DedupeError
from scrapy_dedupe.stores.crawl_index import REPAIR_SUFFIX, did_you_mean
from scrapy_dedupe.tasks.progress import NO_PROGRESS, counted, part
from scrapy_dedupe.warc.remote import place_file

from .comparison import CrawlComparison, IndexFinding, UnresolvedRevisits, missing_needs, number_of
from .crawl_files import WACZ_SUFFIX, CrawlFiles, FileSearch, sha256_of, size_of, sizes_of, strays_by_crawl
from .dependencies import Dependencies
from .entries import EntryRules
from .rebuilding import refuse_running
from .sorted_entries import SortedEntries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import Counts, CrawlInfo
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress

    from .comparison import Thoroughness
    from .entries import RevisitRules


@dataclass(slots=True)
class CheckedCrawl:
    """A crawl that was checked, and its files. ``info`` is None for a crawl that is not in the index.

    ``entries`` maps each file to its number of entries; ``unplaced`` counts entries without a location whose record is
    in none of the files. ``has_all_files``: all files that may hold records of the crawl are available.
    """

    id: str
    info: CrawlInfo | None
    files: CrawlFiles
    entries: dict[str, int] = field(default_factory=dict)
    unplaced: int = 0
    has_all_files: bool = False

    @property
    def is_foreign(self) -> bool:
        """See :attr:`.CrawlInfo.is_foreign`."""
        return self.info is not None and self.info.is_foreign


@dataclass(slots=True)
class Check:
    """The result of a check. ``records`` were read in ``seconds``; ``passed_over`` lists running crawls."""

    findings: list[IndexFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    crawls: list[CheckedCrawl] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    records: int = 0
    files: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks an index. ``folders`` are searched for files that are not where the index says.

    ``rules`` apply to crawls of this package; ``wacz_folder`` is the folder of WACZ files.
    """

    index: CrawlIndex
    rules: RevisitRules
    folders: Sequence[Path]
    wacz_folder: Path | None
    thoroughness: Thoroughness
    watch: Progress = NO_PROGRESS

    def check(self, crawls: Sequence[str] = ()) -> Check:
        """Check some crawls, or all, and the index as a whole.

        Raises :class:`~scrapy_dedupe.errors.StoreError`, and :class:`~scrapy_dedupe.errors.CrawlStateError` for a crawl
        that is neither in the index nor in a file.
        """
        began = time.monotonic()
        before = self.index.unreadable
        known = {info.id: info for info in self.index.crawls()}
        unreadable = self.index.unreadable - before
        strays = strays_by_crawl(self.folders)
        for crawl in crawls:
            if crawl not in known and crawl not in strays:
                places = ", ".join(str(folder) for folder in self.folders) or "any folder"
                raise CrawlStateError(
                    f"The crawl {crawl} is unknown: it is neither in the index nor in {places}. `scrapy dedupe crawls`"
                    f" lists the crawls in the index; --warc-dir names another folder.{did_you_mean(crawl, known)}"
                )
        with closing(SortedEntries()) as ledger:
            run = _CheckRun(self, strays, ledger)
            chosen = [info for info in known.values() if not crawls or info.id in crawls]
            with part(self.watch, "check", len(chosen), "crawls"):
                for info in counted(chosen, self.watch):
                    if info.state != "canceled":
                        run.check_crawl(info)
            run.check_unknown([crawl for crawl in strays if crawl not in known], crawls, is_empty=not known)
            run.check_revisits()
        if unreadable:
            text = f"{number_of(unreadable, 'value')} of the list of crawls cannot be read."
            run.add("unreadable", None, text)
        with part(self.watch, "merged index", 0):
            run.check_whole()
        run.result.seconds = time.monotonic() - began
        return run.result


@dataclass(eq=False)
class _CheckRun:
    """One check."""

    checker: Checker
    strays: dict[str, list[Path]]
    ledger: SortedEntries
    result: Check = field(default_factory=Check)

    def __post_init__(self) -> None:
        self._index = self.checker.index
        self._watch = self.checker.watch
        self._dependencies = Dependencies(self._index, self.checker.wacz_folder)
        self._owners = {
            name: info.id.removesuffix(REPAIR_SUFFIX)
            for info in self._dependencies.crawls.values()
            for name in info.files
        }
        self._unresolved = UnresolvedRevisits(self._index, self.ledger, self.checker.folders)

    def check_crawl(self, info: CrawlInfo) -> None:
        crawl = info.id
        if crawl.endswith(REPAIR_SUFFIX):
            text = f"The repair of {crawl.removesuffix(REPAIR_SUFFIX)} was interrupted. Use --repair again."
            self.add("unfinished", crawl, text)
            return
        if info.imported and info.state == "uncommitted":
            return  # reported with its unfinished import
        if info.state == "uncommitted" and self._is_running(crawl):
            self.result.passed_over.append(crawl)
            return
        self._take_entries(crawl)
        containers = self._index.containers(crawl)
        search = FileSearch(info, self.checker.folders, self.ledger, containers, self._owners)
        files = search.files(self._strays_of(info))
        checked = CheckedCrawl(crawl, info, files)
        self.result.crawls.append(checked)
        if info.incomplete:
            text = f"Not all records of the crawl {crawl} are in the index. `commit {crawl}` or --repair adds them."
            self.add("incomplete", crawl, text)
            return
        checked.entries = self.ledger.counts_by_file()
        checked.unplaced = self.ledger.count_unplaced()
        checked.has_all_files = self._has_all_files(checked, info)
        self._check_emptiness(checked, info)
        self._check_files(checked)
        revisit_rules = None if checked.is_foreign else self.checker.rules
        comparison = CrawlComparison(
            self._index,
            EntryRules(crawl, revisits=revisit_rules, known=self.ledger, has_urls=False),
            self.ledger,
            self.result.findings.append,
            has_payloads=self.checker.thoroughness.has_payloads,
            watch=self._watch,
        )
        if self.checker.thoroughness.sample is not None:
            drawn = self.ledger.sample(self.checker.thoroughness.sample, self.checker.thoroughness.seed)
            with part(self._watch, crawl, len(drawn), "records"):
                comparison.compare_some(drawn, files.present)
        else:
            self._compare(checked, info, comparison)
        self.result.records += comparison.records
        self.result.findings += missing_needs(crawl, self._dependencies.needs(crawl))
        self._check_containers(crawl)

    def check_unknown(self, strays: Sequence[str], asked: Sequence[str], *, is_empty: bool) -> None:
        """Report crawls that are not in the index. They may have been purged, so not all of them are findings."""
        for crawl in strays:
            if self._is_running(crawl):
                self.result.passed_over.append(crawl)
                continue
            paths = self.strays[crawl]
            text = f"The index does not know the crawl {crawl}, but there is {_files_text(paths)}."
            if crawl in asked or (is_empty and not asked):
                files = CrawlFiles(present={str(path): path for path in paths}, unnamed=list(map(str, paths)))
                self.result.crawls.append(CheckedCrawl(crawl, None, files))
                self.add("lost", crawl, text, str(paths[0]))
            elif not asked:
                self.result.notes.append(
                    f"{text} If it was not removed on purpose, `check {crawl} --repair` adds it."
                )

    def check_revisits(self) -> None:
        """Report revisits whose originals are not in the index, unless another finding already does."""
        self.result.findings += self._unresolved.findings(self._dependencies.crawls)
        reported = {
            found.crawl for found in self.result.findings if found.kind in ("revisit", "waiting", "missing")
        }
        if self.checker.thoroughness.sample is not None:
            return
        for info in (checked.info for checked in self.result.crawls):
            if info is not None and info.waiting and info.id not in reported:
                text = (
                    f"Revisits of the crawl {info.id} wait for {number_of(info.waiting, 'payload')} whose originals are not"
                    " in the index. Import or commit the crawls that have them."
                )
                self.result.notes.append(text)

    def check_whole(self) -> None:
        """Check the index as a whole."""
        faults = self._index.merged_faults()
        if faults:
            text = f"The merged index differs in {number_of(faults, 'place')} from what the committed crawls hold."
            self.add("merged", None, text)
        for source in self._index.unfinished_sources():
            text = (
                f"The import of {source.place} into the crawl {source.crawl} is running or was interrupted. Import it"
                " again to complete it."
            )
            self.add("unfinished", source.crawl, text)
        purged = self._index.unfinished_purge()
        if purged:
            text = f"The removal of {', '.join(purged)} was interrupted. Purge them again, or use --repair."
            self.add("unfinished", None, text)

    def add(
        self, kind: str, crawl: str | None, text: str, file: str | None = None, offset: int | None = None
    ) -> None:
        """Report a finding."""
        self.result.findings.append(IndexFinding(kind, crawl, text, file, offset))

    def _take_entries(self, crawl: str) -> None:
        before = self._index.unreadable
        with part(self._watch, f"entries of {crawl}", 0, "entries"):
            self.ledger.take(counted(self._index.records(crawl), self._watch))
        self._index.needs(crawl)
        count = self._index.unreadable - before
        if count:
            self.add("unreadable", crawl, f"{number_of(count, 'value')} of the crawl {crawl} cannot be read.")

    def _check_emptiness(self, checked: CheckedCrawl, info: CrawlInfo) -> None:
        has_entries = checked.unplaced or checked.entries
        if info.state != "committed" or info.files or has_entries or info.counts.total_urls:
            return
        text = f"The crawl {info.id} is committed, and the index has no file and no record of it."
        if info.imported:
            text += " When its files are available, purge it and import them again."
            self.add("empty", info.id, text)
        else:
            # A crawl that got no page can still end successfully.
            self.result.notes.append(text)

    def _compare(self, checked: CheckedCrawl, info: CrawlInfo, comparison: CrawlComparison) -> None:
        with part(self._watch, checked.id, sizes_of(checked.files.present.values())):
            for name, file in checked.files.present.items():
                comparison.read(name, file)
                self._unresolved.read |= {name, str(file)}
        comparison.look_up_revisits()
        self.result.files += len(checked.files.present)
        self._unresolved.revisits += comparison.unmet
        checked.unplaced = self.ledger.count_unplaced()
        for entry in self.ledger.unplaced() if checked.has_all_files else ():
            text = (
                f"The entry of {entry.url} has no file, and no file of the crawl {checked.id} has its record."
            )
            self.add("entry", checked.id, text)
        for other in sorted(comparison.needed - {need.crawl for need in self._index.needs(checked.id)}):
            text = f"Revisits of the crawl {checked.id} refer to records of {other}, which is missing from its needs."
            self.add("needs", checked.id, text)
        obstacle = _why_not_counted(checked, info)
        if obstacle is None:
            self._check_counts(checked, info, comparison)
        elif obstacle:
            self.result.notes.append(obstacle)

    def _check_counts(self, checked: CheckedCrawl, info: CrawlInfo, recount: CrawlComparison) -> None:
        known = info.counts.total_crawl_size
        made = replace(recount.counts, total_crawl_size=crawl_size(self._index, checked, known, known))
        if not recount.is_exact:
            made = replace(made, conserved_size=info.counts.conserved_size)
        if made != info.counts:
            text = (
                f"The counts of the crawl {checked.id} are {_counts_text(info.counts)}, a recount gives"
                f" {_counts_text(made)}."
            )
            self.add("counts", checked.id, text)

    def _has_all_files(self, checked: CheckedCrawl, info: CrawlInfo) -> bool:
        """Whether every record of a crawl must be in its files, so that an entry without a record is wrong.

        A crawl of this package registers each file before its first record, and an import registers all of its files.
        Another program registers none; what it adds to an imported crawl is in containers without files.
        """
        files = checked.files
        if files.gone or files.unreachable:
            return False
        if not checked.is_foreign:
            return True
        packed = {name.partition(f"{WACZ_SUFFIX}/")[0] for name in files.present if f"{WACZ_SUFFIX}/" in name}
        return info.software is not None and len(packed) >= len(self._index.containers(checked.id))

    def _strays_of(self, info: CrawlInfo) -> list[Path]:
        """The files in the folders whose warcinfo names a crawl; of an imported crawl, only the imported ones."""
        strays = self.strays.get(info.id, [])
        if not info.imported:
            return strays
        return list(compress(strays, self._index.done_sources([str(path) for path in strays])))

    def _check_files(self, checked: CheckedCrawl) -> None:
        crawl, files = checked.id, checked.files
        for name in files.gone:
            count = checked.entries.get(name, 0)
            entries = number_of(count, "entry", "entries") if count else "no entries"
            text = f"{name} is gone; {entries} of the crawl {crawl} {'names' if count == 1 else 'name'} it."
            self.add("file", crawl, text, name)
        for name, reason in files.unreachable.items():
            self.add("file", crawl, f"A file of the crawl {crawl} cannot be reached. {reason}", name)
        for name, now in files.moved.items():
            self.add("file", crawl, f"{name} is not where the index says, but is now {now}.", name)
        for name in files.unnamed:
            self.add(
                "file", crawl, f"{name} is part of the crawl {crawl}, but the index does not name it.", name
            )
        for name in files.unfinished:
            text = f"{name} of the crawl {crawl} has not got its final name. `warc salvage` recovers it."
            self.add("file", crawl, text, name)

    def _check_containers(self, crawl: str) -> None:
        unreadable = sum(not container.get("filename") for container in self._index.containers(crawl))
        if unreadable:
            self.add(
                "container", crawl, f"{unreadable} entries of WACZ files of the crawl {crawl} cannot be read."
            )
        for container in self._dependencies.containers(crawl):
            if container.place is None or not container.is_present:
                if container.hash or container.size is not None:
                    self.result.notes.append(f"{container.filename} of the crawl {crawl} was not found.")
                continue
            digest = container.hash if self.checker.thoroughness.has_payloads else None
            fault = _container_fault(container.place, container.size, digest, self._watch)
            if fault:
                text = f"{container.place} of the crawl {crawl} {fault}."
                self.add("container", crawl, text, container.place)

    def _is_running(self, crawl: str) -> bool:
        try:
            for folder in self.checker.folders:
                refuse_running(self._index, crawl, folder)
        except CrawlStateError:
            return True
        return False


def _container_fault(place: str, size: int | None, digest: str | None, watch: Progress) -> str | None:
    """The fault of the container at a path or URL, as the end of a sentence; None if it has none.

    ``size`` is in bytes, ``digest`` a SHA-256 in bare hex; None skips the comparison.
    """
    try:
        file = place_file(place)
        found = size_of(file)
        if size is not None and found != size:
            return f"has {found} bytes, the index says {size}"
        if digest is not None:
            with part(watch, PurePosixPath(place).name, found):
                made, _ = sha256_of(file, watch.advance)
            if made != digest:
                return f"has the SHA-256 {made}, the index says {digest}"
    except (OSError, DedupeError) as error:
        return f"cannot be read: {error}"
    return None


def _why_not_counted(checked: CheckedCrawl, info: CrawlInfo) -> str | None:
    """Why the records of a crawl cannot be counted; empty if a finding already reports it."""
    if checked.unplaced and not checked.has_all_files:
        entries = number_of(checked.unplaced, "entry", "entries")
        return (
            f"The index does not know where the records of {entries} of the crawl {checked.id}"
            f" {'is' if checked.unplaced == 1 else 'are'}, which another program wrote."
        )
    if checked.files.gone or checked.files.unreachable:
        return ""
    if not checked.files.present and checked.is_foreign and info.counts.total_urls:
        return f"The index does not know the files of the crawl {checked.id}, which another program wrote."
    return None


def crawl_size(index: CrawlIndex, checked: CheckedCrawl, known: int, otherwise: int) -> int:
    """The size of a crawl on disk: *known* if its files may have this size, *otherwise* if their size is unknown.

    This is the size of its WACZ files, or of its WARC files if there are no WACZ files or the crawl was packed after
    its commit. An imported CDXJ counts only the records that it names, so the size of such a crawl is unknown.
    """
    sizes = [container.get("size") for container in index.containers(checked.id)]
    packed = sum(size for size in sizes if isinstance(size, int))
    present = checked.files.present
    possible = [packed]
    if not checked.is_foreign:
        files = sum(size_of(file) for file in present.values())
        possible = [packed, files] if packed else [files]
    elif None in sizes or not all(f"{WACZ_SUFFIX}/" in name for name in present):
        return otherwise
    return known if known in possible else possible[0]


def _counts_text(counts: Counts) -> str:
    return (
        f"{counts.total_urls} responses, {counts.dupe_urls} duplicates, {counts.conserved_size} bytes saved and"
        f" {counts.total_crawl_size} on disk"
    )


def _files_text(paths: Sequence[Path]) -> str:
    others = len(paths) - 1
    if not others:
        return str(paths[0])
    return f"{paths[0]} and {'another file' if others == 1 else f'{others} other files'}"
