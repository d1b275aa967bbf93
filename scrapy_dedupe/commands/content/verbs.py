"""``content stats``, ``purge``, ``import`` and ``curve``: the stored texts, the text hashes of QuarryCore, and the near layer."""

from __future__ import annotations

import math
import sqlite3
import sys
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import DRY_RUN, Exclusive, Option, flag, time_before
from scrapy_dedupe.commands.output import picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.banding import estimate_deviation, estimate_probability, recall
from scrapy_dedupe.content.canonical import version
from scrapy_dedupe.content.options import ALL_TYPES, NearOptions
from scrapy_dedupe.content.quarrycore import PARAMETERS, is_hash, key_of
from scrapy_dedupe.content.signature import min_equal
from scrapy_dedupe.errors import ArchiveError, DamagedInput, StoreRefused, UsageError
from scrapy_dedupe.reports.observations import unpack
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.stores import parse_store_url
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.stores.crawl_index import checked_crawl_id
from scrapy_dedupe.tasks.state import reading

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.stores import Store

_TABLE: Final = "hash_dedup"
_COLUMNS: Final = ("hash", "url", "timestamp")
_AT_ONCE: Final = 1_000

# The end of the year 9999, the last year that datetime supports.
_END_S: Final = 253_402_300_800

_OPTIONS: Final = "threshold recall num_perm shingle_size"
_PERCENTS: Final = range(50, 101, 5)


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


