"""Adds a claimed source completely: a WACZ, a WARC or ARC file, or a CDXJ.

A source is checked as a whole first: its type, its size and, if requested, its hash in the manifest, and whether its
index unpacks to the end. Only then are records added. A WACZ without an index is added from its WARC files.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol, Self

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.stores.base import Need
from scrapy_dedupe.warc.cdxj_reading import cdxj_lines
from scrapy_dedupe.warc.codings import payload_mode
from scrapy_dedupe.warc.remote import is_url, open_in_order, place_file, shown
from scrapy_dedupe.warc.wacz_reading import StoredWacz

from .import_entries import SourceEntries
from .index import PAYLOAD_MODES
from .places import size_of
from .sources import first_record, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import IO

    from scrapy_dedupe.stores.base import Source
    from scrapy_dedupe.warc.sources import ReadableFile
    from scrapy_dedupe.warc.wacz import Requirement

    from .import_entries import EnteredSource
    from .index import CrawlIndex

_BATCH = 1_000
_PIECE_BYTES = 1 << 20
_QUERY = re.compile(r"[?#]")


class Alive(Protocol):
    """Called often during the work on a source, whenever it may be stopped; ``share`` of it is done."""

    def __call__(self, share: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """Options for adding a source.

    ``payload`` is the mode of all sources, None to use the source's metadata; ``else_payload`` returns the mode of a
    source without metadata. ``verify``: the hash of a container is compared, not only its size. ``is_last``: its crawl
    gets no other source.
    """

    payload: str | None
    else_payload: Callable[[], str]
    verify: bool = False
    is_last: bool = False


def enter_source(
    index: CrawlIndex,
    source: Source,
    options: EntryOptions,
    *,
    alive: Alive,
    on_fault: Callable[[str], None],
) -> EnteredSource | None:
    """Add a claimed source completely; None for a container that its crawl already has under another name.

    ``on_fault`` is called with a sentence for each skipped line or record. Raises
    :class:`~scrapy_dedupe.errors.DamagedInput` or :class:`~scrapy_dedupe.errors.ArchiveError` for a broken source, and
    what the index raises. Records that were already added are hidden then and must be dropped.
    """
    file = place_file(source.place)
    kind = kind_of(file)
    if source.is_container != (kind == "wacz") or kind == "manifest":
        raise DamagedInput(
            f"{shown(str(file))} is not a {'WACZ' if source.is_container else 'WARC, ARC or CDXJ file'}."
        )
    try:
        if kind == "wacz":
            return _enter_container(index, source, file, options, alive, on_fault)
        size = _checked_size(source, size_of(file))
        if options.verify and source.hash is not None:
            _checked_hash(source, file, size, alive)
        if kind == "warc":
            return _enter_records(index, source, file, options, alive, on_fault)
        return _enter_lines(index, source, file, options, alive, on_fault)
    except OSError as error:
        # Temporary files may be full, and the source may become unreadable.
        raise ArchiveError(f"{shown(source.place)} cannot be imported: {error.strerror or error}.") from error


def _enter_container(
    index: CrawlIndex,
    source: Source,
    file: ReadableFile,
    options: EntryOptions,
    alive: Alive,
    on_fault: Callable[[str], None],
) -> EnteredSource | None:
    wacz = StoredWacz(file)
    size = _checked_size(source, wacz.size_bytes)
    is_local = isinstance(file, Path)
    others = [entry for entry in index.containers(source.crawl) if entry.get("filename") != source.name]
    may_be_known = any(entry.get("size") == size for entry in others)
    hash_ = source.hash
    if (hash_ is None and (is_local or may_be_known)) or options.verify:
        hash_ = _checked_hash(source, file, size, alive)
    if hash_ is not None and any(entry.get("hash") == hash_ for entry in others):
        return None
    source = replace(source, hash=hash_, size=size)
    about = wacz.about
    payload = options.payload or about.payload or payload_mode(about.software) or options.else_payload()
    with _Lines(alive) as lines:
        if wacz.has_index:
            lines.count(wacz.index_lines(), keep=not is_local)
        place = index.begin_source(source, payload)
        needs = required(index, about.requires, source.crawl)
        with SourceEntries(
            index, source, place, is_last=options.is_last, alive=alive, on_fault=on_fault
        ) as entering:
            if wacz.has_index:
                entering.take_lines(lines.again(wacz.index_lines), members_by_name(wacz.files))
            else:
                for number, member in enumerate(wacz.files):
                    alive(number / len(wacz.files))
                    entering.take_records(member, lambda offset: alive())
            return entering.finish(size, needs)


def _enter_records(
    index: CrawlIndex,
    source: Source,
    file: ReadableFile,
    options: EntryOptions,
    alive: Alive,
    on_fault: Callable[[str], None],
) -> EnteredSource:
    first, size = first_record(file), size_of(file)
    info = first.info() if first is not None and first.type == "warcinfo" else {}
    own = info.get("dedupe-payload")
    payload = (
        options.payload
        or (own if own in PAYLOAD_MODES else None)
        or payload_mode(info.get("software"))
        or options.else_payload()
    )
    index.begin_source(source, payload)
    with SourceEntries(index, source, 0, is_last=options.is_last, alive=alive, on_fault=on_fault) as entering:
        entering.take_records(file, lambda offset: alive(offset / size))
        return entering.finish(size)


def _enter_lines(
    index: CrawlIndex,
    source: Source,
    file: ReadableFile,
    options: EntryOptions,
    alive: Alive,
    on_fault: Callable[[str], None],
) -> EnteredSource:
    with _Lines(alive) as lines:
        lines.count(cdxj_lines(file), keep=not isinstance(file, Path))
        index.begin_source(source, options.payload or options.else_payload())
        with SourceEntries(
            index, source, 0, is_last=options.is_last, alive=alive, on_fault=on_fault
        ) as entering:
            size = entering.take_lines(lines.again(lambda: cdxj_lines(file)), files_beside(source.place))
            entered = entering.finish(size)
            # Remote files are not checked, to avoid a request for each.
            absent = (name for name in entering.files if not is_url(name) and not Path(name).is_file())
            return replace(entered, absent=tuple(absent))


class _Lines:
    """The lines of an index, read twice: the index must unpack to its end before any line is added.

    Lines of remote files are kept in a temporary file in between.
    """

    def __init__(self, alive: Alive) -> None:
        self._alive = alive
        self._count = 0
        self._kept: IO[bytes] | None = None

    def count(self, lines: Iterable[bytes], *, keep: bool) -> None:
        """Read the lines for the first time."""
        self._kept = tempfile.TemporaryFile(prefix="scrapy-dedupe-") if keep else None  # noqa: SIM115
        for line in lines:
            self._count += 1
            if self._kept is not None:
                self._kept.write(line.rstrip(b"\r\n") + b"\n")
            if not self._count % _BATCH:
                self._alive()

    def again(self, lines: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the lines for the second time, from *lines* if they were not kept."""
        if self._kept is not None:
            self._kept.seek(0)
        for number, line in enumerate(lines() if self._kept is None else self._kept):
            if not number % _BATCH:
                self._alive(number / self._count)
            yield line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is not None:
            self._kept.close()


