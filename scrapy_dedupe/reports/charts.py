"""The charts of a report as SVG, rendered by vl-convert (the extra ``report``).

Each chart is rendered for a wide and for a narrow screen; the page shows one of them. The SVG is inlined into the page: it
refers to no other file, uses the colours of the page, and its marks can be reached with the keyboard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import SettingError

from . import chart_specs

if TYPE_CHECKING:
    from collections.abc import Callable

    from .chart_specs import Spec
    from .figures import Report

# The newest version that both the oldest supported and the newest vl-convert provide.
_VEGA_LITE = "5.20"

_ROOT = re.compile(r"<svg [^>]*>")
_MARK = re.compile(r'<(path|text) (aria-label="([^"]*)" role="graphics-symbol"[^>]*?)/>')
_CONTAINER = re.compile(r' role="graphics-object" aria-roledescription="[^"]*"')
_LONG_FRACTION = re.compile(r"(?<=\.\d\d)\d+(?!\d*e)")
_ID = re.compile(r'\bid="([^"]+)"|url\(#([^)"]+)\)')


TITLES = {
    "timeline": "Pages, requests and bytes over time",
    "verdicts": "Pages by verdict",
    "similarities": "Near copies by similarity",
    "hosts": "Pages, requests and bytes by host",
    "mime_types": "Pages and bytes by MIME type",
    "statuses": "Pages and bytes by HTTP status",
    "graph": "Dependencies of crawls",
}
"""The titles of the charts."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart as two SVG elements: for screens of at least 700 pixels, and for narrower ones."""

    wide: str
    narrow: str


def charts_of(report: Report) -> dict[str, Chart]:
    """The charts of a report by name. Empty charts are left out.

    Raises :class:`~scrapy_dedupe.errors.SettingError` if vl-convert is not installed.
    """
    specs: dict[str, Callable[..., Spec | None]] = {
        "timeline": partial(chart_specs.timeline, report.timeline),
        "verdicts": partial(chart_specs.verdicts, report.verdicts),
        "similarities": partial(chart_specs.similarities, report.similarities),
        "hosts": partial(chart_specs.shares, report.hosts),
        "mime_types": partial(chart_specs.shares, report.mime_types),
        "statuses": partial(chart_specs.shares, report.statuses),
        "graph": partial(chart_specs.graph, report.graph, report.crawls),
    }
    charts = {}
    for name, spec in specs.items():
        wide, narrow = spec(wide=True), spec(wide=False)
        if wide is not None and narrow is not None:
            charts[name] = Chart(_svg(wide, name, "wide"), _svg(narrow, name, "narrow"))
    return charts


def not_installed(package: str, error: ImportError) -> SettingError:
    """The error to raise if a package of the extra ``report`` is missing."""
    return SettingError(
        f"A report as a page needs the package {package}, which is not installed ({error}). Run: pip install"
        ' "scrapy-dedupe[report]"'
    )


def _svg(spec: Spec, name: str, screen: str) -> str:
    try:
        import vl_convert
    except ImportError as error:
        raise not_installed("vl-convert-python", error) from error
    # No URL may be loaded: all data is in the specification.
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE, allowed_base_urls=[])
    return _for_page(drawn, name, screen)


def _for_page(svg: str, name: str, screen: str) -> str:
    """The element for the page, with unique ids and with marks that have a tooltip and can be focused.

    The Tab key reaches the first mark of a chart; from there the arrow keys move, if scripts may run.
    """
    root = _ROOT.search(svg)
    size = re.search(r'width="([\d.]+)" height="([\d.]+)" viewBox="([^"]*)"', root[0]) if root else None
    if root is None or size is None:
        raise ValueError(f"vl-convert returned an unknown form of the chart {name}: {svg[:200]!r}")
    ids: dict[str, str] = {}

    def own_id(found: re.Match[str]) -> str:
        known = found[1] or found[2]
        own = ids.setdefault(known, f"{name}-{screen}-{len(ids)}")
        return f'id="{own}"' if found[1] else f"url(#{own})"

    is_first = True

    def mark(found: re.Match[str]) -> str:
        nonlocal is_first
        stop, is_first = ("0" if is_first else "-1"), False
        return f'<{found[1]} {found[2]} tabindex="{stop}"><title>{found[3]}</title></{found[1]}>'

    inside = _MARK.sub(mark, _ID.sub(own_id, _CONTAINER.sub("", svg[root.end() :])))
    inside = re.sub(r'(?<= d=")[^"]*', lambda path: _LONG_FRACTION.sub("", path[0]), inside)
    label = escape(TITLES[name])
    return f'<svg class="{screen}" viewBox="{size[3]}" style="max-width:{size[1]}px" role="group" aria-label="{label}">{inside}'
