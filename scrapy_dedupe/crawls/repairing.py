"""Makes the entries of crawls anew from their files, where a check found them wrong.

A crawl that is not committed is read anew in place. One that is committed is built beside itself, under its id with
``~repair`` behind it, and takes the place of the old entries in one step; so others find all of it at every moment.
Built are only entries of files that are there: of a file that is gone nothing may be referred to any more. What its
revisits need stays noted, since it may come back, unless it is to be forgotten. A crawl none
of whose files is there, one of whose files does not answer, or some of whose records nobody knows the place of, is left
as it is unless that is asked for.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DedupeError, StoreUnavailable
from scrapy_dedupe.tasks.progress import counted, part
from scrapy_dedupe.warc.salvage import salvage

from .checking import crawl_sizes
from .findings import REBUILT_KINDS
from .imported_files import enter_imported_files
from .index import REPAIR_SUFFIX
from .payloads import payload_of_files
from .purging import end_unfinished
from .rebuilding import enter_files, settle
from .sorted_entries import SortedEntries

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import CrawlInfo

    from .checking import Check, CheckedCrawl, Checker
    from .index import CrawlIndex

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a crawl, or about the index as a whole, or why nothing was (``is_done`` False)."""

    crawl: str | None
    sentence: str
    is_done: bool = True


def repair(checker: Checker, check: Check, *, forget_missing: bool = False) -> list[Repair]:
    """Mend what *check* found, as far as reading files anew mends it.

    With *forget_missing* entries go whose records cannot be read, even all of a crawl. What is the matter with one
    crawl does not keep the others from it. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """
    index = checker.index
    repairs = [Repair(crawl, f"The removal of {crawl} was ended.") for crawl in end_unfinished(index)]
    repairs += _end_replacements(index)
    wrong: dict[str | None, set[str]] = {}
    for finding in check.findings:
        if finding.kind in REBUILT_KINDS:
            wrong.setdefault(finding.crawl, set()).add(finding.kind)
    chosen = [checked for checked in check.crawls if checked.id in wrong]
    with part(checker.watch, "repair", len(chosen), "crawls"):
        for checked in counted(chosen, checker.watch):
            try:
                repairs.append(
                    _repair_crawl(checker, checked, wrong[checked.id], forget_missing=forget_missing)
                )
            except StoreUnavailable:
                raise
            except (DedupeError, OSError) as error:
                repairs.append(
                    Repair(checked.id, f"The crawl {checked.id} was left as it is: {error}", False)
                )
    with part(checker.watch, "merged index", 0):
        if index.merged_faults():
            index.rebuild_merged()
            repairs.append(Repair(None, "The merged index was made anew."))
        found = index.resolve()
    if found:
        text = "The original of 1 revisit was" if found == 1 else f"The originals of {found} revisits were"
        repairs.append(Repair(None, f"{text} found."))
    return repairs


def _end_replacements(index: CrawlIndex) -> list[Repair]:
    """End or undo what an earlier repair began: one that was built whole takes its place, others are built anew."""
    states = {info.id: info for info in index.crawls()}
    repairs = []
    for info in states.values():
        crawl = info.id.removesuffix(REPAIR_SUFFIX)
        if crawl == info.id or info.state == "canceled":
            continue
        if not info.incomplete and crawl in states and states[crawl].state == "committed":
            try:
                _put_in_place(index, crawl, info.id)
            except CrawlStateError as error:
                repairs.append(Repair(crawl, f"The crawl {crawl} was left as it is: {error}", False))
            else:
                repairs.append(Repair(crawl, f"The repair of the crawl {crawl} that was cut off was ended."))
        else:
            _undo(index, info.id)
            repairs.append(Repair(crawl, f"The repair of the crawl {crawl} that was cut off was undone."))
    return repairs


def _repair_crawl(
    checker: Checker, checked: CheckedCrawl, wrong: set[str], *, forget_missing: bool
) -> Repair:
    index, crawl = checker.index, checked.id
    info = checked.info
    if info is None:
        return _enter_lost(checker, checked)
    if wrong == {"file"} and checked.files.are_only_moved:
        _give_final_names(index, checked)
        return Repair(crawl, f"The index names the files of the crawl {crawl} where they are now.")
    obstacle = _obstacle(checked)
    if obstacle is not None and not forget_missing:
        text = f"The crawl {crawl} was left as it is: {obstacle}. With --forget-missing its entries go all the same."
        return Repair(crawl, text, False)
    _give_final_names(index, checked)
    if info.state == "uncommitted":
        index.mark_incomplete(crawl, True)
        settle(index, crawl, checker.folders[0], checker.rules, checker.watch)
    else:
        _replace(checker, checked, info, forget_missing=forget_missing)
    gone = sum(checked.entries.get(name, 0) for name in (*checked.files.gone, *checked.files.unreachable))
    gone += checked.unplaced
    lost = (
        "" if not gone else f" {gone} {'entry' if gone == 1 else 'entries'} whose records are not there went."
    )
    if checked.is_foreign and checked.files.gone:
        lost += f" When these files are back, purge the crawl {crawl} and import it again."
    return Repair(crawl, f"The entries of the crawl {crawl} were made anew from its files.{lost}")


