"""The WARC files of a crawl, and their current locations.

The index names the files. A file is named by its path, or by its URL if it is remote. During writing it also has the
suffix ``.open``. A file that exists only in a WACZ is named ``PLACE.wacz/archive/NAME``, with the path or URL of the WACZ.

A file that the index does not name belongs to the crawl that its first record, the warcinfo, names in the field
``isPartOf``. The field ``dedupe-payload`` is ``stored`` or ``decoded``: the bodies that the digests are computed from;
without it, they are ``stored``.

A missing file may be in another folder under the same name, by itself or in its WACZ. It is accepted only if it belongs
to the crawl: its warcinfo names the crawl, or it is the imported WACZ, or records begin where entries say.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from os.path import isfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, CrawlStateError, DedupeError
from scrapy_dedupe.tasks.progress import NO_PROGRESS, Reached
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX
from scrapy_dedupe.warc.capture import target_uri
from scrapy_dedupe.warc.codings import DECODED, STORED
from scrapy_dedupe.warc.containers import WACZ_SUFFIX, files_in
from scrapy_dedupe.warc.files import warc_files
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.references import CaptureTable, reference_of
from scrapy_dedupe.warc.remote import RemoteFile, is_url, open_in_order, shown, url_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader
    from typing import Literal

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.framing import Damage
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.sources import ReadableFile

    from .sorted_entries import Entry, SortedEntries

PAYLOAD_FIELD = "dedupe-payload"

_TRIED_ENTRIES = 10
_FOLDER = "/archive/"
_PIECE_BYTES = 1 << 20


def warcinfo_of(file: ReadableFile) -> dict[str, str]:
    """The fields of the warcinfo at the beginning of a file, names in lower case; empty if there is none.

    Raises OSError, or :class:`~scrapy_dedupe.errors.ArchiveError` for a remote file.
    """
    first = next(read_records(file, on_damage=lambda damage: None), None)
    return first.info() if first is not None and first.type == "warcinfo" else {}


def crawl_of(file: ReadableFile) -> str | None:
    """The crawl that the warcinfo of a file names."""
    with suppress(OSError):
        return warcinfo_of(file).get("ispartof")
    return None


def payload_of_files(crawl: str, folder: Path) -> str | None:
    """The payload mode of the files of a crawl in *folder*, finished or not; None if there are none.

    Raises :class:`~scrapy_dedupe.errors.CrawlStateError` if the files have different modes.
    """
    found: dict[str, Path] = {}
    for path in warc_files(folder, unfinished=True):
        with suppress(OSError):
            info = warcinfo_of(path)
            if info.get("ispartof") == crawl:
                found.setdefault(DECODED if info.get(PAYLOAD_FIELD) == DECODED else STORED, path)
    if len(found) > 1:
        raise CrawlStateError(
            f"The crawl {crawl} has files with stored payloads ({found[STORED]}) and with decoded ones"
            f" ({found[DECODED]}), but an index holds only one kind. Move those of one kind to another folder."
        )
    return next(iter(found), None)


def named_files(index: CrawlIndex, crawl: str) -> tuple[str, ...]:
    """The names of the files of a crawl in the index."""
    info = index.crawl(crawl)
    return () if info is None else info.files


def files_of(index: CrawlIndex, crawl: str, folder: Path) -> list[ReadableFile]:
    """The finished files of a crawl, in the order of their names: those that the index names and those in *folder*."""
    named = (readable(name) for name in named_files(index, crawl))
    found = {str(file): file for file in named if file is not None and not file.name.endswith(OPEN_SUFFIX)}
    # While a file is moved, it briefly exists in both places.
    names = {file.name for file in found.values()}
    for path in warc_files(folder.absolute()):
        if path.name not in names and crawl_of(path) == crawl:
            found[str(path)] = path
    return sorted(found.values(), key=lambda file: file.name)


def missing_files(index: CrawlIndex, crawl: str, found: Iterable[ReadableFile]) -> list[str]:
    """The files of a crawl, by their names in the index, that are not among *found*."""
    names = {file.name for file in found}
    return [name for name in named_files(index, crawl) if PurePosixPath(name).name not in names]


def unfinished_files(index: CrawlIndex, crawl: str, folder: Path) -> list[Path]:
    """The files of a crawl that have no final name yet."""
    # The index has full paths, independent of the working directory; the folder may have other files.
    named = {Path(f"{name}{OPEN_SUFFIX}") for name in named_files(index, crawl)}
    found = {path for path in named if path.exists()}
    if folder.is_dir():
        paths = folder.absolute().glob(f"*{OPEN_SUFFIX}")
        found.update(path for path in paths if path not in found and crawl_of(path) == crawl)
    return sorted(found)


@dataclass(slots=True)
class CrawlFiles:
    """The files of a crawl, by their names in the index.

    ``present`` files can be read. Of these, ``moved`` files are somewhere else than the index says (mapped to their
    current location), ``unnamed`` files are not named by the index, and ``unfinished`` files have no final name yet.
    ``gone`` files do not exist; ``unreachable`` files are remote and currently do not answer (mapped to the reason).
    """

    present: dict[str, ReadableFile] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)

    @property
    def are_only_moved(self) -> bool:
        """Whether the only problem is that files were moved."""
        return bool(self.moved) and not (self.gone or self.unreachable or self.unnamed or self.unfinished)


@dataclass(slots=True)
class FileSearch:
    """Finds the files of a crawl, in *folders* if they are not where the index says.

    ``ledger`` holds the entries of the crawl, ``containers`` are its WACZ files in the index, and ``owners`` maps each
    file to its crawl in the index.
    """

    info: CrawlInfo
    folders: Sequence[Path]
    ledger: SortedEntries
    containers: Sequence[Mapping[str, object]]
    owners: Mapping[str, str]
    _known: dict[Path, bool] = field(default_factory=dict)

    def files(self, strays: Sequence[Path]) -> CrawlFiles:
        """The files of the crawl. ``strays`` are the files in the folders whose warcinfo names it."""
        files = CrawlFiles()
        for name in self.info.files:
            self._find(files, name)
        known = {file.name.removesuffix(OPEN_SUFFIX) for file in files.present.values()}
        known |= {PurePosixPath(name).name for name in files.unreachable}
        for path in strays:
            if path.name.removesuffix(OPEN_SUFFIX) not in known:
                files.present[str(path)] = path
                # The index does not name imported files without an original.
                if not self.info.imported:
                    files.unnamed.append(str(path))
        if self.info.imported:
            _add_other_members(files)
        return files

    def _find(self, files: CrawlFiles, name: str) -> None:
        file = readable(name)
        if file is not None and is_url(name):
            try:
                with file.open("rb"):
                    pass
            except DedupeError as error:
                files.unreachable[name] = str(error)
                return
        if file is None:
            candidates = (_in_folder(name, folder) for folder in self.folders)
            file = next((found for found in candidates if found and self._is_it(name, found)), None)
            if file is None:
                files.gone.append(name)
                return
            files.moved[name] = str(file)
        files.present[name] = file
        if file.name.endswith(OPEN_SUFFIX):
            files.unfinished.append(name)

    def _is_it(self, name: str, file: ReadableFile) -> bool:
        """Whether *file* is the file that is called *name* in the index."""
        if self.owners.get(str(file).removesuffix(OPEN_SUFFIX), self.info.id) != self.info.id:
            return False
        try:
            named = crawl_of(file)
            if named is not None and not self.info.is_foreign:
                return named == self.info.id
            entries = list(islice(self.ledger.of_file(name), _TRIED_ENTRIES))
            if entries:
                return any(_is_met(entry, file) for entry in entries)
            container = _container(file)
            return named == self.info.id or (container is not None and self._is_its_container(container))
        except (DedupeError, OSError):
            return False

    def _is_its_container(self, container: Path) -> bool:
        hashes = (known.get("hash") for known in self.containers if known.get("filename") == container.name)
        hash_ = next(hashes, None)
        if container not in self._known and hash_ is not None:
            self._known[container] = sha256_of(container)[0] == hash_
        return self._known.get(container, False)


def strays_by_crawl(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The finished WARC files in *folders*, by the crawl that their warcinfo names."""
    found: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        for path in warc_files(folder):
            if (crawl := crawl_of(path)) is not None:
                found.setdefault(crawl, []).append(path)
    return found


