"""``content purge``: forget texts by age, by crawl or by URL."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.ages import time_before
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import number_text
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.stores.crawl_index import checked_crawl_id

from .forgotten_reports import forget_reports

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.stores.base import ContentStore

HELP = (
    "Forget texts. A text is selected by its first capture: the URL, crawl and time at which it was new. A forgotten text"
    " is new again when it is seen again, even if other pages had it since."
)


@dataclass(frozen=True, slots=True)
class PurgedTexts:
    """``texts`` were selected, ``forgotten`` of them were deleted: none if the user declined, or with ``dry_run``.

    ``before`` is the time of ``--older-than``, as ISO 8601 in UTC.
    """

    store: str
    before: str | None
    crawl: str | None
    urls: list[str]
    texts: int
    forgotten: int
    dry_run: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        help="texts whose first capture is older: days (30), hours (12h), or before a date or time (2026-01-01, UTC)",
    )
    parser.add_argument(
        "--crawl", metavar="ID", help="texts that were new in this crawl; with --older-than: both"
    )
    parser.add_argument(
        "--url", metavar="URL", nargs="+", default=[], help="texts that were new at one of these URLs"
    )
    parser.add_argument("--all", action="store_true", help="all texts, and all templates")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--yes", action="store_true", help="do not ask")
    group.add_argument(
        "--dry-run", action="store_true", help="print how many texts would be forgotten, and forget none"
    )


def run(place: CommandStores, opts: argparse.Namespace) -> PurgedTexts:
    is_by_age_or_crawl = opts.older_than is not None or opts.crawl is not None
    if is_by_age_or_crawl + bool(opts.url) + opts.all != 1:
        raise UsageError(
            "Select texts in exactly one way: with --older-than, --crawl or both; with --url; or with --all."
        )
    before = None if opts.older_than is None else time_before(opts.older_than, datetime.now(UTC))
    before_ms = None if before is None else round(before.timestamp() * 1000)
    crawl = None if opts.crawl is None else checked_crawl_id(opts.crawl)
    urls = list(dict.fromkeys(opts.url))
    store, forgotten = place.open_content(), 0
    try:
        if urls:
            texts = sum(_new_at(store.content, url) for url in urls)
        else:
            texts = store.content.count(before_ms=before_ms, crawl=crawl)
        if not opts.dry_run and (opts.yes or _is_wanted(texts, place.shown(place.content_url))):
            if urls:
                forgotten = sum(store.content.forget(url) for url in urls)
            else:
                with Bars(opts) as bars:
                    parts = _Parts(bars, texts)
                    forgotten = store.content.purge(before_ms=before_ms, crawl=crawl, on_forgotten=parts)
                    bars.end()
                forget_reports(store, before=before, crawl=crawl)
            store.content.flush()
    finally:
        store.close()
    return PurgedTexts(
        store=place.shown(place.content_url),
        before=None if before is None else f"{before:%Y-%m-%dT%H:%M:%SZ}",
        crawl=crawl,
        urls=urls,
        texts=texts,
        forgotten=forgotten,
        dry_run=opts.dry_run,
    )


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


def _new_at(content: ContentStore, url: str) -> int:
    # A near copy has its own text; the text of any other copy was new elsewhere.
    return sum(capture.kind in ("unique", "near") for capture, _ in content.captures(url))


def _is_wanted(texts: int, store: str) -> bool:
    """Ask on the terminal. The question does not go to standard output, which may be redirected to a JSON file."""
    if not texts:
        return True  # there may still be captures and buckets without a text to delete
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            f"{_texts(texts)} of {store} would be forgotten, but there is no terminal to ask for confirmation. Use"
            " --yes or --dry-run."
        )
    print(
        f"{_texts(texts)} of {store} will be forgotten, and are new when they are seen again. Continue? [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def text(result: PurgedTexts) -> str:
    if result.dry_run:
        return f"{_texts(result.texts)} would be forgotten."
    if result.texts and not result.forgotten:
        return "Nothing was forgotten."
    return f"{_texts(result.forgotten)} {'was' if result.forgotten == 1 else 'were'} forgotten."


def _texts(number: int) -> str:
    return "1 text" if number == 1 else f"{number_text(number)} texts"
