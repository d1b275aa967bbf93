"""The joins of the plan in Spark SQL: `offline.plan.Joins`.

The statements are those that DuckDB runs (`offline.plan_queries`), with the few words that differ replaced. Each statement
runs once and writes its table to Parquet files; a temporary view makes it available to the next ones. So the plans of
Spark stay small, and nothing is computed again if an executor is lost. Views have unique names, since a session may run
several plans.
"""

from __future__ import annotations

import re
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from scrapy_dedupe.offline.plan import SIZES, size_of
from scrapy_dedupe.offline.rows import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# Words of DuckDB, and those of Spark.
_WORDS: Final = (
    (re.compile(r'"(\w+)"'), r"`\1`"),
    (re.compile(r"\* EXCLUDE \("), "* EXCEPT ("),
    (re.compile(r"\bunnest\("), "explode("),
    (re.compile(r"\blen\("), "array_size("),
    (re.compile(r"\b([\w.]+)\[1\]"), r"get(\1, 0)"),
    (re.compile(r" // "), " div "),
    (re.compile(r"\bVARCHAR\b"), "STRING"),
)
_CREATE: Final = re.compile(r"\s*CREATE TABLE (\w+) AS\s+(.*)", re.DOTALL)
_DROP: Final = re.compile(r"\s*DROP TABLE (\w+)\s*")
_TABLE: Final = re.compile(r"\b(FROM|JOIN) (\w+)")
# Rows with the same key, such as 100,000 copies of one payload, are divided over several tasks.
_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.forceOptimizeSkewedJoin": "true",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1m",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1m",
}
_TYPES: Final = {"BIGINT": "bigint", "VARCHAR": "string", "BLOB": "binary", "BOOLEAN": "boolean"}


class SparkJoins:
    """Tables in *session*, with their files in the folder *scratch*. Call `close` at the end.

    Until then, the session has settings that divide the rows of one key over several tasks.
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
        self._set("line", self._session.read.parquet(_uri(path)))

    def add_rows(self, rows: Mapping[int, Path]) -> None:
        from pyspark.sql import functions

        columns = {"file": "BIGINT", **COLUMNS}
        self.add("row_file", {"path": "VARCHAR", "file": "BIGINT"}, _row_files(rows, {}))
        if not rows:
            self.add("row", columns, [])
            return
        found = self._session.read.parquet(*map(_uri, rows.values()))
        # Spark writes paths as URIs in its own way.
        places = {_path_of(uri): uri for uri in found.inputFiles()}
        self.add("row_file", {"path": "VARCHAR", "file": "BIGINT"}, _row_files(rows, places))
        numbers = functions.broadcast(self._tables["row_file"])
        found = found.withColumn("path", functions.input_file_name()).join(numbers, "path")
        self._set("row", found.select("file", *(f"`{name}`" for name in COLUMNS)))

    def add(self, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> None:
        values = [tuple(row) for row in rows]
        self._set(table, self._session.createDataFrame(values, _schema(columns)))

    def add_sizes(self, query: str) -> None:
        sizes = self._session.sql(self._translated(query)).rdd.map(size_of)
        self._keep("size", self._session.createDataFrame(sizes, _schema(SIZES)))

    def run(self, statements: Iterable[str]) -> None:
        for statement in statements:
            if created := _CREATE.fullmatch(statement):
                self._keep(created[1], self._session.sql(self._translated(created[2])))
            elif dropped := _DROP.fullmatch(statement):
                self._session.catalog.dropTempView(self._prefix + dropped[1])
                del self._tables[dropped[1]]
                shutil.rmtree(self._scratch / dropped[1])
            else:
                raise ValueError(f"neither creates nor drops a table: {statement}")

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        for row in self._session.sql(self._translated(query)).collect():
            yield tuple(row)

    def write_by_file(self, query: str, folder: Path) -> None:
        found = self._session.sql(self._translated(query))
        if found.isEmpty():
            return
        found.repartition("file").write.partitionBy("file").parquet(_uri(folder))

    def _translated(self, statement: str) -> str:
        for pattern, word in _WORDS:
            statement = pattern.sub(word, statement)
        return _TABLE.sub(
            lambda found: f"{found[1]} {self._prefix}{found[2]}" if found[2] in self._tables else found[0],
            statement,
        )

    def _keep(self, table: str, frame: Any) -> None:
        uri = _uri(self._scratch / table)
        frame.write.parquet(uri)
        self._set(table, self._session.read.schema(frame.schema).parquet(uri))

    def _set(self, table: str, frame: Any) -> None:
        frame.createOrReplaceTempView(self._prefix + table)
        self._tables[table] = frame


def _row_files(rows: Mapping[int, Path], places: Mapping[str, str]) -> list[tuple[str, int]]:
    return [(places.get(str(path.absolute()), str(path.absolute())), number) for number, path in rows.items()]


def _uri(path: Path) -> str:
    return path.absolute().as_uri()


def _path_of(uri: str) -> str:
    return unquote(urlsplit(uri).path)


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {_type(kind)}" for name, kind in columns.items())


def _type(kind: str) -> str:
    return f"array<{_TYPES[kind[:-2]]}>" if kind.endswith("[]") else _TYPES[kind]