def _obstacle(checked: CheckedCrawl) -> str | None:
    """Why entries of a crawl should not be made anew: what is not seen now would be forgotten."""
    files = checked.files
    if files.unreachable:
        return f"{next(iter(files.unreachable))} does not answer"
    if checked.unplaced and not checked.has_all_files:
        return f"it is not known where the records of {checked.unplaced} of its entries are"
    if not files.present:
        return "none of its files is there" if files.gone else "it is not known which files it has"
    return None


def _give_final_names(index: CrawlIndex, checked: CheckedCrawl) -> None:
    """Note where files are that were moved, and mend those of a committed crawl that have no final name."""
    files = checked.files
    for name, now in files.moved.items():
        index.rename_file(checked.id, name, now)
        files.present[now] = files.present.pop(name)
        checked.entries[now] = checked.entries.pop(name, 0)
    if checked.info is None or checked.info.state == "uncommitted":
        return
    for name in files.unfinished:
        file = files.present.pop(files.moved.get(name, name))
        if not isinstance(file, Path):
            continue
        salvaged = salvage(file)
        if salvaged is None:
            raise ArchiveError(f"another process writes {file}; wait for its end.")
        path = file.with_name(salvaged.file)
        if path.is_file():
            files.present[str(path)] = path


def _enter_lost(checker: Checker, checked: CheckedCrawl) -> Repair:
    """Enter a crawl that the index has lost; whether it was committed, nobody knows."""
    index, crawl = checker.index, checked.id
    folder = next(path.parent for path in checked.files.present.values() if isinstance(path, Path))
    index.start(crawl, payload_of_files(crawl, folder) or "stored")
    index.mark_incomplete(crawl, True)
    settle(index, crawl, folder, checker.rules, checker.watch)
    text = f"The crawl {crawl} was entered from its files. `commit {crawl}` lets others refer to it, `cancel {crawl}` forgets it."
    return Repair(crawl, text)


def _replace(checker: Checker, checked: CheckedCrawl, info: CrawlInfo, *, forget_missing: bool) -> None:
    """Build a committed crawl anew under another id, and put it in the place of the old one."""
    index, crawl = checker.index, checked.id
    new = f"{crawl}{REPAIR_SUFFIX}"
    index.start(new, info.payload)
    try:
        _build(checker, checked, info, new, forget_missing=forget_missing)
    except StoreUnavailable:
        raise
    except (DedupeError, OSError):
        _undo(index, new)
        raise
    _put_in_place(index, crawl, new)


def _put_in_place(index: CrawlIndex, crawl: str, new: str) -> None:
    try:
        index.replace(crawl, new)
    except CrawlStateError:
        # What was built lacks what the crawl got meanwhile, so it can never take its place.
        _undo(index, new)
        raise


def _undo(index: CrawlIndex, new: str) -> None:
    index.cancel(new)
    index.purge([new])


def _build(
    checker: Checker, checked: CheckedCrawl, info: CrawlInfo, new: str, *, forget_missing: bool
) -> None:
    """Enter in the crawl *new* what the files of the old one hold."""
    index, crawl = checker.index, checked.id
    is_whole = not (checked.files.gone or checked.files.unreachable)
    # Until this is taken back, what was built is known to be a part.
    index.mark_incomplete(new, True)
    with closing(SortedEntries()) as ledger:
        ledger.take(index.records(crawl))
        if checked.is_foreign:
            counts = enter_imported_files(
                index, new, checked.files.present, in_place_of=crawl, known=ledger, watch=checker.watch
            )
        else:
            needs = index.needs(crawl)
            if is_whole or forget_missing:
                # Nothing can tell any more what revisits need of a crawl that is not there.
                committed = {other.id for other in index.crawls() if other.state == "committed"}
                needs = [need for need in needs if need.crawl not in committed]
            # A file that is gone may come back, and its revisits need what they refer to.
            index.add(new, [], needs=needs)
            counts = enter_files(
                index,
                new,
                checked.files.present,
                checker.rules,
                in_place_of=crawl,
                is_known=ledger.has_entry,
                watch=checker.watch,
            )
    known = info.counts.total_crawl_size
    sizes = crawl_sizes(index, checked)
    if known in sizes or (is_whole and not sizes):
        size = known
    else:
        size = sizes[0] if sizes else counts.total_crawl_size
    index.set_counts(new, replace(counts, total_crawl_size=size))
    index.mark_incomplete(new, False)
