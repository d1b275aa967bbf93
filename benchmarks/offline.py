"""Benchmark the speed and memory of the offline tools.

    python benchmarks/offline.py FOLDER [--only sum|verbs|pass|memory] [--records 8000] [--copies 0.4] [--rounds 5]

FOLDER holds HTML files, as for ``benchmarks/warc.py``. Four WARC files are made from them, with one gzip member for each
record (zlib at level 6): responses, each with its request. The share ``--copies`` of the responses has the payload of an
earlier one, in the same file or in another.

sum
    The SHA-256 digests of all payloads, computed in this process: by this project, by this project with stored digests,
    and by warcio's reader with hashlib. They alternate file by file. CPU time of the thread, in MB of payload per second;
    medians of the rounds.
verbs
    ``warcsum`` with one and two jobs, ``warccollres --proc``, ``warcrefs``, ``verify``, ``restore`` and ``dedupe`` with
    one and two jobs, each in its own process: elapsed seconds including the start of the interpreter, and the largest
    resident memory of the process and its children; medians of three runs.
pass
    The time in which ``warcrefs`` writes the files, without its verification, compared with copying all members at known
    offsets, copying members while reading, and ``shutil.copyfile``; each syncs the file at the end. They alternate;
    elapsed time, in MB of file per second; medians of the rounds.
memory
    The commands with large input: a payload of ``--large`` MB (5,000), a member of a few MB that decompresses to twice
    this size, and a manifest of ``--lines`` lines (10,000,000). Needs four times ``--large`` on the disk of TMPDIR.
    Reports the largest resident memory.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from warc import read_pages
from warcio.archiveiterator import ArchiveIterator

from scrapy_dedupe.offline.digests import DigestOptions
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.rewriting import RewriteOptions, rewrite
from scrapy_dedupe.offline.summing import SumOptions, sum_files
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FILES = 4
PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from scrapy_dedupe.commands.console import main; sys.exit(main())",
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.26.2\r\nContent-Type: text/html; charset=utf-8\r\n"
    b'Last-Modified: Tue, 01 Sep 2026 08:12:44 GMT\r\nEtag: "66d42c1c-4a3f"\r\nCache-Control: max-age=3600, public\r\n'
    b"Set-Cookie: session=9f1c2a5e; Path=/; HttpOnly\r\nX-Frame-Options: DENY\r\nContent-Length: %d\r\n\r\n"
)


def record(kind: str, number: int, block: bytes, *fields: bytes) -> bytes:
    lines = [
        b"WARC/1.1",
        b"WARC-Type: " + kind.encode(),
        b"WARC-Record-ID: " + record_id(kind, number),
        b"WARC-Date: 2026-11-%02dT%02d:%02d:%02dZ"
        % (1 + number // 86_400, number // 3_600 % 24, number // 60 % 60, number % 60),
        b"WARC-Target-URI: https://example.org/doc/html/page-%d.html?view=full" % number,
        *fields,
        b"Content-Type: application/http; msgtype=" + kind.encode(),
        b"Content-Length: %d" % len(block),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + block + b"\r\n\r\n"


def record_id(kind: str, number: int) -> bytes:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{kind} {number}')}>".encode()


def sha1(data: bytes) -> bytes:
    return b"sha1:" + base64.b32encode(hashlib.sha1(data).digest())


def make_archive(folder: Path, pages: Sequence[bytes], count: int, copies: float) -> int:
    """Write *count* exchanges into `FILES` files. Return the size of all payloads in bytes."""
    rng = random.Random(3)
    bodies: list[tuple[int, int]] = []
    size_bytes = 0
    folder.mkdir()
    for file in range(FILES):
        with (folder / f"bench-{file}.warc.gz").open("wb") as stream:
            for number in range(file * count // FILES, (file + 1) * count // FILES):
                if bodies and rng.random() < copies:
                    body_of = rng.choice(bodies)
                else:
                    body_of = number, number % len(pages)
                    bodies.append(body_of)
                body = b"<!-- %d -->" % body_of[0] + pages[body_of[1]]
                size_bytes += len(body)
                block = HEAD % len(body) + body
                digests = b"WARC-Payload-Digest: " + sha1(body), b"WARC-Block-Digest: " + sha1(block)
                stream.write(gzip.compress(record("response", number, block, *digests), 6))
                asked = b"GET /doc/html/page-%d.html?view=full HTTP/1.1\r\nHost: example.org\r\n\r\n" % number
                link = b"WARC-Concurrent-To: " + record_id("response", number)
                stream.write(gzip.compress(record("request", number, asked, link), 6))
    return size_bytes


def take_turns(
    calls: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """The median time of each call; each round uses another order."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        names = list(calls)
        random.shuffle(names)
        for name in names:
            begun = clock()
            calls[name]()
            spent[name].append(clock() - begun)
    return {name: statistics.median(values) for name, values in spent.items()}


