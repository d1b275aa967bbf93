"""``check [ID…]``: compares the crawl index with its files, and repairs it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.findings import KINDS, IndexFinding, Thoroughness
from scrapy_dedupe.errors import ArchiveError, UsageError

from .bars import Bars
from .figures import counted, number_text

if TYPE_CHECKING:
    import argparse

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.checking import Check, Checker
    from scrapy_dedupe.crawls.repairing import Repair

    from .stores import CommandStores

HELP = (
    "Check the crawl index against the files: every entry points to its record, every revisit has an original, the counts"
    " are right, and the files that crawls need are present."
)

_SHOWN = 20
# A repair can reveal a finding that another one had hidden.
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings; after a repair, the remaining findings.

    ``records`` were read from ``files`` in ``seconds``. ``sample`` is the number of entries of each crawl that were
    compared, chosen with ``seed``; None: all. ``passed_over`` are running crawls, which are not checked. ``notes`` are
    sentences on checks that were not possible, ``repairs`` what was repaired, or why it was not.
    """

    findings: list[IndexFinding]
    notes: list[str]
    repairs: list[Repair]
    crawls: list[str]
    passed_over: list[str]
    files: int
    records: int
    seconds: float
    sample: int | None
    seed: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="the crawls to check, see `scrapy dedupe crawls` (default: all)"
    )
    parser.add_argument(
        "--payloads",
        action="store_true",
        help="hash every payload and every WACZ file instead of comparing the recorded digests (takes much longer)",
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        help="compare N random entries of each crawl; do not check revisits and counts",
    )
    parser.add_argument(
        "--seed", metavar="S", type=int, help="seed of the sample: the same seed selects the same entries"
    )
    parser.add_argument(
        "--warc-dir",
        metavar="DIR",
        type=Path,
        help="where to look for files that are not at the place in the index (default: DEDUPE_WARC_DIR)",
    )
    parser.add_argument(
        "--repair", action="store_true", help="rebuild wrong entries from the files, then check again"
    )
    parser.add_argument(
        "--forget-missing",
        action="store_true",
        help="with --repair, also remove the entries of a crawl if none of its files is available",
    )


def run(place: CommandStores, opts: argparse.Namespace) -> CheckResult:
    from scrapy_dedupe.crawls.checking import Checker
    from scrapy_dedupe.crawls.rules import RevisitRules

    if opts.forget_missing and not opts.repair:
        raise UsageError("--forget-missing requires --repair.")
    if opts.repair and opts.sample is not None:
        raise UsageError(
            "--sample checks only some entries, so it cannot be combined with --repair. Use one of them."
        )
    if opts.sample is not None and opts.sample < 1:
        raise UsageError(f"--sample {opts.sample} compares nothing. Give a number of at least 1.")
    if opts.seed is not None and opts.sample is None:
        raise UsageError("--seed requires --sample.")
    if opts.warc_dir is not None and not opts.warc_dir.is_dir():
        raise ArchiveError(
            f"{opts.warc_dir} is not a folder. Name the folder of the WARC files with --warc-dir."
        )
    seed = opts.seed if opts.seed is not None else secrets.randbelow(2**31)
    settings = place.settings
    warc = settings.warc
    rules = RevisitRules(warc.revisit, warc.min_size, warc.statuses, warc.mime_types)
    thoroughness = Thoroughness(opts.payloads, opts.sample, seed)
    with _open_index(place, is_made=opts.repair) as index:
        folders = [opts.warc_dir or warc.folder]
        with Bars(opts) as bars:
            checker = Checker(index, rules, folders, settings.wacz.folder, thoroughness, bars)
            result = checker.check(opts.ids)
            repairs: list[Repair] = []
            if opts.repair:
                result = _repair(checker, result, repairs, opts)
    return CheckResult(
        findings=result.findings,
        notes=result.notes,
        repairs=repairs,
        crawls=[checked.id for checked in result.crawls],
        passed_over=result.passed_over,
        files=result.files,
        records=result.records,
        seconds=round(result.seconds, 3),
        sample=opts.sample,
        seed=None if opts.sample is None else seed,
    )


def _open_index(place: CommandStores, *, is_made: bool) -> CrawlIndex:
    """Open the index. A repair creates it if it was lost."""
    return (
        open_index(place.index_url, timeout_s=place.timeout_s, create=True) if is_made else place.open_index()
    )


def _repair(checker: Checker, result: Check, repairs: list[Repair], opts: argparse.Namespace) -> Check:
    from scrapy_dedupe.crawls.repairing import repair

    for _ in range(_ROUNDS):
        if not result.findings:
            break
        done = repair(checker, result, forget_missing=opts.forget_missing)
        repairs += [made for made in done if made not in repairs]
        if not any(made.is_done for made in done):
            break
        result = checker.check(opts.ids)
    return result


def text(result: CheckResult) -> str:
    lines = []
    for kind, title in KINDS.items():
        found = [finding for finding in result.findings if finding.kind == kind]
        if not found:
            continue
        lines.append(f"{title[0].upper()}{title[1:]}: {number_text(len(found))}")
        lines += [f"  {finding.sentence}" for finding in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"  ... and {number_text(len(found) - _SHOWN)} more, which --json lists.")
    lines += [repair.sentence for repair in result.repairs]
    lines += [f"Note: {note}" for note in result.notes]
    lines += [f"The crawl {crawl} is running and was not checked." for crawl in result.passed_over]
    lines.append(_summary(result))
    return "\n".join(lines)


def _summary(result: CheckResult) -> str:
    crawls = "1 crawl" if len(result.crawls) == 1 else f"{number_text(len(result.crawls))} crawls"
    speed = f", {number_text(round(result.records / result.seconds))}/s" if result.seconds else ""
    if result.sample is not None:
        read = f"{counted(result.records, 'entry', 'entries')} of {crawls}, chosen with --seed {result.seed}"
    else:
        files = "1 file" if result.files == 1 else f"{number_text(result.files)} files"
        read = f"{counted(result.records, 'page')} of {crawls} in {files}"
    verdict = "nothing is wrong." if not result.findings else "1 finding."
    if len(result.findings) > 1:
        verdict = f"{number_text(len(result.findings))} findings."
    return f"Checked {read}{speed}: {verdict}"


def caveat(result: CheckResult) -> str | None:
    count = len(result.findings)
    if not count:
        return None
    if result.repairs:
        left = "1 finding is" if count == 1 else f"{number_text(count)} findings are"
        return f"{left} left after the repair."
    differences = "1 difference" if count == 1 else f"{number_text(count)} differences"
    return f"{differences} between the index and the files. --repair rebuilds the entries from the files."
