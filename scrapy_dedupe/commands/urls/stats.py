"""``urls stats``: shows figures of the filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text, size_text

from .filters import FilterTarget, add_filter_arguments

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Show the number of URLs in the filter, its size and its error rate."


@dataclass(frozen=True, slots=True)
class UrlStats:
    """The figures of one filter; None where a figure does not apply.

    ``last_stop`` is "clean" or "cut" (not clean). ``listed`` is the number of fingerprints that can be exported,
    ``exact`` the number in the exact set. ``error_rate`` is the bound, ``estimated_error`` the probability that the
    next new URL is reported as seen, ``expected_lost`` the expected number of URLs for which this has happened.
    """

    filter: str
    last_stop: str | None
    fingerprints: int
    forgotten: int | None
    listed: int | None
    exact: int | None
    capacity: int
    layers: int
    bytes: int
    fill_ratio: float
    error_rate: float
    estimated_error: float
    expected_lost: float
    fingerprinter: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filter_arguments(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> UrlStats:
    target = FilterTarget(place, opts)
    with Bars(opts) as bars, bars.part("stats", 0, "fingerprints"), target.open() as found:
        figures = found.figures()
        return UrlStats(
            filter=found.name,
            last_stop=found.last_stop,
            fingerprints=figures.seen,
            forgotten=found.forgotten,
            listed=found.listed(bars.advance),
            exact=found.exact,
            capacity=figures.capacity,
            layers=figures.layers,
            bytes=figures.bytes,
            fill_ratio=figures.fill_ratio,
            error_rate=found.error_rate,
            estimated_error=figures.estimated_error,
            expected_lost=figures.expected_lost,
            fingerprinter=target.fingerprint.path,
        )


def text(stats: UrlStats) -> str:
    held = [f"{counted(stats.fingerprints, 'fingerprint')} by {stats.fingerprinter}"]
    for number, what in (
        (stats.forgotten, "forgotten"),
        (stats.listed, "listed"),
        (stats.exact, "in the exact set"),
    ):
        if number is not None:
            held.append(f"{number_text(number)} {what}")
    layers = counted(stats.layers, "layer")
    size = f"{layers}, the first for {number_text(stats.capacity)}; {size_text(stats.bytes)}"
    lost = f"{stats.expected_lost:.2g} URLs lost so far (expected)"
    lines = [
        f"Filter    {stats.filter}",
        f"Holds     {', '.join(held)}",
        f"Size      {size}, {100 * stats.fill_ratio:.1f} % of the bits set",
        f"Error     at most {stats.error_rate:g}, {stats.estimated_error:.2g} now; {lost}",
    ]
    if stats.last_stop is not None:
        lines.insert(1, f"Stopped   {_STOPS[stats.last_stop]}")
    return "\n".join(lines)


_STOPS = {
    "clean": "cleanly",
    "cut": "not cleanly: only requests that were done and had no new links count as seen",
}
