"""Which WARC files a crawl has, and where they are now.

The index names them; those that are not there may be in another folder under their own name, alone or in their WACZ.
A file of that name counts only if it is the crawl's: it says so, or is the WACZ that was imported, or records begin
where entries say. Others say themselves, in their warcinfo, that they belong to a crawl.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.files import OPEN_SUFFIX, warc_files
from scrapy_dedupe.warc.reading import read_record

from .comparing import differences
from .places import WACZ_SUFFIX, is_remote, readable
from .rebuilding import crawl_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.warc.sources import ReadableFile

    from .sorted_entries import Entry, SortedEntries

_TRIED_ENTRIES = 10


@dataclass(slots=True)
class CrawlFiles:
    """The files of a crawl, by the names that the index has for them.

    ``present`` are those that can be read. Of these, ``moved`` are somewhere else than the index says (the name that
    they should have there), ``unnamed`` are not named by the index, and ``unfinished`` have no final name yet. ``gone``
    are not there; ``unreachable`` are elsewhere and do not answer now (the reason).
    """

    present: dict[str, ReadableFile] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)

    @property
    def are_only_moved(self) -> bool:
        """Whether nothing is the matter with them but that they are elsewhere."""
        return bool(self.moved) and not (self.gone or self.unreachable or self.unnamed or self.unfinished)


class Recognition:
    """Tells whether a file that has the name of one that is gone is that file.

    ``ledger`` holds the entries of the crawl, ``containers`` are its WACZ files as the index has them, and ``owners``
    says which crawl the index has each file for.
    """

    def __init__(
        self,
        info: CrawlInfo,
        ledger: SortedEntries,
        containers: Sequence[Mapping[str, object]],
        owners: Mapping[str, str],
    ) -> None:
        self._info = info
        self._ledger = ledger
        self._hashes = {str(container.get("filename")): container.get("hash") for container in containers}
        self._owners = owners
        self._known: dict[Path, bool] = {}

    def __call__(self, name: str, file: ReadableFile) -> bool:
        """Whether *file* is the one that the index calls *name*."""
        if self._owners.get(str(file).removesuffix(OPEN_SUFFIX), self._info.id) != self._info.id:
            return False
        try:
            named = crawl_of(file)
            is_foreign = self._info.imported or self._info.software is None
            if named is not None and not is_foreign:
                return named == self._info.id
            entries = list(islice(self._ledger.of_file(name), _TRIED_ENTRIES))
            if entries:
                return any(_is_met(entry, file) for entry in entries)
            container = _container(file)
            return named == self._info.id or (container is not None and self._is_its_container(container))
        except (DedupeError, OSError):
            return False

    def _is_its_container(self, container: Path) -> bool:
        hash_ = self._hashes.get(container.name)
        if container not in self._known and hash_ is not None:
            with container.open("rb") as stream:
                self._known[container] = hashlib.file_digest(stream, "sha256").hexdigest() == hash_
        return self._known.get(container, False)


def find_crawl_files(
    info: CrawlInfo,
    folders: Sequence[Path],
    strays: Sequence[Path],
    is_the_same: Callable[[str, ReadableFile], bool],
) -> CrawlFiles:
    """Look for the files of a crawl. ``strays`` are those in *folders* whose warcinfo names it.

    ``is_the_same`` tells of a file elsewhere whether it is the one that the index calls so (see :class:`Recognition`).
    """
    files = CrawlFiles()
    for name in info.files:
        _find(files, name, folders, is_the_same)
    known = {file.name.removesuffix(OPEN_SUFFIX) for file in files.present.values()}
    known |= {PurePosixPath(name).name for name in files.unreachable}
    for path in strays:
        if path.name.removesuffix(OPEN_SUFFIX) not in known:
            files.present[str(path)] = path
            # The index does not name imported files that hold no original.
            if not info.imported:
                files.unnamed.append(str(path))
    if info.imported:
        _add_other_members(files)
    return files


def strays_by_crawl(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The finished WARC files in *folders*, by the crawl that they name."""
    found: dict[str, list[Path]] = {}
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        for path in warc_files(folder):
            if (crawl := crawl_of(path)) is not None:
                found.setdefault(crawl, []).append(path)
    return found


def files_in_folders(folders: Sequence[Path]) -> Iterator[ReadableFile]:
    """All finished WARC files in *folders*, those in WACZ files too."""
    for folder in dict.fromkeys(folder.absolute() for folder in folders):
        if not folder.is_dir():
            continue
        yield from warc_files(folder)
        for container in sorted(folder.glob(f"*{WACZ_SUFFIX}")):
            try:
                yield from files_in(container)
            except (DedupeError, OSError):
                # It is told of with the crawl that it belongs to.
                continue


def _find(
    files: CrawlFiles,
    name: str,
    folders: Sequence[Path],
    is_the_same: Callable[[str, ReadableFile], bool],
) -> None:
    file = readable(name)
    if file is not None and is_remote(name):
        try:
            with file.open("rb"):
                pass
        except DedupeError as error:
            files.unreachable[name] = str(error)
            return
    if file is None:
        candidates = (_in_folder(name, folder) for folder in folders)
        file = next((found for found in candidates if found and is_the_same(name, found)), None)
        if file is None:
            files.gone.append(name)
            return
        files.moved[name] = str(file)
    files.present[name] = file
    if file.name.endswith(OPEN_SUFFIX):
        files.unfinished.append(name)


def _in_folder(name: str, folder: Path) -> ReadableFile | None:
    """A file of this name in another folder, alone or in the WACZ that it was in."""
    path = PurePosixPath(name)
    container = next((parent for parent in path.parents if parent.suffix == WACZ_SUFFIX), None)
    inner = path.name if container is None else str(path.relative_to(container.parent))
    return readable(str(folder.absolute() / inner))


def _add_other_members(files: CrawlFiles) -> None:
    """A file in a WACZ that holds no original is not named by the index, but its records were counted."""
    containers = {
        str(container): container
        for file in files.present.values()
        if (container := _container(file)) is not None
    }
    names = {str(file) for file in files.present.values()}
    for container in containers.values():
        for member in files_in(container):
            if str(member) not in names:
                files.present[str(member)] = member


def _is_met(entry: Entry, file: ReadableFile) -> bool:
    try:
        record = read_record(file, entry.offset)
    except (DedupeError, OSError):
        return False
    return record.type == "response" and not differences(entry, record)


def _container(file: ReadableFile) -> Path | None:
    container = getattr(file, "container", None)
    return container if isinstance(container, Path) else None
