"""The cost of a crawl: plain Scrapy, each single layer, and all three layers, compared in one run.

    python benchmarks/crawl.py FOLDER… [--pages 2000] [--rounds 3] [--store sqlite:///…|redis://…]
        [--only archive]

FOLDER holds HTML files, such as those of a ``*-doc`` package of Debian under /usr/share/doc. They are served on
127.0.0.1 by a separate process. Each round runs every variant once per folder, one after another, each in new processes.
Where the system allows it, the crawls use one processor and the servers another: otherwise the threads of a crawl slow
each other down, because they share caches, and the figures depend on the machine. The figures are the medians of the
rounds:

- *Startup*: CPU milliseconds of a process that crawls one page, including the imports, from compiled modules.
- *CPU*: CPU milliseconds of each further page, of all threads. *Total*: of the whole crawl, divided by its pages.
- *p50* and *p99*: milliseconds from the end of the download until the engine has the response.

Each ratio compares with plain Scrapy. Unless a variant says otherwise, ``DEDUPE_GC_FREEZE`` is enabled, as in ``scrapy
crawl``. "plain, tuned" is plain Scrapy with what this package changes for the whole process: that setting, and the limits
of malloc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variant:
    """``settings`` of this package; None for plain Scrapy."""

    settings: dict[str, Any] | None
    environment: dict[str, str] = field(default_factory=dict)
    is_frozen: bool = True


PLAIN = "plain Scrapy"
VARIANTS = {
    PLAIN: Variant(None, is_frozen=False),
    "plain, tuned": Variant(None),
    "urls": Variant({"DEDUPE_CONTENT_ENABLED": False, "DEDUPE_WARC_ENABLED": False}),
    "content": Variant({"DEDUPE_URL_ENABLED": False, "DEDUPE_WARC_ENABLED": False}),
    "archive": Variant({"DEDUPE_URL_ENABLED": False, "DEDUPE_CONTENT_ENABLED": False}),
    "all three": Variant({}),
    "all, not frozen": Variant({}, is_frozen=False),
}
if find_spec("scrapy_dedupe._kernel") is not None:
    VARIANTS["all, no kernel"] = Variant({}, {"SCRAPY_DEDUPE_KERNEL": "no"})


def serve(folder: str) -> None:
    """Serve *folder* and print the port. Ends when standard input is closed."""

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def crawl(settings: dict[str, Any], urls_file: str, pages: int, tuned: str) -> None:
    """Run one crawl in this process and print its figures as JSON."""
    import scrapy
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess

    urls = Path(urls_file).read_text().split()[:pages]
    latencies: list[float] = []
    downloaded: dict[scrapy.Request, float] = {}

    class PagesSpider(scrapy.Spider):
        name = "pages"

        async def start(self) -> Any:
            self.crawler.signals.connect(self.downloaded, signal=signals.response_downloaded)
            self.crawler.signals.connect(self.received, signal=signals.response_received)
            # The other pages are requested from a callback: default start requests would bypass the dupefilter.
            yield scrapy.Request(urls[0], callback=self.parse_first, dont_filter=True)

        def parse_first(self, response: Any) -> Any:
            for url in urls[1:]:
                yield scrapy.Request(url)
            yield from self.parse(response)

        def parse(self, response: Any) -> Any:
            # Extract links, as a real spider does.
            yield {"url": response.url, "links": len(response.css("a::attr(href)").getall())}

        def downloaded(self, request: scrapy.Request) -> None:
            downloaded[request] = time.perf_counter()

        def received(self, request: scrapy.Request) -> None:
            latencies.append(time.perf_counter() - downloaded.pop(request))

    def tune() -> None:
        from scrapy_dedupe.live import memory

        memory.keep_freed_memory()
        memory.freeze_for_crawl()

    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(PagesSpider)
    if tuned:
        crawler.signals.connect(tune, signal=signals.engine_started)
    process.crawl(crawler)
    wall = time.perf_counter()
    process.start()
    wall = time.perf_counter() - wall
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    quantiles = statistics.quantiles(latencies, n=100) if pages > 1 else [0.0] * 99
    figures = {
        "pages": stats.get("response_received_count", 0),
        "cpu_s": time.process_time(),
        "wall_s": wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "p50_ms": 1000 * quantiles[49],
        "p99_ms": 1000 * quantiles[98],
        "stats": {
            key: value for key, value in stats.items() if key.startswith(("dedupe/", "log_count/ERROR"))
        },
    }
    print(json.dumps(figures))


def pages_of(folder: Path, count: int) -> list[str]:
    """Return the paths of up to *count* HTML files below *folder*, always the same, in random order.

    Every nth file would not do: the files of several manuals can take turns in a folder.
    """
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.htm*") if path.is_file())
    random.Random(1).shuffle(found)
    return found[:count]


def use_processors(numbers: list[int]) -> None:
    """Let this process and the processes that it starts from now on use only these processors. Empty: no change."""
    if numbers:
        os.sched_setaffinity(0, numbers)


class Site:
    """A folder that a separate process serves, with the figures of its crawls: a list per variant."""

    def __init__(self, folder: Path, pages: int, urls: Path) -> None:
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        port = self.server.stdout.readline().strip()
        names = pages_of(folder, pages)
        self.pages = len(names)
        self.urls = urls
        urls.write_text("\n".join(f"http://127.0.0.1:{port}/{name}" for name in names))
        self.figures: dict[str, list[dict[str, Any]]] = {}

    def close(self) -> None:
        self.server.communicate()

    def run(self, variant: Variant, pages: int, work: Path, store: str | None) -> dict[str, Any]:
        """Crawl *pages* pages in a new process; return its figures."""
        settings: dict[str, Any] = {
            "LOG_LEVEL": "ERROR",
            "TELNETCONSOLE_ENABLED": False,
            "REMOTE_CONTROL_ENABLED": False,
            "CONCURRENT_REQUESTS": 16,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "DOWNLOAD_DELAY": 0,
        }
        if variant.settings is not None:
            settings |= {"ADDONS": {"scrapy_dedupe.Addon": 500}, "DEDUPE_GC_FREEZE": variant.is_frozen}
            settings |= variant.settings | ({} if store is None else {"DEDUPE_STORE_URL": store})
        tuned = "tuned" if variant.settings is None and variant.is_frozen else ""
        words = ["--crawl", json.dumps(settings), str(self.urls), str(pages), tuned]
        # Compiled modules are used and kept, as in an installation.
        environment = {**os.environ, **variant.environment, "PYTHONPYCACHEPREFIX": str(work / "compiled")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).resolve()), *words],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def measure(self, name: str, work: Path, store: str | None) -> None:
        variant = VARIANTS[name]
        runs = self.figures.setdefault(name, [])
        if not runs:
            self.run(variant, 1, work, store)  # compiles the modules
        first, run = (self.run(variant, pages, work, store) for pages in (1, self.pages))
        pages = run["pages"]
        run["startup"] = 1000 * first["cpu_s"]
        run["cpu"] = 1000 * (run["cpu_s"] - first["cpu_s"]) / (pages - 1)
        run["total"] = 1000 * run["cpu_s"] / pages
        run["rate"] = pages / run["wall_s"]
        runs.append(run)

    def report(self) -> None:
        def median(name: str, value: str) -> float:
            return statistics.median(run[value] for run in self.figures[name])

        def compared(name: str, value: str, digits: int) -> str:
            own = median(name, value)
            return f"{own:9.{digits}f}{own / median(PLAIN, value):6.2f}"

        print(f"\n{self.folder.name}: {self.pages} pages")
        print(
            f"{'variant':16}{'startup':>9}{'ratio':>6}{'CPU':>9}{'ratio':>6}{'total':>9}{'ratio':>6}"
            f"{'pages/s':>9}{'p50':>7}{'p99':>7}{'peak MB':>9}"
        )
        for name in self.figures:
            print(
                f"{name:16}{compared(name, 'startup', 0)}{compared(name, 'cpu', 2)}{compared(name, 'total', 2)}"
                f"{median(name, 'rate'):9.0f}{median(name, 'p50_ms'):7.1f}{median(name, 'p99_ms'):7.1f}"
                f"{median(name, 'peak_mb'):9.0f}"
            )
        for name, runs in self.figures.items():
            if runs[-1]["stats"]:
                print(name, json.dumps(runs[-1]["stats"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store")
    parser.add_argument(
        "--only",
        choices=VARIANTS,
        action="append",
        help="run only this variant (repeatable) and plain Scrapy",
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--crawl", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.crawl:
        settings, urls_file, pages, tuned = options.crawl
        crawl(json.loads(settings), urls_file, int(pages), tuned)
    elif options.folders:
        chosen = [name for name in VARIANTS if not options.only or name in (PLAIN, *options.only)]
        with tempfile.TemporaryDirectory() as text:
            work = Path(text)
            processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
            use_processors(processors[1:])
            sites = [
                Site(folder, options.pages, work / f"{number}.txt")
                for number, folder in enumerate(options.folders)
            ]
            use_processors(processors[:1])
            for _ in range(options.rounds):
                for name in chosen:
                    for site in sites:
                        site.measure(name, work, options.store)
            for site in sites:
                site.close()
                site.report()
    else:
        parser.error("name a folder of HTML files")


if __name__ == "__main__":
    main()
