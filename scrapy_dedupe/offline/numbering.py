"""Choose the original of each cluster and number its copies (columns 8 to 10 of a manifest).

The original is the earliest capture; of equal dates, the first by file and offset. It gets copy number 1 and no
reference; the others get 2, 3, … and refer to its URI and date. Columns 8 to 10 of the input are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.ordering import clusters
from scrapy_dedupe.tasks.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def number(lines: Iterable[ManifestLine], *, faults: Faults | None = None) -> Iterator[ManifestLine]:
    """The *lines*, which must be sorted by cluster (`ordering.by_cluster`), with all ten columns.

    A line without an extension gets extension 1: its digest is trusted. If a record is listed twice, the second line is
    a fault and is left out, since the record would become a copy of itself.
    """
    faults = Faults() if faults is None else faults
    for _, cluster in clusters(lines):
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
            yield ManifestLine(
                line.file,
                line.offset,
                line.length,
                line.uri,
                line.date,
                line.digest,
                line.extension or 1,
                copy,
                None if is_original else original.uri,
                None if is_original else original.date,
            )
