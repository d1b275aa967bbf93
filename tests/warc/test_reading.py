from __future__ import annotations

import gzip
import random
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc import framing, reading, records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.chunks import without_chunks
from scrapy_dedupe.warc.raw_heads import raw_head
from scrapy_dedupe.warc.reading import read_record, read_records

if TYPE_CHECKING:
    from scrapy_dedupe.warc.framing import Damage

HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def warc(block: bytes, *fields: str, kind: str = "response", end: bytes = b"\r\n\r\n") -> bytes:
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Record-ID: <urn:uuid:1>",
        "WARC-Date: 2026-11-28T00:00:00Z",
        "Content-Type: application/http; msgtype=response",
        f"Content-Length: {len(block)}",
        *fields,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + end


def stored(path, data: bytes):
    path.write_bytes(data)
    return list(read_records(path))


@pytest.mark.parametrize("packed", [True, False])
def test_a_record_tells_all_that_is_known_of_it(tmp_path, packed):
    captured = Capture(
        "http://example.org/a", "GET", 200, datetime(2026, 11, 28, tzinfo=UTC), (), b"",
        ((b"X-N\xe9", b"\xff"), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")), b"hello",
    )  # fmt: skip
    record = records.revisit(
        captured,
        digest=captured.payload_digest("sha1"),
        refers_to="urn:uuid:2",
        refers_to_uri="http://example.org/b",
        refers_to_date="2026-11-27T00:00:00.000Z",
    )
    data = record.to_bytes()
    (read,) = stored(tmp_path / "a.warc", gzip.compress(data) if packed else data)
    assert (read.file, read.offset, read.length) == ("a.warc", 0, (tmp_path / "a.warc").stat().st_size)
    assert (read.type, read.id, read.target_uri) == ("revisit", record.id, "http://example.org/a")
    assert read.date == "2026-11-28T00:00:00.000Z"
    assert read.payload_digest == ("sha1", captured.payload_digest("sha1"))
    assert (read.refers_to, read.refers_to_uri) == ("<urn:uuid:2>", "http://example.org/b")
    assert read.refers_to_date == "2026-11-27T00:00:00.000Z"
    assert read.profile == records.IDENTICAL_PAYLOAD
    assert read.http_status == 200
    assert read.http_headers[:3] == captured.response_headers
    assert read.http is not None
    assert read.http.get_all(b"set-cookie") == [b"a", b"b"]
    assert read.payload() == b""
    assert not read.is_truncated


def test_angle_brackets_around_uris_are_taken_off(tmp_path):
    data = warc(HTTP, "WARC-Target-URI: <http://example.org/>", "WARC-Refers-To-Target-URI: <http://b/>")
    (record,) = stored(tmp_path / "a.warc", data)
    assert (record.target_uri, record.refers_to_uri) == ("http://example.org/", "http://b/")


def test_the_transfer_coding_is_removed_and_the_content_coding_kept(tmp_path):
    body = gzip.compress(b"hello")
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
    (record,) = stored(tmp_path / "a.warc", warc(head + chunked))
    assert record.payload() == body
    (record,) = stored(tmp_path / "b.warc", warc(head + body))
    assert record.payload() == body


@given(st.lists(st.binary(min_size=1), max_size=5))
def test_chunks_come_together_again(pieces):
    body = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert without_chunks(body) == b"".join(pieces)


@given(st.lists(st.binary(min_size=1), min_size=1, max_size=5), st.data())
def test_chunks_that_were_cut_behind_the_first_give_what_is_there(pieces, data):
    body = b"".join(b"%x;e=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX-Sum: 1\r\n\r\n"
    first = len(b"%x;e=1\r\n" % len(pieces[0])) + len(pieces[0]) + 2
    cut = body[: data.draw(st.integers(first, len(body)))]
    payload = without_chunks(cut)
    assert b"".join(pieces).startswith(payload)
    position, expected = 0, b""
    for piece in pieces:
        position += len(b"%x;e=1\r\n" % len(piece))
        expected += piece[: max(0, len(cut) - position)]
        position += len(piece) + 2
    assert payload == expected


@pytest.mark.parametrize(
    "body",
    [
        b"9\r\nabc",  # its first chunk is larger than the body
        b"3\r\nabc",
        b"3\r\nabc\r",
        b"0\r\n",
        b"3\r\nabc\r\nplain text",
        b"3\r\nabc\r\n2\r\nabc\r\n",
        b"3\r\nabc\r\n0\r\nplain text",
        b"3\r\nabc\r\n0\r\n\r\n3",
        b"3\nabc\n9\nab",
    ],
)
def test_what_is_no_beginning_of_chunks_stays_as_it_is(body):
    assert without_chunks(body) == body


def test_the_payload_of_a_download_in_chunks_that_was_cut_is_its_text(tmp_path):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    (record,) = stored(
        tmp_path / "a.warc", warc(head + b"6\r\n<p>One\r\nff\r\n, two", "WARC-Truncated: length")
    )
    assert record.payload() == b"<p>One, two"


@pytest.mark.parametrize("blank", [b"\r\n", b"\r\n\r\n", b"\n\n", b" \r\n"])
def test_blank_lines_before_the_status_line_are_no_end_of_the_head(tmp_path, blank):
    (record,) = stored(tmp_path / "a.warc", warc(blank + HTTP + b"hello"))
    assert record.http is not None
    assert (record.http_status, record.payload()) == (200, b"hello")
    assert record.http.first_line.startswith(b"HTTP/1.1 200")
    assert record.http.headers == stored(tmp_path / "b.warc", warc(HTTP))[0].http.headers
    assert record.http.length == len(blank + HTTP)


def test_a_folded_field_may_begin_on_its_second_line(tmp_path):
    block = b"HTTP/1.1 200 OK\r\nX-Long:\r\n one\r\n\r\n"
    (record,) = stored(tmp_path / "a.warc", warc(block, "X-Long:", " http://example.org/"))
    assert record.get("X-Long") == "http://example.org/"
    assert record.http_headers == ((b"X-Long", b"one"),)


def test_line_ends_and_folded_fields_of_other_writers_are_forgiven(tmp_path):
    block = HTTP.replace(b"\r\n", b"\n") + b"body"
    data = warc(block, "X-Long: one", " two", end=b"\n").replace(b"\r\n", b"\n")
    first, second = stored(tmp_path / "a.warc", data + data)
    assert first.get("x-long") == "one two"
    assert first.payload() == second.payload() == b"body"
    assert first.length == second.offset


@pytest.mark.parametrize("packed", [True, False])
def test_millions_of_line_ends_between_records_are_passed_over(tmp_path, packed):
    first, second = warc(HTTP + b"one", end=b"\r\n" * 1_000_000), warc(HTTP + b"two")
    data = gzip.compress(first) + gzip.compress(second) if packed else first + second
    records = stored(tmp_path / "a.warc", data)
    assert [record.payload() for record in records] == [b"one", b"two"]
    assert len(records[0].frame.block_end) < 20, "nobody has to keep them all"


def test_a_long_line_that_is_full_of_dates_is_no_record_of_an_arc_file(tmp_path):
    noise = b"http://example.org/ 192.0.2.1 20261128000000 " * 20_000 + b"\r\n"
    damages: list[Damage] = []
    (tmp_path / "a.warc").write_bytes(warc(HTTP + b"one") + noise + warc(HTTP + b"two"))
    records = list(read_records(tmp_path / "a.warc", on_damage=damages.append))
    assert [record.payload() for record in records] == [b"one", b"two"]
    assert [damage.length for damage in damages] == [len(noise)]


def test_a_field_may_have_very_many_lines(tmp_path):
    lines = [f" {number % 7}" for number in range(200_000)]
    block = "\r\n".join(("HTTP/1.1 200 OK", "X-Long:", *lines, "", "")).encode()
    (record,) = stored(tmp_path / "a.warc.gz", gzip.compress(warc(block, "X-Long:", *lines, " \t")))
    value = "".join(lines).strip()
    assert record.get("X-Long") == value
    assert record.http_headers == ((b"X-Long", value.encode()),)
    assert raw_head(record).get(b"X-Long") == value.encode()


def test_a_long_payload_is_read_from_the_file_again(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_BYTES", 100)
    body = bytes(range(256)) * 40
    plain = warc(HTTP + b"small") + warc(HTTP + body)
    for name, data in (
        ("plain.warc", plain),
        ("members.warc.gz", gzip.compress(warc(HTTP + b"small")) + gzip.compress(warc(HTTP + body))),
        ("one-member.warc.gz", gzip.compress(plain)),
    ):
        first, second = stored(tmp_path / name, data)
        assert len(second.frame.kept) == 100
        assert (first.payload(), second.payload()) == (b"small", body)


@pytest.mark.parametrize("name", ["plain.warc", "members.warc.gz"])
def test_a_released_block_is_read_from_the_file_again(tmp_path, name):
    data = warc(HTTP + b"body", "X-Some: 1", "x-some: 2")
    (record,) = stored(tmp_path / name, data if name == "plain.warc" else gzip.compress(data))
    assert record.frame.is_held
    assert record.http is not None
    record.frame.keep_only(record.http.length)
    assert not record.frame.is_held
    assert record.frame.kept == HTTP
    assert (record.get("X-Some"), record.get_all("X-SOME")) == ("1", ["1", "2"])
    assert raw_head(record).get(b"X-Some") == b"1"
    assert (record.block(), record.payload()) == (HTTP + b"body", b"body")


@pytest.mark.parametrize("start", [b"", b"\r\n" * 3_000, b" \n"])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("size", [10, 10_000])
def test_a_head_ends_at_its_first_blank_line(tmp_path, start, line_end, size):
    head = line_end.join((b"HTTP/1.1 200 OK", b"X-Long: " + b"x" * size, b"", b""))
    (record,) = stored(tmp_path / "a.warc.gz", gzip.compress(warc(start + head + b"body\r\n\r\n")))
    assert record.http is not None
    assert record.http_status == 200
    assert record.http_headers == ((b"X-Long", b"x" * size),)
    assert record.http.length == len(start + head)
    assert record.payload() == b"body\r\n\r\n"


def test_records_that_share_a_member_are_read_and_say_that_they_do(tmp_path):
    data = gzip.compress(warc(HTTP + b"1") + warc(HTTP + b"2")) + gzip.compress(warc(HTTP + b"3"))
    found = stored(tmp_path / "a.warc.gz", data)
    assert [record.payload() for record in found] == [b"1", b"2", b"3"]
    assert [record.length > 0 for record in found] == [False, False, True]


def test_a_gzip_header_with_an_extra_field_is_read_across_a_boundary(tmp_path):
    member = gzip.compress(warc(HTTP + b"x"))
    extra = member[:3] + b"\x04" + member[4:10] + b"\x08\x00LX\x04\x00abcd" + member[10:]
    for padding in range((1 << 16) - 40, (1 << 16) + 2):
        first = warc(HTTP + b"y" * 10)
        store = zlib.compressobj(0, zlib.DEFLATED, 31)
        filler = store.compress(first) + store.flush()
        filler += bytes(padding - len(filler))  # NUL bytes between members
        found = stored(tmp_path / "a.warc.gz", filler + extra)
        assert [record.payload() for record in found] == [b"y" * 10, b"x"]
        assert found[1].offset == padding


# ARC

ARC1 = (
    b"filedesc://a.arc 0.0.0.0 20110301000000 text/plain 76\n"
    b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n\n"
)
ARC2_BLOCK = (
    b"2 0 InternetArchive\nURL IP-address Archive-date Content-type Result-code Checksum Location Offset "
    b"Filename Archive-length\n"
)
ARC2 = b"filedesc://b.arc 0.0.0.0 20110301000000 text/plain 200 - - 0 b.arc %d\n%b\n" % (
    len(ARC2_BLOCK),
    ARC2_BLOCK,
)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("version_block", "middle"), [(ARC1, b""), (ARC2, b" 200 ABC - 0 b.arc")], ids=["version 1", "version 2"]
)
def test_arc_files_are_read_in_the_words_of_warc(tmp_path, packed, version_block, middle):
    block = HTTP + b"hello"
    parts = [
        version_block,
        b"http://example.org/a b 192.0.2.1 20110302030405 text/html%b %d\n%b\n" % (middle, len(block), block),
        b"dns:example.org 192.0.2.1 20110302030405 text/dns%b 3\nabc\n" % middle,
    ]
    data = b"".join(map(gzip.compress, parts)) if packed else b"".join(parts)
    info, page, dns = stored(tmp_path / "a.arc", data)
    assert [record.type for record in (info, page, dns)] == ["warcinfo", "response", "resource"]
    assert (page.target_uri, page.date) == ("http://example.org/a b", "2011-03-02T03:04:05Z")
    assert (page.http_status, page.payload()) == (200, b"hello")
    assert (page.format, page.id, page.payload_digest) == ("arc", None, None)
    assert read_record(tmp_path / "a.arc", page.offset).payload() == b"hello"
    assert dns.payload() == b"abc"
    assert page.offset + page.length == dns.offset


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("version_block", "middle"), [(ARC1, b""), (ARC2, b" 200 ABC - 0 b.arc")], ids=["version 1", "version 2"]
)
@pytest.mark.parametrize("address", [b"192.0.2.1", b"2001:db8::1", b"-"])
def test_a_media_type_with_spaces_does_not_hide_the_date_of_an_arc_record(
    tmp_path, packed, version_block, middle, address
):
    line = b"http://example.org/a b %b 20110302030405 text/html; charset=utf-8; v=1%b %d\n"
    parts = [version_block, line % (address, middle, len(HTTP)) + HTTP + b"\n"]
    data = b"".join(map(gzip.compress, parts)) if packed else b"".join(parts)
    page = stored(tmp_path / "a.arc", data)[1]
    assert (page.target_uri, page.date) == ("http://example.org/a b", "2011-03-02T03:04:05Z")
    assert page.get("content-type") == "text/html; charset=utf-8; v=1"
    assert page.get("ip-address") == address.decode()
    assert page.http_status == 200


# Damage


def damaged(path, data: bytes) -> tuple[list[bytes], list[Damage]]:
    path.write_bytes(data)
    damages: list[Damage] = []
    found = [record.payload() for record in read_records(path, on_damage=damages.append)]
    if damages:
        with pytest.raises(DamagedInput, match=f"offset {damages[0].offset}"):
            list(read_records(path))
    return found, damages


@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_record_is_passed_over_and_told(tmp_path, packed):
    parts = [warc(HTTP + b"%d" % number) for number in range(4)]
    parts[1] = parts[1].replace(b"Content-Length: ", b"Content-Length: x")
    stored_parts = [gzip.compress(part) if packed else part for part in parts]
    found, damages = damaged(tmp_path / "a.warc", b"".join(stored_parts))
    assert found == [b"0", b"2", b"3"]
    (damage,) = damages
    assert (damage.offset, damage.length) == (len(stored_parts[0]), len(stored_parts[1]))


@pytest.mark.parametrize("wrong", [-1, 5, 100])
@pytest.mark.parametrize("packed", [True, False])
def test_a_record_with_a_wrong_length_is_not_believed(tmp_path, wrong, packed):
    good = warc(HTTP + b"good")
    true = len(HTTP + b"bad bad")
    bad = warc(HTTP + b"bad bad").replace(b"Length: %d" % true, b"Length: %d" % (true + wrong))
    pack = gzip.compress if packed else bytes
    found, damages = damaged(tmp_path / "a.warc", pack(good) + pack(bad) + pack(good) * 3)
    assert found == [b"good"] * 4
    assert [damage.offset for damage in damages] == [len(pack(good))]


@pytest.mark.parametrize("place", [0, 1, 12, 60, -8, -4])
def test_one_flipped_byte_costs_one_member(tmp_path, place):
    parts = [gzip.compress(warc(HTTP + b"%d" % number * 50)) for number in range(3)]
    broken = bytearray(parts[1])
    broken[place] ^= 0x55
    found, damages = damaged(tmp_path / "a.warc.gz", parts[0] + bytes(broken) + parts[2])
    assert found == [b"0" * 50, b"2" * 50]
    assert [damage.offset for damage in damages] == [len(parts[0])]


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_first_byte_does_not_hide_the_file(tmp_path, place):
    parts = [gzip.compress(warc(HTTP + b"%d" % number)) for number in range(3)]
    broken = bytearray(parts[0])
    broken[place] ^= 0x55
    found, damages = damaged(tmp_path / "a.warc.gz", bytes(broken) + parts[1] + parts[2])
    assert found == [b"1", b"2"]
    assert [damage.offset for damage in damages] == [0]


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_file_yields_its_whole_records_and_tells(tmp_path, packed):
    # The body that was cut contains a record of its own, which is not one of this file.
    part = warc(HTTP + b"x" * 40)
    outer = warc(HTTP + part)
    if packed:
        store = zlib.compressobj(0, zlib.DEFLATED, 31)
        part = gzip.compress(part)
        outer = store.compress(warc(HTTP + part)) + store.flush()
    found, damages = damaged(tmp_path / "a.warc", part + outer[:-10])
    assert found == [b"x" * 40]
    assert [(damage.offset, damage.length) for damage in damages] == [(len(part), len(outer) - 10)]


@pytest.mark.parametrize(
    "data", [b"hello\nworld\n", b"\x1f\x8b", b"\x28\xb5\x2f\xfdzstd", gzip.compress(b"no", mtime=0)]
)
def test_what_is_no_archive_is_one_damaged_place(tmp_path, data):
    found, damages = damaged(tmp_path / "a.warc", data)
    assert found == []
    assert [(damage.offset, damage.length) for damage in damages] == [(0, len(data))]


@pytest.mark.parametrize("head", [b"X-Long\r\n http://a/", b" no colon"])
def test_a_head_with_a_line_that_is_no_field_is_damaged(tmp_path, head):
    whole = warc(HTTP)
    part = whole.replace(b"\r\n", b"\r\n" + head + b"\r\n", 1)
    found, damages = damaged(tmp_path / "a.warc", part + whole)
    assert (len(found), [damage.offset for damage in damages]) == (1, [0])


def test_an_empty_file_has_no_records(tmp_path):
    assert stored(tmp_path / "a.warc", b"") == []


def test_an_offset_without_a_record_is_refused(tmp_path):
    data = warc(HTTP)
    (tmp_path / "a.warc").write_bytes(data)
    for offset in (1, len(data)):
        with pytest.raises(DamagedInput, match=f"offset {offset}"):
            read_record(tmp_path / "a.warc", offset)


@given(st.binary(max_size=300), st.booleans(), st.integers(0, 400))
def test_no_bytes_make_reading_fail_in_another_way(tmp_path_factory, noise, packed, place):
    part = warc(HTTP + b"good")
    data = gzip.compress(part) * 2 if packed else part * 2
    path = tmp_path_factory.mktemp("noise") / "a.warc"
    path.write_bytes(data[:place] + noise + data[place:])
    for record in read_records(path, on_damage=lambda damage: None):
        record.payload()
        assert record.payload_digest is None


PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b": ",
    b"Name: value\r\n",
    "Nämé: é\r\n".encode(),
    b"N: \xff\r\n",
    b"x",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.booleans())
