"""Records that may not be originals, or that only look so: what an import enters, a check finds and a repair keeps.

Each is imported alone and with all others, checked, made anew and checked again. Nothing may be found, and the entries
may be no others afterwards. A crawl then stores the payload of each record that is no original.
"""

from __future__ import annotations

import gzip
import hashlib
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

import pytest
from import_files import Quiet, id_of, line, record, request_record, warcinfo
from recorded_crawls import OpenGuard
from sound_archives import assert_sound_and_repaired_alike

from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.importing import ImportOptions, import_sources
from scrapy_dedupe.crawls.rebuilding import settle
from scrapy_dedupe.crawls.recorder import Recorder
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.crawls import CrawlIndex

BODY = Random(0).randbytes(3_000)
SIZE = b"%x" % len(BODY)
CHUNKED = ("Transfer-Encoding: chunked",)
GZIPPED = ("Content-Encoding: gzip",)
PACKED = gzip.compress(BODY, mtime=0)
EMPTY = "sha256:" + hashlib.sha256(b"").hexdigest()


def odd(
    number: int,
    body: bytes,
    headers: tuple[str, ...] = (),
    *fields: str,
    status: str = "HTTP/1.1 200 OK",
    digest: str | None = None,
    kind: str = "response",
) -> bytes:
    """A record; its payload digest is of its number unless one is given, so that no two are copies."""
    head = "\r\n".join([status, "Content-Type: text/html", f'ETag: "{number}"', *headers]) + "\r\n\r\n"
    own = f"sha256:{hashlib.sha256(b'%d' % number).hexdigest()}"
    return record(
        kind,
        number,
        head.encode() + body,
        *([f"WARC-Payload-Digest: {digest or own}"] if digest != "none" else []),
        "Content-Type: application/http; msgtype=response",
        *fields,
        uri=f"http://example.org/{number}",
    )


def asked(number: int, *records: bytes) -> bytes:
    """Records with the GET request of the first one."""
    uri = f"http://example.org/{number}"
    request = request_record(number + 500, "GET", f"WARC-Concurrent-To: {id_of(number)}", uri=uri)
    return records[0] + request + b"".join(records[1:])


PROFILE = "WARC-Profile: http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
OF_PLAIN = (
    PROFILE,
    "WARC-Refers-To-Target-URI: http://example.org/1",
    "WARC-Refers-To-Date: 2026-08-01T12:00:00.123Z",
)
PLAIN = odd(1, BODY)
DIGEST_OF_PLAIN = f"sha256:{hashlib.sha256(b'1').hexdigest()}"


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in parts)


