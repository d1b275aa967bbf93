"""Compare the cost of the URL filter with Scrapy's own filter, and measure its error rate.

    python benchmarks/urls.py [--only SECTION]… [--urls N] [--rounds N] [--links FOLDER]

Sections, each with its own table; without ``--only`` all of them run:

cold    ``request_seen`` of requests whose fingerprint must be computed. Under a minute.
warm    ``request_seen`` of requests whose fingerprint is cached by the request fingerprinter. Under a minute.
rules   ``request_seen`` with 100 URL rules, compared with the same filter without rules and with Scrapy's, for URLs that
        no rule changes, for URLs that one changes, and for URLs that only a rule filters. Under a minute.
memory  size of the bits and growth of the process for 1,000,000 fingerprints. About a minute.
rates   pages lost compared with a set, for 5,000,000 URLs in six filters. SLOW: 5 to 15 minutes; shorter with
        ``--urls N``. With ``--links FOLDER`` also the links of the HTML files in FOLDER, in their order.
open    time to store and open a filter of 10,000,000 URLs. About half a minute, and 300 MB on disk.
redis   the shared filter with single calls and batches of 100, and the filter of scrapy-redis, alternately on the
        same server, which the benchmark starts. Wall time. Half a minute.

Times are medians. Two filters are measured alternately in one process, in short blocks of the same requests, and
compared block by block, because the ratio depends less on the machine than the times do. The column "goal" is a
goal of the project; nothing fails if it is missed. ``--urls`` sets the number of URLs of the selected sections.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BLOCK = 25
_ERROR_RATES = (1e-6, 0.01, 0.001)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. ``urls`` is None if each section uses its default number."""

    urls: int | None
    rounds: int
    links: Path | None


# Tables


