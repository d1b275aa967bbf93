"""``urls learn``, ``check-rules`` and ``explain``: URL rules from committed crawls, and what they do."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request

from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.content.archive import Archive, Wanted
from scrapy_dedupe.commands.options import CRAWL_IDS, FORCE, WARC_DIR, Option
from scrapy_dedupe.commands.output import as_json, first, listed, picked
from scrapy_dedupe.commands.verbs import Verb
from scrapy_dedupe.errors import UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.reports.wording import clean, counted, number, percent, shortened, size
from scrapy_dedupe.tasks.outputs import check_output
from scrapy_dedupe.tasks.state import writing
from scrapy_dedupe.urls.learning import learn
from scrapy_dedupe.urls.rule_check import check_rules
from scrapy_dedupe.urls.rule_file import read_rules, rules_text

from .crawled_pages import CrawledPages

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_dedupe.commands.stores import CommandStores
    from scrapy_dedupe.urls.rule_check import LostPage

_SHOWN: Final = 20
_EXCERPT_CHARS: Final = 80
RULES: Final = Option("rules", "RULES", "a file of URL rules", type=Path)


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < 1:
            return value
    raise ArgumentTypeError(f"{text!r} is not a number between 0 and 1")


def _learn(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    output = None if opts.output == "-" else Path(opts.output)
    if output is not None:
        check_output(output, may_exist=opts.force, choices="or replace it with --force")
    with Bars(opts) as bars, CrawledPages(stores, opts.ids, opts.warc_dir, bars) as pages:
        facts = list(pages.facts())
        with bars.part("learn", 0, "rules"):
            rules = learn(facts, pages.nominated, min_pairs=opts.min_pairs, min_share=opts.min_share)
    text = rules_text(rules, "RULES" if output is None else output.name).encode()
    if output is None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    else:
        with writing(output):
            whole_file.replace(output, text, suffix=".tmp", durable=False)
    return {
        "file": opts.output,
        **picked(pages, "crawls damaged"),
        "pages": len({fact.url for fact in facts}),
        "rules": [{"rule": str(rule), **as_json(rule)} for rule in rules],
    }


def _learn_lines(result: dict[str, Any]) -> Iterator[str]:
    if result["file"] == "-":
        return
    rules = result["rules"]
    yield (
        f"{counted(len(rules), 'rule was', 'rules were')} learnt from {counted(result['pages'], 'URL')} of"
        f" {counted(len(result['crawls']), 'crawl')} and written to {result['file']}."
    )
    yield from first([_learnt(rule) for rule in rules], indent="  ")


def _learnt(rule: dict[str, Any]) -> str:
    evidence = rule["evidence"]
    if not rule["enabled"]:
        links = counted(evidence["canonical_links"], "canonical link")
        return f"{clean(rule['rule'])}: not enabled, since only {links} suggest it"
    return (
        f"{clean(rule['rule'])}: {counted(evidence['downloads'], 'download')} and {size(evidence['size_bytes'])} saved,"
        f" {number(evidence['pairs_for'])} pairs for it and {number(evidence['pairs_against'])} against it"
    )


def _damaged(result: dict[str, Any]) -> Iterator[str]:
    if result["damaged"]:
        yield f"Damaged places were skipped: {listed(result['damaged'], 3)}"


LEARN = Verb(
    _learn,
    _learn_lines,
    [
        CRAWL_IDS,
        Option(
            "-o", "FILE", "the file of rules to write; - is standard output", dest="output", required=True
        ),
        Option(
            "--min-pairs",
            "N",
            "propose a rule only if at least N pairs of URLs have the same text (default: %(default)s)",
            least=1,
            default=10,
        ),
        Option(
            "--min-share",
            "SHARE",
            "propose a rule only if the lower bound (95 %%) of the share of pairs with the same text is at least SHARE"
            " (default: %(default)s)",
            type=_share,
            default=0.98,
        ),
        WARC_DIR,
        FORCE,
    ],
    caveats=_damaged,
)


def _check_rules(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    rules = read_rules(opts.rules)
    with Bars(opts) as bars:
        with CrawledPages(stores, opts.ids, opts.warc_dir, bars) as pages:
            found = check_rules(rules, map(pages.of_crawl, pages.crawls))
        excerpts = _excerpts(found.lost[:_SHOWN], stores, opts, pages.crawls, bars)
    return {
        "file": str(opts.rules),
        **picked(pages, "crawls damaged"),
        **picked(found, "pages filtered saved saved_bytes"),
        "rules": [
            {
                "rule": str(rule),
                **picked(tally, "precision pairs_for pairs_against downloads size_bytes"),
            }
            for rule, tally in found.rules
        ],
        "lost": [
            {
                **picked(page, "url requested"),
                "digest": page.text.hex(),
                "text": excerpts.get(page.url),
                "rules": list(map(str, page.rules)),
            }
            for page in found.lost
        ],
    }


def _excerpts(
    lost: list[LostPage], stores: CommandStores, opts: argparse.Namespace, crawls: list[str], bars: Bars
) -> dict[str, str]:
    """The beginnings of the texts of lost pages, by their URLs, as far as the archive has them."""
    wanted = [Wanted(page.text, page.url, crawl) for page in lost for crawl in crawls]
    found = Archive(stores, opts.warc_dir, bars).find(wanted)
    return {
        item.url: shortened(clean(text.text), _EXCERPT_CHARS)
        for item, text in found.items()
        if not isinstance(text, str)
    }


def _check_rules_lines(result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{counted(result['saved'], 'download')} of {number(result['pages'])} and {size(result['saved_bytes'])} would have"
        f" been saved in {counted(len(result['crawls']), 'crawl')}."
    )
    yield f"{'precision':>9} {'saved':>9} {'different':>9}  rule"
    for item in result["rules"]:
        precision = (
            "-"
            if item["precision"] is None
            else percent(item["pairs_for"], item["pairs_for"] + item["pairs_against"])
        )
        counts = " ".join(f"{number(item[name]):>9}" for name in ("downloads", "pairs_against"))
        yield f"{precision:>9} {counts}  {clean(item['rule'])}"
    if result["lost"]:
        yield f"{counted(len(result['lost']), 'page')} would have been lost:"
        yield from first([_lost(page) for page in result["lost"]], indent="  ")


def _lost(page: dict[str, Any]) -> str:
    text = f": {page['text']}" if page["text"] else ""
    return f"{clean(page['url'])} (equated with {clean(page['requested'])} by {clean(', '.join(page['rules']))}){text}"


def _check_rules_caveats(result: dict[str, Any]) -> Iterator[str]:
    if result["lost"]:
        lost = counted(len(result["lost"]), "page")
        yield f"{lost} would have been lost. Change these rules, or turn them off with enabled = false"
    yield from _damaged(result)


CHECK_RULES = Verb(
    _check_rules, _check_rules_lines, [RULES, CRAWL_IDS, WARC_DIR], caveats=_check_rules_caveats
)


def _explain(stores: CommandStores, opts: argparse.Namespace) -> dict[str, Any]:
    path = opts.rules or stores.settings.urls.rules
    if path is None:
        raise UsageError("No URL rules are given. Name a file with --rules or the setting DEDUPE_URL_RULES.")
    rules = read_rules(path)
    try:
        url = Request(opts.url).url
    except ValueError as error:
        raise UsageError(f"{opts.url!r} is not a URL that can be requested: {error}.") from error
    identity, applied = rules.identity(url)
    return {
        "file": str(path),
        "url": url,
        "identity": identity,
        "rules": [{"rule": str(rule), **as_json(rule)} for rule in applied],
    }


def _explain_lines(result: dict[str, Any]) -> Iterator[str]:
    yield f"URL       {clean(result['url'])}"
    yield f"Identity  {clean(result['identity'])}"
    if not result["rules"]:
        yield f"No rule in {result['file']} changes it."
    for item in result["rules"]:
        yield f"Rule      {clean(item['rule'])}"


EXPLAIN = Verb(
    _explain,
    _explain_lines,
    [
        Option("url", "URL", "the URL"),
        Option("--rules", "FILE", "the file of URL rules (default: DEDUPE_URL_RULES)", type=Path),
    ],
    store_option=None,
)
