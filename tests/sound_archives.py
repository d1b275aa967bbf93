"""A check of an index that finds nothing, and a repair that makes the same entries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.comparison import IndexFinding, Thoroughness
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.repairing import repair

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex
    from scrapy_dedupe.crawls.checking import Check

RULES = RevisitRules()
URLS = [f"http://example.org/{path}" for path in ("", "%C3%A4%20b", *range(60))]


def state_of(index: CrawlIndex, crawl: str) -> object:
    entries = sorted(index.records(crawl), key=lambda entry: entry.digest)
    info = next(info for info in index.crawls() if info.id == crawl)
    captures = index.find_urls("another", URLS)
    return info.counts, info.waiting, info.files, entries, captures, index.needs(crawl)


def assert_sound(index: CrawlIndex, folder: Path, *, has_payloads: bool = False) -> tuple[Checker, Check]:
    """A check finds nothing. It may only note that revisits wait for a payload that is in no original."""
    checker = Checker(index, RULES, [folder], None, Thoroughness(has_payloads))
    check = checker.check()
    assert (check.findings, bool(check.notes)) == ([], any(info.waiting for info in index.crawls()))
    return checker, check


def assert_sound_and_repaired_alike(index: CrawlIndex, folder: Path, *, has_payloads: bool = False) -> None:
    """A check finds nothing, and a repair of all crawls makes the same entries again."""
    crawls = [info.id for info in index.crawls()]
    before = [state_of(index, crawl) for crawl in crawls]
    checker, check = assert_sound(index, folder, has_payloads=has_payloads)
    check.findings += [IndexFinding("counts", crawl, "Somebody wants them again.") for crawl in crawls]
    assert all(done.is_done for done in repair(checker, check))
    assert [state_of(index, crawl) for crawl in crawls] == before
    assert_sound(index, folder)
