r"""Manifests: one line for each record that may have copies.

**Text**, the format of the paper and of its C tools: one line a record, UTF-8, ended by ``\n``, columns separated by one
space, 6, 7 or 10 of them, the same number in the whole file::

    file offset length uri date digest                                                  as warcsum writes it
    file offset length uri date digest extension                                        as warccollres does
    file offset length uri date digest extension copy refers_to_uri refers_to_date      as warcsumproc does

    a.warc.gz 3901 635 http://a.example/ 2012-04-08T20:13:38Z md5:d41d8cd98f00b204e9800998ecf8427e 1 1 - -

Numbers are decimal, of bytes as stored. The two references of an original are ``-``. `escapes` says how names and URIs
with white space are spelt. Files with the same number of columns can be put together with ``cat``.

**JSON lines**: one object a line, the names of its members are those of `ManifestLine`; what is None is left out.

**Parquet**: the columns have the same names and hold what those of the text do, as BIGINT and VARCHAR; references of
originals are NULL. Needs DuckDB.

The reader finds out the format by itself and is strict: what it does not understand is a fault with file and line, and
so is a last line without an end, since it may have been cut. What the C tools write is read, with its two habits: digests
may be in upper case, and a URI was cut at its first space.
"""

from __future__ import annotations

import glob
import os
import sys
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final, cast

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline.engine import CSV_BUFFER_BYTES, open_engine, rows_of
from scrapy_dedupe.offline.manifest_lines import (
    ALGORITHMS,
    COLUMNS,
    DECODED,
    MAX_LINE_BYTES,
    NAMES,
    NUMBERS,
    ManifestLine,
    digest_of,
    json_line,
    parse_json_line,
    parse_text_line,
    text_line,
)
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.files import is_same_file, lock, sync_folder

if TYPE_CHECKING:
    import io
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = [
    "ALGORITHMS",
    "COLUMNS",
    "DECODED",
    "FORMATS",
    "MAX_LINE_BYTES",
    "LineWriter",
    "ManifestLine",
    "digest_of",
    "json_line",
    "parse_json_line",
    "parse_text_line",
    "read_all",
    "read_lines",
    "text_line",
]

