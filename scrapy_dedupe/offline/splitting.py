"""Split a manifest into parts for several machines, without splitting a cluster.

All lines of one digest go to one part, regardless of their extension, since the lines of one digest must be compared
together to get their extensions. The concatenated parts are the manifest in order of clusters.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.files.folders import sync_folder
from scrapy_dedupe.files.whole_file import put_in_place, sync
from scrapy_dedupe.offline.manifest_lines import json_line, text_line
from scrapy_dedupe.offline.ordering import by_cluster
from scrapy_dedupe.tasks.outputs import left_folder
from scrapy_dedupe.tasks.state import LOCK, reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy_dedupe.offline.manifest_lines import ManifestLine
    from scrapy_dedupe.tasks.state import StateFolder

FORMATS: Final = ("text", "jsonl")
_NUMBER: Final = re.compile(r"[1-9]\d*", re.ASCII)
_MOVED: Final = "moved.json"  # the files that get the names of parts, after all are written


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a manifest: its file and its size. ``clusters`` counts digests."""

    file: str
    size_bytes: int
    lines: int
    clusters: int


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
            whole, sizes = state.path / "all", state.path / "sizes"
            total_bytes, clusters = _write_all(by_cluster(lines, state.path), whole, sizes, format)
            if count is None:
                numbers = _numbers_by_size(sizes, size_bytes)
            else:
                numbers = _numbers_by_count(sizes, count, total_bytes, clusters)
            found = [[0, 0, 0] for _ in range(count or 1)]
            for number, size in zip(numbers, _sizes(sizes), strict=True):
                if number == len(found):
                    found.append([0, 0, 0])
                found[number] = [
                    total + value for total, value in zip(found[number], (*size, 1), strict=True)
                ]
            parts = [Part(f"{prefix}.{number}", *values) for number, values in enumerate(found, 1)]
            written = [state.path / f"part-{number}" for number in range(1, len(parts) + 1)]
            with whole.open("rb") as file:
                for path, part in zip(written, parts, strict=True):
                    with path.open("xb") as target:
                        target.writelines(itertools.islice(file, part.lines))
                        sync(target)
            old = _old_parts(prefix, force=force)
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


def _numbers_by_count(sizes: Path, count: int, total_bytes: int, clusters: int) -> Iterator[int]:
    """The number, from 0, of the part of each digest."""
    start = part = 0
    for index, (size, _) in enumerate(_sizes(sizes)):
        # The middle of a cluster selects its part, but no part may be skipped, and later parts need clusters too.
        wanted = (2 * start + size) * count // (2 * total_bytes)
        least = max(part, min(part + 1, count - (clusters - index)))
        part = min(max(wanted, least), part + 1 if index else 0)
        yield part
        start += size


def _numbers_by_size(sizes: Path, size_bytes: int) -> Iterator[int]:
    held = part = 0
    for size, _ in _sizes(sizes):
        if held and held + size > size_bytes:
            part, held = part + 1, 0
        held += size
        yield part


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


def _sizes(sizes: Path) -> Iterator[tuple[int, int]]:
    with sizes.open() as file:
        for line in file:
            size, count = line.split()
            yield int(size), int(count)
