"""Manifests in another order, whatever their size.

Both orders compare bytes: of digests, and of names as UTF-8. Dates are compared as times, to nine digits of a second, so
that ``2012-04-08T20:13:38Z`` comes before ``2012-04-08T20:13:38.5Z``, whose text would be first. Lines that are alike in all
of that keep the order in which they came.

What fits into `MEMORY_BYTES` is sorted there. Of more, sorted runs are written to files below a folder that the caller
names, and merged: an external merge sort (Knuth, TAOCP 3, 5.4), which needs no more memory however many lines there are.
A row of a run is the key of a line, its number in the input, and the line as text, so that the order of rows is that of
their bytes.
"""

from __future__ import annotations

import heapq
import itertools
import re
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.afterwards.manifest import ManifestLine, parse_text_line, text_line
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.warc.dates import date_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MEMORY_BYTES: Final = 64_000_000
"""Rows that are held at most, of about 500 bytes each."""

MERGED_RUNS: Final = 100
_ROW_BYTES: Final = 41  # what Python adds to a row: the object and its place in a list

_UNSAFE: Final = re.compile(r"[\x00-\x21\x7f-\U0010ffff]")
_LOW: Final = re.compile(r"[\x00-\x21]")
_NO_MARKS: Final = str.maketrans("", "", "-:Tt")


def by_cluster(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """The lines by digest and extension, those of a cluster by date, file and offset: its original comes first.

    What does not fit into memory is sorted in files below *folder*, which are gone when the last line has been taken, or no
    more are asked for. Raises ArchiveError if the disk is full.
    """
    return _sorted(lines, folder, cluster_key)


def by_place(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """The lines by file and offset. As `by_cluster`."""
    return _sorted(lines, folder, place_key)


def clusters(lines: Iterable[ManifestLine]) -> Iterator[tuple[tuple[str, int], Iterator[ManifestLine]]]:
    """The clusters of lines that are sorted by cluster, each with its lines, which are taken before the next cluster is."""
    return itertools.groupby(lines, key=lambda line: line.cluster)


def cluster_key(line: ManifestLine) -> str:
    """A text whose order is that of `by_cluster`."""
    return f"{line.digest} {_number_key(line.extension or 1)} {moment(line.date)} {place_key(line)}"


def place_key(line: ManifestLine) -> str:
    """A text whose order is that of `by_place`."""
    return f"{_name_key(line.file)} {_number_key(line.offset)}"


def moment(date: str) -> str:
    """A WARC-Date as 23 digits whose order is that of the times. Raises ValueError.

    >>> moment("2012-04-08T20:13:38.5Z"), moment("2012")
    ('20120408201338500000000', '20120101000000000000000')
    """
    digits = date[:19].translate(_NO_MARKS)
    if len(date) == 20 and len(digits) == 14 and digits.isdigit() and date[19] in "Zz":
        return f"{digits}000000000"  # the usual form, faster
    fraction = date.partition(".")[2].strip().rstrip("Zz")
    return date_digits(date)[:14] + fraction.ljust(9, "0")


def _name_key(name: str) -> str:
    """A text of the characters from ``"`` to U+00FF, without white space, whose order is that of the name's bytes."""
    if not _UNSAFE.search(name):
        return name
    # An exclamation mark is less than all that stands for itself, so what it escapes stays in order too.
    data = name.encode("utf-8", "surrogateescape").decode("latin-1")
    return _LOW.sub(lambda found: f"!{chr(ord(found[0]) + 0x30)}", data)


def _number_key(number: int) -> str:
    """Digits whose order is that of the numbers: how many there are, then they."""
    digits = str(number)
    return f"{len(digits):02}{digits}"


def _sorted(
    lines: Iterable[ManifestLine], folder: Path, key: Callable[[ManifestLine], str]
) -> Iterator[ManifestLine]:
    rows: list[bytes] = []
    held_bytes = 0
    with ExitStack() as stack:
        runs: _Runs | None = None
        for number, line in enumerate(lines):
            # The number keeps equal lines in their order. A tab is less than all that a key holds.
            row = f"{key(line)}\t{number:015}\t{text_line(line, line.columns)}\n".encode()
            rows.append(row)
            held_bytes += len(row) + _ROW_BYTES
            if held_bytes >= MEMORY_BYTES:
                if runs is None:
                    runs = _Runs(stack.enter_context(_scratch(folder)), folder)
                rows.sort()
                runs.add(rows)
                rows.clear()
                held_bytes = 0
        rows.sort()
        for row in rows if runs is None else runs.merged_with(rows):
            yield parse_text_line(row[row.rindex(b"\t") + 1 : -1].decode())


class _Runs:
    """Sorted runs of rows in files. As many as `MERGED_RUNS` of one rank become one run of the next, so that few are open
    at once and no row is copied often.
    """

    def __init__(self, scratch: Path, folder: Path) -> None:
        self._scratch = scratch
        self._folder = folder
        self._ranks: list[list[Path]] = []
        self._count = 0

    def add(self, rows: Iterable[bytes], rank: int = 0) -> None:
        """Write a run."""
        self._count += 1
        path = self._scratch / f"run-{self._count}"
        try:
            with path.open("xb", buffering=1 << 18) as file:
                file.writelines(rows)
        except OSError as error:
            raise self._refused(error) from error
        if rank == len(self._ranks):
            self._ranks.append([])
        runs = self._ranks[rank]
        runs.append(path)
        if len(runs) == MERGED_RUNS:
            self._ranks[rank] = []
            self.add(self._merged(runs, ()), rank + 1)
            for run in runs:
                run.unlink()

    def merged_with(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        """All rows of all runs, and *rows*, which are sorted."""
        return self._merged([run for runs in self._ranks for run in runs], rows)

    def _merged(self, runs: list[Path], rows: Iterable[bytes]) -> Iterator[bytes]:
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(run.open("rb", buffering=1 << 16)) for run in runs]
                yield from heapq.merge(*files, rows)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> ArchiveError:
        return ArchiveError(
            f"A large manifest cannot be sorted in {self._folder}: {error.strerror or error}. Free some space there, about"
            " three times the size of the manifest."
        )


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".sorting-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise ArchiveError(
            f"A large manifest cannot be sorted in {folder}: {error.strerror or error}. Name an output in a folder that can"
            " be written to."
        ) from error
    with scratch as name:
        yield Path(name)
