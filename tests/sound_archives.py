"""A check of an index that finds nothing, and a repair that makes the same entries again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.checking import Checker
from scrapy_dedupe.crawls.findings import IndexFinding, Thoroughness
from scrapy_dedupe.crawls.repairing import repair
from scrapy_dedupe.crawls.rules import RevisitRules

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex

RULES = RevisitRules()
URLS = [f"http://example.org/{path}" for path in ("", "%C3%A4%20b", *range(60))]


def state_of(index: CrawlIndex, crawl: str) -> object:
    entries = sorted(index.records(crawl), key=lambda entry: entry.digest)
    info = next(info for info in index.crawls() if info.id == crawl)
    return info.counts, info.files, entries, index.find_urls("another", URLS), index.needs(crawl)


def waiting(index: CrawlIndex) -> list[int]:
    return [info.waiting for info in index.crawls()]


def assert_sound_and_repaired_alike(index: CrawlIndex, folder: Path, *, has_payloads: bool = False) -> None:
    """A check finds nothing, and a repair of all crawls makes the same entries again.

    A revisit of an imported archive may wait for a payload that is in no original. An import looks for the record that it
    names in the same file, a repair in all files of the crawl.
    """
    crawls = [info.id for info in index.crawls()]
    before, waited = [state_of(index, crawl) for crawl in crawls], waiting(index)
    checker = Checker(index, RULES, [folder], None, Thoroughness(has_payloads))
    check = checker.check()
    assert (check.findings, bool(check.notes)) == ([], any(waited))
    check.findings += [IndexFinding("counts", crawl, "Somebody wants them again.") for crawl in crawls]
    assert all(done.is_done for done in repair(checker, check))
    assert [state_of(index, crawl) for crawl in crawls] == before
    assert all(now <= earlier for now, earlier in zip(waiting(index), waited, strict=True))
    check = checker.check()
    assert (check.findings, bool(check.notes)) == ([], any(waiting(index)))
