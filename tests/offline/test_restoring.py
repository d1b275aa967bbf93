"""``restoring``: what became a revisit is a response again, byte for byte, or is left and told."""

from __future__ import annotations

import errno
import gzip
import os
import random
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deduped_files import (
    Archive,
    Page,
    dedupe,
    member,
    request,
    response,
    sha1,
    uncompressed,
    write_file,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline import restoring
from scrapy_dedupe.offline.restored_records import as_response
from scrapy_dedupe.offline.restoring import Restored, RestoreOptions, restore
from scrapy_dedupe.offline.revisits import RevisitTarget, as_revisit, pointed_to, revisit_id
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.warc.raw_heads import RawHead
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable

BODY = b"<p>a lake</p>" * 200
OTHER = b"<p>a river</p>" * 300


def run(*paths: Path, output: Path | None, originals: tuple[Path, ...] = (), **options: Any) -> Restored:
    return restore(
        [str(path) for path in paths],
        output,
        originals=[str(path) for path in originals],
        options=RestoreOptions(**options),
        watch=NoProgress(),
    )


def pages(name: str = "a.warc.gz") -> Archive:
    return Archive({name: [Page(1, BODY), Page(2, OTHER), Page(3, BODY), Page(4, BODY)]})


def same(first: Path, restored: Path) -> bool:
    names = sorted(path.relative_to(first) for path in first.rglob("*.warc*"))
    assert names == sorted(path.relative_to(restored) for path in restored.rglob("*.warc*"))
    return all(uncompressed(first / name) == uncompressed(restored / name) for name in names)


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc"])
def test_a_restored_archive_is_byte_for_byte_the_first_one(name: str, tmp_path: Path) -> None:
    first = pages(name).write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    assert not same(first, deduped)
    result = run(deduped, output=tmp_path / "out")
    assert (result.restored, result.repointed, result.files_changed, result.fault_count) == (2, 2, 1, 0)
    assert same(first, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [name]


def test_originals_in_other_files_are_found(tmp_path: Path) -> None:
    first = Archive({"x/a.warc.gz": [Page(1, BODY)], "y/b.warc.gz": [Page(2, BODY)]}).write(
        tmp_path / "first"
    )
    deduped = dedupe(first, tmp_path / "deduped")
    run(deduped, output=tmp_path / "out")
    assert same(first, tmp_path / "out")


def test_originals_may_be_named_that_are_not_restored(tmp_path: Path) -> None:
    first = Archive({"x/a.warc.gz": [Page(1, BODY)], "y/b.warc.gz": [Page(2, BODY)]}).write(
        tmp_path / "first"
    )
    deduped = dedupe(first, tmp_path / "deduped")
    run(deduped / "y", output=tmp_path / "out", originals=(deduped / "x",))
    assert same(first / "y", tmp_path / "out")


def test_an_original_is_not_replaced_by_a_restored_file_of_the_same_name(tmp_path: Path) -> None:
    first = Archive({"x/a.warc.gz": [Page(1, BODY)], "y/a.warc.gz": [Page(2, BODY)]}).write(
        tmp_path / "first"
    )
    deduped = dedupe(first, tmp_path / "deduped")
    original = deduped / "x" / "a.warc.gz"
    before = original.read_bytes()
    with pytest.raises(ArchiveError, match=r"x/a\.warc\.gz is one of the files to be read"):
        run(deduped / "y", output=deduped / "x", originals=(deduped / "x",), force=True)
    assert original.read_bytes() == before


def test_a_work_folder_with_files_of_other_programs_is_left_alone(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    other = deduped / ".restore" / "notes.txt"
    other.parent.mkdir()
    other.write_text("of another program")
    with pytest.raises(
        ArchiveError, match=r"\.restore has other files, such as notes\.txt, which would be removed"
    ):
        run(deduped, output=None)
    assert other.read_text() == "of another program"


def test_a_file_that_is_named_as_an_original_too_is_one_file(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    (tmp_path / "link").symlink_to(deduped)
    run(deduped, output=tmp_path / "out", originals=(tmp_path / "link" / "a.warc.gz",))
    assert same(tmp_path / "first", tmp_path / "out")


def test_a_record_without_digests_gets_none(tmp_path: Path) -> None:
    old = Archive({"a.warc": [Page(1, BODY, has_digests=False), Page(2, BODY, has_digests=False)]})
    first = old.write(tmp_path / "first")
    run(dedupe(first, tmp_path / "deduped"), output=tmp_path / "out")
    assert same(first, tmp_path / "out")


def test_chunks_go_and_what_is_in_them_stays(tmp_path: Path) -> None:
    http = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    first = Archive({"a.warc": [Page(1, BODY), Page(2, chunked, http=http)]}).write(tmp_path / "first")
    run(dedupe(first, tmp_path / "deduped"), output=tmp_path / "out")
    before, after = (
        [record for record in read_records(folder / "a.warc") if record.type == "response"]
        for folder in (first, tmp_path / "out")
    )
    assert [record.payload() for record in after] == [record.payload() for record in before]
    assert [record.http for record in after] == [record.http for record in before]
    assert after[1].get("WARC-Block-Digest") == sha1(after[1].block()).decode()


def test_a_payload_that_looks_like_chunks_is_not_taken_for_them(tmp_path: Path) -> None:
    payload = b"5\r\nhello\r\n0\r\n\r\n" + BODY
    http = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(payload), payload)
    first = Archive({"a.warc": [Page(1, payload), Page(2, chunked, http=http)]}).write(tmp_path / "first")
    run(dedupe(first, tmp_path / "deduped"), output=tmp_path / "out")
    assert [
        record.payload() for record in read_records(tmp_path / "out" / "a.warc") if record.type == "response"
    ] == [
        payload,
        payload,
    ]


def test_a_long_payload_in_small_chunks_that_looks_like_chunks_is_not_taken_for_them(tmp_path: Path) -> None:
    long = bytes(range(256)) * (9 << 12)
    payload = b"5\r\nhello\r\n" + long
    http = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked = b"1\r\n5\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(payload) - 1, payload[1:])
    pages = [Page(number, chunked, http=http, has_digests=False) for number in (1, 2)]
    first = Archive({"a.warc": pages}).write(tmp_path / "first")
    run(dedupe(first, tmp_path / "deduped"), output=tmp_path / "out")
    payloads = [
        record.payload() for record in read_records(tmp_path / "out" / "a.warc") if record.type == "response"
    ]
    assert payloads == [payload, payload]


def test_memory_does_not_grow_with_a_record_that_is_pointed_back(tmp_path: Path) -> None:
    pages = [Page(1, BODY), Page(2, BODY)]
    first = Archive({"a.warc": pages}).write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    revisit = next(record for record in read_records(deduped / "a.warc") if record.type == "revisit")
    with (deduped / "a.warc").open("ab") as file:
        file.write(
            b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Record-ID: <urn:uuid:9>\r\nWARC-Date: 2020-01-01T00:00:00Z\r\n"
            b"WARC-Target-URI: %b\r\nWARC-Refers-To: %b\r\nFormer-WARC-Refers-To: %b\r\nContent-Type: video/mp4\r\n"
            b"Content-Length: %d\r\n\r\n" % (pages[1].uri, pages[0].id, pages[1].id, 64 << 20)
        )
        file.write(bytes(64 << 20) + b"\r\n\r\n")
    assert revisit.refers_to == pages[0].id.decode()
    tracemalloc.start()
    try:
        assert run(deduped, output=tmp_path / "out").repointed == 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20
    conversion = [*read_records(tmp_path / "out" / "a.warc")][-1]
    assert (conversion.type, conversion.refers_to) == ("conversion", pages[1].id.decode())


def test_a_revisit_whose_original_is_away_is_a_fault(tmp_path: Path) -> None:
    first = Archive({"a.warc.gz": [Page(1, BODY)], "b.warc.gz": [Page(2, BODY), Page(3, OTHER)]})
    deduped = dedupe(first.write(tmp_path / "first"), tmp_path / "deduped")
    with pytest.raises(DamagedInput, match=r"b\.warc\.gz, offset \d+: its original .* --originals"):
        run(deduped / "b.warc.gz", output=tmp_path / "out")
    assert not [*(tmp_path / "out").rglob("*.warc*")]


def test_what_cannot_be_restored_stays_and_keeps_its_request(tmp_path: Path) -> None:
    first = Archive(
        {"a.warc.gz": [Page(1, BODY)], "b.warc.gz": [Page(2, BODY), Page(3, OTHER), Page(4, OTHER)]}
    )
    deduped = dedupe(first.write(tmp_path / "first"), tmp_path / "deduped")
    result = run(deduped / "b.warc.gz", output=tmp_path / "out", keep_going=True)
    assert (result.restored, result.repointed, result.fault_count) == (1, 1, 1)
    records = {record.id: record for record in read_records(tmp_path / "out" / "b.warc.gz")}
    assert sum(record.type == "revisit" for record in records.values()) == 1
    assert all(record.concurrent_to in records for record in records.values() if record.type == "request")


def test_an_original_with_another_payload_is_refused_with_both_digests(tmp_path: Path) -> None:
    first = pages().write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    page = Page(1, OTHER)
    records = [member(response(page, BODY).replace(sha1(page.block), sha1(Page(1, BODY).block)))]
    records += [member(data) for data in _split(deduped / "a.warc.gz") if page.id not in data[:120]]
    (deduped / "a.warc.gz").write_bytes(b"".join(records))
    with pytest.raises(DamagedInput) as raised:
        run(deduped, output=tmp_path / "out")
    assert sha1(OTHER).decode() in str(raised.value)
    assert sha1(BODY).decode() in str(raised.value)


def test_a_digest_that_was_false_from_the_beginning_hinders_nothing(tmp_path: Path) -> None:
    wrong = response(Page(1, BODY), b"something else")
    write_file(tmp_path / "first" / "a.warc.gz", [wrong, response(Page(2, BODY, has_digests=False))])
    run(dedupe(tmp_path / "first", tmp_path / "deduped"), output=tmp_path / "out")
    assert same(tmp_path / "first", tmp_path / "out")


def test_revisits_of_other_programs_are_restored_on_demand(tmp_path: Path) -> None:
    page = Page(2, BODY)
    head = page.block[: -len(BODY)]
    fields = (
        b"WARC-Profile: http://netpreserve.org/warc/1.0/revisit/identical-payload-digest\r\n"
        b"WARC-Refers-To-Target-URI: %b\r\nWARC-Refers-To-Date: 2020-01-01T00:00:01.000Z\r\n"
        % Page(1, BODY).uri
    )
    foreign = (
        b"WARC/1.0\r\nWARC-Type: revisit\r\nWARC-Record-ID: %b\r\nWARC-Date: 2020-01-02T00:00:00Z\r\n"
        b"WARC-Target-URI: %b\r\n%bWARC-Payload-Digest: %b\r\nWARC-Block-Digest: %b\r\n"
        b"Content-Type: message/http\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
        % (page.id, page.uri, fields, sha1(BODY), sha1(head), len(head), head)
    )
    lost = foreign.replace(b"00:00:01.000Z", b"00:00:59Z").replace(page.id, Page(5, b"").id)
    lost = lost.replace(sha1(BODY), sha1(OTHER))
    write_file(tmp_path / "in" / "a.warc.gz", [response(Page(1, BODY)), foreign, lost])
    run(tmp_path / "in", output=tmp_path / "plain")
    assert same(tmp_path / "in", tmp_path / "plain")
    result = run(tmp_path / "in", output=tmp_path / "out", all_writers=True)
    assert (result.restored, result.left) == (1, {"its original was not found": 1})
    _, restored, left = read_records(tmp_path / "out" / "a.warc.gz")
    assert (restored.type, restored.id, restored.payload()) == ("response", page.id.decode(), BODY)
    assert restored.get("WARC-Block-Digest") == sha1(page.block).decode()
    assert not [name for name, _ in restored.headers if "Refers-To" in name or name == "WARC-Profile"]
    assert left.type == "revisit"


def foreign(page: Page, payload_digest: bytes, *fields: bytes) -> bytes:
    """A revisit of another program, of page 1."""
    lines = [
        b"WARC/1.0\r\nWARC-Type: revisit",
        b"WARC-Record-ID: " + page.id,
        b"WARC-Date: 2020-01-02T00:00:00Z",
        b"WARC-Target-URI: " + page.uri,
        b"WARC-Profile: http://netpreserve.org/warc/1.0/revisit/identical-payload-digest",
        b"WARC-Refers-To-Target-URI: " + Page(1, b"").uri,
        b"WARC-Refers-To-Date: 2020-01-01T00:00:01Z",
        *fields,
        b"WARC-Payload-Digest: " + payload_digest,
        b"Content-Type: message/http\r\nContent-Length: %d" % len(page.block),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + page.block + b"\r\n\r\n"


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
CODED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
PACKED = gzip.compress(BODY, mtime=0)


@pytest.mark.parametrize(
    ("stored", "stored_head", "head", "digest_of", "is_right"),
    [
        (PACKED, CODED, PLAIN, BODY, False),
        (PACKED, CODED, CODED, BODY, True),
        (PACKED, CODED, PLAIN, PACKED, True),
        (PACKED, PLAIN, CODED, PACKED, True),
        (BODY, PLAIN, CODED, BODY, False),
        (BODY, PLAIN, PLAIN, BODY, True),
    ],
)
@pytest.mark.parametrize("has_block_digest", [True, False])
def test_a_revisit_gets_no_payload_in_a_coding_that_its_head_does_not_name(
    stored: bytes,
    stored_head: bytes,
    head: bytes,
    digest_of: bytes,
    is_right: bool,
    has_block_digest: bool,
    tmp_path: Path,
) -> None:
    original = Page(1, stored, http=stored_head, has_digests=has_block_digest)
    records = [response(original, digest_of), foreign(Page(2, b"", http=head), sha1(digest_of))]
    write_file(tmp_path / "in" / "a.warc.gz", records)
    result = run(tmp_path / "in", output=tmp_path / "out", all_writers=True, keep_going=True)
    record = [*read_records(tmp_path / "out" / "a.warc.gz")][1]
    if is_right:
        assert (result.restored, result.fault_count) == (1, 0)
        assert (record.type, record.payload()) == ("response", stored)
    else:
        assert (result.restored, result.fault_count) == (0, 1)
        assert "content coding" in result.faults[0].reason
        assert record.type == "revisit"


def test_a_copy_in_another_coding_than_its_originals_head_is_restored(tmp_path: Path) -> None:
    """Its stored bytes were compared, so that its digest of the decoded body need not tell the coding."""
    pages = [Page(1, PACKED, http=CODED), Page(2, PACKED, http=PLAIN)]
    write_file(tmp_path / "first" / "a.warc.gz", [response(page, BODY) for page in pages])
    run(dedupe(tmp_path / "first", tmp_path / "deduped"), output=tmp_path / "out")
    assert same(tmp_path / "first", tmp_path / "out")


def test_a_payload_with_the_digest_of_the_decoded_body_is_not_taken_for_the_bytes_of_a_copy(
    tmp_path: Path,
) -> None:
    write_file(tmp_path / "first" / "a.warc.gz", [response(Page(1, PACKED, http=CODED), BODY)])
    write_file(tmp_path / "first" / "b.warc.gz", [response(Page(2, PACKED, http=CODED), BODY)])
    deduped = dedupe(tmp_path / "first", tmp_path / "deduped")
    write_file(deduped / "a.warc.gz", [response(Page(3, BODY, http=PLAIN), BODY)])
    with pytest.raises(DamagedInput, match="content coding"):
        run(deduped, output=tmp_path / "out")


def test_a_revisit_that_says_nothing_was_modified_is_left_and_counted(tmp_path: Path) -> None:
    page = foreign(Page(2, b"", http=PLAIN), sha1(BODY)).replace(
        b"identical-payload-digest", b"server-not-modified"
    )
    write_file(tmp_path / "in" / "a.warc.gz", [response(Page(1, BODY)), page])
    result = run(tmp_path / "in", output=tmp_path / "out", all_writers=True)
    assert (result.restored, result.left_revisits) == (0, 1)
    assert list(result.left) == ["of unmodified responses (304), which had no payload"]
    assert same(tmp_path / "in", tmp_path / "out")


def test_nothing_is_left_of_where_a_revisit_of_another_program_was_pointed(tmp_path: Path) -> None:
    former = (
        b"WARC-Refers-To: " + Page(1, b"").id,
        b"Former-WARC-Refers-To: none",
        b"Former-WARC-Refers-To-Target-URI: http://example.org/9",
        b"Former-WARC-Payload-Digest: none",
    )
    records = [response(Page(1, BODY)), foreign(Page(2, b""), sha1(BODY), *former)]
    write_file(tmp_path / "in" / "a.warc.gz", records)
    assert run(tmp_path / "in", output=tmp_path / "out", all_writers=True).restored == 1
    restored = [*read_records(tmp_path / "out" / "a.warc.gz")][1]
    assert [name for name, _ in restored.headers] == [
        *("WARC-Type", "WARC-Record-ID", "WARC-Date", "WARC-Target-URI"),
        *("WARC-Payload-Digest", "Content-Type", "Content-Length"),
    ]
    assert restored.get("WARC-Payload-Digest") == sha1(BODY).decode()


def replaced(record: bytes, **fields: bytes) -> bytes:
    """A record with other values in some of its WARC fields (``_`` for ``-``)."""
    head, end, block = record.partition(b"\r\n\r\n")
    version, *lines = head.split(b"\r\n")
    new = {name.replace("_", "-").encode(): value for name, value in fields.items()}
    lines = [
        b"%b: %b" % (name, new.get(name, value)) for name, _, value in (x.partition(b": ") for x in lines)
    ]
    return b"\r\n".join([version, *lines]) + end + block


def with_fields(record: bytes, *fields: bytes) -> bytes:
    """A record with more WARC fields."""
    head, end, block = record.partition(b"\r\n\r\n")
    return b"\r\n".join([head, *fields]) + end + block


def revisit_made_here(number: int) -> bytes:
    """The revisit that takes the place of a page, with page 1 as its original."""
    version, *lines = response(Page(number, BODY)).partition(b"\r\n\r\n")[0].split(b"\r\n")
    head = RawHead(
        version, tuple((name, value) for name, _, value in (line.partition(b": ") for line in lines))
    )
    block = Page(number, b"").block
    target = RevisitTarget(Page(1, b"").id, Page(1, b"").uri, b"2020-01-01T00:00:01Z", sha1(BODY))
    return as_revisit(head, target, block).to_bytes(len(block)) + block + b"\r\n\r\n"


def kept_and_told(folder: Path, *records: bytes, restored: int = 1, **options: Any) -> None:
    """Each of the records stays as it is and is counted, without fault, and what is ours is restored."""
    write_file(folder / "in" / "a.warc.gz", [response(Page(1, BODY)), revisit_made_here(2), *records])
    result = run(folder / "in", output=folder / "out", **options)
    assert (result.restored, result.repointed, result.not_ours) == (restored, 0, len(records))
    assert (result.left, result.fault_count) == ({}, 0)
    after = _split(folder / "out" / "a.warc.gz")
    assert after == [response(Page(1, BODY)), response(Page(2, BODY)), *records]


@pytest.mark.parametrize("all_writers", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"WARC_Record_ID": Page(9, b"").id},
        {"Former_WARC_Record_ID": Page(9, b"").id},
        {"WARC_Profile": b"http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"},
        {"WARC_Profile": b"http://netpreserve.org/warc/1.1/revisit/server-not-modified"},
        {"WARC_Truncated": b"time"},
    ],
)
def test_a_revisit_that_is_not_wholly_one_of_ours_stays(
    fields: dict[str, bytes], all_writers: bool, tmp_path: Path
) -> None:
    kept_and_told(tmp_path, replaced(revisit_made_here(3), **fields), all_writers=all_writers)


@pytest.mark.parametrize("all_writers", [False, True])
def test_a_revisit_of_another_program_with_a_former_id_stays(all_writers: bool, tmp_path: Path) -> None:
    planted = [
        foreign(Page(number, b""), sha1(BODY), b"Former-WARC-Record-ID: " + Page(former, b"").id)
        for number, former in ((3, 3), (4, 9))
    ]
    twice = with_fields(revisit_made_here(5), b"Former-WARC-Record-ID: " + Page(5, b"").id)
    kept_and_told(tmp_path, *planted, twice, all_writers=all_writers)


@pytest.mark.parametrize(
    "fields",
    [
        (b"Former-WARC-Record-ID: <urn:uuid:9>",),
        (b"Former-WARC-Payload-Digest: sha1:AAAA",),
        (b"WARC-Refers-To: <urn:uuid:8>", b"Former-WARC-Refers-To: <urn:uuid:9>"),
        (b"Former-WARC-Type: resource",),
        (b"Former-WARC-Concurrent-To: <urn:uuid:9>",),
    ],
)
def test_a_response_with_former_fields_of_its_own_stays(fields: tuple[bytes, ...], tmp_path: Path) -> None:
    kept_and_told(tmp_path, with_fields(response(Page(3, OTHER)), *fields))


@pytest.mark.parametrize(
    "fields",
    [
        (b"Former-WARC-Concurrent-To: <urn:uuid:9>",),  # which says that it named page 3, or its revisit
        (b"WARC-Concurrent-To: <urn:uuid:7>", b"Former-WARC-Concurrent-To: " + Page(3, b"").id),
        (b"Former-WARC-Concurrent-To: " + Page(3, b"").id,),
        (b"Former-WARC-Refers-To: <urn:uuid:9>",),
        (b"WARC-Refers-To: <urn:uuid:8>", b"Former-WARC-Refers-To: none"),
        (b"WARC-Refers-To: <urn:uuid:8>", b"Former-WARC-Payload-Digest: sha1:AAAA"),
    ],
)
def test_a_request_with_former_fields_of_its_own_stays(fields: tuple[bytes, ...], tmp_path: Path) -> None:
    kept_and_told(tmp_path, with_fields(request(Page(3, OTHER)), *fields))


@pytest.mark.parametrize("all_writers", [False, True])
def test_a_former_field_of_another_program_stays_in_a_record_that_is_pointed_back(
    all_writers: bool, tmp_path: Path
) -> None:
    planted = b"Former-WARC-Record-ID: " + Page(3, b"").id
    pointed = [
        b"WARC-Refers-To: " + Page(1, b"").id,
        b"Former-WARC-Refers-To: " + Page(2, b"").id,
        b"Former-WARC-Refers-To-Target-URI: none",
        b"Former-WARC-Refers-To-Date: none",
    ]
    records = [
        response(Page(1, BODY)),
        revisit_made_here(2),
        foreign(Page(3, b""), sha1(BODY), planted, *pointed),
    ]
    write_file(tmp_path / "in" / "a.warc.gz", records)
    result = run(tmp_path / "in", output=tmp_path / "out", all_writers=all_writers)
    assert (result.restored, result.repointed) == (1, 1)
    revisit = [*read_records(tmp_path / "out" / "a.warc.gz")][2]
    assert (revisit.type, revisit.id) == ("revisit", Page(3, b"").id.decode())
    assert (revisit.refers_to, revisit.refers_to_uri) == (Page(2, b"").id.decode(), None)
    assert [name for name, _ in revisit.headers if name.startswith("Former-")] == ["Former-WARC-Record-ID"]


@pytest.mark.parametrize(("number", "body", "repointed"), [(2, BODY, 0), (9, OTHER, 1)])
def test_a_reference_by_uri_and_date_to_a_revisit_that_is_not_restored_stays(
    number: int, body: bytes, repointed: int, tmp_path: Path
) -> None:
    former = (
        b"Former-WARC-Refers-To-Target-URI: " + Page(number, b"").uri,
        b"Former-WARC-Refers-To-Date: 2020-01-01T00:00:0%d.000Z" % number,
    )
    records = [
        revisit_made_here(2),
        response(Page(9, OTHER)),
        foreign(Page(3, b""), sha1(body), *former),
    ]
    write_file(tmp_path / "in" / "a.warc.gz", records)
    result = run(tmp_path / "in", output=tmp_path / "out", keep_going=True)
    assert (result.restored, result.repointed, result.fault_count) == (0, repointed, 1)
    assert same(tmp_path / "in", tmp_path / "out") == (not repointed)


def test_records_with_ids_that_are_no_ascii_are_what_they_were(tmp_path: Path) -> None:
    first: list[bytes] = []
    changed: list[bytes] = []
    for number, old in enumerate((b"<urn:x:\xc3\xa4>", b"<urn:x:\xe4>", "<urn:x:\u20ac>".encode()), 2):
        new = revisit_id(old)
        revisit = replaced(revisit_made_here(number), WARC_Record_ID=new, Former_WARC_Record_ID=old)
        named = replaced(request(Page(number, BODY)), WARC_Concurrent_To=new)
        changed += [revisit, with_fields(named, b"Former-WARC-Concurrent-To: " + old)]
        first += [
            replaced(response(Page(number, BODY)), WARC_Record_ID=old),
            replaced(request(Page(number, BODY)), WARC_Concurrent_To=old),
        ]
    write_file(tmp_path / "in" / "a.warc.gz", [response(Page(1, BODY)), *changed])
    result = run(tmp_path / "in", output=tmp_path / "out")
    assert (result.restored, result.repointed, result.not_ours) == (3, 3, 0)
    assert _split(tmp_path / "out" / "a.warc.gz")[1:] == first


@pytest.mark.parametrize("options", [{}, {"jobs": 2}, {"in_place": True}])
def test_files_whose_names_are_no_text_are_restored(options: dict[str, Any], tmp_path: Path) -> None:
    in_place = options.pop("in_place", False)
    names = [os.fsdecode(name) for name in (b"\xff\xfe a.warc.gz", b"b\n\xe9.warc.gz")]
    try:
        for number, name in enumerate(names):
            page = Page(number, BODY)
            write_file(tmp_path / "first" / name, [response(page), request(page)])
    except OSError:
        pytest.skip("the file system takes no such names")
    deduped = dedupe(tmp_path / "first", tmp_path / "deduped")
    output = None if in_place else tmp_path / "out"
    assert run(deduped, output=output, **options).restored == 1
    assert same(tmp_path / "first", output or deduped)


def test_a_copy_that_was_pointed_to_an_earlier_original_has_the_fields_of_before() -> None:
    version, *lines = response(Page(1, BODY)).partition(b"\r\n\r\n")[0].split(b"\r\n")
    head = RawHead(
        version, tuple((name, value) for name, _, value in (line.partition(b": ") for line in lines))
    )
    target = RevisitTarget(b"<urn:uuid:1>", b"http://example.org/1", b"2020-01-01T00:00:00Z", b"sha1:A")
    earlier = RevisitTarget(b"<urn:uuid:0>", b"http://example.org/0", b"2010-01-01T00:00:00Z", b"sha256:0")
    from_arc = RevisitTarget(None, b"http://example.org/0", b"2005-01-01T00:00:00Z", b"sha1:A")
    revisit = as_revisit(head, target, b"")
    for targets in ([earlier], [from_arc], [earlier, from_arc], [from_arc, earlier]):
        pointed = revisit
        for other in targets:
            pointed = pointed_to(pointed, other, is_revisit=True, takes_digest=True, new_id=b"<urn:uuid:2>")
        assert pointed != revisit
        assert as_response(pointed) == head


def test_in_place_files_are_replaced_after_verification_alone(tmp_path: Path) -> None:
    first = Archive({"a.warc.gz": [Page(1, BODY)], "b.warc.gz": [Page(2, BODY)]}).write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    untouched = (deduped / "a.warc.gz").stat().st_ino
    result = run(deduped, output=None)
    assert (result.files, result.files_changed) == (2, 1)
    assert same(first, deduped)
    assert (deduped / "a.warc.gz").stat().st_ino == untouched
    assert sorted(path.name for path in deduped.iterdir()) == ["a.warc.gz", "b.warc.gz"]


def test_in_place_a_link_stays_one_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    file = deduped / "a.warc.gz"
    file.chmod(0o640)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.warc.gz").symlink_to(file)
    run(tmp_path / "links", output=None)
    assert (tmp_path / "links" / "a.warc.gz").is_symlink()
    assert same(tmp_path / "first", deduped)
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["make_records", "write_output", "verify", "give_final_name"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_run_that_was_cut_goes_on(
    step: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Archive(
        {name: [Page(number, BODY)] for number, name in enumerate(["a.warc.gz", "b.warc.gz", "c.warc.gz"])}
    )
    first.write(tmp_path / "first")
    deduped = dedupe(tmp_path / "first", tmp_path / "deduped")
    output = None if in_place else tmp_path / "out"
    real: Callable[..., Any] = getattr(restoring, step)
    calls: list[object] = []

    def cut(*args: Any, **kwargs: Any) -> Any:
        if len(calls) == (0 if step in ("make_records", "verify") else 1):
            raise KeyboardInterrupt
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(restoring, step, cut)
    with pytest.raises(KeyboardInterrupt):
        run(deduped, output=output)
    monkeypatch.undo()
    result = run(deduped, output=output)
    assert result.restored == 2
    assert same(tmp_path / "first", output or deduped)
    assert len([*(output or deduped).iterdir()]) == 3


def test_records_that_were_made_before_a_run_was_cut_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a.warc.gz", "b.warc.gz"]
    first = Archive({names[0]: [Page(1, BODY)], names[1]: [Page(2, OTHER), Page(3, OTHER), Page(4, BODY)]})
    first.write(tmp_path / "first")
    deduped = dedupe(tmp_path / "first", tmp_path / "deduped")
    real, made = restoring.make_records, []

    def cut(task: Any) -> None:
        if made:
            raise KeyboardInterrupt
        made.append(task.file.name)
        real(task)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        context.setattr(restoring, "make_records", cut)
        run(deduped, output=tmp_path / "out")
    monkeypatch.setattr(restoring, "make_records", lambda task: made.append(task.file.name) or real(task))
    assert run(deduped, output=tmp_path / "out").restored == 2
    assert made == names
    assert same(tmp_path / "first", tmp_path / "out")


def test_each_file_is_read_once_and_each_original_once_more(tmp_path: Path) -> None:
    """Besides the verification, which reads both archives."""
    io_counts = Path("/proc/self/io")
    if not io_counts.exists():
        pytest.skip("the system does not count the bytes that a process reads")

    def bytes_read() -> int:
        return int(io_counts.read_text().split()[1])

    rng = random.Random(5)
    bodies = [b"<p>%d</p>" % number + rng.randbytes(20_000) for number in range(100)]
    pages = [Page(number, bodies[number % 100]) for number in range(300)]
    first = Archive({"a.warc.gz": pages[:150], "b.warc.gz": pages[150:]}).write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    old_bytes, new_bytes = (
        sum(file.stat().st_size for file in folder.iterdir()) for folder in (first, deduped)
    )
    before = bytes_read()
    assert run(deduped, output=tmp_path / "out", sample=0).restored == 200
    # Reading, originals, copying, and the restored records; then the verification.
    allowed = 3 * new_bytes + (old_bytes - new_bytes) + new_bytes + old_bytes
    assert bytes_read() - before < 1.1 * allowed


def three(folder: Path) -> Path:
    names = ["a.warc.gz", "b.warc.gz", "c.warc.gz"]
    return Archive({name: [Page(number, BODY)] for number, name in enumerate(names)}).write(folder)


def cut_after(names: int, monkeypatch: pytest.MonkeyPatch, *paths: Path, output: Path | None) -> None:
    """A run that is cut when so many files have their final names."""
    real, done = restoring.give_final_name, []

    def cut(one: Any) -> None:
        if len(done) == names:
            raise KeyboardInterrupt
        done.append(one)
        real(one)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        context.setattr(restoring, "give_final_name", cut)
        run(*paths, output=output)


def added(path: Path, number: int) -> bytes:
    """Append a record to a file."""
    record = response(Page(number, OTHER))
    with path.open("ab") as file:
        file.write(member(record))
    return record


@pytest.mark.parametrize("names", [0, 1, 2, 3])
def test_a_record_that_came_after_a_run_was_cut_is_in_the_output(
    names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    cut = min(names, 2)  # with 3 all have their names, and only the state is left
    if names == 3:
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            context.setattr(restoring._Restoration, "_result", _interrupted)
            run(deduped, output=tmp_path / "out")
    else:
        cut_after(cut, monkeypatch, deduped, output=tmp_path / "out")
    for folder in (first, deduped):
        added(folder / "c.warc.gz", 9)
    assert run(deduped, output=tmp_path / "out").restored == 2
    assert same(first, tmp_path / "out")
    assert len([*(tmp_path / "out").iterdir()]) == 3


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("names", [0, 1, 2])
def test_in_place_a_record_that_came_after_a_run_was_cut_is_kept(
    names: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    if names < 2:
        cut_after(names, monkeypatch, deduped, output=None)
    else:
        with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
            context.setattr(restoring._Restoration, "_result", _interrupted)
            run(deduped, output=None)
    for name in ("a.warc.gz", "b.warc.gz", "c.warc.gz"):
        for folder in (first, deduped):
            added(folder / name, 9)
    run(deduped, output=None)
    assert same(first, deduped)
    assert len([*deduped.iterdir()]) == 3


def test_in_place_files_on_another_file_system_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    real = whole_file.put_in_place

    def across(temporary: Path, path: Path, *, durable: bool = True) -> None:
        if path.parent == deduped:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(temporary, path, durable=durable)

    monkeypatch.setattr(whole_file, "put_in_place", across)
    assert run(deduped, output=None).restored == 2
    assert same(first, deduped)
    assert len([*deduped.iterdir()]) == 3


def test_in_place_a_run_that_was_cut_after_a_file_was_copied_across_file_systems_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")

    def copy(one: Any) -> None:
        shutil.copyfile(one.waiting, one.final)
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        context.setattr(restoring, "give_final_name", copy)
        run(deduped, output=None)
    assert run(deduped, output=None).restored == 1
    assert same(first, deduped)
    assert len([*deduped.iterdir()]) == 3


def test_in_place_files_that_were_deduplicated_again_after_a_run_was_cut_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    cut_after(1, monkeypatch, deduped, output=None)
    dedupe(first, deduped)
    assert run(deduped, output=None).restored == 2
    assert same(first, deduped)
    assert len([*deduped.iterdir()]) == 3


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("step", ["make_records", "write_output", "verify"])
def test_a_file_that_changes_while_it_is_restored_is_told(
    step: str, in_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    real: Callable[..., Any] = getattr(restoring, step)
    output = None if in_place else tmp_path / "out"

    def change(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if len([*read_records(deduped / "a.warc.gz")]) == 3:
            for folder in (first, deduped):
                added(folder / "a.warc.gz", 9)
        return result

    monkeypatch.setattr(restoring, step, change)
    with pytest.raises(ArchiveError, match=r"a\.warc\.gz (has )?changed"):
        run(deduped, output=output)
    folder = output or deduped
    assert not [*folder.glob(".*")]
    assert run(deduped, output=output).restored == 2
    assert same(first, folder)


def test_in_place_a_file_that_changes_after_verification_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    real = restoring.give_final_name

    def change(one: Any) -> None:
        real(one)
        for folder in (first, deduped):
            added(folder / "c.warc.gz", 9)

    with monkeypatch.context() as context, pytest.raises(ArchiveError, match=r"c\.warc\.gz has changed"):  # noqa: PT012
        context.setattr(restoring, "give_final_name", change)
        run(deduped, output=None)
    assert sorted(path.name for path in deduped.iterdir()) == ["a.warc.gz", "b.warc.gz", "c.warc.gz"]
    assert run(deduped, output=None).restored == 1
    assert same(first, deduped)


def test_a_file_that_came_into_the_output_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    cut_after(1, monkeypatch, deduped, output=tmp_path / "out")
    write_file(tmp_path / "out" / "c.warc.gz", [b"precious"])
    with pytest.raises(ArchiveError, match=r"c\.warc\.gz already exists.*--force"):
        run(deduped, output=tmp_path / "out")
    assert uncompressed(tmp_path / "out" / "c.warc.gz") == b"precious"
    run(deduped, output=tmp_path / "out", force=True)
    assert same(first, tmp_path / "out")


def test_what_a_run_of_another_call_has_left_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = three(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    cut_after(0, monkeypatch, deduped / "a.warc.gz", deduped, output=None)
    for folder in (first, deduped):
        added(folder / "b.warc.gz", 9)
    shutil.rmtree(deduped / ".restore")
    run(deduped, output=None)
    assert same(first, deduped)


def test_an_output_that_is_there_is_refused(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    write_file(tmp_path / "out" / "a.warc.gz", [b"precious"])
    with pytest.raises(ArchiveError, match="--force"):
        run(deduped, output=tmp_path / "out")
    assert uncompressed(tmp_path / "out" / "a.warc.gz") == b"precious"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.warc.gz"]
    run(deduped, output=tmp_path / "out", force=True)
    assert same(tmp_path / "first", tmp_path / "out")


def test_a_file_is_not_written_over_itself(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    with pytest.raises(ArchiveError, match=r"is the folder of .*Replace the files with --in-place"):
        run(deduped, output=deduped)


def test_a_file_is_not_written_over_another_source_file(tmp_path: Path) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    shutil.copytree(tmp_path / "first", deduped / "part")
    with pytest.raises(ArchiveError, match="is the folder of"):
        run(deduped, deduped / "part", output=deduped / "part", force=True)
    assert same(tmp_path / "first", deduped / "part")


def test_damaged_places_are_faults_and_are_kept(tmp_path: Path) -> None:
    first = pages().write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    rubbish = b"\x1f\x8b\x08rubbish" * 20
    (deduped / "a.warc.gz").write_bytes((deduped / "a.warc.gz").read_bytes() + rubbish)
    with pytest.raises(DamagedInput, match="--keep-going"):
        run(deduped, output=tmp_path / "out")
    result = run(deduped, output=tmp_path / "out", keep_going=True)
    assert (result.restored, result.fault_count) == (2, 1)
    assert (tmp_path / "out" / "a.warc.gz").read_bytes().endswith(rubbish)


def test_records_after_a_damaged_start_of_a_compressed_file_are_restored_as_gzip_members(
    tmp_path: Path,
) -> None:
    first = pages().write(tmp_path / "first")
    deduped = dedupe(first, tmp_path / "deduped")
    damaged = b"\0" + member(response(Page(9, OTHER)))[1:]
    for folder in (first, deduped):
        (folder / "a.warc.gz").write_bytes(damaged + (folder / "a.warc.gz").read_bytes())
    result = run(deduped, output=tmp_path / "out", keep_going=True)
    assert (result.restored, result.repointed, result.fault_count) == (2, 2, 1)
    after = (tmp_path / "out" / "a.warc.gz").read_bytes()
    assert after.startswith(damaged)
    before = (first / "a.warc.gz").read_bytes()
    assert gzip.decompress(after[len(damaged) :]) == gzip.decompress(before[len(damaged) :])


def test_a_verification_that_finds_something_leaves_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deduped = dedupe(pages().write(tmp_path / "first"), tmp_path / "deduped")
    real = restoring.write_output

    def write_wrongly(output: Any) -> None:
        real(output)
        records = [data.replace(b"a lake", b"a pond") for data in _split(output.waiting)]
        output.waiting.write_bytes(b"".join(map(member, records)))

    monkeypatch.setattr(restoring, "write_output", write_wrongly)
    with pytest.raises(DamagedInput, match="final name"):
        run(deduped, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    assert run(deduped, output=tmp_path / "out").restored == 2


BODIES = st.sampled_from([BODY, OTHER, b"x", b"1\r\nx\r\n0\r\n\r\n", b"", b"\r\n\r\n"])
PAGES = st.tuples(BODIES, st.booleans(), st.sampled_from([b"WARC/1.0", b"WARC/1.1", b"WARC/0.18"]))
NAMES = st.sampled_from(["a.warc.gz", "b.warc", "c/d.warc.gz"])


@settings(max_examples=examples(25), deadline=None)
@given(st.dictionaries(NAMES, st.lists(PAGES, min_size=1, max_size=5), min_size=1))
def test_any_archive_survives_deduplication_and_restoration(
    drawn: dict[str, list[tuple[bytes, bool, bytes]]],
) -> None:
    archive, number = Archive(), 0
    for name, choices in drawn.items():
        archive.files[name] = []
        for body, has_digests, version in choices:
            number += 1
            archive.files[name].append(Page(number, body, has_digests=has_digests, version=version))
    with tempfile.TemporaryDirectory() as folder:
        first = archive.write(Path(folder) / "first")
        deduped = dedupe(first, Path(folder) / "deduped")
        if len(drawn) == 1:
            first, deduped = (next(root.rglob("*.warc*")).parent for root in (first, deduped))
        run(deduped, output=Path(folder) / "out")
        assert same(first, Path(folder) / "out")


def _split(path: Path) -> list[bytes]:
    data = uncompressed(path)
    parts: list[bytes] = []
    for record in data.split(b"\r\n\r\nWARC/"):
        parts.append((b"WARC/" if parts else b"") + record + b"\r\n\r\n")
    parts[-1] = parts[-1][:-4]
    return parts