def files_in_folders(folders: Sequence[Path]) -> Iterator[ReadableFile]:
    """All finished WARC files in *folders*, including those in WACZ files."""
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        if not folder.is_dir():
            continue
        yield from warc_files(folder)
        for container in sorted(folder.glob(f"*{WACZ_SUFFIX}")):
            try:
                yield from files_in(container)
            except (DedupeError, OSError):
                # The check of the crawl to which the container belongs reports the error.
                continue


def _in_folder(name: str, folder: Path) -> ReadableFile | None:
    """A file with this name in another folder, by itself or in the WACZ that it was in."""
    path = PurePosixPath(name)
    container = next((parent for parent in path.parents if parent.suffix == WACZ_SUFFIX), None)
    inner = path.name if container is None else str(path.relative_to(container.parent))
    return readable(str(folder.absolute() / inner))


def _add_other_members(files: CrawlFiles) -> None:
    """Add the members of WACZ files that hold no original: the index does not name them, but counts their records."""
    containers = dict.fromkeys(filter(None, map(_container, files.present.values())))
    names = {str(file) for file in files.present.values()}
    for container in containers:
        for member in files_in(container):
            if str(member) not in names:
                files.present[str(member)] = member


def _is_met(entry: Entry, file: ReadableFile) -> bool:
    try:
        record = read_record(file, entry.offset)
    except (DedupeError, OSError):
        return False
    return record.type == "response" and not entry.differences(record)


