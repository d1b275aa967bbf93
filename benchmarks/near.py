"""Benchmark the join of `scrapy-dedupe near`: CPU time and memory for many documents.

    python benchmarks/near.py FOLDER… [--documents 1000000] [--work near-work] [--jobs 2] [--pairs 20000]

FOLDER holds HTML files, such as /usr/share/doc/libboost1.81-doc. Documents are made from their canonical texts: ten crawls
of the same URIs on 500 hosts, each with a template of its own. In each crawl a page has its last text (60 %), a text with
few other words (30 %), or one in which a third of the words was replaced by those of another page. A tenth of the documents
are one text on 10,000 other hosts, in which only a number differs, so that some buckets have 100,000 documents.

Making and signing the documents takes most of the time. Both are kept in the work folder and not repeated by the next call.
Then each step of the join runs in a process of its own. The table has its CPU time and the largest resident memory.

At last the same texts are looked up, one after the other, with datasketch's MinHashLSH (16 bands of 8 rows, in memory), for
a subset of ``--pairs`` texts; it does not compare the candidates. Its signatures exist before the clock starts.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from content_shared import paths_of, stop, table
from zlib_ng import zlib_ng

from scrapy_dedupe.content import HostileMarkup, as_minhash, minhash
from scrapy_dedupe.content.canonical import read
from scrapy_dedupe.content.options import JudgeOptions
from scrapy_dedupe.content.pages import host_of, text_digest
from scrapy_dedupe.near import joins
from scrapy_dedupe.near.pages import CAPTURES, PAGES
from scrapy_dedupe.near.signing import sign_texts
from scrapy_dedupe.near.tables import RowsWriter, Tables, joining, table_of
from scrapy_dedupe.tasks.jobs import run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

CRAWLS = 10
HOSTS = 500
WALL_HOSTS = 10_000
MOST_CHARS = 6_000  # the join does not depend on the length of the texts, but making and signing them does
MEMORY_LIMIT = "1GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, default=Path("near-work"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=20_000)
    options = parser.parse_args()
    work = options.work / f"{options.documents}"
    work.mkdir(parents=True, exist_ok=True)
    make_documents(options, work)
    files = files_of(work)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("documents", partial(join_documents, work)),
        ("texts to sign", partial(join_texts, work)),
    ]
    rows = [(name, *measured(step)) for name, step in steps]
    signed = sign(options, work)
    rows += [
        (name, *measured(step))
        for name, step in (
            ("buckets and decisions", partial(decide, work)),
            ("assumptions checked", partial(check, work)),
            ("result", partial(write, work)),
        )
    ]
    total = sum(row[1] for row in rows)
    table(
        f"{options.documents:,} documents in {len(files)} files, CPU of signing {signed}",
        ("", "CPU s", "elapsed s", "peak MB"),
        [(name, f"{cpu:.1f}", f"{wall:.1f}", f"{peak:,.0f}") for name, cpu, wall, peak in rows]
        + [("all", f"{total:.1f}", "", f"{max(row[3] for row in rows):,.0f}")],
    )
    with joining(work) as engine:
        found = joins.count_groups(Tables(engine), work / "rows.parquet")
    print(", ".join(f"{name} {count:,}" for name, count in found.items()))
    compare_with_datasketch(options, work)


# The documents


def make_documents(options: argparse.Namespace, work: Path) -> None:
    tasks = [(work, crawl, options.documents // CRAWLS) for crawl in range(CRAWLS)]
    tasks = [task for task in tasks if not (work / f"crawl{task[1]}.parquet").exists()]
    if not tasks:
        return
    texts = work / "base.txt"
    if not texts.exists():
        found = {text for folder in options.folders for path in paths_of(folder) if (text := text_of(path))}
        if not found:
            raise stop("No page has at least 500 characters of text.")
        texts.write_text("\n".join(sorted(found)))
    for (_, crawl, _), _ in run_jobs(make_crawl, tasks, options.jobs):
        print(f"made crawl {crawl}", file=sys.stderr)


def text_of(path: Path) -> str:
    try:
        text = read("html", path.read_bytes().decode("utf-8", "replace")).text
    except HostileMarkup:
        return ""
    return text if 500 <= len(text) <= MOST_CHARS else ""


def make_crawl(task: tuple[Path, int, int]) -> None:
    work, crawl, count = task
    texts = (work / "base.txt").read_text().split("\n")
    empty = RowsWriter(work / f"captures{crawl}.parquet", CAPTURES)
    with empty, RowsWriter(work / f"crawl{crawl}.parquet", PAGES) as writer:
        for place in range(count):
            url, title, text = (wall if place % 10 == 0 else page)(texts, place, crawl)
            host = host_of(url)
            writer.write(
                (
                    f"crawl{crawl}.warc.gz",
                    place * 1_000,
                    0,
                    url,
                    f"20{10 + crawl}-01-01T00:00:00Z",
                    crawl * 10**9 + place,
                    text_digest("text/1", text),
                    len(text),
                    "text/html",
                    host,
                    True,
                    [title],
                    zlib_ng.compress(text.encode(), 1),
                    True,
                    None,
                    None,
                    None,
                )
            )


def wall(texts: list[str], place: int, crawl: int) -> tuple[str, str, str]:
    """One text on many hosts. By the numbers in their URIs these are other pages, so all are kept."""
    url = f"http://wall{place // 10 % WALL_HOSTS}.example/{place}"
    return url, "Access denied", f"Access denied {texts[0][:2_000]} Request {place}-{crawl}"


def page(texts: list[str], place: int, crawl: int) -> tuple[str, str, str]:
    """The text of a URI in a crawl; the same URI has the same history in every process."""
    base = random.Random(place)
    host = base.randrange(HOSTS)
    words = texts[place % len(texts)].split(" ")
    if place >= len(texts):
        words = replaced(base, words, texts, 0.34)
    for year in range(1, crawl + 1):
        change = random.Random(f"{place} {year}")
        kind = change.random()
        if kind < 0.3:
            words = replaced(change, words, texts, 0.004)
        elif kind < 0.4:
            words = replaced(change, words, texts, 0.34)
    template = texts[host % len(texts)][:800]
    title = " ".join(words[:6])
    url = f"http://host{host}.example/{place % 97}/{place}.html"
    return url, title, f"{title} {template} {' '.join(words)}"


def replaced(rng: random.Random, words: list[str], texts: list[str], share: float) -> list[str]:
    """*words* with a share of them replaced by words of another page, in runs of twenty."""
    words = [*words]
    other = texts[rng.randrange(len(texts))].split(" ")
    for _ in range(max(1, round(share * len(words) / 20))):
        start, source = rng.randrange(len(words)), rng.randrange(len(other))
        words[start : start + 20] = other[source : source + 20]
    return words


# The steps


def files_of(work: Path) -> list[joins.FileRows]:
    return [
        joins.FileRows(
            f"crawl{crawl}.warc.gz",
            Path(f"crawl{crawl}.warc.gz"),
            work / f"crawl{crawl}.parquet",
            work / f"captures{crawl}.parquet",
        )
        for crawl in range(CRAWLS)
    ]


def join_documents(work: Path) -> None:
    with joining(work, memory_limit=MEMORY_LIMIT) as engine:
        tables = Tables(engine)
        joins.find_originals(tables, files_of(work), work / "originals.parquet")
        joins.join_documents(tables, files_of(work), work / "originals.parquet", work / "documents.parquet")


def join_texts(work: Path) -> None:
    with joining(work, memory_limit=MEMORY_LIMIT) as engine:
        joins.join_texts(Tables(engine), files_of(work), work / "documents.parquet", work / "texts.parquet")


def sign(options: argparse.Namespace, work: Path) -> str:
    with joining(work) as engine:
        shares = joins.shares_of(Tables(engine), work / "texts.parquet")
    left = [share for share, _ in shares if not signatures(work, share).exists()]
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    for share, _ in run_jobs(partial(sign_share, work), left, options.jobs):
        print(f"signed share {share}", file=sys.stderr)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    return f"{seconds:.0f} s" if left else "not measured (done by an earlier call)"


def sign_share(work: Path, share: int) -> None:
    sign_texts(work / "texts.parquet", share, signatures(work, share), JudgeOptions())


def signatures(work: Path, share: int) -> Path:
    return work / f"signatures-{share}.parquet"


def all_signatures(work: Path) -> list[Path]:
    return sorted(work.glob("signatures-*.parquet"))


def decide(work: Path) -> None:
    with joining(work, memory_limit=MEMORY_LIMIT) as engine:
        joins.decide(
            Tables(engine), work / "documents.parquet", all_signatures(work), work / "decisions.parquet"
        )


def check(work: Path) -> None:
    with joining(work, memory_limit=MEMORY_LIMIT) as engine:
        changed = joins.shares_to_sign_again(
            Tables(engine), work / "texts.parquet", all_signatures(work), work / "decisions.parquet"
        )
        query = (
            f"SELECT count(*) FROM {table_of(all_signatures(work))} AS signed"
            f" LEFT JOIN {table_of([work / 'decisions.parquet'])} AS decided USING (number)"
            " WHERE signed.is_own_version <> coalesce(decided.is_own_version, false)"
        )
        ((wrong,),) = engine.execute(query).fetchall()
    print(
        f"{len(changed)} of {len(all_signatures(work))} shares would be signed again: {wrong:,} texts",
        file=sys.stderr,
    )


def write(work: Path) -> None:
    groups = work / "rows.parquet"
    with joining(work, memory_limit=MEMORY_LIMIT) as engine:
        joins.join_groups(Tables(engine), work / "documents.parquet", work / "decisions.parquet", groups)
    joins.write_groups(groups, work / "groups.parquet", "parquet")


def measured(step: Callable[[], object]) -> tuple[float, float, float]:
    """CPU seconds, elapsed seconds and the largest resident memory in MB of a step in its own process."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(step, sender))
    process.start()
    sender.close()
    try:
        found: tuple[float, float, float] = receiver.recv()
    except EOFError:
        raise SystemExit(1) from None
    process.join()
    return found


