"""Benchmark of the archive layer, compared with warcio and with only the compression library.

    python benchmarks/warc.py FOLDER [--only writer|memory|wacz] [--pages 2000] [--rounds 5] [--records 100000]

FOLDER contains HTML files, such as those of a ``*-doc`` package of Debian under /usr/share/doc; files of 6 to 120 kB
are used. ``benchmarks/crawl.py`` measures the cost of the archive in a crawl.

writer
    Writes the pages as exchanges, each with response and request, into one file: our writer with SHA-256, our writer
    with SHA-1 (as in warcio), warcio's ``WARCWriter``, and only libdeflate, called on the finished bytes of our
    records. They alternate in one process, 200 pages at a time, so that changes of the machine's speed affect all
    alike. CPU time; medians of the rounds. If the processor has no instructions for SHA (``sha_ni``), the two digests
    of a page take two thirds of the time of its compression.
memory
    Writes 100,000 exchanges with our writer: the resident memory after a tenth of them and at the end.
wacz
    Packs that archive as a WACZ: time, and the maximum growth of the resident memory.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deflate import gzip_compress
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import DEFAULT_GZIP_LEVEL, WarcWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 200
RESPONSE_HEADERS = (
    (b"Date", b"Sat, 28 Nov 2026 10:00:00 GMT"),
    (b"Server", b"nginx/1.26.2"),
    (b"Content-Type", b"text/html; charset=utf-8"),
    (b"Last-Modified", b"Tue, 01 Sep 2026 08:12:44 GMT"),
    (b"Vary", b"Accept-Encoding"),
    (b"Etag", b'"66d42c1c-4a3f"'),
    (b"Cache-Control", b"max-age=3600, public"),
    (b"Set-Cookie", b"session=9f1c2a5e; Path=/; HttpOnly"),
    (b"Set-Cookie", b"theme=light; Path=/"),
    (b"X-Frame-Options", b"DENY"),
)
REQUEST_HEADERS = (
    (b"Accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    (b"Accept-Language", b"en"),
    (b"User-Agent", b"Scrapy/2.19.0 (+https://scrapy.org)"),
    (b"Accept-Encoding", b"gzip, deflate, br, zstd"),
    (b"Referer", b"https://example.org/index.html"),
)


def read_pages(folder: Path, limit: int) -> list[bytes]:
    """Up to *limit* pages, a reproducible random sample."""
    paths = sorted(
        Path(base) / name for base, _, names in os.walk(folder) for name in names if name.endswith(".html")
    )
    random.Random(5).shuffle(paths)
    pages: list[bytes] = []
    for path in paths:
        body = path.read_bytes()
        if 6_000 <= len(body) <= 120_000:
            pages.append(body)
        if len(pages) == limit:
            break
    if not pages:
        sys.exit(f"There are no HTML files of 6 to 120 kB below {folder}.")
    return pages


def capture_of(body: bytes, number: int) -> Capture:
    return Capture(
        url=f"https://example.org/doc/html/page-{number}.html?view=full",
        method="GET",
        status=200,
        date=datetime.now(UTC),
        request_headers=REQUEST_HEADERS,
        request_body=b"",
        response_headers=RESPONSE_HEADERS,
        body=body,
        ip_address="192.0.2.17",
        protocol="HTTP/1.1",
    )


def new_writer(folder: str) -> WarcWriter:
    return WarcWriter(Path(folder), "bench", info={"software": "bench"}, file_size=10**12)


# writer


def write_ours(writer: WarcWriter, algorithm: str, captures: Sequence[Capture]) -> None:
    for capture in captures:
        write_one(writer, capture, algorithm)


def write_one(writer: WarcWriter, capture: Capture, algorithm: str = "sha256") -> None:
    digest = capture.payload_digest(algorithm)
    principal = records.response(capture, digest=digest, warcinfo_id=writer.warcinfo_id)
    request = records.request(
        capture, concurrent_to=principal.id, warcinfo_id=writer.warcinfo_id, algorithm=algorithm
    )
    writer.write([principal, request])


def write_warcio(writer: WARCWriter, captures: Sequence[Capture]) -> None:
    for capture in captures:
        head = StatusAndHeaders("200 OK", _texts(capture.response_headers), protocol="HTTP/1.1")
        principal = writer.create_warc_record(
            capture.url,
            "response",
            payload=io.BytesIO(capture.body),
            length=len(capture.body),
            http_headers=head,
            warc_headers_dict={"WARC-IP-Address": "192.0.2.17", "WARC-Protocol": "http/1.1"},
        )
        head = StatusAndHeaders(
            "GET /doc/html/page.html?view=full HTTP/1.1",
            [*_texts(capture.request_headers), ("Host", "example.org")],
            is_http_request=True,
        )
        writer.write_request_response_pair(
            writer.create_warc_record(
                capture.url,
                "request",
                http_headers=head,
                warc_headers_dict={"WARC-IP-Address": "192.0.2.17", "WARC-Protocol": "http/1.1"},
            ),
            principal,
        )


def _texts(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def writer(pages: list[bytes], rounds: int) -> None:
    """The part ``writer``."""
    captures = [capture_of(body, number) for number, body in enumerate(pages)]
    finished: list[bytes] = []
    for capture in captures:
        principal = records.response(capture, digest=capture.payload_digest())
        request = records.request(capture, concurrent_to=principal.id)
        finished += [principal.to_bytes(), request.to_bytes()]

    def compress(part: Sequence[bytes]) -> None:
        for data in part:
            gzip_compress(data, DEFAULT_GZIP_LEVEL)

    seconds: dict[str, list[float]] = {
        name: [] for name in ("ours", "ours, SHA-1", "warcio", "only compression")
    }
    sizes: dict[str, int] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            spent = dict.fromkeys(seconds, 0.0)
            ours, sha1 = new_writer(f"{folder}/ours"), new_writer(f"{folder}/sha1")
            peer_path = Path(folder) / "peer.warc.gz"
            with peer_path.open("wb") as stream:
                peer = WARCWriter(stream, gzip=True, warc_version="WARC/1.1")
                calls: dict[str, Callable[[Any], None]] = {
                    "ours": partial(write_ours, ours, "sha256"),
                    "ours, SHA-1": partial(write_ours, sha1, "sha1"),
                    "warcio": partial(write_warcio, peer),
                    "only compression": compress,
                }
                for start in range(0, len(captures), BLOCK):
                    names = list(calls)
                    random.shuffle(names)
                    for name in names:
                        if name == "only compression":
                            part: Sequence[Any] = finished[2 * start : 2 * (start + BLOCK)]
                        else:
                            part = captures[start : start + BLOCK]
                        begun = time.thread_time()
                        calls[name](part)
                        spent[name] += time.thread_time() - begun
            sizes = {
                "ours": sum(file.size_bytes for file in ours.close()),
                "warcio": peer_path.stat().st_size,
            }
            sha1.close()
        for name, value in spent.items():
            seconds[name].append(value)
    mean = sum(map(len, pages)) / len(pages)
    print(
        f"writer: {len(pages)} pages of {mean / 1000:.1f} kB in the mean, {rounds} rounds, CPU of the thread"
    )
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(
            f"  {name:18} {2 * len(pages) / value:9,.0f} records/s  {value / len(pages) * 1e6:7.1f} us an exchange"
        )
    for name in ("ours", "ours, SHA-1"):
        print(f"  {name:11} : warcio            {medians['warcio'] / medians[name]:.2f}x the records/s")
        print(f"  {name:11} : only compression {medians[name] / medians['only compression']:.2f}x its time")
    print(f"  size, ours  : warcio            {sizes['ours'] / sizes['warcio']:.3f}x")


# memory and wacz


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def memory(folder: str, pages: list[bytes], count: int) -> list[Path]:
    """The part ``memory``: write *count* exchanges; a number makes each page different."""
    writer = new_writer(folder)
    begun = time.perf_counter()
    marks: list[float] = []
    for number in range(count):
        write_one(writer, capture_of(b"<!-- %d -->" % number + pages[number % len(pages)], number))
        if number + 1 in (max(1, count // 10), count):
            marks.append(resident_mb())
    names = [file.file for file in writer.close()]
    print(f"memory: {count:,} exchanges in {time.perf_counter() - begun:.0f} s")
    print(f"  resident after a tenth {marks[0]:.0f} MB, at the end {marks[-1]:.0f} MB")
    return [Path(folder) / name for name in names]


def wacz(files: Sequence[Path]) -> None:
    """The part ``wacz``: pack *files* in a new process, whose memory peak is measured after its imports."""
    code = (
        "import resource, sys, time; from pathlib import Path;"
        "from scrapy_dedupe.warc.wacz import WaczPage, pack; from scrapy_dedupe.warc.url_keys import load_surt; load_surt();"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024;"
        "files = list(map(Path, sys.argv[1:])); before, begun = peak(), time.perf_counter();"
        "page = lambda record: WaczPage(record.target_uri, record.date, 'A page');"
        "done = pack(files, files[0].with_name('bench.wacz'), page_of=page, crawl='bench', software='bench');"
        "print(f'wacz: {done.captures:,} captures, {done.size_bytes / 1e6:.0f} MB in {time.perf_counter() - begun:.0f} s');"
        "print(f'  resident before {before:.0f} MB, at most {peak():.0f} MB')"
    )
    subprocess.run([sys.executable, "-c", code, *map(str, files)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=("writer", "memory", "wacz"))
    parser.add_argument("--pages", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000)
    options = parser.parse_args()
    pages = read_pages(options.folder, options.pages)
    if options.only in (None, "writer"):
        writer(pages, options.rounds)
    if options.only in (None, "memory", "wacz"):
        with tempfile.TemporaryDirectory() as folder:
            files = memory(folder, pages, options.records)
            if options.only != "memory":
                wacz(files)


if __name__ == "__main__":
    main()
