"""The cost of a second crawl: without a cache, with Scrapy's own cache storage, and with the archive as cache.

The variant "only Scrapy" does not use this package, except for what it changes for the whole process: its cache reads the
pages from FOLDER. This is what the downloads, the cache policy and the spider cost.

    python benchmarks/recrawl.py FOLDER… [--pages 2000] [--changed 33] [--rounds 2]

FOLDER holds HTML files. A separate process serves them with ETag and Last-Modified, and counts the bytes that it sends.
For the second crawl every 33rd page has changed. Each variant crawls twice in an own folder, each crawl in a new process.
As in ``crawl.py``, the crawls use one processor and the server another.
The figures are the best of the rounds: CPU milliseconds per page after the startup, and bytes received, as shares of the
first crawl. The last column is the share of the first crawl with the archive as cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from email.utils import formatdate
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from crawl import pages_of, use_processors

MODIFIED_S = 1_790_000_000
RFC2616 = "scrapy.extensions.httpcache.RFC2616Policy"
VARIANTS: dict[str, dict[str, Any]] = {
    "no cache": {},
    "Scrapy's storage": {"HTTPCACHE_ENABLED": True, "HTTPCACHE_POLICY": RFC2616},
    "the archive": {"DEDUPE_HTTPCACHE": True},
    "only Scrapy": {
        "ADDONS": {},
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_POLICY": RFC2616,
        "HTTPCACHE_STORAGE": "recrawl.FolderStorage",
    },
}


class FolderStorage:
    """A storage for Scrapy's cache that has the pages of a folder as the server first sent them, if it has any."""

    def __init__(self, settings: Any) -> None:
        self._folder: str | None = settings["RECRAWL_FOLDER"]
        self._tags: dict[str, str] = {}

    def open_spider(self, spider: Any) -> None:
        if self._folder is not None:
            for name in spider.names:
                self._tags[name] = tag_of(Path(self._folder, name).read_bytes())

    def close_spider(self, spider: Any) -> None:
        pass

    def retrieve_response(self, spider: Any, request: Any) -> Any:
        from scrapy.http import HtmlResponse

        if self._folder is None:
            return None
        name = request.url.split("/", 3)[3]
        headers = {
            "Content-Type": "text/html",
            "ETag": self._tags[name],
            "Last-Modified": formatdate(MODIFIED_S, usegmt=True),
            "Cache-Control": "max-age=0",
        }
        return HtmlResponse(request.url, headers=headers, body=Path(self._folder, name).read_bytes())

    def store_response(self, spider: Any, request: Any, response: Any) -> None:
        pass


