"""Kill a crawl at random times, and count missed and repeated requests.

    python benchmarks/kills.py FOLDER [--kills 50] [--seed 1] [--set NAME=VALUE …]
    python benchmarks/kills.py FOLDER --redis URL                 the filter in Redis, the queue in JOBDIR
    python benchmarks/kills.py FOLDER --redis URL --processes 2   two processes under scrapy-redis's scheduler

FOLDER contains HTML files that link to each other, such as those of a ``*-doc`` package of Debian in /usr/share/doc.
The crawl starts at index.html, or at --start. A separate process serves the files on 127.0.0.1 and logs every request.

First a crawl runs without a kill; its requests define the site. Then jobs run one after the other. Each is killed with
SIGKILL a random time after its first request and restarted with the same JOBDIR, until a run finishes. This is
repeated until --kills runs were killed. With --processes several processes crawl the site together: once without a
kill, and --kills times with one of them killed.

Each kill takes about eight seconds.
"""

from __future__ import annotations

import argparse
import os
import random
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
from typing import Any

SPIDER = """
import scrapy
from scrapy.linkextractors import LinkExtractor

class Site(scrapy.Spider):
    name = "site"
    links = LinkExtractor(allow=r"^http://127[.]0[.]0[.]1:")

    async def start(self):
        yield scrapy.Request(self.url, dont_filter=True)

    def parse(self, response):
        with open(self.pages, "a") as file:
            file.write(response.url + "\\n")
        if isinstance(response, scrapy.http.HtmlResponse):
            for link in self.links.extract_links(response):
                yield scrapy.Request(link.url)
"""
SETTINGS = {
    "ADDONS": '{"scrapy_dedupe.Addon": 500}',
    "DEDUPE_CONTENT_ENABLED": "0",
    "DEDUPE_WARC_ENABLED": "0",
    "TELNETCONSOLE_ENABLED": "0",
    "REMOTE_CONTROL_ENABLED": "0",
    "RETRY_ENABLED": "0",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "16",
    "DOWNLOAD_DELAY": "0",
    "LOG_LEVEL": "INFO",
}


def serve(folder: str, log: str) -> None:
    """Serve *folder* until standard input is closed; print the port, and append the path of each request to *log*."""
    lock = threading.Lock()
    file = Path(log).open("a", buffering=1)  # noqa: SIM115 - open as long as the server runs

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with lock:
                file.write(self.path + "\n")
            time.sleep(0.003)
            super().do_GET()

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *args: object) -> None:
            pass  # a client that was killed

    server = Server(("127.0.0.1", 0), partial(Handler, directory=folder))
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


class Site:
    """The server and its log of requests."""

    def __init__(self, folder: Path, work: Path, start: str) -> None:
        self.log = work / "requests.log"
        self.log.touch()
        self.spider = work / "site_spider.py"
        self.spider.write_text(SPIDER)
        self._server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(folder), str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        self.url = f"http://127.0.0.1:{self._server.stdout.readline().strip()}/{start}"

    def asked(self) -> list[str]:
        return self.log.read_text().split("\n")[:-1]

    def clear(self) -> None:
        os.truncate(self.log, 0)

    def crawl(self, place: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "scrapy", "runspider", str(self.spider), "-a", f"url={self.url}"]
        command += ["-a", "pages=pages.txt"]
        for name, value in settings.items():
            command += ["-s", f"{name}={value}"]
        with (place / "scrapy.log").open("ab") as log:
            return subprocess.Popen(command, cwd=place, stdout=log, stderr=log)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def known_leaves(job: Path) -> set[bytes]:
    """The fingerprints in the journal of done requests of a killed job."""
    from scrapy_dedupe.urls.journal import Journal

    path = job / "dedupe" / "urls" / "urls.done"
    if not path.exists():
        return set()
    journal = Journal(path, "scrapy.utils.request.RequestFingerprinter")
    journal.lock()
    try:
        return set() if journal.is_new() else set(journal.fingerprints())
    finally:
        journal.close()


