"""``warc salvage [PATH…]``: mends the files that a killed crawl left ``.open``."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.crawls.rebuilding import salvage_watched
from scrapy_dedupe.errors import ArchiveError, StoreError
from scrapy_dedupe.warc.files import OPEN_SUFFIX
from scrapy_dedupe.warc.salvage import is_held

from .files import crawl_of, files_at, open_index_if_any, running_crawls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from scrapy_dedupe.commands.place import Place
    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.tasks.watching import Watch

HELP = (
    "Mend WARC files that a killed crawl left unfinished: whole records are kept, a broken end is cut off, and the file"
    " gets its final name. Files of running crawls are left alone."
)

_UNFINISHED: Final = re.compile(r"[^/]+\.warc(\.gz)?" + re.escape(OPEN_SUFFIX))


@dataclass(frozen=True, slots=True)
class MendedFile:
    """What became of one file, or with ``dry_run`` would.

    ``state`` is ``mended`` (``file`` is its name now), ``removed`` (it held no record but its warcinfo), ``running`` (a
    crawl writes it, or another file of the same crawl) or ``failed`` (it is as it was; ``reason`` says why). ``crawl``
    is what its warcinfo names.
    """

    file: str
    state: str
    crawl: str | None
    records: int = 0
    cut_bytes: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class MendedCrawl:
    """A crawl whose files were mended, as the index knows it.

    ``state`` is that of the index, or ``unknown``. ``rebuilt``: its entries were read anew from its files.
    """

    id: str
    state: str
    rebuilt: bool


@dataclass(frozen=True, slots=True)
class Mended:
    """The files, and the crawls of those that were mended. ``index_error`` says why the index could not be asked."""

    files: list[MendedFile]
    crawls: list[MendedCrawl]
    index_error: str | None
    dry_run: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help="files that end in .open, or folders with such files (default: DEDUPE_WARC_DIR)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, and change nothing")


def run(place: Place, opts: argparse.Namespace) -> Mended:
    paths = files_at(
        opts.paths or _default_folders(place), lambda path: bool(_UNFINISHED.fullmatch(path.name))
    )
    crawls: dict[Path, str | None] = {}
    for path in paths:
        with contextlib.suppress(ArchiveError):  # told when it is mended
            crawls[path] = crawl_of(path)
    running = {crawl for folder in {path.parent for path in paths} for crawl in running_crawls(folder)}
    with Bars(opts) as bars:
        files = [
            _mended(path, crawls.get(path), running, bars, is_trial=opts.dry_run)
            for path in bars.counted(paths, "salvage", len(paths), "files")
        ]
        if opts.dry_run:
            return Mended(files, [], None, True)
        try:
            index = open_index_if_any(place)
            if index is None:
                return Mended(files, [], None, False)
            with index:
                return Mended(files, _rebuild(index, files, place, bars), None, False)
        except StoreError as error:
            return Mended(files, [], str(error), False)


def _default_folders(place: Place) -> list[Path]:
    folder = place.settings.warc.folder
    return [folder] if folder.exists() else []


def _mended(path: Path, crawl: str | None, running: set[str], watch: Watch, *, is_trial: bool) -> MendedFile:
    if crawl in running or is_held(path):
        return MendedFile(str(path), "running", crawl)
    try:
        result = salvage_watched(path, watch, dry_run=is_trial)
    except ArchiveError as error:
        return MendedFile(str(path), "failed", crawl, reason=str(error))
    if result is None:  # it was taken, or finished, between the look and the lock
        return MendedFile(str(path), "running", crawl)
    final = str(path.with_name(result.file))
    if not result.records:
        return MendedFile(str(path), "removed", crawl, 0, result.cut_bytes)
    return MendedFile(final, "mended", crawl, result.records, result.cut_bytes)


def _rebuild(index: CrawlIndex, files: list[MendedFile], place: Place, watch: Watch) -> list[MendedCrawl]:
    """Read the entries of uncommitted crawls whose files were changed anew from their files."""
    from scrapy_dedupe.crawls.rebuilding import rebuild
    from scrapy_dedupe.crawls.rules import RevisitRules

    settings = place.settings.warc
    rules = RevisitRules(settings.revisit, settings.min_size, settings.statuses, settings.mime_types)
    known = index.crawls()
    states = {info.id: info.state for info in known}
    owners = {name: info.id for info in known for name in info.files}
    failed = {_owner(file, owners) for file in files if file.state == "failed"}
    folders: dict[str, dict[Path, None]] = {}
    for file in files:
        owner = _owner(file, owners)
        if owner is not None and file.state in ("mended", "removed"):
            folders.setdefault(owner, {})[Path(file.file).parent] = None
    mended = []
    for crawl, places in folders.items():
        state = states.get(crawl, "unknown")
        if state == "uncommitted":
            for folder in places:
                rebuild(index, crawl, folder, rules, watch)
            if crawl in failed:
                # The records of a file that could not be mended are not entered yet.
                index.mark_incomplete(crawl, True)
        mended.append(MendedCrawl(crawl, state, state == "uncommitted"))
    return mended


def _owner(file: MendedFile, owners: Mapping[str, str]) -> str | None:
    """The crawl of a file; of one whose warcinfo was cut, the index may know it by its name."""
    return file.crawl or owners.get(file.file.removesuffix(OPEN_SUFFIX))


def text(result: Mended) -> str:
    if not result.files:
        return "There are no unfinished WARC files."
    lines = [_file_text(file, is_trial=result.dry_run) for file in result.files]
    lines += [_crawl_text(crawl) for crawl in result.crawls]
    return "\n".join(lines)


def _file_text(file: MendedFile, *, is_trial: bool) -> str:
    if file.state == "running":
        return f"{file.file}: left alone, the crawl {file.crawl or 'that writes it'} is running."
    if file.state == "failed":
        return f"{file.file}: NOT mended. {file.reason}"
    if file.state == "removed":
        verb = "would be removed" if is_trial else "removed"
        return f"{file.file}: {verb}, there is no whole record in its {number_text(file.cut_bytes)} bytes."
    records = "1 record" if file.records == 1 else f"{number_text(file.records)} records"
    cut = f"{number_text(file.cut_bytes)} bytes of a broken one" if file.cut_bytes else "nothing"
    return f"{file.file}: {records} {'would be ' if is_trial else ''}kept, {cut} cut off."


def _crawl_text(crawl: MendedCrawl) -> str:
    if crawl.rebuilt:
        return (
            f"The crawl {crawl.id}: its entries were read anew from its files. Decide with"
            f" `scrapy dedupe commit {crawl.id}` or `scrapy dedupe cancel {crawl.id}`, or let it go on."
        )
    if crawl.state == "unknown":
        return (
            f"The crawl {crawl.id}: the index does not know it; `scrapy dedupe commit {crawl.id}` enters it."
        )
    return f"The crawl {crawl.id}: it is {crawl.state}, its entries were left as they are."


def caveat(result: Mended) -> str | None:
    failed = sum(file.state == "failed" for file in result.files)
    sentences = []
    if failed:
        sentences.append(f"{'1 file' if failed == 1 else f'{failed} files'} could not be mended.")
    if result.index_error is not None:
        sentences.append(
            f"The index was not brought up to date, which `scrapy dedupe commit` does later: {result.index_error}"
        )
    return " ".join(sentences) or None
