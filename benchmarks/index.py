"""Benchmark of the crawl index on both stores, compared with bare store operations and with Browsertrix's method.

    python benchmarks/index.py [--only SECTION]… [--store sqlite|redis] [--payloads N] [--quick]

Each section prints a table; without ``--only`` all of them run. The benchmark starts a Redis server for itself.
``--quick`` uses a twentieth of the payloads; without it the benchmark takes about ten minutes and 1 GB of memory.

fill    One crawl adds 1,000,000 payloads and is committed. Sizes: the memory of Redis with all keys, ours and
        Browsertrix's, and the SQLite file. For comparison: Browsertrix's commit (HSCAN, and one HSETNX, a round trip,
        for each digest), and the memory of only its keys.
lookup  Lookups among those payloads: one digest (half of them known, in random order), and 100 digests at once. For
        comparison: a bare PING and Browsertrix's two HGETs; a bare SELECT by an indexed column in a table of that size.
import  a CDXJ of 200,000 lines, each fifth a revisit, and the same records as a WACZ.
purge   Purges one of ten crawls of 100,000 payloads; other crawls have a fifth of them too.

Compared operations alternate in short blocks, and times are medians of blocks unless stated otherwise; ratios depend
less on the machine than times do. The column "goal" has the project's targets; missing a target is not an error.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import redis

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Counts, Original, UrlCapture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy_dedupe.stores.crawl_index import CrawlIndex

ADDED_AT_ONCE = 500
BLOCK = 50


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. ``payloads`` is None to use the default of each section."""

    payloads: int | None
    stores: tuple[str, ...]
    quick: bool

    def count(self, usual: int) -> int:
        return self.payloads or (usual // 20 if self.quick else usual)


def table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print rows under their columns, the first to the left and the others to the right."""
    lines = [columns, *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join((line[0].ljust(len(first)), *rest)), flush=True)


# Payloads


def digest_of(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()


def url_of(number: int) -> str:
    """URLs of realistic length: 60 to 110 characters."""
    words = ("news", "archive", "product", "review", "garden", "winter", "music", "paper", "travel", "green")
    path = "/".join(words[(number // 7**level) % 10] for level in range(2 + number % 3))
    return f"https://www.{words[number % 10]}-{number % 211}.example/{path}/a-page-with-a-title-{number}.html"


def original_of(number: int, crawl: str) -> Original:
    digest = digest_of(number)
    word = digest[:32]
    record_id = f"<urn:uuid:{word[:8]}-{word[8:12]}-{word[12:16]}-{word[16:20]}-{word[20:]}>"
    return Original(
        digest=digest,
        crawl=crawl,
        date=f"20260801{number // 3_600 % 24:02}{number // 60 % 60:02}{number % 60:02}{number % 1_000:03}",
        url=url_of(number),
        size=2_000 + number % 50_000,
        record_id=record_id,
        file=f"/archive/{crawl}/{crawl}-20260801000000-{number // 20_000:05}-host.warc.gz",
        offset=number % 20_000 * 40_000,
    )


def fill(index: CrawlIndex, crawl: str, numbers: Sequence[int]) -> float:
    """Add payloads with their URLs, as a crawl does; return the seconds."""
    index.start(crawl, "stored")
    seconds = 0.0
    for first in range(0, len(numbers), ADDED_AT_ONCE):
        originals = [original_of(number, crawl) for number in numbers[first : first + ADDED_AT_ONCE]]
        urls = [UrlCapture(each.url, each.digest, each.date, b"validators 16 by") for each in originals]
        begun = time.perf_counter()
        index.add(crawl, originals, Counts(len(originals), 0, 0, 1), urls)
        seconds += time.perf_counter() - begun
    return seconds


# Stores


@contextmanager
def redis_server() -> Iterator[str]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from servers import RedisServer

    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            with redis.Redis.from_url(server.url) as client:
                # Exclude the cost of persistence, which is the operator's choice.
                client.config_set("appendonly", "no")
            yield server.url
        finally:
            server.stop()


@contextmanager
def empty_store(kind: str) -> Iterator[str]:
    """The URL of an empty store."""
    if kind == "redis":
        with redis_server() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/index.sqlite"


def size_of(url: str) -> int:
    """The size of a store in bytes: memory of Redis, or the SQLite file."""
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return int(cast("dict[str, Any]", client.info("memory"))["used_memory"])
    path = Path(url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


# fill and lookup


def fill_and_lookup(options: Options, sections: Sequence[str]) -> None:
    count = options.count(1_000_000)
    commits: list[tuple[object, ...]] = []
    sizes: list[tuple[object, ...]] = []
    lookups: list[tuple[object, ...]] = []
    for kind in options.stores:
        with empty_store(kind) as url:
            before = size_of(url) if kind == "redis" else 0
            store = open_store(url, timeout_s=60)
            added_s = fill(store.index, "first", range(count))
            begun = time.perf_counter()
            store.index.commit("first")
            seconds = time.perf_counter() - begun
            goal = "25,000" if kind == "redis" else ""
            commits.append((f"{kind}, added", f"{count / added_s:,.0f}", f"{added_s:.2f}", ""))
            commits.append((f"{kind}, committed", f"{count / seconds:,.0f}", f"{seconds:.2f}", goal))
            per_million = (size_of(url) - before) / count
            sizes.append((f"{kind}, all", f"{per_million:.0f}", "450" if kind == "redis" else "250"))
            if kind == "redis":
                parts = sizes_by_key(url, count)
                theirs = parts["h:"] + parts["alldupes"]
                sizes.append(("  Browsertrix's keys", f"{theirs:.0f}", ""))
                sizes.append(("  places and record ids", f"{parts['dedupe:where:']:.0f}", ""))
                sizes.append(("  URLs", f"{parts['dedupe:urls:']:.0f}", ""))
                commits.append(commit_like_browsertrix(url, min(count, 50_000)))
            store.index.start("reader", "stored")
            if "lookup" in sections:
                lookups += lookup_rows(kind, url, store.index, count, options)
            store.close()
    if "fill" in sections:
        table(f"fill: {count:,} payloads", ("what", "a second", "s", "goal"), commits)
        table(
            f"fill: what {count:,} payloads take, MB for a million",
            ("what", "MB", "goal"),
            sizes,
        )
    if "lookup" in sections:
        columns = ("what", "p50 us", "p99 us", "to bare", "goal p50")
        table(f"lookup: among {count:,} payloads, us an answer", columns, lookups)


def sizes_by_key(url: str, count: int) -> dict[str, float]:
    """Bytes per payload of the keys with each prefix."""
    found = dict.fromkeys(("h:", "alldupes", "dedupe:where:", "dedupe:urls:"), 0.0)
    with redis.Redis.from_url(url, decode_responses=True) as client:
        for key in cast("list[str]", client.keys()):
            for prefix in found:
                if key.startswith(prefix):
                    found[prefix] += cast("int", client.memory_usage(key, samples=200)) / count
    return found


def commit_like_browsertrix(url: str, count: int) -> tuple[object, ...]:
    """HSCAN the crawl's hash, and HSETNX each digest in a separate round trip."""
    done = 0
    with redis.Redis.from_url(url, single_connection_client=True) as client:
        begun = time.perf_counter()
        for digest, _ in client.hscan_iter("h:first", count=1_000):
            client.hsetnx("benchmark:alldupes", digest, "first")
            done += 1
            if done == count:
                break
        seconds = time.perf_counter() - begun
        client.delete("benchmark:alldupes")
    return (f"redis, Browsertrix's way ({count:,})", f"{count / seconds:,.0f}", f"{seconds:.2f}", "")


def lookup_rows(
    kind: str, url: str, index: CrawlIndex, count: int, options: Options
) -> list[tuple[object, ...]]:
    rng = random.Random(7)
    blocks = 40 if options.quick else 400
    calls: dict[str, Callable[[str], object]] = {}
    closing: list[Any] = []
    if kind == "redis":
        client = redis.Redis.from_url(url, single_connection_client=True)
        closing.append(client)

        def two_hgets(digest: str) -> object:
            crawl = cast("bytes | None", client.hget("alldupes", digest))
            return client.hget("h:" + (crawl.decode() if crawl else "reader"), digest)

        calls["bare PING"] = lambda digest: client.ping()
        calls["ours, one"] = lambda digest: index.find("reader", [digest])
        calls["Browsertrix's two HGETs"] = two_hgets
    else:
        connection = sqlite3.connect(":memory:")
        closing.append(connection)
        connection.execute("CREATE TABLE t (digest BLOB PRIMARY KEY, url TEXT)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", ((bytes.fromhex(digest_of(n)), url_of(n)) for n in range(count))
        )
        calls["bare SELECT, in memory"] = lambda digest: connection.execute(
            "SELECT url FROM t WHERE digest = ?", (bytes.fromhex(digest),)
        ).fetchall()
        calls["ours, one"] = lambda digest: index.find("reader", [digest])
    times: dict[str, list[float]] = {name: [] for name in calls}
    together: list[float] = []
    for _ in range(blocks):
        # Half of the numbers belong to payloads that were never added.
        digests = [digest_of(rng.randrange(2 * count)) for _ in range(BLOCK)]
        for name, call in calls.items():
            for digest in digests:
                begun = time.perf_counter()
                call(digest)
                times[name].append((time.perf_counter() - begun) * 1e6)
        hundred = [digest_of(rng.randrange(2 * count)) for _ in range(100)]
        begun = time.perf_counter()
        index.find("reader", hundred)
        together.append((time.perf_counter() - begun) * 1e4)
    for each in closing:
        each.close()
    times["ours, of 100 at once"] = together
    bare = statistics.median(next(iter(times.values())))
    goal = {"ours, one": "120" if kind == "redis" else "30"}
    return [
        (
            f"{kind}: {name}",
            f"{statistics.median(values):.1f}",
            f"{statistics.quantiles(values, n=100)[98]:.1f}",
            f"{statistics.median(values) / bare:.2f}",
            goal.get(name, ""),
        )
        for name, values in times.items()
    ]


# purge


def purge(options: Options) -> None:
    count = options.count(100_000)
    rows = []
    for kind in options.stores:
        with empty_store(kind) as url:
            store = open_store(url, timeout_s=60)
            for number in range(10):
                # Each crawl shares a fifth of its payloads with the next one.
                first = number * count * 4 // 5
                fill(store.index, f"crawl-{number}", range(first, first + count))
                store.index.commit(f"crawl-{number}")
            begun = time.perf_counter()
            store.index.purge(["crawl-4"])
            seconds = time.perf_counter() - begun
            store.close()
        rows.append((kind, f"{count / seconds:,.0f}", f"{seconds:.2f}"))
    columns = ("store", "payloads purged a second", "s")
    table(f"purge: one of ten crawls of {count:,} payloads", columns, rows)


# import


class _Silent:
    """An observer that prints nothing."""

    def check(self) -> None:
        pass

    def show(self, done: float, total: int) -> None:
        pass

    def tell(self, sentence: str) -> None:
        pass


def cdxj_lines(count: int) -> Iterator[bytes]:
    """Lines as Browsertrix-Crawler writes them, by URL; every fifth is a revisit of a payload some lines earlier."""
    for number in range(count):
        is_revisit = number % 5 == 4
        digest = digest_of(number - 3 if is_revisit else number)
        fields = {
            "url": url_of(number),
            "mime": "warc/revisit" if is_revisit else "text/html",
            "status": "200",
            "digest": f"sha256:{digest}",
            "length": str(600 if is_revisit else 2_000 + number % 50_000),
            "offset": str(number % 20_000),
            "filename": f"rec-{number // 20_000:05}.warc.gz",
        }
        yield f"com,example)/{number:09} 20260801120000 {json.dumps(fields)}\n".encode()


def write_sources(folder: Path, count: int) -> tuple[Path, Path]:
    """A CDXJ, and a WACZ with the same lines in a compressed index; their WARC files have no records."""
    lines = b"".join(cdxj_lines(count))
    names = [f"rec-{number:05}.warc.gz" for number in range(count // 20_000 + 1)]
    plain, wacz = folder / "lines.cdxj", folder / "lines.wacz"
    plain.write_bytes(lines)
    for name in names:
        (folder / name).write_bytes(b"")
    about = {"profile": "data-package", "software": "scrapy-dedupe 1.0", "crawlId": "in-wacz"}
    with zipfile.ZipFile(wacz, "w") as container:
        for name in names:
            container.writestr(f"archive/{name}", bytes(80_000))
        container.writestr("indexes/index.cdx.gz", gzip.compress(lines, 6))
        container.writestr("datapackage.json", json.dumps(about))
    return plain, wacz


def import_(options: Options) -> None:
    from scrapy_dedupe.crawls.importing import ImportOptions, import_sources

    count = options.count(200_000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sources = write_sources(Path(folder), count)
        for kind in options.stores:
            for source in sources:
                with empty_store(kind) as url, open_index(url, timeout_s=60) as index:
                    begun = time.perf_counter()
                    done = import_sources(index, [str(source)], ImportOptions(), _Silent())
                    seconds = time.perf_counter() - begun
                    if done.failed or done.captures != count:
                        raise RuntimeError(f"{source} was not imported: {done.failed or done.captures}")
                rows.append(
                    (f"{kind}, {source.suffix[1:]}", f"{count / seconds:,.0f}", f"{seconds:.2f}", "15,000")
                )
    table(f"import: {count:,} lines, a fifth of them revisits", ("what", "lines a second", "s", "goal"), rows)


SECTIONS = ("fill", "lookup", "import", "purge")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, metavar="SECTION", help="may be repeated"
    )
    parser.add_argument("--store", choices=("sqlite", "redis"), help="run only this store")
    parser.add_argument(
        "--payloads",
        type=int,
        help="number of payloads or lines, instead of the default of the section",
    )
    parser.add_argument("--quick", action="store_true", help="use a twentieth of the payloads")
    parsed = parser.parse_args()
    stores = (parsed.store,) if parsed.store else ("redis", "sqlite")
    options = Options(parsed.payloads, stores, parsed.quick)
    sections = parsed.only or SECTIONS
    if "fill" in sections or "lookup" in sections:
        fill_and_lookup(options, sections)
    if "import" in sections:
        import_(options)
    if "purge" in sections:
        purge(options)


if __name__ == "__main__":
    main()