def table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print a table. The first column is left-aligned, the others right-aligned."""
    lines = [columns, *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join((line[0].ljust(len(first)), *rest)), flush=True)


def megabytes(size: float) -> str:
    return f"{size / 1e6:.2f}"


# URLs


def urls_like_real(count: int) -> Iterator[str]:
    """Distinct URLs like those of shops and newspapers, unsorted: paths of words, a third of them with a query."""
    rng = random.Random(1970)
    words = (
        "news",
        "archive",
        "product",
        "review",
        "city",
        "garden",
        "winter",
        "music",
        "paper",
        "travel",
        "green",
    )
    for number in range(count):
        host = f"www.{words[number % 7]}-{number % 211}.example"
        path = "/".join(rng.choices(words, k=rng.randint(1, 3)))
        slug = "-".join(rng.choices(words, k=rng.randint(2, 6)))
        query = f"?sort=price&page={number % 90}&id={number}&from=list" if number % 3 == 0 else ""
        yield f"https://{host}/{path}/{slug}-{number}.html{query}"


def links_of(folder: Path) -> Iterator[str]:
    """The links of the HTML files in *folder*, in the order in which a crawl finds them, with repetitions."""
    from selectolax.lexbor import LexborHTMLParser

    for path in sorted(folder.rglob("*.htm*")):
        if not path.is_file():
            continue
        base = f"https://docs.example/{path.relative_to(folder).as_posix()}"
        tree = LexborHTMLParser(path.read_bytes().decode("utf-8", "replace"))
        for anchor in tree.css("a[href]"):
            try:
                url = urljoin(base, (anchor.attributes["href"] or "").strip())
            except ValueError:
                continue
            if url.startswith(("http://", "https://")):
                yield url


# cold, warm


def dupefilter(path: str, rules: Path | None = None, capacity: int | None = None) -> tuple[Any, Any]:
    """The open filter that Scrapy creates for this setting, with a file of URL rules or none, and its fingerprinter."""
    import scrapy
    from scrapy.utils.misc import build_from_crawler, load_object
    from scrapy.utils.test import get_crawler

    settings: dict[str, Any] = {"DUPEFILTER_CLASS": path, "LOG_ENABLED": False}
    if capacity is not None:
        settings["DEDUPE_URL_CAPACITY"] = capacity
    if rules is not None:
        settings["DEDUPE_URL_RULES"] = str(rules)
    crawler = get_crawler(scrapy.Spider, settings)
    if rules is not None:
        from scrapy_dedupe.live.session import Session

        # The rules need the content layer, which no page reaches here.
        Session.of(crawler).layers["content"] = "none"
    made = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
    made.open()
    return made, crawler.request_fingerprinter


FILTERS = {
    "Scrapy": "scrapy.dupefilters.RFPDupeFilter",
    "ours": "scrapy_dedupe.dupefilters.BloomDupeFilter",
}


def time_in_turn(work: dict[str, tuple[Callable[[Any], Any], list[Any]]]) -> dict[str, list[float]]:
    """CPU time per call in microseconds for each block of calls. The blocks alternate, and so does their order."""
    names = list(work)
    times: dict[str, list[float]] = {name: [] for name in names}
    size = min(len(items) for _, items in work.values())
    gc.collect()
    gc.disable()
    try:
        for number, start in enumerate(range(0, size, _BLOCK)):
            for name in names if number % 2 else reversed(names):
                call, items = work[name]
                block = items[start : start + _BLOCK]
                begun = time.process_time()
                for item in block:
                    call(item)
                times[name].append((time.process_time() - begun) / len(block) * 1e6)
    finally:
        gc.enable()
    return times


def request_seen(options: Options, *, remembered: bool) -> Iterator[tuple[str, list[float], list[float]]]:
    """Kind of answer, and times of ``request_seen`` of Scrapy and this package.

    Each round has new filters and requests.
    """
    from scrapy import Request

    urls = list(urls_like_real(options.urls or 10_000))
    answers = ("new", "seen")
    found: dict[str, tuple[list[float], list[float]]] = {answer: ([], []) for answer in answers}
    for _ in range(options.rounds):
        made = {name: dupefilter(path) for name, path in FILTERS.items()}
        for answer in answers:
            work = {}
            for number, (name, (filter_, fingerprinter)) in enumerate(made.items()):
                # Scrapy caches the fingerprint of a request, so each filter gets its own requests. Python and w3lib
                # cache parts of recent URLs, so the filters process the same list with an offset of half its length.
                half = number * len(urls) // 2
                requests = [Request(url) for url in urls[half:] + urls[:half]]
                if remembered:
                    for request in requests:
                        fingerprinter.fingerprint(request)
                work[name] = (filter_.request_seen, requests)
            times = time_in_turn(work)
            found[answer][0].extend(times["Scrapy"])
            found[answer][1].extend(times["ours"])
    for answer, (scrapy, ours) in found.items():
        yield answer, scrapy, ours


def compared(scrapy: list[float], ours: list[float]) -> tuple[str, ...]:
    """Medians of both times, and of their ratio and difference for each block.

    On a shared machine the speed changes from one second to the next, so only neighbouring blocks are compared.
    """
    pairs = list(zip(scrapy, ours, strict=True))
    return (
        f"{statistics.median(scrapy):.2f}",
        f"{statistics.median(ours):.2f}",
        f"{statistics.median(b / a for a, b in pairs):.3f}",
        f"{statistics.median(b - a for a, b in pairs):+.2f}",
    )


_COMPARED = ("answer", "Scrapy", "ours", "ratio", "more", "goal")


def cold(options: Options) -> None:
    table(
        "cold: request_seen, fingerprint included, us of CPU",
        _COMPARED,
        [
            (answer, *compared(*times), "ratio 1.25")
            for answer, *times in request_seen(options, remembered=False)
        ],
    )


def warm(options: Options) -> None:
    table(
        "warm: request_seen, fingerprint remembered, us of CPU",
        _COMPARED,
        [(answer, *compared(*times), "+6") for answer, *times in request_seen(options, remembered=True)],
    )


# rules


def rules(options: Options) -> None:
    from scrapy import Request

    urls = list(urls_like_real(options.urls or 30_000))
    kinds = {
        "unchanged": [url for url in urls if "?" not in url],
        "changed": [url for url in urls if "?" in url],
    }
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.toml")
        hosts = ["*", "*", *(f"www.news-{number}.example" for number in range(98))]
        names = ["from", "sid", *("session" for _ in range(98))]
        file.write_text(
            "version = 1\n"
            + "".join(
                f'[[rule]]\nhost = "{host}"\nkind = "ignore-parameter"\nparameter = "{name}"\n'
                for host, name in zip(hosts, names, strict=True)
            )
        )
        for kind, some in kinds.items():
            # Requests of the third answer are new without the rules.
            others = [f"{url}&sid=1" for url in some] if kind == "changed" else []
            lists = {"new": some, "seen": some, "filtered by a rule": others}
            answers: dict[str, tuple[list[float], list[float], list[float]]] = {
                answer: ([], [], []) for answer, part in lists.items() if part
            }
            for _ in range(options.rounds):
                # Neither filter grows: the one with rules has up to four times as many keys.
                made = {
                    "Scrapy": dupefilter(FILTERS["Scrapy"])[0],
                    "without": dupefilter(FILTERS["ours"], capacity=8 * len(some))[0],
                    "with": dupefilter(FILTERS["ours"], file, capacity=8 * len(some))[0],
                }
                for answer, found in answers.items():
                    part, third = lists[answer], len(some) // 3
                    work = {}
                    for number, (name, filter_) in enumerate(made.items()):
                        turned = part[number * third :] + part[: number * third]
                        work[name] = (filter_.request_seen, [Request(url) for url in turned])
                    for times, more in zip(found, time_in_turn(work).values(), strict=True):
                        times.extend(more)
            rows += [
                (
                    f"{kind}, {answer}",
                    f"{statistics.median(scrapy):.2f}",
                    *compared(without, within),
                    "" if "filtered" in answer else "+8",
                )
                for answer, (scrapy, without, within) in answers.items()
            ]
    columns = ("URL", "Scrapy", "without", "with", "ratio", "more", "goal")
    table("rules: request_seen with 100 rules, fingerprint included, us of CPU", columns, rows)


# memory


def fingerprints(count: int) -> Iterator[bytes]:
    """Distinct values with the size of Scrapy's fingerprints."""
    for number in range(count):
        yield hashlib.sha1(number.to_bytes(8, "big")).digest()


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(name: str, count: int) -> None:
    """Fill one filter in this process; print the growth of the process and the size of the bits."""
    from scrapy.dupefilters import RFPDupeFilter

    from scrapy_dedupe.urls.bloom import GrowingBloomFilter

    class Given:
        """A fingerprinter for requests that are already fingerprints."""

        def fingerprint(self, request: Any) -> Any:
            return request

    # Use the classes once first, so that their initialisation is not measured.
    GrowingBloomFilter(10, 0.01).add(b"first")
    before = resident_bytes()
    filter_: Any
    if name == "Scrapy":
        filter_ = RFPDupeFilter(fingerprinter=Given())
        for fingerprint in fingerprints(count):
            filter_.request_seen(fingerprint)
    else:
        filter_ = GrowingBloomFilter(count, float(name))
        for fingerprint in fingerprints(count):
            filter_.add(fingerprint)
    gc.collect()
    grown = resident_bytes() - before
    print(json.dumps({"grown": grown, "bits": getattr(filter_, "size_bytes", 0)}))


