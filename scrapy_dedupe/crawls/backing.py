"""Tells what revisits lack: originals that are not in the index, and crawls and files that are not there.

A record with that URI and date backs a revisit as long as its file is there: the archive is whole, and the index alone
lacks something. So files are read that the index does not name, but only if there are such revisits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.reading import read_records

from .comparing import digits_of
from .crawl_files import files_in_folders
from .findings import Finding
from .holders import is_bare
from .places import readable
from .rebuilding import crawl_of
from .recounting import plain_or_same
from .values import known_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .dependencies import Needed
    from .index import CrawlIndex
    from .ledger import Ledger
    from .recounting import Revisit


class Unmet:
    """Revisits whose original is not in the index. ``read`` names the files whose records are in the ledger."""

    def __init__(self, index: CrawlIndex, ledger: Ledger, folders: Sequence[Path]) -> None:
        self.read: set[str] = set()
        self._index = index
        self._ledger = ledger
        self._folders = folders
        self._revisits: list[tuple[str, Revisit]] = []

    def take(self, crawl: str, revisits: Sequence[Revisit]) -> None:
        """Take the revisits of a crawl."""
        self._revisits += [(crawl, revisit) for revisit in revisits]

    def findings(self, crawls: Mapping[str, CrawlInfo]) -> Iterator[Finding]:
        """Those that nothing backs, and what files are there that back others."""
        for crawl in dict.fromkeys(crawl for crawl, _ in self._revisits):
            self._read_needed(crawl)
        left = [
            (crawl, revisit)
            for crawl, revisit in self._revisits
            if not (revisit.original_uri and self._ledger.has_record(revisit.original_uri, revisit.date))
        ]
        backed = self._backed_by_other_files([revisit for _, revisit in left])
        counts: Counter[tuple[str, str]] = Counter()
        for crawl, revisit in left:
            file = backed.get(_wanted(revisit))
            if file is None:
                yield _without_original(crawl, revisit)
            else:
                counts[crawl, file] += 1
        for (crawl, file), count in counts.items():
            yield Finding("waiting", crawl, _backed_text(crawl, count, file, crawls), file)

    def _read_needed(self, crawl: str) -> None:
        """Note the records of what a crawl needs, where that was not read already."""
        for need in self._index.needs(crawl):
            if need.file is None or is_bare(need.file) or need.file in self.read:
                continue
            self.read.add(need.file)
            file = readable(need.file)
            for record in () if file is None else _responses(file):
                self._ledger.note_record(record.target_uri or "", digits_of(record.date or ""))

    def _backed_by_other_files(self, revisits: Sequence[Revisit]) -> dict[tuple[str, str, str | None], str]:
        """In which files of the folders the records are that these revisits refer to."""
        wanted = {_wanted(revisit) for revisit in revisits if revisit.original_uri}
        found: dict[tuple[str, str, str | None], str] = {}
        for file in files_in_folders(self._folders) if wanted else ():
            if len(found) == len(wanted):
                break
            if str(file) in self.read:
                continue
            for record in _responses(file):
                name = plain_or_same(record.target_uri or ""), digits_of(record.date or "")[:14]
                digest = known_digest(record)
                for key in ((*name, digest), (*name, None)):
                    if key in wanted:
                        found.setdefault(key, str(file))
        return found


def missing_needs(crawl: str, needs: Iterable[Needed]) -> Iterator[Finding]:
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
            yield Finding("missing", crawl, text, needed.place)
    for other, of_other in absent.items():
        text = (
            f"Revisits of the crawl {crawl} refer to records of {other}, which the index does not have."
            f"{_presence_text(of_other)}"
        )
        yield Finding(
            "missing", crawl, text, next((needed.place for needed in of_other if needed.place), None)
        )


def _presence_text(needs: Sequence[Needed]) -> str:
    """Which files are there of a crawl that the index does not have."""
    known = [needed for needed in needs if needed.is_present is not None]
    if len(known) == 1:
        return f" {known[0].place} is {'there' if known[0].is_present else 'gone'}."
    there = sum(bool(needed.is_present) for needed in known)
    return f" Of its files {there} of {len(known)} {'is' if there == 1 else 'are'} there." if known else ""


def _wanted(revisit: Revisit) -> tuple[str, str, str | None]:
    return revisit.original_uri, revisit.date[:14], revisit.digest


def _responses(file: ReadableFile) -> Iterator[StoredRecord]:
    """The responses of a file; one that cannot be read has none."""
    try:
        for record in read_records(file, on_damage=lambda damage: None):
            if record.type == "response" and record.target_uri and record.date:
                yield record
    except (OSError, DedupeError):
        # That the file cannot be read is told with the crawl that it belongs to.
        return


def _without_original(crawl: str, revisit: Revisit) -> Finding:
    refers_to = revisit.original_uri or "a payload"
    text = (
        f"{revisit.file}, offset {revisit.offset}: the revisit of {revisit.uri} refers to {refers_to}, of which"
        " neither the index nor a file has the original."
    )
    return Finding("revisit", crawl, text, revisit.file, revisit.offset)


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
