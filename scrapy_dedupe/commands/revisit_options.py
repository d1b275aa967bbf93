"""The options of the verbs that write revisits: what becomes one, and what is proved of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.offline.eligibility import DEFAULT_MIN_SIZE

if TYPE_CHECKING:
    import argparse

DEFAULT_SAMPLE = 100


def add_revisit_arguments(parser: argparse.ArgumentParser) -> None:
    """``--min-size``, ``--status``, ``--dry-run``, ``--in-place``, ``--sample`` and ``--keep-going``."""
    parser.add_argument(
        "--min-size",
        metavar="N",
        type=int,
        default=DEFAULT_MIN_SIZE,
        help="leave records whose payload has fewer bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--status",
        metavar="N",
        action="append",
        help='the HTTP status of records that may become revisits, or "all" (may be repeated; default: 200)',
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be saved, by host and MIME type, and write nothing",
    )
    parser.add_argument(
        "--in-place", action="store_true", help="replace the files themselves, once all new ones are verified"
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        default=DEFAULT_SAMPLE,
        help="how many revisits the verification replays from the new files (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="pass over what is damaged, name it, and go on"
    )
