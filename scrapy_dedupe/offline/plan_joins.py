"""Runs the statements of the plan (`plan_queries`): by DuckDB in this process, or on other processes (`spark.joins`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from scrapy_dedupe.offline.engine import checked, open_engine, quoted, rows_of, source
from scrapy_dedupe.offline.revisit_sizes import revisit_bytes
from scrapy_dedupe.offline.rows import COLUMNS, PURPOSE, create_table, insert_rows, refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from scrapy_dedupe.tasks.jobs import Jobs


class Joins(Protocol):
    """Tables of one plan, and statements in the SQL of DuckDB."""

    def add_lines(self, path: Path) -> None:
        """Add ``line``, the table in a Parquet file."""

    def add_rows(self, rows: Mapping[int, Path]) -> None:
        """Add ``row`` and ``row_file``, the rows of files by the number of the file."""

    def add(self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table with these columns, their types, and rows."""

    def add_sizes(self, query: str) -> None:
        """Add ``size``, the sizes of revisits; *query* yields line, heads, is_gzip, refers_uri and refers_date."""

    def run(self, statements: Iterable[str]) -> None:
        """Run statements that create or drop tables."""

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query."""

    def write_by_file(self, query: str, folder: Path) -> None:
        """Write the rows of a query to Parquet files in ``file=N/`` below *folder*, by their column file."""


@runtime_checkable
class JoinWorkers(Protocol):
    """`Workers` that can run the joins of plans with at least `least_join_bytes` of lines and rows."""

    least_join_bytes: int

    def joins(self, scratch: Path) -> AbstractContextManager[Joins]:
        """Open the joins of one plan, with temporary files in *scratch*."""


@contextmanager
def open_joins(jobs: Jobs, size_bytes: int, scratch: Path, output: Path) -> Iterator[Joins]:
    """The joins of a plan with *size_bytes* of lines and rows, with temporary files in *scratch*. Errors name *output*.

    DuckDB makes a small plan in less time than a cluster needs to start its tasks.
    """
    if isinstance(jobs, JoinWorkers) and size_bytes >= jobs.least_join_bytes:
        with jobs.joins(scratch) as joins:
            yield joins
        return
    with open_engine(PURPOSE, lambda text: refused(output, text), scratch) as engine:
        yield LocalJoins(engine)


class LocalJoins:
    """Joins by DuckDB."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def add_lines(self, path: Path) -> None:
        self._engine.execute(f"CREATE VIEW line AS SELECT * FROM read_parquet({source(path)})")  # noqa: S608

    def add_rows(self, rows: Mapping[int, Path]) -> None:
        places = [(checked(path), number) for number, path in rows.items()]
        self.add("row_file", {"path": "VARCHAR", "file": "BIGINT"}, places)
        if not rows:
            create_table(self._engine, "row", {"file": "BIGINT", **COLUMNS})
            return
        sources = ", ".join(map(source, rows.values()))
        names = ", ".join(f'r."{name}"' for name in COLUMNS)
        self._engine.execute(
            f"CREATE VIEW row AS SELECT f.file, {names} FROM read_parquet([{sources}], filename = true) r"  # noqa: S608
            " JOIN row_file f ON f.path = r.filename"
        )

    def add(self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
        create_table(self._engine, table, columns)
        insert_rows(self._engine, table, columns, rows)

    def add_sizes(self, query: str) -> None:
        # Another connection: each has one result at a time.
        rows = rows_of(self._engine.cursor().execute(query))
        self.add("size", SIZES, map(size_of, rows))

    def run(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._engine.execute(statement)

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        return rows_of(self._engine.execute(query))

    def write_by_file(self, query: str, folder: Path) -> None:
        self._engine.execute(f"COPY ({query}) TO {quoted(folder)} (FORMAT parquet, PARTITION_BY (file))")


SIZES = {"line": "BIGINT", "revisit_bytes": "BIGINT"}
"""The columns of ``size``."""


def size_of(row: Sequence[Any]) -> tuple[int, int]:
    """A row of ``size`` for a row of the query of `Joins.add_sizes`."""
    line, heads, is_gzip, uri, date = row
    return line, revisit_bytes(bytes(heads), bytes(uri or b""), (date or "").encode(), is_gzip=is_gzip)
