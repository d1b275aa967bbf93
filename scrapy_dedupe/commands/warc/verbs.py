"""The verbs for WARC and WACZ files of crawls.

``warc pack ID`` makes the WACZ of a crawl, ``warc upload URL [PATH…]`` moves finished files to a storage, and
``warc salvage [PATH…]`` repairs the ``.open`` files that a killed crawl left.
"""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.crawls.states import settle_one
from scrapy_dedupe.commands.options import CRAWL_ID, DRY_RUN, WARC_DIR, Option, flag
from scrapy_dedupe.commands.output import first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import Thoroughness
from scrapy_dedupe.crawls.crawl_files import (
    PAYLOAD_FIELD,
    WACZ_SUFFIX,
    crawl_of,
    files_of,
    missing_files,
    sizes_of,
)
from scrapy_dedupe.crawls.packing import container_name, manifest_name
from scrapy_dedupe.crawls.rebuilding import rebuild, refuse_running
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, StoreError
from scrapy_dedupe.live.archive.wacz import pack_by_settings
from scrapy_dedupe.reports.wording import counted, number
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.tasks.progress import Reached
from scrapy_dedupe.warc.archive_names import OPEN_SUFFIX, is_warc_name
from scrapy_dedupe.warc.files import final_path
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage
from scrapy_dedupe.warc.storage import Storage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.entries import RevisitRules
    from scrapy_dedupe.crawls.packing import PackedCrawl
    from scrapy_dedupe.stores.base import CrawlInfo
    from scrapy_dedupe.tasks.progress import Progress

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
    paths = _files_at(given, _is_finished_file)
    with _open_index_if_any(stores) or nullcontext() as index:
        if paths:
            storage.check()
        upload = _Upload(storage, index, {path.parent for path in paths}, is_kept=opts.keep)
        named = {path.absolute() for path in opts.paths if not path.is_dir()}
        # Each file is hashed, sent and read back.
        with Bars(opts) as bars, bars.part("upload", 3 * sizes_of(paths)):
            files = [upload.of(path, bars, is_named=path in named) for path in paths]
    return {"storage": storage.shown, "files": files}


def _is_unfinished_file(path: Path) -> bool:
    return path.name.endswith(OPEN_SUFFIX) and is_warc_name(path.name.removesuffix(OPEN_SUFFIX))


def _is_finished_file(path: Path) -> bool:
    return is_warc_name(path.name) or bool(_WACZ.fullmatch(path.name))


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
        self._running = _running_crawls(folders)

    def of(self, path: Path, watch: Progress, *, is_named: bool) -> dict[str, str | None]:
        """Upload a file, and return the result.

        ``state`` is ``moved`` or ``copied`` (with ``--keep``) to ``location``, ``left`` (its crawl is running or
        uncommitted, which is a failure if the file was named) or ``failed``; ``reason`` says why. ``crawl`` is the id in
        the warcinfo of a WARC file, or the crawl that the name of a WACZ belongs to.
        """
        crawl = location = reason = None
        try:
            if not _is_finished_file(path):
                raise ArchiveError(
                    f"{path} does not have the name of a finished WARC or WACZ file. Repair a file *{OPEN_SUFFIX} with warc"
                    " salvage first."
                )
            crawl = crawl_of(path) if is_warc_name(path.name) else self._owners.get(path.name)
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


