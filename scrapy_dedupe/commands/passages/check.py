"""``passages check``: read the whole index and report damage."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.figures import counted, number_text

from .root_folder import add_root, root_of
from .snippets import printable

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.commands.stores import CommandStores

HELP = (
    "Check the index: the sizes and checksums of its files, the order and ranges of their values, and whether every"
    " document has its text. The index is not changed."
)

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class PassageCheckResult:
    """The result of a check. *is_full*: all fingerprints were computed again and compared.

    *orphans* are files of a running or stopped writer. They are not a problem: the next writer removes them.
    """

    root: str
    problems: list[str]
    orphans: list[str]
    segments: int
    documents: int
    texts: int
    posts: int
    is_full: bool
    seconds: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root(parser)
    parser.add_argument(
        "--full",
        action="store_true",
        help="also compute all fingerprints again and compare them, which takes longer",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> PassageCheckResult:
    from scrapy_dedupe.passages.checking import check

    begin = time.monotonic()
    root = root_of(place, opts)
    with Bars(opts) as bars:
        found = check(root, opts.full, bars)
    return PassageCheckResult(
        str(root),
        list(found.problems),
        list(found.orphans),
        found.segments,
        found.documents,
        found.texts,
        found.posts,
        opts.full,
        round(time.monotonic() - begin, 3),
    )


def text(result: PassageCheckResult) -> str:
    lines = list(map(printable, result.problems[:_SHOWN]))
    if len(result.problems) > _SHOWN:
        lines.append(f"... and {number_text(len(result.problems) - _SHOWN)} more, listed by --json.")
    if result.orphans:
        names = printable(", ".join(result.orphans[:_SHOWN])) + (
            " and others" if len(result.orphans) > _SHOWN else ""
        )
        lines.append(
            f"Files of a running or stopped writer, which the next writer removes if it was stopped: {names}."
        )
    verdict = "no problems" if not result.problems else counted(len(result.problems), "problem")
    lines.append(
        f"Checked {result.root}: {counted(result.segments, 'segment')}, {counted(result.documents, 'document')},"
        f" {counted(result.texts, 'text')}, {counted(result.posts, 'post')} in {result.seconds:.1f} s: {verdict}."
    )
    return "\n".join(lines)


def caveat(result: PassageCheckResult) -> str | None:
    if not result.problems:
        return None
    problems = counted(len(result.problems), "problem")
    return f"The index has {problems}. Index the documents again into another folder, or restore a copy of this index."
