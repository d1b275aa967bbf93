"""The joins of the plan and of near copies in Spark SQL: `offline.plan.Joins` and `near.tables.Tables`.

The statements are those that DuckDB runs (`offline.plan_queries`, `near.joins`), with the few words that differ replaced. Each
statement runs once and writes its table to Parquet files; a temporary view makes it available to the next ones. So the plans
of Spark stay small, and nothing is computed again if an executor is lost. Views have unique names, since a session may run
several plans. The driver reads results with DuckDB, which needs less memory than a result of Spark.
"""

from __future__ import annotations

import re
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.plan import SIZES, size_of
from scrapy_dedupe.offline.rows import COLUMNS, PURPOSE
from scrapy_dedupe.stores.duckdb import open_engine, rows_of, source
from scrapy_dedupe.tasks.state import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# Words of DuckDB, and those of Spark.
_WORDS: Final = (
    (re.compile(r'"(\w+)"'), r"`\1`"),
    (re.compile(r"\* EXCLUDE \("), "* EXCEPT ("),
    (re.compile(r"\bunnest\("), "explode("),
    (re.compile(r"\blen\("), "array_size("),
    (re.compile(r"\blist\("), "collect_list("),
    (re.compile(r"\bhash\(([\w.]+)\) % (\d+)"), r"pmod(xxhash64(\1), \2)"),
    (re.compile(r"\b([\w.]+)\[1\]"), r"get(\1, 0)"),
    (re.compile(r" // "), " div "),
    (re.compile(r"\bVARCHAR\b"), "STRING"),
)
_CREATE: Final = re.compile(r"\s*CREATE (TABLE|VIEW) (\w+) AS\s+(.*)", re.DOTALL)
_DROP: Final = re.compile(r"\s*DROP TABLE (\w+)\s*")
_PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
_TABLE: Final = re.compile(r"\b(FROM|JOIN) (\w+)")
# Rows with the same key, such as 100,000 copies of one payload, are divided over several tasks.
_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.forceOptimizeSkewedJoin": "true",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1m",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1m",
}
# The bits of a number of Spark for the place of a row in its partition.
_PLACE_BITS: Final = 33
_TYPES: Final = {"BIGINT": "bigint", "VARCHAR": "string", "BLOB": "binary", "BOOLEAN": "boolean"}


