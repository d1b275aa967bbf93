"""``arc2warc PATH… -o FOLDER``: convert ARC files to WARC."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError

from .figures import counted, number_text, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.offline.arc_files import Converted

    from .stores import CommandStores

HELP = "Convert ARC files to WARC 1.1, and verify that every capture is kept with its payload."

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="ARC files, or folders with -r")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="the folder for the WARC files, which keep their names, with .warc instead of .arc",
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="search folders and their subfolders")
    parser.add_argument(
        "--hash",
        choices=("sha1", "sha256"),
        default="sha256",
        help="algorithm of the digests (default: sha256)",
    )
    gzip = parser.add_mutually_exclusive_group()
    gzip.add_argument(
        "--gzip", action="store_true", default=None, help="compress the output (default: like the input)"
    )
    gzip.add_argument(
        "--no-gzip", action="store_false", dest="gzip", default=None, help="do not compress the output"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="files to convert at a time; 0: one for each core (default: 1)",
    )
    parser.add_argument("--keep-going", action="store_true", help="skip damaged places and continue")
    parser.add_argument("--force", action="store_true", help="replace existing files in FOLDER")


def run(place: CommandStores, opts: argparse.Namespace) -> Converted:
    from scrapy_dedupe import __version__
    from scrapy_dedupe.offline.arc_conversion import ConversionOptions
    from scrapy_dedupe.offline.arc_files import convert_files

    from .bars import Bars

    if opts.jobs < 0:
        raise UsageError(
            f"--jobs {opts.jobs} is not a number of jobs. Give 1 or more, or 0 for one for each core."
        )
    options = ConversionOptions(
        algorithm=opts.hash, gzip=opts.gzip, force=opts.force, software=f"scrapy-dedupe/{__version__}"
    )
    with Bars(opts) as watch:
        return convert_files(
            opts.paths,
            opts.output,
            options=options,
            recursive=opts.recursive,
            jobs=opts.jobs,
            keep_going=opts.keep_going,
            watch=watch,
        )


def stopped(opts: argparse.Namespace) -> str:
    if opts.force:
        return "the finished WARC files are complete, and the same command converts them again"
    return "the same command continues where it stopped"


def text(result: Converted) -> str:
    lines = [str(fault) for fault in result.faults[:_SHOWN]]
    if result.fault_count > _SHOWN:
        lines.append(f"... and {number_text(result.fault_count - _SHOWN)} more faults.")
    already = f", {number_text(result.files_found)} of them before" if result.files_found else ""
    lines.append(
        f"{counted(result.files, 'ARC file')} converted{already}: {counted(result.responses, 'response')},"
        f" {counted(result.resources, 'resource')}, {counted(result.metadata, 'version block')};"
        f" {size_text(result.bytes_before)} became {size_text(result.bytes_after)}."
    )
    if result.files:
        lines.append(
            f"Verified: every capture {'that could be read ' if result.fault_count else ''}is kept with its payload. The"
            f" WARC files are in {result.output}; the ARC files are unchanged."
        )
    return "\n".join(lines)


def caveat(result: Converted) -> str | None:
    if not result.fault_count:
        return None
    are = "is" if result.fault_count == 1 else "are"
    return f"{counted(result.fault_count, 'place')} could not be converted and {are} not in the output."
