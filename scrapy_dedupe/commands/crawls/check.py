"""``check [ID…]``: compares the crawl index with its files, and repairs it."""

from __future__ import annotations

import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.options import CRAWL_IDS, WARC_DIR, Option, flag
from scrapy_dedupe.commands.output import by_kind, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import KINDS, Thoroughness
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.errors import ArchiveError, UsageError
from scrapy_dedupe.reports.wording import counted, number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.crawls.repairing import Repair

# A repair can reveal a finding that another one had hidden.
_ROUNDS = 2


def _check(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
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
    with stores.open_index(create=opts.repair) as index, Bars(opts) as bars:
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
    return {
        **picked(check, "findings notes"),
        # Also the repairs that were not done, with the reason.
        "repairs": repairs,
        "crawls": [checked.id for checked in check.crawls],
        **picked(check, "passed_over files records"),
        "seconds": round(check.seconds, 3),
        # The number of entries of each crawl that were compared, None for all, and how they were chosen.
        "sample": opts.sample,
        "seed": None if opts.sample is None else seed,
    }


def _lines(result: dict[str, Any]) -> Iterator[str]:
    findings = result["findings"]
    yield from by_kind(findings, KINDS, attrgetter("sentence"))
    yield from (repair.sentence for repair in result["repairs"])
    yield from (f"Note: {note}" for note in result["notes"])
    yield from (f"The crawl {crawl} is running and was not checked." for crawl in result["passed_over"])
    crawls, records = counted(len(result["crawls"]), "crawl"), result["records"]
    if result["sample"] is not None:
        read = f"{counted(records, 'entry', 'entries')} of {crawls}, chosen with --seed {result['seed']}"
    else:
        read = f"{counted(records, 'page')} of {crawls} in {counted(result['files'], 'file')}"
    seconds = result["seconds"]
    speed = f", {number(round(records / seconds))}/s" if seconds else ""
    yield f"Checked {read}{speed}: {counted(len(findings), 'finding') if findings else 'nothing is wrong'}."


def _caveats(result: dict[str, Any]) -> Iterator[str]:
    count = len(result["findings"])
    if count and result["repairs"]:
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
    caveats=_caveats,
)
