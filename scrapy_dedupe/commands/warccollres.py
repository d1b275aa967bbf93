"""``warccollres MANIFEST… -o OUT``: distinguish records with the same digest and different bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, UsageError

from .bars import Bars
from .figures import counted, number_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.tasks.faults import Fault

    from .stores import CommandStores

HELP = (
    "Compare the records of each digest byte by byte, and number those that differ (7th column: extension)."
)

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CollisionReport:
    """The result. Of ``lines``, those that share one of ``digests`` were ``compared``; ``collisions`` counts the digests
    of different payloads.

    ``alone`` counts records that must not replace another one, including those with a fault.
    """

    output: str
    lines: int
    digests: int
    compared: int
    collisions: int
    alone: int
    fault_count: int
    faults: list[Fault]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("manifests", metavar="MANIFEST", nargs="+", type=Path, help="manifests, in any order")
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=Path, required=True, help="the manifest to write"
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        action="append",
        default=[],
        help="folder or URL that the names in the manifests are relative to (may be repeated; default: the working folder)",
    )
    parser.add_argument(
        "--paths",
        metavar="MAP",
        type=Path,
        help="file with the locations of files: lines NAME PLACE (spaces as %%20), or a JSON object; a place is a path,"
        " relative to the folder of MAP, or a URL",
    )
    parser.add_argument(
        "--proc", action="store_true", help="also add copy numbers and references, like warcsumproc"
    )
    parser.add_argument(
        "--format", choices=("text", "jsonl", "parquet"), default="text", help="format of OUT (default: text)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="processes that read and compare (0: one for each core; default: 1)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="give each unreadable record its own extension and continue; the exit code is 4",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> CollisionReport:
    from scrapy_dedupe.offline.collisions import CollisionCounts, resolve_collisions
    from scrapy_dedupe.offline.manifest import LineWriter, read_all
    from scrapy_dedupe.offline.numbering import number
    from scrapy_dedupe.offline.ordering import by_cluster
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.work_folder import work_folder
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.jobs import job_count

    job_count(opts.jobs)
    is_piped = str(opts.output) == "-"
    if is_piped and opts.json:
        raise UsageError("The manifest and --json would both go to standard output. Name a file with -o.")
    faults = Faults(keep_going=opts.keep_going)
    places = Places(opts.root, opts.paths)
    counts = CollisionCounts()
    writer = LineWriter(opts.output, columns=10 if opts.proc else 7, format=opts.format, force=opts.force)
    try:
        with (
            Bars(opts) as watch,
            writer,
            work_folder(opts.output) as state,
        ):
            work = state.path
            total_bytes = 0

            def plain_lines() -> Iterator[ManifestLine]:
                nonlocal total_bytes
                for line in read_all(opts.manifests, faults=faults):
                    total_bytes += line.length
                    yield replace(line, extension=None, copy=None, refers_to_uri=None, refers_to_date=None)

            watch.begin("sorting", 0)
            ordered = iter(by_cluster(plain_lines(), work))
            # All lines are read before the first one is yielded.
            first = list(islice(ordered, 1))
            watch.end()
            watch.begin("comparing", total_bytes)
            lines = resolve_collisions(
                chain(first, ordered),
                places,
                faults=faults,
                watch=watch,
                jobs=opts.jobs,
                folder=work,
                counts=counts,
            )
            for line in number(lines) if opts.proc else lines:
                writer.write(line)
            watch.end()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ArchiveError(
            f"The comparison failed: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}. Check"
            " the disk of OUT and the disk for temporary files."
        ) from error
    return CollisionReport(
        output=str(opts.output),
        lines=counts.lines,
        digests=counts.digests,
        compared=counts.compared,
        collisions=counts.collisions,
        alone=counts.alone,
        fault_count=faults.count,
        faults=faults.first,
    )


def text(result: CollisionReport) -> str:
    if result.output == "-":
        return ""
    summary = (
        f"{result.output}: {counted(result.lines, 'record')}. {number_text(result.compared)} of them compared, since they"
        f" share {counted(result.digests, 'digest')}: {counted(result.collisions, 'digest')} of different payloads,"
        f" {counted(result.alone, 'record')} that must not replace another."
    )
    lines = [summary, *(str(fault) for fault in result.faults[:_SHOWN])]
    if result.fault_count > _SHOWN:
        lines.append(f"and {number_text(result.fault_count - _SHOWN)} more.")
    return "\n".join(lines)


def caveat(result: CollisionReport) -> str | None:
    if not result.fault_count:
        return None
    return (
        f"{counted(result.fault_count, 'fault')} in the input skipped; a record that could not be compared has its"
        " own extension."
    )
