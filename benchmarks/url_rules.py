"""URL rules on a generated site: learnt in one crawl, applied in the next.

    python benchmarks/url_rules.py [--pages N]
    python benchmarks/url_rules.py --real FOLDER [--as-is] [--pages N]

The generated site has N pages (5,000) under four times as many URLs: all kinds of differences that rules describe, and traps:
parameters that matter, everywhere or on some paths; letter case that matters; a second server that differs in 5 % of
its pages; pages that change at every visit. Prints the rules, the downloads, and the texts that the second crawl lacks.
Two to five minutes.

With ``--real`` the site has the HTML files in FOLDER (at most N of them), such as the documentation of a program, on two
hosts. Some of its links get a session, highlight or print parameter, or lead to the other host; with ``--as-is`` all
links stay as they are. Then only rules that were learnt are applied.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from zlib import crc32

LINKS_PER_LIST = 100
LINK = re.compile(r"""(<(?:a|i?frame)\s[^>]*?(?:href|src)\s*=\s*["']?)([^"'\s>]+)""", re.IGNORECASE)


class Site:
    """The requests to a site. Hosts are named with their ports."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self._visits = 0

    def page(self, host: str, path: str) -> bytes | None:
        """The page with this URL."""
        raise NotImplementedError

    def text(self, host: str, path: str) -> str | None:
        """The text of the page; empty if it changes at every visit."""
        raise NotImplementedError

    def server(self) -> ThreadingHTTPServer:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                host = self.headers["Host"]
                body = site.page(host, self.path)
                site.asked.append((host, self.path))
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def fetched(self) -> list[str]:
        """The texts that were asked for since the last call, each as often as it was asked for."""
        asked, self.asked = self.asked, []
        return [text for key in asked if (text := self.text(*key))]


class RealSite(Site):
    """The HTML files of a folder. A page does not depend on the query."""

    def __init__(self, folder: Path, pages: int, *, is_changed: bool) -> None:
        super().__init__()
        files = sorted(path for path in folder.rglob("*.htm*") if path.is_file())
        rng = random.Random(7)
        rng.shuffle(files)
        self._files = {f"/{path.relative_to(folder).as_posix()}": path for path in files[:pages]}
        self._is_changed = is_changed
        self._texts: dict[str, str] = {}
        port = self.server().server_address[1]
        self.main, self.alias = f"127.0.0.1:{port}", f"localhost:{port}"

    def page(self, host: str, path: str) -> bytes | None:
        path = unquote(path.partition("?")[0])
        if path == "/":
            return "".join(
                f'<p>{number}<a href="{quote(link)}">x</a>' for number, link in enumerate(sorted(self._files))
            ).encode()
        if path not in self._files:
            return None
        html = self._files[path].read_bytes().decode("latin-1")
        return LINK.sub(lambda match: match[1] + self._link(path, match[2]), html).encode("latin-1")

    def _link(self, path: str, link: str) -> str:
        split = urlsplit(urljoin(f"http://{self.main}{path}", link))
        if split.netloc != self.main or unquote(split.path) not in self._files:
            # Only these links are followed, so that no download fails.
            return "#"
        if not self._is_changed or split.query:
            return link
        number = crc32(f"{path} {link}".encode())
        query = ["", "", "", f"?sid={number % 999 % 3}", f"?highlight={'abc'[number % 7 % 3]}", "?print=1"][
            number % 6
        ]
        host = self.alias if number % 11 < 3 else self.main
        return f"http://{host}{split.path}{query}{'#' if split.fragment else ''}{split.fragment}"

    def text(self, host: str, path: str) -> str | None:
        from scrapy_dedupe.content import canonical_text

        name = unquote(path.partition("?")[0])
        if name not in self._files:
            return None
        if name not in self._texts:
            html = self._files[name].read_bytes().decode("latin-1")
            self._texts[name] = canonical_text(html) or html
        return self._texts[name]


class GeneratedSite(Site):
    """URLs with their texts, on two servers."""

    def __init__(self, pages: int) -> None:
        super().__init__()
        self._rng = random.Random(7)
        self.texts: dict[tuple[str, str], str] = {}
        self.servers = [self.server(), self.server()]
        ports = [server.server_address[1] for server in self.servers]
        self.main, self.alias, self.mirror = (
            f"127.0.0.1:{ports[0]}",
            f"localhost:{ports[0]}",
            f"127.0.0.1:{ports[1]}",
        )
        for number in range(pages):
            self._add_page(number)
        links = [f"http://{host}{path}" for host, path in self.texts]
        self._rng.shuffle(links)
        lists = [links[start : start + LINKS_PER_LIST] for start in range(0, len(links), LINKS_PER_LIST)]
        self.pages = len(links)
        for number, part in enumerate(lists):
            self.texts[self.main, f"/list/{number}"] = "".join(f'<a href="{link}">x</a>' for link in part)
        self.texts[self.main, "/"] = "".join(
            f'<a href="/list/{number}">x</a>' for number in range(len(lists))
        )

    def _add_page(self, number: int) -> None:
        text = f"<title>Page {number}</title><p>The text of page {number}."
        token = [self._rng.randrange(10**9) for _ in range(3)]
        n, host = number, self.main
        paths: list[str] = [
            [
                f"/a/{n}",
                f"/a/{n}?sid={token[0]}",
                f"/a/{n}?sid={token[1]}",
                f"/a/{n}?utm_source=x&sid={token[2]}",
            ],
            [f"/b/{n}/", f"/b/{n}/index.html", f"/b/{n}", f"/b//{n}/"],
            [f"/c/{n}.html", f"/c/{n}", f"/c/print/{n}.html", f"/c/{n}.html;jsessionid={token[0]}"],
            [f"/d/{n}?x=1&y=2", f"/d/{n}?x=1&x=1&y=2", f"/d/{n}?x=1&y=2&empty=", f"/d/{n}?x=1&y=2&sort=asc"],
            [f"/e/{n}", f"/E/{n}", f"/e/{n}?sid={token[0]}", f"/e/{n}?highlight={token[1]}"],
            [f"/f/{n}"],
            # Traps.
            [],
            [],
            [],
            [],
        ][number % 10]
        for path in paths:
            self.texts[host, path] = text
        if number % 10 == 5:
            for path in (f"/f/{n}", f"/f/{n}?sid={token[0]}", f"/f/{n}?sid={token[1]}"):
                self.texts[self.alias, path] = text
        elif number % 10 == 6:
            for page in range(1, 5):
                self.texts[host, f"/g/{n}?page={page}"] = f"{text} Part {page}."
        elif number % 10 == 7:
            for value in range(4):
                # Here it is a parameter that matters.
                self.texts[host, f"/h/{n}?highlight={value}"] = f"{text} Value {value}."
        elif number % 10 == 8:
            self.texts[host, f"/i/page{n}"] = text
            self.texts[host, f"/i/Page{n}"] = f"{text} Another."
            self.texts[host, f"/j?id={n}"] = f"{text} By its id."
            self.texts[host, f"/changing/{n}"] = self.texts[host, f"/changing/{n}?sid={token[0]}"] = ""
        elif number % 10 == 9:
            for kind in ("k", "l"):
                self.texts[host, f"/{kind}/{n}"] = f"{text} {kind}"
                is_other = self._rng.random() < 0.05
                self.texts[self.mirror, f"/{kind}/{n}"] = f"{text} {kind}{' Another.' if is_other else ''}"

    def page(self, host: str, path: str) -> bytes | None:
        text = self.texts.get((host, path))
        if text == "":
            self._visits += 1
            text = f"<p>Visit number {self._visits}"
        return None if text is None else text.encode()

    def text(self, host: str, path: str) -> str | None:
        return self.texts.get((host, path))


def crawl(settings: dict[str, Any], url: str) -> None:
    """Run one crawl in this process, and print its stats of URL rules."""
    from scrapy import Spider
    from scrapy.crawler import AsyncCrawlerProcess

    class Links(Spider):
        name = "links"
        start_urls = [url]  # noqa: RUF012

        def parse(self, response: Any) -> Any:
            for link in response.css("a::attr(href), frame::attr(src), iframe::attr(src)").getall():
                if link != "#":
                    yield response.follow(link)

    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(Links)
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats is not None else {}
    print(json.dumps({key: value for key, value in stats.items() if key.startswith("dedupe/url/rule")}))


def run(settings: dict[str, Any], url: str) -> dict[str, Any]:
    output = subprocess.run(
        [sys.executable, __file__, "--crawl", json.dumps(settings), url], check=True, stdout=subprocess.PIPE
    ).stdout
    return dict(json.loads(output.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=5_000, help="number of pages (5000)")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="a folder of HTML files to serve")
    parser.add_argument("--as-is", action="store_true", help="with --real: leave all links as they are")
    parser.add_argument("--crawl", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crawl:
        crawl(json.loads(options.crawl[0]), options.crawl[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.real is None:
            measure(GeneratedSite(options.pages), Path(folder))
        else:
            measure(RealSite(options.real, options.pages, is_changed=not options.as_is), Path(folder))


def measure(site: GeneratedSite | RealSite, folder: Path) -> None:
    from scrapy_dedupe.commands.console import main as command

    store, rules = f"sqlite:///{folder / 'one.sqlite'}", folder / "rules.toml"
    settings = {
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "LOG_LEVEL": "WARNING",
        "ROBOTSTXT_OBEY": False,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "WARN_ON_GENERATOR_RETURN_VALUE": False,
        "TELNETCONSOLE_ENABLED": False,
    }
    url = f"http://{site.main}/"
    begun = time.perf_counter()
    run({**settings, "DEDUPE_STORE_URL": store, "DEDUPE_WARC_DIR": str(folder / "warcs")}, url)
    asked = len(site.asked)
    fetched = site.fetched()
    all_texts = set(fetched)
    print(
        f"first crawl    {asked:,} downloads, {len(all_texts):,} texts, {time.perf_counter() - begun:.0f} s"
    )
    begun = time.perf_counter()
    command(["urls", "learn", "-o", str(rules), "--store", store, "--warc-dir", str(folder / "warcs")])
    print(f"learnt in {time.perf_counter() - begun:.1f} s")
    second = {
        **settings,
        "DEDUPE_STORE_URL": f"sqlite:///{folder / 'two.sqlite'}",
        "DEDUPE_WARC_ENABLED": False,
        "DEDUPE_URL_RULES": str(rules),
    }
    if isinstance(site, RealSite):
        report(site, all_texts, asked, len(fetched) - len(all_texts), "learnt rules", run(second, url))
        return
    # Pages on both servers are not avoidable, since some of them differ.
    urls = [key for key, text in site.texts.items() if text and key[0] != site.mirror]
    avoidable = len(urls) - len({site.texts[key] for key in urls})
    report(site, all_texts, asked, avoidable, "learnt rules", run(second, url))
    host = '\n[[rule]]\nhost = "*"\n'
    with rules.open("a") as file:
        file.write(
            f'{host}kind = "ignore-parameter"\nparameter = "page"\n{host}kind = "ignore-parameter"\nparameter = "id"\n'
        )
        file.write(f'{host}kind = "ignore-parameter"\nparameter = "highlight"\npath = "/h/"\n')
    second["DEDUPE_STORE_URL"] = f"sqlite:///{folder / 'three.sqlite'}"
    report(site, all_texts, asked, avoidable, "wrong rules too", run(second, url))


def report(
    site: Site, all_texts: set[str], before: int, avoidable: int, title: str, stats: dict[str, Any]
) -> None:
    downloads: defaultdict[str, int] = defaultdict(int)
    for key in site.asked:
        downloads[key[1].split("/")[1].partition("?")[0]] += 1
    asked = len(site.asked)
    texts = set(site.fetched())
    print(
        f"{title:<14} {asked:,} downloads: {before - asked:,} of {avoidable:,} avoidable ones avoided"
        f" ({(before - asked) / max(avoidable, 1):.1%}); {len(all_texts - texts)} texts lost"
    )
    print("   ", dict(sorted(downloads.items(), key=lambda item: -item[1])[:20]))
    for name, value in stats.items():
        if "suspended" in name or "rules/" in name:
            print(f"    {name} {value}")


if __name__ == "__main__":
    main()
