"""``warcsumsplit MANIFEST… (-c N | -s SIZE)``: split a manifest into parts for several machines."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.offline.splitting import FORMATS, Part

from .bars import Bars
from .figures import counted, size_text
from .manifest_output import add_output_arguments, fault_dicts, faults_caveat, faults_text

if TYPE_CHECKING:
    from .stores import CommandStores

HELP = (
    "Split a manifest into parts, PREFIX.1, PREFIX.2 and so on, without splitting a cluster: all lines of one digest are in"
    " one part."
)

_SIZE = re.compile(r"(\d+)([kmgt]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True, slots=True)
class Split:
    """The parts. ``faults`` has at most a thousand faults, ``fault_count`` counts all of them."""

    parts: list[Part]
    fault_count: int
    faults: list[dict[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "manifest",
        metavar="MANIFEST",
        nargs="+",
        type=Path,
        help="manifests from warcsum or warccollres, in any order and format; - is standard input",
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("-c", "--count", metavar="N", type=_count, help="make N parts of about the same size")
    kind.add_argument(
        "-s",
        "--size",
        metavar="SIZE",
        type=_size,
        help="make parts of at most SIZE bytes, such as 500000 or 64K, 200M, 2G (powers of 1024); a part is larger only if"
        " a single digest is",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PREFIX",
        type=Path,
        help="prefix of the file names of the parts (default: the manifest's name)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="format of the parts (default: text)"
    )
    add_output_arguments(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> Split:
    from scrapy_dedupe.errors import UsageError
    from scrapy_dedupe.offline.manifest import read_all
    from scrapy_dedupe.offline.splitting import split_by_count, split_by_size
    from scrapy_dedupe.tasks.faults import Faults

    prefix = opts.output
    if prefix is None:
        if len(opts.manifest) > 1 or str(opts.manifest[0]) == "-":
            raise UsageError("The names of the parts need a prefix. Give one with -o.")
        prefix = opts.manifest[0]
    if not prefix.name:
        raise UsageError(
            f"{prefix} is not a prefix of a file name. Give one with -o, such as {prefix / 'part'}."
        )
    faults = Faults(keep_going=opts.keep_going)
    with Bars(opts) as bars, bars.part("splitting", 0):
        lines = bars.counted(read_all(opts.manifest, faults=faults), "reading", 0, "lines")
        if opts.count is not None:
            parts = split_by_count(lines, prefix, opts.count, format=opts.format, force=opts.force)
        else:
            parts = split_by_size(lines, prefix, opts.size, format=opts.format, force=opts.force)
    return Split(parts, faults.count, fault_dicts(faults))


def text(result: Split) -> str:
    lines = [
        f"{part.file}: {counted(part.lines, 'line')} of {counted(part.clusters, 'digest')}, {size_text(part.size_bytes)}"
        for part in result.parts
    ]
    return "\n".join(lines + faults_text(result.faults, result.fault_count))


def caveat(result: Split) -> str | None:
    return faults_caveat(result.faults, result.fault_count)


def _count(text: str) -> int:
    if text.isdigit() and text.isascii() and 1 <= int(text) <= 100_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of parts, 1 to 100000")


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 500000, 64K, 200M or 2G")
    return int(found[1]) << _UNITS[found[2].lower()]
