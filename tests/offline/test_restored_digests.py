"""``restored_records``: the payload digest of a response that comes back without its chunks."""

from __future__ import annotations

import base64
import gzip
import hashlib
from typing import TYPE_CHECKING

import pytest
import warcio.cli
from archives import called_in_process
from deduped_files import Archive, Page, dedupe, request, response, sha1, uncompressed, write_file
from offline.planted import in_chunks

from scrapy_dedupe.offline.restoring import RestoreOptions, restore
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.verification.verifying import verify
from scrapy_dedupe.warc.raw_heads import RawHead, raw_head
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord

BODY = b"<p>a lake</p>" * 200
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
IDENTICAL = b"http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"


def restored(deduped: Path, output: Path, *, all_writers: bool = False) -> list[StoredRecord]:
    restore([str(deduped)], output, options=RestoreOptions(all_writers=all_writers), watch=NoProgress())
    return responses(output)


def responses(folder: Path) -> list[StoredRecord]:
    return [record for record in read_records(folder / "a.warc") if record.type == "response"]


def digests(records: list[StoredRecord]) -> list[str | None]:
    return [record.get("WARC-Payload-Digest") for record in records]


def pages_with_digest(folder: Path, *pages: tuple[Page, bytes | None]) -> Path:
    """The files of an archive whose pages have these payload digests."""
    records = []
    for page, digest in pages:
        fields = [] if digest is None else [(b"WARC-Payload-Digest", digest)]
        bare = Page(page.number, page.body, page.http, fields=fields, has_digests=False)
        records += [response(bare), request(page)]
    write_file(folder / "a.warc", records)
    return folder


def warcio_check(path: Path) -> str:
    """The faults that warcio finds in a file."""
    code, out = called_in_process(warcio.cli.main, "check", "-v", str(path))
    return out if code else ""


def test_an_archive_in_chunks_is_right_to_warcio_when_it_is_restored(tmp_path: Path) -> None:
    pages = [
        Page(1, BODY),
        Page(2, in_chunks(BODY), http=CHUNKED),
        Page(3, in_chunks(BODY, 50), http=CHUNKED),
        Page(4, in_chunks(BODY), http=CHUNKED),
    ]
    first = Archive({"a.warc": pages}).write(tmp_path / "first")
    assert warcio_check(first / "a.warc") == ""
    records = restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out")
    assert [record.payload() for record in records] == [BODY] * 4
    assert digests(records) == [sha1(BODY).decode()] * 4
    assert warcio_check(tmp_path / "out" / "a.warc") == ""


def test_an_original_in_chunks_with_the_same_digest_of_chunks_leaves_a_right_one(tmp_path: Path) -> None:
    pages = [Page(number, in_chunks(BODY), http=CHUNKED) for number in (1, 2)]
    deduped = dedupe(Archive({"a.warc": pages}).write(tmp_path / "first"), tmp_path / "deduped")
    assert digests(restored(deduped, tmp_path / "out")) == [
        sha1(in_chunks(BODY)).decode(),
        sha1(BODY).decode(),
    ]
    assert warcio_check(tmp_path / "out" / "a.warc") == ""


