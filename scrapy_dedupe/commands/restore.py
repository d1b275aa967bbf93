"""``restore PATH… -o FOLDER``: convert revisits back to responses, with the payloads of their originals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError

from .figures import counted, number_text, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.offline.restoring import Restored

    from .stores import CommandStores

HELP = (
    "Undo warcrefs and dedupe: convert revisits back to responses, with the payloads of their originals, and revert"
    " changed references."
)

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", help="WARC files, or folders with WARC files")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        help="the folder for the restored files, which keep their names",
    )
    parser.add_argument(
        "--in-place", action="store_true", help="replace the changed files after all are verified"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        dest="all_writers",
        help="also restore the revisits of other programs, if the original is found",
    )
    parser.add_argument(
        "--originals",
        metavar="PATH",
        action="append",
        default=[],
        help="other files or folders to search for originals (may be repeated)",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="files to write at a time; 0: one for each core (default: 1)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="leave a revisit that cannot be restored unchanged, and continue",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files in FOLDER")


def run(place: CommandStores, opts: argparse.Namespace) -> Restored:
    from scrapy_dedupe.offline.restoring import RestoreOptions, restore

    from .bars import Bars

    if opts.in_place == (opts.output is not None):
        raise UsageError("Give either -o FOLDER or --in-place.")
    if opts.jobs < 0:
        raise UsageError(
            f"--jobs {opts.jobs} is not a number of jobs. Give 1 or more, or 0 for one for each core."
        )
    options = RestoreOptions(
        all_writers=opts.all_writers, jobs=opts.jobs, keep_going=opts.keep_going, force=opts.force
    )
    with Bars(opts) as watch:
        return restore(opts.paths, opts.output, originals=opts.originals, options=options, watch=watch)


def text(result: Restored) -> str:
    lines = [str(fault) for fault in result.faults[:_SHOWN]]
    if result.fault_count > _SHOWN:
        lines.append(f"... and {number_text(result.fault_count - _SHOWN)} more faults.")
    changed = f"{number_text(result.files_changed)} of {counted(result.files, 'file')}"
    if result.restored or result.repointed:
        lines.append(
            f"{counted(result.restored, 'revisit')} restored, references of {counted(result.repointed, 'other record')}"
            f" reverted, in {changed}; {size_text(result.bytes_before)} became {size_text(result.bytes_after)}. Verified."
        )
    else:
        lines.append(
            f"Nothing to restore: {counted(result.files, 'file')}, {size_text(result.bytes_before)}, without any record"
            " that warcrefs or dedupe has changed."
        )
    lines += [
        f"Not restored: {counted(count, 'revisit')} of other programs ({reason})."
        for reason, count in result.left.items()
    ]
    if result.not_ours:
        lines.append(
            f"Not restored: {counted(result.not_ours, 'record')} with Former- fields that warcrefs or dedupe did not write."
        )
    if result.output is not None:
        lines.append(f"The files are in {result.output}; the source files are unchanged.")
    elif result.files_changed:
        lines.append("The files were replaced.")
    return "\n".join(lines)


def caveat(result: Restored) -> str | None:
    parts = []
    if result.fault_count:
        places = "1 fault" if result.fault_count == 1 else f"{number_text(result.fault_count)} faults"
        parts.append(f"{places} in the input; the records concerned are unchanged")
    if result.left_revisits:
        parts.append(f"{counted(result.left_revisits, 'revisit')} of other programs not restored")
    return f"{'; '.join(parts)}." if parts else None