def fingerprints(site: Site, paths: set[str]) -> dict[bytes, str]:
    import scrapy
    from scrapy.utils.request import RequestFingerprinter

    make = RequestFingerprinter().fingerprint
    base = site.url.split("/", 3)[:3]
    return {make(scrapy.Request("/".join(base) + path)): path for path in paths}


def kill_jobs(site: Site, work: Path, settings: dict[str, str], kills: int, chance: random.Random) -> None:
    site.clear()
    undisturbed = site.crawl(work / "undisturbed", settings)
    undisturbed.wait()
    whole = set(site.asked())
    parsed = set((work / "undisturbed" / "pages.txt").read_text().split())
    names = fingerprints(site, whole)
    print(f"the site: {len(whole):,} paths requested, {len(parsed):,} pages parsed", flush=True)
    hit = early = jobs = missed = missed_pages = known_again = requests = distinct = 0
    while hit < kills:
        jobs += 1
        place = work / f"job-{jobs}"
        asked: Counter[str] = Counter()
        known: set[bytes] = set()
        while True:
            site.clear()
            process = site.crawl(place, settings | {"JOBDIR": "job"})
            while process.poll() is None and not site.asked():
                time.sleep(0.02)
            if hit < kills:
                # At most the time of a complete crawl of some hundred pages.
                end = time.monotonic() + chance.uniform(0, 6)
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.01)
            else:
                process.wait()
            is_over = process.poll() is not None
            if not is_over:
                process.send_signal(signal.SIGKILL)
                process.wait()
                hit += 1
            now = site.asked()
            asked.update(now)
            known_again += len({names[item] for item in known if item in names} & set(now))
            if is_over:
                early += process.returncode != 0
                break
            known = known_leaves(place / "job")
        found = set((place / "pages.txt").read_text().split())
        missed += len(whole - set(asked))
        missed_pages += len(parsed - found)
        requests += asked.total()
        distinct += len(asked)
    print(
        f"{hit} kills in {jobs} jobs: {missed} paths not requested, {missed_pages} pages not parsed; "
        f"{requests - distinct:,} of {requests:,} requests were repeats ({(requests - distinct) / hit:.0f} per kill), "
        f"{known_again} of them for a leaf in the journal; {early} runs ended with an error"
    )


def kill_one_of(site: Site, work: Path, settings: dict[str, str], args: argparse.Namespace) -> None:
    import redis

    chance = random.Random(args.seed)
    settings = settings | {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "REDIS_URL": args.redis,
        "SCHEDULER_PERSIST": "1",
        "SCHEDULER_IDLE_BEFORE_CLOSE": "3",
    }
    whole: set[str] = set()
    for number in range(args.kills + 1):
        redis.Redis.from_url(args.redis).flushdb()
        site.clear()
        place = work / f"shared-{number}"
        processes = [site.crawl(place / str(n), settings) for n in range(args.processes)]
        if number:
            while not site.asked():
                time.sleep(0.02)
            time.sleep(chance.uniform(0.5, 5))
            processes[0].kill()
        for process in processes:
            process.wait()
        asked = Counter(site.asked())
        if not number:
            whole = set(asked)
        again = asked.total() - len(asked)
        shares = [len((place / str(n) / "pages.txt").read_text().split()) for n in range(args.processes)]
        what = "one killed" if number else "undisturbed"
        print(
            f"{args.processes} processes, {what}: {len(asked):,} paths requested, {again} repeats, "
            f"{len(whole - set(asked))} missed; pages parsed by each: {shares}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--start", default="", help="the first page of the crawl, relative to FOLDER")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--redis", metavar="URL")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return
    if args.folder is None:
        parser.error("FOLDER is missing")
    settings: dict[str, Any] = SETTINGS | dict(item.split("=", 1) for item in args.set)
    if args.redis:
        settings["DEDUPE_URL_STORE_URL"] = args.redis
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        site = Site(args.folder.resolve(), work, args.start)
        try:
            if args.processes > 1:
                kill_one_of(site, work, settings, args)
            else:
                kill_jobs(site, work, settings, args.kills, random.Random(args.seed))
        finally:
            site.close()


if __name__ == "__main__":
    main()
