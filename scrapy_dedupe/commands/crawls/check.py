"""``check [ID…]``: compares the crawl index with its files, and repairs it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import CRAWL_IDS, WARC_DIR, Option, flag
from scrapy_dedupe.commands.output import as_json, by_kind, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.findings import KINDS, Thoroughness
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.reports.wording import counted, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls.checking import Check
    from scrapy_dedupe.crawls.repairing import Repair

# A repair can reveal a finding that another one had hidden.
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """The last check, and the repairs before it: what was repaired, or why it was not.

    ``sample`` is the number of entries of each crawl that were compared, chosen with ``seed``; None: all.
    """

    check: Check
    repairs: list[Repair]
    sample: int | None
    seed: int | None


def _check(stores: CommandStores, opts: argparse.Namespace) -> CheckedIndex:
    if opts.forget_missing and not opts.repair:
        raise UsageError("--forget-missing requires --repair.")
    if opts.repair and opts.sample is not None:
        raise UsageError(
            "--sample checks only some entries, so it cannot be combined with --repair. Use one of them."
        )
    if opts.seed is not None and opts.sample is None:
        raise UsageError("--seed requires --sample.")
    if opts.warc_dir is not None and not opts.warc_dir.is_dir():
        raise ArchiveError(
            f"{opts.warc_dir} is not a folder. Name the folder of the WARC files with --warc-dir."
        )
    seed = opts.seed if opts.seed is not None else secrets.randbelow(2**31)
    settings = stores.settings
    # A repair creates the index if it was lost.
    with (
        open_index(stores.index_url, timeout_s=stores.timeout_s, create=opts.repair) as index,
        Bars(opts) as bars,
    ):
        checker = Checker(
            index,
            stores.revisit_rules,
            [opts.warc_dir or settings.warc.folder],
            settings.wacz.folder,
            Thoroughness(opts.payloads, opts.sample, seed),
            bars,
        )
        check = checker.check(opts.ids)
        repairs: list[Repair] = []
        for _ in range(_ROUNDS if opts.repair else 0):
            if not check.findings:
                break
            done = repair(checker, check, forget_missing=opts.forget_missing)
            repairs += [made for made in done if made not in repairs]
            if not any(made.is_done for made in done):
                break
            check = checker.check(opts.ids)
    return CheckedIndex(check, repairs, opts.sample, None if opts.sample is None else seed)


def _as_json(result: CheckedIndex) -> dict[str, Any]:
    check = result.check
    return {
        **as_json(picked(check, "findings notes")),
        "repairs": as_json(result.repairs),
        "crawls": [checked.id for checked in check.crawls],
        **picked(check, "passed_over files records"),
        "seconds": round(check.seconds, 3),
        **picked(result, "sample seed"),
    }


def _lines(result: CheckedIndex) -> Iterator[str]:
    check = result.check
    yield from by_kind(check.findings, KINDS, attrgetter("sentence"))
    yield from (repair.sentence for repair in result.repairs)
    yield from (f"Note: {note}" for note in check.notes)
    yield from (f"The crawl {crawl} is running and was not checked." for crawl in check.passed_over)
    crawls = counted(len(check.crawls), "crawl")
    if result.sample is not None:
        read = f"{counted(check.records, 'entry', 'entries')} of {crawls}, chosen with --seed {result.seed}"
    else:
        read = f"{counted(check.records, 'page')} of {crawls} in {counted(check.files, 'file')}"
    seconds = round(check.seconds, 3)
    speed = f", {number(round(check.records / seconds))}/s" if seconds else ""
    verdict = counted(len(check.findings), "finding") if check.findings else "nothing is wrong"
    yield f"Checked {read}{speed}: {verdict}."


def _caveats(result: CheckedIndex) -> Iterator[str]:
    count = len(result.check.findings)
    if count and result.repairs:
        yield f"{counted(count, 'finding is', 'findings are')} left after the repair"
    elif count:
        yield (
            f"{counted(count, 'difference')} between the index and the files. --repair rebuilds the entries from the"
            " files"
        )


CHECK = Verb(
    _check,
    _lines,
    [
        CRAWL_IDS,
        flag(
            "--payloads",
            "hash every payload and every WACZ file instead of comparing the recorded digests (takes much longer)",
        ),
        Option(
            "--sample", "N", "compare N random entries of each crawl, but no revisits and counts", least=1
        ),
        Option("--seed", "S", "seed of the sample: the same seed selects the same entries", type=int),
        WARC_DIR,
        flag("--repair", "rebuild wrong entries from the files, then check again"),
        flag(
            "--forget-missing",
            "with --repair, also remove the entries of a crawl if none of its files is available",
        ),
    ],
    json=_as_json,
    caveats=_caveats,
)
