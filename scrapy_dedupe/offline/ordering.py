"""Sort manifests of any size, and number the copies of each payload.

Digests are compared by their bytes, and names by their UTF-8 bytes. Dates are compared as times, to nine digits of a second, so
that ``2012-04-08T20:13:38Z`` comes before ``2012-04-08T20:13:38.5Z``, whose text would sort first. The sort is
stable.

A line is sorted as a row: its sort key, its number in the input, and the line of a text manifest, separated by tabs. The keys
are written so that the bytes of two rows compare as their values do. `sorted_rows` sorts up to `MEMORY_BYTES` in memory;
more rows are sorted in runs of this size, which are written to files and merged. The files have no names, so a kill leaves none.
"""

from __future__ import annotations

import heapq
import itertools
import re
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline.manifest_lines import parse_text_line, text_line
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.dates import date_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.manifest_lines import ManifestLine

MEMORY_BYTES: Final = 32 << 20
"""The most memory for rows, in bytes; more rows are sorted with files."""
MOST_RUNS: Final = 64
"""The most files that are merged at once."""

_BUFFER_BYTES: Final = 1 << 16

_LOW: Final = re.compile(rb"[\x00-\x21]")
_NO_MARKS: Final = str.maketrans("", "", "-:Tt")


def by_cluster(lines: Iterable[ManifestLine], folder: Path) -> Iterator[ManifestLine]:
    """Sort lines by digest and extension, then by date, file and offset: a cluster's original comes first.

    Lines that do not fit into memory are sorted with temporary files in *folder*. Raises ArchiveError if the disk is full.
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
    """Sort rows by their bytes; each ends with a line end. *folder* and the exceptions are those of `by_cluster`."""
    held: list[bytes] = []
    held_bytes = 0
    # The runs of rows, the runs that were merged from MOST_RUNS of them, and so on.
    levels: list[list[IO[bytes]]] = [[]]
    with ExitStack() as stack:

        def write(run: Iterable[bytes], level: int) -> None:
            file = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES)  # noqa: SIM115
            stack.callback(_close, file)
            file.writelines(run)
            file.seek(0)
            levels[level].append(file)

        for row in rows:
            held.append(row)
            held_bytes += sys.getsizeof(row)
            if held_bytes <= MEMORY_BYTES:
                continue
            with _refusing(folder):
                write(sorted(held), 0)
                held, held_bytes = [], 0
                level = 0
                while len(levels[level]) == MOST_RUNS:
                    full, levels[level] = levels[level], []
                    level += 1
                    if level == len(levels):
                        levels.append([])
                    write(heapq.merge(*full), level)
                    for file in full:
                        _close(file)
        held.sort()
        if levels == [[]]:
            yield from held
            return
        with _refusing(folder):
            write(held, 0)
            del held  # the caller may need the memory
            yield from heapq.merge(*itertools.chain(*levels))


def place_key(line: ManifestLine) -> bytes:
    """A key that sorts by file and offset."""
    return b"%b\t%019d" % (_name_key(line.file), line.offset)


def _cluster_key(line: ManifestLine) -> bytes:
    start = f"{line.digest}\t{line.extension or 1:019}\t{moment(line.date)}\t"
    return start.encode() + place_key(line)


def _name_key(name: str) -> bytes:
    """A text without white space that sorts like the bytes of the name; a name sorts before its continuations."""
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


def _close(file: IO[bytes]) -> None:
    # On a full disk, flushing the rest of the buffer fails again.
    with suppress(OSError):
        file.close()


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"A large manifest cannot be sorted in {folder}: {error.strerror or error}. Free some space there, about four"
            " times the size of the manifest, or choose an output in another folder."
        ) from error
