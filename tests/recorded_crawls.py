"""Small crawls that are recorded without Scrapy: real files, and an index that knows them."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scrapy_dedupe.crawls.packing import drop_warc_files, pack_crawl
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.warc.capture import Capture, Rendering
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex


class OpenGuard:
    """A store that always answers; what it fails at fails the test."""

    open = False

    def failed(self, error: BaseException) -> None:
        raise error

    def worked(self) -> None:
        pass


def page(number: int) -> Capture:
    """A page; each number has its own payload."""
    return Capture(
        url=f"http://example.org/{number}",
        method="GET",
        status=200,
        date=datetime.now(UTC),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=b"%d" % number * 2_000,
    )


def rendered(number: int) -> Capture:
    """A page as a browser shows it."""
    shown = page(number)
    body = b"<html><body>" + shown.body + "Größe</body></html>".encode()
    return replace(shown, body=body, rendering=Rendering("flag playwright", is_html=True))


def record_crawl(
    index: CrawlIndex,
    folder: Path,
    crawl: str,
    pages: Iterable[int | Capture],
    *,
    in_wacz: bool = False,
    commit: bool = True,
    concurrent: bool = False,
) -> list[Path]:
    """Record a crawl in ``folder/CRAWL``; its WARC files, or its WACZ in *folder*, which has them alone."""
    index.start(crawl, concurrent=concurrent)
    index.mark_incomplete(crawl, True)
    warcs = folder / crawl
    writer = WarcWriter(
        warcs,
        crawl,
        info={"isPartOf": crawl},
        on_new_file=lambda name: index.add_file(crawl, str(warcs / name)),
    )
    recorder = Recorder(writer, index, crawl, OpenGuard())
    for each in pages:
        recorder.record(page(each) if isinstance(each, int) else each)
    files = recorder.finish()
    done = None
    if in_wacz:
        done = pack_crawl(index, crawl, warcs, folder, lambda record: None, software="test", has_text=False)
        assert done is not None
    if commit:
        index.commit(crawl)
    time.sleep(0.002)  # so that no two crawls of a test have one time; those are kept in milliseconds
    if done is None:
        return files
    drop_warc_files(index, done)
    return [done.wacz.path]
