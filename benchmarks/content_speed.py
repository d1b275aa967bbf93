"""The parts ``chain``, ``exact``, ``near`` and ``memory`` of ``content.py``: speed and size."""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from content_shared import (
    BATCH,
    Options,
    Timing,
    batches,
    claim_texts,
    quantile,
    redis_client,
    redis_server,
    sample_pages,
    sqlite_url,
    stop,
    table,
    time_calls,
)

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import SeenText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# chain


class LiteralRecipe:
    """A literal implementation of the usual recipe: SHA-1 for each shingle, datasketch's index on Redis.

    It stops at an exact copy and does not insert a near copy, so it does less work than if it inserted every page.
    """

    def __init__(self, path: Path, redis_url: str, name: str) -> None:
        from datasketch import MinHashLSH
        from redis.connection import parse_url

        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("CREATE TABLE seen (hash TEXT PRIMARY KEY, url TEXT)")
        storage = {"type": "redis", "basename": name.encode(), "redis": dict(parse_url(redis_url))}
        self._index = MinHashLSH(threshold=0.85, num_perm=128, storage_config=storage)

    def check(self, document: Document) -> str:
        from datasketch import MinHash
        from selectolax.lexbor import LexborHTMLParser

        tree = LexborHTMLParser(document.html)
        tree.strip_tags(["script", "style"])
        text = "" if tree.root is None else " ".join(tree.root.text(separator=" ").split())
        key = sha256(text.encode("utf-8", "replace")).hexdigest()
        if self._database.execute("SELECT 1 FROM seen WHERE hash = ?", (key,)).fetchone():
            return "exact"
        self._database.execute("INSERT INTO seen VALUES (?, ?)", (key, document.url))
        self._database.commit()
        lower = text.lower()
        shingles = {lower[start : start + 7] for start in range(max(1, len(lower) - 6))}
        signature = MinHash(num_perm=128)
        signature.update_batch([shingle.encode("utf-8", "replace") for shingle in shingles])
        if self._index.query(signature):
            return "near"
        self._index.insert(document.url, signature)
        return "unique"

    def close(self) -> None:
        self._database.close()


def chain(options: Options) -> None:
    pages = sample_pages(options, 500 if options.quick else 1_500)
    size = sum(len(page.html) for page in pages) / len(pages)
    with tempfile.TemporaryDirectory() as folder, redis_server(options) as redis_url:
        work = ChainWork(folder, redis_url)
        work.run("SQLite", pages[:100], by=1)  # a warm-up: the costs of the first use are not those of a page
        rows = []
        for store, goal in (("SQLite", "700"), ("Redis", "550")):
            for name, by in (("check", 1), (f"check_many, by {BATCH}", BATCH)):
                timings = [work.run(store, pages, by=by) for _ in range(options.rounds)]
                rows.append((f"{store}, {name}", *speeds(timings, by), goal, "p50 1.5" if by == 1 else ""))
        table(
            f"chain: {len(pages):,} pages of {size:,.0f} characters, HTML in, verdict out",
            ("", "pages/s CPU", "pages/s wall", "p50 ms", "p99 ms", "goal CPU", "goal ms"),
            rows,
        )
        compare_with_literal(work, pages[: 100 if options.quick else 300], options.rounds)


class ChainWork:
    """Processes pages with a new and empty store for each run."""

    def __init__(self, folder: str, redis_url: str) -> None:
        self._folder = folder
        self._redis_url = redis_url
        self._runs = 0

    def run(self, store: str, pages: list[Document], *, by: int) -> Timing:
        self._runs += 1
        redis_client(self._redis_url).flushdb()
        url = self._redis_url if store == "Redis" else sqlite_url(self._folder, f"{self._runs}.sqlite")
        with Deduplicator(url) as deduplicator:
            if by == 1:
                return time_calls(deduplicator.check, pages, len(pages), deduplicator.flush)
            return time_calls(deduplicator.check_many, batches(pages, by), len(pages), deduplicator.flush)

    def run_literal(self, pages: list[Document]) -> Timing:
        self._runs += 1
        redis_client(self._redis_url).flushdb()
        recipe = LiteralRecipe(
            Path(self._folder, f"{self._runs}.sqlite"), self._redis_url, f"bench{self._runs}"
        )
        try:
            return time_calls(recipe.check, pages, len(pages), lambda: None)
        finally:
            recipe.close()


def speeds(timings: list[Timing], by: int = 1) -> tuple[str, ...]:
    """Medians over the runs; the durations of single calls are omitted if a call takes several pages."""
    cells = [
        f"{statistics.median(timing.per_cpu_s for timing in timings):,.0f}",
        f"{statistics.median(timing.per_wall_s for timing in timings):,.0f}",
    ]
    for share in (0.5, 0.99):
        value = statistics.median(quantile(timing.calls_s, share) for timing in timings)
        cells.append(f"{1000 * value:.2f}" if by == 1 else "")
    return tuple(cells)


