"""``dedupe PATH… -o FOLDER``: run all steps of the deduplication."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError, UsageError
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.manifest import ALGORITHMS

from .bars import Bars
from .figures import counted, number_text, size_text
from .import_ import ImportBar
from .revisit_options import add_revisit_arguments
from .skipped_files import left_files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from scrapy_dedupe.crawls.importing import ImportResult
    from scrapy_dedupe.offline.savings import Saving
    from scrapy_dedupe.offline.step_reports import Deduped, StepOptions

    from .stores import CommandStores

HELP = (
    "Deduplicate WARC files in one run: find records with the same payload, compare them byte by byte, rewrite the files"
    " with a revisit for every copy, and verify the result. After an interruption, the same command continues."
)

_SHOWN = 20
_ALL = "all"
_OPTIONS = {
    "small": "see --min-size",
    "status": "see --status",
    "arc": "--convert-arc converts them to WARC",
}


@dataclass(frozen=True, slots=True)
class DedupeReport:
    """The result of the deduplication, and of the import into the crawl index if requested.

    ``left_below`` counts WARC and ARC files in subfolders of the named folders that were not included, and ``left_open``
    are files that a crawl has open or did not close.
    """

    deduped: Deduped
    index: ImportedOutput | None
    left_below: int = 0
    left_open: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedOutput:
    """The result of importing the resulting files into the index of ``store``."""

    store: str
    imported: int
    originals: int
    revisits: int
    failed: tuple[str, ...]
    skipped: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a WARC or ARC file, a folder, or a pattern such as 'folder/*.warc.gz'",
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="the folder for the new files")
    parser.add_argument("-r", "--recursive", action="store_true", help="include the subfolders of a folder")
    parser.add_argument(
        "-H",
        "--hash",
        choices=ALGORITHMS,
        default="sha256",
        help="the algorithm of the digests, which are computed for all records (default: %(default)s)",
    )
    add_revisit_arguments(parser)
    parser.add_argument(
        "--convert-arc", action="store_true", help="convert ARC files to WARC first (default: copy them)"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="the folder for the state of the run (default: .dedupe in FOLDER, or in the common folder of all files)",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="processes; 0 for all cores (default: %(default)s)"
    )
    parser.add_argument(
        "--force", action="store_true", help="start again, and replace files of the same names in FOLDER"
    )
    parser.add_argument(
        "--index", action="store_true", help="import the resulting files into the crawl index at the end"
    )
    parser.add_argument(
        "--crawl-id",
        metavar="ID",
        help="with --index: the crawl of the files (default: the crawl named in each file, else its name)",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> DedupeReport:
    # The command line imports this module on every start, so slow imports are deferred.
    from scrapy_dedupe.offline.inputs import find_inputs, left_below, left_open, refuse_own_folder
    from scrapy_dedupe.offline.steps import run_steps
    from scrapy_dedupe.stores.crawl_index import checked_crawl_id
    from scrapy_dedupe.tasks.faults import Faults

    options = _options(opts)
    if opts.crawl_id is not None:
        checked_crawl_id(opts.crawl_id)
    url = place.index_url if opts.index else None
    faults = Faults(keep_going=opts.keep_going)
    inputs = find_inputs(opts.paths, faults=faults, recursive=opts.recursive, without=opts.output)
    if opts.output is not None and not opts.dry_run:
        refuse_own_folder(inputs, opts.output)
    below = 0 if opts.recursive else left_below(opts.paths, inputs, opts.output)
    are_open = left_open(opts.paths, inputs, recursive=opts.recursive, without=opts.output)
    with Bars(opts) as watch:
        deduped = run_steps(inputs, opts.output, options, faults=faults, watch=watch)
    if url is None or deduped.kept_in is not None:
        return DedupeReport(deduped, None, below, are_open)
    return DedupeReport(deduped, _entered(place, opts, url, deduped.paths), below, are_open)


def _entered(
    place: CommandStores, opts: argparse.Namespace, url: str, paths: Sequence[str]
) -> ImportedOutput:
    from scrapy_dedupe.crawls import open_index
    from scrapy_dedupe.crawls.importing import ImportOptions, import_sources

    import_options = ImportOptions(crawl=opts.crawl_id, new_payload=place.settings.warc.payload)
    with open_index(url, timeout_s=place.timeout_s) as index, Bars(opts) as bars:
        watch = ImportBar(bars, [])
        done = import_sources(index, paths, import_options, watch)
        watch.end()
    return _indexed(place.shown(url), done)


def stopped(opts: argparse.Namespace) -> str:
    return f"{'without --force ' if opts.force else ''}the same command continues where it stopped"


def _options(opts: argparse.Namespace) -> StepOptions:
    from scrapy_dedupe.offline.step_reports import StepOptions
    from scrapy_dedupe.tasks.jobs import job_count

    if opts.in_place and opts.output is not None:
        raise UsageError("--in-place replaces the files, and -o writes new ones. Give only one of them.")
    if not (opts.in_place or opts.output is not None or opts.dry_run):
        raise UsageError(
            "Name a folder for the new files with -o FOLDER, or replace the files with --in-place."
        )
    if opts.in_place and opts.convert_arc:
        raise UsageError("--convert-arc writes new files for ARC files, so it only works with -o FOLDER.")
    if opts.dry_run and opts.index:
        raise UsageError("A dry run writes no files to import. Leave --index out.")
    if opts.crawl_id is not None and not opts.index:
        raise UsageError("--crawl-id only works with --index: it names the crawl of the imported files.")
    if opts.min_size < 0 or opts.sample < 0:
        raise SettingError("--min-size and --sample must be 0 or more.")
    job_count(opts.jobs)
    return StepOptions(
        algorithm=opts.hash,
        eligibility=Eligibility(opts.min_size, _statuses(opts.status)),
        convert_arc=opts.convert_arc,
        in_place=opts.in_place,
        dry_run=opts.dry_run,
        keep_going=opts.keep_going,
        force=opts.force,
        jobs=opts.jobs,
        sample=opts.sample,
        work=opts.work,
    )


def _statuses(words: Sequence[str] | None) -> frozenset[int] | None:
    if words is None:
        return Eligibility().statuses
    if _ALL in words:
        return None
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) == 3):
            raise SettingError(f'{word!r} is not an HTTP status. Give a number such as 404, or "{_ALL}".')
    return frozenset(map(int, words))


def _indexed(store: str, done: ImportResult) -> ImportedOutput:
    return ImportedOutput(
        store=store,
        imported=len(done.imported) + len(done.known),
        originals=done.originals,
        revisits=done.revisits,
        failed=tuple(f"{failed.source}: {failed.reason}" for failed in done.failed),
        skipped=done.skipped,
    )


_REMEDY = " If an earlier run made revisits of such records, restore all files first, then deduplicate them together."


def text(result: DedupeReport) -> str:
    done = result.deduped
    lines = [*_table(done), *_left(done)]
    lines += left_files(result.left_below, result.left_open)
    if done.savings is not None:
        lines += _savings("host", done.savings.hosts) + _savings("MIME type", done.savings.types)
    if done.verified:
        lines.append(
            f"Verified: {counted(done.verified, 'record')} read again and compared with the old files;"
            f" {counted(done.resolved, 'revisit leads', 'revisits lead')} to the same payload,"
            f" {number_text(done.replayed)} replayed as a sample."
        )
    if done.dangling:
        lines.append(
            f"{counted(done.dangling, 'revisit leads', 'revisits lead')} nowhere, as before.{_REMEDY}"
        )
    if done.by_digest:
        lines.append(
            f"{counted(done.by_digest, 'revisit leads', 'revisits lead')} to a payload only by digest, as before; pywb and"
            f" wabac.js need the record that the revisit refers to.{_REMEDY}"
        )
    lines += _first([str(fault) for fault in done.faults], done.fault_count)
    lines += _first(list(done.findings), done.findings_count)
    if (index := result.index) is not None:
        lines.append(
            f"{counted(index.imported, 'file')} imported into {index.store}: {counted(index.originals, 'original')},"
            f" {counted(index.revisits, 'revisit')}."
        )
        lines += _first(list(index.failed), len(index.failed))
    return "\n".join([*lines, *_outcome(done)])


def _table(done: Deduped) -> list[str]:
    files = number_text(done.files) + (
        f", {number_text(done.arcs)} of them converted from ARC" if done.arcs else ""
    )
    rows = [
        ("files", files),
        ("responses", number_text(done.records)),
        ("repeated digests", number_text(done.clusters)),
    ]
    if done.collisions:
        rows.append(("of unequal bytes", number_text(done.collisions)))
    rows.append(("would be revisits" if done.dry_run else "now revisits", number_text(done.converted)))
    if done.repointed:
        rows.append(("references updated", number_text(done.repointed)))
    percent = 100 * done.saved_bytes / done.old_bytes if done.old_bytes else 0.0
    rows += [
        ("size before", size_text(done.old_bytes)),
        ("size after", ("about " if done.dry_run else "") + size_text(done.new_bytes)),
        ("saved", f"{_signed(done.saved_bytes)} ({percent:.1f} %)"),
    ]
    return [f"{title:<20}{value}" for title, value in rows]


def _left(done: Deduped) -> list[str]:
    """The unchanged copies by reason, the most frequent first."""
    from scrapy_dedupe.offline.plan import LEFT

    if not done.left:
        return []
    lines = [f"{'copies left':<20}{number_text(sum(done.left.values()))}, not changed:"]
    for reason, count in sorted(done.left.items(), key=lambda item: (-item[1], item[0])):
        option = f" ({_OPTIONS[reason]})" if reason in _OPTIONS else ""
        lines.append(f"    {number_text(count):>10}  {LEFT.get(reason, reason)}{option}")
    return lines


def _outcome(done: Deduped) -> list[str]:
    """Where the result is, and how to revert it."""
    if done.dry_run:
        return ["Nothing was written."]
    if done.kept_in is not None:
        return [f"NOT verified. No file has its final name; the new ones are in {done.kept_in}."]
    kept = f"The manifest and the report are kept in {done.state}." if done.state is not None else ""
    if done.in_place:
        undo = "scrapy-dedupe restore PATH... --in-place, with the same PATHs"
        return [f"The files were replaced. {kept}".rstrip(), f"To undo it: {undo}"]
    undo = f"scrapy-dedupe restore {shlex.quote(done.output)} -o FOLDER"
    return [
        f"The new files are in {done.output}; the old ones are unchanged. {kept}".rstrip(),
        f"To undo it: {undo}",
    ]


def _signed(size_bytes: int) -> str:
    return f"-{size_text(-size_bytes)}" if size_bytes < 0 else size_text(size_bytes)


def _savings(title: str, savings: Sequence[Saving]) -> list[str]:
    lines = [f"By {title}:"] if savings else []
    lines += [
        f"    {size_text(saving.saved_bytes):>10} {number_text(saving.records):>10}  {saving.name}"
        for saving in savings[:_SHOWN]
    ]
    return [*lines, f"    and {number_text(len(savings) - _SHOWN)} more."] if len(savings) > _SHOWN else lines


def _first(lines: list[str], count: int) -> list[str]:
    return [*lines[:_SHOWN], f"and {number_text(count - _SHOWN)} more."] if count > _SHOWN else lines


def caveat(result: DedupeReport) -> str | None:
    done, index = result.deduped, result.index
    parts = []
    if done.findings_count:
        parts.append(f"the verification found {counted(done.findings_count, 'difference')}")
    if done.fault_count:
        parts.append(f"{counted(done.fault_count, 'fault')} in the input skipped")
    if index is not None and index.failed:
        parts.append(f"{counted(len(index.failed), 'file')} not imported")
    if index is not None and index.skipped:
        parts.append(f"{counted(index.skipped, 'record')} skipped by the import")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else None
