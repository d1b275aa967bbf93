"""DuckDB, which joins rows, and reads and writes Parquet (extra ``archive``)."""

from __future__ import annotations

import glob
import json
import os
import re
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.errors import DedupeError

MEMORY_LIMIT: Final = "128MB"
THREADS: Final = 1
CSV_BUFFER_BYTES: Final = 8 << 20
"""The buffer of one reader of text lines; at least twice the longest line."""

FETCHED_ROWS: Final = 2_000

_MESSAGE: Final = re.compile(r'"exception_message":("(?:[^"\\]|\\.)*")')


@contextmanager
def open_engine(
    purpose: str,
    refused: Callable[[str], DedupeError],
    scratch: Path | None = None,
    *,
    memory_limit: str = MEMORY_LIMIT,
    threads: int = THREADS,
) -> Iterator[Any]:
    """An in-memory DuckDB that uses at most *memory_limit*. Data beyond this limit goes to files in *scratch*.

    Without *scratch*, all callers in a process share one DuckDB, which they must not create tables in, and the options
    *memory_limit* and *threads* have no effect.
    *purpose* completes the sentence "... needs DuckDB". Raises SettingError if DuckDB is not installed. An error of
    DuckDB, such as a full disk or a damaged file, is raised as the exception that *refused* makes of its text.
    """
    duckdb = _imported(purpose)
    try:
        if scratch is None:
            connection = _reader(os.getpid()).cursor()
        else:
            connection = _connected(checked(scratch), memory_limit, threads)
        try:
            yield connection
        finally:
            connection.close()
    except duckdb.Error as error:
        raise refused(f"DuckDB says: {_reason(str(error))}") from error


@lru_cache(None)  # per process: a fork must not close the connection of its parent
def _reader(process: int) -> Any:
    """A DuckDB for all queries of this process that need no tables, since it takes longer to open than a small query."""
    return _connected("", MEMORY_LIMIT, THREADS)


def _connected(scratch: str, memory_limit: str, threads: int) -> Any:
    import duckdb

    config: dict[str, Any] = {
        "memory_limit": memory_limit,
        "threads": threads,
        "temp_directory": scratch,
        "max_temp_directory_size": "-1",  # limited only by the disk
        "preserve_insertion_order": not scratch,  # with scratch, tables are sorted anyway
        # Download nothing, and read nothing from the user's home.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET enable_progress_bar = false")
    # Prefetching reads up to a megabyte for a column of lists, regardless of the size of the column.
    connection.execute("SET disable_parquet_prefetching = true")
    # Each file is read only once, and a later file may have the same name.
    connection.execute("SET enable_external_file_cache = false")
    return connection


def require_engine(purpose: str, folder: Path) -> None:
    """Check, before any file is written, that DuckDB is installed and can use *folder*.

    Raises SettingError or UsageError, as `open_engine` and `checked` do.
    """
    _imported(purpose)
    checked(folder)


def _imported(purpose: str) -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise SettingError(
            f'{purpose} needs DuckDB, which is not installed: pip install "scrapy-dedupe[archive]".'
        ) from error
    return duckdb


def _reason(text: str) -> str:
    r"""The first line of an error of DuckDB. An error of another thread is in it as JSON; then only its message.

    >>> _reason('IO Error: Write failed: {"exception_type":"IO","exception_message":"No space \\"x\\"","errno":"28"}')
    'No space "x"'
    """
    found = _MESSAGE.search(text)
    return (json.loads(found[1]) if found else text).partition("\n")[0].rstrip(".")


def rows_of(cursor: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of a result, fetched `FETCHED_ROWS` at a time."""
    while rows := cursor.fetchmany(FETCHED_ROWS):
        yield from rows


def quoted(path: Path) -> str:
    """The path of a file to write, as a string of SQL."""
    return _literal(checked(path))


def source(path: Path) -> str:
    """The path of a file to read, as a string of SQL that DuckDB does not treat as a pattern."""
    return _literal(glob.escape(checked(path)))


def checked(path: Path) -> str:
    """The absolute path as text. Raises UsageError if it is not UTF-8, which DuckDB does not accept."""
    text = str(path.absolute())
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(
            f"{path} cannot hold unfinished work: its path is not UTF-8. Choose another folder."
        ) from None
    return text


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