def _salvage(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    given = opts.paths
    if not given:
        folder = stores.settings.warc.folder
        given = [folder] if folder.exists() else []
    paths = _files_at(given, _is_unfinished_file)
    folders = [path.absolute() for path in given if path.is_dir()]
    index = index_error = None
    known: list[CrawlInfo] = []
    try:
        index = _open_index_if_any(stores)
        known = [] if index is None else index.crawls()
    except StoreError as error:
        index_error = str(error)
    crawls: list[dict[str, Any]] = []
    with Bars(opts) as bars, index or nullcontext():
        work = _Salvage(None if index_error else index, known, paths, bars, opts)
        files = [work.mend(path) for path in bars.counted(paths, "salvage", len(paths), "files")]
        if opts.dry_run:
            index_error = None
        else:
            try:
                crawls = work.rebuild(files, folders, stores.revisit_rules)
                index_error = work.index_error or index_error
            except StoreError as error:
                index_error = str(error)
    return {"files": files, "crawls": crawls, "index_error": index_error, "dry_run": opts.dry_run}


class _Salvage:
    """Repairs files and enters their records. *index* is None if there is no index or it does not answer."""

    def __init__(
        self,
        index: CrawlIndex | None,
        known: Sequence[CrawlInfo],
        paths: Sequence[Path],
        bars: Bars,
        opts: argparse.Namespace,
    ) -> None:
        self.index_error: str | None = None
        self._index = index
        self._bars = bars
        self._opts = opts
        self._known = {info.id: info for info in known}
        self._owners = {name: info.id for info in known for name in info.files}
        self._crawls: dict[Path, str | None] = {}
        for path in paths:
            with suppress(ArchiveError):  # reported when the file is repaired
                # The index may know a file whose warcinfo was cut or damaged.
                self._crawls[path] = crawl_of(path) or self._owners.get(str(final_path(path)))
        self._running = _running_crawls({path.parent for path in paths})

    def mend(self, path: Path) -> dict[str, Any]:
        """Repair a file, and return the result; with ``--dry-run`` the result to expect.

        ``state`` is ``mended`` (``file`` is its new name), ``copied`` (``file`` is the new file with all whole records,
        ``kept_as`` the new name of the damaged one), ``removed`` (it had no whole warcinfo), ``running`` (a crawl writes
        it, or another file of the same crawl) or ``failed`` (it is unchanged; ``reason`` says why). ``crawl`` is the id
        in its warcinfo, otherwise the crawl that has a file of this name in the index.
        """
        crawl, state, reason = self._crawls.get(path), "running", None
        salvaged: Salvaged | None = None
        if crawl not in self._running and not is_held(path):
            self._mark(crawl)
            try:
                options, info = picked(self._opts, "dry_run skip_damaged"), self._warcinfo(crawl)
                with self._bars.part(path.name, sizes_of([path])):
                    salvaged = salvage(path, **options, info=info, on_offset=Reached(self._bars))
            except ArchiveError as error:
                state, reason = "failed", str(error)
        # None also if the file was locked, renamed or removed since is_held() was called.
        if salvaged is not None:
            state = "removed" if salvaged.is_removed else "mended" if salvaged.kept_as is None else "copied"
        done = salvaged or Salvaged(path.name, 0, 0)
        return {
            "file": str(path if state == "removed" else path.with_name(done.file)),
            "state": state,
            "crawl": crawl,
            "records": 0 if state == "removed" else done.records,
            "cut_bytes": done.cut_bytes,
            "reason": reason,
            "kept_as": None if done.kept_as is None else str(path.with_name(done.kept_as)),
            "skipped_bytes": done.skipped_bytes,
            # At least so many: the number of records in an unreadable place is unknown.
            "skipped_records": len(done.damages),
            "damages": [picked(place, "offset length reason") for place in done.damages],
        }

    def _mark(self, crawl: str | None) -> None:
        """Mark a crawl as incomplete, before its file gets the final name that hides this."""
        if self._index is None or self._opts.dry_run or not self._is_uncommitted(crawl):
            return
        try:
            self._index.mark_incomplete(str(crawl), True)
        except StoreError as error:
            self.index_error, self._index = str(error), None

    def _is_uncommitted(self, crawl: str | None) -> bool:
        info = self._known.get(crawl or "")
        return info is not None and info.state == "uncommitted" and not info.imported

    def _warcinfo(self, crawl: str | None) -> dict[str, str]:
        """The fields of a new warcinfo record, which replaces a damaged one."""
        info = self._known.get(crawl or "")
        fields = {"software": f"scrapy-dedupe/{__version__}", "format": "WARC File Format 1.1"}
        if info is not None:
            fields |= {"isPartOf": info.id, PAYLOAD_FIELD: info.payload}
        return fields | {"description": "The warcinfo of this file was damaged; warc salvage wrote this one."}

    def rebuild(
        self, files: list[dict[str, Any]], folders: Sequence[Path], rules: RevisitRules
    ) -> list[dict[str, Any]]:
        """Read the entries of crawls whose files were changed, by this call or a killed one, from the files."""
        if self._index is None:
            return []
        changed: dict[str, dict[Path, None]] = {}
        for file in files:
            if file["crawl"] is not None and file["state"] in ("mended", "copied", "removed"):
                changed.setdefault(file["crawl"], {})[Path(file["file"]).parent] = None
        for crawl, folder in self._left_incomplete(folders):
            changed.setdefault(crawl, {})[folder] = None
        copied, failed = (
            {file["crawl"] for file in files if file["state"] == state} for state in ("copied", "failed")
        )
        crawls = []
        for crawl, places in changed.items():
            state = self._known[crawl].state if crawl in self._known else "unknown"
            is_rebuilt = False
            for folder in places:
                if self._is_uncommitted(crawl):
                    rebuild(self._index, crawl, folder, rules, self._bars)
                    is_rebuilt = True
                elif state == "committed" and crawl in copied:
                    is_rebuilt |= _repaired(self._index, crawl, folder, rules)
            if is_rebuilt and crawl in failed:
                # The records of the failed file are not in the index yet.
                self._mark(crawl)
            crawls.append({"id": crawl, "state": state, "rebuilt": is_rebuilt})
        return crawls

    def _left_incomplete(self, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
        """Yield (crawl id, folder) for each stopped, uncommitted crawl whose files in the folder are not all indexed."""
        assert self._index is not None
        incomplete = [
            info for info in self._index.crawls() if info.incomplete and self._is_uncommitted(info.id)
        ]
        for folder in folders:
            for info in incomplete:
                found = files_of(self._index, info.id, folder)
                is_here = any(isinstance(file, Path) and file.parent == folder for file in found)
                # The files may be on another machine, where the crawl may be running. A commit reports missing files.
                if not is_here or missing_files(self._index, info.id, found):
                    continue
                try:
                    refuse_running(self._index, info.id, folder)
                except CrawlStateError:
                    continue
                yield info.id, folder


def _repaired(index: CrawlIndex, crawl: str, folder: Path, rules: RevisitRules) -> bool:
    """Read the entries of a committed crawl again from its files; return whether that was done."""
    checker = Checker(index, rules, [folder], None, Thoroughness())
    return any(done.is_done and done.crawl == crawl for done in repair(checker, checker.check([crawl])))


def _salvage_lines(result: dict[str, Any]) -> Iterator[str]:
    if not result["files"] and not result["crawls"]:
        yield "There are no unfinished WARC files."
    for file in result["files"]:
        yield from _file_lines(file, is_trial=result["dry_run"])
    for crawl in result["crawls"]:
        yield f"The crawl {crawl['id']}: {_crawl_clause(**crawl)}"


def _file_lines(file: dict[str, Any], *, is_trial: bool) -> Iterator[str]:
    name, records, cut_bytes = file["file"], file["records"], number(file["cut_bytes"])
    would_be = "would be " if is_trial else ""
    match file["state"]:
        case "failed":
            yield f"{name}: NOT repaired. {file['reason']}"
        case "running":
            yield f"{name}: skipped, the crawl {file['crawl'] or 'that writes it'} is running."
        case "removed":
            yield f"{name}: {would_be}removed, since its {cut_bytes} bytes contain no complete record."
        case "mended":
            cut = f"{cut_bytes} bytes of an incomplete one" if file["cut_bytes"] else "nothing"
            yield f"{name}: {counted(records, 'record')} {would_be}kept, {cut} cut off."
        case "copied":
            were = "would be" if is_trial else "were" if records != 1 else "was"
            damages = file["damages"]
            yield (
                f"{name}: {counted(records, 'record')} {were} copied, {counted(len(damages), 'damaged place')} with"
                f" {number(file['skipped_bytes'])} bytes and at least {counted(len(damages), 'record')} left out. The"
                f" damaged file {'would be' if is_trial else 'is'} kept as {file['kept_as']}."
            )
            places = [
                f"offset {at['offset']}: {at['reason']} ({number(at['length'])} bytes)" for at in damages
            ]
            yield from first(places, indent="  ")
            if file["cut_bytes"]:
                yield f"  {cut_bytes} bytes of a broken record at the end left out"


def _crawl_clause(id: str, state: str, *, rebuilt: bool) -> str:  # noqa: A002 - a field of the result
    if rebuilt and state == "committed":
        return "it is committed; its entries were read again from its files."
    if rebuilt:
        return (
            f"its entries were read again from its files. Decide with `scrapy dedupe commit {id}` or `scrapy dedupe"
            f" cancel {id}`, or continue it."
        )
    if state == "unknown":
        return f"it is not in the index; `scrapy dedupe commit {id}` enters it."
    return f"it is {state}; its entries were not changed."


def _salvage_caveats(result: dict[str, Any]) -> Iterator[str]:
    states = [file["state"] for file in result["files"]]
    if failed := states.count("failed"):
        yield f"{counted(failed, 'file')} could not be repaired"
    if copied := states.count("copied"):
        were = "would be" if result["dry_run"] else "were"
        yield f"{counted(copied, 'file is', 'files are')} damaged; the whole records {were} copied"
    if result["index_error"] is not None:
        yield f"the index was not updated, which `scrapy dedupe commit` does later: {result['index_error']}"


SALVAGE = Verb(
    _salvage,
    _salvage_lines,
    [
        Option(
            "paths",
            "PATH",
            "files that end in .open, or folders of them (default: DEDUPE_WARC_DIR)",
            type=Path,
            nargs="*",
        ),
        flag(
            "--skip-damaged",
            "copy the whole records of a file that is damaged in the middle to a new file, and keep the damaged one",
        ),
        DRY_RUN,
    ],
    caveats=_salvage_caveats,
)


def _files_at(paths: Iterable[Path], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """Return the files among *paths*, and the matching files in the folders among them, as absolute paths without repeats.

    Raises ArchiveError for a path that cannot be read.
    """
    found: dict[Path, None] = {}
    for path in paths:
        try:
            if path.is_dir():
                found |= dict.fromkeys(
                    file for file in sorted(path.absolute().iterdir()) if is_wanted(file) and file.is_file()
                )
            else:
                path.stat()
                found[path.absolute()] = None
        except OSError as error:
            raise ArchiveError(
                f"{path} cannot be read: {error.strerror}. Name an existing file or folder."
            ) from error
    return list(found)


def _running_crawls(folders: Iterable[Path]) -> set[str]:
    """Return the ids of the crawls whose files in the folders are being written."""
    held = [path for folder in folders for path in folder.glob(f"*{OPEN_SUFFIX}") if is_held(path)]
    return {crawl for path in held if (crawl := crawl_of(path)) is not None}


def _open_index_if_any(stores: CommandStores) -> CrawlIndex | None:
    """Open the crawl index. Returns None if the file of the settings does not exist; raises StoreError if the store fails."""
    file = parse_store_url(stores.index_url).path
    if stores.given_store is None and file is not None and not file.exists():
        return None
    return stores.open_index()
