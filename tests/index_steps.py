"""Crawls and imports of a few records, and what happens in front of a script of the Redis store."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy_dedupe.stores.base import Counts, Original, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

HOME = "https://example.com/"
HASH = "f" * 64
DATE = "20260801120000"


class Killed(BaseException):
    """The end of a process."""


def record(digest: str, crawl: str = "a", file: str = "x.warc.gz", **changes: Any) -> Original:
    return Original(digest, crawl, DATE, HOME, 1_000, file=file, offset=77, **changes)


def source(name: str = "a.wacz", crawl: str = "a") -> Source:
    return Source(name, crawl, f"/archives/{name}", True, HASH, 5_000)


def crawl_with(index: CrawlIndex, crawl: str, *digests: str) -> None:
    index.start(crawl, "stored")
    index.add(crawl, [record(digest, crawl) for digest in digests], Counts(len(digests), 0, 0, 10))
    index.commit(crawl)


def import_of(index: CrawlIndex, of: Source, *digests: str) -> None:
    index.begin_source(of, "stored")
    index.add_imported(of, [record(digest, of.crawl, f"{of.place}/x.warc.gz") for digest in digests])
    index.end_source(of, Counts(len(digests), 0, 0, 5_000))


@contextmanager
def before_script(index: Any, script: str, act: Callable[[], object]) -> Iterator[None]:
    """Let something happen once in front of the next call of a script."""
    run, has_acted = index._run, False

    def acting(name: str, *arguments: Any) -> Any:
        nonlocal has_acted
        if name == script and not has_acted:
            has_acted = True
            act()
        return run(name, *arguments)

    index._run = acting
    try:
        yield
    finally:
        index._run = run
    assert has_acted


def kill() -> None:
    raise Killed
