"""Reads a crawl's entries anew from its own files.

After a kill, a lost store or a salvage the files are what is true. The crawl's entries and counts are forgotten
and made again from the records that are there, with the rules that held when they were written; so no entry
names a record that is not on disk, and none is missing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import CrawlStateError, DamagedInput
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.warc.reading import StoredRecord

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
    is not marked as incomplete afterwards. Raises :class:`~scrapy_dedupe.errors.StoreError`.
    """
    files = _files_of(index, crawl, folder)
    index.reset(crawl)
    sizes: dict[str, int] = {}
    total = Counts()
    for path in files:
        index.add_file(crawl, str(path))
        counts = Counts(total_crawl_size=path.stat().st_size)
        batch: list[Original] = []
        for record, method in _principals(path):
            original, more = _entry(index, crawl, record, method, rules, sizes)
            counts += more
            if original is not None:
                batch.append(original)
            if len(batch) >= _BATCH:
                index.add(crawl, batch, Counts())
                batch.clear()
        index.add(crawl, batch, counts)
        total += counts
    index.mark_incomplete(crawl, False)
    return total


def _entry(
    index: CrawlIndex,
    crawl: str,
    record: StoredRecord,
    method: str,
    rules: RevisitRules,
    sizes: dict[str, int],
) -> tuple[Original | None, Counts]:
    """What one principal record adds to the index; ``sizes`` are those of this crawl's originals so far."""
    if record.type not in ("response", "revisit"):
        return None, Counts()
    if record.payload_digest is None:
        return None, Counts(total_urls=1, dupe_urls=int(record.type == "revisit"))
    digest = record.payload_digest.value
    if record.type == "revisit":
        size = sizes.get(digest)
        if size is None:
            (original,) = index.find(crawl, [digest])
            size = original.size if original is not None else 0
        return None, Counts(total_urls=1, dupe_urls=1, conserved_size=max(0, size - record.length))
    http = record.http
    if (
        http is None
        or record.id is None
        or record.target_uri is None
        or record.date is None
        or digest in sizes
    ):
        return None, Counts(total_urls=1)
    is_admitted = rules.admit(
        method=method,
        status=http.status or 0,
        content_type=(http.get(b"Content-Type") or b"").decode("latin-1"),
        size_bytes=record.frame.block_length - http.length,
        is_complete=not record.is_truncated,
    )
    if not is_admitted:
        return None, Counts(total_urls=1)
    sizes[digest] = record.length
    original = Original(
        digest=digest,
        crawl=crawl,
        date=record.date,
        url=record.target_uri,
        size=record.length,
        record_id=record.id,
        file=str(record.path),
        offset=record.offset,
    )
    return original, Counts(total_urls=1)


def _principals(path: Path) -> Iterator[tuple[StoredRecord, str]]:
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


def _readable(path: Path) -> Iterator[StoredRecord]:
    try:
        yield from read_records(path)
    except DamagedInput as error:
        logger.warning("%s Its other records are entered in the index.", error)


def _files_of(index: CrawlIndex, crawl: str, folder: Path) -> list[Path]:
    named = [Path(name) for info in index.crawls() if info.id == crawl for name in info.files]
    found = {path for path in named if path.is_file()}
    if folder.is_dir():
        found.update(
            path
            for path in folder.absolute().glob("*.warc*")
            if path.suffix in (".warc", ".gz") and path not in found and _is_part_of(path, crawl)
        )
    return sorted(found, key=lambda path: path.name)


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
    try:
        first = next(read_records(path), None)
    except (DamagedInput, OSError):
        return False
    return first is not None and first.type == "warcinfo" and first.info().get("ispartof") == crawl
