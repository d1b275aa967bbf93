"""Repairs the entries of crawls by reading their files again.

An uncommitted crawl is read again in place. For a committed crawl a replacement is built under its id with the suffix
``~repair``, which then replaces the old entries in one step, so that other crawls find complete entries at any time.
Only entries of existing files are created: records of a missing file must not be referred to. The needs of its revisits
are kept, since the file may come back, unless *forget_missing* is set. A crawl is not repaired without *forget_missing*
if none of its files exists, if one of its files does not answer, or if the location of some of its records is unknown.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DedupeError, StoreUnavailable
from scrapy_dedupe.stores.crawl_index import REPAIR_SUFFIX
from scrapy_dedupe.tasks.progress import counted, part
from scrapy_dedupe.warc.salvage import salvage

from .checking import crawl_size
from .comparison import REBUILT_KINDS, number_of
from .purging import end_unfinished
from .rebuilding import enter_files, settle, start_lost

if TYPE_CHECKING:
    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.stores.crawl_index import CrawlIndex

    from .checking import Check, CheckedCrawl, Checker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair of a crawl, or of the index as a whole, or why it was not repaired (``is_done`` False)."""

    crawl: str | None
    sentence: str
    is_done: bool = True


def repair(checker: Checker, check: Check, *, forget_missing: bool = False) -> list[Repair]:
    """Repair the findings of *check* that reading files again can repair.

    With *forget_missing*, entries whose records cannot be read are removed, even if a crawl then has no entries. A
    failure with one crawl does not stop the others. Raises :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """
    index = checker.index
    repairs = [Repair(crawl, f"The removal of {crawl} was completed.") for crawl in end_unfinished(index)]
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
                repairs.append(Repair(checked.id, f"The crawl {checked.id} was not changed: {error}", False))
    with part(checker.watch, "merged index", 0):
        if index.merged_faults():
            index.rebuild_merged()
            repairs.append(Repair(None, "The merged index was rebuilt."))
        found = index.resolve()
    if found:
        originals, were = ("original", "was") if found == 1 else ("originals", "were")
        repairs.append(Repair(None, f"The {originals} of {number_of(found, 'revisit')} {were} found."))
    return repairs


def _end_replacements(index: CrawlIndex) -> list[Repair]:
    """Complete an interrupted repair whose replacement is complete; undo any other, so that it is started again."""
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
                repairs.append(Repair(crawl, f"The crawl {crawl} was not changed: {error}", False))
            else:
                repairs.append(Repair(crawl, f"The interrupted repair of the crawl {crawl} was completed."))
        else:
            _undo(index, info.id)
            repairs.append(Repair(crawl, f"The interrupted repair of the crawl {crawl} was undone."))
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
        return Repair(crawl, f"The index now has the current locations of the files of the crawl {crawl}.")
    obstacle = _obstacle(checked)
    if obstacle is not None and not forget_missing:
        text = f"The crawl {crawl} was not changed: {obstacle}. Use --forget-missing to remove its entries anyway."
        return Repair(crawl, text, False)
    _give_final_names(index, checked)
    if info.state == "uncommitted":
        index.mark_incomplete(crawl, True)
        settle(index, crawl, checker.folders[0], checker.rules, checker.watch)
    else:
        _replace(checker, checked, info, forget_missing=forget_missing)
    gone = sum(checked.entries.get(name, 0) for name in (*checked.files.gone, *checked.files.unreachable))
    gone += checked.unplaced
    lost = ""
    if gone:
        entries = number_of(gone, "entry", "entries")
        lost = f" {entries} without a record {'was' if gone == 1 else 'were'} removed."
    if checked.is_foreign and checked.files.gone:
        lost += f" When these files are available again, purge the crawl {crawl} and import it again."
    return Repair(crawl, f"The entries of the crawl {crawl} were read again from its files.{lost}")


def _obstacle(checked: CheckedCrawl) -> str | None:
    """Why entries of a crawl should not be read again: entries of records that are missing now would be removed."""
    files = checked.files
    if files.unreachable:
        return f"{next(iter(files.unreachable))} does not answer"
    if checked.unplaced and not checked.has_all_files:
        return f"the location of the records of {checked.unplaced} of its entries is unknown"
    if not files.present:
        return "none of its files exists" if files.gone else "its files are unknown"
    return None


def _give_final_names(index: CrawlIndex, checked: CheckedCrawl) -> None:
    """Record the new locations of moved files, and salvage the unfinished files of a committed crawl."""
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
            raise ArchiveError(f"another process writes {file}; wait until it ends.")
        path = file.with_name(salvaged.file)
        if path.is_file():
            files.present[str(path)] = path


def _enter_lost(checker: Checker, checked: CheckedCrawl) -> Repair:
    """Add a crawl that the index has lost; it is unknown whether it was committed."""
    index, crawl = checker.index, checked.id
    folder = next(path.parent for path in checked.files.present.values() if isinstance(path, Path))
    start_lost(index, crawl, folder)
    settle(index, crawl, folder, checker.rules, checker.watch)
    text = f"The crawl {crawl} was added from its files. `commit {crawl}` lets others refer to it, `cancel {crawl}` removes it."
    return Repair(crawl, text)


def _replace(checker: Checker, checked: CheckedCrawl, info: CrawlInfo, *, forget_missing: bool) -> None:
    """Build a replacement of a committed crawl under another id, and replace the crawl with it."""
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
        # The replacement lacks records that the crawl got in the meantime, so it cannot be used.
        _undo(index, new)
        raise


def _undo(index: CrawlIndex, new: str) -> None:
    index.cancel(new)
    index.purge([new])


def _build(
    checker: Checker, checked: CheckedCrawl, info: CrawlInfo, new: str, *, forget_missing: bool
) -> None:
    """Add the records of the old crawl's files to the crawl *new*."""
    index, crawl = checker.index, checked.id
    is_whole = not (checked.files.gone or checked.files.unreachable)
    # Until this is reset, the replacement is known to be incomplete.
    index.mark_incomplete(new, True)
    needs = index.needs(crawl)
    if checked.is_foreign:
        needs = [need for need in needs if need.crawl != crawl]
    elif is_whole or forget_missing:
        # If the needed crawl is not in the index, its needs cannot be derived from revisits.
        committed = {other.id for other in index.crawls() if other.state == "committed"}
        needs = [need for need in needs if need.crawl not in committed]
    # Otherwise a missing file may come back, and its revisits need their originals.
    rules = None if checked.is_foreign else checker.rules
    present = checked.files.present
    counts = enter_files(index, new, present, rules, needs=needs, in_place_of=crawl, watch=checker.watch)
    known = info.counts.total_crawl_size
    size = crawl_size(index, checked, known, known if is_whole else counts.total_crawl_size)
    index.set_counts(new, replace(counts, total_crawl_size=size))
    index.mark_incomplete(new, False)
