"""Imports what was recorded elsewhere: WACZ files, WARC files and CDXJ.

Sources go into a queue in the index and are then claimed one after the other, by as many processes as there are. Each
is read as a whole before anything of it is entered, and is found by others when all of it is. So a source that is
broken leaves nothing behind, one that was cut off is begun anew by the next import, and nothing is counted twice.

A source that cannot be imported does not stop the others. A store that is away does, and the queue keeps what is not
done.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
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

from .known_sources import KnownSources
from .purging import missing_crawls, purge_crawls
from .source_entry import EntryOptions, enter_source
from .sources import FailedSource, find_sources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.stores.base import Source

    from .index import CrawlIndex
    from .sources import FoundSources

LEASE_S = 120.0
"""How long a source stays claimed by a process that gives no sign of life."""

_POLL_S = 0.25
_MAX_SENTENCES = 1_000
_SHOWN = 3
_LOST = (
    "It is not in the queue any more: another process has tried in vain to import it, or the index has lost it, since"
    " somebody has emptied it meanwhile. Import it again."
)


class ImportStopped(Exception):
    """What a watch raises when the user wants the import to stop."""


class ImportObserver(Protocol):
    """Who looks on."""

    def check(self) -> None:
        """Called often, at moments when the import may be left; raises :class:`ImportStopped` if it is to be."""

    def show(self, done: float, total: int) -> None:
        """So many sources of *total* are done; *done* has fractions."""

    def tell(self, sentence: str) -> None:
        """Something that takes a while is waited for."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """``crawl`` is the id for what no manifest gives one. ``payload`` is that of all sources, None for what they say
    themselves or, if they do not, for that of the index, or of ``new_payload`` if the index has no crawls yet.
    ``allow_outside``: manifests may name files that are not below their folder. ``verify``: hashes are compared.
    ``remove``: committed crawls that no source names are purged, with ``force`` also if kept ones need them.
    """

    crawl: str | None = None
    payload: str | None = None
    new_payload: str = "stored"
    allow_outside: bool = False
    verify: bool = False
    remove: bool = False
    force: bool = False
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did.

    ``imported`` and ``known`` are names of sources. ``skipped`` counts lines and records that were passed over, and
    ``faults`` says which, up to a thousand. ``absent`` says which CDXJ name WARC files that are not there. ``captures``
    and ``revisits`` were counted; ``originals`` may serve as originals, as far as no other record of the index has the
    same payload. ``waiting`` payloads, of all crawls, are named by revisits and not in the index. ``claimed`` sources
    are left to other processes. ``missing`` are committed crawls that no source of the manifests belongs to,
    ``removed`` those of them that were purged; ``not_removed`` says in sentences why none was, though it was wanted.
    """

    imported: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    failed: tuple[FailedSource, ...] = ()
    skipped: int = 0
    faults: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    captures: int = 0
    originals: int = 0
    revisits: int = 0
    waiting: int = 0
    claimed: int = 0
    missing: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_removed: str | None = None


def import_sources(
    index: CrawlIndex, words: Sequence[str], options: ImportOptions, watch: ImportObserver
) -> ImportResult:
    """Import what paths, patterns, folders and URLs stand for, and all else that is in the queue.

    Raises :class:`~scrapy_dedupe.errors.UsageError` for a word without a file, before anything is done;
    :class:`~scrapy_dedupe.errors.StoreError` if the store is away, or if the payload mode of every source is
    refused; and what the watch raises.
    """
    found = find_sources(words, crawl=options.crawl, allow_outside=options.allow_outside, check=watch.check)
    run = _Import(index, options, watch)
    try:
        run.take_up_unfinished()
        run.queue(found)
        run.work()
        index.resolve()
        run.look_after_others()
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"{error} The sources that are not done stay in the queue; import, without a source, goes on with them."
        ) from error
    return run.finish(found)


