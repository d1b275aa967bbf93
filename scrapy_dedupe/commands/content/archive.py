"""Finds judged texts in the WARC archive.

A store has no texts, only their digests. A record of the URL in the crawl's WARC files is the one that was judged if
its canonical text, by any canonicaliser, has the stored digest.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.content.canonical import CANONICALIZERS, read, version
from scrapy_dedupe.content.markup import HostileMarkup
from scrapy_dedupe.content.pages import names_of, text_digest
from scrapy_dedupe.crawls.crawl_files import CrawlArchive, sizes_of
from scrapy_dedupe.errors import DamagedInput, StoreError
from scrapy_dedupe.live.responses import PageReader
from scrapy_dedupe.tasks.progress import part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord


@dataclass(frozen=True, slots=True)
class Wanted:
    """The first capture of a text."""

    digest: bytes
    url: str
    crawl: str


@dataclass(frozen=True, slots=True)
class ArchivedText:
    """A canonical text, the Content-Type of its page without parameters, and the names of the page."""

    text: str
    mime: str
    names: tuple[str, ...] = ()


class Archive:
    """The WARC files of the crawls in the index, and the WARC files in a folder.

    ``notes`` are messages about files that could not be read completely.
    """

    def __init__(self, stores: CommandStores, folder: Path | None, watch: Progress) -> None:
        self._stores = stores
        self._watch = watch
        self._folder = folder or stores.settings.warc.folder
        self._reader = PageReader(stores.scrapy_settings)
        self.notes: list[str] = []

    def find(self, wanted: Iterable[Wanted]) -> dict[Wanted, ArchivedText | str]:
        """For each capture, its text or a message why the archive does not have it. Reads each crawl's files once."""
        items = set(wanted)
        if not items:
            return {}
        found: dict[Wanted, ArchivedText | str] = {}
        try:
            index = self._stores.open_index()
        except StoreError as error:
            return dict.fromkeys(items, f"The archive cannot be searched: {error}")
        with index:
            for crawl in sorted({item.crawl for item in items}):
                found |= self._find_in(index, crawl, {item for item in items if item.crawl == crawl})
        return found

    def _find_in(
        self, index: CrawlIndex, crawl: str, wanted: set[Wanted]
    ) -> dict[Wanted, ArchivedText | str]:
        found: dict[Wanted, ArchivedText | str] = {}
        archive = CrawlArchive(index, crawl, self._folder, lambda damage: self._note(f"Damaged: {damage}."))
        if not archive.paths:
            sentence = (
                f"There are no WARC files of the crawl {crawl} in {self._folder} or in the crawl index."
            )
            return dict.fromkeys(wanted, sentence)
        lacking = ""
        try:
            with closing(archive), part(self._watch, crawl, sizes_of(archive.paths)):
                for record in archive.exchanges({item.url for item in wanted}, self._watch):
                    source = record if record.type == "response" else archive.original(record)
                    if source is None:
                        lacking = " A revisit record of this URL refers to a missing record."
                        continue
                    for digest, text in self._texts(record, source):
                        found |= {
                            item: text for item in wanted if item.digest == digest and item not in found
                        }
                    if len(found) == len(wanted):
                        break
        except OSError as error:
            lacking = f" A file cannot be read: {error.strerror}."
        files = "file" if len(archive.paths) == 1 else f"{len(archive.paths)} files"
        for item in wanted - found.keys():
            found[item] = (
                f"The archive does not have this text of {item.url}: no record in the WARC {files} of the crawl"
                f" {crawl} matches.{lacking}"
            )
        return found

    def _texts(self, record: StoredRecord, source: StoredRecord) -> Iterator[tuple[bytes, ArchivedText]]:
        """The canonical texts of a record, one per canonicaliser; ``source`` has the payload of the record."""
        if source.http is None or record.target_uri is None:
            return
        try:
            # A revisit has its own HTTP header, but some programs write revisits without one.
            headers = (record.http or source.http).headers
            page = self._reader.page(record.target_uri, headers, source.payload())
        except DamagedInput:
            return
        if isinstance(page, str):
            return
        for canonicalizer in CANONICALIZERS:
            try:
                canonical = read(page.kind, page.text, canonicalizer)
            except HostileMarkup:
                continue
            text, names = canonical.text, names_of(canonical.title, canonical.heading)
            yield text_digest(version(canonicalizer), text), ArchivedText(text, page.mime, names)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