def test_a_head_is_read_in_one_go_as_it_is_line_by_line(tmp_path_factory, pieces, packed):
    data = b"WARC/1.1\r\n" + b"".join(pieces) + b"Content-Length: 2\r\n\r\nok\r\n\r\n"
    path = tmp_path_factory.mktemp("head") / "a.warc"
    path.write_bytes(gzip.compress(data) if packed else data)

    def seen():
        damages = []
        return [(r.headers, r.block()) for r in read_records(path, on_damage=damages.append)], damages

    at_once = seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "known_head", lambda data, layouts: None)
        assert seen() == at_once


MEMBERS = [gzip.compress(warc(HTTP + bytes([65 + n]) * 500, f"X-Number: {n}")) for n in range(3)]


@pytest.mark.parametrize(
    "between",
    [b"junk", MEMBERS[0][-8:], MEMBERS[0][-30:], b"more" + MEMBERS[0][-8:], bytes(6) + MEMBERS[0][-8:]],
)
def test_bytes_between_members_are_damage_even_if_they_look_like_the_end_of_one(tmp_path, between):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(MEMBERS[0] + between + MEMBERS[1] + MEMBERS[2])
    damages: list[Damage] = []
    found = list(read_records(path, on_damage=damages.append))
    assert [record.get("X-Number") for record in found] == ["0", "1", "2"]
    assert [record.length for record in found] == [len(member) for member in MEMBERS]
    zeros = len(between) - len(between.lstrip(b"\0"))
    assert [(damage.offset, damage.length) for damage in damages] == [
        (len(MEMBERS[0]) + zeros, len(between) - zeros)
    ]


