"""The verbs that deduplicate WARC files on disk: their common options and sentences."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.options import DRY_RUN, Option, flag
from scrapy_dedupe.commands.output import first, listed
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.offline.eligibility import DEFAULT_MIN_SIZE, DEFAULT_STATUSES, Eligibility
from scrapy_dedupe.offline.manifest_lines import ALGORITHMS
from scrapy_dedupe.reports.wording import counted, number, size
from scrapy_dedupe.warc.remote import is_url, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.offline.eligibility import Savings


def _local_folder(text: str) -> Path:
    if is_url(text):
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is a URL. Name a folder; only dedupe writes to a URL."
        )
    return Path(text)


HASH: Final = Option(
    "-H --hash", None, "the digest algorithm (default: sha256)", choices=ALGORITHMS, default="sha256"
)
IN_PLACE: Final = flag("--in-place", "replace the files after all new ones are verified")
ORIGINALS: Final = Option(
    "--originals",
    "PATH",
    "other files or folders to which revisits may refer (repeatable)",
    action="append",
    default=[],
)
OUTPUT_FOLDER: Final = Option("-o --output", "FOLDER", "the folder for the new files", type=_local_folder)
PATHS_MAP: Final = Option(
    "--paths", "MAP", "a file with the places of files: lines NAME PLACE, or a JSON object", type=Path
)
ROOT: Final = Option(
    "--root",
    "DIR",
    "folder or URL of the files in the manifests (repeatable; default: .)",
    action="append",
    default=[],
)
SAMPLE: Final = Option(
    "--sample", "N", "number of new revisits to replay (default: %(default)s)", least=0, default=100
)
REVISITS: Final = (
    Option(
        "--min-size",
        "N",
        "leave payloads of fewer bytes unchanged (default: %(default)s)",
        least=0,
        default=DEFAULT_MIN_SIZE,
    ),
    Option(
        "--status",
        "N",
        'the HTTP status of possible revisits, or "all" (repeatable; default: 200)',
        action="append",
    ),
    DRY_RUN,
    IN_PLACE,
    SAMPLE,
)
"""The options of the verbs that write revisits."""


def eligibility_of(opts: argparse.Namespace) -> Eligibility:
    """Which records may become revisits, by :data:`REVISITS`."""
    statuses: frozenset[int] | None = DEFAULT_STATUSES
    if opts.status:
        for word in opts.status:
            if word != "all" and not (word.isascii() and word.isdigit() and len(word) == 3):
                raise UsageError(
                    f"--status {word} is not an HTTP status. Give three digits, such as 200, or all."
                )
        statuses = None if "all" in opts.status else frozenset(map(int, opts.status))
    return Eligibility(opts.min_size, statuses)


def check_target(opts: argparse.Namespace) -> None:
    """Raise UsageError unless the call names either a folder for new files or ``--in-place``."""
    if opts.in_place and opts.output is not None:
        raise UsageError("--in-place replaces the files, and -o writes new ones. Give only one of them.")
    if not (opts.in_place or opts.output is not None or getattr(opts, "dry_run", False)):
        raise UsageError(
            "Name a folder for the new files with -o FOLDER, or replace the files with --in-place."
        )


def continues(opts: argparse.Namespace) -> str:
    """The state of a stopped verb that continues when it is called again with the same arguments."""
    return "the same command continues where it stopped"


def left_files(below: int, are_open: Sequence[str]) -> Iterator[str]:
    """Lines about the number of files in subfolders, and about files that a crawl has open.

    >>> list(left_files(1, ["in/a.warc.gz.open"]))[1]
    '1 file that a crawl has open, or did not close, is left out: in/a.warc.gz.open.'
    """
    if below:
        yield f"{counted(below, 'WARC or ARC file')} in subfolders left out; -r includes them."
    if are_open:
        are = "are" if len(are_open) > 1 else "is"
        yield (
            f"{counted(len(are_open), 'file')} that a crawl has open, or did not close, {are} left out:"
            f" {listed(are_open)}."
        )


def savings_lines(savings: Savings) -> Iterator[str]:
    """The bytes that would be saved, by host and by MIME type."""
    for title, kind in (("host", savings.hosts), ("MIME type", savings.types)):
        if kind:
            yield f"Bytes to save by {title}:"
            rows = [f"{size(row.saved_bytes):>10} {number(row.records):>10}  {row.name}" for row in kind]
            yield from first(rows, indent="    ")
