"""``warcsum``, ``warccollres``, ``warcsumproc`` and ``warcsumsplit``: verbs that write manifests."""

from __future__ import annotations

import argparse
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, KEEP_GOING, RECURSIVE, Exclusive, Option, flag
from scrapy_dedupe.commands.output import as_json, first, listed, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.errors import ArchiveError, DedupeError, UsageError
from scrapy_dedupe.offline.collisions import CollisionCounts, resolve_collisions
from scrapy_dedupe.offline.digests import DigestOptions
from scrapy_dedupe.offline.manifest import FORMATS, LineWriter, read_all
from scrapy_dedupe.offline.ordering import PART_FORMATS, by_cluster, by_place, split
from scrapy_dedupe.offline.ordering import number as numbered
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.summing import SumOptions, sum_files
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import Input, find_inputs, left_out, refuse_own_file, relative_to

from . import HASH, PATHS_MAP, ROOT, continues, left_files
from .engines import ENGINES, jobs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.offline.summing import Sums

_SIZE: Final = re.compile(r"(\d+)([kmgt]?)", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

MANIFESTS: Final = Option(
    "manifests", "MANIFEST", "manifests, in any order and format; - is standard input", type=Path, nargs="+"
)
OUTPUT: Final = Option(
    "-o --output", "FILE", "the manifest to write; - is standard output", type=Path, required=True
)
FORMAT: Final = Option(
    "--format", None, "the format of the output (default: text)", choices=FORMATS, default="text"
)


def _sum(stores: CommandStores, opts: argparse.Namespace) -> Sums:
    if opts.append and opts.force:
        raise UsageError("--append extends a manifest and --force replaces it. Give only one of them.")
    faults = Faults(keep_going=opts.keep_going)
    inputs = find_inputs(opts.paths, faults=faults, recursive=opts.recursive)
    below, are_open = left_out(opts.paths, inputs, recursive=opts.recursive)
    if opts.base is not None:
        inputs = relative_to(inputs, opts.base)
    options = SumOptions(
        DigestOptions(algorithm=opts.hash, **picked(opts, "recompute verify skip_empty resources decoded")),
        **picked(opts, "format append force keep_going"),
    )
    with jobs_of(opts) as jobs, Bars(opts) as bars:
        sums = sum_files(inputs, Path(opts.output), replace(options, jobs=jobs), faults=faults, watch=bars)
    return replace(sums, left_below=below, left_open=are_open)


def _sum_lines(sums: Sums) -> Iterator[str]:
    yield (
        f"{sums.output}: {counted(sums.lines, 'record')} of {counted(sums.files, 'file')}, {size(sums.size_bytes)}."
        f" {counted(sums.stored, 'digest was', 'digests were')} stored with the records, {number(sums.computed)}"
        f" computed ({size(sums.hashed_bytes)} hashed)."
    )
    if sums.listed:
        yield f"Skipped, since the manifest already lists them: {listed(sums.listed)}."
    yield from left_files(sums.left_below, sums.left_open)
    if sums.empty:
        yield f"{counted(sums.empty, 'record')} without payload left out."
    if sums.headless:
        yield f"{counted(sums.headless, 'response')} without an HTTP status line left out."
    if sums.verified or sums.unverifiable:
        unknown = f", {number(sums.unverifiable)} of unknown algorithms" if sums.unverifiable else ""
        compared = counted(sums.verified, "stored digest")
        yield f"{compared} compared, {number(sums.mismatch_count)} different{unknown}."
    yield from first(sums.mismatches, sums.mismatch_count)
    yield from first(sums.faults, sums.fault_count)


def _sum_caveats(sums: Sums) -> Iterator[str]:
    if sums.fault_count:
        yield f"{counted(sums.fault_count, 'fault')} in the input skipped"
    if sums.mismatch_count:
        yield f"{counted(sums.mismatch_count, 'record')} with a digest that does not match the payload"


WARCSUM = Verb(
    _sum,
    _sum_lines,
    [
        Option("paths", "PATH", "a WARC, ARC or WACZ file, a folder, a pattern, or a URL", nargs="+"),
        Option("-o --output", "MANIFEST", "the manifest to write", required=True),
        RECURSIVE,
        HASH,
        flag("--recompute", "compute all digests, even if a record has one"),
        flag("--verify", "compute all digests, and report records whose stored digest differs (exit code 4)"),
        flag("--skip-empty", "no lines for records without payload"),
        flag("--resources", "also write lines for resource records"),
        flag("--decoded", "digest payloads without their content coding"),
        flag("--append", "add the files that the manifest does not list yet"),
        FORCE,
        Option("--base", "DIR", "the folder of relative file names (default: names as given)", type=Path),
        Option(
            "--format",
            None,
            "the format of the manifest (default: that of an extended one, or text)",
            choices=FORMATS,
        ),
        *ENGINES,
        KEEP_GOING,
    ],
    json=lambda sums: picked(sums, "output files listed size_bytes") | as_json(sums),
    caveats=_sum_caveats,
    stopped=continues,
    store_option=None,
)


def _compare(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    faults = Faults(keep_going=opts.keep_going)
    places = Places(opts.root, opts.paths)
    counts = CollisionCounts()
    writer = LineWriter(opts.output, columns=10 if opts.proc else 7, format=opts.format, force=opts.force)
    names: set[str] = set()

    def given() -> Iterator[ManifestLine]:
        for line in read_all(opts.manifests, faults=faults):
            names.add(line.file)
            yield line
        _refuse_listed_file(names, places, opts.output)

    try:
        with jobs_of(opts) as jobs, Bars(opts) as bars, writer:
            lines = resolve_collisions(
                given(),
                places,
                faults=faults,
                watch=bars,
                jobs=jobs,
                folder=writer.folder,
                counts=counts,
            )
            for line in numbered(lines) if opts.proc else lines:
                writer.write(line)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ArchiveError(
            f"The comparison failed: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}. Check"
            " the disk of OUT and the disk for temporary files."
        ) from error
    return {"output": str(opts.output), **as_json(counts), **_faults(faults)}


def _refuse_listed_file(names: Iterable[str], places: Places, output: Path) -> None:
    """Raise ArchiveError if the file *output* is a file of a manifest, so that it would be replaced."""
    found = []
    for name in names if output.exists() else ():
        # The file of a record that is not read may be missing.
        with suppress(DedupeError):
            found.append(Input(name, places.file(name)))
    refuse_own_file(found, output)


def _compare_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["output"] == "-":
        return
    yield (
        f"{result['output']}: {counted(result['lines'], 'record')}. {number(result['compared'])} of them compared, since"
        f" they share {counted(result['digests'], 'digest')}: {counted(result['collisions'], 'digest')} of different"
        f" payloads, {counted(result['alone'], 'record')} that must not replace another."
    )
    yield from first(result["faults"], result["fault_count"])


def _compare_caveats(result: dict[str, Any]) -> Iterator[str]:
    if result["fault_count"]:
        yield (
            f"{counted(result['fault_count'], 'fault')} in the input skipped; a record that could not be compared has its"
            " own extension"
        )


WARCCOLLRES = Verb(
    _compare,
    _compare_lines,
    [
        MANIFESTS,
        OUTPUT,
        ROOT,
        PATHS_MAP,
        flag("--proc", "also add copy numbers and references, like warcsumproc"),
        FORMAT,
        FORCE,
        *ENGINES,
        flag("--keep-going", "give each unreadable record its own extension and continue (exit code 4)"),
    ],
    caveats=_compare_caveats,
    store_option=None,
)


def _number(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    faults = Faults(keep_going=opts.keep_going)
    # Payloads, records that may become revisits, and their stored length.
    clusters = copies = copied_bytes = 0
    # Whether only digests were compared.
    unresolved = False
    names: set[str] = set()

    def given() -> Iterator[ManifestLine]:
        nonlocal unresolved
        for line in read_all(opts.manifests, faults=faults):
            names.add(line.file)
            unresolved |= line.extension is None
            yield line
        _refuse_listed_file(names, Places(), opts.output)

    with (
        Bars(opts) as bars,
        LineWriter(opts.output, columns=10, format=opts.format, force=opts.force) as writer,
    ):
        read = bars.counted(given(), "reading", 0, "lines")
        lines: Iterable[ManifestLine] = numbered(by_cluster(read, writer.folder), faults=faults)
        if opts.order == "place":
            lines = by_place(lines, writer.folder)
        for line in bars.counted(lines, "numbering", 0, "lines"):
            writer.write(line)
            clusters += not line.is_copy
            copies += line.is_copy
            copied_bytes += line.length if line.is_copy else 0
    return {
        "manifest": str(opts.output),
        "lines": clusters + copies,
        "clusters": clusters,
        "copies": copies,
        "copied_bytes": copied_bytes,
        "unresolved": unresolved,
        **_faults(faults),
    }


def _faults(faults: Faults) -> dict[str, Any]:
    """The number of all faults, and at most the first thousand."""
    return {"fault_count": faults.count, "faults": faults.first}


def _number_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["manifest"] == "-":
        return
    yield (
        f"{result['manifest']} has {counted(result['lines'], 'record')} of {counted(result['clusters'], 'payload')};"
        f" {number(result['copies'])} are copies, with a stored size of {size(result['copied_bytes'])}."
    )
    if result["unresolved"]:
        yield (
            "Only digests were compared. Two payloads may have the same digest, especially md5 or sha1; warccollres"
            " compares their bytes."
        )
    yield from first(result["faults"], result["fault_count"])


def _skipped_lines(result: dict[str, Any]) -> Iterator[str]:
    if count := result["fault_count"]:
        yield f"{counted(count, 'line was', 'lines were')} skipped; the first is {result['faults'][0]}"


WARCSUMPROC = Verb(
    _number,
    _number_lines,
    [
        MANIFESTS,
        OUTPUT,
        FORMAT,
        Option(
            "--order",
            None,
            "order by digest and date, or by file and offset",
            choices=("cluster", "place"),
            default="cluster",
        ),
        FORCE,
        KEEP_GOING,
    ],
    caveats=_skipped_lines,
    store_option=None,
)


def _split(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    prefix = opts.output
    if prefix is None:
        if len(opts.manifests) > 1 or str(opts.manifests[0]) == "-":
            raise UsageError("The names of the parts need a prefix. Give one with -o.")
        prefix = opts.manifests[0]
    if not prefix.name:
        raise UsageError(
            f"{prefix} is not a prefix of a file name. Give one with -o, such as {prefix / 'part'}."
        )
    faults = Faults(keep_going=opts.keep_going)
    with Bars(opts) as bars, bars.part("splitting", 0):
        lines = bars.counted(read_all(opts.manifests, faults=faults), "reading", 0, "lines")
        parts = split(lines, prefix, size_bytes=opts.size or 0, **picked(opts, "count format force"))
    return {"parts": parts, **_faults(faults)}


def _split_lines(result: dict[str, Any]) -> Iterator[str]:
    for part in result["parts"]:
        digests = counted(part.clusters, "digest")
        yield f"{part.file}: {counted(part.lines, 'line')} of {digests}, {size(part.size_bytes)}"
    yield from first(result["faults"], result["fault_count"])


def _part_count(text: str) -> int:
    if text.isdigit() and text.isascii() and 1 <= int(text) <= 100_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of parts, 1 to 100000")


def _part_size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 500000, 64K, 200M or 2G")
    return int(found[1]) << _UNITS[found[2].lower()]


WARCSUMSPLIT = Verb(
    _split,
    _split_lines,
    [
        MANIFESTS,
        Exclusive(
            Option("-c --count", "N", "make N parts of about the same size", type=_part_count),
            Option(
                "-s --size",
                "SIZE",
                "make parts of at most SIZE bytes, such as 64K or 2G, unless one digest has more",
                type=_part_size,
            ),
            required=True,
        ),
        Option("-o --output", "PREFIX", "prefix of the parts (default: the manifest's name)", type=Path),
        Option("--format", None, "format of the parts (default: text)", choices=PART_FORMATS, default="text"),
        FORCE,
        KEEP_GOING,
    ],
    caveats=_skipped_lines,
    store_option=None,
)
