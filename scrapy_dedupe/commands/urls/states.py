"""``urls check URL…``, ``urls forget URL…`` and ``urls stats``: the state of URLs, and the figures of the filter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.reports.wording import counted, number, size

from .filters import FILTER, FilterTarget

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores

    from .filters import OpenFilter

_BATCH: Final = 500
_STOPS: Final = {
    "clean": "cleanly",
    "cut": "not cleanly: only requests that were done and had no new links count as seen",
}
URLS: Final = Option("urls", "URL", "- reads URLs from standard input, one a line", nargs="+")


def _check(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    target = FilterTarget(stores, opts)
    with Bars(opts) as bars:
        fingerprints = _fingerprints(opts.urls, target, bars)
        with target.open() as found:
            # "error_bound": the maximum share of new URLs that are reported as seen.
            urls = _states(found, fingerprints, bars)
            return {"filter": target.name, "error_bound": found.error_bound, "urls": urls}


def _fingerprints(words: list[str], target: FilterTarget, bars: Bars) -> list[tuple[str, bytes]]:
    """The URLs from the command line or standard input, each with its fingerprint."""
    urls = _given(words)
    # No progress bar while a user types URLs.
    if sys.stdin is not None and not sys.stdin.isatty():
        urls = bars.counted(urls, "read", 0, "URLs")
    return [(url, target.fingerprint(url)) for url in urls]


def _given(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield word


def _states(found: OpenFilter, fingerprints: list[tuple[str, bytes]], bars: Bars) -> list[dict[str, str]]:
    result = []
    with bars.part("check", len(fingerprints), "URLs"):
        for begin in range(0, len(fingerprints), _BATCH):
            some = fingerprints[begin : begin + _BATCH]
            states = found.states([fingerprint for _, fingerprint in some])
            result += [
                {"url": url, "state": state, "fingerprint": fingerprint.hex()}
                for (url, fingerprint), state in zip(some, states, strict=True)
            ]
            bars.advance(len(some))
    return result


def _check_lines(result: dict[str, Any]) -> Iterator[str]:
    for item in result["urls"]:
        yield f"{item['state']:9}  {item['fingerprint']}  {item['url']}"
    if bound := result["error_bound"]:
        yield f'"seen" is wrong for at most 1 in {number(round(1 / bound))} new URLs.'
    else:
        yield '"seen" is exact.'


CHECK = Verb(_check, _check_lines, [*FILTER, URLS])


def _forget(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    target = FilterTarget(stores, opts)
    with Bars(opts) as bars:
        fingerprints = _fingerprints(opts.urls, target, bars)
        with target.open() as found:
            before = _states(found, fingerprints, bars)
            wanted = [fingerprint for _, fingerprint in fingerprints]
            forgotten = found.forget(bars.counted(wanted, "forget", len(wanted), "URLs"))
            return {"filter": target.name, "forgotten": forgotten, "urls": before}


def _forget_lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"{counted(result['forgotten'], 'URL')} may be requested again."
    for state, words in (("new", "Not seen before"), ("forgotten", "Already forgotten")):
        yield from (f"{words}: {item['url']}" for item in result["urls"] if item["state"] == state)


FORGET = Verb(_forget, _forget_lines, [*FILTER, URLS])


def _stats(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    target = FilterTarget(stores, opts)
    with Bars(opts) as bars, bars.part("stats", 0, "fingerprints"), target.open() as found:
        return {"filter": target.name, **found.stats(bars.advance)}


def _stats_lines(stats: dict[str, Any]) -> Iterator[str]:
    held = [f"{counted(stats['fingerprints'], 'fingerprint')} by {stats['fingerprinter']}"]
    for key, words in (("forgotten", "forgotten"), ("listed", "listed"), ("exact", "in the exact set")):
        if stats[key] is not None:
            held.append(f"{number(stats[key])} {words}")
    yield f"Filter    {stats['filter']}"
    if stats["last_stop"] is not None:
        yield f"Stopped   {_STOPS[stats['last_stop']]}"
    yield f"Holds     {', '.join(held)}"
    yield (
        f"Size      {counted(stats['layers'], 'layer')}, the first for {number(stats['capacity'])};"
        f" {size(stats['bytes'])}, {100 * stats['fill_ratio']:.1f} % of the bits set"
    )
    yield (
        f"Error     at most {stats['error_rate']:g}, {stats['estimated_error']:.2g} now;"
        f" {stats['expected_lost']:.2g} URLs lost so far (expected)"
    )


STATS = Verb(_stats, _stats_lines, FILTER)
