"""``warc salvage [PATH…]``: repairs the ``.open`` files that a killed crawl left."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import DRY_RUN, Option, flag
from scrapy_dedupe.commands.output import as_json, first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.crawl_files import PAYLOAD_FIELD, crawl_of, files_of, missing_files
from scrapy_dedupe.crawls.findings import Thoroughness
from scrapy_dedupe.crawls.rebuilding import (
    rebuild,
    refuse_running,
    salvage_watched,
)
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.errors import ArchiveError, CrawlStateError, StoreError
from scrapy_dedupe.reports.wording import counted, number
from scrapy_dedupe.warc.files import OPEN_SUFFIX, final_path
from scrapy_dedupe.warc.salvage import Salvaged, is_held

from . import files_at, open_index_if_any, running_crawls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.entries import RevisitRules
    from scrapy_dedupe.stores.base import CrawlInfo

_UNFINISHED: Final = re.compile(r"[^/]+\.warc(\.gz)?" + re.escape(OPEN_SUFFIX))


@dataclass(frozen=True, slots=True)
class MendedFile:
    """The result for one file, or with ``dry_run`` the result to expect.

    ``state`` is ``mended`` (``file`` is its new name), ``copied`` (``file`` is the new file with all whole records,
    ``kept_as`` the new name of the damaged one), ``removed`` (it had no whole warcinfo), ``running`` (a crawl writes it,
    or another file of the same crawl) or ``failed`` (it is unchanged; ``reason`` says why). ``crawl`` is the id in its
    warcinfo, otherwise the crawl that has a file of this name in the index.
    """

    path: Path
    state: str
    crawl: str | None
    reason: str | None = None
    salvaged: Salvaged | None = None

    @property
    def file(self) -> str:
        """The name of the repaired file, or else of the unfinished one."""
        if self.salvaged is None or self.state == "removed":
            return str(self.path)
        return str(self.path.with_name(self.salvaged.file))

    @property
    def kept_as(self) -> str | None:
        """The new name of a damaged file whose records were copied."""
        kept_as = None if self.salvaged is None else self.salvaged.kept_as
        return None if kept_as is None else str(self.path.with_name(kept_as))


@dataclass(frozen=True, slots=True)
class MendedCrawl:
    """A crawl whose files were repaired. ``state`` is its state in the index, or ``unknown``.

    ``rebuilt``: its entries were read again from its files.
    """

    id: str
    state: str
    rebuilt: bool


@dataclass(frozen=True, slots=True)
class Mended:
    """The files, and the crawls of the repaired files. ``index_error`` is the error of an unavailable index."""

    files: list[MendedFile]
    crawls: list[MendedCrawl]
    index_error: str | None
    dry_run: bool


def _salvage(stores: CommandStores, opts: argparse.Namespace) -> Mended:
    given = opts.paths
    if not given:
        folder = stores.settings.warc.folder
        given = [folder] if folder.exists() else []
    paths = files_at(given, lambda path: bool(_UNFINISHED.fullmatch(path.name)))
    folders = [path.absolute() for path in given if path.is_dir()]
    index, index_error = None, None
    try:
        index = open_index_if_any(stores)
        known = [] if index is None else index.crawls()
    except StoreError as error:
        known, index_error = [], str(error)
    with Bars(opts) as bars, index or contextlib.nullcontext():
        salvage = _Salvage(None if index_error else index, known, paths, bars, opts)
        files = [salvage.mend(path) for path in bars.counted(paths, "salvage", len(paths), "files")]
        if opts.dry_run:
            return Mended(files, [], None, True)
        try:
            crawls = salvage.rebuild(files, folders, stores.revisit_rules)
        except StoreError as error:
            return Mended(files, [], str(error), False)
    return Mended(files, crawls, salvage.index_error or index_error, False)


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
        self._running = {
            crawl for folder in {path.parent for path in paths} for crawl in running_crawls(folder)
        }

    def mend(self, path: Path) -> MendedFile:
        crawl = self._crawls.get(path)
        if crawl in self._running or is_held(path):
            return MendedFile(path, "running", crawl)
        self._mark(crawl)
        try:
            salvaged = salvage_watched(
                path,
                self._bars,
                dry_run=self._opts.dry_run,
                skip_damaged=self._opts.skip_damaged,
                info=self._warcinfo(crawl),
            )
        except ArchiveError as error:
            return MendedFile(path, "failed", crawl, str(error))
        if salvaged is None:  # locked, renamed or removed since is_held() was called
            return MendedFile(path, "running", crawl)
        state = "removed" if salvaged.is_removed else "mended" if salvaged.kept_as is None else "copied"
        return MendedFile(path, state, crawl, None, salvaged)

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
        self, files: list[MendedFile], folders: Sequence[Path], rules: RevisitRules
    ) -> list[MendedCrawl]:
        """Read the entries of crawls whose files were changed, by this call or a killed one, from the files."""
        if self._index is None:
            return []
        changed: dict[str, dict[Path, None]] = {}
        for file in files:
            if file.crawl is not None and file.state in ("mended", "copied", "removed"):
                changed.setdefault(file.crawl, {})[file.path.parent] = None
        for crawl, folder in self._left_incomplete(folders):
            changed.setdefault(crawl, {})[folder] = None
        copied = {file.crawl for file in files if file.state == "copied"}
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
            if is_rebuilt and any(file.crawl == crawl and file.state == "failed" for file in files):
                # The records of the failed file are not in the index yet.
                self._mark(crawl)
            crawls.append(MendedCrawl(crawl, state, is_rebuilt))
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


def _as_json(result: Mended) -> dict[str, Any]:
    files = []
    for file in result.files:
        salvaged = file.salvaged or Salvaged("", 0, 0)
        files.append(
            {
                **picked(file, "file state crawl"),
                "records": 0 if file.state == "removed" else salvaged.records,
                "cut_bytes": salvaged.cut_bytes,
                **picked(file, "reason kept_as"),
                "skipped_bytes": salvaged.skipped_bytes,
                # At least so many: the number of records in an unreadable place is unknown.
                "skipped_records": len(salvaged.damages),
                "damages": [picked(place, "offset length reason") for place in salvaged.damages],
            }
        )
    return {"files": files, "crawls": as_json(result.crawls), **picked(result, "index_error dry_run")}


def _lines(result: Mended) -> Iterator[str]:
    if not result.files and not result.crawls:
        yield "There are no unfinished WARC files."
    for file in result.files:
        yield from _file_lines(file, is_trial=result.dry_run)
    yield from map(_crawl_text, result.crawls)


def _file_lines(file: MendedFile, *, is_trial: bool) -> Iterator[str]:
    would_be = "would be " if is_trial else ""
    if file.state == "failed":
        yield f"{file.file}: NOT repaired. {file.reason}"
        return
    if file.salvaged is None:
        yield f"{file.file}: skipped, the crawl {file.crawl or 'that writes it'} is running."
        return
    records, cut_bytes = file.salvaged.records, number(file.salvaged.cut_bytes)
    if file.state == "removed":
        yield f"{file.file}: {would_be}removed, since its {cut_bytes} bytes contain no complete record."
    elif file.state == "copied":
        were = "would be" if is_trial else "were" if records != 1 else "was"
        damages = file.salvaged.damages
        yield (
            f"{file.file}: {counted(records, 'record')} {were} copied, {counted(len(damages), 'damaged place')} with"
            f" {number(file.salvaged.skipped_bytes)} bytes and at least {counted(len(damages), 'record')} left out. The"
            f" damaged file {'would be' if is_trial else 'is'} kept as {file.kept_as}."
        )
        lines = [f"offset {place.offset}: {place.reason} ({number(place.length)} bytes)" for place in damages]
        yield from first(lines, indent="  ")
        if file.salvaged.cut_bytes:
            yield f"  {cut_bytes} bytes of a broken record at the end left out"
    else:
        cut = f"{cut_bytes} bytes of an incomplete one" if file.salvaged.cut_bytes else "nothing"
        yield f"{file.file}: {counted(records, 'record')} {would_be}kept, {cut} cut off."


def _crawl_text(crawl: MendedCrawl) -> str:
    if crawl.rebuilt and crawl.state == "committed":
        return f"The crawl {crawl.id}: it is committed; its entries were read again from its files."
    if crawl.rebuilt:
        return (
            f"The crawl {crawl.id}: its entries were read again from its files. Decide with"
            f" `scrapy dedupe commit {crawl.id}` or `scrapy dedupe cancel {crawl.id}`, or continue it."
        )
    if crawl.state == "unknown":
        return f"The crawl {crawl.id}: it is not in the index; `scrapy dedupe commit {crawl.id}` enters it."
    return f"The crawl {crawl.id}: it is {crawl.state}; its entries were not changed."


def _caveats(result: Mended) -> Iterator[str]:
    failed = sum(file.state == "failed" for file in result.files)
    copied = sum(file.state == "copied" for file in result.files)
    if failed:
        yield f"{counted(failed, 'file')} could not be repaired"
    if copied:
        were = "would be" if result.dry_run else "were"
        yield f"{counted(copied, 'file is', 'files are')} damaged; the whole records {were} copied"
    if result.index_error is not None:
        yield f"the index was not updated, which `scrapy dedupe commit` does later: {result.index_error}"


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
    json=_as_json,
    caveats=_caveats,
)
