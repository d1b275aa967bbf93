"""``urls check``, ``forget``, ``stats``, ``export`` and ``import``: the URLs in a filter, and its figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy import version_info

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import FORCE, Option
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.crawl_files import sizes_of
from scrapy_dedupe.errors import StoreError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.tasks.outputs import check_output
from scrapy_dedupe.tasks.progress import Reached
from scrapy_dedupe.tasks.state import reading, writing
from scrapy_dedupe.urls.folder import LastStop
from scrapy_dedupe.urls.scrapy_file import read_requests_seen, unread_from, write_requests_seen

from .filters import FILTER, FilterTarget

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.commands.stores import CommandStores

    from .filters import OpenFilter

# Scrapy before 2.19 only reads lines.
_DEFAULT_FORMAT: Final = "binary" if version_info >= (2, 19) else "text"
_JOURNAL: Final = b"sd-"
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


def _export(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    target, as_text = FilterTarget(stores, opts), opts.format == "text"
    if target.is_shared:
        raise StoreError(
            f"The URL filter {target.name} is in Redis and has no list of its fingerprints, so it cannot be exported. "
            "Only the filter in a job's folder can be exported."
        )
    with Bars(opts) as bars, target.open_job() as stored:
        with bars.part("count", 0, "fingerprints"):
            lacking = stored.unlisted(bars.advance)
        # After an unclean stop the filter would have to be built first.
        total = len(stored.filter) - lacking if stored.last_stop is LastStop.CLEAN else 0
        fingerprints = bars.counted(stored.fingerprints(), "export", total, "fingerprints")
        if opts.output == "-":
            written = write_requests_seen(sys.stdout.buffer, fingerprints, as_text=as_text)
            sys.stdout.buffer.flush()
        else:
            written = _write(Path(opts.output), fingerprints, as_text=as_text, force=opts.force)
    # "lacking": fingerprints that are in the filter, but not in its list.
    counts = {"written": written, "lacking": lacking}
    return {"filter": target.name, "file": opts.output, **picked(opts, "format"), **counts}


def _write(path: Path, fingerprints: Iterator[bytes], *, as_text: bool, force: bool) -> int:
    """Write a temporary file, sync it and rename it to ``path``; return the number of fingerprints."""
    check_output(path, may_exist=force, choices="or replace it with --force")
    with writing(path), whole_file.replacing(path, suffix=".tmp") as file:
        return write_requests_seen(file, fingerprints, as_text=as_text)


def _export_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["file"] != "-":
        yield f"{_written(result)} written to {result['file']}."


def _export_caveats(result: dict[str, Any]) -> Iterator[str]:
    if result["lacking"]:
        yield (
            f"The list of the filter is damaged: {_written(result)} written, {number(result['lacking'])} more are in the"
            " filter, but cannot be read from it"
        )


def _written(result: dict[str, Any]) -> str:
    return counted(result["written"], "fingerprint was", "fingerprints were")


EXPORT = Verb(
    _export,
    _export_lines,
    [
        *FILTER,
        Option("-o", "FILE", "- is standard output", dest="output", required=True),
        Option(
            "--format",
            None,
            f"text is for Scrapy before 2.19 (default: {_DEFAULT_FORMAT}, for the installed Scrapy)",
            choices=("binary", "text"),
            default=_DEFAULT_FORMAT,
        ),
        FORCE,
    ],
    caveats=_export_caveats,
)


def _import(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    target = FilterTarget(stores, opts)
    # Check all files before anything is changed.
    for path in opts.files:
        _check_file(path)
    files: list[dict[str, Any]] = []
    with Bars(opts) as bars, target.open(create=True) as found:
        made = found.is_new
        with bars.part("import", sizes_of(opts.files)):
            added = found.add_many(
                fingerprint for path in opts.files for fingerprint in _read(path, files, Reached(bars))
            )
    if added.damaged is not None:
        files.append(_file(added.damaged[0], added.taken_over, added.damaged[1]))
    counts = picked(added, "taken_over new again known")
    # "made": the job had no filter, and one was created.
    return {"filter": target.name, "made": made, **counts, "files": files}


def _check_file(path: Path) -> None:
    with reading(path), path.open("rb") as file:
        start = file.read(len(_JOURNAL))
        file.seek(0)
        if start != _JOURNAL:
            next(read_requests_seen(file), None)
    if start == _JOURNAL:
        raise UsageError(
            f"{path} is a file of this package's URL filter. Export it first: scrapy dedupe urls export."
        )


def _read(path: Path, files: list[dict[str, Any]], reached: Reached) -> Iterator[bytes]:
    """The fingerprints in the file. The result for the file is added to ``files`` at the end."""
    count = 0
    with reading(path), path.open("rb") as file:
        for fingerprint in read_requests_seen(file):
            count += 1
            reached(file.tell())
            yield fingerprint
        damaged_at = unread_from(file)
    files.append(_file(path, count, damaged_at))


def _file(path: Path, fingerprints: int, damaged_at: int | None) -> dict[str, Any]:
    """A file in the result. From the offset *damaged_at* it is truncated or damaged, and was not imported."""
    return {"file": str(path), "fingerprints": fingerprints, "damaged_at": damaged_at}


def _import_lines(result: dict[str, Any]) -> Iterator[str]:
    counts = [
        f"{counted(result['new'], 'fingerprint is', 'fingerprints are')} new to {result['filter']}",
        f"{number(result['known'])} were known",
    ]
    if result["again"]:
        counts.append(f"{number(result['again'])} were forgotten and count as seen again")
    yield f"{', '.join(counts)}."
    if result["taken_over"]:
        yield f"{number(result['taken_over'])} more were imported from the job's own requests.seen."
    if result["made"]:
        yield "The job had no URL filter, so one was created."


def _import_caveats(result: dict[str, Any]) -> Iterator[str]:
    damaged = [item for item in result["files"] if item["damaged_at"] is not None]
    if damaged:
        places = ", ".join(f"{item['file']} at byte {number(item['damaged_at'])}" for item in damaged)
        yield f"Damaged files were imported only up to the damage: {places}"


IMPORT = Verb(
    _import,
    _import_lines,
    [*FILTER, Option("files", "FILE", "a requests.seen file", type=Path, nargs="+")],
    caveats=_import_caveats,
)