def _container(file: ReadableFile) -> Path | None:
    container = getattr(file, "container", None)
    return container if isinstance(container, Path) else None


@dataclass(eq=False)
class CrawlArchive:
    """The records in the WARC files of one crawl.

    The index knows payloads, not URLs, so all files of the crawl are read: the files that the index names, at their
    current locations, and the files in *folder* whose warcinfo names the crawl. ``paths`` are the existing ones,
    including those in its WACZ.

    ``on_damage`` is called for every damaged place that is skipped. Raises
    :class:`~scrapy_dedupe.errors.StoreError`.
    """

    index: CrawlIndex
    crawl: str
    folder: Path
    on_damage: Callable[[Damage], None]
    _captures: CaptureTable | None = None

    def __post_init__(self) -> None:
        named = (self._present(name) for name in named_files(self.index, self.crawl))
        found = {str(file): file for file in named if file is not None}
        for path in warc_files(self.folder.absolute(), unfinished=True):
            if str(path) not in found and crawl_of(path) == self.crawl:
                found[str(path)] = path
        self.paths: list[ReadableFile] = list(found.values())

    def exchanges(self, urls: Collection[str], watch: Progress = NO_PROGRESS) -> Iterator[StoredRecord]:
        """The ``response`` and ``revisit`` records of *urls*, in the order in which they were written."""
        wanted = {target_uri(url) for url in urls if url.startswith(("http://", "https://"))}
        if not wanted:
            return
        for path in self.paths:
            reached = Reached(watch)
            for record in read_records(path, on_damage=self.on_damage):
                reached(record.offset)
                if record.type in ("response", "revisit") and record.target_uri in wanted:
                    yield record

    def original(self, revisit: StoredRecord) -> StoredRecord | None:
        """The record that a revisit refers to; None if it is not where the index says, or in none of the files."""
        digest = revisit.payload_digest
        entry = None if digest is None else self.index.find(self.crawl, [digest.value])[0]
        try:
            if entry is not None:
                path = None if entry.file is None else self._present(entry.file)
                if path is None or entry.offset is None:
                    return None
                record = read_record(path, entry.offset)
                is_it = record.type == "response" and record.payload_digest == digest
                return record if is_it else None
            # The index knows originals only by their digests.
            if self._captures is None:
                self._captures = CaptureTable()
                for path in self.paths:
                    for record in read_records(path, on_damage=lambda damage: None):
                        self._captures.add(record)
            found = self._captures.original(reference_of(revisit))
            return None if found is None else self._captures.record_of(found)
        except (DedupeError, OSError):
            return None

    def close(self) -> None:
        """Delete the temporary table of captures."""
        if self._captures is not None:
            self._captures.close()

    def _present(self, name: str) -> ReadableFile | None:
        found = readable(name)
        return readable(str(self.folder.absolute() / Path(name).name)) if found is None else found