END = b"0\r\n\r\n"
# Each with what says whether it may be an original.
ODD: dict[str, tuple[bytes, bool]] = {
    "plain": (PLAIN, True),
    "whole chunks": (odd(2, chunks(BODY) + END, CHUNKED), True),
    "chunk extension": (odd(3, SIZE + b";a=b\r\n" + BODY + b"\r\n" + END, CHUNKED), False),
    "extension of the last chunk": (odd(4, chunks(BODY) + b"0;a=b\r\n\r\n", CHUNKED), False),
    "trailer": (odd(5, chunks(BODY) + b"0\r\nX-Sum: 1\r\n\r\n", CHUNKED), False),
    "no last chunk": (odd(6, chunks(BODY), CHUNKED), False),
    "cut last chunk": (odd(7, chunks(BODY) + b"0\r\n", CHUNKED), False),
    "cut second chunk": (odd(8, chunks(b"abcde") + SIZE + b"\r\n" + BODY[:99], CHUNKED), False),
    "chunk size too large": (odd(9, b"ffff\r\n" + BODY + b"\r\n" + END, CHUNKED), True),
    "chunk size too small": (odd(10, b"5\r\n" + BODY + b"\r\n" + END, CHUNKED), True),
    "chunk size that is none": (odd(11, b"xyz\r\n" + BODY + b"\r\n" + END, CHUNKED), True),
    "never in chunks": (odd(12, BODY, CHUNKED), True),
    "gzip in chunks": (odd(13, chunks(PACKED, PACKED) + END, (*GZIPPED, *CHUNKED)), True),
    "gzip as transfer coding": (odd(14, PACKED, ("Transfer-Encoding: gzip",)), True),
    "gzip in cut chunks": (odd(15, chunks(PACKED), (*GZIPPED, *CHUNKED)), False),
    "empty": (odd(16, b"", digest=EMPTY), False),
    "empty, with another digest": (odd(17, b""), False),
    "empty in chunks": (odd(18, END, CHUNKED), False),
    "empty in chunks, digest of nothing": (odd(19, END, CHUNKED, digest=EMPTY), False),
    "full, with the digest of nothing": (odd(20, BODY, digest=EMPTY), False),
    "truncated": (odd(21, BODY, (), "WARC-Truncated: length"), False),
    "truncated for an unknown reason": (odd(22, BODY, (), "WARC-Truncated: whatever"), False),
    "segment": (odd(23, BODY, (), "WARC-Segment-Number: 1"), False),
    "206": (odd(24, BODY, status="HTTP/1.1 206 Partial Content"), False),
    "304": (odd(25, BODY, status="HTTP/1.1 304 Not Modified"), False),
    "103": (odd(26, BODY, status="HTTP/1.1 103 Early Hints"), False),
    "404": (odd(27, BODY, status="HTTP/1.1 404 Not Found"), True),
    "600": (odd(28, BODY, status="HTTP/1.1 600 Odd"), True),
    "HTTP/0.9": (odd(29, BODY, status="<html>"), False),
    "Icecast": (odd(30, BODY, status="ICY 200 OK"), False),
    "no reason phrase": (odd(31, BODY, status="HTTP/1.1 200"), True),
    "HTTP/2": (odd(32, BODY, status="HTTP/2 200"), True),
    "status that is none": (odd(33, BODY, status="HTTP/1.1 abc OK"), False),
    "request in a response": (odd(34, BODY, status="GET / HTTP/1.1"), False),
    "resource": (odd(35, BODY, kind="resource"), False),
    "no digest": (odd(36, BODY, digest="none"), False),
    "unknown algorithm": (odd(37, BODY, digest="xxh3:" + "7" * 32), True),
    "SHA3": (odd(38, BODY, digest="sha3-256:" + hashlib.sha3_256(BODY).hexdigest()), True),
    "digest without label": (odd(39, BODY, digest=hashlib.md5(b"39").hexdigest()), True),
    "digest that is none": (odd(40, BODY, digest="sha256:none"), False),
    "date that is none": (gzip.compress(gzip.decompress(odd(41, BODY)).replace(b"2026-08-01T", b"August ")), False),
    "no URI": (gzip.compress(gzip.decompress(odd(42, BODY)).replace(b"WARC-Target-URI", b"X-URI")), False),
    "DNS": (gzip.compress(gzip.decompress(odd(43, BODY)).replace(b"http://example.org/43", b"dns:example.org")), False),
}  # fmt: skip
# What an offline tool may take all the same: it makes digests of its own, and knows no request.
ABOUT_THE_INDEX = {
    "full, with the digest of nothing", "no digest", "digest that is none", "date that is none", "no URI", "DNS"
}  # fmt: skip
WITH_REQUEST = {name: asked(number, data) for number, (name, (data, _)) in enumerate(ODD.items(), 1)}
OTHERS = {
    "POST": odd(50, BODY) + request_record(550, "POST", f"WARC-Concurrent-To: {id_of(50)}", uri="http://example.org/50"),
    "HEAD": odd(51, BODY) + request_record(551, "HEAD", f"WARC-Concurrent-To: {id_of(51)}", uri="http://example.org/51"),
    "revisit": asked(1, PLAIN, odd(52, b"", (), *OF_PLAIN, kind="revisit", digest=DIGEST_OF_PLAIN)),
    "revisit with a body": asked(1, PLAIN, odd(53, BODY, (), *OF_PLAIN, kind="revisit", digest=DIGEST_OF_PLAIN)),
    "revisit of nothing": odd(54, b"", (), PROFILE, kind="revisit", digest=EMPTY),
}  # fmt: skip


