r"""Manifests: one line for each record that may have duplicates.

**Text**, the format of the paper and its C tools: one line for each record, UTF-8, ended by ``\n``. Columns are separated by
one space; a file has 6, 7 or 10 columns in all its lines::

    file offset length uri date digest                                                  written by warcsum
    file offset length uri date digest extension                                        written by warccollres
    file offset length uri date digest extension copy refers_to_uri refers_to_date      written by warcsumproc

    a.warc.gz 3901 635 http://a.example/ 2012-04-08T20:13:38Z md5:d41d8cd98f00b204e9800998ecf8427e 1 1 - -

Numbers are decimal; offset and length count stored bytes. The two references of an original are ``-``. For white space in
names and URIs see `escapes`. Files with the same number of columns can be concatenated.

**JSON lines**: one object for each line, whose keys are the fields of `ManifestLine`; fields that are None are omitted.

**Parquet**: columns with the same names and values as in the text, of type BIGINT or VARCHAR; references of originals
are NULL. Needs DuckDB.

The reader detects the format. It is strict: a line that it cannot parse is a fault with file and line number, and so is
a last line without a line end, since it may be truncated. It also accepts two deviations of the C tools: upper-case
digests, and URIs that are cut at their first space.
"""

from __future__ import annotations

import glob
import os
import sys
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final, cast

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.files.locks import open_locked
from scrapy_dedupe.offline.engine import CSV_BUFFER_BYTES, open_engine, rows_of
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
from scrapy_dedupe.tasks.faults import Faults

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["FORMATS", "LineWriter", "ManifestLine", "read_all", "read_lines", "refuse_existing"]

FORMATS: Final = ("text", "jsonl", "parquet")
_PARQUET_MAGIC: Final = b"PAR1"
_GZIP_MAGIC: Final = b"\x1f\x8b"


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

    The file is written as ``.NAME.tmp`` in the folder of *path*, and renamed after it is synced to disk, if the block ends
    without an error. Otherwise it is removed; the temporary file of a killed process is overwritten by the next one. Raises
    ArchiveError if *path* exists and *force* is not set, if another process is writing it, and for system errors.
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
        self._temporary = whole_file.temporary_path(path, ".tmp", is_hidden=True)
        self._table = self._temporary.with_name(f"{self._temporary.name}.parquet")
        self._line = json_line if format == "jsonl" else text_line
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        if self._to_stdout:
            self._file = sys.stdout.buffer
            return self
        try:
            if not self._temporary.exists():
                refuse_existing(self.path, force=self._force)
            self._file = self._locked()
            try:
                # Check again: now the temporary file of a killed process is removed even if this fails.
                refuse_existing(self.path, force=self._force)
            except ArchiveError:
                self._discard(self._file)
                raise
        except OSError as error:
            raise self._refused(error) from error
        return self

    def write(self, line: ManifestLine) -> None:
        """Write a line. Raises ArchiveError if the disk is full, DamagedInput if the line is too long."""
        assert self._file is not None
        data = self._line(line, self.columns).encode() + b"\n"
        if len(data) > MAX_LINE_BYTES:
            raise DamagedInput(
                f"{line.file}, offset {line.offset}: the URI is too long for a line of a manifest, which may have at most"
                f" {MAX_LINE_BYTES} bytes."
            )
        try:
            self._file.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        if self._to_stdout:
            file.flush()
            return
        is_finished = False
        try:
            try:
                if kind is None:
                    self._finish(file)
                    is_finished = True
            finally:
                self._discard(file, is_finished=is_finished)
        except OSError as refused:
            raise self._refused(refused) from refused

    def _locked(self) -> IO[bytes]:
        """Open the temporary file, empty and locked by this process."""
        try:
            fd = open_locked(
                self._temporary,
                lambda: os.open(
                    self._temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666
                ),
            )
        except BlockingIOError:
            raise ArchiveError(
                f"Another process is writing {self.path}. Wait until it ends, or name another file."
            ) from None
        file = os.fdopen(fd, "wb", buffering=1 << 18)
        try:
            file.truncate(0)
            self._table.unlink(missing_ok=True)
        except BaseException:
            file.close()
            raise
        return file

    def _discard(self, file: IO[bytes], *, is_finished: bool = False) -> None:
        """Close the temporary file, and remove it if it was not renamed."""
        try:
            if not is_finished:
                # Remove it before the lock is released: afterwards it may belong to another process.
                self._temporary.unlink(missing_ok=True)
                self._table.unlink(missing_ok=True)
        finally:
            # All relevant data has been synced. On a full disk, flushing the rest of the buffer fails again.
            with suppress(OSError):
                file.close()

    def _finish(self, file: IO[bytes]) -> None:
        file.flush()
        finished = self._temporary
        if self.format == "parquet":
            self._write_table(self._table)
            finished = self._table
            whole_file.sync_file(self._table)
        else:
            whole_file.sync(file)
        refuse_existing(self.path, force=self._force)
        whole_file.put_in_place(finished, self.path)
        if finished is not self._temporary:
            self._temporary.unlink()

    def _write_table(self, table: Path) -> None:
        names = NAMES[: self.columns]
        kinds = ", ".join(f"\"{name}\": '{'BIGINT' if name in NUMBERS else 'VARCHAR'}'" for name in names)
        chosen = ", ".join(
            f"nullif({name}, '-') AS {name}" if name.startswith("refers") else f'"{name}"' for name in names
        )
        # Column names are constants; quotes in the path are doubled.
        target = str(table).replace("'", "''")
        query = (
            f"COPY (SELECT {chosen} FROM read_csv(?, delim=' ', quote='', escape='', header=false, auto_detect=false,"  # noqa: S608
            f" columns={{{kinds}}}, max_line_size={MAX_LINE_BYTES}, buffer_size={CSV_BUFFER_BYTES}))"
            f" TO '{target}' (FORMAT parquet, ROW_GROUP_SIZE 20480)"
        )
        with open_engine("Writing a Parquet file", self._refused) as engine:
            engine.execute(query, [glob.escape(str(self._temporary))])

    def _refused(self, reason: OSError | str) -> ArchiveError:
        text = reason if isinstance(reason, str) else reason.strerror or str(reason)
        return ArchiveError(
            f"The manifest {self.path} cannot be written: {text}. Free some space, or name a file in"
            " another folder."
        )


