"""``passages compact``: merge the segments of the index, without deleted documents."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, size_text

from .root_folder import add_root, root_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from scrapy_dedupe.commands.stores import CommandStores

HELP = (
    "Merge the segments of the index, and free the space of deleted documents. While it runs, it needs as much space again."
    " The index can be read meanwhile. If it is interrupted, the index is not changed."
)


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The size of the index before and after. *was_done* is False if the index was already compact."""

    root: str
    was_done: bool
    segments_before: int
    segments: int
    bytes_before: int
    size_bytes: int
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root(parser)


def run(place: CommandStores, opts: argparse.Namespace) -> CompactResult:
    from scrapy_dedupe.passages import PassageIndex

    begin = time.monotonic()
    root = root_of(place, opts)
    with Bars(opts) as bars, PassageIndex(root, create=False, command="passages compact") as index:
        index.watch = bars
        with index.writing():
            segments_before, bytes_before = _size(root)
            was_done = index.compact()
            segments, size_bytes = _size(root)
    seconds = round(time.monotonic() - begin, 3)
    return CompactResult(str(root), was_done, segments_before, segments, bytes_before, size_bytes, seconds)


def stopped(opts: argparse.Namespace) -> str:
    return "the index has the same documents as before"


def _size(root: Path) -> tuple[int, int]:
    """The number of segments, and the size of their files in bytes."""
    from scrapy_dedupe.passages.catalogue import read_manifest

    manifest = read_manifest(root)
    segments = () if manifest is None else manifest.segments
    return len(segments), sum(entry.posts_size + entry.blobs_size for entry in segments)


def text(result: CompactResult) -> str:
    if not result.was_done:
        return f"{result.root} is already compact."
    return (
        f"{result.root}: {counted(result.segments_before, 'segment')} with {size_text(result.bytes_before)} became"
        f" {counted(result.segments, 'segment')} with {size_text(result.size_bytes)}, in {result.seconds:.1f} s."
    )