def memory(options: Options) -> None:
    from scrapy_dedupe.urls.bloom import optimal_bits

    count = options.urls or 1_000_000
    grown: dict[str, float] = {}
    bits: dict[str, float] = {}
    for name in ("Scrapy", "1e-06", "0.01"):
        runs = []
        for _ in range(options.rounds):
            command = [sys.executable, str(Path(__file__).resolve()), "--fill", name, str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(done.stdout))
        grown[name] = statistics.median(run["grown"] for run in runs)
        bits[name] = runs[0]["bits"]
    rows: list[tuple[object, ...]] = [
        ("Scrapy's set", megabytes(grown["Scrapy"]), "", "", "", f"{grown['Scrapy'] / count:.1f}", "", "")
    ]
    for name, goal, fewer in (("1e-06", 4.0, "25"), ("0.01", 1.3, "")):
        best = optimal_bits(count, float(name)) / 8
        rows.append(
            (
                f"ours, {name}",
                megabytes(grown[name]),
                megabytes(bits[name]),
                megabytes(goal * count),
                f"{bits[name] / best:.3f}",
                f"{grown[name] / count:.1f}",
                f"{grown['Scrapy'] / grown[name]:.1f}",
                fewer,
            )
        )
    table(
        f"memory: {count:,} fingerprints, MB",
        ("filter", "process", "bits", "goal", "x optimum (goal 1.1)", "bytes/URL", "times less", "goal"),
        rows,
    )


