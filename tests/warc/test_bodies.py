"""Payloads of any size in pieces: the same bytes as in one go, in memory that does not grow."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.warc import bodies, chunks, reading
from scrapy_dedupe.warc.bodies import (
    BodyDigest,
    decoded_pieces,
    has_more_than_payload,
    hashed_records,
    payload_digest,
    payload_pieces,
)
from scrapy_dedupe.warc.chunks import MAX_TRAILER_BYTES, dechunked, without_chunks
from scrapy_dedupe.warc.codings import Undecodable, decoded_body, decoded_stream
from scrapy_dedupe.warc.reading import StoredRecord, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def warc(block: bytes, kind: str = "response") -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2026-11-28T00:00:00Z\r\n"
        f"Content-Type: application/http\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def record_of(folder: Path, body: bytes, *fields: bytes, packed: bool = True) -> StoredRecord:
    data = warc(HEAD + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body)
    path = folder / "a.warc.gz"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return next(read_records(path))


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[begin : begin + size] for begin in range(0, len(data), size))


CHUNKS = st.lists(
    st.one_of(
        st.binary(max_size=40).map(lambda data: b"%x\r\n%b\r\n" % (len(data), data)),
        st.binary(max_size=40).map(lambda data: b"%X ; name=value\n%b\n" % (len(data), data)),
        st.sampled_from([b"0\r\n\r\n", b"5\r\nabc", b"ffffffffffffffff\r\n", b"3;" + b"x" * 20_000 + b"\r\nabc\r\n"]),
        st.binary(max_size=10),
    ),
    max_size=8,
).map(b"".join)  # fmt: skip


@given(CHUNKS, st.integers(1, 60), st.sampled_from([1, 3, 1_000]))
@example(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 1, 1)
@example(b"3\r\nabc\r\n4\r\ndefgh\r\n", 2, 1)
@example(b"3\r\nabc\r", 2, 3)
@example(b"3\r\nabc\r\n", 1, 1)
def test_chunks_are_taken_apart_in_pieces_as_in_one_go(body: bytes, size: int, held: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_PIECE", held)
        pieces = list(dechunked(lambda: in_pieces(body, size)))
    assert b"".join(pieces) == without_chunks(body)
    assert all(0 < len(piece) <= held for piece in pieces)


whole_chunkings = st.builds(
    lambda pieces, extension, trailer: (
        b"".join(b"%X%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
        + b"0\r\n%b\r\n" % trailer
    ),
    st.lists(st.binary(min_size=1, max_size=20), max_size=4),
    st.sampled_from([b"", b" ", b";a=b", b' ; a="b c"']),
    st.sampled_from([b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nX-Time: 2\r\n"]),
)


cut_chunkings = st.builds(lambda body, cut: body[: -1 - cut % len(body)], whole_chunkings, st.integers(0))


@given(whole_chunkings, st.binary(min_size=1, max_size=20))
def test_what_is_not_in_chunks_to_its_last_byte_keeps_every_byte(body, more):
    for other in (body + more, body.replace(b"\r\n", b"\n")):
        assert without_chunks(other) == other


@given(
    st.one_of(cut_chunkings, CHUNKS, st.binary(max_size=40)),
    st.integers(1, 9),
    st.sampled_from([80, 8 << 20]),
)
@settings(deadline=None)
def test_a_body_loses_no_byte_unless_that_is_told_or_it_is_wholly_in_chunks(
    tmp_path_factory, body, size, kept
):
    payload = without_chunks(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "KEPT_BYTES", kept)
        folder = tmp_path_factory.mktemp("bodies")
        has_more = has_more_than_payload(record_of(folder, body, b"Transfer-Encoding: chunked", packed=False))
    assert b"".join(dechunked(lambda: in_pieces(body, size))) == payload
    if payload == body:
        assert not has_more or not body
    elif not has_more:
        left = body
        while length := int(left.partition(b"\r\n")[0], 16):
            left = left.partition(b"\r\n")[2][length:].removeprefix(b"\r\n")
        assert left.partition(b"\r\n")[2] == b"\r\n"


@given(whole_chunkings)
@example(b"20200101\nname,value\n")
@example(b"4\nabcd\n0\nthe rest of the page")
@example(b"4\r\nabcd\r\n0\r\nthe rest: of the page")
@example(b"0")
@example(b"0\r\n")
def test_only_the_framing_is_taken_from_a_body(body):
    payload, left = without_chunks(body), body
    if payload == body:
        return
    taken = b""
    while size := int(re.split(rb"[ ;\r]", left)[0], 16):
        _, left = left.split(b"\r\n", 1)
        taken += left[:size]
        assert left[size : size + 2] == b"\r\n"
        left = left[size + 2 :]
    assert taken == payload
    assert left.startswith(b"0")
    assert left.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "ending", [b"0\r\n\r\n", b"0\r\nX-Sum: 1\r\n\r\n", b"0\r\nmore", b"", b"5\r\nab", b"zz\r\nmore"]
)
@pytest.mark.parametrize("broken", [False, True])
def test_a_body_that_is_too_long_to_hold_is_looked_at_twice(ending: bytes, broken: bool) -> None:
    chunk = bytes(3 << 20)
    body = (
        b"1\r\na\r\n%x\r\n%b%b\r\n" % (len(chunk), chunk, b"!" if broken else b"") + b"2\r\nbc\r\n" + ending
    )
    opened = []

    def open_body() -> Iterator[bytes]:
        opened.append(1)
        return in_pieces(body, 70_000)

    payload = b"".join(dechunked(open_body))
    assert payload == without_chunks(body)
    more = {b"": b"", b"5\r\nab": b"ab", b"0\r\nmore": b"", b"zz\r\nmore": None}.get(ending, b"")
    if broken or more is None:
        assert payload == body
    else:
        assert payload == b"a" + chunk + b"bc" + more
    assert len(opened) == 2


def test_fields_behind_the_last_chunk_have_a_bound(tmp_path):
    body = b"1\r\na\r\n0\r\nX: %b\r\n\r\n"
    for length, is_in_chunks in ((MAX_TRAILER_BYTES - 7, True), (MAX_TRAILER_BYTES - 6, False)):
        data = body % (b"x" * length)
        assert without_chunks(data) == (b"a" if is_in_chunks else data)
        assert b"".join(dechunked(lambda data=data: in_pieces(data, 1_000))) == without_chunks(data)


@pytest.mark.parametrize("kept", [80, 8 << 20])
@pytest.mark.parametrize(
    ("body", "has_more"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", False),
        (b"3;a=b\r\nabc\r\n0\r\n\r\n", True),
        (b"3\r\nabc\r\n0;a=b\r\n\r\n", True),
        (b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", True),
        (b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n", True),
        (b"3\r\nabc\r\n0\r\nX-Su", True),
        (b"3\r\nabc\r\n0\r\n", True),
        (b"3\r\nabc\r\n0", True),
        (b"3\r\nabc\r\n", True),
        (b"3\r\nabc\r\n9;a", True),
        (b"3\r\nabc\r\n9\r\nab", True),
        (b"3\r\nabc\r\n2\r\nab\r", True),
        # all of these is payload
        (b"3\r\nabc", False),
        (b"9\r\nabc", False),
        (b"0\r\n", False),
        (b"3\r\nabc\r\nplain text", False),
        (b"3\r\nabc\r\n2\r\nabc\r\n", False),
        (b"3\r\nabc\r\n0\r\nplain text", False),
        (b"plain", False),
    ],
)
def test_what_chunks_say_besides_the_body_is_seen(tmp_path, monkeypatch, body, has_more, kept):
    monkeypatch.setattr(reading, "KEPT_BYTES", kept)
    assert has_more_than_payload(record_of(tmp_path, body, b"Transfer-Encoding: chunked")) is has_more
    assert not has_more_than_payload(record_of(tmp_path, body))


@given(
    st.sampled_from(["response", "request", "resource", "revisit"]),
    st.one_of(CHUNKS, st.binary(max_size=300)),
    st.sampled_from([b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, CHUNKED ", b"X: y"]),
    st.booleans(),
    st.sampled_from([90, 8 << 20]),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_payload_in_pieces_is_the_payload(tmp_path_factory, kind, body, field, packed, kept):
    data = warc(HEAD + field + b"\r\n\r\n" + body, kind)
    path = tmp_path_factory.mktemp("bodies") / "a.warc"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "KEPT_BYTES", kept)
        (record,) = read_records(path)
    assert b"".join(payload_pieces(record)) == record.payload()
    for algorithm in ("md5", "sha1", "sha256", "sha512"):
        assert payload_digest(record, algorithm) == (
            bodies.BodyDigest(hashlib.new(algorithm, record.payload()).hexdigest(), len(record.payload()))
        )


@given(
    st.binary(max_size=3_000),
    st.lists(st.sampled_from(["gzip", "deflate", "raw", "br", "zstd"]), max_size=3),
    st.sampled_from([0, 1, 40]),
    st.sampled_from([b"", b"\0\0\0", b"junk", b"\0junk", gzip.compress(b"more")]),
    st.integers(1, 4_000),
)
@settings(deadline=None)
def test_a_body_is_decoded_in_pieces_as_in_one_go_or_refused_as_in_one_go(data, names, cut, behind, size):
    brotli, zstandard = pytest.importorskip("brotli"), pytest.importorskip("zstandard")
    encoders = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "raw": lambda data: zlib.compress(data)[2:-4],
        "br": brotli.compress,
        "zstd": zstandard.compress,
    }
    body = data
    for name in names:
        body = encoders[name](body)
    body = body[: len(body) - cut] + behind
    codings = ["deflate" if name == "raw" else name for name in names]
    try:
        expected = decoded_body(body, codings) if body else b""
    except Undecodable:
        with pytest.raises(Undecodable, match="damaged or incomplete"):
            list(decoded_stream(in_pieces(body, size), codings))
    else:
        assert b"".join(decoded_stream(in_pieces(body, size), codings)) == expected


def test_the_digest_of_a_decoded_body_is_that_of_its_text(tmp_path):
    record = record_of(tmp_path, gzip.compress(b"hello"), b"Content-Encoding: gzip")
    assert payload_digest(record, decoded=True) == (
        bodies.BodyDigest(hashlib.sha256(b"hello").hexdigest(), 5)
    )
    with pytest.raises(Undecodable, match="gzip"):
        payload_digest(record_of(tmp_path, b"plain", b"Content-Encoding: gzip"), decoded=True)


@pytest.mark.parametrize("kind", ["plain", "chunked", "one chunk", "decoded"])
def test_a_small_member_that_swells_does_not_fill_the_memory(tmp_path, kind):
    size = 50 << 20
    fields, decoded = [], kind == "decoded"
    if kind == "plain":
        body = bytes(size)
    elif kind == "chunked":
        body = (b"100000\r\n" + bytes(1 << 20) + b"\r\n") * (size >> 20) + b"0\r\n\r\n"
        fields = [b"Transfer-Encoding: chunked"]
    elif kind == "one chunk":
        body = b"%x\r\n" % size + bytes(size) + b"\r\n0\r\n\r\n"
        fields = [b"Transfer-Encoding: chunked"]
    else:
        body = gzip.compress(bytes(size), 1)
        fields = [b"Content-Encoding: gzip"]
    record = record_of(tmp_path, body, *fields)
    del body
    tracemalloc.start()
    try:
        digest = payload_digest(record, decoded=decoded)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert digest.size_bytes == size
    assert peak < 10 << 20


def test_an_endless_decoded_body_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_DECODED_BYTES", 10 << 20)
    record = record_of(tmp_path, gzip.compress(bytes(20 << 20)), b"Content-Encoding: gzip")
    with contextlib.closing(decoded_pieces(record)) as pieces, pytest.raises(Undecodable, match="more than"):
        list(pieces)


def facts(record: StoredRecord) -> tuple[object, ...]:
    return record.offset, record.length, record.frame.block_position, record.headers, record.block()


@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(["response", "revisit", "resource"]), st.binary(max_size=400)), max_size=6
    ),
    st.one_of(st.none(), st.tuples(st.integers(0, 3_000), st.integers(1, 255))),
    st.sampled_from([b"Transfer-Encoding: chunked", b"X: y"]),
)
@settings(max_examples=examples(80), deadline=None)
def test_hashing_in_passing_tells_what_reading_twice_tells(tmp_path_factory, packed, parts, flip, field):
    members = [warc(HEAD + field + b"\r\n\r\n" + body, kind) for kind, body in parts]
    data = bytearray(b"".join(gzip.compress(member) if packed else member for member in members))
    if flip and flip[0] < len(data):
        data[flip[0]] ^= flip[1]
    path = tmp_path_factory.mktemp("hashed") / ("a.warc.gz" if packed else "a.warc")
    path.write_bytes(data)
    damages, others = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "KEPT_BYTES", 150)
        found = list(hashed_records(path, lambda _: ("sha256", "md5"), on_damage=damages.append))
        records = list(read_records(path, on_damage=others.append))
    assert damages == others
    assert [facts(record) for record, _ in found] == [facts(record) for record in records]
    for record, digests in found:
        payload = record.payload()
        assert digests == tuple(
            BodyDigest(hashlib.new(name, payload).hexdigest(), len(payload)) for name in ("sha256", "md5")
        )


def test_a_long_block_is_hashed_without_reading_it_again(tmp_path, monkeypatch):
    body = bytes(range(256)) * 200
    path = record_of(tmp_path, body).path
    monkeypatch.setattr(reading, "KEPT_BYTES", 1_000)
    monkeypatch.setattr(bodies, "open_block", None)
    ((record, digests),) = hashed_records(path, lambda _: ("sha1",))
    assert (record.offset, record.length) == (0, path.stat().st_size)
    assert digests == (BodyDigest(hashlib.sha1(body).hexdigest(), len(body)),)
    assert [digests for _, digests in hashed_records(path, lambda _: ())] == [()]
