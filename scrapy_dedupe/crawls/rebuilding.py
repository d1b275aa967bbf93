"""Reads a crawl's entries again from its own files.

After a kill, a lost store or a salvage the files are authoritative. The crawl's entries and counts are removed and
created again from the existing records. Records that had an entry get one again, and the rules decide about the
others; so no entry names a record that is not on disk, and no entry is missing.
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DamagedInput
from scrapy_dedupe.stores.base import Counts, Need, Original, UrlCapture, Waiting
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached, part
from scrapy_dedupe.warc.dates import date_digits
from scrapy_dedupe.warc.exchanges import exchanges
from scrapy_dedupe.warc.files import OPEN_SUFFIX, warc_files
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import is_unmodified
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage

from .originals import validators_of
from .places import WACZ_SUFFIX, readable, size_of, sizes_of
from .rules import may_be_original
from .sorted_entries import SortedEntries
from .values import EMPTY_PAYLOADS, known_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .index import CrawlIndex
    from .rules import RevisitRules

logger = logging.getLogger(__name__)

CONSERVES_NOTHING = 2**40 - 1
"""The size of a revisit that saves nothing, whatever the size of its original: one that records a 304."""

_BATCH = 500


def settle(
    index: CrawlIndex,
    crawl: str,
    folder: Path,
    rules: RevisitRules,
    watch: Progress = NO_PROGRESS,
    *,
    is_new: bool = False,
) -> list[Salvaged]:
    """Bring a started crawl's files and entries into a consistent state; return the salvaged files.

    If the crawl is new, no file is read; if its last run ended well, only the first record of each file. Raises
    :class:`~scrapy_dedupe.errors.CrawlStateError` while another process writes a file of the crawl.
    """
    refuse_running(index, crawl, folder)
    unfinished = _unfinished(index, crawl, folder)
    if unfinished:
        # Before the files get their final names, which do not show that their records are not in the index.
        index.mark_incomplete(crawl, True)
    results = (salvage_watched(path, watch) for path in unfinished)
    salvaged = [result for result in results if result is not None]
    if unfinished or (not is_new and is_lacking(index, crawl, folder)):
        rebuild(index, crawl, folder, rules, watch)
    return salvaged


def is_lacking(index: CrawlIndex, crawl: str, folder: Path) -> bool:
    """Whether an uncommitted crawl may have records on disk that are not in the index.

    That is so if its last run was killed, or if the index did not answer when a file was started.
    """
    info = next((info for info in index.crawls() if info.id == crawl), None)
    if info is None or info.incomplete:
        return info is not None
    names = {PurePosixPath(name).name for name in info.files}
    return any(
        path.name not in names and _is_part_of(path, crawl) for path in warc_files(folder, unfinished=True)
    )


def salvage_watched(
    path: Path,
    watch: Progress,
    *,
    dry_run: bool = False,
    skip_damaged: bool = False,
    info: Mapping[str, str] | None = None,
) -> Salvaged | None:
    """Salvage a file with :func:`~scrapy_dedupe.warc.salvage.salvage` and report progress."""
    with part(watch, path.name, sizes_of([path])):
        return salvage(path, dry_run=dry_run, skip_damaged=skip_damaged, info=info, on_offset=Reached(watch))


def mend_others(index: CrawlIndex, folder: Path) -> list[tuple[str, Salvaged]]:
    """Salvage the files in *folder* that dead crawls have left; return the crawl and result of each.

    Their entries are read again when the crawl is committed. Files that cannot be salvaged are logged.
    """
    if not folder.is_dir():
        return []
    uncommitted = {info.id for info in index.crawls() if info.state == "uncommitted" and not info.imported}
    mended = []
    for path in sorted(folder.absolute().glob(f"*{OPEN_SUFFIX}")):
        if is_held(path):
            continue
        crawl = crawl_of(path)
        if crawl in uncommitted:
            index.mark_incomplete(crawl, True)
        try:
            result = salvage(path)
        except ArchiveError as error:
            logger.warning("%s", error)
            continue
        if result is None:
            continue
        mended.append((crawl or "without a name", result))
    return mended


def refuse_running(index: CrawlIndex, crawl: str, folder: Path) -> None:
    """Raise :class:`~scrapy_dedupe.errors.CrawlStateError` while another process writes a file of the crawl."""
    named = {Path(name) for info in index.crawls() if info.id == crawl for name in info.files}
    # The last file has its final name before its records are entered, and stays locked until they are.
    for path in [*_unfinished(index, crawl, folder), *sorted(named)]:
        if is_held(path):
            raise CrawlStateError(
                f"The crawl {crawl} is running: another process writes {path}. Wait for its end."
            )


def rebuild(
    index: CrawlIndex, crawl: str, folder: Path, rules: RevisitRules, watch: Progress = NO_PROGRESS
) -> Counts:
    """Add the records of all finished files of an uncommitted crawl again; return its new counts.

    The files are those that the index names and those in *folder* whose warcinfo names the crawl. If one of them is
    missing, the needs of the crawl are kept. The crawl is marked as incomplete until all records are entered, and stays
    so while one of its files has no final name. Raises :class:`~scrapy_dedupe.errors.StoreError`, and
    :class:`~scrapy_dedupe.errors.ArchiveError` if a file in a remote storage cannot be read.
    """
    index.mark_incomplete(crawl, True)
    files = {str(file): file for file in files_of(index, crawl, folder)}
    # A missing file may come back and then still needs the originals of its revisits.
    needs = index.needs(crawl) if missing_files(index, crawl, files.values()) else []
    with closing(SortedEntries()) as ledger:
        # The spider may have had other settings, so existing entries take precedence over the rules.
        ledger.take(index.records(crawl))
        index.reset(crawl)
        if needs:
            index.add(crawl, [], needs=needs)
        total = enter_files(index, crawl, files, rules, is_known=ledger.has_entry, watch=watch)
    index.mark_incomplete(crawl, bool(_unfinished(index, crawl, folder)))
    return total


def enter_files(
    index: CrawlIndex,
    crawl: str,
    files: Mapping[str, ReadableFile],
    rules: RevisitRules,
    *,
    in_place_of: str | None = None,
    is_known: Callable[[str, int, str], bool] = lambda file, offset, digest: False,
    watch: Progress = NO_PROGRESS,
) -> Counts:
    """Add the records of *files*, each under its name, to an uncommitted crawl; return their counts.

    Entries name the crawl's container that holds their file. With ``in_place_of`` the crawl will replace that crawl:
    the containers are those of that crawl, and originals of revisits in other crawls are looked up later, since the old
    entries would be found first (see :meth:`~scrapy_dedupe.crawls.index.CrawlIndex.resolve`). Responses for which
    ``is_known`` returns True, given their file, offset and digest, are added regardless of the rules, which may have
    been different when the crawl was made. Raises as :func:`rebuild`.
    """
    containers = [str(container.get("filename", "")) for container in index.containers(in_place_of or crawl)]
    total = Counts()
    with part(watch, crawl, sizes_of(files.values())):
        for name, file in files.items():
            reached = Reached(watch)
            index.add_file(crawl, name)
            entries = _Entries(index, crawl, rules, name, container_number(name, containers), in_place_of)
            for record, method in _readable_exchanges(file):
                reached(record.offset)
                digest = known_digest(record)
                is_kept = digest is not None and is_known(name, record.offset, digest)
                entries.take(record, method, is_kept=is_kept)
                if entries.size >= _BATCH:
                    entries.enter()
            entries.counts += Counts(total_crawl_size=size_of(file))
            entries.enter()
            total += entries.entered
    return total


def container_number(file: str, containers: Sequence[str]) -> int:
    """The position of the WACZ that holds a file among the crawl's; 0 if none of them does.

    >>> container_number("/archive/b.wacz/archive/one.warc.gz", ["a.wacz", "b.wacz"])
    1
    """
    names = (parent.name for parent in PurePosixPath(file).parents if parent.suffix == WACZ_SUFFIX)
    return next((containers.index(name) for name in names if name in containers), 0)


class _Entries:
    """The index entries for the records of a file, added in batches."""

    def __init__(
        self,
        index: CrawlIndex,
        crawl: str,
        rules: RevisitRules,
        file: str,
        wacz_index: int,
        in_place_of: str | None,
    ) -> None:
        self._index = index
        self._crawl = crawl
        self._rules = rules
        self._file = file
        self._wacz_index = wacz_index
        self._in_place_of = in_place_of
        self._originals: dict[str, Original] = {}
        self._revisits: list[tuple[str, int]] = []
        self._urls: list[UrlCapture] = []
        self.counts = Counts()
        self.entered = Counts()

    @property
    def size(self) -> int:
        return len(self._urls) + len(self._revisits)

    def enter(self) -> None:
        """Add the batch; after a kill the crawl is still incomplete, so it is read again."""
        needs, waiting = self._referred_to()
        originals = list(self._originals.values())
        self._index.add(self._crawl, originals, self.counts, self._urls, sorted(needs, key=_order), waiting)
        self.entered += self.counts
        self.counts = Counts()
        self._originals, self._revisits, self._urls = {}, [], []

    def take(self, record: StoredRecord, method: str, *, is_kept: bool = False) -> None:
        """Process a record and the method of its request; with *is_kept* it is added regardless of the rules."""
        self.counts += Counts(total_urls=1, dupe_urls=int(record.type == "revisit"))
        digest = known_digest(record)
        # An empty payload is in no index, so its revisit would wait forever.
        if digest is None or digest in EMPTY_PAYLOADS:
            return
        if record.type == "revisit":
            is_copy = not is_unmodified(record)
            self._revisits.append((digest, record.length if is_copy else CONSERVES_NOTHING))
            if is_copy:
                self._take_url(record, digest)
        elif is_kept or may_be_original(record, method, self._rules):
            self._take_response(record, digest)

    def _referred_to(self) -> tuple[set[Need], list[Waiting]]:
        """The needs and waiting revisits of the batch; adds the bytes that its revisits save to the counts."""
        needs: set[Need] = set()
        waiting: list[Waiting] = []
        if not self._revisits:
            return needs, waiting
        digests = list(dict.fromkeys(digest for digest, _ in self._revisits))
        found = dict(zip(digests, self._index.find(self._crawl, digests), strict=True))
        conserved = 0
        for digest, length in self._revisits:
            original = found[digest]
            if original is None or original.crawl != self._crawl:
                original = self._originals.get(digest, original)
            if original is None or (self._in_place_of and original.crawl != self._crawl):
                waiting.append(Waiting(digest, length))
                continue
            if original.crawl != self._crawl:
                needs.add(Need(original.crawl, original.wacz_index, original.file))
            conserved += max(0, original.size - length)
        self.counts += Counts(conserved_size=conserved)
        return needs, waiting

    def _take_response(self, record: StoredRecord, digest: str) -> None:
        date = _digits(record)
        if date is None or record.target_uri is None:
            return
        self._take_url(record, digest)
        original = Original(
            digest=digest,
            crawl=self._crawl,
            date=date,
            url=record.target_uri,
            size=record.length,
            wacz_index=self._wacz_index,
            record_id=record.id,
            file=self._file,
            offset=record.offset,
        )
        self._originals.setdefault(digest, original)

    def _take_url(self, record: StoredRecord, digest: str) -> None:
        date = _digits(record)
        validators = validators_of(record.http_headers)
        if record.target_uri and date is not None and validators:
            self._urls.append(UrlCapture(record.target_uri, digest, date, validators))


def _digits(record: StoredRecord) -> str | None:
    try:
        return date_digits(record.date or "")
    except ValueError:
        return None


def _order(need: Need) -> tuple[str, int, str]:
    return need.crawl, need.wacz_index, need.file or ""


def _readable_exchanges(path: ReadableFile) -> Iterator[tuple[StoredRecord, str]]:
    try:
        # The request of a last response may be cut off. Then the method is unknown, and only GET makes an original.
        yield from exchanges(read_records(path), unknown_method="")
    except DamagedInput as error:
        logger.warning("%s Its other records are added to the index.", error)


def files_of(index: CrawlIndex, crawl: str, folder: Path) -> list[ReadableFile]:
    """The finished files of a crawl, in the order of their names: those that the index names and those in *folder*."""
    named = [name for info in index.crawls() if info.id == crawl for name in info.files]
    found: dict[str, ReadableFile] = {}
    for name in named:
        file = readable(name)
        if file is not None and not file.name.endswith(OPEN_SUFFIX):
            found[str(file)] = file
    # While a file is moved, it briefly exists in both places.
    names = {file.name for file in found.values()}
    for path in warc_files(folder.absolute()):
        if path.name not in names and _is_part_of(path, crawl):
            found[str(path)] = path
    return sorted(found.values(), key=lambda file: file.name)


def missing_files(index: CrawlIndex, crawl: str, found: Iterable[ReadableFile]) -> list[str]:
    """The files of a crawl, by their names in the index, that are not among *found*."""
    names = {file.name for file in found}
    named = (name for info in index.crawls() if info.id == crawl for name in info.files)
    return [name for name in named if PurePosixPath(name).name not in names]


def _unfinished(index: CrawlIndex, crawl: str, folder: Path) -> list[Path]:
    """The files of a crawl that have no final name yet."""
    # The index has full paths, independent of the working directory; the folder may have other files.
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


def crawl_of(path: ReadableFile) -> str | None:
    """The crawl that the warcinfo of a file names."""
    try:
        first = next(read_records(path, on_damage=lambda damage: None), None)
    except OSError:
        return None
    return first.info().get("ispartof") if first is not None and first.type == "warcinfo" else None
