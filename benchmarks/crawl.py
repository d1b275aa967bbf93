"""The cost of a crawl: plain Scrapy, each single layer, and all three layers, compared in one run.

All three layers are also run without the data for the report, and with the log of duplicates.

    python benchmarks/crawl.py FOLDER [--pages 2000] [--rounds 3] [--store sqlite:///…|redis://…]
        [--only archive]

FOLDER holds HTML files, such as those of a ``*-doc`` package of Debian under /usr/share/doc. They are served on
127.0.0.1 by a separate process. Each round runs every variant once, one after another, each in a new process. The
figures are the medians of the rounds: pages per second, CPU milliseconds per page (including the worker thread), and
the peak resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VARIANTS = {
    "plain Scrapy": None,
    "urls": {"DEDUPE_CONTENT_ENABLED": False, "DEDUPE_WARC_ENABLED": False},
    "content": {"DEDUPE_URL_ENABLED": False, "DEDUPE_WARC_ENABLED": False},
    "archive": {"DEDUPE_URL_ENABLED": False, "DEDUPE_CONTENT_ENABLED": False},
    "all three": {},
    "no report": {"EXTENSIONS": {"scrapy_dedupe.extensions.ReportExtension": None}},
    "all logged": {"DEDUPE_DUPLICATES_LOG": "duplicates.jsonl"},
}


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


def crawl(settings: dict[str, Any], urls_file: str) -> None:
    """Run one crawl in this process and print its figures as JSON."""
    import scrapy
    from scrapy.crawler import AsyncCrawlerProcess

    urls = Path(urls_file).read_text().split()

    class PagesSpider(scrapy.Spider):
        name = "pages"

        async def start(self) -> Any:
            # The other pages are requested from a callback: default start requests would bypass the dupefilter.
            yield scrapy.Request(urls[0], callback=self.parse_first, dont_filter=True)

        def parse_first(self, response: Any) -> Any:
            for url in urls:
                yield scrapy.Request(url)

        def parse(self, response: Any) -> Any:
            # Extract links, as a real spider does.
            yield {"url": response.url, "links": len(response.css("a::attr(href)").getall())}

    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(PagesSpider)
    process.crawl(crawler)
    cpu, wall = time.process_time(), time.perf_counter()
    process.start()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    pages = stats.get("response_received_count", 0)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = {key: value for key, value in stats.items() if key.startswith(("dedupe/", "log_count/ERROR"))}
    print(
        json.dumps({"pages": pages, "cpu_s": cpu, "wall_s": wall, "peak_mb": peak_kb / 1024, "stats": kept})
    )


def pages_of(folder: Path, count: int) -> list[str]:
    """Return the paths of up to *count* HTML files below *folder*, evenly distributed."""
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.htm*") if path.is_file())
    step = max(1, len(found) // count)
    return found[::step][:count]


def measure(folder: Path, count: int, rounds: int, store: str | None, only: str | None) -> None:
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    port = server.stdout.readline().strip()
    names = pages_of(folder, count)
    chosen = {name: ours for name, ours in VARIANTS.items() if only is None or name in ("plain Scrapy", only)}
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as work:
        urls = Path(work, "urls.txt")
        urls.write_text("\n".join(f"http://127.0.0.1:{port}/{name}" for name in names))
        for number in range(rounds):
            for name, ours in chosen.items():
                place = Path(work, f"{number}-{name}".replace(" ", "-"))
                place.mkdir()
                settings: dict[str, Any] = {
                    "LOG_LEVEL": "ERROR",
                    "TELNETCONSOLE_ENABLED": False,
                    "REMOTE_CONTROL_ENABLED": False,
                    "CONCURRENT_REQUESTS": 16,
                    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
                    "DOWNLOAD_DELAY": 0,
                }
                if ours is not None:
                    settings |= ours | {"ADDONS": {"scrapy_dedupe.Addon": 500}}
                    if store is not None:
                        settings["DEDUPE_STORE_URL"] = store
                command = [
                    sys.executable,
                    str(Path(__file__).resolve()),
                    "--crawl",
                    json.dumps(settings),
                    str(urls),
                ]
                done = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, text=True, check=True)
                figures[name].append(json.loads(done.stdout.splitlines()[-1]))
    server.stdin.close()
    server.wait()
    report(figures)


def report(figures: dict[str, list[dict[str, Any]]]) -> None:
    def median(name: str, value: str) -> float:
        return statistics.median(
            run[value] / (run["pages"] if value == "cpu_s" else 1) for run in figures[name]
        )

    plain = median("plain Scrapy", "cpu_s")
    print(f"{'variant':14}{'pages':>8}{'pages/s':>10}{'CPU ms/page':>13}{'ratio':>8}{'peak MB':>9}")
    for name, runs in figures.items():
        rate = statistics.median(run["pages"] / run["wall_s"] for run in runs)
        cpu = median(name, "cpu_s")
        print(
            f"{name:14}{runs[0]['pages']:8}{rate:10.1f}{1000 * cpu:13.2f}{cpu / plain:8.2f}"
            f"{median(name, 'peak_mb'):9.0f}"
        )
    for name, runs in figures.items():
        print(name, json.dumps(runs[-1]["stats"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store")
    parser.add_argument("--only", choices=VARIANTS, help="run only this variant and plain Scrapy")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--crawl", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.crawl:
        crawl(json.loads(options.crawl[0]), options.crawl[1])
    elif options.folder is not None:
        measure(options.folder, options.pages, options.rounds, options.store, options.only)
    else:
        parser.error("name a folder of HTML files")


if __name__ == "__main__":
    main()