@dataclass(slots=True)
class _Import:
    """One call. ``crawls`` are those of its sources, ``taken`` names sources that others have taken over, ``wanted`` are
    those that it has put into the queue and has not come to yet, ``single`` names those that are all that their crawl gets.
    """

    index: CrawlIndex
    options: ImportOptions
    watch: ImportObserver
    imported: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    failed: list[FailedSource] = field(default_factory=list)
    refused: list[StoreRefused] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    skipped: int = 0
    captures: int = 0
    originals: int = 0
    revisits: int = 0
    claimed: int = 0
    taken: set[str] = field(default_factory=set)
    crawls: set[str] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    wanted: dict[str, Source] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    done: int = 0

    def take_up_unfinished(self) -> None:
        """See that what was cut off is in the queue.

        What is not there any more is dropped when it is claimed, and not before: another process may be at it, on a
        machine that has the file.
        """
        self.index.queue_sources(self.index.unfinished_sources())

    def queue(self, found: FoundSources) -> None:
        """Put sources into the queue, those apart that are known."""
        self.failed.extend(found.failed)
        names = [source.name for source in found.sources]
        done = self.index.done_sources(names)
        new = [source for source, is_done in zip(found.sources, done, strict=True) if not is_done]
        if any(done):
            old = [source for source, is_done in zip(found.sources, done, strict=True) if is_done]
            self._sort_out(old)
        if not any(self.index.queue_length()):
            counts = Counter(source.crawl for source in new)
            self.single = {source.name for source in new if counts[source.crawl] == 1}
        self.index.queue_sources(new)
        self.wanted = {source.name: source for source in new}

    def _sort_out(self, sources: Sequence[Source]) -> None:
        """Tell what is known from what has the name of something else."""
        known = KnownSources(self.index)
        for source in sources:
            self.watch.check()
            self.crawls.update(known.owners(source))
            reason = known.difference(source, verify=self.options.verify, alive=self.watch.check)
            if reason is None:
                self.known.append(source.name)
            else:
                self.failed.append(FailedSource(shown(source.place), reason))

    def work(self) -> None:
        """Import all that is in the queue, whoever has put it there."""
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
            self.claimed = sum(self.index.queue_length())
            if not self.claimed:
                break
            if deadline is None:
                # A process that was killed has not given back what it had claimed.
                deadline = time.monotonic() + self.options.lease_s + 2 * _POLL_S
                self.watch.tell(
                    f"{_sources(self.claimed)} claimed by another process, or by one that was killed; waiting at most"
                    f" {self.options.lease_s:.0f} s."
                )
            elif time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)

    def _import(self, source: Source, total: int) -> None:
        self._compare_with_wanted(source)
        self.crawls.add(source.crawl)
        try:
            self._enter(source, total)
        except TakenOver:
            # Nothing of it is to be dropped or given back: it belongs to the other process.
            self.taken.add(source.name)
            self.watch.tell(f"{shown(source.place)} is left to another process, which has taken it over.")

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

        def on_fault(sentence: str) -> None:
            faults.add(f"{shown(source.place)}: {sentence}")

        faults = _Faults()
        try:
            entered = enter_source(
                self.index,
                source,
                EntryOptions(
                    self.options.payload, self._mode, self.options.verify, source.name in self.single
                ),
                alive=alive,
                on_fault=on_fault,
            )
        except ImportStopped:
            with suppress(TakenOver):
                # The next import need not wait for the lease.
                self.index.renew_lease(source, 0.001)
            raise
        except (StoreUnavailable, TakenOver):
            raise
        except DedupeError as error:
            if isinstance(error, CrawlStateError) and self.index.done_sources([source.name])[0]:
                # Another process has ended it before it was begun here.
                raise TakenOver(str(error)) from error
            self._forget(source)
            if isinstance(error, StoreRefused):
                self.refused.append(error)
            self.failed.append(FailedSource(shown(source.place), str(error)))
            return
        if entered is None:
            self._forget(source)
            self.known.append(source.name)
            return
        self.imported.append(source.name)
        self.taken.discard(source.name)
        self.skipped += faults.count
        self.faults.extend(faults.sentences[: _MAX_SENTENCES - len(self.faults)])
        self.captures += entered.counts.total_urls
        self.revisits += entered.counts.dupe_urls
        self.originals += entered.originals
        if entered.absent:
            self.absent.append(_absence(source, entered.absent))

    def _compare_with_wanted(self, source: Source) -> None:
        wanted = self.wanted.pop(source.name, source)
        if wanted.crawl != source.crawl:
            reason = (
                f"It is in the queue since an earlier import, for the crawl {source.crawl} and not for {wanted.crawl}; so"
                " it was taken for that one."
            )
            self.failed.append(FailedSource(shown(wanted.place), reason))

    def look_after_others(self) -> None:
        """Tell what became of sources that this call has put into the queue and did not get from it."""
        names = [*self.wanted, *self.taken]
        done = {name for name, is_done in zip(names, self.index.done_sources(names), strict=True) if is_done}
        others = [source for name, source in self.wanted.items() if name in done]
        if others:
            self._sort_out(others)
        if self.claimed:
            # The others may be among those.
            return
        for name in names:
            if name not in done:
                self.failed.append(FailedSource(shown(name), _LOST))
                self.taken.discard(name)

    def _mode(self) -> str:
        """How the index hashes."""
        crawls = (info for info in self.index.crawls() if info.state != "canceled")
        return next((info.payload for info in crawls), self.options.new_payload)

    def _forget(self, source: Source) -> None:
        self.index.drop_source(source)
        self.index.release_source(source)

    def _note_progress(self, total: int) -> None:
        self.watch.show(self.done, total)
        # What other processes have done meanwhile is gone from the queue, too.
        share = 1.0 - sum(self.index.queue_length()) / total
        self.index.note_imports(replace(self.index.import_notes, progress=max(0.0, share)))

    def finish(self, found: FoundSources) -> ImportResult:
        """Note the end, and remove what is to be removed; the result."""
        if self.refused and not self.imported and not self.known and len(self.refused) == len(self.failed):
            raise StoreRefused(str(self.refused[0]))
        missing, removed, not_removed = self._removal(found)
        return ImportResult(
            imported=tuple(self.imported),
            known=tuple(self.known),
            failed=tuple(self.failed),
            skipped=self.skipped,
            faults=tuple(self.faults),
            absent=tuple(self.absent),
            captures=self.captures,
            originals=self.originals,
            revisits=self.revisits,
            waiting=sum(info.waiting for info in self.index.crawls()),
            claimed=max(self.claimed, len(self.taken)),
            missing=tuple(missing),
            removed=tuple(removed),
            not_removed=not_removed,
        )

    def _removal(self, found: FoundSources) -> tuple[list[str], list[str], str | None]:
        notes = replace(self.index.import_notes, finished=utc_now())
        if not self.claimed:
            notes = replace(notes, progress=1.0)
        missing, removed, refusal = [], [], _doubt(found)
        if refusal is None:
            try:
                # What others have put into the queue is kept too, and whatever a source that failed may belong to.
                missing = [
                    crawl for crawl in missing_crawls(self.index, found.listed) if crawl not in self.crawls
                ]
            except CrawlStateError as error:
                refusal = f"Nothing was removed. {error}"
        if refusal is None and missing and self.options.remove:
            try:
                removed = purge_crawls(self.index, missing, force=self.options.force)
            except CrawlStateError as error:
                refusal = str(error)
        if missing or refusal is None:
            left = [
                info.counts.total_crawl_size
                for info in self.index.crawls()
                if info.id in missing and info.id not in removed
            ]
            notes = replace(notes, removed_crawls=len(left), removed_size=sum(left))
        self.index.note_imports(notes)
        return missing, removed, refusal if self.options.remove else None


def _doubt(found: FoundSources) -> str | None:
    """Why nobody can say which crawls are missing."""
    if found.doubts:
        return (
            "Nothing was removed: a manifest has a fault, so nobody knows which crawls are missing from it"
            f" ({found.doubts[0].rstrip('.')})."
        )
    if not found.has_manifest:
        return "Nothing was removed: no manifest was given, which alone says which crawls there are to be."
    return None


class _Faults:
    """Sentences of which the first ones are kept, each once: records that share their place share their fault."""

    def __init__(self) -> None:
        self.count = 0
        self.sentences: list[str] = []

    def add(self, sentence: str) -> None:
        self.count += 1
        if len(self.sentences) < _MAX_SENTENCES and sentence not in self.sentences[-1:]:
            self.sentences.append(sentence)


def _absence(source: Source, absent: Sequence[str]) -> str:
    more = len(absent) - _SHOWN
    names = ", ".join(absent[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{shown(source.place)} names WARC files that are not there, so no crawl can refer to what they hold: {names}."
        " Put them there."
    )


def _sources(count: int) -> str:
    return "1 source is" if count == 1 else f"{count} sources are"
