"""``dedupe PATH… -o FOLDER``: run all steps of the deduplication."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.crawls.imports import import_into_index, notes_on_digests
from scrapy_dedupe.commands.options import KEEP_GOING, RECURSIVE, Option, flag
from scrapy_dedupe.commands.output import as_json, first, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.importing import ImportOptions
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.offline.eligibility import LEFT
from scrapy_dedupe.offline.steps import StepOptions, run_steps
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores.crawl_index import checked_crawl_id
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs, left_out, refuse_own_folder
from scrapy_dedupe.warc.remote import is_url, place_file

from . import (
    HASH,
    REVISITS,
    check_target,
    continues,
    eligibility_of,
    left_files,
    savings_lines,
)
from .engines import ENGINES, jobs_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.offline.steps import Deduped

_OPTIONS: Final = {
    "small": "see --min-size",
    "status": "see --status",
    "arc": "--convert-arc converts them to WARC",
}
_REMEDY: Final = " If an earlier run made revisits of such records, restore all files first, then deduplicate them together."


def _dedupe(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    check_target(opts)
    if opts.in_place and opts.convert_arc:
        raise UsageError("--convert-arc writes new files for ARC files, so it only works with -o FOLDER.")
    if opts.dry_run and opts.index:
        raise UsageError("A dry run writes no files to import. Leave --index out.")
    for option, value in (("--crawl-id", opts.crawl_id), ("--store", opts.store)):
        if value is not None and not opts.index:
            raise UsageError(
                f"{option} only works with --index, which imports the files into the crawl index."
            )
    if opts.crawl_id is not None:
        checked_crawl_id(opts.crawl_id)
    import_options = None
    if opts.index:
        # Wrong settings must be refused before the work.
        warc = stores.settings.warc
        import_options = ImportOptions(crawl=opts.crawl_id, new_payload=warc.payload, digest=warc.digest)
    is_remote = isinstance(opts.output, str)
    if is_remote and opts.engine != "spark":
        raise UsageError(
            f"Only --engine spark writes to a URL. Use --engine spark --master 'local[{opts.jobs or '*'}]', or name a folder"
            " and copy it."
        )
    faults = Faults(keep_going=opts.keep_going)
    folder = None if is_remote else opts.output
    inputs = find_inputs(opts.paths, faults=faults, recursive=opts.recursive, without=folder)
    if folder is not None and not opts.dry_run:
        refuse_own_folder(inputs, folder)
    below, are_open = left_out(opts.paths, inputs, recursive=opts.recursive, without=folder)
    options = StepOptions(
        algorithm=opts.hash,
        eligibility=eligibility_of(opts),
        **picked(opts, "compare convert_arc in_place dry_run keep_going force sample work"),
    )
    with jobs_of(opts, needs_work=opts.dry_run or is_remote) as jobs, Bars(opts) as bars:
        options = replace(options, jobs=jobs)
        if is_remote:
            from scrapy_dedupe.spark.uploads import dedupe_to_url

            deduped = dedupe_to_url(inputs, opts.output, options, faults=faults, watch=bars)
        else:
            deduped = run_steps(inputs, opts.output, options, faults=faults, watch=bars)
    imported = None
    if import_options is not None and deduped.kept_in is None:
        imported = import_into_index(stores, opts, deduped.paths, import_options)
    # What was not included: the number of WARC and ARC files in subfolders, and files that a crawl has open.
    return {"deduped": deduped, "index": imported, "left_below": below, "left_open": are_open}


def _folder_or_url(text: str) -> Path | str:
    place = place_file(text)
    return place if isinstance(place, Path) else text


def _as_json(result: dict[str, Any]) -> dict[str, Any]:
    index = None
    if result["index"] is not None:
        store, done = result["index"]
        index = {
            "store": store,
            "imported": len(done.imported) + len(done.known),
            **picked(done, "originals revisits"),
            "failed": [f"{failed.source}: {failed.reason}" for failed in done.failed],
            "skipped": done.skipped,
        }
    return {**as_json(result | {"index": None}), "index": index}


def _lines(result: dict[str, Any]) -> Iterator[str]:
    done: Deduped = result["deduped"]
    for title, value in _rows(done):
        yield f"{title:<20}{value}"
    if done.left:
        yield f"{'copies left':<20}{number(sum(done.left.values()))}, not changed:"
        # The most frequent reason first.
        for reason, count in sorted(done.left.items(), key=lambda item: (-item[1], item[0])):
            option = f" ({_OPTIONS[reason]})" if reason in _OPTIONS else ""
            yield f"    {number(count):>10}  {LEFT.get(reason, reason)}{option}"
    yield from left_files(result["left_below"], result["left_open"])
    if done.savings is not None:
        yield from savings_lines(done.savings)
    if done.verified:
        yield (
            f"Verified: {counted(done.verified, 'record')} read again and compared with the old records;"
            f" {_leading(done.resolved)} to the same payload, {number(done.replayed)} replayed as a sample."
        )
    if done.dangling:
        yield f"{_leading(done.dangling)} nowhere, as before.{_REMEDY}"
    if done.by_digest:
        yield (
            f"{_leading(done.by_digest)} to a payload only by digest, as before; pywb and wabac.js need the record that"
            f" the revisit refers to.{_REMEDY}"
        )
    yield from first(done.faults, done.fault_count)
    yield from first(done.findings, done.findings_count)
    if result["index"] is not None:
        store, imported = result["index"]
        files = counted(len(imported.imported) + len(imported.known), "file")
        originals = counted(imported.originals, "original")
        yield f"{files} imported into {store}: {originals}, {counted(imported.revisits, 'revisit')}."
        yield from notes_on_digests(imported)
        yield from first([f"{failed.source}: {failed.reason}" for failed in imported.failed])
    yield from _outcome(done)


def _rows(done: Deduped) -> Iterator[tuple[str, str]]:
    arcs = f", {number(done.arcs)} of them converted from ARC" if done.arcs else ""
    yield "files", f"{number(done.files)}{arcs}"
    yield "responses", number(done.records)
    yield "repeated digests", number(done.clusters)
    if done.collisions:
        yield "of unequal bytes", number(done.collisions)
    yield "would be revisits" if done.dry_run else "now revisits", number(done.converted)
    if done.repointed:
        yield "references updated", number(done.repointed)
    yield "size before", size(done.old_bytes)
    yield "size after", ("about " if done.dry_run else "") + size(done.new_bytes)
    percent = 100 * done.saved_bytes / done.old_bytes if done.old_bytes else 0.0
    sign = "-" if done.saved_bytes < 0 else ""
    yield "saved", f"{sign}{size(abs(done.saved_bytes))} ({percent:.1f} %)"


def _leading(count: int) -> str:
    return counted(count, "revisit leads", "revisits lead")


def _outcome(done: Deduped) -> Iterator[str]:
    """Where the result is, and how to revert it."""
    if done.dry_run:
        yield "Nothing was written."
        return
    if done.kept_in is not None:
        yield f"NOT verified. No file has its final name; the new ones are in {done.kept_in}."
        return
    kept = f" The manifest and the report are kept in {done.state}." if done.state is not None else ""
    if done.in_place and not (done.converted or done.repointed):
        yield f"No file was changed.{kept}"
    elif done.in_place:
        yield f"The files were replaced.{kept}"
        yield "To undo it: scrapy-dedupe restore PATH... --in-place, with the same PATHs"
    else:
        yield f"The new files are in {done.output}; the old ones are unchanged.{kept}"
        # restore reads only local files.
        first_step, copy = ("download the files, then ", "COPY") if is_url(done.output) else ("", done.output)
        yield f"To undo it: {first_step}scrapy-dedupe restore {shlex.quote(copy)} -o FOLDER"


def _caveats(result: dict[str, Any]) -> Iterator[str]:
    done: Deduped = result["deduped"]
    if done.findings_count:
        yield f"The verification found {counted(done.findings_count, 'difference')}"
    if done.fault_count:
        yield f"{counted(done.fault_count, 'fault')} in the input skipped"
    if result["index"] is not None:
        _, imported = result["index"]
        if imported.failed:
            yield f"{counted(len(imported.failed), 'file')} not imported"
        if imported.skipped:
            yield f"{counted(imported.skipped, 'record')} skipped by the import"


DEDUPE = Verb(
    _dedupe,
    _lines,
    [
        Option("paths", "PATH", "a WARC or ARC file, a folder, or a pattern", nargs="+"),
        Option(
            "-o --output",
            "FOLDER",
            "the folder for the new files; with --engine spark, also a URL such as s3://bucket/folder",
            type=_folder_or_url,
        ),
        RECURSIVE,
        HASH,
        Option(
            "--compare",
            "HOW",
            "when payloads are the same: digest (the digest of --hash, BLAKE2b-256 and the size are equal; default) or"
            " bytes (all bytes of equal digests are compared, and the verification reads the old files again)",
            choices=("digest", "bytes"),
            default="digest",
        ),
        *REVISITS,
        flag("--convert-arc", "convert ARC files to WARC first (default: copy them)"),
        Option(
            "--work", "DIR", "the folder for the state of the run (default: .dedupe in FOLDER)", type=Path
        ),
        *ENGINES,
        KEEP_GOING,
        flag("--force", "start again, and replace files of the same names in FOLDER"),
        flag("--index", "import the resulting files into the crawl index at the end"),
        Option(
            "--crawl-id",
            "ID",
            "with --index: the crawl of the files (default: that in each file, else its name)",
        ),
    ],
    json=_as_json,
    caveats=_caveats,
    stopped=lambda opts: f"{'without --force ' if opts.force else ''}{continues(opts)}",
)
