"""DuckDB, which sorts large manifests, and reads and writes Parquet (extra ``archive``)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.errors import DedupeError

MEMORY_LIMIT: Final = "128MB"
THREADS: Final = 1
CSV_BUFFER_BYTES: Final = 8 << 20
"""What one reader of text lines holds; twice the longest line at least."""

FETCHED_ROWS: Final = 2_000


@contextmanager
def open_engine(
    purpose: str, refused: Callable[[str], DedupeError], scratch: Path | None = None
) -> Iterator[Any]:
    """An engine in memory, of at most `MEMORY_LIMIT`. What it has no room for goes to files in *scratch*, if that is given.

    *purpose* completes the sentence "... needs DuckDB". Raises SettingError if DuckDB is not installed; what *refused*
    makes of a reason for what the engine itself raises, such as a full disk or a damaged file.
    """
    try:
        import duckdb
    except ImportError as error:
        raise SettingError(
            f'{purpose} needs DuckDB, which is not installed: pip install "scrapy-dedupe[archive]".'
        ) from error
    config: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": THREADS,
        "temp_directory": "" if scratch is None else str(scratch.absolute()),
        "max_temp_directory_size": "-1",  # no other limit than the disk
        "preserve_insertion_order": scratch is None,  # a table to be sorted has none
        # Nothing is downloaded or read from a user's own folder.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        connection = duckdb.connect(":memory:", config=config)
        try:
            connection.execute("SET enable_progress_bar = false")
            yield connection
        finally:
            connection.close()
    except duckdb.Error as error:
        raise refused(f"DuckDB says: {str(error).partition(chr(10))[0].rstrip('.')}") from error


def rows_of(cursor: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a result, a few at a time."""
    while rows := cursor.fetchmany(FETCHED_ROWS):
        yield from rows