def _import(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    crawl = checked_crawl_id(opts.crawl_id)
    new = known = skipped = 0
    with closing(_opened(opts.file)) as table, Bars(opts) as bars:
        # Read the file before a store is created.
        with _reporting_damage(opts.file, "Nothing was imported"):
            (total,) = table.execute(f"SELECT count(*) FROM {_TABLE}").fetchone()  # noqa: S608
            rows = table.execute(f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE}")  # noqa: S608
        with closing(stores.open_content(create=True)) as store, bars.part("import", total, "rows"):
            store.content.check_parameters(PARAMETERS)
            while some := _next_rows(opts.file, rows):
                captures = [capture for row in some if (capture := _capture(row, crawl)) is not None]
                found = store.content.claim(captures, pending=False)
                skipped += len(some) - len(captures)
                new += found.count(None)
                known += len(found) - found.count(None)
                bars.advance(len(some))
            store.content.flush()
    return {
        "file": str(opts.file),
        "store": stores.shown(stores.content_url),
        "crawl": crawl,
        "new": new,
        "known": known,
        "skipped": skipped,
    }


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file without writing to it or creating files next to it."""
    with reading(path), path.open("rb") as file:
        head = file.read(20)
    if not head.startswith(b"SQLite format 3\0"):
        raise UsageError(
            f"The file {path} is not an SQLite database. Name the file in which QuarryCore stores its hashes."
        )
    # With a write-ahead log even a reader creates files next to the database, unless it is opened as immutable.
    has_log = head[18:20] == b"\x02\x02"
    is_quiet = has_log and not path.with_name(f"{path.name}-wal").exists()
    options = "mode=ro&immutable=1" if is_quiet else "mode=ro"
    with _reporting_damage(path, "Nothing was imported"), ExitStack() as stack:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
        stack.callback(connection.close)
        # Damaged text is handled below; sqlite3 would raise an exception.
        connection.text_factory = bytes
        names = [row[1].decode() for row in connection.execute(f"PRAGMA table_info({_TABLE})")]
        lacking = [name for name in _COLUMNS if name not in names]
        if lacking:
            what = f"no column {lacking[0]} in its table {_TABLE}" if names else f"no table {_TABLE}"
            raise UsageError(
                f"The database {path} has {what}. It was not made by QuarryCore, or by an unsupported version of it."
            )
        stack.pop_all()
    return connection


def _next_rows(path: Path, rows: sqlite3.Cursor) -> list[tuple[Any, ...]]:
    with _reporting_damage(path, "The rows before that position were imported"):
        return rows.fetchmany(_AT_ONCE)


@contextmanager
def _reporting_damage(path: Path, so_far: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ArchiveError(
            f"The database {path} cannot be read: {str(error).rstrip('.')}. Name another file, or end the program that has it"
            " locked."
        ) from error
    except sqlite3.Error as error:
        reason = str(error).rstrip(".")
        raise DamagedInput(
            f"The database {path} is damaged: {reason}. {so_far}; repeat the import with a repaired copy."
        ) from error


def _capture(row: tuple[Any, ...], crawl: str) -> SeenText | None:
    """The capture in a row; None if the row is damaged."""
    try:
        hash_, url = (value.decode() if isinstance(value, bytes) else None for value in row[:2])
    except UnicodeDecodeError:
        return None
    time_s = row[2]
    if not isinstance(time_s, (int, float)) or not math.isfinite(time_s) or not 0 <= time_s < _END_S:
        return None
    if hash_ is None or not is_hash(hash_) or not url:
        return None
    return SeenText(key_of(hash_), url, crawl, round(time_s * 1000))


def _import_lines(result: dict[str, Any]) -> Iterator[str]:
    new = counted(result["new"], "text is", "texts are")
    known = counted(result["known"], "was", "were")
    yield f"{new} new to {result['store']}, {known} known. New ones are stored under the crawl {result['crawl']}."


def _import_caveats(result: dict[str, Any]) -> Iterator[str]:
    if count := result["skipped"]:
        were = "was" if count == 1 else "were"
        yield f"{counted(count, 'row')} of {result['file']} had no valid hash, URL or time and {were} skipped"


IMPORT = Verb(
    _import,
    _import_lines,
    [
        Option("file", "FILE", "QuarryCore's SQLite file, such as data/dedup.db", type=Path),
        Option("--crawl-id", "ID", "the crawl id of the texts (default: %(default)s)", default="quarrycore"),
    ],
    caveats=_import_caveats,
)


def _curves(stores: CommandStores, opts: argparse.Namespace) -> list[dict[str, Any]]:
    values = picked(opts, _OPTIONS)
    for name, value in values.items():
        if value is None:
            values[name] = getattr(stores.settings.content, f"near_{name}")
    by_type = NearOptions.by_type(**values)
    near_identity = stores.settings.content.near_identity
    # First the curve for all other types.
    return [
        _curve(name, by_type[name], near_identity)
        for name in sorted(by_type, key=lambda name: (name != ALL_TYPES, name))
    ]


def _curve(content_type: str, options: NearOptions, near_identity: bool) -> dict[str, Any]:
    """The near layer for one content type, ``*`` for all others. If the layer is off, there are no bands and no points.

    With *near_identity* the bands are those of one key: the title, the URL words or the end of the URL.
    """
    threshold, num_perm = options.threshold, options.num_perm
    curve = {
        "content_type": content_type,
        **picked(options, _OPTIONS),
        "near_identity": near_identity,
        **dict.fromkeys(("bands", "rows_per_band", "min_equal", "deviation")),
        "points": [],
    }
    if not options.is_on:
        return curve
    banding, least = options.banding, min_equal(threshold, num_perm)
    if near_identity:
        banding = banding.third(threshold, options.recall)
    return curve | {
        "bands": banding.bands,
        "rows_per_band": banding.rows,
        # The estimate reaches the threshold if so many row bytes are equal. Its standard deviation at the threshold.
        "min_equal": least,
        "deviation": estimate_deviation(threshold, num_perm),
        # The probabilities for a pair of texts of one Jaccard similarity.
        "points": [
            {
                "jaccard": jaccard,
                "shares_band": banding.probability(jaccard),
                "estimate_reaches": estimate_probability(jaccard, num_perm, least),
                "called_near": recall(jaccard, banding, num_perm, least),
            }
            for jaccard in sorted({threshold} | {percent / 100 for percent in _PERCENTS})
        ],
    }


def _curve_lines(curves: list[dict[str, Any]]) -> Iterator[str]:
    for place, curve in enumerate(curves):
        if place:
            yield ""
        if len(curves) > 1:
            kind = curve["content_type"]
            yield f"Pages      {'all other content types' if kind == ALL_TYPES else kind}"
        threshold = curve["threshold"]
        if curve["bands"] is None:
            yield f"Threshold  {threshold:g}, which turns the near layer off"
            continue
        yield f"Threshold  {threshold:g}, of shingles of {curve['shingle_size']} characters"
        keys = " for each of title, URL words and end of the URL" if curve["near_identity"] else ""
        yield (
            f"Bands      {curve['bands']} of {curve['rows_per_band']} rows{keys}, of {curve['num_perm']}; recall wanted:"
            f" {curve['recall']:g}"
        )
        yield (
            f"Estimate   {curve['min_equal']} equal row bytes reach the threshold; standard deviation there"
            f" {curve['deviation']:.3f}"
        )
        yield ""
        yield "Similarity  Shares a band  Estimate reaches  Called near"
        for jaccard, shares_band, reaches, called_near in map(dict.values, curve["points"]):
            similarity = f"{jaccard:.2f}" if round(jaccard, 2) == jaccard else f"{jaccard:g}"
            line = f"{similarity:10}  {shares_band:13.2%}  {reaches:16.2%}  {called_near:11.2%}"
            yield f"{line}  threshold" if jaccard == threshold else line


CURVE = Verb(
    _curves,
    _curve_lines,
    [
        Option("--threshold", "SIMILARITY", "use this instead of DEDUPE_NEAR_THRESHOLD", type=float),
        Option("--recall", "SHARE", "use this instead of DEDUPE_NEAR_RECALL", type=float),
        Option("--num-perm", "ROWS", "use this instead of DEDUPE_NEAR_NUM_PERM", type=int),
        Option("--shingle-size", "CHARACTERS", "use this instead of DEDUPE_NEAR_SHINGLE_SIZE", type=int),
    ],
    store_option=None,
)
