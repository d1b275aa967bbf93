"""The part ``hostile`` of ``content.py``: pages that are made to keep a parser busy.

Each shape is checked in a separate process, which is killed at the time limit. Then the shapes are mixed with the
ordinary pages of a crawl. Two middlewares around the content middleware measure how long each page waits for its
verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from content_shared import Options, percent, quantile, sample_pages, sqlite_url, stop, table

from scrapy_dedupe.content import Deduplicator, Document

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE = 400_000
_TEXT = " ".join(f"This is sentence number {number} of an ordinary page." for number in range(40))


def repeated(piece: str) -> Callable[[], str]:
    return lambda: piece * (_SIZE // len(piece))


def attributes() -> str:
    return "<p " + " ".join(f"a{number}=1" for number in range(50_000)) + ">"


def formatting(count: int) -> str:
    """Elements that are reopened after each of as many wrong end tags (lexbor issue 340)."""
    bold = "".join(f"<b {number}>" for number in range(count))
    italic = "".join(f"<i {number}>" for number in range(count))
    return bold + italic + "x</b>" * count


def paragraphs() -> str:
    return "".join(
        f"<p>Paragraph {number} of a <b>large</b> page, nothing else.</p>\n" for number in range(6_500)
    )


SHAPES: dict[str, Callable[[], str]] = {
    "400 kB of paragraphs": paragraphs,
    "<div> nested": repeated("<div>"),
    "50,000 attributes": attributes,
    "<ul><li> nested": repeated("<ul><li>"),
    "<table><tr><td> nested": repeated("<table><tr><td>"),
    "<h1><div> nested": repeated("<h1><div>"),
    "</p> stray": repeated("</p>"),
    "<div> then </p>": lambda: "<div>" * (_SIZE // 9) + "</p>" * (_SIZE // 9),
    "<p><b> unclosed": repeated("<p><b>"),
    "<b><i> reopened, 29 kB": lambda: formatting(1_450),
    "<b><i> reopened, 400 kB": lambda: formatting(19_000),
    "<a><div> nested": repeated("<a><div>"),
    "<select><option>": lambda: "<select>" + "<option>" * (_SIZE // 8),
    "<svg><g> nested": lambda: "<svg>" + "<g>" * (_SIZE // 3),
    "<template> nested": repeated("<template>"),
    "<script> unclosed": repeated("<script>"),
    "<!-- unclosed": repeated("<!--"),
    "< alone": repeated("<"),
    "&amp; unended": repeated("&amp"),
    "combining marks": repeated("\u0323\u0301"),
}
GOALS = ("<div> nested", "50,000 attributes")


def page_of(shape: str, number: int = 0) -> str:
    """A page with an ordinary text, so that there is something to judge, followed by the shape."""
    return f"<!DOCTYPE html><title>Page {number}</title><p>{number} {_TEXT}</p>\n{SHAPES[shape]()}"


def hostile(options: Options) -> None:
    check_shapes(options)
    crawl_between(options)


# One check


def check_shapes(options: Options) -> None:
    rows = []
    for shape in SHAPES:
        found = run_limited(["--shape", shape], options.limit_s)
        if found is None:
            rows.append((shape, f"> {1000 * options.limit_s:,.0f}", "", "stopped", "100"))
        else:
            rows.append(
                (
                    shape,
                    f"{1000 * found['seconds']:,.0f}",
                    f"{1000 * found['pause']:,.0f}",
                    f"{found['kind']} {'' if found['reason'] is None else found['reason']}".strip(),
                    "100",
                )
            )
    table(
        f"hostile: one check of a page of 400 kB, ms; killed after {options.limit_s:g} s",
        ("", "takes", "longest pause of another thread", "verdict", "goal"),
        rows,
    )


def check_shape(shape: str) -> None:
    """Check one page in this process; print the duration, the longest pause of another thread, and the verdict."""
    pauses = [0.0]
    is_over = threading.Event()

    def measure_pauses() -> None:
        last = time.perf_counter()
        while not is_over.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            pauses[0] = max(pauses[0], now - last)
            last = now

    with (
        tempfile.TemporaryDirectory() as folder,
        Deduplicator(sqlite_url(folder, "h.sqlite")) as deduplicator,
    ):
        # A warm-up: the costs of the first use are not those of the page.
        deduplicator.check(Document("http://www.example/first", f"<p>{_TEXT[::-1]}</p>" * 20))
        document = Document("http://www.example/second", page_of(shape))
        clock = threading.Thread(target=measure_pauses, daemon=True)
        clock.start()
        print("ready", flush=True)
        begun = time.perf_counter()
        verdict = deduplicator.check(document)
        seconds = time.perf_counter() - begun
        is_over.set()
        clock.join()
    print(
        json.dumps({"seconds": seconds, "pause": pauses[0], "kind": verdict.kind, "reason": verdict.reason})
    )


def run_limited(arguments: list[str], limit_s: float, folder: Path | None = None) -> dict[str, Any] | None:
    """Run this script with *arguments*; return the JSON that it prints after the line "ready", None if it was killed."""
    script = Path(__file__).resolve().with_name("content.py")
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        # The first line comes when everything is imported; the second and last line fits into the pipe.
        process.stdout.readline()
        process.wait(timeout=limit_s)
    except BaseException as error:
        # Kill its child processes too: it has its own process group.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise
    with process.stdout:
        output = process.stdout.read()
    if process.returncode:
        raise stop(
            f"content.py {' '.join(arguments[:2])} ended with exit code {process.returncode}, see above."
        )
    return dict(json.loads(output.splitlines()[-1]))


# A crawl


def crawl_between(options: Options) -> None:
    ordinary = sample_pages(options, 200)
    copies = 2 if options.quick else 5
    limit_s = 10.0 if options.quick else 30.0
    mixtures: dict[str, list[str]] = {
        "ordinary pages alone": [],
        **{f"{copies} of {shape}": [shape] * copies for shape in GOALS},
        "each shape once": [shape for shape in SHAPES if shape != "400 kB of paragraphs"],
    }
    rows = []
    with tempfile.TemporaryDirectory() as work:
        site = Path(work, "site")
        site.mkdir()
        for number, page in enumerate(ordinary):
            (site / f"{number}.html").write_text(page.html, encoding="utf-8", errors="replace")
        with serving(site) as port:
            for turn, (name, shapes) in enumerate(mixtures.items()):
                urls = [f"http://127.0.0.1:{port}/{number}.html" for number in range(len(ordinary))]
                for number, shape in enumerate(shapes):
                    file = f"hostile-{turn}-{number}.html"
                    (site / file).write_text(page_of(shape, number), encoding="utf-8")
                    # Evenly distributed among the others, but not at the very end.
                    urls.insert(
                        (number + 1) * len(urls) // (len(shapes) + 2), f"http://127.0.0.1:{port}/{file}"
                    )
                place = Path(work, str(turn))
                place.mkdir()
                (place / "urls.txt").write_text("\n".join(urls))
                found = run_limited(["--crawl", str(place / "urls.txt")], limit_s, place)
                rows.append(crawl_row(name, found, limit_s, len(ordinary)))
    table(
        f"hostile: a crawl of {len(ordinary)} ordinary pages mixed with others; how long an ordinary page waits for its"
        "\nverdict, ms, and the longest pause of the event loop",
        (
            "between them",
            "judged",
            "p50",
            "p99",
            "longest",
            "goal",
            "loop",
            "goal",
            "verdicts on them",
            "crawl s",
        ),
        rows,
    )


def crawl_row(name: str, found: dict[str, Any] | None, limit_s: float, pages: int) -> tuple[str, ...]:
    if found is None:
        return (name, "", "", "", f"> {1000 * limit_s:,.0f}", "100", "", "100", "stopped", f"> {limit_s:g}")
    waits = found["waits"]
    if not waits:
        raise stop("No page of the crawl reached the middlewares: the crawl itself is broken.")
    return (
        name,
        percent(len(waits), pages),
        f"{1000 * quantile(waits, 0.5):.1f}",
        f"{1000 * quantile(waits, 0.99):.1f}",
        f"{1000 * max(waits):,.0f}",
        "100",
        f"{1000 * found['stall']:,.0f}",
        "100",
        ", ".join(f"{count} {kind}" for kind, count in sorted(found["hostile"].items())),
        f"{found['took']:.1f}",
    )


@contextlib.contextmanager
def serving(folder: Path) -> Any:
    """The port of a server of *folder*, in a separate process."""
    script = Path(__file__).resolve().with_name("content.py")
    server = subprocess.Popen(
        [sys.executable, str(script), "--serve", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.stdin.close()
        server.wait()


def serve(folder: str) -> None:
    """Serve *folder*; print the port; stop when standard input is closed."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass  # A killed crawl is not a fault of the server.

    server = Server(("127.0.0.1", 0), partial(Handler, directory=folder))
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


