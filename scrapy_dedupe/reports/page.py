"""A report as a single HTML page that can be opened from a file, kept and sent.

The page refers to nothing outside: style, charts and a short script are included, and its Content-Security-Policy forbids
everything else. Jinja (the extra ``report``) escapes all data from the web, and only complete http(s) URLs become links.
Each chart has a table with the same numbers, so that the page is usable without colours, a pointer or scripts.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from . import chart_specs, charts, wording
from .figures import OTHERS
from .observations import DUPLICATES

if TYPE_CHECKING:
    from jinja2 import Template

    from .figures import Report

CARDS_SHOWN = 10
"""How many groups and traps are visible at first; the others are collapsed."""


def page(report: Report) -> str:
    """Render the page as a string, to be encoded as UTF-8.

    Raises :class:`~scrapy_dedupe.errors.SettingError` if Jinja or vl-convert is not installed.
    """
    template = _template()
    script = _source("page.js")
    rendered = template.render(
        report=report,
        summary=summary(report),
        title=_crawls(report, "Crawl"),
        charts=charts.charts_of(report),
        chart_titles=charts.TITLES,
        kinds={kind: words for kind, (words, _) in chart_specs.KINDS.items()},
        style=_source("page.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        crawls_in_order=chart_specs.ordered(report.graph, report.crawls),
        judged_and_repeated=_judged_and_repeated,
        others=OTHERS,
        cards_shown=CARDS_SHOWN,
        bin_text=chart_specs.bin_text,
        node_text=chart_specs.state_text,
        most_arcs=chart_specs.MOST_ARCS,
        has_gaps=any(place.is_after_gap for place in chart_specs.placed(report.timeline)),
        w=wording,
    )
    return f"{rendered.strip()}\n"


def summary(report: Report) -> str:
    """A one-sentence summary of duplicates and savings."""
    if not report.crawls:
        return "There is no crawl to report about."
    totals, parts = report.totals, []
    if totals.requests_filtered:
        which = "was filtered, since it" if totals.requests_filtered == 1 else "were filtered, since they"
        parts.append(f"{wording.counted(totals.requests_filtered, 'request')} {which} had been made before")
    if totals.pages_judged:
        pages = wording.counted(totals.pages_judged, "page")
        if totals.duplicates:
            share = wording.percent(totals.duplicates, totals.pages_judged)
            repeat = "repeats" if totals.duplicates == 1 else "repeat"
            parts.append(f"{wording.number(totals.duplicates)} of {pages} ({share}) {repeat} a text")
        else:
            parts.append(
                "the one page repeats no text" if pages == "1 page" else f"none of {pages} repeats a text"
            )
    whole = totals.bytes_written + totals.bytes_conserved
    if totals.bytes_conserved:
        share = wording.percent(totals.bytes_conserved, whole)
        parts.append(
            f"{wording.size(totals.bytes_conserved)} of {wording.size(whole)} ({share}) were not stored again"
        )
    elif totals.responses + totals.revisits:
        parts.append(f"{wording.size(whole)} were written; each response was stored whole")
    if not parts:
        parts.append("nothing was filtered, read or stored")
    # Keep a number and its unit on one line.
    return re.sub(
        r"(?<=\d) (?=%|k?B\b|[MGTP]B\b)", "\N{NO-BREAK SPACE}", f"In {_which(report)}: {'; '.join(parts)}."
    )


def _which(report: Report) -> str:
    """The crawls of the report, and the days on which they ran."""
    days = sorted(
        f"{found:%Y-%m-%d}"
        for crawl in report.crawls
        for iso in (crawl.started, crawl.ended)
        if iso and (found := wording.moment(iso))
    )
    which = _crawls(report, "the crawl")
    if not days:
        return which
    return f"{which} on {days[0]}" if days[0] == days[-1] else f"{which} from {days[0]} to {days[-1]}"


def _crawls(report: Report, noun: str) -> str:
    """The only crawl, introduced by *noun*, or the number of crawls."""
    if len(report.crawls) == 1:
        return f"{noun} {wording.clean(report.crawls[0].id)}"
    return wording.counted(len(report.crawls), "crawl")


def _judged_and_repeated(verdicts: dict[str, int]) -> tuple[int, int] | tuple[None, None]:
    """The number of judged pages of a crawl, and how many of them are duplicates; None if there are none."""
    judged = sum(pages for kind, pages in verdicts.items() if kind != "unknown")
    return (judged, sum(verdicts.get(kind, 0) for kind in DUPLICATES)) if judged else (None, None)


@cache
def _template() -> Template:
    try:
        import jinja2
    except ImportError as error:
        raise charts.not_installed("jinja2", error) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_source("page.html.jinja"))


def _source(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
