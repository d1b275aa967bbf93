"""Tells what revisits lack: originals that are not in the index, and crawls and files that are not there.

A record that a revisit refers to (see :mod:`scrapy_dedupe.warc.references`) backs it as long as its file is there: the
archive is whole, and only the index lacks something. So files are read that the index does not name, but only if there
are such revisits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.reading import read_records

from .crawl_files import files_in_folders
from .findings import IndexFinding
from .holders import is_bare
from .places import readable
from .rebuilding import crawl_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.warc.sources import ReadableFile

    from .dependencies import Needed
    from .index import CrawlIndex
    from .recounting import CountedRevisit
    from .sorted_entries import SortedEntries


class UnresolvedRevisits:
    """Revisits whose original is not in the index. ``read`` names the files whose records are in the ledger."""

    def __init__(self, index: CrawlIndex, ledger: SortedEntries, folders: Sequence[Path]) -> None:
        self.read: set[str] = set()
        self._index = index
        self._ledger = ledger
        self._folders = folders
        self._revisits: list[tuple[str, CountedRevisit]] = []

    def take(self, crawl: str, revisits: Sequence[CountedRevisit]) -> None:
        """Take the revisits of a crawl."""
        self._revisits += [(crawl, revisit) for revisit in revisits]

    def findings(self, crawls: Mapping[str, CrawlInfo]) -> Iterator[IndexFinding]:
        """Those that nothing backs, and what files are there that back others."""
        for crawl in dict.fromkeys(crawl for crawl, _ in self._revisits):
            self._read_needed(crawl)
        left = [
            (crawl, revisit)
            for crawl, revisit in self._revisits
            if self._ledger.captures.original(revisit.reference) is None
        ]
        counts: Counter[tuple[str, str]] = Counter()
        for crawl, revisit, file in self._backed_by_other_files(left):
            if file is None:
                yield _without_original(crawl, revisit)
            else:
                counts[crawl, file] += 1
        for (crawl, file), count in counts.items():
            yield IndexFinding("waiting", crawl, _backed_text(crawl, count, file, crawls), file)

    def _read_needed(self, crawl: str) -> None:
        """Note the records of what a crawl needs, where that was not read already."""
        for need in self._index.needs(crawl):
            if need.file is None or is_bare(need.file) or need.file in self.read:
                continue
            self.read.add(need.file)
            file = readable(need.file)
            if file is not None:
                self._read(file)

    def _backed_by_other_files(
        self, left: list[tuple[str, CountedRevisit]]
    ) -> Iterator[tuple[str, CountedRevisit, str | None]]:
        """In which files of the folders the records are that these revisits refer to; None for those that are in none."""
        captures = self._ledger.captures
        for file in files_in_folders(self._folders) if left else ():
            if str(file) in self.read:
                continue
            self._read(file)
            lost = []
            for crawl, revisit in left:
                found = captures.original(revisit.reference)
                if found is None:
                    lost.append((crawl, revisit))
                else:
                    yield crawl, revisit, str(captures.file_of(found))
            left = lost
            if not left:
                break
        yield from ((crawl, revisit, None) for crawl, revisit in left)

    def _read(self, file: ReadableFile) -> None:
        try:
            for record in read_records(file, on_damage=lambda damage: None):
                self._ledger.captures.add(record)
        except (OSError, DedupeError):
            # That the file cannot be read is told with the crawl that it belongs to.
            return


def missing_needs(crawl: str, needs: Iterable[Needed]) -> Iterator[IndexFinding]:
    """What a crawl needs that is not there: one finding for each crawl that the index lacks, and each file that is gone."""
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
    """Which files are there of a crawl that the index does not have."""
    known = [needed for needed in needs if needed.is_present is not None]
    if len(known) == 1:
        return f" {known[0].place} is {'there' if known[0].is_present else 'gone'}."
    there = sum(bool(needed.is_present) for needed in known)
    return f" Of its files {there} of {len(known)} {'is' if there == 1 else 'are'} there." if known else ""


def _without_original(crawl: str, revisit: CountedRevisit) -> IndexFinding:
    refers_to = revisit.original_uri or revisit.reference.id or "a payload"
    text = (
        f"{revisit.file}, offset {revisit.offset}: the revisit of {revisit.uri} refers to {refers_to}, of which"
        " neither the index nor a file has the original."
    )
    return IndexFinding("revisit", crawl, text, revisit.file, revisit.offset)


def _backed_text(crawl: str, count: int, file: str, crawls: Mapping[str, CrawlInfo]) -> str:
    found = readable(file)
    owner = None if found is None else crawl_of(found)
    if owner is None:
        remedy = "Import that file."
    elif owner not in crawls or crawls[owner].state == "canceled":
        remedy = f"`check {owner} --repair` enters the crawl {owner}; commit it then."
    elif crawls[owner].state == "uncommitted":
        remedy = f"They are of the crawl {owner}: commit it, `commit {owner}`."
    else:
        remedy = f"They are of the crawl {owner}: `check {owner} --repair` enters them."
    refer = (
        f"1 revisit of the crawl {crawl} refers"
        if count == 1
        else f"{count} revisits of the crawl {crawl} refer"
    )
    what = "a record" if count == 1 else "records"
    return f"{refer} to {what} in {file} that the index does not have. {remedy}"