def tag_of(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def serve(folder: str, urls_file: str, changed: int, with_validators: bool) -> None:
    """Serve the pages and print the port. ``/_change`` changes some pages; ``/_sent`` answers the bytes sent."""
    names = {f"/{name}": number for number, name in enumerate(Path(urls_file).read_text().splitlines())}
    state = {"sent": 0, "version": 0}

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path in ("/_change", "/_sent"):
                state["version"] += self.path == "/_change"
                self.answer(200, str(state["sent"]).encode(), [], is_counted=False)
                return
            number = names.get(self.path)
            if number is None:
                self.answer(404, b"", [])
                return
            body = Path(folder, self.path[1:]).read_bytes()
            version = state["version"] if number % changed == 0 else 0
            if version:
                body += b"<p>This page was changed by its author, who added a sentence."
            tag = tag_of(body)
            modified = formatdate(MODIFIED_S + version, usegmt=True)
            headers = [("ETag", tag), ("Last-Modified", modified), ("Cache-Control", "max-age=0")]
            if with_validators and self.headers.get("If-None-Match") == tag:
                self.answer(304, b"", headers)
            else:
                self.answer(200, body, headers if with_validators else [])

        def answer(
            self, status: int, body: bytes, headers: list[tuple[str, str]], *, is_counted: bool = True
        ) -> None:
            lines = [f"HTTP/1.1 {status} X", f"Date: {formatdate(usegmt=True)}", "Content-Type: text/html"]
            lines += [f"{name}: {value}" for name, value in headers]
            if status != 304:
                lines.append(f"Content-Length: {len(body)}")
            data = "\r\n".join([*lines, "", ""]).encode() + body
            if is_counted:
                state["sent"] += len(data)
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def crawl(settings: dict[str, Any], urls_file: str, base: str) -> None:
    """Run one crawl in this process and print its figures as JSON."""
    import scrapy
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess

    all_names = Path(urls_file).read_text().splitlines()
    items: dict[str, tuple[str, str]] = {}

    class PagesSpider(scrapy.Spider):
        name = "pages"
        names = all_names

        async def start(self) -> Any:
            for name in self.names:
                yield scrapy.Request(f"{base}/{name}")

        def parse(self, response: Any) -> Any:
            links = len(response.css("a::attr(href)").getall())
            verdict = response.meta.get("dedupe")
            items[response.url] = (
                f"{links} {hashlib.md5(response.body).hexdigest()}",
                str(verdict and verdict.kind),
            )

    startup: list[float] = []

    def tune() -> None:
        from scrapy_dedupe.live import memory

        memory.keep_freed_memory()
        memory.freeze_for_crawl()

    def started() -> None:
        startup.append(time.process_time())

    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(PagesSpider)
    if not settings.get("ADDONS"):
        # As in the other variants.
        crawler.signals.connect(tune, signal=signals.engine_started)
    crawler.signals.connect(started, signal=signals.engine_started)
    process.crawl(crawler)
    process.start()
    assert crawler.stats is not None
    stats = {
        key: value
        for key, value in crawler.stats.get_stats().items()
        if key.startswith(("dedupe/", "httpcache/", "log_count/ERROR"))
    }
    cpu_s = time.process_time() - startup[0]
    print(json.dumps({"startup_s": startup[0], "cpu_s": cpu_s, "items": items, "stats": stats}))


def run(*words: str, cwd: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(
    folder: Path, names: str, changed: int, variant: str, with_validators: bool
) -> list[dict[str, Any]]:
    """Return the figures of both crawls of a variant."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    use_processors(processors[1:])
    words = ["--serve", str(folder), names, str(changed), str(int(with_validators))]
    server = subprocess.Popen(
        [sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    use_processors(processors[:1])
    base = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    settings = {
        "LOG_LEVEL": "WARNING",
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "CONCURRENT_REQUESTS": 16,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_DELAY": 0,
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_GC_FREEZE": True,
        **VARIANTS[variant],
    }
    crawls = []
    with tempfile.TemporaryDirectory() as work:
        for number in range(2):
            if number and variant == "only Scrapy":
                settings["RECRAWL_FOLDER"] = str(folder.absolute())
            before = int(urlopen(f"{base}/_sent").read())
            figures = run("--crawl", json.dumps(settings), names, base, cwd=work)
            figures["received"] = int(urlopen(f"{base}/_sent").read()) - before
            figures["archive"] = sum(path.stat().st_size for path in Path(work, "warcs").glob("*"))
            figures["items"] = {url.removeprefix(base): item for url, item in figures["items"].items()}
            crawls.append(figures)
            urlopen(f"{base}/_change").read()
    server.communicate()
    use_processors(processors)
    return crawls


def main() -> None:
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "1")
        return
    if sys.argv[1] == "--crawl":
        crawl(json.loads(sys.argv[2]), *sys.argv[3:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--pages", type=int, default=2_000)
    parser.add_argument("--changed", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--no-validators", action="store_true", help="the server sends neither ETag nor Last-Modified"
    )
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w") as names:
        for folder in options.folders:
            pages = pages_of(folder, options.pages)
            names.seek(0)
            names.truncate()
            names.write("\n".join(pages))
            names.flush()
            print(f"{folder}: {len(pages)} pages")
            expected: Any = None
            best: dict[str, tuple[float, float]] = {}
            for _ in range(options.rounds):
                for variant in VARIANTS:
                    first, second = measure(
                        folder, names.name, options.changed, variant, not options.no_validators
                    )
                    expected = expected or second["items"]
                    # There are no verdicts without this package.
                    compared = 1 if variant == "only Scrapy" else 2
                    wrong = [
                        (url, item, second["items"].get(url))
                        for url, item in expected.items()
                        if second["items"].get(url, [])[:compared] != item[:compared]
                    ]
                    ms = [1000 * figures["cpu_s"] / len(pages) for figures in (first, second)]
                    known = best.get(variant, (1e9, 1e9))
                    best[variant] = min(known[0], ms[0]), min(known[1], ms[1])
                    print(
                        f"  {variant:17} received {second['received'] / first['received']:6.1%}"
                        f"  archive grew by {(second['archive'] - first['archive']) / (first['archive'] or 1):6.1%}"
                        f"  startup {second['startup_s']:.2f} s, CPU {ms[0]:.2f} -> {ms[1]:.2f} ms"
                        f"  different items {len(wrong)}  {second['stats'].get('log_count/ERROR', 0)} errors",
                        *wrong[:3],
                    )
            for variant, (one, two) in best.items():
                share = two / best["the archive"][0]
                print(
                    f"  {variant:17} best: {one:.2f} -> {two:.2f} ms per page ({two / one:.2f}x, {share:.2f}x)"
                )


if __name__ == "__main__":
    main()
