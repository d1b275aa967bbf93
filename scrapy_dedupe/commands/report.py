"""``report [ID…] [-o FILE]``: what crawls saw and saved, as a page, as a table or as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.reports.figures import Report

from .bars import Bars
from .figures import counted, number_text

if TYPE_CHECKING:
    import argparse

    from .place import Place

HELP = (
    "Report what crawls saw and saved: as a page with -o, else as a table. Without an id: the newest crawls that the"
    " store knows."
)

DEFAULT_CRAWLS = 50


@dataclass(frozen=True, slots=True)
class MadeReport(Report):
    """The report. ``output`` is the page that was written, ``unreadable`` are crawls whose details cannot be read."""

    output: str | None
    unreadable: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="the ids of crawls, as the verb crawls lists them"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the report as an HTML page")


def run(place: Place, opts: argparse.Namespace) -> MadeReport:
    from scrapy_dedupe.reports.sums import report_of

    from .reported_crawls import reported_crawls

    output: Path | None = opts.output
    if output is not None:
        _check(output)
    with Bars(opts) as bars:
        found = reported_crawls(place, opts.ids, DEFAULT_CRAWLS, bars)
    report = report_of(found.crawls, graph=found.graph, notes=found.notes)
    if output is not None:
        from scrapy_dedupe.reports.page import page

        _write(output, page(report))
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    return MadeReport(**values, output=None if output is None else str(output), unreadable=found.unreadable)


def _check(path: Path) -> None:
    if path.is_dir():
        raise ArchiveError(f"{path} is a folder. Name the file of the page with -o.")
    if not path.absolute().parent.is_dir():
        raise ArchiveError(
            f"The folder of {path} does not exist. Make it first, or name another file with -o."
        )


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(f"The page {path} cannot be written: {error.strerror or error}.") from error


def text(report: MadeReport) -> str:
    from .report_table import table

    if report.output is not None:
        return f"The report on {counted(len(report.crawls), 'crawl')} is in {report.output}."
    return "\n".join(table(report))


def caveat(report: MadeReport) -> str | None:
    if not report.unreadable:
        return None
    were = "was" if len(report.unreadable) == 1 else "were"
    return (
        f"what is kept of {number_text(len(report.unreadable))} of the crawls {were} not read: damaged, or of a newer"
        f" version. The first one is {report.unreadable[0]}."
    )
