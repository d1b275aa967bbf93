"""Heads of records keep the bytes of all fields that nobody changes."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.raw_heads import RawHead, raw_head
from scrapy_dedupe.warc.reading import read_records

FIRST = ((b"WARC-Type", b"resource"), (b"WARC-Record-ID", b"<urn:uuid:1>"), (b"Content-Length", b"3"))


def stored(path, data: bytes):
    path.write_bytes(data)
    return list(read_records(path))


def written(version: bytes, fields) -> bytes:
    return b"\r\n".join([version, *(b"%b: %b" % pair for pair in fields)]) + b"\r\n\r\nabc\r\n\r\n"


names = st.from_regex(rb"X-[A-Za-z0-9-]{1,10}", fullmatch=True)
values = st.binary(max_size=30).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"").strip())


@given(
    st.sampled_from([b"WARC/1.0", b"WARC/1.1", b"WARC/0.18"]),
    st.lists(st.tuples(names, values)),
    st.booleans(),
)
def test_a_head_comes_back_byte_for_byte(tmp_path_factory, version, more, packed):
    data = written(version, (*FIRST, *more))
    path = tmp_path_factory.mktemp("heads") / "a.warc"
    (record,) = stored(path, gzip.compress(data) if packed else data)
    head = raw_head(record)
    assert head == RawHead(version, (*FIRST, *more))
    assert head.to_bytes(3) == data[: -len(b"abc\r\n\r\n")]


def test_records_that_share_a_member_have_their_own_heads(tmp_path):
    data = b"".join(written(b"WARC/1.0", (*FIRST, (b"X", b"%d" % n))) for n in range(3))
    for packed in (data, gzip.compress(data)):
        found = [raw_head(record).get(b"x") for record in stored(tmp_path / "a.warc", packed)]
        assert found == [b"0", b"1", b"2"]


def test_folded_lines_bare_line_ends_and_white_space_become_one_form(tmp_path):
    data = b"WARC/1.0\nWARC-Type:resource \nX-Long: one\n\t two\n   three\nContent-Length:  3\n\nabc\n\n"
    (record,) = stored(tmp_path / "a.warc", data)
    head = raw_head(record)
    assert head.fields == (
        (b"WARC-Type", b"resource"),
        (b"X-Long", b"one two three"),
        (b"Content-Length", b"3"),
    )
    assert head.to_bytes(70) == (
        b"WARC/1.0\r\nWARC-Type: resource\r\nX-Long: one two three\r\nContent-Length: 70\r\n\r\n"
    )


def test_fields_are_changed_in_their_place_and_added_at_the_end():
    head = RawHead(b"WARC/1.0", (*FIRST, (b"warc-type", b"twice"), (b"X", b"y")))
    changed = head.replaced(b"WARC-TYPE", b"revisit").replaced(b"WARC-Profile", b"p").added((b"X", b"z"))
    assert changed.get_all(b"warc-type") == [b"revisit"]
    assert changed.get_all(b"x") == [b"y", b"z"]
    assert [name for name, _ in changed.fields] == [
        b"WARC-Type", b"WARC-Record-ID", b"Content-Length", b"X", b"WARC-Profile", b"X",
    ]  # fmt: skip
    assert changed.without([b"x", b"content-length"]).fields == (
        (b"WARC-Type", b"revisit"), (b"WARC-Record-ID", b"<urn:uuid:1>"), (b"WARC-Profile", b"p"),
    )  # fmt: skip
    assert head.get(b"nothing") is None


@pytest.mark.parametrize("value", [b"a\r\nWARC-Type: x", b"a\n", b"\r"])
def test_a_value_cannot_begin_another_field(value):
    head = RawHead(b"WARC/1.0", FIRST)
    with pytest.raises(ValueError, match="line end"):
        head.replaced(b"X", value)
    with pytest.raises(ValueError, match="line end"):
        head.added((b"X", value))


def test_an_arc_record_has_no_named_fields(tmp_path):
    data = b"http://example.org/ 1.2.3.4 20200101000000 text/plain 3\nabc\n"
    (record,) = stored(tmp_path / "a.arc", data)
    with pytest.raises(ValueError, match="ARC"):
        raw_head(record)


def test_a_file_that_was_changed_meanwhile_is_damaged(tmp_path):
    path = tmp_path / "a.warc"
    folded = written(b"WARC/1.0", FIRST).replace(b"Content-Length: ", b"Content-Length:\r\n ")
    (record,) = stored(path, folded)
    path.write_bytes(b"")
    with pytest.raises(DamagedInput, match=r"a\.warc, offset 0"):
        raw_head(record)


def test_a_folded_field_may_begin_on_its_second_line(tmp_path):
    data = b"WARC/1.0\r\nWARC-Type: resource\r\nX-Long:\r\n http://a/\r\nContent-Length: 3\r\n\r\nabc\r\n\r\n"
    (record,) = stored(tmp_path / "a.warc", data)
    assert raw_head(record).get(b"X-Long") == b"http://a/"
    assert b"\r\nX-Long: http://a/\r\n" in raw_head(record).to_bytes(3)
