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

- It takes a bounded amount of memory, regardless of the number and size of the records.
- The WACZ contains every record of the files and a line for each that can be replayed, or it is not created: a damaged
  WARC, a full disk or a file that changes while it is read are errors, and no file remains.
- The file is named TARGET.open until it is synced, and no other file is overwritten. A TARGET.open that a killed process
  left is reused by the next process that packs the same WACZ.
- The same files give the same bytes, except for the ids of pages and the time of creation.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import uuid
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.locks import is_same_file, lock
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX, is_warc_name
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
from scrapy_dedupe.warc.files import give_final_name
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.url_keys import load_surt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from scrapy_dedupe.warc.cdxj import CdxLine
    from scrapy_dedupe.warc.reading import StoredRecord

WACZ_VERSION = "1.1.1"
PLAIN_LINES = 50_000

_PIECE_BYTES = 1 << 20
_UNUSUAL = re.compile(r"[^a-z0-9._-]+")

_UNSAFE = re.compile(r"[/\\\x00-\x1f]")


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
    by default now. *on_read* is called with the number of bytes read from *files*; each file is read twice.

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
    with _write_errors(target), contextlib.ExitStack() as opened:
        wacz = opened.enter_context(_OpenWacz(target, created))
        sorter = opened.enter_context(contextlib.closing(LineSorter(target.parent)))
        # In a temporary file, since the head of the list is known only after the last page.
        pages = opened.enter_context(tempfile.TemporaryFile(dir=target.parent, prefix=".pages-"))
        page_count = 0
        for file in files:
            with _read_errors(file):
                size = file.stat().st_size
            for line, page in _entries(file, page_of, on_read):
                if line is not None:
                    sorter.add(line)
                if page is not None:
                    has_text = has_text or page.text is not None
                    pages.write(_page_line(page))
                    page_count += 1
            wacz.add(f"archive/{file.name}", _pieces_of(file, size, on_read), size)
        _add_index(wacz, sorter)
        head = {"format": "json-pages-1.0", "id": "pages", "title": "Pages", "hasText": has_text}
        head_line, pages_bytes = json.dumps(head).encode() + b"\n", pages.tell()
        pages.seek(0)
        wacz.add("pages/pages.jsonl", chain([head_line], pages), len(head_line) + pages_bytes)
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
    return PackedWacz(target, sha256, size, sorter.lines, page_count)


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
    data = _json_bytes({"profile": "multi-wacz-package", "resources": entries})
    try:
        whole_file.replace(target, data)
    except OSError as error:
        raise ArchiveError(
            f"{target} cannot be written: {error.strerror}. Free some space or choose another folder for WACZ "
            "files."
        ) from error


def _refuse_names(files: Sequence[Path], target: Path) -> None:
    if not files:
        raise ArchiveError(
            f"{target} would contain no WARC file; a WACZ needs at least one. Name WARC files."
        )
    seen: dict[str, Path] = {}
    for file in files:
        if not is_warc_name(file.name) or _UNSAFE.search(file.name):
            raise ArchiveError(
                f"{file} cannot be packed: only finished files named .warc or .warc.gz can. Repair a file *{OPEN_SUFFIX} with"
                " warc salvage first; rename others."
            )
        if file.name in seen:
            raise ArchiveError(
                f"{seen[file.name]} and {file} would have the same name in {target}. Rename one."
            )
        seen[file.name] = file
    if target.exists():
        raise _name_is_taken(target)


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
    with _read_errors(file):
        for record, request in paired(_warc_records(file, on_read)):
            # Only a response to GET is a page.
            is_page = record.type in INDEXED_TYPES and (request is None or method_of(request) in ("GET", ""))
            line = cdx_line(record, file.name, request) if is_indexed(record) else None
            yield line, page_of(record) if is_page else None


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


