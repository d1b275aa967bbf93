"""Where the index of passages is that a verb speaks of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.place import Place


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add ``--root``."""
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=Path,
        help="the folder of the index (default: DEDUPE_PASSAGES_DIR)",
    )


def root_of(place: Place, opts: argparse.Namespace) -> Path:
    """The folder that ``--root`` names, or else the settings."""
    folder: Path | None = opts.root
    return place.settings.passages.root if folder is None else folder
