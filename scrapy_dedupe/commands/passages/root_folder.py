"""Where the index of passages is that a verb speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.passages import PassageIndex
    from scrapy_dedupe.passages.snapshot import IndexSnapshot


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add ``--root``."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        help="the folder of the index (default: DEDUPE_PASSAGES_DIR)",
    )


def root_of(place: CommandStores, opts: argparse.Namespace) -> Path:
    """The folder that ``--root`` names, or else the settings."""
    folder: Path | None = opts.root
    return place.settings.passages.root if folder is None else folder


def not_merged(index: PassageIndex) -> str | None:
    """Why the segments of an index that was written could not be merged, in words."""
    error = index.merge_error
    return None if error is None else f"small segments could not be merged: {str(error).rstrip('.')}"


def opened(root: Path) -> IndexSnapshot:
    """The index as it is now, to be closed. Raises StoreRefused for one that cannot be asked, as of another version."""
    from scrapy_dedupe.passages.snapshot import IndexSnapshot

    return IndexSnapshot.open(root)
