"""WACZ 1.1.1: the WARC files of a crawl with index and metadata for replay programs, in one ZIP file.

::

    archive/NAME.warc.gz       the WARC files, unchanged
    indexes/index.cdx          the index (`cdxj`); see below for a long index
    pages/pages.jsonl          a head with format, id, title and hasText, then one JSON object per page
    datapackage.json           name, size and SHA-256 of all of the above, and the crawl's dependencies
    datapackage-digest.json    the SHA-256 of datapackage.json

Members are stored, not compressed, so that replay programs can read records by their offset; ZIP64 is used for large
sizes. `relation.requires` in datapackage.json lists the containers that revisits refer to. Replay programs do not load
these by themselves, so a crawl with dependencies is opened through a multi-WACZ file: JSON whose resources are the
paths of all containers, relative to its own folder.

Replay programs load index.cdx completely. From `PLAIN_LINES` on the index is written twice, in gzip members:
index.cdx.gz has the keys of pywb, which copies all of it into its own index; index.cdxj.gz has the keys of wabac.js,
which finds the members it needs through index.idx. With one set of keys, one of the two would miss URLs such as
``/search/?q=x``, whose slash only wabac.js keeps. pywb ignores files that end in neither .cdx nor .cdx.gz. The limit
is high because wabac.js loads only a few members for one path.

Guarantees of `pack`:

- It takes a bounded amount of memory, whatever the number and size of the records.
- The WACZ contains every record of the files and a line for each that can be replayed, or it is not created: a damaged
  WARC, a full disk or a file that changes while it is read are errors, and no file remains.
- The file is named TARGET.open until it is synced, and no other file is overwritten. A TARGET.open that a killed process
  left is reused by the next process that packs the same WACZ.
- The same files give the same bytes, except for the ids of pages and the time of creation.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.warc.cdxj import (
    INDEXED_TYPES,
    LineSorter,
    cdx_line,
    idx_head,
    is_indexed,
    rekeyed,
    zipnum_blocks,
)
from scrapy_dedupe.warc.exchanges import method_of, paired
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.url_keys import load_surt
from scrapy_dedupe.warc.wacz_file import PIECE_BYTES, OpenWacz, json_bytes, name_is_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    from scrapy_dedupe.warc.cdxj import CdxLine
    from scrapy_dedupe.warc.reading import StoredRecord

WACZ_VERSION = "1.1.1"
PLAIN_LINES = 50_000

_WARC_NAME = re.compile(r"[^/\\\x00-\x1f]+\.warc(\.gz)?")


@dataclass(frozen=True, slots=True)
class WaczPage:
    """A page of the list that replay programs show. `date` is the WARC-Date of its record."""

    url: str
    date: str
    title: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A container that revisits of the crawl refer to; `hash` is the SHA-256 in bare hex."""

    filename: str
    crawl: str
    hash: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class PackedWacz:
    """A finished WACZ: SHA-256 of the file in bare hex, number of index lines and pages in it."""

    path: Path
    sha256: str
    size_bytes: int
    captures: int
    pages: int


@dataclass(frozen=True, slots=True)
class WaczResource:
    """A container in a multi-WACZ file; `path` is relative to the folder of that file, or a URL."""

    name: str
    path: str
    sha256: str | None
    size: int | None
    crawl: str


