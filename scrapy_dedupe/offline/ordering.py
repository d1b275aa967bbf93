"""Sort and split manifests of any size, and number the copies of each payload.

Digests are compared by their bytes, and names by their UTF-8 bytes. Dates are compared as times, to nine digits of a second, so
that ``2012-04-08T20:13:38Z`` comes before ``2012-04-08T20:13:38.5Z``, whose text would sort first. The sort is
stable.

A line is sorted as a row: its sort key, its number in the input, and the line of a text manifest, separated by tabs. The keys
are written so that the bytes of two rows compare as their values do. `sorted_rows` sorts up to `MEMORY_BYTES` in memory;
more rows are sorted in runs of this size, which are written to files and merged. The files have no names, so a kill leaves none.

`split` makes parts for several machines, without splitting a cluster. All lines of one digest go to one part, regardless of
their extension, since the lines of one digest must be compared together to get their extensions. The concatenated parts are
the manifest in order of clusters.
"""

from __future__ import annotations

import heapq
import itertools
import re
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.whole_file import put_in_place, sync
from scrapy_dedupe.offline.manifest_lines import json_line, parse_text_line, text_line
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.outputs import left_folder
from scrapy_dedupe.tasks.state import LOCK, reading
from scrapy_dedupe.tasks.work import facts_of
from scrapy_dedupe.warc.dates import date_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_dedupe.offline.manifest_lines import ManifestLine
    from scrapy_dedupe.tasks.state import StateFolder

MEMORY_BYTES: Final = 32 << 20
"""The most memory for rows, in bytes; more rows are sorted with files."""
MOST_RUNS: Final = 64
"""The most files that are merged at once."""

PART_FORMATS: Final = ("text", "jsonl")
"""The formats of parts."""

_BUFFER_BYTES: Final = 1 << 16

_LOW: Final = re.compile(rb"[\x00-\x21]")
_NUMBER: Final = re.compile(r"[1-9]\d*", re.ASCII)
_MOVED: Final = "moved.json"  # the files that get the names of parts, after all are written


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
            yield line._replace(
                extension=line.extension or 1,
                copy=copy,
                refers_to_uri=None if is_original else original.uri,
                refers_to_date=None if is_original else original.date,
            )


def sorted_rows(rows: Iterable[bytes], folder: Path) -> Iterator[bytes]:
    """Sort rows by their bytes; each ends with a line end. *folder* and the exceptions are those of `by_cluster`."""
    held: list[bytes] = []
    held_bytes = 0
    # By level: the runs of rows, the runs that were merged from MOST_RUNS of them, and so on.
    levels: defaultdict[int, list[IO[bytes]]] = defaultdict(list)
    with ExitStack() as stack:

        def write(run: Iterable[bytes], level: int) -> None:
            file = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES)  # noqa: SIM115
            stack.callback(_close, file)
            file.writelines(run)
            file.seek(0)
            levels[level].append(file)
            if len(levels[level]) == MOST_RUNS:
                full = levels.pop(level)
                write(heapq.merge(*full), level + 1)
                for merged in full:
                    _close(merged)

        for row in rows:
            held.append(row)
            held_bytes += sys.getsizeof(row)
            if held_bytes > MEMORY_BYTES:
                with _refusing(folder):
                    write(sorted(held), 0)
                held, held_bytes = [], 0
        held.sort()
        if not levels:
            yield from held
            return
        with _refusing(folder):
            write(held, 0)
            del held  # the caller may need the memory
            yield from heapq.merge(*itertools.chain(*levels.values()))


def place_key(line: ManifestLine) -> bytes:
    """A key that sorts by file and offset."""
    return b"%b\t%019d" % (_name_key(line.file), line.offset)


def _cluster_key(line: ManifestLine) -> bytes:
    start = f"{line.digest}\t{line.extension or 1:019}\t{date_key(line.date)}\t"
    return start.encode() + place_key(line)


@lru_cache(256)  # many lines have the same file
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


@dataclass(slots=True)
class Part:
    """A part of a manifest: its file and its size. ``clusters`` counts digests."""

    file: str
    size_bytes: int = 0
    lines: int = 0
    clusters: int = 0


