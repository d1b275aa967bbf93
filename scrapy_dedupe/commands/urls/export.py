"""``urls export -o FILE``: writes the fingerprints in the file format of Scrapy's own filter."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import version_info

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text
from scrapy_dedupe.errors import ArchiveError, StoreError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.urls.folder import LastStop
from scrapy_dedupe.urls.scrapy_file import write_requests_seen

from .filters import FilterTarget, add_filter_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Export the seen URLs as requests.seen, the file of Scrapy's own filter."

# Scrapy before 2.19 only reads lines.
_DEFAULT_FORMAT = "binary" if version_info >= (2, 19) else "text"


@dataclass(frozen=True, slots=True)
class Exported:
    """Counts of fingerprints: ``written`` to the file, and ``lacking``: in the filter, but not in its list."""

    filter: str
    file: str
    format: str
    written: int
    lacking: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filter_arguments(parser)
    parser.add_argument("-o", dest="output", metavar="FILE", required=True, help="- is standard output")
    parser.add_argument(
        "--format",
        choices=("binary", "text"),
        default=_DEFAULT_FORMAT,
        help=f"text is for Scrapy before 2.19 (default: {_DEFAULT_FORMAT}, for the installed Scrapy)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(place: CommandStores, opts: argparse.Namespace) -> Exported:
    target, as_text = FilterTarget(place, opts), opts.format == "text"
    if opts.output == "-" and opts.json:
        raise UsageError("-o - and --json both write to standard output. With --json, name a file.")
    if target.is_shared:
        raise StoreError(
            f"The URL filter {target.name} is in Redis and has no list of its fingerprints, so it cannot be exported. "
            "Only the filter in a job's folder can be exported."
        )
    with Bars(opts) as bars, target.open_job() as stored:
        with bars.part("count", 0, "fingerprints"):
            lacking = stored.unlisted(bars.advance)
        # After an unclean stop the filter would have to be built first.
        total = len(stored.filter) - lacking if stored.last_stop is LastStop.CLEAN else 0
        fingerprints = bars.counted(stored.fingerprints(), "export", total, "fingerprints")
        if opts.output == "-":
            written = write_requests_seen(sys.stdout.buffer, fingerprints, as_text=as_text)
            sys.stdout.buffer.flush()
        else:
            written = _write(Path(opts.output), fingerprints, as_text=as_text, force=opts.force)
    return Exported(target.name, opts.output, opts.format, written, lacking)


def _write(path: Path, fingerprints: Iterator[bytes], *, as_text: bool, force: bool) -> int:
    """Write a temporary file, sync it and rename it to ``path``; return the number of fingerprints."""
    if path.exists() and not force:
        raise ArchiveError(f"The file {path} exists already. Name another file, or replace it with --force.")
    try:
        with whole_file.replacing(path, suffix=".tmp") as file:
            written = write_requests_seen(file, fingerprints, as_text=as_text)
    except OSError as error:
        raise ArchiveError(
            f"The file {path} cannot be written: {error.strerror or error}. Name another file, or check its folder."
        ) from error
    return written


def text(result: Exported) -> str:
    if result.file == "-":
        return ""
    return f"{counted(result.written, 'fingerprint was', 'fingerprints were')} written to {result.file}."


def caveat(result: Exported) -> str | None:
    if not result.lacking:
        return None
    return (
        f"The list of the filter is damaged: {counted(result.written, 'fingerprint was', 'fingerprints were')} written,"
        f" {number_text(result.lacking)} more are in the filter, but cannot be read from it."
    )
