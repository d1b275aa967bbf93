"""``report [ID…] [-o FILE]``: a report on crawls, as an HTML page, a table or JSON."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError, StoreUnavailable
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.reports.page import page
from scrapy_dedupe.reports.sums import stored_report
from scrapy_dedupe.reports.wording import COPIES, counted, number, percent, size
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.tasks.state import writing

from .bars import Bars
from .options import CRAWL_IDS, Option, is_standard_output
from .output import as_json
from .verbs import Verb

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.reports.figures import Report, Share
    from scrapy_dedupe.stores import Store

    from .stores import CommandStores

DEFAULT_CRAWLS: Final = 50
_SHOWN: Final = 10
_MOST_CHARS: Final = 100
_LEAST_LOST: Final = 0.001


def _report(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    output: Path | None = opts.output
    file = None if output is None or is_standard_output(opts) else _checked(output)
    with Bars(opts) as bars, ExitStack() as stack:
        opened = _opened(stores, stack)
        folder = stores.settings.wacz.folder
        report, unreadable = stored_report(opened, folder, opts.ids, DEFAULT_CRAWLS, bars)
    if file is not None:
        with writing(file):
            whole_file.replace(file, page(report).encode(), durable=False)
    elif output is not None:
        sys.stdout.buffer.write(page(report).encode())
    # "unreadable": the crawls whose details cannot be read.
    return {
        "report": report,
        "output": None if output is None else str(output),
        "unreadable": unreadable,
    }


def _opened(stores: CommandStores, stack: ExitStack) -> list[Store]:
    """Open the stores of the crawl index and of the texts, in this order. One of them may be missing."""
    opened: list[Store] = []
    first: StoreUnavailable | None = None
    for url in dict.fromkeys((stores.index_url, stores.content_url)):
        try:
            store = open_store(url, timeout_s=stores.timeout_s, create=False)
        except StoreUnavailable as error:
            # A crawl without an archive creates no index, one without the content layer no texts.
            first = first or error
            continue
        opened.append(stack.enter_context(closing(store)))
    if not opened:
        assert first is not None
        raise first
    return opened


def _checked(path: Path) -> Path:
    with writing(path):
        found = whole_file.file_at(path)
    if not found.parent.is_dir():
        raise ArchiveError(
            f"The folder of {path} does not exist. Create it first, or name another file with -o."
        )
    return found


def _lines(made: dict[str, Any]) -> Iterator[str]:
    report, output = made["report"], made["output"]
    if output is None:
        yield from table(report)
    elif output not in ("-", "/dev/stdout"):
        yield f"The report on {counted(len(report.crawls), 'crawl')} is in {output}."


def _caveats(made: dict[str, Any]) -> Iterator[str]:
    if unreadable := made["unreadable"]:
        yield (
            f"the details of {counted(len(unreadable), 'crawl was', 'crawls were')} not read: damaged, or of a newer"
            f" version. The first one is {unreadable[0]}"
        )


REPORT = Verb(
    _report,
    _lines,
    [
        CRAWL_IDS,
        Option("-o --output", "FILE", "write the report as an HTML page; - is standard output", type=Path),
    ],
    json=lambda made: as_json(made["report"]) | {name: made[name] for name in ("output", "unreadable")},
    caveats=_caveats,
)


def table(report: Report) -> Iterator[str]:
    """Yield the totals, then the largest items of each kind."""
    yield from _totals(report)
    yield from _hosts(report.hosts)
    if large := [group for group in report.groups if group.pages > 1]:
        yield "Most repeated pages"
        for group in large[:_SHOWN]:
            least = "at least " if group.is_bound else ""
            yield f"  {least + number(group.pages):>18}  {_short(group.url)}"
        if report.more_groups is None:
            yield "  and more, which were too many to count"
        elif more := len(report.groups) - len(large[:_SHOWN]) + report.more_groups:
            yield f"  and {number(more)} more"
    if report.traps:
        title = "URL patterns with little new content"
        yield f"{title:<62} {'pages':>10} {'equal':>10} {'near':>10} {'template':>10}"
    for trap in report.traps[:_SHOWN]:
        yield f"  {_short(trap.pattern):<60} {_cells(trap.pages, trap.exact, trap.near, trap.template)}"
    for filter_ in report.url_filters[-_SHOWN:]:
        if filter_.seen is not None and filter_.capacity is not None:
            lost = ""
            if (expected := filter_.expected_lost) is not None:
                pages = f"{expected:.2g} pages" if expected >= _LEAST_LOST else "no page"
                lost = f", {pages} expected to be lost"
            yield (
                f"URL filter of {filter_.crawl}: {number(filter_.seen)} of {number(filter_.capacity)} fingerprints{lost}"
            )
    for cache in report.http_caches[-_SHOWN:]:
        yield (
            f"HTTP cache of {cache.crawl}: {number(cache.used)} of {number(cache.pages)} pages were not modified,"
            f" {size(cache.bytes_received)} instead of {size(cache.bytes_received + cache.bytes_used)} received"
        )
    yield from (f"Note: {note}" for note in report.notes)


def _totals(report: Report) -> Iterator[str]:
    totals = report.totals
    states = Counter(crawl.state for crawl in report.crawls)
    states_text = ", ".join(f"{number(count)} {state}" for state, count in states.items())
    yield f"Crawls    {states_text or '0'}"
    if totals.requests_filtered:
        which = "it" if totals.requests_filtered == 1 else "they"
        yield f"Requests  {number(totals.requests_filtered)} filtered, since {which} had been made before"
    else:
        yield "Requests  none filtered"
    yield f"Pages     {_pages(report)}"
    whole = totals.bytes_written + totals.bytes_conserved
    responses = counted(totals.responses + totals.revisits, "response")
    if totals.revisits:
        share = f" ({percent(totals.bytes_conserved, whole)})" if totals.bytes_conserved else ""
        yield (
            f"Bytes     {size(totals.bytes_conserved)} of {size(whole)}{share} not stored again:"
            f" {number(totals.revisits)} of {responses} had been archived before"
        )
    elif totals.responses:
        each = "it" if totals.responses == 1 else "each"
        yield f"Bytes     {size(totals.bytes_written)} written for {responses}; {each} was stored whole"
    else:
        yield "Bytes     nothing was recorded"


def _pages(report: Report) -> str:
    """Word the verdicts as in the summary at the end of a crawl."""
    totals = report.totals
    judged = number(totals.pages_judged)
    if not totals.duplicates:
        line = f"none of {judged} repeats a text" if totals.pages_judged else "none judged"
    else:
        share = percent(totals.duplicates, totals.pages_judged)
        parts = [
            f"{number(report.verdicts[kind])} {words}"
            for kind, words in COPIES.items()
            if report.verdicts.get(kind)
        ]
        repeat = "repeats" if totals.duplicates == 1 else "repeat"
        line = f"{number(totals.duplicates)} of {judged} ({share}) {repeat} a text: {', '.join(parts)}"
    if totals.dropped:
        line += f"; {number(totals.dropped)} of them dropped"
    if unknown := report.verdicts.get("unknown"):
        line += f"; {number(unknown)} not judged because of an error"
    return line


def _hosts(shares: list[Share]) -> Iterator[str]:
    if shares:
        yield f"{'Hosts':<42} {'pages':>10} {'repeated':>10} {'filtered':>10} {'revisits':>10} {'saved':>10}"
    for share in shares[:_SHOWN]:
        counts = _cells(share.pages, share.duplicates, share.requests_filtered or 0, share.revisits)
        yield f"  {_short(share.name, 40):<40} {counts} {size(share.bytes_conserved):>10}"
    if len(shares) > _SHOWN:
        yield f"  and {number(len(shares) - _SHOWN)} more"


def _cells(*counts: int) -> str:
    return " ".join(f"{number(count):>10}" for count in counts)


def _short(name: str, most_chars: int = _MOST_CHARS) -> str:
    return name if len(name) <= most_chars else f"{name[: most_chars - 1]}\u2026"
