"""Sort manifests of any size.

Digests are compared by their bytes, and names by their UTF-8 bytes. Dates are compared as times, to nine digits of a second, so
that ``2012-04-08T20:13:38Z`` comes before ``2012-04-08T20:13:38.5Z``, whose text would sort first. The sort is
stable.

Up to `MEMORY_LINES` lines are sorted in memory. More lines are written to a text table in a file, which DuckDB (extra
``archive``) sorts with little memory, and are read back from a file. A row of the table has the columns `_COLUMNS`,
separated by tabs: the sort keys, the number of the line in the input, and the line of a text manifest.
"""

from __future__ import annotations

import glob
import itertools
import re
import tempfile
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.offline.engine import CSV_BUFFER_BYTES, open_engine, rows_of
from scrapy_dedupe.offline.manifest_lines import ManifestLine, parse_text_line, text_line
from scrapy_dedupe.warc.dates import date_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

MEMORY_LINES: Final = 50_000
MEMORY_BYTES: Final = 32_000_000
"""The most bytes of file names and URIs that are sorted in memory."""

_COLUMNS: Final = {
    "digest": "VARCHAR",
    "extension": "BIGINT",
    "moment": "VARCHAR",
    "file": "VARCHAR",
    "offset": "BIGINT",
    "number": "BIGINT",
    "line": "VARCHAR",
}
# DuckDB compares text by bytes if no collation is set. The number makes the sort stable.
_BY_CLUSTER: Final = ("digest", "extension", "moment", "file", "offset", "number")
_BY_PLACE: Final = ("file", "offset", "number")

_ROW_BYTES: Final = CSV_BUFFER_BYTES // 2
_BUFFER_BYTES: Final = 1 << 18
_ROWS_AT_ONCE: Final = 1_000

_UNSAFE: Final = re.compile(r"[\x00-\x21\x7f-\U0010ffff]")
_LOW: Final = re.compile(r"[\x00-\x21]")
_NO_MARKS: Final = str.maketrans("", "", "-:Tt")


_PURPOSE: Final = f"Sorting a manifest of more than {MEMORY_LINES:,} lines"


class _Key(NamedTuple):
    """The sort key of a line; for a sort by place, digest, extension and moment are constants."""

    digest: str
    extension: int
    moment: str
    file: str
    offset: int