def refuse_existing(path: Path, *, force: bool = False) -> None:
    """Raise ArchiveError if *path* is a folder, or if it exists and *force* is not set."""
    if path.is_dir():
        raise ArchiveError(f"{path} is a folder. Name a file.")
    if path.exists() and not force:
        raise ArchiveError(f"The file {path} already exists. Name another file, or replace it with --force.")


def _placed_lines(path: Path, faults: Faults) -> Iterator[tuple[str, ManifestLine]]:
    with _opened(path) as stream:
        start = stream.peek(4)[:4]
        if start == _PARQUET_MAGIC:
            yield from _parquet_lines(path, faults)
            return
        if start.startswith(_GZIP_MAGIC):
            raise DamagedInput(
                f"{path} is compressed with gzip, but manifests are read uncompressed. Unpack it first."
            )
        is_json = start.startswith(b"{")
        for place, data in _raw_lines(stream, path, faults):
            try:
                if is_json:
                    line = parse_json_line(data.decode("utf-8"))
                else:
                    line = parse_text_line(data.decode("utf-8", "surrogateescape"))
            except UnicodeError:
                faults.add(place, "it is not UTF-8")
            except ValueError as error:
                faults.add(place, str(error))
            else:
                yield place, line


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    try:
        if str(path) == "-":
            yield cast("io.BufferedReader", sys.stdin.buffer)
        else:
            with path.open("rb") as stream:
                yield stream
    except OSError as error:
        raise ArchiveError(f"The manifest {path} cannot be read: {error.strerror or error}.") from error


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
    def refused(reason: str) -> DamagedInput:
        return DamagedInput(
            f"The Parquet file {path} cannot be read. {reason}. No part of a damaged file is reliable; create it again."
        )

    with open_engine("Reading a Parquet file", refused) as engine:
        # Escape the name, or DuckDB treats it as a pattern.
        source = glob.escape(str(path.absolute()))
        found = {
            str(name): str(kind)
            for name, kind, *_ in rows_of(engine.execute("DESCRIBE SELECT * FROM read_parquet(?)", [source]))
        }
        expected = {name: "BIGINT" if name in NUMBERS else "VARCHAR" for name in NAMES[: len(found)]}
        if found != expected or len(found) not in COLUMNS:
            shown = ", ".join(f"{name} {kind}" for name, kind in found.items())
            raise DamagedInput(f"{path} is not a manifest: its columns are {shown[:300]}.")
        # Column names are constants.
        names = ", ".join(f'"{name}"' for name in found)
        query = f"SELECT {names} FROM read_parquet(?)"  # noqa: S608
        for number, row in enumerate(rows_of(engine.execute(query, [source])), 1):
            place = f"{path}, row {number}"
            try:
                # The values are the same as in the text columns.
                yield place, parse_text_line(" ".join("-" if value is None else str(value) for value in row))
            except ValueError as error:
                faults.add(place, str(error))