def pack(
    files: Sequence[Path],
    target: Path,
    *,
    page_of: Callable[[StoredRecord], WaczPage | None],
    requires: Sequence[Requirement] = (),
    crawl: str,
    software: str,
    payload: str = "stored",
    title: str = "",
    created: datetime | None = None,
    has_text: bool = False,
    on_read: Callable[[int], None] = lambda size_bytes: None,
) -> PackedWacz:
    """Pack WARC files into the WACZ *target* and return a description of it.

    *page_of* is called for every response, revisit and resource, in the order of the files, and returns a page or None.
    It is not called for a record whose request has a method other than GET. *has_text* declares that pages carry text;
    it is also set if any page has text. *payload* is ``stored`` or ``decoded``, the bodies that the digests are
    computed from; datapackage.json has it as ``dedupePayload``. *title* defaults to the crawl id. *created* is aware,
    by default now.
    *on_read* is called with the number of bytes read from *files*; each file is read twice.

    Raises ArchiveError if *target* exists, if it cannot be written or if a file cannot be packed, and SettingError if
    the package surt is missing; no file remains then.
    """
    load_surt()
    target = Path(target)
    files = [Path(file) for file in files]
    _refuse_names(files, target)
    created = (created or datetime.now(UTC)).astimezone(UTC)
    with _write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _write_errors(target), OpenWacz(target, created) as wacz:
        sorter = LineSorter(target.parent)
        pages = _PageList(target.parent, has_text)
        try:
            for file in files:
                size = _size_of(file)
                for line, page in _entries(file, page_of, on_read):
                    if line is not None:
                        sorter.add(line)
                    if page is not None:
                        pages.add(page)
                wacz.add(f"archive/{file.name}", _pieces_of(file, size, on_read), size)
            _add_index(wacz, sorter)
            wacz.add("pages/pages.jsonl", pages.pieces(), pages.size_bytes)
            captures = sorter.lines
        finally:
            sorter.close()
            pages.close()
        relation = {"requires": [_required(requirement) for requirement in requires]}
        wacz.add_datapackage(
            {
                "profile": "data-package",
                "wacz_version": WACZ_VERSION,
                "crawlId": crawl,
                "title": title or crawl,
                "software": software,
                "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                **({"dedupePayload": payload} if payload != "stored" else {}),
                **({"relation": relation} if requires else {}),
            }
        )
        sha256, size = wacz.finish()
    return PackedWacz(target, sha256, size, captures, pages.count)


def write_multi_wacz(target: Path, resources: Sequence[WaczResource]) -> None:
    """Write the multi-WACZ file *target*, replacing an older one. Raises ArchiveError."""
    target = Path(target)
    entries = []
    for resource in resources:
        entry: dict[str, object] = {"name": resource.name, "path": resource.path}
        if resource.sha256 is not None:
            entry["hash"] = f"sha256:{resource.sha256}"
        if resource.size is not None:  # the specification of resources says bytes, Browsertrix says size
            entry["bytes"] = entry["size"] = resource.size
        entries.append({**entry, "crawlId": resource.crawl})
    data = json_bytes({"profile": "multi-wacz-package", "resources": entries})
    try:
        whole_file.replace(target, data)
    except OSError as error:
        raise ArchiveError(
            f"{target} cannot be written: {error.strerror}. Free some space or choose another folder for WACZ "
            "files."
        ) from error


def _refuse_names(files: Sequence[Path], target: Path) -> None:
    if not files:
        raise ArchiveError(f"{target} would contain no WARC file; a WACZ needs at least one.")
    seen: dict[str, Path] = {}
    for file in files:
        if not _WARC_NAME.fullmatch(file.name):
            raise ArchiveError(f"{file} cannot be packed: only finished files named .warc or .warc.gz can.")
        if file.name in seen:
            raise ArchiveError(
                f"{seen[file.name]} and {file} would have the same name in {target}. Rename one."
            )
        seen[file.name] = file
    if target.exists():
        raise name_is_taken(target)


@contextlib.contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"{target} cannot be written: {error.strerror or error}. The WARC files are unchanged; free some "
            "space or choose another folder for WACZ files, then pack it again."
        ) from error


