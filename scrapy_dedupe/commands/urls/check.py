"""``urls check URL…``: what a crawl would answer for each URL."""

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

_AT_ONCE = 500

HELP = "Tell of each URL whether it was seen, is new, or was forgotten and may be asked for once more."


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """``state`` is "seen", "new" or "forgotten"; ``fingerprint`` is in hexadecimal digits."""

    url: str
    state: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class UrlCheck:
    """What a filter says of URLs. ``error_bound``: the largest share of new URLs that it calls seen."""

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
    """The URLs that are named on the command line or piped in, each with its fingerprint."""
    urls = given_urls(words)
    # Whoever types them sees how many there are.
    if sys.stdin is not None and not sys.stdin.isatty():
        urls = bars.counted(urls, "read", 0, "URLs")
    return [(url, target.fingerprint(url)) for url in urls]


def checked(found: OpenFilter, fingerprints: list[tuple[str, bytes]], bars: Bars) -> list[CheckedUrl]:
    """What each URL was until now."""
    result = []
    with bars.part("check", len(fingerprints), "URLs"):
        for first in range(0, len(fingerprints), _AT_ONCE):
            some = fingerprints[first : first + _AT_ONCE]
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