def test_a_member_that_holds_the_beginning_of_another_is_read_whole(tmp_path):
    # Stored without compression, so that the bytes are in the file as they are.
    inner = gzip.compress(warc(HTTP + b"inner"))
    members = [gzip.compress(warc(HTTP + inner * 3), 0), gzip.compress(warc(HTTP + b"next"))]
    found = stored(tmp_path / "a.warc.gz", b"".join(members))
    assert [record.payload() for record in found] == [inner * 3, b"next"]
    assert [record.length for record in found] == [len(member) for member in members]


@pytest.mark.parametrize("size", [(1 << 20) - 1, (1 << 20) + 1, 5 << 20])
def test_members_around_the_size_that_is_read_at_once_are_all_alike(tmp_path, size):
    body = random.Random(size).randbytes(size)
    members = [gzip.compress(warc(HTTP + body), 1), gzip.compress(warc(HTTP + bytes(size))), MEMBERS[0]]
    found = stored(tmp_path / "a.warc.gz", b"".join(members))
    assert [record.payload() for record in found[:2]] == [body, bytes(size)]
    assert [record.length for record in found] == [len(member) for member in members]


def test_a_head_without_a_blank_line_has_no_more_in_its_last_header(tmp_path):
    (record,) = stored(tmp_path / "a.warc", warc(b"HTTP/1.1 200 OK\r\nHost: example.org\r\n"))
    assert record.http_headers == ((b"Host", b"example.org"),)


