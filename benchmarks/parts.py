"""The processor time of each part of the work on a page, one page after another, without a crawl.

    python benchmarks/parts.py FOLDER [--pages 300] [--rounds 3]

FOLDER holds HTML files; the pages are chosen as in ``crawl.py``. Each round judges and records all pages with an empty
SQLite store and a new WARC file. Freed memory is kept, as in a crawl. The functions of a part are measured while they are
called by the others, whose own time is without theirs. The figures are microseconds per page: the mean of the minima of each
page. Compare with and without the C kernel by the environment variable ``SCRAPY_DEDUPE_KERNEL``.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crawl import pages_of
from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_dedupe import kernel
from scrapy_dedupe.content import (
    Judge,
    Page,
    candidates,
    canonical,
    markup,
    pages,
    signature,
    template,
)
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.live import memory, responses
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.warc import files, records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy_dedupe.content.pages import PageReading

DECODING = "decoding (by Scrapy, for the spider too)"
# The functions of each part, as the callers find them.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "declared encoding": [(responses, "has_charset")],
    "key of the page as received": [(Judge, "source_of"), (responses, "body_digest")],
    "text as UTF-8": [(canonical, "_tree"), (responses, "utf8_of")],
    "screen": [(markup, "rejection_reason")],
    "parsing, by lexbor": [(markup, "_parse"), (canonical, "parse")],
    "text of the tree": [(canonical, "_tree_text"), (canonical, "_read_html")],
    "clean-up": [(canonical, "_clean")],
    "SHA-256 of the text": [(pages, "text_digest")],
    "title and words of the URL": [
        (pages, "names_of"),
        (candidates, "identity_of"),
        (candidates, "marks_of"),
        (candidates.Candidates, "_beginning"),
    ],
    "shingle hashes": [(signature, "shingle_hashes")],
    "template: lookup and counting": [
        (template.TemplateGuard, name) for name in ("classify", "is_shared", "count")
    ],
    "rows, of template and rest": [(signature, "rows_of"), (signature, "rows_of_parts")],
    "band hashes": [(signature, "band_hashes")],
    "store": [],  # the methods of the store that is open
    "rest of the verdict": [(Judge, "read"), (Judge, "recall"), (Judge, "decide"), (Judge, "settle")],
    "copy of the exchange": [(responses, "capture_of")],
    "SHA-256 of the body": [(Capture, "payload_digest")],
    "response record, with the SHA-256 of its block": [(records, "response")],
    "request record": [(records, "request")],
    "compression, by libdeflate": [(files, "gzip_compress")],
    "file and crawl index": [(Recorder, "record")],
}


class Clock:
    """The time of the part that runs, without the parts that it calls."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0

    def _switch(self) -> None:
        now = time.process_time_ns()
        if self._running:
            self.spent[self._running[-1]] += now - self._since
        self._since = time.process_time_ns()

    def measured(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            self._switch()
            self._running.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._switch()
                self._running.pop()

        return run

    def measure(self, part: str, places: Iterable[tuple[Any, str]]) -> None:
        for owner, name in places:
            setattr(owner, name, self.measured(part, getattr(owner, name)))


class NeverAway:
    """The index answers always."""

    open = False

    def failed(self, error: BaseException) -> None:
        raise error

    def worked(self) -> None:
        pass


def measure(clock: Clock, bodies: list[bytes]) -> list[Counter[str]]:
    """The nanoseconds of each part, page by page."""
    found = []
    decoded = clock.measured(DECODING, lambda response: response.text)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/store.sqlite")
        store.index.start("parts", "stored")
        judge = Judge(store.content)
        clock.measure("store", [(store.content, name) for name in ("find", "claim", "recall", "settle")])
        recorder = Recorder(
            WarcWriter(folder, "parts", info={"software": "parts.py"}), store.index, "parts", NeverAway()
        )
        for number, body in enumerate(bodies):
            headers = {"Content-Type": "text/html", "Content-Length": str(len(body))}
            url = f"http://www.example/{number}.html"
            response = HtmlResponse(url, body=body, headers=headers, protocol="HTTP/1.1")
            clock.spent = Counter()
            responses.has_charset(response)
            capture = responses.capture_of(Request(url), response)
            source = judge.source_of(
                "html",
                response.encoding,
                responses.body_digest(response, {response: (capture.body, capture.payload_digest)}),
            )
            judge.recall([(url, "parts", source)])
            text = decoded(response)
            reading: PageReading = judge.read(
                Page(url, text, "parts", source=source, utf8=responses.utf8_of(response))
            )
            judged = judge.decide([reading])
            judge.settle([it.capture for it in judged if it.capture is not None])
            recorder.record(capture)
            found.append(clock.spent)
        recorder.writer.close()
        store.close()
    return found


def options_and_pages(description: str | None, rounds: int) -> tuple[argparse.Namespace, list[bytes]]:
    """The options of a benchmark of parts, with the default number of rounds, and its pages."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    return options, [(options.folder / name).read_bytes() for name in pages_of(options.folder, options.pages)]


def print_parts(
    bodies: Sequence[bytes], rounds: Sequence[Sequence[Counter[str]]], parts: Iterable[str]
) -> None:
    """Print the time of each part: the mean of the minima of each page. DECODING is not part of the sum."""
    print(f"{len(bodies)} pages of {statistics.mean(map(len, bodies)):,.0f} bytes, kernel: {kernel.NAME}")
    total = 0.0
    for part in parts:
        times = [min(spent[part] for spent in page) for page in zip(*rounds, strict=True)]
        time_us = statistics.mean(times) / 1000
        total += time_us if part != DECODING else 0
        print(f"{part:50}{time_us:8.0f}")
    print(f"{'all, without decoding':50}{total:8.0f}")


def main() -> None:
    options, bodies = options_and_pages(__doc__, rounds=3)
    memory.keep_freed_memory()
    clock = Clock()
    for part, places in PARTS.items():
        clock.measure(part, places)
    rounds = [measure(clock, bodies) for _ in range(options.rounds)]
    print_parts(bodies, rounds, (*PARTS, DECODING))


if __name__ == "__main__":
    main()
