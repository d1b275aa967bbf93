"""``report [ID…] [-o FILE]``: a report on crawls, as an HTML page, a table or JSON."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, StoreUnavailable, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.reports.figures import Report
from scrapy_dedupe.stores import open_store

from .bars import Bars
from .figures import counted

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.stores.base import Store

    from .stores import CommandStores

HELP = (
    "Report duplicates and savings of crawls, as a table, or as an HTML page with -o. Without IDs it covers the newest"
    " crawls in the store."
)

DEFAULT_CRAWLS = 50

_STANDARD_OUTPUT = ("-", "/dev/stdout")


@dataclass(frozen=True, slots=True)
class MadeReport(Report):
    """The report. ``output`` is the page that was written, ``unreadable`` the crawls whose details cannot be read."""

    output: str | None
    unreadable: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="the ids of crawls, see `scrapy dedupe crawls`")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write the report as an HTML page; - is standard output",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> MadeReport:
    from scrapy_dedupe.reports.reported_crawls import reported_crawls
    from scrapy_dedupe.reports.sums import report_of

    output: Path | None = opts.output
    is_printed = str(output) in _STANDARD_OUTPUT
    if is_printed and opts.json:
        raise UsageError("With -o - the page goes to standard output. Use --json with a file, or without -o.")
    file = None if output is None or is_printed else _checked(output)
    with Bars(opts) as bars, ExitStack() as stack:
        stores = _opened(place, stack)
        found = reported_crawls(stores, place.settings.wacz.folder, opts.ids, DEFAULT_CRAWLS, bars)
    report = report_of(found.crawls, graph=found.graph, notes=found.notes)
    if output is not None:
        from scrapy_dedupe.reports.page import page

        whole = page(report)
        if file is None:
            sys.stdout.buffer.write(whole.encode())
        else:
            _write(file, whole)
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    return MadeReport(**values, output=None if output is None else str(output), unreadable=found.unreadable)


def _opened(place: CommandStores, stack: ExitStack) -> list[Store]:
    """Open the stores of the crawl index and of the texts, in this order. One of them may be missing."""
    stores: list[Store] = []
    first: StoreUnavailable | None = None
    for url in dict.fromkeys((place.index_url, place.content_url)):
        try:
            store = open_store(url, timeout_s=place.timeout_s, create=False)
        except StoreUnavailable as error:
            # A crawl without an archive creates no index, one without the content layer no texts.
            first = first or error
            continue
        stores.append(stack.enter_context(closing(store)))
    if not stores:
        assert first is not None
        raise first
    return stores


def _checked(path: Path) -> Path:
    try:
        found = whole_file.file_at(path)
    except OSError as error:
        raise ArchiveError(
            f"The page {path} cannot be written: {error.strerror or error}. Name a file with -o, or - for standard"
            " output."
        ) from error
    if not found.parent.is_dir():
        raise ArchiveError(
            f"The folder of {path} does not exist. Create it first, or name another file with -o."
        )
    return found


def _write(path: Path, text: str) -> None:
    try:
        whole_file.replace(path, text.encode(), durable=False)
    except OSError as error:
        raise ArchiveError(f"The page {path} cannot be written: {error.strerror or error}.") from error


def text(report: MadeReport) -> str:
    from .report_table import table

    if report.output is not None:
        if report.output in _STANDARD_OUTPUT:
            return ""
        return f"The report on {counted(len(report.crawls), 'crawl')} is in {report.output}."
    return "\n".join(table(report))


def caveat(report: MadeReport) -> str | None:
    if not report.unreadable:
        return None
    were = "was" if len(report.unreadable) == 1 else "were"
    return (
        f"the details of {counted(len(report.unreadable), 'crawl')} {were} not read: damaged, or of a newer"
        f" version. The first one is {report.unreadable[0]}."
    )
