r"""Manifests: one line for each record that may have duplicates.

**Text**, the format of the paper and its C tools: one line for each record, UTF-8, ended by ``\n``. Columns are separated by
one space; a file has 6, 7 or 10 columns in all its lines::

    file offset length uri date digest                                                  written by warcsum
    file offset length uri date digest extension                                        written by warccollres
    file offset length uri date digest extension copy refers_to_uri refers_to_date      written by warcsumproc

    a.warc.gz 3901 635 http://a.example/ 2012-04-08T20:13:38Z md5:d41d8cd98f00b204e9800998ecf8427e 1 1 - -

Numbers are decimal; offset and length count stored bytes. The two references of an original are ``-``. For white space in
names and URIs see `manifest_lines`. Files with the same number of columns can be concatenated.

**JSON lines**: one object for each line, whose keys are the fields of `ManifestLine`; fields that are None are omitted.

**Parquet**: columns with the same names and values as in the text, of type BIGINT or VARCHAR; references of originals
are NULL. Needs DuckDB.

The reader detects the format. It is strict: a line that it cannot parse is a fault with file and line number, and so is
a last line without a line end, since it may be truncated. It also accepts two deviations of the C tools: upper-case
digests, and URIs that are cut at their first space.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Final, cast

from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.manifest_lines import (
    COLUMNS,
    MAX_LINE_BYTES,
    NAMES,
    NUMBERS,
    ManifestLine,
    json_line,
    parse_json_line,
    parse_text_line,
    text_line,
)
from scrapy_dedupe.offline.rows import refused
from scrapy_dedupe.stores.duckdb import CSV_BUFFER_BYTES, open_engine, quoted, rows_of, source
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.outputs import check_output, work_folder
from scrapy_dedupe.tasks.state import reading, writing

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["FORMATS", "LineWriter", "ManifestLine", "format_of", "read_all", "read_lines", "write_text"]

FORMATS: Final = ("text", "jsonl", "parquet")
_PARQUET_MAGIC: Final = b"PAR1"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BUFFER_BYTES: Final = 1 << 18


def read_lines(path: Path, *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """The lines of a manifest in order; ``-`` is standard input.

    Invalid lines are added to *faults*, with file and line number; without *faults* the first one raises DamagedInput.
    Raises ArchiveError for a file that cannot be read, SettingError for Parquet without DuckDB.
    """
    return read_all([path], faults=faults)


def read_all(paths: Iterable[Path], *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """The lines of several manifests in sequence, which must have the same number of columns. See `read_lines`."""
    # Without *faults* the caller has no --keep-going option to recommend.
    faults = Faults(advice="Create the manifest again.") if faults is None else faults
    columns = 0
    for path in paths:
        for place, line in _placed_lines(path, faults):
            columns = columns or line.columns
            if line.columns == columns:
                yield line
            else:
                faults.add(place, f"it has {line.columns} columns, but the lines before have {columns}")


class LineWriter:
    """Context manager that writes a manifest of 6, 7 or 10 *columns*; ``-`` is standard output.

    The manifest gets its name after it is synced to disk, if the block ends without an error. Until then it is in ``folder``,
    the locked folder ``.NAME.work`` next to it, which may have other temporary files. The folder is removed at the end; that
    of a killed process is emptied by the next one. Raises ArchiveError if *path* exists and *force* is not set, if another
    process is writing it, and for system errors.
    """

    def __init__(self, path: Path, *, columns: int, format: str = "text", force: bool = False) -> None:  # noqa: A002
        if columns not in COLUMNS:
            raise ValueError(f"{columns} columns")
        if format not in FORMATS:
            raise ValueError(f"the format {format!r}")
        self.path = path
        self.columns = columns
        self.format = format
        self._force = force
        self._to_stdout = str(path) == "-"
        if self._to_stdout and format == "parquet":
            raise UsageError("A Parquet file cannot be written to standard output. Name a file.")
        self._line = json_line if format == "jsonl" else text_line

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if not self._to_stdout:
                check_output(self.path, may_exist=self._force, choices="or replace it with --force")
            self.folder = stack.enter_context(work_folder(self.path)).path
            if self._to_stdout:
                self._file: IO[bytes] = sys.stdout.buffer
            else:
                with writing(self.path):
                    self._file = (self.folder / "manifest").open("xb", buffering=_BUFFER_BYTES)
                stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def write(self, line: ManifestLine) -> None:
        """Write a line. Raises ArchiveError if the disk is full, DamagedInput if the line is too long."""
        data = _encoded(line, self.columns, self._line)
        try:
            self._file.write(data)
        except BrokenPipeError:
            raise
        except OSError:
            with writing(self.path):
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._to_stdout:
                self._file.flush()
            elif kind is None:
                with writing(self.path):
                    self._finish()

    def _close(self) -> None:
        # All relevant data has been synced. On a full disk, flushing the rest of the buffer fails again.
        with suppress(OSError):
            self._file.close()

    def _finish(self) -> None:
        written = self.folder / "manifest"
        whole_file.sync(self._file)
        if self.format == "parquet":
            table = self.folder / "table"
            self._write_table(written, table)
            whole_file.sync_file(table)
            written = table
        put_in_place = whole_file.put_in_place if self._force else whole_file.put_in_free_place
        put_in_place(written, self.path)

    def _write_table(self, written: Path, table: Path) -> None:
        kinds = _kinds(self.columns)
        chosen = ", ".join(
            f"nullif({name}, '-') AS {name}" if "refers" in name else f'"{name}"' for name in kinds
        )
        query = (
            f"COPY (SELECT {chosen} FROM read_csv({source(written)}, delim=' ', quote='', escape='', header=false,"  # noqa: S608 - constant names
            f" auto_detect=false, columns={kinds}, max_line_size={MAX_LINE_BYTES}, buffer_size={CSV_BUFFER_BYTES}))"
            f" TO {quoted(table)} (FORMAT parquet, ROW_GROUP_SIZE 20480)"
        )
        with open_engine("Writing a Parquet file", lambda text: refused(self.path, text)) as engine:
            engine.execute(query)


def _kinds(columns: int) -> dict[str, str]:
    """The names and SQL types of the columns of a table."""
    return {name: "BIGINT" if name in NUMBERS else "VARCHAR" for name in NAMES[:columns]}


def write_text(path: Path, lines: Iterable[ManifestLine], *, columns: int) -> None:
    """Write a text manifest into a folder that belongs to this process; an existing file is replaced.

    Raises ArchiveError if the disk is full, DamagedInput if a line is too long.
    """
    with writing(path), whole_file.replacing(path, suffix=".new", buffering=_BUFFER_BYTES) as file:
        for line in lines:
            file.write(_encoded(line, columns, text_line))


def _encoded(line: ManifestLine, columns: int, form: Callable[[ManifestLine, int], str]) -> bytes:
    data = form(line, columns).encode() + b"\n"
    if len(data) > MAX_LINE_BYTES:
        raise DamagedInput(
            f"{line.file}, offset {line.offset}: the URI is too long for a line of a manifest, which may have at most"
            f" {MAX_LINE_BYTES} bytes."
        )
    return data


def format_of(path: Path) -> str:
    """The format of a manifest that exists. Raises OSError."""
    with path.open("rb") as file:
        return _format(file.read(4))


def _format(start: bytes) -> str:
    return "parquet" if start.startswith(_PARQUET_MAGIC) else "jsonl" if start.startswith(b"{") else "text"


def _placed_lines(path: Path, faults: Faults) -> Iterator[tuple[str, ManifestLine]]:
    with (
        reading(path),
        nullcontext(cast("io.BufferedReader", sys.stdin.buffer))
        if str(path) == "-"
        else path.open("rb") as stream,
    ):
        start = stream.peek(4)
        if (form := _format(start)) == "parquet":
            yield from _parquet_lines(path, faults)
            return
        if start.startswith(_GZIP_MAGIC):
            raise DamagedInput(
                f"{path} is compressed with gzip, but manifests are read uncompressed. Unpack it first."
            )
        for place, data in _raw_lines(stream, path, faults):
            try:
                if form == "jsonl":
                    line = parse_json_line(data.decode("utf-8"))
                else:
                    line = parse_text_line(data.decode("utf-8", "surrogateescape"))
            except UnicodeError:
                faults.add(place, "it is not UTF-8")
            except ValueError as error:
                faults.add(place, str(error))
            else:
                yield place, line


def _raw_lines(stream: io.BufferedReader, path: Path, faults: Faults) -> Iterator[tuple[str, bytes]]:
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        place = f"{path}, line {number}"
        if data.endswith(b"\n"):
            yield place, data[:-1]
        elif len(data) <= MAX_LINE_BYTES:
            faults.add(place, "the last line has no line end: the manifest is truncated")
        else:
            while data and not data.endswith(b"\n"):
                data = stream.readline(MAX_LINE_BYTES)
            faults.add(place, f"it is longer than {MAX_LINE_BYTES} bytes")


def _parquet_lines(path: Path, faults: Faults) -> Iterator[tuple[str, ManifestLine]]:
    def unreadable(reason: str) -> DamagedInput:
        return DamagedInput(
            f"The Parquet file {path} cannot be read. {reason}. No part of a damaged file is reliable; create it again."
        )

    with open_engine("Reading a Parquet file", unreadable) as engine:
        rows = engine.execute(f"SELECT * FROM read_parquet({source(path)})")  # noqa: S608
        found = {name: str(kind) for name, kind, *_ in rows.description}
        if len(found) not in COLUMNS or found != _kinds(len(found)):
            shown = ", ".join(f"{name} {kind}" for name, kind in found.items())
            raise DamagedInput(
                f"{path} is not a manifest: its columns are {shown[:300]}. Name a file that warcsum or a later step has written."
            )
        for number, row in enumerate(rows_of(rows), 1):
            place = f"{path}, row {number}"
            try:
                # The values are the same as in the text columns.
                yield place, parse_text_line(" ".join("-" if value is None else str(value) for value in row))
            except ValueError as error:
                faults.add(place, str(error))
