"""``warcrefs MANIFEST… -o FOLDER``: rewrite the files with a revisit for every copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.offline.eligibility import DEFAULT_STATUSES, Eligibility

from . import verify
from .bars import Bars
from .figures import number_text, size_text
from .revisit_options import add_revisit_arguments

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.offline.rewriting import Rewritten

    from .stores import CommandStores

HELP = (
    "Rewrite the files of a manifest into a folder, with a revisit for every copy; then read both archives again and"
    " compare them."
)


_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "manifests",
        metavar="MANIFEST",
        nargs="+",
        type=Path,
        help="manifests of ten columns, from warcsumproc",
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, help="the folder for the new files")
    parser.add_argument(
        "--originals",
        metavar="MANIFEST",
        nargs="+",
        action="extend",
        default=[],
        type=Path,
        help="manifests that are only read for their originals; their files are not rewritten",
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder that contains the files of the manifest (may be repeated; default: the working folder)",
    )
    parser.add_argument(
        "--paths", metavar="MAP", type=Path, help="a file with the location of each file, in lines NAME PLACE"
    )
    parser.add_argument(
        "--files",
        metavar="NAME",
        nargs="+",
        action="extend",
        help="the files to rewrite, as the manifest names them, or patterns of such names (default: all)",
    )
    add_revisit_arguments(parser)
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="processes to use; 0: one for each core (default: 1)"
    )
    parser.add_argument("--force", action="store_true", help="replace existing files in FOLDER")


def run(place: CommandStores, opts: argparse.Namespace) -> Rewritten:
    from scrapy_dedupe.offline.manifest import read_all
    from scrapy_dedupe.offline.places import Places
    from scrapy_dedupe.offline.rewriting import RewriteOptions, rewrite
    from scrapy_dedupe.tasks.faults import Faults

    if opts.in_place and opts.output is not None:
        raise UsageError("--in-place replaces the files, and -o writes new ones. Give only one of them.")
    if opts.output is None and not (opts.dry_run or opts.in_place):
        raise UsageError("The new files need a folder. Name it with -o.")
    if opts.min_size < 0:
        raise UsageError(f"--min-size {opts.min_size} is not a size. Give a number of bytes of 0 or more.")
    if opts.sample < 0:
        raise UsageError(f"--sample {opts.sample} is not a number of revisits. Give a number of 0 or more.")
    options = RewriteOptions(
        Eligibility(opts.min_size, statuses_of(opts.status)),
        dry_run=opts.dry_run,
        in_place=opts.in_place,
        keep_going=opts.keep_going,
        jobs=opts.jobs,
        sample=opts.sample,
        force=opts.force,
    )
    faults = Faults(keep_going=opts.keep_going)
    with Bars(opts) as watch:
        return rewrite(
            read_all(opts.manifests, faults=faults),
            opts.files,
            Places(opts.root, opts.paths),
            opts.output or Path(),
            options,
            watch,
            originals=read_all(opts.originals, faults=faults),
            faults=faults,
        )


def statuses_of(words: list[str] | None) -> frozenset[int] | None:
    """The statuses in the values of ``--status``; None for all. Raises UsageError.

    >>> statuses_of(["200", "404"]) == {200, 404}, statuses_of(["all"])
    (True, None)
    """
    if not words:
        return DEFAULT_STATUSES
    if "all" in words:
        return None
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) == 3):
            raise UsageError(
                f"--status {word} is not an HTTP status. Give three digits, such as 200, or all."
            )
    return frozenset(map(int, words))


def text(result: Rewritten) -> str:
    from scrapy_dedupe.offline.plan import LEFT

    lines = [str(fault) for fault in result.faults[:_SHOWN]]
    if result.faults_count > _SHOWN:
        lines.append(f"... and {number_text(result.faults_count - _SHOWN)} more faults.")
    for title, savings in (("host", result.savings.hosts), ("MIME type", result.savings.types)):
        if savings:
            lines.append(f"Bytes to save by {title}:")
            lines += [
                f"  {size_text(saving.saved_bytes):>10}  {number_text(saving.records):>10}  {saving.name}"
                for saving in savings[:_SHOWN]
            ]
            if len(savings) > _SHOWN:
                lines.append(f"  ... and {number_text(len(savings) - _SHOWN)} more; --json lists all.")
    if result.left:
        lines.append("Copies not changed:")
        lines += [f"  {number_text(count):>10}  {LEFT[reason]}" for reason, count in result.left.items()]
    if result.unlisted:
        count = len(result.unlisted)
        files = "1 file" if count == 1 else f"{number_text(count)} files"
        lines.append(
            f"{files} in these folders {'is' if count == 1 else 'are'} in no manifest. If {'it refers' if count == 1 else 'they refer'}"
            " to copies that become revisits, these references will lead nowhere: name all files, including these, with --files."
        )
        lines += [f"  {name}" for name in result.unlisted[:_SHOWN]]
        if count > _SHOWN:
            lines.append(f"  ... and {number_text(count - _SHOWN)} more; --json lists all.")
    if result.verification is not None:
        lines.append(verify.text(result.verification))
    lines.append(_summary(result))
    return "\n".join(lines)


def _summary(result: Rewritten) -> str:
    files = "1 file" if result.files == 1 else f"{number_text(result.files)} files"
    is_one = result.converted == 1
    copies = "1 copy" if is_one else f"{number_text(result.converted)} copies"
    revisits = "a revisit" if is_one else "revisits"
    sizes = f"{size_text(result.old_bytes)} -> {size_text(result.new_bytes)}"
    if result.is_dry_run:
        return f"{files}: {copies} would become {revisits}, about {size_text(result.saved_bytes)} saved ({sizes})."
    others = f", {number_text(result.repointed)} other records were updated" if result.repointed else ""
    return f"{files}: {copies} became {revisits}{others}, {size_text(result.saved_bytes)} saved ({sizes})."


def caveat(result: Rewritten) -> str | None:
    if result.kept_in is not None:
        return (
            f"The verification failed, so the new files did not get their final names. They stay in {result.kept_in}; remove it"
            " to start again."
        )
    if result.faults_count:
        things = "1 fault" if result.faults_count == 1 else f"{number_text(result.faults_count)} faults"
        return f"{things} in the input; the damaged parts were copied unchanged."
    return verify.caveat(result.verification) if result.verification is not None else None
