"""Reports what revisits lack: originals that are not in the index, and missing crawls and files.

A revisit can be replayed as long as the record that it refers to (see :mod:`scrapy_dedupe.warc.references`) exists in a
file: then only the index is incomplete. So files that the index does not name are read too, but only if there are such
revisits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.reading import read_records

from .crawl_files import crawl_of, files_in_folders
from .dependencies import is_bare
from .findings import IndexFinding, number_of
from .places import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.warc.sources import ReadableFile

    from .comparison import ReadRevisit
    from .dependencies import Needed
    from .sorted_entries import SortedEntries


class UnresolvedRevisits:
    """``revisits`` whose original is not in the index. ``read`` names the files whose records are in the ledger."""

    def __init__(self, index: CrawlIndex, ledger: SortedEntries, folders: Sequence[Path]) -> None:
        self.revisits: list[ReadRevisit] = []
        self.read: set[str] = set()
        self._index = index
        self._ledger = ledger
        self._folders = folders

    def findings(self, crawls: Mapping[str, CrawlInfo]) -> Iterator[IndexFinding]:
        """Report revisits without any original, and the files that hold originals of others."""
        for crawl in dict.fromkeys(revisit.crawl for revisit in self.revisits):
            self._read_needed(crawl)
        captures = self._ledger.captures
        left = [revisit for revisit in self.revisits if captures.original(revisit.reference) is None]
        counts: Counter[tuple[str, str]] = Counter()
        for revisit, file in self._backed_by_other_files(left):
            if file is None:
                yield _without_original(revisit)
            else:
                counts[revisit.crawl, file] += 1
        for (crawl, file), count in counts.items():
            yield IndexFinding("waiting", crawl, _backed_text(crawl, count, file, crawls), file)

    def _read_needed(self, crawl: str) -> None:
        """Add the records of the files that a crawl needs to the ledger, unless they were already read."""
        for need in self._index.needs(crawl):
            if need.file is None or is_bare(need.file) or need.file in self.read:
                continue
            self.read.add(need.file)
            file = readable(need.file)
            if file is not None:
                self._read(file)

    def _backed_by_other_files(self, left: list[ReadRevisit]) -> Iterator[tuple[ReadRevisit, str | None]]:
        """The file in the folders that holds the original of each of these revisits; None if there is none."""
        captures = self._ledger.captures
        for file in files_in_folders(self._folders) if left else ():
            if str(file) in self.read:
                continue
            self._read(file)
            lost = []
            for revisit in left:
                found = captures.original(revisit.reference)
                if found is None:
                    lost.append(revisit)
                else:
                    yield revisit, str(captures.file_of(found))
            left = lost
            if not left:
                break
        yield from ((revisit, None) for revisit in left)

    def _read(self, file: ReadableFile) -> None:
        try:
            for record in read_records(file, on_damage=lambda damage: None):
                self._ledger.captures.add(record)
        except (OSError, DedupeError):
            # The check of the crawl to which the file belongs reports the error.
            return


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


def _without_original(revisit: ReadRevisit) -> IndexFinding:
    refers_to = revisit.original_uri or revisit.reference.id or "a payload"
    text = (
        f"{revisit.file}, offset {revisit.offset}: the revisit of {revisit.uri} refers to {refers_to}, but neither"
        " the index nor a file has the original."
    )
    return IndexFinding("revisit", revisit.crawl, text, revisit.file, revisit.offset)


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
