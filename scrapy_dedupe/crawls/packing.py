"""Packs a crawl as WACZ, with a list of its dependencies.

The WACZ is named ``CRAWL.wacz``; the index knows it from the start of the crawl, without hash and size. Next to it,
``CRAWL.multi-wacz.json`` lists it and every WACZ that its revisits refer to: replay programs find originals through
that file, not through ``relation.requires`` in the WACZ.

Packing can be repeated: a WACZ of an earlier attempt is replaced if all of its files exist and are packed again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, DedupeError
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.tasks.progress import NO_PROGRESS, part
from scrapy_dedupe.warc.containers import files_in
from scrapy_dedupe.warc.wacz import Requirement, WaczResource, pack, write_multi_wacz
from scrapy_dedupe.warc.wacz_reading import StoredWacz

from .crawl_files import WACZ_SUFFIX, files_of, member_name, sha256_of, size_of, sizes_of
from .dependencies import Dependencies, wacz_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy_dedupe.stores.crawl_index import CrawlIndex
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.reading import StoredRecord
    from scrapy_dedupe.warc.wacz import PackedWacz, WaczPage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedCrawl:
    """A crawl whose WACZ is on disk. ``files`` are the WARC files in it, ``manifest`` the multi-WACZ JSON.

    ``missing`` are the names of needed containers that are not in the folder.
    """

    crawl: str
    wacz: PackedWacz
    manifest: Path
    files: tuple[Path, ...]
    requires: tuple[Requirement, ...]
    missing: tuple[str, ...]


def container_name(crawl: str) -> str:
    """The file name of a crawl's WACZ."""
    return f"{crawl}{WACZ_SUFFIX}"


def manifest_name(crawl: str) -> str:
    """The file name of a crawl's multi-WACZ JSON."""
    return f"{crawl}.multi-wacz.json"


def pack_crawl(
    index: CrawlIndex,
    crawl: str,
    warc_folder: Path,
    folder: Path,
    page_of: Callable[[StoredRecord], WaczPage | None],
    *,
    software: str,
    has_text: bool = False,
    watch: Progress = NO_PROGRESS,
) -> PackedCrawl | None:
    """Pack a crawl into *folder* and register the WACZ in the index; None if it has no WARC files.

    The crawl must be uncommitted or have no WACZ yet; its entries must be complete (see :mod:`.rebuilding`). Raises
    :class:`~scrapy_dedupe.errors.ArchiveError`, :class:`~scrapy_dedupe.errors.StoreError` or
    :class:`~scrapy_dedupe.errors.SettingError`; the index is unchanged then.
    """
    files = []
    for file in files_of(index, crawl, warc_folder):
        if not isinstance(file, Path):
            raise ArchiveError(
                f"{file} was moved; a WACZ is packed from files on this machine. Bring it back to {warc_folder}, or"
                f" use `scrapy dedupe commit {crawl} --no-wacz`."
            )
        files.append(file)
    if not files:
        return None
    info = index.crawl(crawl)
    assert info is not None
    requires = requirements(index, crawl)
    folder = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(
            f"The folder for WACZ files {folder} cannot be created: {error.strerror}. Set DEDUPE_WACZ_DIR to another one."
        ) from error
    target = folder / container_name(crawl)
    if target.exists():
        _remove_earlier(target, crawl, files)
    with part(watch, target.name, 2 * sizes_of(files)):
        wacz = pack(
            files,
            target,
            page_of=page_of,
            requires=requires,
            crawl=crawl,
            software=software,
            payload=info.payload,
            has_text=has_text,
            on_read=watch.advance,
        )
    index.set_container(crawl, target.name, wacz.sha256, wacz.size_bytes)
    own = Requirement(target.name, crawl, wacz.sha256, wacz.size_bytes)
    resources = [
        WaczResource(one.filename, one.filename, one.hash, one.size, one.crawl)
        for one in (own, *requires)
        if one.filename.endswith(WACZ_SUFFIX)
    ]
    manifest = folder / manifest_name(crawl)
    write_multi_wacz(manifest, resources)
    missing = tuple(one.filename for one in requires if not (folder / one.filename).is_file())
    if info.state == "uncommitted":
        index.set_counts(crawl, replace(info.counts, total_crawl_size=wacz.size_bytes))
    return PackedCrawl(crawl, wacz, manifest, tuple(files), tuple(requires), missing)


def requirements(index: CrawlIndex, crawl: str) -> list[Requirement]:
    """The containers that revisits of a crawl refer to: WACZ files, or WARC files if a crawl has none.

    For a crawl that is still running, this is its future WACZ, without hash and size.
    """
    found: dict[tuple[str, str], Requirement] = {}
    dependencies = Dependencies(index)
    for need in dependencies.meant(crawl):
        container = dependencies.containers_of(need.crawl).meant(need)
        if container is not None:
            name = wacz_name(container.filename, need.file)
            requirement = Requirement(name, need.crawl, container.hash, container.size)
        elif need.file:
            requirement = Requirement(Path(need.file).name, need.crawl)
        else:
            logger.warning(
                "The crawl %s refers to records of %s, but the index has no file of that crawl.",
                crawl,
                need.crawl,
            )
            continue
        found[need.crawl, requirement.filename] = requirement
    return list(found.values())


def drop_warc_files(index: CrawlIndex, done: PackedCrawl) -> None:
    """Delete the WARC files of a packed and committed crawl; the index then names those in the WACZ instead.

    Each file is compared with its copy in the WACZ first. Raises :class:`~scrapy_dedupe.errors.ArchiveError` or
    :class:`~scrapy_dedupe.errors.StoreError`; the files are kept then.
    """
    members = {member.name: member for member in files_in(done.wacz.path)}
    for path in done.files:
        if path.name not in members or sha256_of(members[path.name]) != sha256_of(path):
            raise ArchiveError(
                f"{done.wacz.path} does not hold {path} as it is on disk, so no WARC file was deleted. Check the disk."
            )
    for path in done.files:
        index.rename_file(done.crawl, str(path), member_name(done.wacz.path, path.name))
    try:
        for path in done.files:
            path.unlink(missing_ok=True)
        for parent in {path.parent for path in done.files}:
            sync_folder(parent)
    except OSError as error:
        raise ArchiveError(
            f"{error.filename} is in {done.wacz.path} and could not be deleted: {error.strerror}. Delete it manually."
        ) from error


def _remove_earlier(target: Path, crawl: str, files: Sequence[Path]) -> None:
    """Delete the WACZ of an earlier attempt without a commit, if the new one will contain the same files."""
    sizes = {path.name: size_of(path) for path in files}
    try:
        wacz = StoredWacz(target)
        members = {member.name: size_of(member) for member in wacz.files}
        is_ours = wacz.about.crawl == crawl and members.items() <= sizes.items()
    except (DedupeError, OSError):
        is_ours = False
    if not is_ours:
        raise ArchiveError(
            f"{target} already exists and holds something other than the WARC files of the crawl {crawl}. Move it away,"
            f" then pack the crawl with `scrapy dedupe warc pack {crawl}`."
        )
    target.unlink()
