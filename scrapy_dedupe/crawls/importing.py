"""Imports archives of other crawls: WACZ files, WARC files and CDXJ.

Sources are added to a queue in the index and then claimed one after the other, by any number of processes. Each source
is read completely before its first record is added, and other crawls find its records only when all are added. So a
broken source leaves nothing in the index, an interrupted one is started again by the next import, and nothing is
counted twice.

A source that cannot be imported does not stop the others. An unavailable store stops the import, and the queue keeps
the remaining sources.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Protocol

from scrapy_dedupe.errors import (
    CrawlStateError,
    DedupeError,
    StoreRefused,
    StoreUnavailable,
    TakenOver,
)
from scrapy_dedupe.stores.index_values import utc_now
from scrapy_dedupe.warc.remote import shown

from .purging import missing_crawls, purge_crawls
from .source_entry import MAX_FAULTS, SourceEntry
from .sources import FailedSource, KnownSources, find_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.stores.base import Source
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

    from .sources import FoundSources

LEASE_S = 120.0
"""How long a source stays claimed by a process that does not renew its claim."""

_POLL_S = 0.25
_SHOWN = 3
_LOST = (
    "It is no longer in the queue: another process has failed to import it, or the index has lost it because it was"
    " emptied in the meantime. Import it again."
)


class ImportStopped(Exception):
    """Raised by an observer when the user wants the import to stop."""


class ImportObserver(Protocol):
    """Observes an import."""

    def check(self) -> None:
        """Called often, whenever the import may be stopped; raises :class:`ImportStopped` to stop it."""

    def show(self, done: float, total: int) -> None:
        """Called with the progress: *done* of *total* sources; *done* has fractions."""

    def tell(self, sentence: str) -> None:
        """Called with a message, for example when the import has to wait."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``crawl`` is the id for sources without one in a manifest. ``payload`` is the mode of all sources. If it is None,
    the mode is that of the source's metadata, else that of the index, else ``new_payload`` (an index without crawls).
    ``digest`` is the algorithm with which crawls look up payloads.
    ``allow_outside``: manifests may name files that are not below their folder. ``verify``: hashes are compared.
    ``remove``: committed crawls that no source names are purged, with ``force`` even if remaining crawls need them.
    """

    crawl: str | None = None
    payload: str | None = None
    new_payload: str = "stored"
    digest: str = "sha256"
    allow_outside: bool = False
    verify: bool = False
    remove: bool = False
    force: bool = False
    lease_s: float = LEASE_S


@dataclass(slots=True)
class ImportResult:
    """The result of an import.

    ``imported`` and ``known`` are names of sources. ``skipped`` counts skipped lines and records, and ``faults`` lists
    up to a thousand of them. ``absent`` lists CDXJ that name missing WARC files. ``captures`` and ``revisits`` are
    counts; ``originals`` counts possible originals, unless another record of the index has the same payload.
    ``other_digests`` counts those that crawls cannot find, by the algorithm of their digests.
    ``waiting`` counts the payloads, of all crawls, that revisits refer to and that are not in the index. ``claimed``
    counts the sources left to other processes. ``missing`` are committed crawls without a source in the manifests,
    ``removed`` the purged ones; ``not_removed`` explains why none was purged although requested.
    """

    imported: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    failed: list[FailedSource] = field(default_factory=list)
    skipped: int = 0
    faults: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    captures: int = 0
    originals: int = 0
    other_digests: dict[str, int] = field(default_factory=dict)
    revisits: int = 0
    waiting: int = 0
    claimed: int = 0
    missing: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    not_removed: str | None = None


def import_sources(
    index: CrawlIndex, words: Sequence[str], options: ImportOptions, watch: ImportObserver
) -> ImportResult:
    """Import the given paths, patterns, folders and URLs, and all other sources in the queue.

    Raises :class:`~scrapy_dedupe.errors.UsageError` for a word without a file, before anything is changed;
    :class:`~scrapy_dedupe.errors.StoreError` if the store is unavailable, or if the payload mode of every source is
    refused; and what the observer raises.
    """
    found = find_sources(words, crawl=options.crawl, allow_outside=options.allow_outside, check=watch.check)
    run = _Import(index, options, watch)
    try:
        # Queue interrupted sources again. A missing source is dropped only when it is claimed: another process may be
        # importing it, on a machine that has the file.
        index.queue_sources(index.unfinished_sources())
        run.queue(found)
        run.work()
        index.resolve()
        run.look_after_others()
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} The remaining sources stay in the queue; import, without a source, continues with them."
        ) from error
    return run.finish(found)


@dataclass(slots=True)
class _Import:
    """One call. ``crawls`` are the crawls of its sources; ``taken`` names sources that other processes have taken over;
    ``wanted`` are the sources that it has queued and not processed yet; ``single`` names sources that are the only
    source of their crawl; ``refused`` are the refusals by the store among the failures.
    """

    index: CrawlIndex
    options: ImportOptions
    watch: ImportObserver
    result: ImportResult = field(default_factory=ImportResult)
    refused: list[StoreRefused] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    crawls: set[str] = field(default_factory=set)
    wanted: dict[str, Source] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    done: int = 0

    def queue(self, found: FoundSources) -> None:
        """Put the sources that are not known yet into the queue."""
        self.result.failed.extend(found.failed)
        names = [source.name for source in found.sources]
        done = set(compress(names, self.index.done_sources(names)))
        self._sort_out([source for source in found.sources if source.name in done])
        new = [source for source in found.sources if source.name not in done]
        if not any(self.index.queue_length()):
            counts = Counter(source.crawl for source in new)
            self.single = {source.name for source in new if counts[source.crawl] == 1}
        self.index.queue_sources(new)
        self.wanted = {source.name: source for source in new}

    def _sort_out(self, sources: Sequence[Source]) -> None:
        """Separate known sources from other files with the same name."""
        if not sources:
            return
        known = KnownSources(self.index)
        for source in sources:
            self.watch.check()
            self.crawls.update(known.owners(source))
            reason = known.difference(source, verify=self.options.verify, alive=self.watch.check)
            if reason is None:
                self.result.known.append(source.name)
            else:
                self._fail(source.place, reason)

    def work(self) -> None:
        """Import all sources in the queue, including those of other processes."""
        deadline: float | None = None
        total = sum(self.index.queue_length())
        while True:
            self.watch.check()
            source = self.index.claim_source(self.options.lease_s)
            if source is not None:
                deadline = None
                total = max(total, self.done + sum(self.index.queue_length()))
                self._import(source, total)
                self.done += 1
                self._note_progress(total)
                continue
            self.result.claimed = sum(self.index.queue_length())
            if not self.result.claimed:
                break
            if deadline is None:
                # A killed process did not release its claims.
                deadline = time.monotonic() + self.options.lease_s + 2 * _POLL_S
                self.watch.tell(
                    f"{_sources(self.result.claimed)} claimed by another process, or by one that was killed; waiting at most"
                    f" {self.options.lease_s:.0f} s."
                )
            elif time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)

    def _import(self, source: Source, total: int) -> None:
        wanted = self.wanted.pop(source.name, source)
        if wanted.crawl != source.crawl:
            reason = (
                f"An earlier import has queued it for the crawl {source.crawl}, not for {wanted.crawl}, so it was imported"
                f" into {source.crawl}."
            )
            self._fail(wanted.place, reason)
        self.crawls.add(source.crawl)
        try:
            self._enter(source, total)
        except TakenOver:
            # Neither drop nor release the source: it belongs to the other process.
            self.taken.add(source.name)
            self.watch.tell(f"{shown(source.place)} was taken over by another process and is left to it.")

    def _enter(self, source: Source, total: int) -> None:
        renewed = time.monotonic()

        def alive(share: float | None = None) -> None:
            nonlocal renewed
            self.watch.check()
            if share is not None:
                self.watch.show(self.done + share, total)
            if time.monotonic() - renewed > self.options.lease_s / 4:
                self.index.renew_lease(source, self.options.lease_s)
                renewed = time.monotonic()

        try:
            entry = SourceEntry(
                self.index,
                source,
                payload_of=self._payload_of,
                verify=self.options.verify,
                is_only=source.name in self.single,
                alive=alive,
            )
            counts = entry.enter()
        except ImportStopped:
            with suppress(TakenOver):
                # Release the claim, so that the next import need not wait until it expires.
                self.index.renew_lease(source, 0.001)
            raise
        except (StoreUnavailable, TakenOver):
            raise
        except DedupeError as error:
            if isinstance(error, CrawlStateError) and self.index.done_sources([source.name])[0]:
                # Another process has completed it before it was begun here.
                raise TakenOver(str(error)) from error
            self._forget(source)
            if isinstance(error, StoreRefused):
                self.refused.append(error)
            self._fail(source.place, str(error))
            return
        if counts is None:
            self._forget(source)
            self.result.known.append(source.name)
            return
        result = self.result
        result.imported.append(source.name)
        self.taken.discard(source.name)
        result.skipped += entry.skipped
        faults = entry.faults[: MAX_FAULTS - len(result.faults)]
        result.faults += [f"{shown(source.place)}: {fault}" for fault in faults]
        result.captures += counts.total_urls
        result.revisits += counts.dupe_urls
        result.originals += entry.added
        for algorithm, count in entry.algorithms.items():
            if algorithm != self.options.digest:
                result.other_digests[algorithm] = result.other_digests.get(algorithm, 0) + count
        if entry.absent:
            result.absent.append(_absence(source, entry.absent))

    def look_after_others(self) -> None:
        """Report the fate of sources that this call has queued but not claimed."""
        names = [*self.wanted, *self.taken]
        done = set(compress(names, self.index.done_sources(names)))
        self._sort_out([source for name, source in self.wanted.items() if name in done])
        if self.result.claimed:
            # The remaining names may be among the claimed sources.
            return
        for name in names:
            if name not in done:
                self._fail(name, _LOST)
                self.taken.discard(name)

    def _payload_of(self, own: str | None) -> str:
        """The payload mode of a source whose metadata gives the mode *own*, or none."""
        if payload := self.options.payload or own:
            return payload
        crawls = (info for info in self.index.crawls() if info.state != "canceled")
        return next((info.payload for info in crawls), self.options.new_payload)

    def _fail(self, place: str, reason: str) -> None:
        self.result.failed.append(FailedSource(shown(place), reason))

    def _forget(self, source: Source) -> None:
        self.index.drop_source(source)
        self.index.release_source(source)

    def _note_progress(self, total: int) -> None:
        self.watch.show(self.done, total)
        # Sources that other processes have completed in the meantime are no longer in the queue either.
        share = 1.0 - sum(self.index.queue_length()) / total
        self.index.note_imports(replace(self.index.import_notes, progress=max(0.0, share)))

    def finish(self, found: FoundSources) -> ImportResult:
        """Record the end, purge crawls if requested, and return the result."""
        result = self.result
        is_all_refused = len(self.refused) == len(result.failed) and not (result.imported or result.known)
        if self.refused and is_all_refused:
            raise StoreRefused(str(self.refused[0]))
        self._remove_missing(found)
        result.waiting = sum(info.waiting for info in self.index.crawls())
        result.claimed = max(result.claimed, len(self.taken))
        return result

    def _remove_missing(self, found: FoundSources) -> None:
        """Determine the missing crawls, and purge them if requested."""
        result = self.result
        notes = replace(self.index.import_notes, finished=utc_now())
        if not result.claimed:
            notes = replace(notes, progress=1.0)
        refusal = _doubt(found)
        if refusal is None:
            try:
                missing = missing_crawls(self.index, found.listed)
                # Crawls queued by other processes are kept, and crawls that a failed source may belong to.
                result.missing = [crawl for crawl in missing if crawl not in self.crawls]
            except CrawlStateError as error:
                refusal = f"Nothing was removed. {error}"
        if refusal is None and result.missing and self.options.remove:
            try:
                result.removed = purge_crawls(self.index, result.missing, force=self.options.force)
            except CrawlStateError as error:
                refusal = str(error)
        if result.missing or refusal is None:
            left = set(result.missing) - set(result.removed)
            sizes = [info.counts.total_crawl_size for info in self.index.crawls() if info.id in left]
            notes = replace(notes, removed_crawls=len(sizes), removed_size=sum(sizes))
        self.index.note_imports(notes)
        if self.options.remove:
            result.not_removed = refusal


def _doubt(found: FoundSources) -> str | None:
    """Why the missing crawls cannot be determined."""
    if found.doubts:
        return (
            "Nothing was removed: a manifest has a fault, so it is unknown which crawls are missing from it"
            f" ({found.doubts[0].rstrip('.')})."
        )
    if not found.has_manifest:
        return "Nothing was removed: only a manifest defines which crawls should exist, and none was given."
    return None


def _absence(source: Source, absent: Sequence[str]) -> str:
    more = len(absent) - _SHOWN
    names = ", ".join(absent[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{shown(source.place)} names missing WARC files, so no crawl can refer to their records: {names}."
        " Put them there."
    )


def _sources(count: int) -> str:
    return "1 source is" if count == 1 else f"{count} sources are"
