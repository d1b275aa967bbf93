"""``warc salvage [PATH…]``: repairs the ``.open`` files that a killed crawl left."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import DRY_RUN, Option, flag
from scrapy_dedupe.commands.output import first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import Thoroughness
from scrapy_dedupe.crawls.crawl_files import PAYLOAD_FIELD, crawl_of, files_of, missing_files, sizes_of
from scrapy_dedupe.crawls.rebuilding import rebuild, refuse_running
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, StoreError
from scrapy_dedupe.reports.wording import counted, number
from scrapy_dedupe.tasks.progress import Reached
from scrapy_dedupe.warc.files import OPEN_SUFFIX, final_path
from scrapy_dedupe.warc.salvage import Salvaged, is_held, salvage

from . import files_at, open_index_if_any, running_crawls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.entries import RevisitRules
    from scrapy_dedupe.stores.base import CrawlInfo

_UNFINISHED: Final = re.compile(r"[^/]+\.warc(\.gz)?" + re.escape(OPEN_SUFFIX))


def _salvage(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    given = opts.paths
    if not given:
        folder = stores.settings.warc.folder
        given = [folder] if folder.exists() else []
    paths = files_at(given, lambda path: bool(_UNFINISHED.fullmatch(path.name)))
    folders = [path.absolute() for path in given if path.is_dir()]
    index = index_error = None
    known: list[CrawlInfo] = []
    try:
        index = open_index_if_any(stores)
        known = [] if index is None else index.crawls()
    except StoreError as error:
        index_error = str(error)
    crawls: list[dict[str, Any]] = []
    with Bars(opts) as bars, index or contextlib.nullcontext():
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
            with contextlib.suppress(ArchiveError):  # reported when the file is repaired
                # The index may know a file whose warcinfo was cut or damaged.
                self._crawls[path] = crawl_of(path) or self._owners.get(str(final_path(path)))
        self._running = running_crawls({path.parent for path in paths})

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


def _lines(result: dict[str, Any]) -> Iterator[str]:
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


def _caveats(result: dict[str, Any]) -> Iterator[str]:
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
    _lines,
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
    caveats=_caveats,
)
