"""Which WARC files a crawl has, and where they are now.

The index names them; those that are not there may be in another folder under their own name, alone or in their WACZ.
Others say themselves, in their warcinfo, that they belong to a crawl.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.files import OPEN_SUFFIX

from .places import WACZ_SUFFIX, is_remote, readable
from .rebuilding import crawl_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.warc.sources import ReadableFile


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


def find_crawl_files(info: CrawlInfo, folders: Sequence[Path], strays: Sequence[Path]) -> CrawlFiles:
    """Look for the files of a crawl. ``strays`` are those in *folders* whose warcinfo names it."""
    files = CrawlFiles()
    for name in info.files:
        _find(files, name, folders)
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
        if not folder.is_dir():
            continue
        for path in sorted(folder.glob("*.warc*")):
            if path.suffix in (".warc", ".gz") and (crawl := crawl_of(path)) is not None:
                found.setdefault(crawl, []).append(path)
    return found


def _find(files: CrawlFiles, name: str, folders: Sequence[Path]) -> None:
    file = readable(name)
    if file is not None and is_remote(name):
        try:
            with file.open("rb"):
                pass
        except DedupeError as error:
            files.unreachable[name] = str(error)
            return
    if file is None:
        file = next((found for found in (_in_folder(name, folder) for folder in folders) if found), None)
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


def _container(file: ReadableFile) -> Path | None:
    container = getattr(file, "container", None)
    return container if isinstance(container, Path) else None