def _measure(step: Callable[[], object], sender: Any) -> None:
    cpu, wall_time = time.process_time(), time.perf_counter()
    step()
    cpu, wall_time = time.process_time() - cpu, time.perf_counter() - wall_time
    sender.send((cpu, wall_time, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024))


# The comparison


def compare_with_datasketch(options: argparse.Namespace, work: Path) -> None:
    from datasketch import MinHashLSH

    with joining(work) as engine:
        subset = subset_of(engine, work, options.pairs)
        texts = f"SELECT text FROM {table_of([work / 'texts.parquet'])} WHERE number IN ({subset}) ORDER BY number"
        shown = [zlib_ng.decompress(text).decode() for (text,) in engine.execute(texts).fetchall()]
    signed = [as_minhash(minhash(text)) for text in shown]
    index = MinHashLSH(num_perm=128, params=(16, 8))
    start = time.process_time()
    near = 0
    for number, one in enumerate(signed):
        if index.query(one):
            near += 1
        else:
            index.insert(number, one)
    rows = [("datasketch, not compared", f"{time.process_time() - start:.2f}", f"{near:,}")]
    cpu, near = decide_subset(work, options.pairs)
    rows.append(("buckets and decisions", f"{cpu:.2f}", f"{near:,}"))
    table(f"{len(shown):,} texts", ("", "CPU s", "near"), rows)


def subset_of(engine: Any, work: Path, count: int) -> str:
    """A query for the numbers of about *count* texts: all texts of some URIs."""
    texts = table_of([work / "texts.parquet"])
    ((total,),) = engine.execute(f"SELECT count(*) FROM {texts}").fetchall()
    return f"SELECT number FROM {texts} WHERE hash(uri) % 10000 < {round(10_000 * count / total)}"


def decide_subset(work: Path, count: int) -> tuple[float, int]:
    folder = work / "subset"
    folder.mkdir(exist_ok=True)
    with joining(folder, memory_limit=MEMORY_LIMIT) as engine:
        signed = f"SELECT * FROM {table_of(all_signatures(work))} WHERE number IN ({subset_of(engine, work, count)})"
        engine.execute(f"COPY ({signed}) TO '{folder}/signatures.parquet'")
        start = time.process_time()
        joins.decide(
            Tables(engine),
            work / "documents.parquet",
            [folder / "signatures.parquet"],
            folder / "decisions.parquet",
        )
        cpu = time.process_time() - start
        query = f"SELECT count(*) FROM {table_of([folder / 'decisions.parquet'])} WHERE kept <> number"
        return cpu, engine.execute(query).fetchall()[0][0]


if __name__ == "__main__":
    main()