@pytest.mark.parametrize("flag", [4, 8, 16])
def test_a_wrong_flag_in_the_head_of_a_member_hides_no_record_behind_it(tmp_path, flag):
    members = [gzip.compress(warc(HTTP + body), mtime=0) for body in (b"one", b"two", b"three")]
    first, second = bytearray(members[0]), len(members[0])
    first[3] |= flag
    path = tmp_path / "a.warc.gz"
    path.write_bytes(bytes(first) + members[1] + members[2])
    damages = []
    assert [found.offset for found in read_records(path, on_damage=damages.append)] == [
        second,
        second + len(members[1]),
    ]
    assert [(damage.offset, damage.length) for damage in damages] == [(0, second)]


def test_heads_with_other_names_between_are_read_as_they_are(tmp_path):
    heads = [
        b"",
        b"WARC-Truncated: length\r\n",
        b"",
        b"content-length: 3\r\n",
        b"",
        b"X: caf\xc3\xa9\r\n",
        b"",
    ]
    data = [
        b"WARC/1.1\r\nWARC-Type: resource\r\n" + head + b"Content-Length:  3 \r\n\r\nabc\r\n\r\n"
        for head in heads
    ]
    packed, plain = tmp_path / "a.warc.gz", tmp_path / "a.warc"
    packed.write_bytes(b"".join(gzip.compress(part, mtime=0) for part in data))
    plain.write_bytes(b"".join(data))
    found = [(one.headers, one.get("X"), one.block()) for one in read_records(packed)]
    assert found == [(one.headers, one.get("X"), one.block()) for one in read_records(plain)]
    assert [len(headers) for headers, _, _ in found] == [2, 3, 2, 3, 2, 3, 2]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "head", [b"", b"WARC/1.1\r\nWARC-Type: resource\r\n\r\n", b"WARC/1.1\r\nContent-Length: 9999999\r\n\r\n"]
)
def test_a_record_inside_a_whole_member_that_holds_none_is_not_one_of_the_file(tmp_path, head, count):
    good, inner = gzip.compress(warc(b"good")), gzip.compress(warc(b"inner"))
    outer = gzip.compress(head + inner + b"text", 0)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(good + outer * count + good)

    damage = []
    found = list(read_records(path, on_damage=damage.append))

    assert [record.block() for record in found] == [b"good", b"good"]
    assert (damage[0].offset, damage[0].length) == (len(good), len(outer) if head else len(outer) * count)
    assert sum(place.length for place in damage) == len(outer) * count


def test_a_record_is_found_behind_a_member_with_a_wrong_checksum_that_holds_none(tmp_path):
    good = gzip.compress(warc(b"good"))
    outer = bytearray(gzip.compress(b"text" * 50))
    outer[-6] ^= 1
    path = tmp_path / "a.warc.gz"
    path.write_bytes(good + outer + good)

    damage = []
    found = list(read_records(path, on_damage=damage.append))

    assert [record.block() for record in found] == [b"good", b"good"]
    assert sum(place.length for place in damage) == len(outer)


def test_the_members_of_two_programs_are_decompressed_at_once(tmp_path):
    rng = random.Random(1)
    blocks = [HTTP + rng.randbytes(rng.randrange(100, 3_000)) for _ in range(60)]
    # The time in the head of a member differs from program to program.
    members = [gzip.compress(warc(block), mtime=rng.choice([0, 0, 1_700_000_000])) for block in blocks]

    found = stored(tmp_path / "a.warc.gz", b"".join(members))

    assert [record.block() for record in found] == blocks
    assert [record.length for record in found] == [len(member) for member in members]
    assert all(record.frame.member for record in found)
