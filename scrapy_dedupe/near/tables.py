"""Rows in Parquet files, written and joined with DuckDB (extra ``archive``).

A table is a file or, if a cluster has written it, a folder of files.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.plan import Joins
from scrapy_dedupe.offline.rows import create_table, insert_rows
from scrapy_dedupe.stores.duckdb import open_engine, quoted, source
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

PURPOSE: Final = "Finding near copies across archives"
_ROWS_AT_ONCE: Final = 2_000
# A group of rows is in memory while it is written, and some rows have long texts.
PARQUET: Final = "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 2048"


class RowsWriter:
    """Context manager that writes rows to the Parquet file *path*. *columns* are the types of the columns by name.

    The file gets its name when the block ends without an error. Memory is bounded. Raises ArchiveError for system errors.
    """

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self._path = path
        self._columns = columns
        self._rows: list[Sequence[object]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._engine = stack.enter_context(joining(self._path.parent))
            create_table(self._engine, "rows", self._columns)
            self._stack = stack.pop_all()
        return self

    def write(self, row: Sequence[object]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._insert()

    def write_from(self, query: str) -> None:
        """Add the rows of a query over Parquet files."""
        self._engine.execute(f"INSERT INTO rows {query}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._insert()
                copy(self._engine, "SELECT * FROM rows", self._path)

    def _insert(self) -> None:
        insert_rows(self._engine, "rows", self._columns, self._rows)
        self._rows.clear()


class Tables(Joins):
    """Tables by name in DuckDB, and statements over them in its SQL. `spark.joins` has the same methods for Spark."""

    def view(self, table: str, paths: Iterable[Path]) -> None:
        """Add the rows of Parquet files as *table*, or replace it."""
        self._engine.execute(f"CREATE OR REPLACE VIEW {table} AS SELECT * FROM {table_of(paths)}")  # noqa: S608

    def number(self, table: str, column: str, query: str, order: str) -> None:
        """Add *table*: the rows of a query, with their numbers from 0 in a unique *order* in the first column, *column*."""
        self._engine.execute(
            f"CREATE TABLE {table} AS SELECT row_number() OVER (ORDER BY {order}) - 1 AS {column}, * FROM ({query})"  # noqa: S608
        )

    def write(self, query: str, path: Path) -> None:
        """Write the rows of a query, in its order, to the new table *path*, which gets its name when it is complete."""
        copy(self._engine, query, path)


@contextmanager
def joining(folder: Path, *, memory_limit: str = "256MB", threads: int = 1) -> Iterator[Any]:
    """A DuckDB whose temporary files are in *folder*. Its errors are raised as ArchiveError."""

    def refused(reason: str) -> ArchiveError:
        return ArchiveError(
            f"{folder} cannot be used: {reason}. Free some space, or name an output in another folder."
        )

    with writing(folder):
        scratch = tempfile.TemporaryDirectory(prefix="spill-", dir=folder)
    with (
        scratch as name,
        open_engine(PURPOSE, refused, Path(name), memory_limit=memory_limit, threads=threads) as engine,
    ):
        engine.execute("SET pandas_analyze_sample = 1000000")
        yield engine


def copy(engine: Any, query: str, path: Path, options: str = PARQUET) -> None:
    """Write the result of a query to the file *path*, which gets its name when it is complete. Raises ArchiveError."""
    with writing(path), whole_file.replacing_from(path, suffix=".new") as temporary:
        engine.execute(f"COPY ({query}) TO {quoted(temporary)} ({options})")


def table_of(paths: Iterable[Path]) -> str:
    """An SQL expression of DuckDB for the rows of Parquet files, or of folders with such files."""
    files = [file for path in paths for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    return f"read_parquet([{', '.join(map(source, files))}])"
