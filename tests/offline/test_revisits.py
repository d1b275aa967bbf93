"""The fields of new revisits, spelled out, and of records that refer to what became one."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe.offline.restored_records import BLOCK_DIGEST, as_response, pointed_back
from scrapy_dedupe.offline.revisits import (
    RevisitTarget,
    as_revisit,
    bare,
    could_be_undone,
    pointed_to,
    record_bytes,
    revisit_id,
    with_concurrent,
)
from scrapy_dedupe.warc.raw_heads import RawHead
from scrapy_dedupe.warc.references import bare_id

BLOCK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
SHA1 = hashlib.sha1(BLOCK, usedforsecurity=False).digest()
OLD_ID = b"<urn:uuid:0b8b1c1e-4f4e-4b3c-9d6a-3f1a2b3c4d5e>"
ORIGINAL = RevisitTarget(
    b"<urn:uuid:11111111-1111-4111-8111-111111111111>",
    b"http://example.com/first",
    b"2019-01-01T00:00:00Z",
    b"sha1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
)
FROM_ARC = RevisitTarget(None, b"http://example.com/arc", b"2001-02-03T04:05:06Z", ORIGINAL.digest)


def head(*lines: bytes, version: bytes = b"WARC/1.0") -> RawHead:
    fields = tuple((name, value) for name, _, value in (line.partition(b": ") for line in lines))
    return RawHead(version, fields)


def response(*more: bytes, version: bytes = b"WARC/1.0") -> RawHead:
    return head(
        b"WARC-Type: response",
        b"WARC-Record-ID: " + OLD_ID,
        b"WARC-Date: 2020-01-01T00:00:00Z",
        b"WARC-Target-URI: <http://example.com/second>",
        *more,
        b"Content-Type: application/http; msgtype=response",
        b"Content-Length: 5000",
        version=version,
    )


@pytest.mark.parametrize("version", [b"WARC/1.0", b"WARC/1.1"])
def test_every_field_of_a_revisit_is_as_spelled_here(version: bytes) -> None:
    old = response(
        b"WARC-Payload-Digest: sha1:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
        b"WARC-Block-Digest: sha1:CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
        b"X-Note: caf\xe9",
        version=version,
    )

    assert record_bytes(as_revisit(old, ORIGINAL, BLOCK), BLOCK) == b"\r\n".join(
        [
            version,
            b"WARC-Type: revisit",
            b"WARC-Record-ID: " + revisit_id(OLD_ID),
            b"Former-WARC-Record-ID: " + OLD_ID,
            b"WARC-Date: 2020-01-01T00:00:00Z",
            b"WARC-Target-URI: <http://example.com/second>",
            b"WARC-Payload-Digest: sha1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
            b"Former-WARC-Payload-Digest: sha1:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
            b"WARC-Block-Digest: sha1:" + base64.b32encode(SHA1),
            b"Former-WARC-Block-Digest: sha1:CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
            b"X-Note: caf\xe9",
            b"Content-Type: application/http; msgtype=response",
            b"Content-Length: %d" % len(BLOCK),
            b"WARC-Profile: http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
            b"WARC-Refers-To: <urn:uuid:11111111-1111-4111-8111-111111111111>",
            b"WARC-Refers-To-Target-URI: http://example.com/first",
            b"WARC-Refers-To-Date: 2019-01-01T00:00:00Z",
            b"WARC-Truncated: length",
            b"",
            BLOCK + b"\r\n\r\n",
        ]
    )


def test_the_id_of_a_revisit_depends_on_the_old_one_alone() -> None:
    # In the archives that were written it stands so; it must never change.
    assert revisit_id(OLD_ID) == b"<urn:uuid:a40a39f4-df9d-54e8-a5db-09b1e1a247b8>"
    assert revisit_id(bare(OLD_ID)) == revisit_id(OLD_ID)
    assert revisit_id(b"<urn:uuid:other>") != revisit_id(OLD_ID)


@given(st.text(st.characters(codec="utf-8", exclude_characters="<>"), min_size=1))
@example("urn:x\x1f")
def test_ids_are_bare_as_readers_read_them(text: str) -> None:
    for written in (text, f"<{text.strip() or 'x'}>"):
        assert bare(written.encode()).decode() == (bare_id(written) or "")


def test_an_original_without_id_is_named_by_uri_and_date() -> None:
    new = as_revisit(response(), FROM_ARC, BLOCK)

    assert new.get(b"WARC-Refers-To") is None
    assert new.get(b"WARC-Refers-To-Target-URI") == b"http://example.com/arc"
    assert new.get(b"WARC-Refers-To-Date") == b"2001-02-03T04:05:06Z"


def test_a_digest_that_is_the_original_s_is_not_told_twice() -> None:
    new = as_revisit(response(b"WARC-Payload-Digest: " + ORIGINAL.digest), ORIGINAL, BLOCK)

    assert new.get(b"Former-WARC-Payload-Digest") is None


def test_a_response_without_digests_gets_the_original_s_and_no_block_digest() -> None:
    new = as_revisit(response(), ORIGINAL, BLOCK)

    assert new.get(b"WARC-Payload-Digest") == ORIGINAL.digest
    assert new.get(b"Former-WARC-Payload-Digest") == b"none"
    assert new.get(b"WARC-Block-Digest") is None


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        (b"sha1:" + b"00" * 20, b"sha1:" + SHA1.hex().encode()),
        (b"SHA-1:" + b"AB" * 20, b"SHA-1:" + SHA1.hex().upper().encode()),
        (b"sha-256:" + b"00" * 32, b"sha-256:" + hashlib.sha256(BLOCK).hexdigest().encode()),
        (b"md5:" + b"00" * 16, b"md5:" + hashlib.md5(BLOCK, usedforsecurity=False).hexdigest().encode()),
    ],
)
def test_the_block_digest_keeps_its_form(old: bytes, expected: bytes) -> None:
    assert (
        as_revisit(response(b"WARC-Block-Digest: " + old), ORIGINAL, BLOCK).get(b"WARC-Block-Digest")
        == expected
    )


def test_a_block_digest_that_cannot_be_computed_is_kept_as_the_former_one_in_its_place() -> None:
    new = as_revisit(response(b"WARC-Block-Digest: blake3:" + b"00" * 32), ORIGINAL, BLOCK)

    assert new.get(b"WARC-Block-Digest") is None
    assert new.fields[5] == (b"Former-WARC-Block-Digest", b"blake3:" + b"00" * 32)


@pytest.mark.parametrize(
    "field",
    [
        b"WARC-Profile: x",
        b"WARC-Refers-To: <a>",
        b"warc-refers-to-date: 2020",
        b"WARC-Truncated: length",
        b"Former-WARC-Record-ID: <a>",
        b"WARC-Record-ID: <urn:second>",
        b"WARC-Concurrent-To: none",
    ],
)
def test_a_response_that_could_not_be_put_back_is_none_to_convert(field: bytes) -> None:
    assert could_be_undone(response())
    assert not could_be_undone(response(field))


def test_the_concurrent_ids_that_changed_are_told_and_keep_their_order() -> None:
    old = head(
        b"WARC-Type: request",
        b"WARC-Concurrent-To: <a>",
        b"WARC-Concurrent-To: <b>",
        b"Content-Type: application/http",
    )

    new = with_concurrent(old, {b"<b>": b"<new>"}.get)

    assert new.fields == (
        (b"WARC-Type", b"request"),
        (b"WARC-Concurrent-To", b"<a>"),
        (b"Former-WARC-Concurrent-To", b"<a>"),
        (b"WARC-Concurrent-To", b"<new>"),
        (b"Former-WARC-Concurrent-To", b"<b>"),
        (b"Content-Type", b"application/http"),
    )
    assert pointed_back(new) == old
    assert with_concurrent(old, {b"<c>": b"<new>"}.get) is old
    assert pointed_back(with_concurrent(new, {b"<new>": b"<newer>"}.get)) == old


def test_a_revisit_is_pointed_to_the_original_and_takes_its_digest() -> None:
    old = head(
        b"WARC-Type: revisit",
        b"WARC-Refers-To: <old>",
        b"WARC-Refers-To-Target-URI: http://example.com/old",
        b"WARC-Payload-Digest: sha1:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB",
    )

    new = pointed_to(old, ORIGINAL, is_revisit=True, takes_digest=True, new_id=b"<unused>")

    assert new.fields == (
        (b"WARC-Type", b"revisit"),
        (b"WARC-Refers-To", ORIGINAL.id),
        (b"Former-WARC-Refers-To", b"<old>"),
        (b"WARC-Refers-To-Target-URI", ORIGINAL.uri),
        (b"Former-WARC-Refers-To-Target-URI", b"http://example.com/old"),
        (b"WARC-Payload-Digest", ORIGINAL.digest),
        (b"Former-WARC-Payload-Digest", b"sha1:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"),
        (b"WARC-Refers-To-Date", ORIGINAL.date),
        (b"Former-WARC-Refers-To-Date", b"none"),
    )
    assert pointed_back(new) == old


def test_a_field_that_changes_twice_keeps_its_first_value() -> None:
    old = head(b"WARC-Type: revisit", b"WARC-Refers-To: <old>")
    first = pointed_to(old, ORIGINAL, is_revisit=True, takes_digest=False, new_id=b"<unused>")
    second = pointed_to(first, FROM_ARC, is_revisit=True, takes_digest=False, new_id=b"<unused>")

    assert second.get(b"WARC-Refers-To-Target-URI") == FROM_ARC.uri
    assert pointed_back(second) == old


def test_metadata_gets_the_revisit_s_id_where_the_original_has_none() -> None:
    old = head(b"WARC-Type: metadata", b"WARC-Refers-To: <old>")

    assert pointed_to(old, FROM_ARC, is_revisit=False, takes_digest=False, new_id=b"<new>").fields == (
        (b"WARC-Type", b"metadata"),
        (b"WARC-Refers-To", b"<new>"),
        (b"Former-WARC-Refers-To", b"<old>"),
    )


_VALUES = st.binary(min_size=1, max_size=30).filter(
    lambda v: v == v.strip() and not set(v) & set(b"\r\n") and v != b"none"
)
_FORMS = st.sampled_from(
    [b"sha1:" + b"A" * 32, b"sha1:" + b"0a" * 20, b"sha-256:" + b"0A" * 32, b"blake3:" + b"00" * 32, b"odd"]
)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"X-One", b"WARC-IP-Address", b"WARC-Protocol"]), _VALUES), max_size=4
    ),
    st.none() | _FORMS,
    st.none() | _FORMS,
    st.lists(_VALUES, max_size=3),
    st.booleans(),
)
def test_all_fields_of_a_response_come_back(
    more: list[tuple[bytes, bytes]],
    payload: bytes | None,
    block: bytes | None,
    concurrent: list[bytes],
    has_id: bool,
) -> None:
    fields = [(b"WARC-Type", b"response"), (b"WARC-Record-ID", OLD_ID), *more]
    fields += [(b"WARC-Concurrent-To", name) for name in concurrent]
    fields += [(b"WARC-Payload-Digest", payload)] if payload else []
    fields += [(b"WARC-Block-Digest", block)] if block else []
    old = RawHead(b"WARC/1.1", tuple(fields))

    mended = with_concurrent(old, lambda name: b"<new>" if name < b"m" else None)
    new = as_revisit(mended, ORIGINAL if has_id else FROM_ARC, BLOCK)
    back = as_response(new)

    assert could_be_undone(old)
    assert back.without([BLOCK_DIGEST]) == old.without([BLOCK_DIGEST])
    assert (back.get(b"WARC-Block-Digest") is None) == (block is None)