def files_beside(place: str) -> Callable[[str], str]:
    """Return the location of the WARC files that a CDXJ names: relative paths at or below its own folder."""
    # The query of a URL may have slashes too.
    path = _QUERY.split(place, maxsplit=1)[0] if is_url(place) else place
    folder, slash, _ = path.rpartition("/")

    @lru_cache(4_096)
    def file_of(filename: str) -> str:
        name = PurePosixPath(filename)
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in filename:
            raise DamagedInput(f"the file {filename!r} is not below the folder of the CDXJ.")
        return f"{folder}{slash}{name}"

    return file_of


def _checked_size(source: Source, size: int) -> int:
    if source.size is not None and source.size != size:
        raise DamagedInput(
            f"{shown(source.place)} has {size} bytes, but the manifest says {source.size}: another or incomplete file."
        )
    return size


def _checked_hash(source: Source, file: ReadableFile, size: int, alive: Alive) -> str:
    digest, taken = sha256_and_size(file, alive)
    if source.hash is not None and source.hash != digest:
        raise DamagedInput(
            f"{shown(source.place)} has the SHA-256 {digest}, but the manifest says {source.hash}: it is another file, or"
            " damaged."
        )
    if taken != size:
        raise DamagedInput(
            f"{shown(source.place)} changed while it was read. Import it again when no other program writes to it."
        )
    return digest


def sha256_and_size(file: ReadableFile, alive: Callable[[], None]) -> tuple[str, int]:
    """The SHA-256 of a file in bare hex, and its size in bytes. Raises ArchiveError or OSError."""
    digest = hashlib.sha256()
    size = 0
    with open_in_order(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            alive()
    return digest.hexdigest(), size


def members_by_name(files: Sequence[ReadableFile]) -> Callable[[str], str]:
    """Return the location of the WARC files of a WACZ by their names in its index, with or without folders."""
    places: dict[str, list[str]] = {}
    for file in files:
        path = str(file).rpartition("/archive/")[2]
        for name in {path, file.name}:
            places.setdefault(name, []).append(str(file))

    @lru_cache(4_096)
    def file_of(filename: str) -> str:
        found = places.get(filename) or places.get(PurePosixPath(filename).name) or []
        if len(found) != 1:
            wrong = "are several files" if found else "is no file"
            raise DamagedInput(f"there {wrong} {filename!r} in the folder archive/ of the WACZ.")
        return found[0]

    return file_of


def required(index: CrawlIndex, requires: Sequence[Requirement], crawl: str) -> set[Need]:
    """Return what a WACZ of *crawl* needs, by its metadata. A container that is not in the index is given by file name."""
    containers: dict[str, list[object]] = {}
    needs: set[Need] = set()
    for requirement in requires:
        if not requirement.crawl or requirement.crawl == crawl:
            continue
        if requirement.crawl not in containers:
            containers[requirement.crawl] = [
                container.get("filename") for container in index.containers(requirement.crawl)
            ]
        known = containers[requirement.crawl]
        if requirement.filename in known:
            needs.add(Need(requirement.crawl, known.index(requirement.filename)))
        else:
            needs.add(Need(requirement.crawl, 0, requirement.filename))
    return needs
