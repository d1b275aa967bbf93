"""Verbs that write new WARC files, or compare them with the old ones.

``warcrefs MANIFEST… -o FOLDER`` rewrites files with a revisit for every copy; ``verify`` checks that nothing was lost.
``restore PATH…`` converts revisits back to responses; ``arc2warc PATH…`` converts ARC files to WARC.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, JOBS, KEEP_GOING, RECURSIVE, Exclusive, Option, flag
from scrapy_dedupe.commands.output import by_kind, first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.arc_conversion import ConversionOptions, convert_files
from scrapy_dedupe.offline.eligibility import LEFT
from scrapy_dedupe.offline.manifest import read_all
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.restoring import RestoreOptions, restore
from scrapy_dedupe.offline.rewriting import RewriteOptions, rewrite
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.verification import pairs_of, verify
from scrapy_dedupe.verification.findings import KINDS

from . import (
    IN_PLACE,
    ORIGINALS,
    OUTPUT_FOLDER,
    PATHS_MAP,
    REVISITS,
    ROOT,
    SAMPLE,
    check_target,
    continues,
    eligibility_of,
    savings_lines,
)
from .engines import ENGINES, jobs_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.offline.arc_conversion import Converted
    from scrapy_dedupe.offline.restoring import Restored
    from scrapy_dedupe.offline.rewriting import Rewritten
    from scrapy_dedupe.verification import Verification


def _rewrite(stores: CommandStores, opts: argparse.Namespace) -> Rewritten:
    check_target(opts)
    options = RewriteOptions(eligibility_of(opts), **picked(opts, "dry_run in_place keep_going sample force"))
    faults = Faults(keep_going=opts.keep_going)
    with jobs_of(opts) as jobs, Bars(opts) as bars:
        return rewrite(
            read_all(opts.manifests, faults=faults),
            opts.files,
            Places(opts.root, opts.paths),
            opts.output or Path(),
            replace(options, jobs=jobs),
            bars,
            originals=read_all(opts.originals, faults=faults),
            faults=faults,
        )


def _rewrite_lines(result: Rewritten) -> Iterator[str]:
    yield from first(result.faults, result.faults_count)
    yield from savings_lines(result.savings)
    if result.left:
        yield "Copies not changed:"
        yield from (f"  {number(count):>10}  {LEFT[reason]}" for reason, count in result.left.items())
    if result.unlisted:
        files = counted(len(result.unlisted), "file")
        are, they = ("is", "it refers") if len(result.unlisted) == 1 else ("are", "they refer")
        yield (
            f"{files} in these folders {are} in no manifest. If {they} to copies that become revisits, these references"
            " will lead nowhere: name all files, including these, with --files."
        )
        yield from first(result.unlisted, indent="  ")
    if result.verification is not None:
        yield from _verify_lines(result.verification)
    copies = counted(result.converted, "copy", "copies")
    revisits = "a revisit" if result.converted == 1 else "revisits"
    sizes = f"{size(result.saved_bytes)} saved ({size(result.old_bytes)} -> {size(result.new_bytes)})"
    if result.is_dry_run:
        yield f"{counted(result.files, 'file')}: {copies} would become {revisits}, about {sizes}."
    else:
        others = f", {number(result.repointed)} other records were updated" if result.repointed else ""
        yield f"{counted(result.files, 'file')}: {copies} became {revisits}{others}, {sizes}."


def _rewrite_caveats(result: Rewritten) -> Iterator[str]:
    if result.kept_in is not None:
        yield (
            "The verification failed, so the new files did not get their final names. They stay in"
            f" {result.kept_in}; remove it to start again"
        )
    elif result.faults_count:
        yield f"{counted(result.faults_count, 'fault')} in the input; the damaged parts were copied unchanged"
    elif result.verification is not None:
        yield from _verify_caveats(result.verification)


WARCREFS = Verb(
    _rewrite,
    _rewrite_lines,
    [
        Option("manifests", "MANIFEST", "manifests of ten columns, from warcsumproc", type=Path, nargs="+"),
        OUTPUT_FOLDER,
        Option(
            "--originals",
            "MANIFEST",
            "manifests that are only read for their originals; their files are not rewritten",
            type=Path,
            nargs="+",
            action="extend",
            default=[],
        ),
        ROOT,
        PATHS_MAP,
        Option(
            "--files",
            "NAME",
            "rewrite only these names of the manifest; patterns are allowed",
            nargs="+",
            action="extend",
        ),
        *REVISITS,
        *ENGINES,
        KEEP_GOING,
        FORCE,
    ],
    caveats=_rewrite_caveats,
    stopped=continues,
    store_option=None,
)


def _verify(stores: CommandStores, opts: argparse.Namespace) -> Verification:
    pairs = pairs_of(opts.before, opts.after)
    faults = Faults(advice="Do not name it with --originals.")
    originals = find_inputs(opts.originals, faults=faults, recursive=True)
    if opts.work is not None and not opts.work.is_dir():
        raise ArchiveError(f"{opts.work} is not a folder. Name a folder with enough space with --work.")
    try:
        with (
            jobs_of(opts, needs_work=True) as jobs,
            tempfile.TemporaryDirectory(prefix="scrapy-dedupe-", dir=opts.work) as folder,
            Bars(opts) as bars,
        ):
            return verify(
                pairs,
                originals=[found.file for found in originals],
                work=Path(folder),
                jobs=jobs,
                watch=bars,
                **picked(opts, "sample seed keep_going"),
            )
    except OSError as error:
        raise ArchiveError(
            f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}. Check its permissions, and the"
            " free space for temporary data (--work)."
        ) from error


def _verify_lines(result: Verification) -> Iterator[str]:
    yield from by_kind(result.findings, KINDS)
    if result.findings_count > len(result.findings):
        yield (
            f"Only the first {number(len(result.findings))} of {number(result.findings_count)} findings are kept."
        )
    yield from first([f"Damaged in both: {fault}" for fault in result.faults], result.faults_count)
    yield from first(
        [f"Note: {note}" for note in result.notes],
        result.by_digest + result.dangling_before + result.ambiguous,
    )
    kinds = {
        "unchanged": result.unchanged,
        "converted to revisits": result.converted,
        "with changed references": result.repointed,
        "restored": result.restored,
        "with changed transfer chunks": result.rechunked,
        "converted from ARC": result.from_arc,
    }
    records = ", ".join(f"{number(count)} {name}" for name, count in kinds.items() if count)
    speed = f", {size(round(result.size_bytes / result.seconds))}/s" if result.seconds else ""
    yield (
        f"{counted(result.records, 'record')} in {counted(result.files, 'file')}{speed}: {records or 'none'}."
    )
    their = "its" if result.resolved == 1 else "their"
    revisits = f"{counted(result.resolved, 'revisit leads', 'revisits lead')} to {their} payload"
    if result.dangling_before:
        revisits += f", {number(result.dangling_before)} led nowhere before either"
    yield f"{revisits}."
    if result.sample:
        yield (
            f"{number(result.replayed)} of {number(result.sample)} replayed byte for byte, with --seed {result.seed}."
        )
    yield f"{counted(result.findings_count, 'finding')}." if result.findings_count else "Nothing is lost."


def _verify_caveats(result: Verification) -> Iterator[str]:
    if count := result.findings_count:
        things = counted(count, "difference is", "differences are")
        yield f"{things} not allowed. Do not delete the original files"
    elif count := result.faults_count:
        places = counted(count, "damaged place was", "damaged places were")
        yield f"{places} skipped; both archives have the same bytes there"


VERIFY = Verb(
    _verify,
    _verify_lines,
    [
        Option("before", "BEFORE", "the original file or folder", type=Path),
        Option("after", "AFTER", "the new file or folder", type=Path),
        ORIGINALS,
        SAMPLE,
        Option("--seed", "S", "use the same sample as an earlier run with seed S", type=int),
        *ENGINES,
        KEEP_GOING,
        Option("--work", "DIR", "folder for temporary data, 300 bytes a record (default: TMPDIR)", type=Path),
    ],
    caveats=_verify_caveats,
    store_option=None,
)


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
    elif result.fault_count:
        yield f"Nothing was restored in {counted(result.files, 'file')} ({size(result.bytes_before)})."
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