FORMATS: Final = ("text", "jsonl", "parquet")
_PARQUET_MAGIC: Final = b"PAR1"
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_lines(path: Path, *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """The lines of a manifest in their order; ``-`` is standard input.

    *faults* is told of what is wrong, with file and line; without it the first fault raises DamagedInput. Raises
    ArchiveError for a file that cannot be read, SettingError for Parquet without DuckDB.
    """
    return read_all([path], faults=faults)


def read_all(paths: Iterable[Path], *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """The lines of several manifests, one after the other, which must have one number of columns. As `read_lines`."""
    # Where no fault is passed over, no option helps.
    faults = Faults(advice="Make the manifest anew.") if faults is None else faults
    columns = 0
    for path in paths:
        for place, line in _placed_lines(path, faults):
            columns = columns or line.columns
            if line.columns == columns:
                yield line
            else:
                faults.add(place, f"it has {line.columns} columns, the lines before have {columns}")


class LineWriter:
    """Writes a manifest of 6, 7 or 10 *columns* as a context manager; ``-`` is standard output.

    The file is written as ``.NAME.tmp`` beside *path* and renamed when the block ends without an error and all of it is
    on disk; otherwise nothing is left, and what a process leaves that is killed is replaced by the next one. Raises
    ArchiveError if *path* is there already, unless *force* says that it is replaced; if another process writes it; and
    for what the system refuses.
    """

    def __init__(self, path: Path, *, columns: int, format: str = "text", force: bool = False) -> None:  # noqa: A002
        if columns not in COLUMNS:
            raise ValueError(f"{columns} columns")
        if format not in FORMATS:
            raise ValueError(f"the format {format!r}")
        self.path = path
        self.columns = columns
        self.format = format
        self.count = 0
        self._force = force
        self._to_stdout = str(path) == "-"
        if self._to_stdout and format == "parquet":
            raise UsageError("A Parquet file cannot be written to standard output. Name a file.")
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._table = path.with_name(f".{path.name}.tmp.parquet")
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
                # Once more: what a process left that was killed is removed even so.
                refuse_existing(self.path, force=self._force)
            except ArchiveError:
                self._discard(self._file)
                raise
        except OSError as error:
            raise self._refused(error) from error
        return self

    def write(self, line: ManifestLine) -> None:
        """Add a line. Raises ArchiveError if the disk is full, DamagedInput if no manifest can hold so long a line."""
        assert self._file is not None
        data = self._line(line, self.columns).encode() + b"\n"
        if len(data) > MAX_LINE_BYTES:
            raise DamagedInput(
                f"{line.file}, offset {line.offset}: the URI is too long for a line of a manifest, which has"
                f" {MAX_LINE_BYTES} bytes at most."
            )
        try:
            self._file.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._refused(error) from error
        self.count += 1

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
        """The temporary file, empty, which no other process has."""
        while True:
            fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not lock(fd):
                os.close(fd)
                raise ArchiveError(
                    f"Another process writes {self.path}. Wait for its end, or name another file."
                )
            if is_same_file(fd, self._temporary):
                break
            os.close(fd)  # whoever had it has just finished
        file = os.fdopen(fd, "wb", buffering=1 << 18)
        try:
            file.truncate(0)
            self._table.unlink(missing_ok=True)
        except BaseException:
            file.close()
            raise
        return file

    def _discard(self, file: IO[bytes], *, is_finished: bool = False) -> None:
        """Close and remove what has not become the output."""
        try:
            if not is_finished:
                # While the lock is held, so that it is not the file of the next process.
                self._temporary.unlink(missing_ok=True)
                self._table.unlink(missing_ok=True)
        finally:
            # All that counts has been synced by now. On a full disk what is left in the buffer fails once more.
            with suppress(OSError):
                file.close()

    def _finish(self, file: IO[bytes]) -> None:
        file.flush()
        finished = self._temporary
        if self.format == "parquet":
            self._write_table(self._table)
            finished = self._table
            with self._table.open("rb+") as written:
                os.fsync(written.fileno())
        else:
            os.fsync(file.fileno())
        refuse_existing(self.path, force=self._force)
        finished.replace(self.path)
        if finished is not self._temporary:
            self._temporary.unlink()
        sync_folder(self.path.parent)

    def _write_table(self, table: Path) -> None:
        names = NAMES[: self.columns]
        kinds = ", ".join(f"\"{name}\": '{'BIGINT' if name in NUMBERS else 'VARCHAR'}'" for name in names)
        chosen = ", ".join(
            f"nullif({name}, '-') AS {name}" if name.startswith("refers") else f'"{name}"' for name in names
        )
        # The names are those of our own dataclass; the quotes of the path are doubled.
        target = str(table).replace("'", "''")
        query = (
            f"COPY (SELECT {chosen} FROM read_csv(?, delim=' ', quote='', escape='', header=false, auto_detect=false,"  # noqa: S608
            f" columns={{{kinds}}}, max_line_size={MAX_LINE_BYTES}, buffer_size={CSV_BUFFER_BYTES}))"
            f" TO '{target}' (FORMAT parquet, ROW_GROUP_SIZE 20480)"
        )
        with open_engine("Writing a Parquet file", self._refused) as engine:
            engine.execute(query, [glob.escape(str(self._temporary))])

    def _refused(self, reason: OSError | str) -> ArchiveError:
        told = reason if isinstance(reason, str) else reason.strerror or str(reason)
        return ArchiveError(
            f"The manifest {self.path} cannot be written: {told}. Free some space, or name a file in"
            " another folder."
        )


def refuse_existing(path: Path, *, force: bool = False) -> None:
    """Raise ArchiveError if *path* is there already and is not to be replaced, or is a folder."""
    if path.is_dir():
        raise ArchiveError(f"{path} is a folder. Name a file.")
    if path.exists() and not force:
        raise ArchiveError(f"The file {path} is there already. Name another one, or replace it with --force.")


def _placed_lines(path: Path, faults: Faults) -> Iterator[tuple[str, ManifestLine]]:
    with _opened(path) as stream:
        start = stream.peek(4)[:4]
        if start == _PARQUET_MAGIC:
            yield from _parquet_lines(path, faults)
            return
        if start.startswith(_GZIP_MAGIC):
            raise DamagedInput(
                f"{path} is compressed with gzip; a manifest is read as it is. Unpack it first."
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
            faults.add(place, "the last line has no line end: the manifest is cut")
        else:
            while data and not data.endswith(b"\n"):
                data = stream.readline(MAX_LINE_BYTES)
            faults.add(place, f"it is longer than {MAX_LINE_BYTES} bytes")


def _parquet_lines(path: Path, faults: Faults) -> Iterator[tuple[str, ManifestLine]]:
    def refused(reason: str) -> DamagedInput:
        return DamagedInput(
            f"The Parquet file {path} cannot be read. {reason}. Nothing of a damaged one can be trusted; make it anew."
        )

    with open_engine("Reading a Parquet file", refused) as engine:
        # The name must not be taken for a pattern.
        source = glob.escape(str(path.absolute()))
        found = {
            str(name): str(kind)
            for name, kind, *_ in rows_of(engine.execute("DESCRIBE SELECT * FROM read_parquet(?)", [source]))
        }
        expected = {name: "BIGINT" if name in NUMBERS else "VARCHAR" for name in NAMES[: len(found)]}
        if found != expected or len(found) not in COLUMNS:
            shown = ", ".join(f"{name} {kind}" for name, kind in found.items())
            raise DamagedInput(f"{path} is no manifest: its columns are {shown[:300]}.")
        # The names of the columns are those of our own dataclass.
        names = ", ".join(f'"{name}"' for name in found)
        query = f"SELECT {names} FROM read_parquet(?)"  # noqa: S608
        for number, row in enumerate(rows_of(engine.execute(query, [source])), 1):
            place = f"{path}, row {number}"
            try:
                # The strings hold what the columns of the text do.
                yield place, parse_text_line(" ".join("-" if value is None else str(value) for value in row))
            except ValueError as error:
                faults.add(place, str(error))