def write(folder: Path, *records: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "odd.warc.gz"
    path.write_bytes(warcinfo(software="Zeno", isPartOf="odd") + b"".join(records))
    return path


def originals(index: CrawlIndex) -> set[int]:
    return {int(entry.url.rpartition("/")[2]) for entry in index.records("odd")}


EXPECTED = {number for number, (_, is_original) in enumerate(ODD.values(), 1) if is_original}


def test_odd_records_are_imported_checked_and_made_anew_by_one_rule(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write(tmp_path / "warcs", *WITH_REQUEST.values(), *OTHERS.values())
    done = import_sources(index, [str(path)], ImportOptions(), Quiet())
    assert done.failed == []
    assert originals(index) == EXPECTED
    assert_sound_and_repaired_alike(index, path.parent)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*ODD, *OTHERS])
def test_each_odd_record_alone(tmp_path: Path, index: CrawlIndex, name: str) -> None:
    first = asked(60, odd(60, BODY, digest="sha1:" + "2" * 32))
    path = write(tmp_path / "warcs", first, WITH_REQUEST.get(name) or OTHERS[name])
    assert import_sources(index, [str(path)], ImportOptions(), Quiet()).failed == []
    is_original = name in ODD and ODD[name][1]
    assert len(originals(index)) == 1 + (
        is_original or (name.startswith("revisit") and name in OTHERS and "nothing" not in name)
    )
    assert_sound_and_repaired_alike(index, path.parent)


def test_odd_records_in_the_files_of_a_crawl_are_entered_and_checked_by_one_rule(
    tmp_path: Path, index: CrawlIndex
) -> None:
    path = write(tmp_path / "warcs", *WITH_REQUEST.values(), *OTHERS.values())
    index.start("odd")
    index.mark_incomplete("odd", True)
    settle(index, "odd", path.parent, RevisitRules())
    index.commit("odd")
    # Its rules admit status 200, and an own record is known by its id.
    admitted = EXPECTED - {number for number, name in enumerate(ODD, 1) if name in ("404", "600")}
    assert originals(index) == admitted
    assert_sound_and_repaired_alike(index, path.parent)


@pytest.mark.parametrize("name", [name for name in ODD if name not in ABOUT_THE_INDEX])
def test_the_offline_tools_answer_alike(tmp_path: Path, name: str) -> None:
    data, is_original = ODD[name]
    found = [record for record in read_records(write(tmp_path / "warcs", data)) if record.type != "warcinfo"]
    eligibility = Eligibility(min_size=0, statuses=None)
    reasons = [
        eligibility.reason_against(record, size_bytes=len(record.payload()))
        for record in found
        if record.type == "response"
    ]
    assert (reasons == [None]) is is_original


@pytest.mark.parametrize("fields", [(), ("WARC-Truncated: disconnect",), ("WARC-Segment-Number: 1",)])
def test_a_crawl_refers_to_no_cut_record_that_an_index_alone_was_imported_of(
    tmp_path: Path, index: CrawlIndex, fields: tuple[str, ...]
) -> None:
    body = b"%d" % 7 * 3_000
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    stored = odd(7, body, (), *fields, digest=digest)
    path = write(tmp_path / "warcs", stored)
    offset = path.stat().st_size - len(stored)
    place = {"offset": str(offset), "length": str(len(stored)), "filename": path.name, "digest": digest}
    lines = line(7, url="http://example.org/7", **place)
    (path.parent / "odd.cdxj").write_bytes(lines)
    done = import_sources(index, [str(path.parent / "odd.cdxj")], ImportOptions(), Quiet())
    assert (done.failed, done.originals) == ([], 1)
    index.start("new")
    writer = WarcWriter(tmp_path / "new", "new", info={"isPartOf": "new"})
    recorder = Recorder(writer, index, "new", OpenGuard())
    page = Capture(
        url="http://example.org/other",
        method="GET",
        status=200,
        date=datetime(2026, 8, 2, tzinfo=UTC),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=body,
    )
    recorded = recorder.record(page)
    recorder.finish()
    assert recorded.kind == ("response" if fields else "revisit")
