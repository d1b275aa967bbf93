"""Reads a crawl's entries anew from its own files.

After a kill, a lost store or a salvage the files are what is true. The crawl's entries and counts are forgotten
and made again from the records that are there, with the rules that held when they were written; so no entry
names a record that is not on disk, and none is missing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DamagedInput
from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.records import SERVER_NOT_MODIFIED
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage

from .originals import validators_of
from .places import readable, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .index import CrawlIndex
    from .rules import RevisitRules

logger = logging.getLogger(__name__)

_BATCH = 500


def settle(index: CrawlIndex, crawl: str, folder: Path, rules: RevisitRules) -> list[Salvaged]:
    """Bring a started crawl's files and entries to a sound state; what was salvaged.

    For a crawl that is new, or whose last run ended well, nothing is read. Raises
    :class:`~scrapy_dedupe.errors.CrawlStateError` while another process writes a file of the crawl.
    """
    refuse_running(index, crawl, folder)
    results = (salvage(path) for path in _unfinished(index, crawl, folder))
    salvaged = [result for result in results if result is not None]
    if salvaged or any(info.incomplete for info in index.crawls() if info.id == crawl):
        rebuild(index, crawl, folder, rules)
    return salvaged


def mend_others(index: CrawlIndex, folder: Path) -> list[tuple[str, Salvaged]]:
    """Mend the files in *folder* that dead crawls have left, and say whose they were.

    Their entries are read anew when somebody commits them. What cannot be mended is told of in the log.
    """
    if not folder.is_dir():
        return []
    uncommitted = {info.id for info in index.crawls() if info.state == "uncommitted"}
    mended = []
    for path in sorted(folder.absolute().glob(f"*{OPEN_SUFFIX}")):
        if is_held(path):
            continue
        crawl = crawl_of(path)
        try:
            result = salvage(path)
        except ArchiveError as error:
            logger.warning("%s", error)
            continue
        if result is None:
            continue
        if crawl in uncommitted:
            index.mark_incomplete(crawl, True)
        mended.append((crawl or "without a name", result))
    return mended


def refuse_running(index: CrawlIndex, crawl: str, folder: Path) -> None:
    """Raise :class:`~scrapy_dedupe.errors.CrawlStateError` while another process writes a file of the crawl."""
    for path in _unfinished(index, crawl, folder):
        if is_held(path):
            raise CrawlStateError(
                f"The crawl {crawl} is running: another process writes {path}. Wait for its end."
            )


def has_files(crawl: str, folder: Path) -> bool:
    """Whether a file in *folder*, finished or not, says that it is part of *crawl*."""
    return folder.is_dir() and any(_is_part_of(path, crawl) for path in folder.glob("*.warc*"))


def rebuild(index: CrawlIndex, crawl: str, folder: Path, rules: RevisitRules) -> Counts:
    """Enter the records of all finished files of *crawl* again; its new counts.

    The files are those that the index names and those in *folder* whose warcinfo names the crawl. The crawl
    is not marked as incomplete afterwards. Raises :class:`~scrapy_dedupe.errors.StoreError`, and
    :class:`~scrapy_dedupe.errors.ArchiveError` if one that was moved to a storage elsewhere cannot be read.
    """
    files = files_of(index, crawl, folder)
    index.reset(crawl)
    sizes: dict[str, int] = {}
    total = Counts()
    for path in files:
        index.add_file(crawl, str(path))
        entries = _Entries(index, crawl, rules, sizes)
        for record, method in _principals(path):
            entries.take(record, method)
            if entries.size >= _BATCH:
                entries.enter()
        entries.counts += Counts(total_crawl_size=size_of(path))
        entries.enter()
        total += entries.entered
    index.mark_incomplete(crawl, False)
    return total


class _Entries:
    """What the records of a file add to the index, a batch at a time.

    ``sizes`` are those of this crawl's originals so far, by digest.
    """

    def __init__(self, index: CrawlIndex, crawl: str, rules: RevisitRules, sizes: dict[str, int]) -> None:
        self._index = index
        self._crawl = crawl
        self._rules = rules
        self._sizes = sizes
        self._originals: list[Original] = []
        self._urls: list[UrlCapture] = []
        self._needs: set[Need] = set()
        self.counts = Counts()
        self.entered = Counts()

    @property
    def size(self) -> int:
        return len(self._urls) + len(self._needs)

    def enter(self) -> None:
        """Enter the batch; a kill leaves the crawl incomplete, so that it is read anew."""
        self._index.add(
            self._crawl,
            self._originals,
            self.counts,
            self._urls,
            sorted(self._needs, key=lambda need: (need.crawl, need.wacz_index, need.file or "")),
        )
        self.entered += self.counts
        self.counts = Counts()
        self._originals, self._urls, self._needs = [], [], set()

    def take(self, record: StoredRecord, method: str) -> None:
        """Take one principal record, and the method of its request."""
        if record.type not in ("response", "revisit"):
            return
        is_revisit = record.type == "revisit"
        self.counts += Counts(total_urls=1, dupe_urls=int(is_revisit))
        if record.payload_digest is None:
            return
        digest = record.payload_digest.value
        if is_revisit:
            self._take_revisit(record, digest)
        elif self._is_admitted(record, method):
            self._take_response(record, digest)

    def _take_revisit(self, record: StoredRecord, digest: str) -> None:
        own_size = self._sizes.get(digest)
        size = own_size or 0
        if own_size is None:
            (original,) = self._index.find(self._crawl, [digest])
            if original is not None:
                size = original.size
                if original.crawl != self._crawl:
                    self._needs.add(Need(original.crawl, original.wacz_index, original.file))
        if record.profile == SERVER_NOT_MODIFIED:
            return
        self.counts += Counts(conserved_size=max(0, size - record.length))
        self._take_url(record, digest)

    def _take_response(self, record: StoredRecord, digest: str) -> None:
        self._take_url(record, digest)
        if digest in self._sizes:
            return
        assert record.date is not None
        assert record.target_uri is not None
        self._sizes[digest] = record.length
        original = Original(
            digest=digest,
            crawl=self._crawl,
            date=record.date,
            url=record.target_uri,
            size=record.length,
            record_id=record.id,
            file=str(record.path),
            offset=record.offset,
        )
        self._originals.append(original)

    def _take_url(self, record: StoredRecord, digest: str) -> None:
        if record.target_uri is not None and record.date is not None:
            validators = validators_of(record.http_headers)
            self._urls.append(UrlCapture(record.target_uri, digest, record.date, validators))

    def _is_admitted(self, record: StoredRecord, method: str) -> bool:
        http = record.http
        if http is None or record.id is None or record.target_uri is None or record.date is None:
            return False
        return self._rules.admit(
            method=method,
            status=http.status or 0,
            content_type=(http.get(b"Content-Type") or b"").decode("latin-1"),
            size_bytes=record.frame.block_length - http.length,
            is_complete=not record.is_truncated,
        )


def _principals(path: ReadableFile) -> Iterator[tuple[StoredRecord, str]]:
    """Each record that is not a request, with the method of the request that follows it."""
    waiting: StoredRecord | None = None
    for record in _readable(path):
        if record.type == "request":
            if waiting is not None:
                is_its_own = waiting.id is not None and record.concurrent_to == waiting.id
                method = record.http.first_line.partition(b" ")[0].decode("latin-1") if record.http else ""
                yield waiting, method if is_its_own else ""
                waiting = None
            continue
        if waiting is not None:
            # Its request was cut off; only GET exchanges make originals, and nobody knows of this one.
            yield waiting, ""
        waiting = record
    if waiting is not None:
        yield waiting, ""


def _readable(path: ReadableFile) -> Iterator[StoredRecord]:
    try:
        yield from read_records(path)
    except DamagedInput as error:
        logger.warning("%s Its other records are entered in the index.", error)


def files_of(index: CrawlIndex, crawl: str, folder: Path) -> list[ReadableFile]:
    """The finished files of a crawl, in the order of their names: those that the index names and those in *folder*."""
    named = [name for info in index.crawls() if info.id == crawl for name in info.files]
    found: dict[str, ReadableFile] = {}
    for name in named:
        file = readable(name)
        if file is not None and not file.name.endswith(OPEN_SUFFIX):
            found[str(file)] = file
    # A file that is being moved is there twice for a moment.
    names = {file.name for file in found.values()}
    if folder.is_dir():
        for path in folder.absolute().glob("*.warc*"):
            if path.suffix in (".warc", ".gz") and path.name not in names and _is_part_of(path, crawl):
                found[str(path)] = path
    return sorted(found.values(), key=lambda file: file.name)


def _unfinished(index: CrawlIndex, crawl: str, folder: Path) -> list[Path]:
    """The files of a crawl that have no final name yet."""
    # The index names files by their full path, wherever this is called from; the folder may have others.
    named = {
        Path(f"{name}{OPEN_SUFFIX}") for info in index.crawls() if info.id == crawl for name in info.files
    }
    found = {path for path in named if path.exists()}
    if folder.is_dir():
        paths = folder.absolute().glob(f"*{OPEN_SUFFIX}")
        found.update(path for path in paths if path not in found and _is_part_of(path, crawl))
    return sorted(found)


def _is_part_of(path: Path, crawl: str) -> bool:
    return crawl_of(path) == crawl


def crawl_of(path: Path) -> str | None:
    """The crawl that a file is part of, as its warcinfo says."""
    try:
        first = next(read_records(path, on_damage=lambda damage: None), None)
    except OSError:
        return None
    return first.info().get("ispartof") if first is not None and first.type == "warcinfo" else None