@pytest.mark.parametrize(
    ("of_chunks", "of_payload"),
    [
        (lambda data: b"sha256:" + hashlib.sha256(data).hexdigest().encode(),) * 2,
        (lambda data: b"SHA-1:" + hashlib.sha1(data).hexdigest().upper().encode(),) * 2,
        (lambda data: b"md5:" + base64.b32encode(hashlib.md5(data).digest()).rstrip(b"=").lower(),) * 2,
        (lambda data: b"blake7:" + hashlib.sha1(data).hexdigest().encode(), lambda _: None),
    ],
)
def test_the_digest_keeps_its_algorithm_and_form(of_chunks, of_payload, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    former = of_chunks(in_chunks(BODY))
    first = pages_with_digest(
        tmp_path / "first",
        (Page(1, BODY), sha1(BODY)),
        (Page(2, in_chunks(BODY), http=CHUNKED), former),
    )
    records = restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out")
    # One of an algorithm that nobody knows is left.
    assert digests(records)[1] == (of_payload(BODY) or former).decode()


def test_a_response_without_a_payload_digest_gets_none(tmp_path: Path) -> None:
    first = pages_with_digest(
        tmp_path / "first", (Page(1, BODY), sha1(BODY)), (Page(2, in_chunks(BODY), http=CHUNKED), None)
    )
    assert digests(restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out"))[1] is None


def test_a_digest_of_the_decoded_body_stays(tmp_path: Path) -> None:
    coded = gzip.compress(BODY, mtime=0)
    http = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    first = pages_with_digest(
        tmp_path / "first",
        (Page(1, coded, http=http.replace(b"Transfer-Encoding: chunked\r\n", b"")), sha1(BODY)),
        (Page(2, in_chunks(coded), http=http), sha1(BODY)),
        (Page(3, in_chunks(coded), http=http), sha1(in_chunks(coded))),
    )
    records = restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out")
    assert digests(records)[1:] == [sha1(BODY).decode(), sha1(coded).decode()]


@pytest.mark.parametrize("http", [b"", CHUNKED])
def test_a_false_digest_of_a_response_that_had_no_chunks_is_not_mended(http: bytes, tmp_path: Path) -> None:
    false = sha1(b"something else")
    page = Page(2, BODY, http=http)
    bare = Page(
        2,
        BODY,
        http=http,
        fields=[(b"WARC-Payload-Digest", false), (b"WARC-Block-Digest", sha1(page.block))],
        has_digests=False,
    )
    first = tmp_path / "first"
    write_file(first / "a.warc", [response(Page(1, BODY)), request(page), response(bare), request(page)])
    assert digests(restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out"))[1] == false.decode()
    assert uncompressed(tmp_path / "out" / "a.warc") == uncompressed(first / "a.warc")


def test_the_first_archive_and_the_restored_one_are_told_to_be_the_same(tmp_path: Path) -> None:
    pages = [Page(1, BODY), Page(2, in_chunks(BODY), http=CHUNKED)]
    first = Archive({"a.warc": pages}).write(tmp_path / "first")
    restored(dedupe(first, tmp_path / "deduped"), tmp_path / "out")
    result = verify(
        [(first / "a.warc", tmp_path / "out" / "a.warc")], work=tmp_path / "work", watch=NoProgress()
    )
    assert result.findings == ()
    assert result.rechunked == 1


def revisit_of(number: int, of: Page, target: Page, *, former: bytes, http: bytes = CHUNKED) -> bytes:
    """The revisit of another program that referred to *of*, which has become a revisit of *target*."""
    fields = [
        (b"WARC-Type", b"revisit"),
        (b"WARC-Record-ID", b"<urn:uuid:00000000-0000-4000-9000-%012d>" % number),
        (b"WARC-Date", b"2021-01-01T00:00:00Z"),
        (b"WARC-Target-URI", of.uri),
        (b"WARC-Profile", IDENTICAL),
        (b"WARC-Payload-Digest", sha1(target.body)),
        *([(b"Former-WARC-Payload-Digest", former)] if former != sha1(target.body) else []),
        (b"WARC-Refers-To-Target-URI", target.uri),
        *([(b"Former-WARC-Refers-To-Target-URI", of.uri)] if of != target else []),
        (b"WARC-Refers-To-Date", b"2020-01-01T00:00:%02dZ" % target.number),
        *([(b"Former-WARC-Refers-To-Date", b"2020-01-01T00:00:%02dZ" % of.number)] if of != target else []),
        (b"Content-Type", b"application/http; msgtype=response"),
    ]
    return RawHead(b"WARC/1.0", tuple(fields)).to_bytes(len(http)) + http + b"\r\n\r\n"


def test_a_digest_by_which_another_revisit_finds_its_original_stays(tmp_path: Path) -> None:
    pages = [Page(1, BODY), Page(2, in_chunks(BODY), http=CHUNKED)]
    first = Archive({"a.warc": pages}).write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    of_chunks = sha1(in_chunks(BODY))
    with (deduped / "a.warc").open("ab") as file:
        file.write(revisit_of(3, pages[1], pages[0], former=of_chunks))
    assert digests(restored(deduped, tmp_path / "out"))[1] == of_chunks.decode()
    revisit = [*read_records(tmp_path / "out" / "a.warc")][-1]
    assert (revisit.refers_to_uri, revisit.get("WARC-Payload-Digest")) == (
        pages[1].uri.decode(),
        of_chunks.decode(),
    )


@pytest.mark.parametrize("http", [CHUNKED, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_the_revisit_of_another_program_gets_the_digest_of_its_payload(http: bytes, tmp_path: Path) -> None:
    page = Page(1, in_chunks(BODY), http=CHUNKED)
    records = [response(page), request(page)]
    records.append(revisit_of(3, page, page, former=sha1(page.body), http=http))
    write_file(tmp_path / "first" / "a.warc", records)
    after = restored(tmp_path / "first", tmp_path / "out", all_writers=True)
    assert [record.payload() for record in after] == [BODY, BODY]
    assert digests(after) == [sha1(page.body).decode(), sha1(BODY).decode()]
    assert warcio_check(tmp_path / "out" / "a.warc") == ""
    assert raw_head(after[1]).get(b"WARC-Refers-To-Date") is None