def compare_with_literal(work: ChainWork, pages: list[Document], rounds: int) -> None:
    runs: dict[str, Callable[[], Timing]] = {
        "literal recipe": lambda: work.run_literal(pages),
        "this package, SQLite": lambda: work.run("SQLite", pages, by=1),
        "this package, Redis": lambda: work.run("Redis", pages, by=1),
    }
    timings: dict[str, list[Timing]] = {name: [] for name in runs}
    for _ in range(rounds):
        # In turn, so that changes of the machine's speed affect all of them.
        for name, run in runs.items():
            timings[name].append(run())
    literal = timings["literal recipe"]
    rows = []
    for name, own_timings in timings.items():
        pairs = list(zip(own_timings, literal, strict=True))
        rows.append(
            (
                name,
                *speeds(own_timings),
                f"{statistics.median(a.per_cpu_s / b.per_cpu_s for a, b in pairs):.2f}",
                f"{statistics.median(a.per_wall_s / b.per_wall_s for a, b in pairs):.2f}",
                "" if own_timings is literal else "4",
            )
        )
    table(
        f"chain: comparison with the literal recipe, the same {len(pages)} pages, one by one",
        ("", "pages/s CPU", "pages/s wall", "p50 ms", "p99 ms", "ratio CPU", "ratio wall", "goal"),
        rows,
    )


# exact


