"""``verify BEFORE AFTER``: check that a deduplicated or restored archive lost nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import ArchiveError, SettingError

from .bars import Bars
from .figures import counted, number_text, size_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.offline.verifying import Verification

    from .stores import CommandStores

HELP = (
    "Read an archive before and after its deduplication, and verify that every record is accounted for and every revisit"
    " has its payload."
)

_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="BEFORE", type=Path, help="the original file or folder")
    parser.add_argument("after", metavar="AFTER", type=Path, help="the new file or folder")
    parser.add_argument(
        "--originals",
        metavar="PATH",
        action="append",
        default=[],
        help="other files to which revisits may refer: a file, a folder or a pattern; may be repeated",
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        default=100,
        help="replay N random new revisits, and compare their payloads byte by byte (default: 100)",
    )
    parser.add_argument(
        "--seed", metavar="S", type=int, help="use the same sample as an earlier run with seed S"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="processes that read (default: 1; 0: one for each core)",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="skip damaged places that both archives have, and count them",
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="folder for temporary data, about 300 bytes for each record (default: TMPDIR)",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> Verification:
    from scrapy_dedupe.offline.pairing import originals_of, pairs_of
    from scrapy_dedupe.offline.verifying import verify
    from scrapy_dedupe.tasks.jobs import job_count

    job_count(opts.jobs)
    if opts.sample < 0:
        raise SettingError(f"--sample {opts.sample} is not a number of revisits. Give a number of 0 or more.")
    pairs = pairs_of(opts.before, opts.after)
    originals = originals_of(opts.originals)
    if opts.work is not None and not opts.work.is_dir():
        raise ArchiveError(f"{opts.work} is not a folder. Name a folder with enough space with --work.")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="scrapy-dedupe-", dir=opts.work) as folder,
            Bars(opts) as watch,
        ):
            return verify(
                pairs,
                originals=originals,
                sample=opts.sample,
                seed=opts.seed,
                jobs=opts.jobs,
                work=Path(folder),
                watch=watch,
                keep_going=opts.keep_going,
            )
    except OSError as error:
        raise ArchiveError(
            f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}."
        ) from error


def text(result: Verification) -> str:
    from scrapy_dedupe.offline.findings import KINDS

    lines = []
    for kind, title in KINDS.items():
        found = [finding for finding in result.findings if finding.kind == kind]
        if not found:
            continue
        lines.append(f"{title[0].upper()}{title[1:]}: {number_text(len(found))}")
        lines += [f"  {finding}" for finding in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"  ... and {number_text(len(found) - _SHOWN)} more; --json lists all.")
    if result.findings_count > len(result.findings):
        lines.append(
            f"Only the first {number_text(len(result.findings))} of {number_text(result.findings_count)} findings are kept."
        )
    lines += [f"Damaged in both: {fault}" for fault in result.faults[:_SHOWN]]
    if result.faults_count > _SHOWN:
        lines.append(f"... and {number_text(result.faults_count - _SHOWN)} other damaged places.")
    lines += [f"Note: {note}" for note in result.notes[:_SHOWN]]
    if (more := result.by_digest + result.dangling_before + result.ambiguous - _SHOWN) > 0:
        lines.append(f"... and {number_text(more)} other revisits of this kind.")
    return "\n".join([*lines, *_summary(result)])


def _summary(result: Verification) -> list[str]:
    kinds = {
        "unchanged": result.unchanged,
        "converted to revisits": result.converted,
        "with changed references": result.repointed,
        "restored": result.restored,
        "with changed transfer chunks": result.rechunked,
        "converted from ARC": result.from_arc,
    }
    records = ", ".join(f"{number_text(count)} {name}" for name, count in kinds.items() if count)
    speed = f", {size_text(round(result.size_bytes / result.seconds))}/s" if result.seconds else ""
    files = "1 file" if result.files == 1 else f"{number_text(result.files)} files"
    lines = [f"{counted(result.records, 'record')} in {files}{speed}: {records or 'none'}."]
    revisits = f"{counted(result.resolved, 'revisit leads', 'revisits lead')} to {'its' if result.resolved == 1 else 'their'} payload"
    if result.dangling_before:
        revisits += f", {number_text(result.dangling_before)} led nowhere before either"
    lines.append(f"{revisits}.")
    if result.sample:
        lines.append(
            f"{number_text(result.replayed)} of {number_text(result.sample)} replayed byte for byte, with --seed {result.seed}."
        )
    verdict = "Nothing is lost." if not result.findings_count else _findings_text(result.findings_count)
    return [*lines, verdict]


def _findings_text(count: int) -> str:
    return "1 finding." if count == 1 else f"{number_text(count)} findings."


def caveat(result: Verification) -> str | None:
    if count := result.findings_count:
        things = "1 difference is" if count == 1 else f"{number_text(count)} differences are"
        return f"{things} not allowed. Do not delete the original files."
    if count := result.faults_count:
        places = "1 damaged place was" if count == 1 else f"{number_text(count)} damaged places were"
        return f"{places} skipped; both archives have the same bytes there."
    return None
