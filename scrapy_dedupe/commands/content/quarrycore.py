"""``content import FILE``: import the text hashes of QuarryCore."""

from __future__ import annotations

import math
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import Option
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.content.quarrycore import PARAMETERS, is_hash, key_of
from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.reports.wording import counted
from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.stores.crawl_index import checked_crawl_id
from scrapy_dedupe.tasks.state import reading

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores

_TABLE: Final = "hash_dedup"
_COLUMNS: Final = ("hash", "url", "timestamp")
_AT_ONCE: Final = 1_000

# The end of the year 9999, the last year that datetime supports.
_END_S: Final = 253_402_300_800


def _import(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    crawl = checked_crawl_id(opts.crawl_id)
    new = known = skipped = 0
    with closing(_open(opts.file)) as table, Bars(opts) as bars:
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


def _open(path: Path) -> sqlite3.Connection:
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
        raise ArchiveError(f"The database {path} cannot be read: {str(error).rstrip('.')}.") from error
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


def _lines(result: dict[str, Any]) -> Iterator[str]:
    new = counted(result["new"], "text is", "texts are")
    known = counted(result["known"], "was", "were")
    yield f"{new} new to {result['store']}, {known} known. New ones are stored under the crawl {result['crawl']}."


def _caveats(result: dict[str, Any]) -> Iterator[str]:
    if count := result["skipped"]:
        were = "was" if count == 1 else "were"
        yield f"{counted(count, 'row')} of {result['file']} had no valid hash, URL or time and {were} skipped"


IMPORT = Verb(
    _import,
    _lines,
    [
        Option("file", "FILE", "QuarryCore's SQLite file, such as data/dedup.db", type=Path),
        Option("--crawl-id", "ID", "the crawl id of the texts (default: %(default)s)", default="quarrycore"),
    ],
    caveats=_caveats,
)