def _pieces_of(file: Path, size: int, on_read: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the bytes of a WARC file. Raises ArchiveError if its size is no longer *size* bytes."""
    missing = size
    with _read_errors(file), file.open("rb", buffering=0) as stream:
        while missing >= 0 and (piece := stream.read(_PIECE_BYTES)):
            missing -= len(piece)
            yield piece
            on_read(len(piece))
    if missing:
        raise ArchiveError(
            f"{file} changed its size while it was packed. Pack it again when no other program writes to it."
        )


@contextlib.contextmanager
def _read_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except DamagedInput as error:
        raise ArchiveError(
            f"{file} is damaged and was not packed, because the WACZ would lack records: {error}"
        ) from error
    except OSError as error:
        raise ArchiveError(
            f"{file} cannot be read: {error.strerror or error}. Check that it exists and check its permissions."
        ) from error


def _add_index(wacz: _OpenWacz, sorter: LineSorter) -> None:
    if sorter.lines < PLAIN_LINES:
        wacz.add("indexes/index.cdx", sorter.sorted_lines(), sorter.size_bytes)
        return
    members = (member for member, _ in zipnum_blocks(sorter.sorted_lines()))
    wacz.add("indexes/index.cdx.gz", members, sorter.size_bytes)
    folder = wacz.target.parent
    with (
        contextlib.closing(LineSorter(folder)) as by_wabac,
        tempfile.TemporaryFile(dir=folder, prefix=".idx-") as idx,
    ):
        for line in rekeyed(sorter.sorted_lines()):
            by_wabac.add(line)
        idx.write(idx_head("index.cdxj.gz"))
        wacz.add("indexes/index.cdxj.gz", _members(by_wabac.sorted_lines(), idx), by_wabac.size_bytes)
        size = idx.tell()
        idx.seek(0)
        wacz.add("indexes/index.idx", idx, size)


def _members(lines: Iterator[bytes], idx: IO[bytes]) -> Iterator[bytes]:
    for member, line in zipnum_blocks(lines):
        idx.write(line)
        yield member


def _page_line(page: WaczPage) -> bytes:
    known = _known({"url": page.url, "title": page.title, "ts": page.date, "text": page.text})
    return json.dumps({"id": str(uuid.uuid4()), **known}).encode() + b"\n"


def _required(requirement: Requirement) -> dict[str, object]:
    return _known(
        {
            "filename": requirement.filename,
            "hash": requirement.hash,
            "size": requirement.size,
            "crawlId": requirement.crawl,
        }
    )


def _known(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


class _OpenWacz:
    """The ZIP file during writing, locked. It is removed on exit unless `finish` was called."""

    def __init__(self, target: Path, created: datetime) -> None:
        self.target = target
        self._path_open = path = target.with_name(target.name + OPEN_SUFFIX)
        self._date = created.timetuple()[:6]
        self._resources: list[dict[str, object]] = []
        self._is_finished = False
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        if not lock(fd) or not is_same_file(fd, path):
            os.close(fd)
            raise ArchiveError(
                f"{path} is being written by another process. Wait until that process has finished."
            )
        os.ftruncate(fd, 0)
        self._file = io.BufferedRandom(io.FileIO(fd, "r+"), _PIECE_BYTES)
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_finished:
            self._file.close()
            return
        # zipfile writes the end of the archive in any case. Only the first failure should be reported.
        for close in (self._path_open.unlink, self._zip.close, self._file.close):
            with contextlib.suppress(OSError):
                close()

    def add(self, path: str, pieces: Iterable[bytes], max_size: int) -> None:
        """Add a member of at most *max_size* bytes; it is listed in datapackage.json."""
        sha256 = hashlib.sha256()
        size = 0
        with self._zip.open(self._member(path, max_size), "w") as member:
            for piece in pieces:
                member.write(piece)
                sha256.update(piece)
                size += len(piece)
        self._resources.append(
            {
                "name": self._resource_name(path),
                "path": path,
                "hash": f"sha256:{sha256.hexdigest()}",
                "bytes": size,
            }
        )

    def add_datapackage(self, about: Mapping[str, object]) -> None:
        """Add the last two members: *about* with the list of all others, and its digest."""
        data = _json_bytes({**about, "resources": self._resources})
        digest = _json_bytes(
            {"path": "datapackage.json", "hash": f"sha256:{hashlib.sha256(data).hexdigest()}"}
        )
        for path, content in (("datapackage.json", data), ("datapackage-digest.json", digest)):
            with self._zip.open(self._member(path, len(content)), "w") as member:
                member.write(content)

    def finish(self) -> tuple[str, int]:
        """Complete the file, sync it and give it its final name; return its SHA-256 in hex and its size."""
        self._zip.close()
        self._file.seek(0)
        # Of the whole file at the end, since the heads of members are written after their content.
        sha256 = hashlib.file_digest(self._file, "sha256").hexdigest()
        size = self._file.tell()
        whole_file.sync(self._file)
        try:
            give_final_name(self._path_open)
        except ArchiveError:
            raise _name_is_taken(self.target) from None
        self._is_finished = True
        return sha256, size

    def _member(self, path: str, max_size: int) -> zipfile.ZipInfo:
        member = zipfile.ZipInfo(path, self._date)
        member.external_attr = 0o100644 << 16
        member.file_size = max_size  # decides whether the member's head has room for 64-bit sizes
        return member

    def _resource_name(self, path: str) -> str:
        # Data packages require distinct lower-case names, which WARC files of other programs may not have.
        name = _UNUSUAL.sub("_", path.rpartition("/")[2].lower())
        taken = {resource["name"] for resource in self._resources}
        names = chain([name], (f"{number}-{name}" for number in count(2)))
        return next(unique for unique in names if unique not in taken)


def _json_bytes(value: object) -> bytes:
    """Return *value* as the text of a small JSON file."""
    return json.dumps(value, indent=2).encode() + b"\n"


def _name_is_taken(target: Path) -> ArchiveError:
    """Return the error for a WACZ whose name is taken by another file."""
    return ArchiveError(
        f"{target} already exists and is not overwritten, since revisits elsewhere may refer to it. "
        "Choose another name or move it away."
    )
