"""Split a manifest into parts for several machines, without splitting a cluster.

All lines of one digest go to one part, regardless of their extension, since the lines of one digest must be compared
together to get their extensions. The concatenated parts are the manifest in order of clusters.
"""

from __future__ import annotations

import array
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.whole_file import put_in_place, sync
from scrapy_dedupe.offline.manifest_lines import json_line, text_line
from scrapy_dedupe.offline.ordering import by_cluster
from scrapy_dedupe.tasks.outputs import left_folder
from scrapy_dedupe.tasks.state import LOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from scrapy_dedupe.offline.manifest_lines import ManifestLine
    from scrapy_dedupe.tasks.state import StateFolder

    Plan: TypeAlias = Callable[[Iterator[int], int, int], Iterator[int]]
    """Yields the number of the part of each digest, from 0, given the sizes of all, their sum, and their number."""

FORMATS: Final = ("text", "jsonl")
_NUMBER: Final = re.compile(r"[1-9]\d*", re.ASCII)
_PAIR_BYTES: Final = 16
_COPIED_BYTES: Final = 1 << 18
_MOVED: Final = "moved.json"  # the files that get the names of parts, after all are written


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a manifest: its file and its size. ``clusters`` counts digests."""

    file: str
    size_bytes: int
    lines: int
    clusters: int


def split_by_count(
    lines: Iterable[ManifestLine],
    prefix: Path,
    count: int,
    *,
    format: str = "text",  # noqa: A002
    force: bool = False,
) -> list[Part]:
    """Write *count* parts of about the same size: PREFIX.1, PREFIX.2, ...

    No part is empty unless there are fewer digests than parts. Raises ArchiveError if a file PREFIX.NUMBER exists and
    *force* is not set (with *force*, all of them are replaced), and for system errors.
    """

    def plan(sizes: Iterator[int], total_bytes: int, clusters: int) -> Iterator[int]:
        start = part = 0
        for index, size in enumerate(sizes):
            # The middle of a cluster selects its part, but no part may be skipped, and later parts need clusters too.
            wanted = (2 * start + size) * count // (2 * total_bytes)
            least = max(part, min(part + 1, count - (clusters - index)))
            part = min(max(wanted, least), part + 1 if index else 0)
            yield part
            start += size

    return _split(lines, prefix, plan, format, force=force, least=count)


def split_by_size(
    lines: Iterable[ManifestLine],
    prefix: Path,
    size_bytes: int,
    *,
    format: str = "text",  # noqa: A002
    force: bool = False,
) -> list[Part]:
    """Write parts of at most *size_bytes*; a part is larger only if a single digest is. See `split_by_count`."""

    def plan(sizes: Iterator[int], total_bytes: int, clusters: int) -> Iterator[int]:
        held = part = 0
        for size in sizes:
            if held and held + size > size_bytes:
                part, held = part + 1, 0
            held += size
            yield part

    return _split(lines, prefix, plan, format, force=force, least=1)


def numbered_files(prefix: Path) -> list[Path]:
    """The existing files PREFIX.1, PREFIX.2, ... in this order."""
    start = f"{prefix.name}."
    try:
        found = [path for path in prefix.parent.iterdir() if path.name.startswith(start)]
    except OSError as error:
        raise ArchiveError(
            f"The folder {prefix.parent} cannot be read: {error.strerror or error}."
        ) from error
    numbered = [path for path in found if _NUMBER.fullmatch(path.name[len(start) :])]
    return sorted(numbered, key=lambda path: int(path.name[len(start) :]))


def _split(
    lines: Iterable[ManifestLine],
    prefix: Path,
    plan: Plan,
    format: str,  # noqa: A002
    *,
    force: bool,
    least: int,
) -> list[Part]:
    numbered_files(prefix)  # raises an error if the folder does not exist
    try:
        with left_folder(prefix) as state:
            _take_back(state, prefix)
            state.clear(keep=frozenset({LOCK}))
            _refuse_old_parts(prefix, force=force)
            scratch = state.path
            with (scratch / "all").open("w+b") as whole, (scratch / "sizes").open("w+b") as sizes:
                _write_all(by_cluster(lines, scratch), whole, sizes, format)
                parts = _planned(sizes, prefix, plan, least)
                whole.seek(0)
                written = [scratch / f"part-{number}" for number in range(1, len(parts) + 1)]
                for path, part in zip(written, parts, strict=True):
                    with path.open("xb") as file:
                        _copy(whole, file, part.size_bytes)
                        sync(file)
            old = _refuse_old_parts(prefix, force=force)
            state.write_json(_MOVED, [_identity(path) for path in written])
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


def _take_back(state: StateFolder, prefix: Path) -> None:
    """Remove the parts of a run that was killed before all of them had their names."""
    moved = list(enumerate(state.read_json(_MOVED) or [], 1))
    if not any((state.path / f"part-{number}").exists() for number, _ in moved):
        return
    for number, identity in moved:
        path = Path(f"{prefix}.{number}")
        # Do not remove a file that another program has put there since.
        if path.exists() and _identity(path) == identity:
            path.unlink()


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size]


def _refuse_old_parts(prefix: Path, *, force: bool) -> list[Path]:
    old = numbered_files(prefix)
    if old and not force:
        others = f" and {len(old) - 1} more of these files already exist" if old[1:] else " already exists"
        raise ArchiveError(
            f"{old[0]}{others}, perhaps from an earlier run. Choose another location with -o, or replace all of"
            " them with --force."
        )
    return old


def _write_all(lines: Iterator[ManifestLine], whole: IO[bytes], sizes: IO[bytes], format: str) -> None:  # noqa: A002
    """Write the sorted lines to *whole*, and the number of bytes and lines of each digest to *sizes*."""
    form = json_line if format == "jsonl" else text_line
    for _, same_digest in itertools.groupby(lines, key=lambda line: line.digest):
        size = count = 0
        for line in same_digest:
            size += whole.write(form(line, line.columns).encode() + b"\n")
            count += 1
        sizes.write(array.array("Q", (size, count)).tobytes())


def _planned(sizes: IO[bytes], prefix: Path, plan: Plan, least: int) -> list[Part]:
    """The parts, with their final names."""
    clusters = total_bytes = 0
    for size, _ in _pairs(sizes):
        clusters += 1
        total_bytes += size
    numbers = plan((size for size, _ in _pairs(sizes)), total_bytes, clusters)
    found = [[0, 0, 0] for _ in range(least)]
    for number, (size, count) in zip(numbers, _pairs(sizes), strict=True):
        if number == len(found):
            found.append([0, 0, 0])
        for index, value in enumerate((size, count, 1)):
            found[number][index] += value
    return [Part(f"{prefix}.{number}", *values) for number, values in enumerate(found, 1)]


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    while size:
        data = source.read(min(size, _COPIED_BYTES))
        target.write(data)
        size -= len(data)


def _pairs(sizes: IO[bytes]) -> Iterator[tuple[int, int]]:
    position = 0
    while True:
        # Another reader may have moved the position.
        sizes.seek(position)
        data = sizes.read(_PAIR_BYTES * 4_096)
        if not data:
            return
        position += len(data)
        numbers = array.array("Q", data)
        yield from zip(numbers[::2], numbers[1::2], strict=True)
