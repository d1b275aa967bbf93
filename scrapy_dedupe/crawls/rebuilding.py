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
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached, part
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX
from scrapy_dedupe.warc.files import warc_files
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage

from .crawl_files import (
    WACZ_SUFFIX,
    crawl_of,
    files_of,
    missing_files,
    named_files,
    payload_of_files,
    size_of,
    sizes_of,
    unfinished_files,
)
from .entries import EntryRules, derive
from .entry_writer import EntryWriter
from .sorted_entries import SortedEntries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy_dedupe.stores.base import Counts, Need
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

    from .entries import RevisitRules

logger = logging.getLogger(__name__)


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
    unfinished = unfinished_files(index, crawl, folder)
    if unfinished:
        # Before the files get their final names, because a final name hides that records are missing from the index.
        index.mark_incomplete(crawl, True)
    salvaged = []
    for path in unfinished:
        with part(watch, path.name, sizes_of([path])):
            salvaged.append(salvage(path, on_offset=Reached(watch)))
    if unfinished or (not is_new and is_lacking(index, crawl, folder)):
        rebuild(index, crawl, folder, rules, watch)
    return [result for result in salvaged if result is not None]


def start_lost(index: CrawlIndex, crawl: str, folder: Path) -> bool:
    """Start a crawl again that the index has lost, if it has files in *folder*, from which :func:`settle` reads them.

    Raises the exceptions of :func:`~.crawl_files.payload_of_files`.
    """
    payload = payload_of_files(crawl, folder)
    if payload is not None:
        index.start(crawl, payload)
        index.mark_incomplete(crawl, True)
    return payload is not None


def is_lacking(index: CrawlIndex, crawl: str, folder: Path) -> bool:
    """Whether an uncommitted crawl may have records on disk that are not in the index.

    That is so if its last run was killed, or if the index did not answer when a file was started.
    """
    info = index.crawl(crawl)
    if info is None or info.incomplete:
        return info is not None
    names = {PurePosixPath(name).name for name in info.files}
    return any(
        path.name not in names and crawl_of(path) == crawl for path in warc_files(folder, unfinished=True)
    )


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
        if result is not None:
            mended.append((crawl or "without a name", result))
    return mended


def refuse_running(index: CrawlIndex, crawl: str, folder: Path) -> None:
    """Raise :class:`~scrapy_dedupe.errors.CrawlStateError` while another process writes a file of the crawl."""
    named = {Path(name) for name in named_files(index, crawl)}
    # The last file has its final name before its records are entered, and stays locked until they are.
    for path in [*unfinished_files(index, crawl, folder), *sorted(named)]:
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
    total = enter_files(index, crawl, files, rules, needs=needs, watch=watch)
    index.mark_incomplete(crawl, bool(unfinished_files(index, crawl, folder)))
    return total


def enter_files(
    index: CrawlIndex,
    crawl: str,
    files: Mapping[str, ReadableFile],
    rules: RevisitRules | None,
    *,
    needs: Sequence[Need] = (),
    in_place_of: str | None = None,
    watch: Progress = NO_PROGRESS,
) -> Counts:
    """Replace the entries of an uncommitted crawl by those of *files*, each under its name; return their counts.

    ``rules`` is None for an imported crawl. Entries name the crawl's container that holds their file. With ``in_place_of``
    the crawl, which has no entries yet, will replace that crawl: the present entries and the containers are those of that
    crawl, and originals of revisits in other crawls are looked up later, since the old entries would be found first (see
    :meth:`~scrapy_dedupe.stores.crawl_index.CrawlIndex.resolve`). Raises the exceptions of :func:`rebuild`.
    """
    old = in_place_of or crawl
    containers = [str(container.get("filename", "")) for container in index.containers(old)]
    size = 0
    with (
        closing(SortedEntries()) as known,
        closing(EntryWriter(index, crawl, settles_others=in_place_of is None)) as writer,
        part(watch, old, sizes_of(files.values())),
    ):
        known.take(index.records(old))
        if in_place_of is None:
            # A reset of a replacement would hide from `replace` what was added to the old crawl before it.
            index.reset(crawl)
        if needs:
            # A killed process must not lose them.
            index.add(crawl, [], needs=needs)
        for name, file in files.items():
            reached = Reached(watch)
            index.add_file(crawl, name)
            records = read_records(file)
            if rules is None:
                # Other programs may write revisits that name their original only by its URI or record id.
                records = writer.captures.noted(records)
            of_file = EntryRules(crawl, container_number(name, containers), rules, known)
            try:
                for record, entry in derive(records, name, of_file):
                    reached(record.offset)
                    if entry is not None:
                        writer.take(entry, record if rules is None and entry.is_revisit else None)
            except DamagedInput as error:
                logger.warning("%s Its other records are added to the index.", error)
            # The size of an imported WACZ is that of the whole container.
            size += 0 if rules is None and f"{WACZ_SUFFIX}/" in name else size_of(file)
        return writer.finish(size)


def container_number(file: str, containers: Sequence[str]) -> int:
    """The position of the WACZ that holds a file among the crawl's; 0 if none of them does.

    >>> container_number("/archive/b.wacz/archive/one.warc.gz", ["a.wacz", "b.wacz"])
    1
    """
    names = (parent.name for parent in PurePosixPath(file).parents if parent.suffix == WACZ_SUFFIX)
    return next((containers.index(name) for name in names if name in containers), 0)
