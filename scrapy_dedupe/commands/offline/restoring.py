"""``restore PATH…`` converts revisits back to responses; ``arc2warc PATH…`` converts ARC files to WARC."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, JOBS, KEEP_GOING, RECURSIVE, Exclusive, Option, flag
from scrapy_dedupe.commands.output import first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.offline.arc_conversion import ConversionOptions
from scrapy_dedupe.offline.arc_files import convert_files
from scrapy_dedupe.offline.restoring import RestoreOptions, restore
from scrapy_dedupe.reports.wording import counted, number, size

from . import IN_PLACE, ORIGINALS, OUTPUT_FOLDER, check_target, continues

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.offline.arc_files import Converted
    from scrapy_dedupe.offline.restoring import Restored


def _restore(stores: CommandStores, opts: argparse.Namespace) -> Restored:
    check_target(opts)
    options = RestoreOptions(**picked(opts, "all_writers jobs keep_going force"))
    with Bars(opts) as bars:
        return restore(opts.paths, opts.output, originals=opts.originals, options=options, watch=bars)


def _restore_lines(result: Restored) -> Iterator[str]:
    yield from first(result.faults, result.fault_count)
    if result.restored or result.repointed:
        changed = f"{number(result.files_changed)} of {counted(result.files, 'file')}"
        yield (
            f"{counted(result.restored, 'revisit')} restored, references of {counted(result.repointed, 'other record')}"
            f" reverted, in {changed}; {size(result.bytes_before)} became {size(result.bytes_after)}. Verified."
        )
    else:
        yield (
            f"Nothing to restore: {counted(result.files, 'file')}, {size(result.bytes_before)}, without any record"
            " that warcrefs or dedupe has changed."
        )
    for reason, count in result.left.items():
        yield f"Not restored: {counted(count, 'revisit')} of other programs ({reason})."
    if result.not_ours:
        yield (
            f"Not restored: {counted(result.not_ours, 'record')} with Former- fields that warcrefs or dedupe did not"
            " write."
        )
    if result.output is not None:
        yield f"The files are in {result.output}; the source files are unchanged."
    elif result.files_changed:
        yield "The files were replaced."


def _restore_caveats(result: Restored) -> Iterator[str]:
    if result.fault_count:
        yield f"{counted(result.fault_count, 'fault')} in the input; the records concerned are unchanged"
    if result.left_revisits:
        yield f"{counted(result.left_revisits, 'revisit')} of other programs not restored"


RESTORE = Verb(
    _restore,
    _restore_lines,
    [
        Option("paths", "PATH", "WARC files, or folders with WARC files", nargs="+"),
        OUTPUT_FOLDER,
        IN_PLACE,
        flag(
            "--all", "also restore revisits of other programs, if the original is found", dest="all_writers"
        ),
        ORIGINALS,
        JOBS,
        flag("--keep-going", "leave a revisit that cannot be restored unchanged, and continue"),
        FORCE,
    ],
    caveats=_restore_caveats,
    stopped=continues,
    store_option=None,
)


def _convert(stores: CommandStores, opts: argparse.Namespace) -> Converted:
    options = ConversionOptions(
        algorithm=opts.hash, gzip=opts.gzip, force=opts.force, software=f"scrapy-dedupe/{__version__}"
    )
    with Bars(opts) as bars:
        return convert_files(
            opts.paths, opts.output, options=options, watch=bars, **picked(opts, "recursive jobs keep_going")
        )


def _convert_lines(result: Converted) -> Iterator[str]:
    yield from first(result.faults, result.fault_count)
    already = f", {number(result.files_found)} of them before" if result.files_found else ""
    yield (
        f"{counted(result.files, 'ARC file')} converted{already}: {counted(result.responses, 'response')},"
        f" {counted(result.resources, 'resource')}, {counted(result.metadata, 'version block')};"
        f" {size(result.bytes_before)} became {size(result.bytes_after)}."
    )
    if result.files:
        readable = "that could be read " if result.fault_count else ""
        yield (
            f"Verified: every capture {readable}is kept with its payload. The WARC files are in {result.output}; the ARC"
            " files are unchanged."
        )


def _convert_caveats(result: Converted) -> Iterator[str]:
    if result.fault_count:
        are = "is" if result.fault_count == 1 else "are"
        yield f"{counted(result.fault_count, 'place')} could not be converted and {are} not in the output"


ARC2WARC = Verb(
    _convert,
    _convert_lines,
    [
        Option("paths", "PATH", "ARC files, or folders with -r", nargs="+"),
        Option("-o --output", "FOLDER", "the folder for the WARC files", type=Path, required=True),
        RECURSIVE,
        Option(
            "--hash",
            None,
            "the algorithm of the digests (default: sha256)",
            choices=("sha1", "sha256"),
            default="sha256",
        ),
        Exclusive(
            flag("--gzip", "compress the output (default: like the input)", default=None),
            Option(
                "--no-gzip",
                None,
                "do not compress the output",
                action="store_false",
                dest="gzip",
                default=None,
            ),
        ),
        JOBS,
        KEEP_GOING,
        FORCE,
    ],
    caveats=_convert_caveats,
    stopped=lambda opts: (
        "the finished WARC files are complete, and the same command converts them again"
        if opts.force
        else continues(opts)
    ),
    store_option=None,
)