def _entries(
    file: Path, page_of: Callable[[StoredRecord], WaczPage | None], on_read: Callable[[int], None]
) -> Iterator[tuple[CdxLine | None, WaczPage | None]]:
    """Yield the index lines and pages of a WARC file. Raises ArchiveError if not all of it can be read."""
    try:
        for record, request in paired(_warc_records(file, on_read)):
            # Only a response to GET is a page.
            is_page = record.type in INDEXED_TYPES and (request is None or method_of(request) == "GET")
            yield (
                cdx_line(record, file.name, request) if is_indexed(record) else None,
                page_of(record) if is_page else None,
            )
    except DamagedInput as error:
        raise ArchiveError(
            f"{file} is damaged and was not packed, because the WACZ would lack records: {error}"
        ) from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _warc_records(file: Path, on_read: Callable[[int], None]) -> Iterator[StoredRecord]:
    offset = 0
    for record in read_records(file):
        if record.format == "arc":
            raise ArchiveError(
                f"{file} is an ARC file, but a WACZ can contain only WARC files. "
                "Convert it with scrapy-dedupe arc2warc."
            )
        on_read(record.offset - offset)
        offset = record.offset
        yield record


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise _unreadable(file, error) from error


def _pieces_of(file: Path, size: int, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the bytes of a WARC file. Raises ArchiveError if its size is no longer *size* bytes."""
    missing = size
    try:
        with file.open("rb", buffering=0) as stream:
            while missing >= 0 and (piece := stream.read(PIECE_BYTES)):
                missing -= len(piece)
                yield piece
                on_read(len(piece))
    except OSError as error:
        raise _unreadable(file, error) from error
    if missing:
        raise ArchiveError(
            f"{file} changed its size while it was packed. Pack it again when no other program writes to it."
        )


def _unreadable(file: Path, error: OSError) -> ArchiveError:
    return ArchiveError(
        f"{file} cannot be read: {error.strerror or error}. Check that it exists and check its permissions."
    )


def _add_index(wacz: OpenWacz, sorter: LineSorter) -> None:
    if sorter.lines < PLAIN_LINES:
        wacz.add("indexes/index.cdx", sorter.sorted_lines(), sorter.size_bytes)
        return
    members = (member for member, _ in zipnum_blocks(sorter.sorted_lines()))
    wacz.add("indexes/index.cdx.gz", members, sorter.size_bytes)
    folder = wacz.target.parent
    by_wabac = LineSorter(folder)
    try:
        for line in rekeyed(sorter.sorted_lines()):
            by_wabac.add(line)
        with tempfile.TemporaryFile(dir=folder, prefix=".idx-") as idx:
            idx.write(idx_head("index.cdxj.gz"))
            wacz.add("indexes/index.cdxj.gz", _members(by_wabac.sorted_lines(), idx), by_wabac.size_bytes)
            size = idx.tell()
            idx.seek(0)
            wacz.add("indexes/index.idx", idx, size)
    finally:
        by_wabac.close()


def _members(lines: Iterator[bytes], idx: IO[bytes]) -> Iterator[bytes]:
    for member, line in zipnum_blocks(lines):
        idx.write(line)
        yield member


class _PageList:
    """The lines of pages.jsonl, in a temporary file: the head is known only after the last page."""

    def __init__(self, folder: Path, has_text: bool) -> None:
        self.count = 0
        self._has_text = has_text
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".pages-")  # noqa: SIM115 - see close()

    def add(self, page: WaczPage) -> None:
        values = {"url": page.url, "title": page.title, "ts": page.date, "text": page.text}
        known = {name: value for name, value in values.items() if value is not None}
        self._has_text = self._has_text or page.text is not None
        self._file.write(json.dumps({"id": str(uuid.uuid4()), **known}).encode() + b"\n")
        self.count += 1

    @property
    def size_bytes(self) -> int:
        return len(self._head()) + self._file.tell()

    def pieces(self) -> Iterator[bytes]:
        yield self._head()
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._file.close()

    def _head(self) -> bytes:
        head = {"format": "json-pages-1.0", "id": "pages", "title": "Pages", "hasText": self._has_text}
        return json.dumps(head).encode() + b"\n"


def _required(requirement: Requirement) -> dict[str, object]:
    values = {
        "filename": requirement.filename,
        "hash": requirement.hash,
        "size": requirement.size,
        "crawlId": requirement.crawl,
    }
    return {name: value for name, value in values.items() if value is not None}
