"""Sort manifests of any size, and number the copies of each payload.

Digests are compared by their bytes, and names by their UTF-8 bytes. Dates are compared as times, to nine digits of a second, so
that ``2012-04-08T20:13:38Z`` comes before ``2012-04-08T20:13:38.5Z``, whose text would sort first. The sort is
stable.

A line is sorted as a row: its sort key, its number in the input, and the line of a text manifest, separated by tabs. The keys
are written so that the bytes of two rows compare as their values do. `sorted_rows` sorts up to `MEMORY_BYTES` in memory;
more rows are sorted in runs of this size, which are written to files and merged.
"""

from __future__ import annotations

import heapq
import itertools
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.manifest_lines import parse_text_line, text_line
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.dates import date_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.offline.manifest_lines import ManifestLine

MEMORY_BYTES: Final = 32 << 20
"""The memory for rows that are sorted without files."""
MOST_RUNS: Final = 64
"""The most files that are merged at once."""

_BUFFER_BYTES: Final = 1 << 16

_LOW: Final = re.compile(rb"[\x00-\x21]")
_NO_MARKS: Final = str.maketrans("", "", "-:Tt")


def by_cluster(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """Sort lines by digest and extension, then by date, file and offset: a cluster's original comes first.

    Lines that do not fit into memory are sorted with files in *folder*, which are removed when the iterator ends or is
    closed. Raises ArchiveError if the disk is full.
    """
    return _sorted(lines, folder, _cluster_key)


def by_place(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """Sort lines by file and offset. See `by_cluster`."""
    return _sorted(lines, folder, place_key)


def number(lines: Iterable[ManifestLine], *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """Choose the original of each cluster and number its copies (columns 8 to 10 of a manifest).

    The *lines* must be sorted by cluster; their columns 8 to 10 are ignored. The original is the earliest capture; of equal
    dates, the first by file and offset. It gets copy number 1 and no reference; the others get 2, 3, … and refer to its
    URI and date. A line without an extension gets extension 1: its digest is trusted. If a record is listed twice, the
    second line is a fault and is left out, since the record would become a copy of itself.
    """
    faults = Faults() if faults is None else faults
    for _, cluster in itertools.groupby(lines, lambda line: line.cluster):
        copy = 0
        original: ManifestLine | None = None
        before: tuple[str, int] | None = None
        for line in cluster:
            if (line.file, line.offset) == before:
                faults.add(f"{line.file}, offset {line.offset}", "the manifest lists this record twice")
                continue
            before = line.file, line.offset
            copy += 1
            if original is None:
                original = line
            is_original = line is original
            yield replace(
                line,
                extension=line.extension or 1,
                copy=copy,
                refers_to_uri=None if is_original else original.uri,
                refers_to_date=None if is_original else original.date,
            )


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


def sorted_rows(rows: Iterable[bytes], folder: Path) -> Iterator[bytes]:
    """Sort rows, which end with a line end, by their bytes. See `by_cluster`."""
    held: list[bytes] = []
    held_bytes = 0
    runs: list[Path] = []
    with ExitStack() as stack:
        for row in rows:
            held.append(row)
            held_bytes += sys.getsizeof(row)
            if held_bytes > MEMORY_BYTES:
                scratch = runs[0].parent if runs else stack.enter_context(_scratch(folder))
                runs.append(_written(scratch / str(len(runs)), sorted(held), folder))
                held, held_bytes = [], 0
        held.sort()
        if runs:
            # Release the memory, which the caller may need.
            runs.append(_written(scratch / str(len(runs)), held, folder))
            held = []
        for number in itertools.count(len(runs)):
            if len(runs) <= MOST_RUNS:
                break
            merged, runs = runs[:MOST_RUNS], runs[MOST_RUNS:]
            runs.append(_written(scratch / str(number), _merged(merged, folder), folder))
        yield from _merged(runs, folder) if runs else held


def place_key(line: ManifestLine) -> bytes:
    """A key that sorts by file and offset."""
    return b"%b\t%019d" % (_name_key(line.file), line.offset)


def _cluster_key(line: ManifestLine) -> bytes:
    start = f"{line.digest}\t{line.extension or 1:019}\t{moment(line.date)}\t"
    return start.encode() + place_key(line)


def _name_key(name: str) -> bytes:
    """A text without white space that sorts like the name's bytes, and before a longer name."""
    # "!" sorts before every unescaped character, so escaped characters sort correctly too.
    return _LOW.sub(lambda found: b"!%c" % (found[0][0] + 0x30), name.encode("utf-8", "surrogateescape"))


def _sorted(
    lines: Iterable[ManifestLine], folder: Path, key: Callable[[ManifestLine], bytes]
) -> Iterator[ManifestLine]:
    rows = (
        b"%b\t%012d\t%b\n" % (key(line), number, text_line(line, line.columns).encode())
        for number, line in enumerate(lines)
    )
    for row in sorted_rows(rows, folder):
        yield parse_text_line(row[row.rindex(b"\t") + 1 : -1].decode())


def _written(path: Path, rows: Iterable[bytes], folder: Path) -> Path:
    with _refusing(folder), path.open("xb", buffering=_BUFFER_BYTES) as file:
        file.writelines(rows)
    return path


def _merged(runs: Iterable[Path], folder: Path) -> Iterator[bytes]:
    """The rows of sorted files, which are removed at the end."""
    with _refusing(folder), ExitStack() as stack:
        paths = list(runs)
        files = [stack.enter_context(path.open("rb", buffering=_BUFFER_BYTES)) for path in paths]
        yield from heapq.merge(*files)
        for path in paths:
            path.unlink()


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
        raise ArchiveError(
            f"A large manifest cannot be sorted in {folder}: {error.strerror or error}. Free some space there, about four"
            " times the size of the manifest, or choose an output in another folder."
        ) from error
