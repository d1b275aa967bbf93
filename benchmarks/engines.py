"""Compare ``dedupe`` on one machine with ``dedupe --engine spark`` on the same machine.

    python benchmarks/engines.py FOLDER [--megabytes 400] [--files 16] [--copies 0.4] [--jobs 2] [--work DIR] [--keep]

FOLDER holds HTML files, as for ``benchmarks/warc.py``. An archive of this size is made from them: WARC files with one gzip
member for each record; responses, each with its request. Every page is compressed only once, so that making the archive
takes little time; the start of each payload differs, except for the share ``--copies`` of them.

Both engines deduplicate the archive, and then an archive of two small pages, which shows the cost of the start. The CPU time
is that of all processes that a command starts, at any depth. The memory is the largest resident size of each kind of
process: ``java``, ``python`` (the command itself), ``task`` (processes that run tasks). The new files must be the same.
Needs Linux, and three times ``--megabytes`` on the disk.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from offline import HEAD, PROGRAM, record, record_id, sha1
from warc import read_pages
from zlib_ng import zlib_ng

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGES = 2_000
GZIP_START = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RECORD_END = b"\r\n\r\n"
POLL_S = 1
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--copies", type=float, default=0.4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=("local", "spark"))
    parser.add_argument("--work", type=Path, default=Path("engines-work"))
    parser.add_argument(
        "--keep", action="store_true", help="keep the archive, for the next call, and the new files"
    )
    options = parser.parse_args()
    # Processes whose parent has ended become children of this one, so that their CPU time counts too.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    work: Path = options.work
    archive, small = work / "archive", work / "small"
    if not archive.exists():
        make_archive(archive, options.folder, options.megabytes << 20, options.files, options.copies)
        make_archive(small, options.folder, 1, 2, 0)
    engines = {
        "local": ("--jobs", str(options.jobs)),
        "spark": ("--engine", "spark", "--master", f"local[{options.jobs}]"),
    }
    net: dict[str, float] = {}
    for name, words in engines.items():
        if options.only not in (None, name):
            continue
        begun, _, _ = measured(small, work / f"small-{name}", words)
        spent, elapsed, peaks = measured(archive, work / name, words)
        net[name] = spent - begun
        memory = ", ".join(f"{kind} {size >> 20}" for kind, size in sorted(peaks.items()))
        print(
            f"{name}: CPU {spent:.1f} s, {begun:.1f} s of it to start; elapsed {elapsed:.0f} s; peak MB: {memory}",
            flush=True,
        )
    if len(net) == len(engines):
        print(f"Spark needs {net['spark'] / net['local']:.2f} times the CPU beyond the start.")
        same = digests(work / "local") == digests(work / "spark")
        print(f"The new files are {'the same' if same else 'DIFFERENT'}.")
    if not options.keep:
        shutil.rmtree(work)


# The archive


def make_archive(folder: Path, html: Path, size_bytes: int, files: int, copies: float) -> None:
    rng = random.Random(3)
    pages = read_pages(html, PAGES)
    packed = [deflated(page, zlib_ng.Z_SYNC_FLUSH) for page in pages]
    folder.mkdir(parents=True)
    bodies: list[int] = []
    number = 0
    for file in range(files):
        with (folder / f"bench-{file:03}.warc.gz").open("wb") as stream:
            while stream.tell() < size_bytes / files:
                if bodies and rng.random() < copies:
                    body = rng.choice(bodies)
                else:
                    body = number
                    bodies.append(number)
                write_exchange(stream, number, body, pages, packed)
                number += 1
    print(f"{number:,} responses in {files} files", flush=True)


def write_exchange(
    stream: BinaryIO, number: int, body: int, pages: Sequence[bytes], packed: Sequence[bytes]
) -> None:
    page = pages[body % len(pages)]
    start = b"<!-- %d -->" % body
    head = HEAD % (len(start) + len(page)) + start
    whole = record("response", number, head + page, b"WARC-Payload-Digest: " + sha1(start + page))
    cut = len(whole) - len(page) - len(RECORD_END)
    stream.write(GZIP_START + deflated(whole[:cut], zlib_ng.Z_SYNC_FLUSH))
    stream.write(packed[body % len(pages)] + deflated(RECORD_END, zlib_ng.Z_FINISH))
    stream.write(zlib_ng.crc32(whole).to_bytes(4, "little") + len(whole).to_bytes(4, "little"))
    asked = b"GET /doc/html/page-%d.html?view=full HTTP/1.1\r\nHost: example.org\r\n\r\n" % number
    link = b"WARC-Concurrent-To: " + record_id("response", number)
    request = record("request", number, asked, link)
    stream.write(zlib_ng.compress(request, 1, 31))


def deflated(data: bytes, end: int) -> bytes:
    member = zlib_ng.compressobj(6, zlib_ng.DEFLATED, -15)
    return member.compress(data) + member.flush(end)


# Measuring


def measured(archive: Path, output: Path, words: Sequence[str]) -> tuple[float, float, dict[str, int]]:
    """CPU and elapsed seconds of a command with all its processes, and the peak memory by kind of process."""
    shutil.rmtree(output, ignore_errors=True)
    before, begun = spent(), time.monotonic()
    command = subprocess.Popen(
        [*PROGRAM, "dedupe", str(archive), "-o", str(output), *words], stdout=subprocess.DEVNULL
    )
    peaks: Counter[str] = Counter()
    code, elapsed = None, 0.0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # all processes have ended
            break
        if pid == command.pid:
            code, elapsed = os.waitstatus_to_exitcode(status), time.monotonic() - begun
        elif not pid:
            time.sleep(POLL_S)
            for kind, size in sizes(command.pid):
                peaks[kind] = max(peaks[kind], size)
    command.returncode = code
    if code:
        sys.exit(f"dedupe {' '.join(words)} ended with exit code {code}.")
    return spent() - before, elapsed, dict(peaks)


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def sizes(command: int) -> list[tuple[str, int]]:
    """The kind and the largest resident size so far of each process below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = []
    for pid in parents:
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        if not above or pid == os.getpid():
            continue
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if "VmHWM:" in status:
            kind = "java" if name == "java" else "python" if pid == command else "task"
            found.append((kind, int(status.partition("VmHWM:")[2].split()[0]) << 10))
    return found


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "blake2b").hexdigest()
    return found


if __name__ == "__main__":
    main()
