"""``warc pack ID`` makes the WACZ of a crawl; ``warc upload URL [PATH…]`` moves finished files to a storage."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.crawls.states import settle_one
from scrapy_dedupe.commands.options import CRAWL_ID, WARC_DIR, Option, flag
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.crawl_files import WACZ_SUFFIX, crawl_of, sizes_of
from scrapy_dedupe.crawls.packing import container_name, manifest_name
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, StoreError
from scrapy_dedupe.live.archive.wacz import pack_by_settings
from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.warc.storage import Storage

from . import files_at, open_index_if_any, running_crawls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.packing import PackedCrawl
    from scrapy_dedupe.tasks.progress import Progress

_WARC: Final = re.compile(r"[^/]+\.warc(\.gz)?")
_WACZ: Final = re.compile(r"[^/]+(\.wacz|\.multi-wacz\.json)")


def _pack(stores: CommandStores, opts: argparse.Namespace) -> PackedCrawl:
    with stores.open_index() as index, Bars(opts) as bars:
        info = index.crawl(opts.id)
        if info is None or info.state == "canceled":
            state = "is unknown" if info is None else "is canceled"
            raise CrawlStateError(f"The crawl {opts.id} {state}, so it cannot be packed.")
        if info.state == "committed" and any("hash" in container for container in index.containers(opts.id)):
            raise CrawlStateError(
                f"The crawl {opts.id} is committed and already has a WACZ, which other crawls may refer to. It was not changed."
            )
        if info.incomplete:
            settle_one(index, info, stores, opts.warc_dir, bars)
        done = pack_by_settings(
            index, opts.id, stores.settings, stores.scrapy_settings, warc_folder=opts.warc_dir, watch=bars
        )
    if done is not None:
        return done
    folder = opts.warc_dir or stores.settings.warc.folder
    if info.software is None:
        raise ArchiveError(
            f"The crawl {opts.id} was entered by another program, which does not record its WARC files, and no file in"
            f" {folder} belongs to it. Pack it with that program; then purge the"
            " crawl here and import its WACZ."
        )
    raise ArchiveError(
        f"The crawl {opts.id} has no WARC files in {folder}. Name their folder with --warc-dir."
    )


def _pack_json(done: PackedCrawl) -> dict[str, Any]:
    return {
        "crawl": done.crawl,
        "wacz": str(done.wacz.path),
        "manifest": str(done.manifest),
        "sha256": done.wacz.sha256,
        "size": done.wacz.size_bytes,
        **picked(done.wacz, "captures pages"),
        "requires": [required.filename for required in done.requires],
        "missing": done.missing,
    }


def _pack_lines(done: PackedCrawl) -> Iterator[str]:
    wacz = done.wacz
    held = f"{counted(wacz.captures, 'capture')} and {counted(wacz.pages, 'page')}"
    yield f"{wacz.path} has {held}. Replay it with {done.manifest}."


def _pack_caveats(done: PackedCrawl) -> Iterator[str]:
    if done.missing:
        yield (
            f"{done.wacz.path} refers to records in {', '.join(done.missing)}, which is not in its folder. Copy it there"
            " before you replay the archive"
        )


PACK = Verb(_pack, _pack_lines, [CRAWL_ID, WARC_DIR], json=_pack_json, caveats=_pack_caveats)


def _upload(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    storage = Storage(opts.url)
    given = opts.paths
    if not given:
        given = filter(Path.exists, (stores.settings.warc.folder, stores.settings.wacz.folder))
    paths = files_at(given, _is_finished_file)
    with open_index_if_any(stores) or nullcontext() as index:
        if paths:
            storage.check()
        upload = _Upload(storage, index, {path.parent for path in paths}, is_kept=opts.keep)
        named = {path.absolute() for path in opts.paths if not path.is_dir()}
        # Each file is hashed, sent and read back.
        with Bars(opts) as bars, bars.part("upload", 3 * sizes_of(paths)):
            files = [upload.of(path, bars, is_named=path in named) for path in paths]
    return {"storage": storage.shown, "files": files}


def _is_finished_file(path: Path) -> bool:
    return bool(_WARC.fullmatch(path.name) or _WACZ.fullmatch(path.name))


class _Upload:
    """Uploads one file after another."""

    def __init__(
        self, storage: Storage, index: CrawlIndex | None, folders: set[Path], *, is_kept: bool
    ) -> None:
        self._storage = storage
        self._index = index
        self._is_kept = is_kept
        self._known = {} if index is None else {info.id: info for info in index.crawls()}
        self._owners = {
            name(crawl): crawl for crawl in self._known for name in (container_name, manifest_name)
        }
        self._running = running_crawls(folders)

    def of(self, path: Path, watch: Progress, *, is_named: bool) -> dict[str, str | None]:
        """Upload a file, and return the result.

        ``state`` is ``moved`` or ``copied`` (with ``--keep``) to ``location``, ``left`` (its crawl is running or
        uncommitted, which is a failure if the file was named) or ``failed``; ``reason`` says why. ``crawl`` is the id in
        the warcinfo of a WARC file, or the crawl that the name of a WACZ belongs to.
        """
        crawl = location = reason = None
        try:
            if not _is_finished_file(path):
                raise ArchiveError(f"{path} does not have the name of a finished WARC or WACZ file.")
            crawl = crawl_of(path) if _WARC.fullmatch(path.name) else self._owners.get(path.name)
            reason = self._reason_to_leave(crawl)
            if reason is not None:
                state = "failed" if is_named else "left"
            else:
                location = self._storage.upload(path, watch.advance)
                state = "copied" if self._is_kept else "moved"
                if not self._is_kept:
                    # Update the index before the deletion: a kill in between then leaves two copies, and an index that
                    # names one.
                    self._update_index(path, crawl, location)
                    self._storage.delete_local(path)
        except (ArchiveError, StoreError) as error:
            location, state, reason = None, "failed", str(error)
            if not path.exists():
                state, reason = "left", "Another program has moved it in the meantime."
        return {"file": str(path), "state": state, "crawl": crawl, "location": location, "reason": reason}

    def _reason_to_leave(self, crawl: str | None) -> str | None:
        if crawl is None:
            return None
        if crawl in self._running:
            return f"The crawl {crawl} is running."
        info = self._known.get(crawl)
        if info is not None and info.state == "uncommitted":
            return (
                f"The crawl {crawl} is running or not committed, and its index entries may still have to be read from this"
                f" file. Run `scrapy dedupe commit {crawl}` or `scrapy dedupe cancel {crawl}` first."
            )
        return None

    def _update_index(self, path: Path, crawl: str | None, location: str) -> None:
        """Enter the new place of a WARC file, or of the WARC files in a WACZ, in the index."""
        info = None if crawl is None else self._known.get(crawl)
        if self._index is None or info is None or info.state != "committed":
            return
        for name in info.files:
            containers = [parent.name for parent in PurePath(name).parents if parent.suffix == WACZ_SUFFIX]
            if path.name in containers:
                inside = name.rpartition(f"/{path.name}/")[2]
                self._index.rename_file(info.id, name, f"{location}/{inside}")
            elif not containers and PurePath(name).name == path.name:
                self._index.rename_file(info.id, name, location)


def _upload_lines(result: dict[str, Any]) -> Iterator[str]:
    if not result["files"]:
        yield "There are no finished WARC or WACZ files."
    for file in result["files"]:
        if file["location"] is not None:
            yield f"{file['file']}: {file['state']} to {file['location']}"
        else:
            yield f"{file['file']}: {'skipped' if file['state'] == 'left' else 'NOT moved'}. {file['reason']}"


def _upload_caveats(result: dict[str, Any]) -> Iterator[str]:
    if failed := sum(file["state"] == "failed" for file in result["files"]):
        yield f"{counted(failed, 'file')} could not be moved"


UPLOAD = Verb(
    _upload,
    _upload_lines,
    [
        Option("url", "URL", "the storage: a URL that fsspec supports, or a folder; it must exist"),
        Option(
            "paths",
            "PATH",
            "finished files, or folders of them (default: DEDUPE_WARC_DIR and DEDUPE_WACZ_DIR)",
            type=Path,
            nargs="*",
        ),
        flag("--keep", "only copy; the index keeps the local paths"),
    ],
    caveats=_upload_caveats,
)
