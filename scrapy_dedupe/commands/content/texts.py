"""``content stats`` and ``content purge``: count the stored texts, and forget some of them."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import DRY_RUN, Exclusive, Option, flag, time_before
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.canonical import version
from scrapy_dedupe.errors import StoreRefused, UsageError
from scrapy_dedupe.reports.observations import unpack
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.stores.crawl_index import checked_crawl_id

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.stores import Store


def _stats(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    with closing(stores.open_content()) as store:
        numbers = store.content.statistics()
        parameters = store.content.parameters()
    return {
        "store": stores.shown(stores.content_url),
        **{name: numbers[name] for name in ("texts", "kept", "pending", "templates")},
        "canonicalizer": version(stores.settings.content.canonicalizer),
        "parameters": dict(sorted(parameters.items())),
        "bytes": _size(stores.content_url),
    }


def _size(url: str) -> int | None:
    """Return the size of the files of a store, with all other data in them; None for Redis, which does not report it."""
    path = parse_store_url(url).path
    if path is None:
        return None
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _stats_lines(stats: dict[str, Any]) -> Iterator[str]:
    kept, pending = number(stats["kept"]), number(stats["pending"])
    texts = counted(stats["texts"], "different text")
    parameters = ", ".join(f"{name} {value}" for name, value in stats["parameters"].items())
    yield f"Store      {stats['store']}"
    yield f"Texts      {texts}, {kept} compared with new ones, {pending} pending"
    yield f"Templates  {counted(stats['templates'], 'host')}"
    yield f"Compared   as {stats['canonicalizer']} (DEDUPE_CANONICALIZER)"
    yield f"Near       {parameters or 'nothing was compared yet'}"
    length = "not reported by Redis" if stats["bytes"] is None else f"{size(stats['bytes'])}, the whole file"
    yield f"Size       {length}"


STATS = Verb(_stats, _stats_lines)


def _purge(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    is_by_age_or_crawl = opts.older_than is not None or opts.crawl is not None
    if is_by_age_or_crawl + bool(opts.url) + opts.all != 1:
        raise UsageError(
            "Select texts in exactly one way: with --older-than, --crawl or both; with --url; or with --all."
        )
    before = None if opts.older_than is None else time_before(opts.older_than, datetime.now(UTC))
    before_ms = None if before is None else round(before.timestamp() * 1000)
    crawl = None if opts.crawl is None else checked_crawl_id(opts.crawl)
    urls = list(dict.fromkeys(opts.url))
    shown = stores.shown(stores.content_url)
    forgotten = 0
    with closing(stores.open_content()) as store:
        if urls:
            # A near copy has its own text; the text of any other copy was new elsewhere.
            captures = chain.from_iterable(map(store.content.captures, urls))
            texts = sum(capture.kind in ("unique", "near") for capture, _ in captures)
        else:
            texts = store.content.count(before_ms=before_ms, crawl=crawl)
        if not opts.dry_run and (opts.yes or _is_wanted(texts, shown)):
            if urls:
                forgotten = sum(store.content.forget(url) for url in urls)
            else:
                with Bars(opts) as bars:
                    parts = _Parts(bars, texts)
                    forgotten = store.content.purge(before_ms=before_ms, crawl=crawl, on_forgotten=parts)
                    bars.end()
                forget_reports(store, before=before, crawl=crawl)
            store.content.flush()
    return {
        "store": shown,
        "before": None if before is None else f"{before:%Y-%m-%dT%H:%M:%SZ}",
        "crawl": crawl,
        "urls": urls,
        "texts": texts,
        # Smaller if the user declined, and with --dry-run.
        "forgotten": forgotten,
        "dry_run": opts.dry_run,
    }


class _Parts:
    """A progress bar for each kind of deleted data; only the number of texts is known in advance."""

    def __init__(self, bars: Bars, texts: int) -> None:
        self._bars = bars
        self._what = "texts"
        bars.begin(self._what, texts, self._what)

    def __call__(self, what: str, count: int) -> None:
        if what != self._what:
            self._bars.end()
            self._bars.begin(what, 0, what)
            self._what = what
        self._bars.advance(count)


def _is_wanted(texts: int, store: str) -> bool:
    """Ask on the terminal. The question does not go to standard output, which may be redirected to a JSON file."""
    if not texts:
        return True  # there may still be captures and buckets without a text to delete
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            f"{counted(texts, 'text')} of {store} would be forgotten, but there is no terminal to ask for confirmation. Use"
            " --yes or --dry-run."
        )
    print(
        f"{counted(texts, 'text')} of {store} will be forgotten, and are new when they are seen again. Continue? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _purge_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["dry_run"]:
        yield f"{counted(result['texts'], 'text')} would be forgotten."
    elif result["texts"] and not result["forgotten"]:
        yield "Nothing was forgotten."
    else:
        yield f"{counted(result['forgotten'], 'text was', 'texts were')} forgotten."


def forget_reports(store: Store, *, before: datetime | None = None, crawl: str | None = None) -> int:
    """Delete the report data of crawls without an archive, which no crawl index lists.

    ``before`` selects the crawls that ended before this time, ``crawl`` a single crawl; without both, all are selected.

    Crawls in the index of the store are skipped, and with ``before`` also those whose end time cannot be read. Returns
    the number of crawls.
    """
    known = {info.id for info in store.index.crawls()} if store.has_index else set()
    wanted = [
        kept
        for kept in store.reports.crawls()
        if kept not in known
        and crawl in (None, kept)
        and (before is None or _ended_before(store, kept, before))
    ]
    for kept in wanted:
        store.reports.delete(kept)
    return len(wanted)


def _ended_before(store: Store, crawl: str, before: datetime) -> bool:
    data = store.reports.load(crawl)
    try:
        return data is not None and unpack(data, crawl).ended < before.timestamp()
    except StoreRefused:
        return False


PURGE = Verb(
    _purge,
    _purge_lines,
    [
        Option(
            "--older-than",
            "AGE",
            "texts first captured longer ago (30d, 12h), or before a date (2026-01-01, UTC)",
        ),
        Option("--crawl", "ID", "texts that were new in this crawl; with --older-than: both"),
        Option("--url", "URL", "texts that were new at one of these URLs", nargs="+", default=[]),
        flag("--all", "all texts, and all templates"),
        Exclusive(flag("--yes", "do not ask"), DRY_RUN),
    ],
)