class SparkJoins:
    """Tables in *session*, with their files in the folder *scratch*. Call `close` at the end.

    Until `close` is called, the session has settings that divide the rows of one key over several tasks.
    """

    def __init__(self, session: Any, scratch: Path) -> None:
        self._session = session
        self._scratch = scratch
        self._prefix = f"dedupe_{uuid.uuid4().hex}_"
        self._tables: dict[str, Any] = {}
        self._before = {name: session.conf.get(name, None) for name in _SETTINGS}
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)

    def close(self) -> None:
        """Forget all tables, and give the session its former settings."""
        for name, value in self._before.items():
            if value is None:
                self._session.conf.unset(name)
            else:
                self._session.conf.set(name, value)
        for name in self._tables:
            self._session.catalog.dropTempView(self._prefix + name)

    def add_lines(self, path: Path) -> None:
        self.view("line", [path])

    def view(self, table: str, paths: Iterable[Path]) -> None:
        self._set(table, self._session.read.parquet(*map(_source, paths)))

    def add_rows(self, rows: Mapping[int, Path]) -> None:
        from pyspark.sql import functions

        columns = {"file": "BIGINT", **COLUMNS}
        self.add("row_file", {"path": "VARCHAR", "file": "BIGINT"}, _row_files(rows, {}))
        if not rows:
            self.add("row", columns, [])
            return
        found = self._session.read.parquet(*map(_source, rows.values()))
        # Spark writes paths as URIs in its own way.
        places = {_path_of(uri): uri for uri in found.inputFiles()}
        self.add("row_file", {"path": "VARCHAR", "file": "BIGINT"}, _row_files(rows, places))
        numbers = functions.broadcast(self._tables["row_file"])
        found = found.withColumn("path", functions.input_file_name()).join(numbers, "path")
        self._set("row", found.select("file", *(f"`{name}`" for name in COLUMNS)))

    def add_matched(self, listed: str, matched: str, folder: Path) -> None:
        found = matched.format(listed="listed", row="row")
        self.run([f"CREATE TABLE listed AS {listed}", f"CREATE TABLE matched AS {found}"])

    def add(self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
        values = [tuple(row) for row in rows]
        self._set(table, self._session.createDataFrame(values, _schema(columns)))

    def add_sizes(self, query: str) -> None:
        sizes = self._session.sql(self._translated(query)).rdd.map(size_of)
        self._keep("size", self._session.createDataFrame(sizes, _schema(SIZES)))

    def run(self, statements: Iterable[str]) -> None:
        for statement in statements:
            if created := _CREATE.fullmatch(statement):
                kind, table, query = created.groups()
                frame = self._session.sql(self._translated(query))
                if kind == "TABLE":
                    self._keep(table, frame)
                else:
                    self._set(table, frame)
            elif dropped := _DROP.fullmatch(statement):
                self._session.catalog.dropTempView(self._prefix + dropped[1])
                del self._tables[dropped[1]]
                shutil.rmtree(self._scratch / dropped[1])
            else:
                raise ValueError(f"neither creates nor drops a table: {statement}")

    def number(self, table: str, column: str, query: str, order: str) -> None:
        from pyspark.sql import functions

        # A window over all rows would be one task. Instead, sort the rows into parts, and count the rows of each part.
        rows = self._session.sql(self._translated(f"{query} ORDER BY {order}"))
        placed = self._keep(table, rows.withColumn("place", functions.monotonically_increasing_id()))
        counts = (
            f"SELECT place div {1 << _PLACE_BITS} AS part, count(*) FROM {table} GROUP BY part ORDER BY part"  # noqa: S608
        )
        starts, start = [], 0
        for part, count in self.fetch(counts):
            starts.append((part, start))
            start += count
        parts = functions.broadcast(self._session.createDataFrame(starts, "part bigint, start bigint"))
        numbered = placed.withColumn("part", functions.shiftright("place", _PLACE_BITS)).join(parts, "part")
        number = functions.col("start") + functions.col("place") % (1 << _PLACE_BITS)
        self._set(table, numbered.select(number.alias(column), *(f"`{name}`" for name in rows.columns)))

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        path = self._scratch / f"fetched-{uuid.uuid4().hex}"
        found = self._session.sql(self._translated(query))
        # Parquet needs unique names without parentheses.
        found.toDF(*(f"_{place}" for place in range(len(found.columns)))).write.parquet(_target(path))
        with open_engine(
            PURPOSE,
            lambda text: ArchiveError(
                f"{path} cannot be read: {text}. Check the disk, then start again without the unfinished work."
            ),
        ) as engine:
            for file in sorted(path.glob("*.parquet")):
                yield from rows_of(engine.execute(f"SELECT * FROM read_parquet({source(file)})"))  # noqa: S608
        shutil.rmtree(path)

    def write(self, query: str, path: Path) -> None:
        made = path.with_name(f"{path.name}.new")
        with writing(path):
            shutil.rmtree(made, ignore_errors=True)  # of a run that was killed
            try:
                self._session.sql(self._translated(query)).write.parquet(_target(made))
                for file in made.glob("*.parquet"):
                    whole_file.sync_file(file)
                whole_file.put_in_place(made, path)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise

    def write_by_file(self, queries: Sequence[str], folder: Path) -> None:
        for query in queries:
            found = self._session.sql(self._translated(query))
            if not found.isEmpty():
                found.repartition("file").write.partitionBy("file").parquet(_target(folder), mode="append")

    def _translated(self, statement: str) -> str:
        for pattern, word in _WORDS:
            statement = pattern.sub(word, statement)
        return _TABLE.sub(
            lambda found: f"{found[1]} {self._prefix}{found[2]}" if found[2] in self._tables else found[0],
            statement,
        )

    def _keep(self, table: str, frame: Any) -> Any:
        path = self._scratch / table
        frame.write.parquet(_target(path))
        kept = self._session.read.schema(frame.schema).parquet(_source(path))
        self._set(table, kept)
        return kept

    def _set(self, table: str, frame: Any) -> None:
        frame.createOrReplaceTempView(self._prefix + table)
        self._tables[table] = frame


def _row_files(rows: Mapping[int, Path], places: Mapping[str, str]) -> list[tuple[str, int]]:
    return [(places.get(str(path.absolute()), str(path.absolute())), number) for number, path in rows.items()]


def _target(path: Path) -> str:
    """The name of a new folder for Spark, which takes percent signs literally."""
    return f"file://{path.absolute()}"


def _source(path: Path) -> str:
    """The name of a file or folder to read, which Spark would take for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", _target(path))


def _path_of(uri: str) -> str:
    return unquote(urlsplit(uri).path)


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {_type(kind)}" for name, kind in columns.items())


def _type(kind: str) -> str:
    return f"array<{_TYPES[kind[:-2]]}>" if kind.endswith("[]") else _TYPES[kind]
