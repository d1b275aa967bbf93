"""The ``--root`` option, and the passage index that it names."""

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
    """Return the folder of the index: that of ``--root``, or that of the settings."""
    folder: Path | None = opts.root
    return place.settings.passages.root if folder is None else folder


def not_merged(index: PassageIndex) -> str | None:
    """Return the reason why small segments of *index* could not be merged, or None if there was no error."""
    error = index.merge_error
    return None if error is None else f"small segments could not be merged: {str(error).rstrip('.')}"


def opened(root: Path) -> IndexSnapshot:
    """Open a snapshot of the index. Raises StoreRefused if it cannot be used, for example due to another version."""
    from scrapy_dedupe.passages.snapshot import IndexSnapshot

    return IndexSnapshot.open(root)