# sum


def sums(archive: Path, payload_bytes: int, rounds: int) -> None:
    """The benchmark ``sum``."""
    paths = sorted(archive.iterdir())
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "sums"

        def ours(path: Path, *, algorithm: str = "sha256", recompute: bool = True) -> None:
            options = SumOptions(DigestOptions(algorithm=algorithm, recompute=recompute), force=True)
            sum_files(find_inputs([str(path)], faults=Faults()), output, options)

        def warcio(path: Path) -> None:
            with path.open("rb") as stream:
                for found in ArchiveIterator(stream):
                    if found.rec_type == "response":
                        digest = hashlib.sha256()
                        while piece := found.raw_stream.read(1 << 16):
                            digest.update(piece)
                        digest.hexdigest()

        totals = {"ours": 0.0, "ours, stored digests": 0.0, "warcio + hashlib": 0.0}
        for path in paths:
            calls: dict[str, Callable[[], None]] = {
                "ours": partial(ours, path),
                "ours, stored digests": partial(ours, path, algorithm="sha1", recompute=False),
                "warcio + hashlib": partial(warcio, path),
            }
            for name, seconds in take_turns(calls, rounds, time.thread_time).items():
                totals[name] += seconds
    print(f"sum: {payload_bytes / 1e6:.0f} MB of payload, {rounds} rounds, CPU of the thread")
    for name, seconds in totals.items():
        print(f"  {name:22} {payload_bytes / 1e6 / seconds:7.0f} MB/s")
    print(f"  ours : warcio           {totals['warcio + hashlib'] / totals['ours']:7.2f}x")


# verbs


def run(folder: Path, *words: str) -> tuple[float, float]:
    """Elapsed seconds, and the largest resident memory in MB."""
    begun = time.perf_counter()
    process = subprocess.Popen([*PROGRAM, *words], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 4):
        sys.exit(f"{' '.join(words)} ended with {process.returncode}.")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def verbs(work: Path, payload_bytes: int) -> None:
    """The benchmark ``verbs``; the archive is ``in`` in *work*."""
    steps: list[tuple[str, str, tuple[str, ...]]] = [
        ("warcsum", "sums", ("warcsum", "-r", "in", "-o", "sums", "--recompute")),
        ("warcsum, 2 jobs", "sums-2", ("warcsum", "-r", "in", "-o", "sums-2", "--recompute", "--jobs", "2")),
        ("warccollres --proc", "numbered", ("warccollres", "sums", "--proc", "-o", "numbered")),
        ("warcrefs", "refs", ("warcrefs", "numbered", "-o", "refs")),
        ("verify", "", ("verify", "in", "refs")),
        ("restore", "back", ("restore", "refs", "-o", "back")),
        ("dedupe", "out", ("dedupe", "-r", "in", "-o", "out")),
        ("dedupe, 2 jobs", "out-2", ("dedupe", "-r", "in", "-o", "out-2", "--jobs", "2")),
    ]
    size = sum(path.stat().st_size for path in (work / "in").iterdir())
    print(f"verbs: {payload_bytes / 1e6:.0f} MB of payload in {size / 1e6:.0f} MB of files, medians of 3")
    for name, output, words in steps:
        measured = []
        for _ in range(3):
            if output:
                remove(work / output)
            measured.append(run(work, *words))
        seconds = statistics.median(measure[0] for measure in measured)
        memory = max(measure[1] for measure in measured)
        rate = payload_bytes / 1e6 / seconds
        print(f"  {name:20} {seconds:7.2f} s  {rate:7.0f} MB/s of payload  {memory:5.0f} MB resident")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# pass