def exact(options: Options) -> None:
    count = 100_000 if options.quick else 1_000_000
    rows = []
    with tempfile.TemporaryDirectory() as folder, redis_server(options) as redis_url:
        sqlite_file = Path(folder, "exact.sqlite")
        for name, url, number in (
            ("SQLite", f"sqlite:///{sqlite_file}", count),
            ("Redis", redis_url, count // 10),
        ):
            before = used_memory(redis_url)
            captures = random_captures(0, number)
            url_bytes = sum(len(capture.url) for capture in captures)
            fresh = claim_all(url, captures)
            # Measured after closing the store, which moves the write-ahead log into the file.
            stored = sqlite_file.stat().st_size if name == "SQLite" else used_memory(redis_url) - before
            again = claim_all(url, random.Random(options.seed).sample(captures, number // 10))
            settled = claim_all(url, random_captures(number, number // 10), as_a_crawl=True)
            goals = ("30,000", "40") if name == "SQLite" else ("", "")
            bytes_a_row = f"{(stored - url_bytes) / number:.1f}"
            rows += [
                (f"{name}, {number:,} new", *rates(fresh), goals[0], bytes_a_row, goals[1]),
                (f"{name}, {number // 10:,} seen", *rates(again), goals[0], "", ""),
                (f"{name}, {number // 10:,} new, settled later", *rates(settled), "", "", ""),
            ]
    table(
        f"exact: the exact layer only, in batches of {BATCH}",
        ("", "digests/s CPU", "digests/s wall", "goal", "bytes per row without the URL", "goal"),
        rows,
    )


def random_captures(first: int, count: int) -> list[SeenText]:
    return [
        SeenText(
            os.urandom(16),
            f"https://www.site-{number % 211}.example/articles/{number % 17}/a-page-{number}.html",
            "bench",
            1_700_000_000_000 + number,
        )
        for number in range(first, first + count)
    ]


def claim_all(url: str, captures: list[SeenText], *, as_a_crawl: bool = False) -> Timing:
    store = open_store(url)
    content = store.content
    try:
        return time_calls(
            lambda some: claim_texts(content, some, as_a_crawl=as_a_crawl),
            batches(captures, BATCH),
            len(captures),
            content.flush,
        )
    finally:
        store.close()


def rates(timing: Timing) -> tuple[str, str]:
    return f"{timing.per_cpu_s:,.0f}", f"{timing.per_wall_s:,.0f}"


# near


def near(options: Options) -> None:
    count = 4_000 if options.quick else 20_000
    kinds: dict[str, dict[str, Any]] = {
        ", guard off": {"template_guard": False},
        ", guard on": {"template_guard": True},
    }
    sizes, trips = [], []
    with redis_server(options) as redis_url:
        for name, extra in kinds.items():
            whole, half = grown_memory(redis_url, count, extra)
            only_exact, half_exact = grown_memory(redis_url, count, extra | {"near_threshold": 1.0})
            sizes.append(
                (
                    f"near index{name}",
                    f"{(whole - only_exact) / count:,.0f}",
                    f"{(whole - half - only_exact + half_exact) / (count - count // 2):,.0f}",
                    f"{only_exact / count:,.0f}",
                    "1,000",
                )
            )
            for by in (1, BATCH):
                way = "check" if by == 1 else f"check_many, by {by}"
                trips.append((f"{way}{name}", *round_trips(redis_url, by, extra), f"{1 / by:.3f}"))
    table(
        f"near: memory of {count:,} documents of random text on Redis, bytes per document",
        ("", "near index", "its second half", "exact rows, with URL", "goal"),
        sizes,
    )
    table(
        "near: server load per page",
        ("", "script calls per page", "socket reads per page", "goal"),
        trips,
    )


# memory

# What the keys of each kind take: their number and bytes by the letter that follows the prefix.
SIZES_BY_KIND = """
local kinds, cursor = {}, '0'
repeat
  local found = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = found[1]
  for _, key in ipairs(found[2]) do
    local kind = string.match(key, '^dedupe:{content}:v%d+:(.)') or key
    local sums = kinds[kind] or {0, 0}
    kinds[kind] = {sums[1] + 1, sums[2] + redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0)}
  end
until cursor == '0'
local answer = {}
for kind, sums in pairs(kinds) do
  answer[#answer + 1] = {kind, sums[1], sums[2]}
end
return answer
"""
KINDS = {
    "t": "first captures of texts",
    "s": "signatures",
    "b": "buckets",
    "c": "other captures",
    "h": "templates",
}


def memory(options: Options) -> None:
    rows = []
    with redis_server(options) as redis_url:
        counts = [options.pages] if options.pages else [3_000] if options.quick else [3_000, 30_000]
        for count in counts:
            grown, _ = grown_memory(redis_url, count, {})
            rows += memory_rows(redis_url, f"{count:,} random texts", count, grown)
        if options.folders:
            pages = sample_pages(options, 3_000)
            client = redis_client(redis_url)
            client.flushdb()
            before = used_memory(redis_url)
            with Deduplicator(redis_url) as deduplicator:
                deduplicator.check_many(pages)
            rows += memory_rows(
                redis_url, f"{len(pages):,} pages", len(pages), used_memory(redis_url) - before
            )
    table(
        "memory: bytes per document on Redis, by kind of key",
        ("", "keys", "bytes per document", "goal"),
        rows,
    )


def memory_rows(redis_url: str, name: str, count: int, grown: int) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(f"{name}: whole server", "", f"{grown / count:,.0f}", "1,000")]
    for kind, keys, size in sorted(redis_client(redis_url).eval(SIZES_BY_KIND, 0)):
        what = KINDS.get(kind.decode("ascii", "replace"), "parameters and crawls")
        rows.append((f"  {kind.decode('ascii', 'replace')}: {what}", f"{keys:,}", f"{size / count:,.1f}", ""))
    return rows


def random_documents(count: int, first: int = 0) -> Iterator[Document]:
    """Dissimilar texts of about 300 characters, on 50 hosts."""
    for number in range(first, first + count):
        rng = random.Random(number)
        words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(45))
        text = " ".join(words)
        yield Document(f"https://www.site-{number % 50}.example/{number}", text, "text/plain")


def grown_memory(redis_url: str, count: int, extra: dict[str, Any]) -> tuple[int, int]:
    """The growth of the server's memory for *count* documents, and for the first half of them."""
    redis_client(redis_url).flushdb()
    with Deduplicator(redis_url, **extra) as deduplicator:
        before = used_memory(redis_url)
        marks = []
        for first, number in ((0, count // 2), (count // 2, count - count // 2)):
            for batch in batches(list(random_documents(number, first)), BATCH):
                if any(verdict.kind != "unique" for verdict in deduplicator.check_many(batch)):
                    raise stop("A document of random text was not unique: the measurement is invalid.")
            deduplicator.flush()
            marks.append(used_memory(redis_url) - before)
    return marks[1], marks[0]


def used_memory(redis_url: str) -> int:
    """The server's memory after its connections and its log have settled."""
    client = redis_client(redis_url)
    smallest = int(client.info("memory")["used_memory"])
    for _ in range(5):
        time.sleep(0.1)
        smallest = min(smallest, int(client.info("memory")["used_memory"]))
    client.close()
    return smallest


def round_trips(redis_url: str, by: int, extra: dict[str, Any]) -> tuple[str, str]:
    """The numbers of script calls and socket reads per page that the server counted."""
    documents = list(random_documents(20 * BATCH, first=1_000_000))
    client = redis_client(redis_url)
    client.flushdb()
    with Deduplicator(redis_url, **extra) as deduplicator:
        deduplicator.check_many(documents[:BATCH])  # the scripts are loaded
        pages = documents[BATCH:]
        before = counted(client)
        if by == 1:
            for page in pages:
                deduplicator.check(page)
        else:
            for batch in batches(pages, by):
                deduplicator.check_many(batch)
        after = counted(client)
    # Reading the counters takes two commands, each with a socket read.
    return (
        f"{(after[0] - before[0]) / len(pages):.3f}",
        f"{(after[1] - before[1] - 2) / len(pages):.3f}",
    )


def counted(client: Any) -> tuple[int, int]:
    commands = client.info("commandstats")
    calls = sum(
        int(commands.get(f"cmdstat_{name}", {}).get("calls", 0))
        for name in ("eval", "evalsha", "evalsha_ro", "eval_ro", "fcall", "fcall_ro")
    )
    return calls, int(client.info("stats")["total_reads_processed"])