def by_cluster(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """Sort lines by digest and extension, then by date, file and offset: a cluster's original comes first.

    Lines that do not fit into memory are sorted with files in *folder*, which are removed when the iterator ends or is
    closed. Raises ArchiveError if the disk is full, SettingError if DuckDB is needed and not installed.
    """
    return _sorted(lines, folder, _BY_CLUSTER)


def by_place(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """Sort lines by file and offset. See `by_cluster`."""
    return _sorted(lines, folder, _BY_PLACE)


def clusters(lines: Iterable[ManifestLine]) -> Iterator[tuple[tuple[str, int], Iterator[ManifestLine]]]:
    """Group lines that are sorted by cluster. Iterate the lines of a cluster before requesting the next one."""
    return itertools.groupby(lines, key=lambda line: line.cluster)


def moment(date: str) -> str:
    """A WARC-Date as 23 digits that sort by time. Raises ValueError.

    >>> moment("2012-04-08T20:13:38.5Z"), moment("2012")
    ('20120408201338500000000', '20120101000000000000000')
    """
    digits = date[:19].translate(_NO_MARKS)
    if len(date) == 20 and len(digits) == 14 and digits.isdigit() and date[19] in "Zz":
        return f"{digits}000000000"  # a fast path for the usual form
    fraction = date.partition(".")[2].strip().rstrip("Zz")
    return date_digits(date)[:14] + fraction.ljust(9, "0")


def _cluster_key(line: ManifestLine) -> _Key:
    return _Key(line.digest, line.extension or 1, moment(line.date), _name_key(line.file), line.offset)


def _place_key(line: ManifestLine) -> _Key:
    return _Key("", 1, "", _name_key(line.file), line.offset)


def _name_key(name: str) -> str:
    """A text that sorts like the name's bytes, of the characters ``"`` to U+00FF and without white space."""
    if not _UNSAFE.search(name):
        return name
    # "!" sorts before every unescaped character, so escaped characters sort correctly too.
    data = name.encode("utf-8", "surrogateescape").decode("latin-1")
    return _LOW.sub(lambda found: f"!{chr(ord(found[0]) + 0x30)}", data)


def _sorted(lines: Iterable[ManifestLine], folder: Path, columns: tuple[str, ...]) -> Iterator[ManifestLine]:
    key = _cluster_key if columns is _BY_CLUSTER else _place_key
    held: list[ManifestLine] = []
    held_bytes = 0
    remaining = iter(lines)
    for line in remaining:
        held.append(line)
        held_bytes += len(line.file) + len(line.uri) + len(line.refers_to_uri or "")
        if len(held) > MEMORY_LINES or held_bytes > MEMORY_BYTES:
            break
    else:
        held.sort(key=key)
        yield from held
        return
    with _scratch(folder) as scratch:
        table, ordered = scratch / "table", scratch / "ordered"
        with open_engine(_PURPOSE, partial(_refused, folder), scratch) as engine:
            with _writing(table, folder) as file:
                rows = (
                    _row(line, key(line), number) for number, line in enumerate(_drained(held, remaining))
                )
                while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
                    with _refusing(folder):
                        file.writelines(some)
            # Fix all parsing options, so that the content cannot change them; escape the name, or it is a pattern.
            query = (
                "SELECT line FROM read_csv(?, delim='\t', quote='', escape='', header=false, auto_detect=false,"  # noqa: S608
                f" columns={_COLUMNS}, max_line_size={_ROW_BYTES}, buffer_size={CSV_BUFFER_BYTES})"
                f" ORDER BY {', '.join(map(_quoted, columns))}"
            )
            sorted_rows = rows_of(engine.execute(query, [glob.escape(str(table.absolute()))]))
            with _writing(ordered, folder) as file, _refusing(folder):
                file.writelines(f"{row[0]}\n".encode() for row in sorted_rows)
        # Read the file only after DuckDB has released its memory, which the caller may need.
        with _refusing(folder):
            file = ordered.open("rb", buffering=_BUFFER_BYTES)
        with closing(file):
            for data in file:
                yield parse_text_line(data[:-1].decode())


@contextmanager
def _writing(path: Path, folder: Path) -> Iterator[IO[bytes]]:
    with _refusing(folder):
        file = path.open("xb", buffering=_BUFFER_BYTES)
    try:
        yield file
    finally:
        with _refusing(folder):
            file.close()


def _drained(held: list[ManifestLine], remaining: Iterator[ManifestLine]) -> Iterator[ManifestLine]:
    """The lines of both. Held lines are released as they are yielded."""
    held.reverse()
    while held:
        yield held.pop()
    yield from remaining


def _row(line: ManifestLine, key: _Key, number: int) -> bytes:
    digest, extension, moment, file, offset = key
    text = text_line(line, line.columns)
    row = f"{digest}\t{extension}\t{moment}\t{file}\t{offset}\t{number}\t{text}\n".encode()
    if len(row) > _ROW_BYTES:
        raise DamagedInput(
            f"{line.file[:200]}, offset {line.offset}: the name and the URI are too long to be sorted."
        )
    return row


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with _refusing(folder):
        scratch = tempfile.TemporaryDirectory(prefix="sorting-", dir=folder, ignore_cleanup_errors=True)
    with scratch as name:
        yield Path(name)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(folder, error.strerror or str(error)) from error


def _refused(folder: Path, reason: str) -> ArchiveError:
    return ArchiveError(
        f"A large manifest cannot be sorted in {folder}: {reason}. Free some space there, about four times the size of the"
        " manifest, or choose an output in another folder."
    )