class Stopwatch:
    """A `Progress` that measures the time of each part by its title."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun: list[tuple[str, float]] = []

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        self._begun.append((title, time.perf_counter()))

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        title, begun = self._begun.pop()
        self.seconds[title] = self.seconds.get(title, 0.0) + time.perf_counter() - begun


def synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def rewriting(work: Path, rounds: int) -> None:
    """The benchmark ``pass``."""
    paths = sorted((work / "in").iterdir())
    size = sum(path.stat().st_size for path in paths)
    if not (work / "numbered").exists():
        run(work, "warcsum", "-r", "in", "-o", "sums")
        run(work, "warccollres", "sums", "--proc", "-o", "numbered")
    places = {path: [(found.offset, found.length) for found in read_records(path)] for path in paths}
    target = work / "copied"

    def copy_files() -> None:
        for path in paths:
            shutil.copyfile(path, target)
            synced(target)

    def copy_members() -> None:
        for path in paths:
            with path.open("rb") as source, target.open("wb") as copy:
                for offset, length in places[path]:
                    source.seek(offset)
                    copy.write(source.read(length))
            synced(target)

    def find_and_copy_members() -> None:
        for path in paths:
            with path.open("rb") as source, target.open("wb") as copy:
                for found in read_records(path):
                    source.seek(found.offset)
                    copy.write(source.read(found.length))
            synced(target)

    parts: dict[str, list[float]] = {}

    def ours() -> None:
        remove(work / "refs")
        watch = Stopwatch()
        cwd = Path.cwd()
        os.chdir(work)
        rewrite(
            read_lines(Path("numbered")), None, Places(), Path("refs"), RewriteOptions(sample=0), watch=watch
        )
        os.chdir(cwd)
        for title, seconds in watch.seconds.items():
            parts.setdefault(title, []).append(seconds)

    calls: dict[str, Callable[[], None]] = {
        "shutil.copyfile": copy_files,
        "members at known offsets": copy_members,
        "members found by reading": find_and_copy_members,
        "warcrefs in total": ours,
    }
    medians = take_turns(calls, rounds, time.perf_counter)
    medians |= {f"  {title}": statistics.median(values) for title, values in parts.items()}
    print(f"pass: {size / 1e6:.0f} MB of files, {rounds} rounds, elapsed time")
    for name, seconds in medians.items():
        print(f"  {name:26} {seconds:7.2f} s  {size / 1e6 / seconds:7.0f} MB/s of file")


# memory


def memory(work: Path, large_mb: int, lines: int) -> None:
    """The benchmark ``memory``."""
    (work / "large").mkdir()
    (work / "swelling").mkdir()
    block = os.urandom(1 << 20)
    write_large(work / "large", [block] * large_mb, 0)
    write_large(work / "swelling", [bytes(1 << 20)] * (2 * large_mb), 6)
    print("memory:")
    for name in ("large", "swelling"):
        size = sum(path.stat().st_size for path in (work / name).iterdir())
        for words in (
            ("warcsum", name, "-o", f"{name}-sums"),
            ("warccollres", f"{name}-sums", "--proc", "-o", f"{name}-numbered"),
            ("warcrefs", f"{name}-numbered", "-o", f"{name}-refs"),
            ("restore", f"{name}-refs", "-o", f"{name}-back"),
        ):
            seconds, peak = run(work, *words)
            print(f"  {name}, {size / 1e6:6.0f} MB: {words[0]:12} {seconds:7.1f} s  {peak:5.0f} MB resident")
        for made in ("refs", "back"):
            remove(work / f"{name}-{made}")
        remove(work / name)
    with (work / "many").open("w") as stream:
        for number in range(lines):
            digest = hashlib.md5(b"%d" % (number * 7919 % lines // 3)).hexdigest()
            stream.write(
                f"f{number % 1000}.warc.gz {number * 500} 400 http://example.org/page/{number}"
                f" 2020-01-01T00:00:{number % 60:02}Z md5:{digest} 1\n"
            )
    steps: list[tuple[str, ...]] = [
        ("warcsumproc", "many", "-o", "many-numbered"),
        ("warcsumsplit", "many", "-c", "4", "-o", "many-part"),
    ]
    for step in steps:
        seconds, peak = run(work, *step)
        print(f"  {lines:,} lines: {step[0]:12} {seconds:7.1f} s  {peak:5.0f} MB resident")


def write_large(folder: Path, pieces: Sequence[bytes], level: int) -> None:
    """Write two files, each with one response of all *pieces* in a single gzip member."""
    length = sum(map(len, pieces))
    head = HEAD % length
    for number in range(2):
        whole = record("response", number, head)
        start, _, end = whole.partition(b"Content-Length: %d\r\n\r\n" % len(head))
        compressor = zlib.compressobj(level, wbits=31)
        with (folder / f"{number}.warc.gz").open("wb") as stream:
            stream.write(compressor.compress(start + b"Content-Length: %d\r\n\r\n" % (len(head) + length)))
            stream.write(compressor.compress(end.removesuffix(b"\r\n\r\n")))
            for piece in pieces:
                stream.write(compressor.compress(piece))
            stream.write(compressor.compress(b"\r\n\r\n") + compressor.flush())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("sum", "verbs", "pass", "memory"))
    parser.add_argument("--records", type=int, default=8_000)
    parser.add_argument("--copies", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=5_000, metavar="MB")
    parser.add_argument("--lines", type=int, default=10_000_000)
    options = parser.parse_args()

    def wanted(part: str) -> bool:
        return options.only in (None, part)

    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if options.only != "memory":
            pages = read_pages(options.folder, 2_000)
            payload_bytes = make_archive(work / "in", pages, options.records, options.copies)
        if wanted("sum"):
            sums(work / "in", payload_bytes, options.rounds)
        if wanted("verbs"):
            verbs(work, payload_bytes)
        if wanted("pass"):
            rewriting(work, options.rounds)
        if wanted("memory"):
            memory(work, options.large, options.lines)


if __name__ == "__main__":
    main()