class Arrived:
    """The outer middleware: it records when a response arrives."""

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        request.meta["bench_arrived"] = time.perf_counter()
        return response


class Judged:
    """The inner middleware: it records when a response has its verdict."""

    waits: ClassVar[list[float]] = []
    hostile: ClassVar[Counter[str]] = Counter()

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        wait = time.perf_counter() - request.meta["bench_arrived"]
        if "/hostile-" in response.url:
            verdict = request.meta.get("dedupe")
            self.hostile["none" if verdict is None else f"{verdict.kind} {verdict.reason or ''}".strip()] += 1
        else:
            self.waits.append(wait)
        return response


def crawl(urls_file: str) -> None:
    """Run one crawl in this process and print its figures as JSON."""
    import scrapy
    from scrapy.crawler import AsyncCrawlerProcess

    print("ready", flush=True)
    urls = Path(urls_file).read_text().split()
    stalls = [0.0]

    async def measure_pauses() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            stalls[0] = max(stalls[0], now - last)
            last = now

    class PagesSpider(scrapy.Spider):
        name = "pages"

        async def start(self) -> Any:
            self.clock = asyncio.get_running_loop().create_task(measure_pauses())
            for url in urls:
                yield scrapy.Request(url)

        def parse(self, response: Any) -> None:
            # Does nothing: the benchmark measures the wait before the callback.
            pass

        def closed(self, reason: str) -> None:
            self.clock.cancel()

    process = AsyncCrawlerProcess(
        {
            "ADDONS": {"scrapy_dedupe.Addon": 500},
            "DEDUPE_URL_ENABLED": False,
            "DEDUPE_WARC_ENABLED": False,
            "DOWNLOADER_MIDDLEWARES": {Arrived: 544, Judged: 542},
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
            "REMOTE_CONTROL_ENABLED": False,
            "CONCURRENT_REQUESTS": 16,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "DOWNLOAD_DELAY": 0,
        }
    )
    process.crawl(PagesSpider)
    begun = time.perf_counter()
    process.start()
    took = time.perf_counter() - begun
    print(json.dumps({"waits": Judged.waits, "hostile": Judged.hostile, "stall": stalls[0], "took": took}))
