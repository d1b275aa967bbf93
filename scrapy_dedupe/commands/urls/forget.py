"""``urls forget URL…``: allows URLs to be requested again once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import number_text

from .check import CheckedUrl, checked, fingerprinted
from .filters import FilterTarget, add_filter_arguments

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = "Allow each URL to be requested again once, when a crawl finds it."


@dataclass(frozen=True, slots=True)
class Forgot:
    """``forgotten`` is the number of URLs that were seen and are forgotten now; ``urls`` has their earlier states."""

    filter: str
    forgotten: int
    urls: list[CheckedUrl]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_filter_arguments(parser)
    parser.add_argument("urls", metavar="URL", nargs="+", help="- reads URLs from standard input, one a line")


def run(place: CommandStores, opts: argparse.Namespace) -> Forgot:
    target = FilterTarget(place, opts)
    with Bars(opts) as bars:
        fingerprints = fingerprinted(opts.urls, target, bars)
        with target.open() as found:
            before = checked(found, fingerprints, bars)
            wanted = [fingerprint for _, fingerprint in fingerprints]
            forgotten = found.forget(bars.counted(wanted, "forget", len(wanted), "URLs"))
            return Forgot(found.name, forgotten, before)


def text(result: Forgot) -> str:
    urls = "URL" if result.forgotten == 1 else "URLs"
    lines = [f"{number_text(result.forgotten)} {urls} may be requested again."]
    lines += [f"Not seen before: {item.url}" for item in result.urls if item.state == "new"]
    lines += [f"Already forgotten: {item.url}" for item in result.urls if item.state == "forgotten"]
    return "\n".join(lines)
