"""``urls check URL…``: shows whether the filter has seen each URL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars

from .filters import FilterTarget, add_filter_arguments
from .fingerprints import given_urls

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

    from .filters import OpenFilter

_BATCH = 500

HELP = "Show for each URL whether it was seen, is new, or was forgotten and may be requested again."


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """``state`` is "seen", "new" or "forgotten"; ``fingerprint`` is in hexadecimal digits."""

    url: str
    state: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class UrlCheck:
    """The states of URLs in a filter. ``error_bound``: the maximum share of new URLs that are reported as seen."""

    filter: str
    error_bound: float
    urls: list[CheckedUrl]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filter_arguments(parser)
    parser.add_argument("urls", metavar="URL", nargs="+", help="- reads URLs from standard input, one a line")


def run(place: CommandStores, opts: argparse.Namespace) -> UrlCheck:
    target = FilterTarget(place, opts)
    with Bars(opts) as bars:
        fingerprints = fingerprinted(opts.urls, target, bars)
        with target.open() as found:
            return UrlCheck(found.name, found.error_bound, checked(found, fingerprints, bars))


def fingerprinted(words: list[str], target: FilterTarget, bars: Bars) -> list[tuple[str, bytes]]:
    """The URLs from the command line or standard input, each with its fingerprint."""
    urls = given_urls(words)
    # No progress bar while a user types URLs.
    if sys.stdin is not None and not sys.stdin.isatty():
        urls = bars.counted(urls, "read", 0, "URLs")
    return [(url, target.fingerprint(url)) for url in urls]


def checked(found: OpenFilter, fingerprints: list[tuple[str, bytes]], bars: Bars) -> list[CheckedUrl]:
    """The current state of each URL."""
    result = []
    with bars.part("check", len(fingerprints), "URLs"):
        for first in range(0, len(fingerprints), _BATCH):
            some = fingerprints[first : first + _BATCH]
            states = found.states([fingerprint for _, fingerprint in some])
            result += [
                CheckedUrl(url, state, fingerprint.hex())
                for (url, fingerprint), state in zip(some, states, strict=True)
            ]
            bars.advance(len(some))
    return result


def text(result: UrlCheck) -> str:
    lines = [f"{item.state:9}  {item.fingerprint}  {item.url}" for item in result.urls]
    if result.error_bound:
        lines.append(f'"seen" is wrong for at most 1 in {round(1 / result.error_bound):,} new URLs.')
    else:
        lines.append('"seen" is exact.')
    return "\n".join(lines)
