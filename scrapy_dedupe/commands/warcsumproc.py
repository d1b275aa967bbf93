"""``warcsumproc MANIFEST… -o OUT``: number the original and the copies of each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.offline.manifest import FORMATS

from .bars import Bars
from .figures import counted, number_text, size_text
from .manifest_output import (
    add_output_arguments,
    fault_dicts,
    faults_caveat,
    faults_text,
    refuse_json_with_manifest,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.offline.manifest import ManifestLine

    from .stores import CommandStores

HELP = (
    "Choose the original of each cluster of equal payloads, the earliest capture, and number its copies: columns 8 to 10"
    " of a manifest."
)


@dataclass(slots=True)
class Numbered:
    """The result. ``clusters`` counts payloads, ``copies`` the records that may become revisits, ``copied_bytes``
    their stored length. ``unresolved`` means that only digests were compared. ``faults`` has at most a thousand faults,
    ``fault_count`` counts all of them.
    """

    manifest: str
    lines: int
    clusters: int
    copies: int
    copied_bytes: int
    unresolved: bool
    fault_count: int
    faults: list[dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "manifest",
        metavar="MANIFEST",
        nargs="+",
        type=Path,
        help="manifests from warccollres, or from warcsum if you trust its digests; in any order and format; - is standard"
        " input",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the manifest to write; - is standard output",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="format of the output (default: text)"
    )
    parser.add_argument(
        "--order",
        choices=("cluster", "place"),
        default="cluster",
        help="order of the output: by digest and date, or by file and offset (default: cluster)",
    )
    add_output_arguments(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> Numbered:
    from scrapy_dedupe.offline.manifest import LineWriter, read_all
    from scrapy_dedupe.offline.numbering import number
    from scrapy_dedupe.offline.ordering import by_cluster, by_place
    from scrapy_dedupe.offline.work_folder import work_folder
    from scrapy_dedupe.tasks.faults import Faults

    refuse_json_with_manifest(opts)
    faults = Faults(keep_going=opts.keep_going)
    done = Numbered(str(opts.output), 0, 0, 0, 0, False, 0, [])
    with (
        Bars(opts) as bars,
        LineWriter(opts.output, columns=10, format=opts.format, force=opts.force) as writer,
        work_folder(opts.output) as work,
    ):
        given = bars.counted(
            _noting_unresolved(read_all(opts.manifest, faults=faults), done), "reading", 0, "lines"
        )
        lines: Iterable[ManifestLine] = number(by_cluster(given, work.path), faults=faults)
        if opts.order == "place":
            lines = by_place(lines, work.path)
        for line in bars.counted(lines, "numbering", 0, "lines"):
            writer.write(line)
            done.lines += 1
            if line.is_copy:
                done.copies += 1
                done.copied_bytes += line.length
            else:
                done.clusters += 1
    done.fault_count = faults.count
    done.faults = fault_dicts(faults)
    return done


def text(result: Numbered) -> str:
    if result.manifest == "-":
        return ""
    counts = (
        f"{result.manifest} has {counted(result.lines, 'record')} of {counted(result.clusters, 'payload')};"
        f" {number_text(result.copies)} are copies, with a stored size of {size_text(result.copied_bytes)}."
    )
    lines = [counts]
    if result.unresolved:
        lines.append(
            "Only digests were compared. Two payloads may have the same digest, especially md5 or sha1; warccollres compares"
            " their bytes."
        )
    return "\n".join(lines + faults_text(result.faults, result.fault_count))


def caveat(result: Numbered) -> str | None:
    return faults_caveat(result.faults, result.fault_count)


def _noting_unresolved(lines: Iterator[ManifestLine], done: Numbered) -> Iterator[ManifestLine]:
    for line in lines:
        if line.extension is None:
            done.unresolved = True
        yield line