# rates


def keys(options: Options, count: int) -> list[bytes]:
    """The fingerprints of the links and of generated URLs; every tenth generated URL is followed by a repetition."""
    from scrapy import Request
    from scrapy.utils.request import fingerprint

    found: list[bytes] = []
    if options.links is not None:
        known: dict[str, bytes] = {}
        for url in links_of(options.links):
            if url not in known:
                known[url] = fingerprint(Request(url))
            found.append(known[url])
        print(f"\n{len(found):,} links, {len(set(found)):,} of them distinct, from {options.links.name}")
    # Scrapy's fingerprint is a SHA-1 too. Computing it from requests would take an hour and change nothing here.
    for number, url in enumerate(urls_like_real(count)):
        found.append(hashlib.sha1(url.encode()).digest())
        if number % 10 == 9:
            found.append(found[-5])
    return found


def rates(options: Options) -> None:
    from scrapy_dedupe.urls.bloom import GrowingBloomFilter

    asked = keys(options, options.urls or 5_000_000)
    plain: set[bytes] = set()
    is_new = bytearray(len(asked))
    for number, key in enumerate(asked):
        if key not in plain:
            plain.add(key)
            is_new[number] = 1
    distinct = len(plain)
    probes = [hashlib.sha1(b"probe %d" % number).digest() for number in range(1_000_000)]
    assert plain.isdisjoint(probes)
    rows = []
    for error_rate in _ERROR_RATES:
        for factor in (1, 64):
            filter_ = GrowingBloomFilter(-(-distinct // factor), error_rate)
            lost = repeated = 0
            for key, expected in zip(asked, is_new, strict=True):
                answer = filter_.add(key)
                if answer != expected:
                    if expected:
                        lost += 1
                    else:
                        repeated += 1
            figures = filter_.figures()
            wrong = sum(probe in filter_ for probe in probes)
            rows.append(
                (
                    f"{error_rate:g}",
                    f"{factor}x",
                    figures.layers,
                    f"{lost:,}",
                    f"{figures.expected_lost:,.1f}",
                    f"{lost / distinct / error_rate:.3f}",
                    f"{wrong:,}",
                    f"{figures.estimated_error * len(probes):,.1f}",
                    f"{wrong / len(probes) / error_rate:.3f}",
                    "1",
                    repeated,
                )
            )
    table(
        f"rates: {len(asked):,} requests, {distinct:,} distinct, compared with a set; then {len(probes):,} others",
        (
            "setting", "first capacity", "layers", "lost", "expected", "rate / setting", "false when full", "expected",
            "rate / setting", "goal", "asked twice (goal 0)",
        ),
        rows,
    )  # fmt: skip


# open


def open_(options: Options) -> None:
    from scrapy_dedupe.urls.bloom import Geometry, GrowingBloomFilter
    from scrapy_dedupe.urls.folder import FilterFolder

    count = options.urls or 10_000_000
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for error_rate in (1e-6, 0.01):
            geometry: Geometry = GrowingBloomFilter(count, error_rate).dump_layers()[0][0]
            # Half of the bits are set, as in a full filter.
            bits = os.urandom(geometry.size_bytes)
            filter_ = GrowingBloomFilter.from_layers(count, error_rate, [(geometry, count, [bits])])
            place = Path(work, str(error_rate))
            folder = FilterFolder(place, "bench.Fingerprinter")
            folder.open(count, error_rate)
            for start in range(0, count, 100_000):
                # The journals exist too, but are not read after a clean stop.
                folder.seen_journal.append(os.urandom(20) for _ in range(start, min(start + 100_000, count)))
            stored, opened = [], []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                folder.close(filter_)
                stored.append(time.perf_counter() - begun)
                # Opening removes the snapshot.
                size = sum(path.stat().st_size for path in folder.folder.iterdir())
                folder = FilterFolder(place, "bench.Fingerprinter")
                begun = time.perf_counter()
                found = folder.open(count, error_rate).filter
                opened.append(time.perf_counter() - begun)
                assert len(found) == count
            folder.abandon()
            rows.append(
                (
                    f"{error_rate:g}",
                    megabytes(geometry.size_bytes),
                    megabytes(size),
                    f"{statistics.median(stored):.3f}",
                    f"{statistics.median(opened):.3f}",
                    "1",
                )
            )
    table(
        f"open: a stored filter of {count:,} URLs, s",
        ("setting", "bits MB", "files MB", "store", "open", "goal"),
        rows,
    )


# redis


def redis_(options: Options) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from scrapy import Request
    from scrapy_redis.dupefilter import RFPDupeFilter
    from servers import RedisServer

    from scrapy_dedupe.stores import parse_store_url
    from scrapy_dedupe.stores.redis import connect
    from scrapy_dedupe.urls.shared import SharedBloomFilter

    size, batch = 100, 100
    times: dict[tuple[str, str], list[float]] = {}

    def take(name: str, answer: str, call: Callable[[Any], object], items: list[Any], answers: int) -> None:
        begun = time.perf_counter()
        for item in items:
            call(item)
        times.setdefault((name, answer), []).append((time.perf_counter() - begun) / answers * 1e6)

    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            client = connect(parse_store_url(server.url))
            one, another = (SharedBloomFilter(client, "bench", 1_000_000, 1e-6) for _ in range(2))
            theirs = RFPDupeFilter(client, "bench:theirs")
            keys = fingerprints((options.urls or 100_000) * options.rounds)
            urls = urls_like_real(size * 100 * options.rounds)
            for _ in range(20 * options.rounds):
                # For the server the second filter is another process, so it has nothing in its cache.
                singles = [next(keys) for _ in range(size)]
                batches = [[next(keys) for _ in range(batch)] for _ in range(5)]
                requests = [Request(next(urls)) for _ in range(size)]
                take("PING", "", lambda _: client.ping(), singles, size)
                for answer, filter_ in (("new", one), ("seen", another)):
                    take("ours, one by one", answer, filter_.add, singles, size)
                    take("ours, by 100", answer, filter_.add_many, batches, len(batches) * batch)
                    take("scrapy-redis", answer, theirs.request_seen, requests, size)
                take("its fingerprint", "", theirs.request_fingerprint, requests, size)
        finally:
            server.stop()
    found = {key: statistics.median(values) for key, values in times.items()}
    # The fastest tenth of the blocks, for machines that do other work at the same time.
    quiet = {key: sorted(values)[len(values) // 10] for key, values in times.items()}
    for answer in ("new", "seen"):
        for each in (found, quiet):
            each["scrapy-redis less its fingerprint", answer] = (
                each["scrapy-redis", answer] - each["its fingerprint", ""]
            )
    goals = {"ours, one by one": "15,000", "ours, by 100": "100,000"}
    table(
        "redis: at one in a million, us per answer, and answers per second",
        ("filter", "answer", "median", "per second", "fastest tenth", "per second", "goal"),
        [
            (
                name,
                answer,
                f"{us:.1f}",
                f"{1e6 / us:,.0f}",
                f"{quiet[name, answer]:.1f}",
                f"{1e6 / quiet[name, answer]:,.0f}",
                goals.get(name, ""),
            )
            for (name, answer), us in found.items()
        ],
    )


SECTIONS: dict[str, Callable[[Options], None]] = {
    "cold": cold,
    "warm": warm,
    "rules": rules,
    "memory": memory,
    "rates": rates,
    "open": open_,
    "redis": redis_,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, metavar="SECTION", help="may be repeated"
    )
    parser.add_argument("--urls", type=int, help="number of URLs, instead of the default of each section")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of cold, warm, memory, open and redis (5)"
    )
    parser.add_argument("--links", type=Path, help="a folder of HTML files, for rates")
    parser.add_argument("--fill", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.fill:
        fill(parsed.fill[0], int(parsed.fill[1]))
        return
    options = Options(parsed.urls, parsed.rounds, parsed.links)
    for name in parsed.only or SECTIONS:
        SECTIONS[name](options)


if __name__ == "__main__":
    main()