def split(
    lines: Iterable[ManifestLine],
    prefix: Path,
    *,
    count: int | None = None,
    size_bytes: int = 0,
    format: str = "text",  # noqa: A002
    force: bool = False,
) -> list[Part]:
    """Write the parts PREFIX.1, PREFIX.2, ... of a manifest.

    Either *count* parts of about the same size, of which none is empty unless there are fewer digests than parts; or parts of
    at most *size_bytes*, of which one is larger only if a single digest is. Raises ArchiveError if a file PREFIX.NUMBER exists
    and *force* is not set (with *force*, all of them are replaced), and for system errors.
    """
    _old_parts(prefix, force=True)  # raises an error if the folder does not exist
    try:
        with left_folder(prefix) as state:
            _take_back(state, prefix)
            state.clear(keep=frozenset({LOCK}))
            _old_parts(prefix, force=force)
            whole, listed = state.path / "all", state.path / "sizes"
            total_bytes, clusters = _write_all(by_cluster(lines, state.path), whole, listed, format)
            if count is None:
                numbers = _numbers_by_size(_sizes(listed), size_bytes)
            else:
                numbers = _numbers_by_count(_sizes(listed), count, total_bytes, clusters)
            groups = itertools.groupby(zip(numbers, _sizes(listed), strict=True), lambda item: item[0])
            parts: list[Part] = []
            written: list[Path] = []
            with whole.open("rb") as file:
                # No part is skipped, so the parts without lines, if any, are the last ones.
                while (group := next(groups, (0, ()))[1]) or len(parts) < (count or 1):
                    part = Part(f"{prefix}.{len(parts) + 1}")
                    parts.append(part)
                    written.append(state.path / f"part-{len(parts)}")
                    with written[-1].open("xb") as target:
                        for _, (size, line_count) in group:
                            target.writelines(itertools.islice(file, line_count))
                            part.size_bytes += size
                            part.lines += line_count
                            part.clusters += 1
                        sync(target)
            old = _old_parts(prefix, force=force)
            state.write_json(_MOVED, [facts_of(path)[1:4] for path in written])
            # Remove the old parts first: parts of two runs must never exist together, not even after a kill.
            for path in old:
                path.unlink()
            for path, part in zip(written, parts, strict=True):
                put_in_place(path, Path(part.file), durable=False)
            sync_folder(prefix.parent)
    except OSError as error:
        raise ArchiveError(
            f"The parts {prefix}.1, ... cannot be written: {error.strerror or error}. Free some space, or choose another"
            " location with -o."
        ) from error
    return parts


def _numbers_by_count(
    sizes: Iterable[tuple[int, int]], count: int, total_bytes: int, clusters: int
) -> Iterator[int]:
    """The number, from 0, of the part of each digest."""
    start = part = 0
    for index, (size, _) in enumerate(sizes):
        # The middle of a cluster selects its part, but no part may be skipped, and later parts need clusters too.
        wanted = (2 * start + size) * count // (2 * total_bytes)
        least = max(part, min(part + 1, count - (clusters - index)))
        part = min(max(wanted, least), part + 1 if index else 0)
        yield part
        start += size


def _numbers_by_size(sizes: Iterable[tuple[int, int]], size_bytes: int) -> Iterator[int]:
    held = part = 0
    for size, _ in sizes:
        if held and held + size > size_bytes:
            part, held = part + 1, 0
        held += size
        yield part


def _take_back(state: StateFolder, prefix: Path) -> None:
    """Remove the parts of a run that was killed before all of them had their names."""
    moved = list(enumerate(state.read_json(_MOVED) or [], 1))
    if not any((state.path / f"part-{number}").exists() for number, _ in moved):
        return
    for number, facts in moved:
        path = Path(f"{prefix}.{number}")
        # Do not remove a file that another program has put there since.
        if path.exists() and list(facts_of(path)[1:4]) == facts:
            path.unlink()


def _old_parts(prefix: Path, *, force: bool) -> list[Path]:
    """The existing files PREFIX.1, PREFIX.2, ...; raises ArchiveError if there are any and *force* is not set."""
    start = f"{prefix.name}."
    with reading(prefix.parent):
        found = [path for path in prefix.parent.iterdir() if path.name.startswith(start)]
    numbered = [path for path in found if _NUMBER.fullmatch(path.name[len(start) :])]
    if numbered and not force:
        first = min(numbered, key=lambda path: int(path.name[len(start) :]))
        others = (
            f" and {len(numbered) - 1} more of these files already exist"
            if numbered[1:]
            else " already exists"
        )
        raise ArchiveError(
            f"{first}{others}, perhaps from an earlier run. Choose another location with -o, or replace all of"
            " them with --force."
        )
    return numbered


def _write_all(lines: Iterator[ManifestLine], whole: Path, sizes: Path, format: str) -> tuple[int, int]:  # noqa: A002
    """Write the sorted lines to *whole*, and the bytes and lines of each digest to *sizes*; return all bytes and digests."""
    form = json_line if format == "jsonl" else text_line
    total_bytes = clusters = 0
    with whole.open("wb") as file, sizes.open("w") as numbers:
        for _, same_digest in itertools.groupby(lines, key=lambda line: line.digest):
            size = count = 0
            for line in same_digest:
                size += file.write(form(line, line.columns).encode() + b"\n")
                count += 1
            numbers.write(f"{size} {count}\n")
            total_bytes += size
            clusters += 1
    return total_bytes, clusters


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    with path.open("rb") as file:
        for line in file:
            size, count = line.split()
            yield int(size), int(count)