def present_path(file: str) -> Path | None:
    """The file under its final name, or under its name during writing; None if neither exists."""
    for name in (file, f"{file}{OPEN_SUFFIX}"):
        if isfile(name):  # noqa: PTH113 - a path takes five times as long
            return _path(name)
    return None


# A crawl reads a million records of few files.
_path = lru_cache(1_024)(Path)


def is_present(file: str) -> bool:
    """Whether a file is where the index says; remote files are assumed to exist."""
    return present_path(file) is not None or is_url(file) or _local_container(file) is not None


def readable(file: str) -> ReadableFile | None:
    """A readable file object; None if the file does not exist. Remote files are checked only when they are opened."""
    if is_url(file):
        url = _remote_container(file)
        return RemoteFile(file) if url is None else RemoteMember(url, file[len(url) + 1 :])
    path = present_path(file)
    container = _local_container(file) if path is None else None
    if container is None:
        return path
    with suppress(DedupeError):
        return _member(files_in(container), str(Path(file).absolute()))
    return None


def size_of(file: ReadableFile) -> int:
    """The size of a file in bytes."""
    with file.open("rb") as stream:
        return stream.seek(0, 2)


def sizes_of(files: Iterable[ReadableFile]) -> int:
    """The total size of files in bytes, for progress reports; 0 if some of them are remote."""
    total = 0
    for file in files:
        if isinstance(file, RemoteFile | RemoteMember):
            return 0
        with suppress(OSError, DedupeError):
            total += size_of(file)
    return total


def sha256_of(file: ReadableFile, on_bytes: Callable[[int], object] = lambda count: None) -> tuple[str, int]:
    """The SHA-256 of a file in bare hex, and its size in bytes; *on_bytes* is called with the size of each piece read.

    Raises ArchiveError or OSError.
    """
    digest = hashlib.sha256()
    size = 0
    with open_in_order(file) as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            on_bytes(len(piece))
    return digest.hexdigest(), size


def member_name(container: Path, name: str) -> str:
    """The name of a WARC file that exists only in a WACZ."""
    return f"{container.absolute()}{_FOLDER}{name}"


@dataclass(eq=False, slots=True)
class RemoteMember:
    """A WARC file in a remote WACZ. Opening raises ArchiveError if it is missing, DamagedInput for a broken WACZ."""

    url: str
    member: str
    _found: ReadableFile | None = None

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return PurePosixPath(self.member).name

    @property
    def suffixes(self) -> list[str]:
        """Like ``Path.suffixes``."""
        return PurePosixPath(self.member).suffixes

    def open(self, mode: Literal["rb"], /) -> BufferedReader:
        """Return a seekable reader. The directory of the WACZ is read at the first call."""
        if self._found is None:
            self._found = _member(files_in(RemoteFile(self.url)), str(self))
        if self._found is None:
            raise ArchiveError(f"{shown(self.url)} has no {self.member}. Is it the WACZ that was imported?")
        return self._found.open(mode)

    def __str__(self) -> str:
        return f"{self.url}/{self.member}"


def _member(members: Iterable[ReadableFile], name: str) -> ReadableFile | None:
    return next((member for member in members if str(member) == name), None)


def _local_container(file: str) -> Path | None:
    # Only a WACZ can be a file and also a parent of another path.
    return next((parent for parent in Path(file).parents if parent.is_file()), None)


def _remote_container(file: str) -> str | None:
    """The URL of the WACZ that a file is in; None if it is in none."""
    at = file.find(_FOLDER)
    while at >= 0:
        url = file[:at]
        # A signed URL has its parameters before the name of the member.
        if url_path(url).lower().endswith(WACZ_SUFFIX):
            return url
        at = file.find(_FOLDER, at + 1)
    return None
