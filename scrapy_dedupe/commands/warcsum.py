"""``warcsum PATH… -o MANIFEST``: write one line for each record that may have duplicates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.offline.manifest import ALGORITHMS, FORMATS

from .bars import Bars
from .figures import counted, number_text, size_text
from .skipped_files import left_files

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.offline.summing import Sums

    from .stores import CommandStores

HELP = (
    "Write a manifest of WARC and ARC files: one line for each response, with its file, offset, length, URI, date and"
    " the digest of its payload. It is the input of warccollres and warcsumproc. The stored digest of a record is used if"
    " it has the wanted algorithm and the body was not transferred in chunks."
)

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a WARC, ARC or WACZ file, a folder with WARC and ARC files, a pattern such as 'folder/*.warc.gz', or a"
        " URL",
    )
    parser.add_argument("-o", "--output", metavar="MANIFEST", required=True, help="the manifest to write")
    parser.add_argument("-r", "--recursive", action="store_true", help="include the subfolders of a folder")
    parser.add_argument(
        "-H",
        "--hash",
        choices=ALGORITHMS,
        default="sha256",
        help="the algorithm of the digests (default: %(default)s)",
    )
    parser.add_argument(
        "--recompute", action="store_true", help="compute all digests, even if a record has one"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compute all digests, and report records whose stored digest differs (exit code 4)",
    )
    parser.add_argument("--skip-empty", action="store_true", help="no lines for records without payload")
    parser.add_argument("--resources", action="store_true", help="also write lines for resource records")
    parser.add_argument("--decoded", action="store_true", help="digest payloads without their content coding")
    parser.add_argument(
        "--append", action="store_true", help="add the files that the manifest does not list yet"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing manifest")
    parser.add_argument(
        "--base",
        metavar="DIR",
        help="make the file names relative to this folder (default: as they were named)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of the manifest (default: text, or the format of the manifest that is extended)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes; 0 for all cores (default: %(default)s)"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="skip damaged places and continue (exit code 4)"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Sums:
    # The command line imports this module on every start, so slow imports are deferred.
    from scrapy_dedupe.offline.digests import DigestOptions
    from scrapy_dedupe.offline.inputs import find_inputs, left_below, left_open, relative_to
    from scrapy_dedupe.offline.summing import SumOptions, sum_files
    from scrapy_dedupe.tasks.faults import Faults

    if opts.append and opts.force:
        raise UsageError("--append extends a manifest and --force replaces it. Give only one of them.")
    faults = Faults(keep_going=opts.keep_going)
    inputs = find_inputs(opts.paths, faults=faults, recursive=opts.recursive)
    below = 0 if opts.recursive else left_below(opts.paths, inputs)
    are_open = left_open(opts.paths, inputs, recursive=opts.recursive)
    if opts.base is not None:
        inputs = relative_to(inputs, Path(opts.base))
    options = SumOptions(
        DigestOptions(
            algorithm=opts.hash,
            recompute=opts.recompute,
            verify=opts.verify,
            skip_empty=opts.skip_empty,
            resources=opts.resources,
            decoded=opts.decoded,
        ),
        format=opts.format,
        append=opts.append,
        force=opts.force,
        keep_going=opts.keep_going,
        jobs=opts.jobs,
    )
    with Bars(opts) as watch:
        sums = sum_files(inputs, Path(opts.output), options, faults=faults, watch=watch)
    return replace(sums, left_below=below, left_open=are_open)


def text(result: Sums) -> str:
    lines = [
        (
            f"{result.output}: {counted(result.lines, 'record')} of {counted(result.files, 'file')},"
            f" {size_text(result.size_bytes)}. {counted(result.stored, 'digest was', 'digests were')} stored with the records,"
            f" {number_text(result.computed)} computed ({size_text(result.hashed_bytes)} hashed)."
        )
    ]
    if result.listed:
        lines.append(f"Skipped, since the manifest already lists them: {_some(result.listed)}.")
    lines += left_files(result.left_below, result.left_open)
    if result.empty:
        lines.append(f"{counted(result.empty, 'record')} without payload left out.")
    if result.headless:
        lines.append(f"{counted(result.headless, 'response')} without an HTTP status line left out.")
    if result.verified or result.unverifiable:
        lines.append(
            f"{counted(result.verified, 'stored digest')} compared,"
            f" {number_text(result.mismatch_count)} different"
            + (f", {number_text(result.unverifiable)} of unknown algorithms." if result.unverifiable else ".")
        )
    for count, faults in ((result.mismatch_count, result.mismatches), (result.fault_count, result.faults)):
        lines += [str(fault) for fault in faults[:_SHOWN]]
        if count > _SHOWN:
            lines.append(f"and {number_text(count - _SHOWN)} more.")
    return "\n".join(lines)


def caveat(result: Sums) -> str | None:
    parts = []
    if result.fault_count:
        parts.append(f"{counted(result.fault_count, 'fault')} in the input skipped")
    if result.mismatch_count:
        parts.append(
            f"{counted(result.mismatch_count, 'record')} with a digest that does not match the payload"
        )
    return f"{'; '.join(parts)}." if parts else None


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {number_text(more)} more" if more > 0 else "")
