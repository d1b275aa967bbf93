"""Options of the commands that write revisits."""

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
        help="do not change records whose payload has fewer bytes (default: %(default)s)",
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
        help="report the bytes that would be saved, by host and MIME type, and write nothing",
    )
    parser.add_argument(
        "--in-place", action="store_true", help="replace the files after all new ones are verified"
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        default=DEFAULT_SAMPLE,
        help="number of new revisits that the verification replays (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="skip damaged places, report them, and continue"
    )
