"""A report as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.reports.wording import COPIES, percent

from .figures import counted, number_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_dedupe.reports.figures import Report, Share

_SHOWN = 10
_MOST_CHARS = 100
_LEAST_LOST = 0.001


def table(report: Report) -> Iterator[str]:
    """Yield the totals, then the largest items of each kind."""
    yield from _totals(report)
    yield from _shares("Hosts", report.hosts)
    if large := [group for group in report.groups if group.pages > 1]:
        yield "Most repeated pages"
        for group in large[:_SHOWN]:
            least = "at least " if group.is_bound else ""
            yield f"  {least + number_text(group.pages):>18}  {_short(group.url)}"
        yield from _more_groups(report, min(len(large), _SHOWN))
    if report.traps:
        title = "URL patterns with little new content"
        yield f"{title:<62} {'pages':>10} {'equal':>10} {'near':>10} {'template':>10}"
        for trap in report.traps[:_SHOWN]:
            numbers = (trap.pages, trap.exact, trap.near, trap.template)
            yield f"  {_short(trap.pattern):<60} {' '.join(f'{number_text(number):>10}' for number in numbers)}"
    for filter_ in report.url_filters[-_SHOWN:]:
        if filter_.seen is not None and filter_.capacity is not None:
            yield (
                f"URL filter of {filter_.crawl}: {number_text(filter_.seen)} of {number_text(filter_.capacity)}"
                f" fingerprints{_lost(filter_.expected_lost)}"
            )
    for note in report.notes:
        yield f"Note: {note}"


def _totals(report: Report) -> Iterator[str]:
    totals = report.totals
    states: dict[str, int] = {}
    for crawl in report.crawls:
        states[crawl.state] = states.get(crawl.state, 0) + 1
    states_text = ", ".join(f"{number_text(number)} {state}" for state, number in states.items())
    yield f"Crawls    {states_text or '0'}"
    if totals.requests_filtered:
        which = "it" if totals.requests_filtered == 1 else "they"
        yield f"Requests  {number_text(totals.requests_filtered)} filtered, since {which} had been made before"
    else:
        yield "Requests  none filtered"
    yield f"Pages     {_pages(report)}"
    whole = totals.bytes_written + totals.bytes_conserved
    responses = counted(totals.responses + totals.revisits, "response")
    if totals.revisits:
        share = f" ({percent(totals.bytes_conserved, whole)})" if totals.bytes_conserved else ""
        yield (
            f"Bytes     {size_text(totals.bytes_conserved)} of {size_text(whole)}{share} not stored again:"
            f" {number_text(totals.revisits)} of {responses} had been archived before"
        )
    elif totals.responses:
        each = "it" if totals.responses == 1 else "each"
        yield f"Bytes     {size_text(totals.bytes_written)} written for {responses}; {each} was stored whole"
    else:
        yield "Bytes     nothing was recorded"


def _pages(report: Report) -> str:
    """Word the verdicts as in the summary at the end of a crawl."""
    totals = report.totals
    judged = number_text(totals.pages_judged)
    if not totals.duplicates:
        line = f"none of {judged} repeats a text" if totals.pages_judged else "none judged"
    else:
        share = percent(totals.duplicates, totals.pages_judged)
        parts = [
            f"{number_text(report.verdicts[kind])} {words}"
            for kind, words in COPIES.items()
            if report.verdicts.get(kind)
        ]
        repeat = "repeats" if totals.duplicates == 1 else "repeat"
        line = f"{number_text(totals.duplicates)} of {judged} ({share}) {repeat} a text: {', '.join(parts)}"
    if totals.dropped:
        line += f"; {number_text(totals.dropped)} of them dropped"
    if unknown := report.verdicts.get("unknown"):
        line += f"; {number_text(unknown)} not judged because of an error"
    return line


def _shares(title: str, shares: list[Share]) -> Iterator[str]:
    if not shares:
        return
    yield f"{title:<42} {'pages':>10} {'repeated':>10} {'filtered':>10} {'revisits':>10} {'saved':>10}"
    for share in shares[:_SHOWN]:
        numbers = (share.pages, share.duplicates, share.requests_filtered or 0, share.revisits)
        cells = " ".join(f"{number_text(number):>10}" for number in numbers)
        yield f"  {_short(share.name, 40):<40} {cells} {size_text(share.bytes_conserved):>10}"
    if len(shares) > _SHOWN:
        yield f"  and {number_text(len(shares) - _SHOWN)} more"


def _more_groups(report: Report, shown: int) -> Iterator[str]:
    left_out = len(report.groups) - shown
    if report.more_groups is None:
        yield "  and more, which were too many to count"
    elif left_out + report.more_groups:
        yield f"  and {number_text(left_out + report.more_groups)} more"


def _lost(expected: float | None) -> str:
    if expected is None:
        return ""
    pages = f"{expected:.2g} pages" if expected >= _LEAST_LOST else "no page"
    return f", {pages} expected to be lost"


def _short(name: str, most_chars: int = _MOST_CHARS) -> str:
    return name if len(name) <= most_chars else f"{name[: most_chars - 1]}\u2026"
