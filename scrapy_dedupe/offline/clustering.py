"""Group the records of a digest manifest into duplicates, in parts that survive a kill.

The lines are sorted by digest once (``sorted.txt`` in the state folder). Then the sorted lines are compared and numbered
in parts of whole digests: ``clusters/000000.txt`` has the numbered lines of the first part, and
``clusters/000000.json``, which is written last, its counts. Finally the parts are joined to one manifest.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.state import replay_faults, writing

from .collisions import CollisionCounts, resolve_collisions
from .manifest import LineWriter, read_all, read_lines
from .numbering import number
from .ordering import by_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.tasks.state import StateFolder

    from .manifest import ManifestLine
    from .places import Places

_SUMS_COLUMNS = 6
_NUMBERED_COLUMNS = 10
# The size of a part. After a kill, at most the records of one part are compared again.
_PART_LINES = 32_000
_PART_BYTES = 4 << 30


def number_clusters(
    sums: Path,
    output: Path,
    places: Places,
    state: StateFolder,
    *,
    faults: Faults,
    watch: Progress,
    jobs: int = 1,
    size_bytes: int = 0,
) -> CollisionCounts:
    """Write the manifest of ten columns for the manifest *sums*; *size_bytes* is the total size of its files.

    Continues from the results in the state folder. Raises DamagedInput for the first fault, unless *faults* is set to
    keep going; ArchiveError if the disk is full; SettingError if sorting needs DuckDB and it is not installed.
    """
    folder, sorting, ordered = state.path / "clusters", state.path / "sorting", state.path / "sorted.txt"
    with writing(folder):
        folder.mkdir(exist_ok=True)
        if sorting.exists():  # left by a run that was killed
            shutil.rmtree(sorting)
        sorting.mkdir()
    if not ordered.exists():
        watch.begin("sorting", 0)
        with LineWriter(ordered, columns=_SUMS_COLUMNS) as writer:
            _write(writer, by_cluster(read_lines(sums), sorting))
        watch.end()
    watch.begin("comparing", size_bytes)
    total, paths = CollisionCounts(), []
    for index, lines in enumerate(_parts(read_lines(ordered))):
        name = f"clusters/{index:06}"
        path = state.path / f"{name}.txt"
        paths.append(path)
        known = state.read_json(f"{name}.json")
        if known is None:
            own, counts = Faults(keep_going=faults.keep_going), CollisionCounts()
            resolved = resolve_collisions(
                lines, places, faults=own, watch=watch, jobs=jobs, folder=sorting, counts=counts
            )
            with LineWriter(path, columns=_NUMBERED_COLUMNS, force=True) as writer:
                _write(writer, number(resolved, faults=own))
            known = {
                "counts": asdict(counts),
                "fault_count": own.count,
                "faults": [asdict(fault) for fault in own.first],
            }
            state.write_json(f"{name}.json", known)
        else:
            for line in lines:
                watch.advance(line.length)
        total.add(CollisionCounts(**known["counts"]))
        replay_faults(faults, known["fault_count"], [Fault(**fault) for fault in known["faults"]])
    watch.end()
    with LineWriter(output, columns=_NUMBERED_COLUMNS, force=True) as writer:
        _write(writer, read_all(paths))
    return total


def _parts(lines: Iterator[ManifestLine]) -> Iterator[Iterator[ManifestLine]]:
    """The lines in parts of whole digests. Iterate each part to its end before requesting the next one."""
    first = next(lines, None)

    def part() -> Iterator[ManifestLine]:
        nonlocal first
        count = size_bytes = 0
        while (line := first) is not None:
            yield line
            first = next(lines, None)
            count += 1
            size_bytes += line.length
            is_full = count >= _PART_LINES or size_bytes >= _PART_BYTES
            if is_full and first is not None and first.digest != line.digest:
                return

    while first is not None:
        yield part()


def _write(writer: LineWriter, lines: Iterable[ManifestLine]) -> None:
    for line in lines:
        writer.write(line)
