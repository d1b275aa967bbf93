from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.warc import cdxj_reading
from scrapy_dedupe.warc.cdxj_reading import CdxCapture, CdxFault, cdxj_lines, lines_of, read_cdxj, unpacked

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://example.org/a"
PREFIX = b"org,example)/a 20261128000000123 "
GOOD = {"url": URL, "mime": "text/html", "status": "200", "digest": "sha256:" + "0" * 64, "length": "700"}


def line(**changes: object) -> bytes:
    values = {**GOOD, "offset": "12", "filename": "a.warc.gz", **changes}
    return PREFIX + json.dumps({name: value for name, value in values.items() if value is not ...}).encode()


def only(*lines: bytes) -> CdxCapture | CdxFault:
    (found,) = read_cdxj(lines)
    return found


def test_a_line_says_where_a_capture_is():
    assert only(line()) == CdxCapture(
        URL, "20261128000000123", "text/html", 200, "sha256:" + "0" * 64, 700, 12, "a.warc.gz", "GET"
    )
    found = only(line(method="post", length=7, offset=0, status=404, filename=..., digest=...))
    assert found == CdxCapture(URL, "20261128000000123", "text/html", 404, None, 7, 0, None, "POST")


def test_a_url_in_angle_brackets_is_the_url():
    assert only(line(url=f"<{URL}>")) == only(line())


@pytest.mark.parametrize("unknown", [..., None, "", "-"])
def test_what_is_not_known_can_be_left_out(unknown):
    found = only(
        line(mime=unknown, status=unknown, digest=unknown, offset=unknown, filename=unknown, method=unknown)
    )
    assert found == CdxCapture(URL, "20261128000000123", "", None, None, 700, None, None, "GET")


@pytest.mark.parametrize(
    ("changes", "is_exchange", "is_revisit"),
    [
        ({}, True, False),
        ({"mime": "warc/revisit"}, True, True),
        ({"mime": "warc/revisit", "status": ...}, True, True),
        ({"status": ...}, False, False),
        ({"status": "-", "mime": "application/json"}, False, False),
        ({"url": "HTTPS://example.org/"}, True, False),
        ({"url": "urn:pageinfo:http://example.org/"}, False, False),
        ({"url": "dns:example.org", "mime": "text/dns"}, False, False),
        ({"url": "urn:x", "mime": "warc/revisit"}, False, True),
    ],
)
def test_responses_and_revisits_are_told_from_what_is_no_exchange(changes, is_exchange, is_revisit):
    found = only(line(**changes))
    assert isinstance(found, CdxCapture)
    assert (found.is_exchange, found.is_revisit) == (is_exchange, is_revisit)


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line(url=...), "has no URL"),
        (line(url=""), "has no URL"),
        (line(url=None), "has no URL"),
        (line(url="<>"), "has no URL"),
        (line(url=7), "URL that is not a string"),
        (line(url=["http://a/"]), "URL that is not a string"),
        (line(url="http://a/\ud800"), "URL that is not valid text"),
        (line(mime=1), "mime that is not a string"),
        (line(digest=1), "digest that is not a string"),
        (line(digest="sha1:\udfff"), "digest that is not valid text"),
        (line(method={}), "method that is not a string"),
        (line(filename=["a"]), "file name that is not a string"),
        (line(filename="a\ud800"), "file name that is not valid text"),
        (line(filename="a\0b"), "has the file name"),
        (line(length=...), "has no length"),
        (line(length=None), "has no length"),
        (line(length="-"), "has no length"),
        (line(length="-5"), "not a number of bytes"),
        (line(length=-5), "not a number of bytes"),
        (line(length="many"), "not a number of bytes"),
        (line(length="٣"), "not a number of bytes"),
        (line(length=1.5), "not a number of bytes"),
        (line(length=True), "not a number of bytes"),
        (line(length=HUGE), "not a number of bytes"),
        (line(length=2**40), "not a number of bytes"),
        (line(length={}), "not a number of bytes"),
        (line(offset="x"), "the offset 'x'"),
        (line(offset=-1), "the offset -1"),
        (line(offset=2**63), "the offset"),
        (line(status="OK"), "the status 'OK'"),
        (line(status="20"), "the status '20'"),
        (line(status="099"), "the status '099'"),
        (line(status="²00"), "the status"),
        (line(status=True), "the status True"),
        (line(status=False), "the status False"),
        (line(status=10**9), "the status"),
        (line(status=[]), "the status"),
        (b"k 2026 {}", "no URL"),
        (line().replace(b"20261128000000123", b"2026"), "the date '2026'"),
        (line().replace(b"20261128000000123", b"202611280000001"), "the date"),
        (line().replace(b"20261128000000123", b"20261328000000"), "the date"),
        (line().replace(b"20261128000000123", b"20260230000000"), "which does not exist"),
        (line().replace(b"20261128000000123", b"00001128000000"), "the date"),
        (line().replace(b"20261128000000123", b"20261128000060"), "the date"),
        (line().replace(b"20261128000000123", "２０２６1128000000".encode()), "the date"),
        (PREFIX + b'{"url": "http://a/"', "does not parse"),
        (PREFIX + b"{", "does not parse"),
        (PREFIX + b'{"url": ' + b"[" * 100_000, "does not parse"),
        (PREFIX + b'{"length": ' + HUGE.encode() + b"}", "does not parse"),
        (PREFIX + b'{"url": "\xff"}', "not UTF-8"),
        (PREFIX + b'{"url": "http://a/\0"}', "does not parse"),
        (line() + b" {}", "more than one JSON"),
        (PREFIX + b"[]", "no JSON object"),
        (b"\0", "no JSON object"),
        (b"hello", "no JSON object"),
        (b"\xfe\xffo\0r\0g", "no JSON object"),
        (b"x" * (cdxj_reading.MAX_LINE_BYTES + 1), "longer than"),
    ],
)
def test_a_line_that_cannot_be_used_is_told_and_takes_no_other_with_it(bad, reason):
    before, fault, after = read_cdxj([line(), bad, line()])
    assert before == after == only(line())
    assert isinstance(fault, CdxFault)
    assert fault.line == 2
    assert reason in fault.reason
    assert len(fault.reason) < 300


@given(st.lists(st.binary(max_size=60)))
def test_no_bytes_break_the_reader(lines):
    found = list(read_cdxj([*lines, line()]))
    assert found[-1] == only(line())
    assert all(isinstance(one, (CdxCapture, CdxFault)) for one in found)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([name for name in CdxCapture._fields if name != "date"])


@given(st.dictionaries(names, json_values, max_size=4))
def test_what_comes_out_can_be_written_down(changes):
    found = only(line(**changes))
    if isinstance(found, CdxCapture):
        for text in (found.url, found.mime, found.digest, found.filename, found.method):
            assert text is None or isinstance(text, str)
            assert text is None or text.encode() is not None
        assert found.url
        assert 0 <= found.length < 2**40
        assert found.offset is None or 0 <= found.offset < 2**40
        assert found.status is None or 100 <= found.status <= 999


def test_heads_empty_lines_and_marks_are_passed_over_and_lines_keep_their_numbers():
    lines = [
        b"\xef\xbb\xbf" + line() + b"\r\n",
        b"\r\n",
        b'!meta 0 {"format": "x"}\n',
        b"  ",
        b"bad",
        line() + b"\n",
    ]
    first, fault, last = read_cdxj(lines)
    assert first == last == only(line())
    assert isinstance(fault, CdxFault)
    assert fault.line == 5


def test_a_mark_is_one_before_the_first_line_alone():
    assert [type(found) for found in read_cdxj([b"\xef\xbb\xbf!meta", b"\xef\xbb\xbf!meta"])] == [CdxFault]


# Files


@given(
    st.lists(st.binary(max_size=9).filter(lambda text: b"\n" not in text)),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_lines_do_not_depend_on_the_pieces_in_which_they_come(lines, sizes):
    data, pieces, at = b"\n".join(lines), [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(lines_of(pieces)) == expected


def test_of_a_line_that_is_too_long_the_beginning_comes():
    limit = cdxj_reading.MAX_LINE_BYTES
    pieces = [b"first\n", *[b"x" * 60_000] * 50, b"\nlast", b"\n"]
    assert list(lines_of(pieces)) == [b"first", b"x" * (limit + 1), b"last"]
    assert list(lines_of([b"x" * (limit + 1)] * 3)) == [b"x" * (limit + 1)]


def test_a_line_of_200_mb_is_passed_over(tmp_path):
    path = tmp_path / "a.cdxj"
    with path.open("wb") as file:
        file.write(line() + b"\n")
        file.seek(200 << 20, 1)
        file.write(b"\n" + line())
    before, fault, after = read_cdxj(cdxj_lines(path))
    assert before == after == only(line())
    assert isinstance(fault, CdxFault)
    assert fault.line == 2


def test_a_file_is_unpacked_if_its_bytes_say_so(tmp_path):
    lines = [line(offset=number) for number in range(3000)]
    plain, packed, blocks = tmp_path / "a.cdxj.gz", tmp_path / "b.cdxj", tmp_path / "c.cdxj.gz"
    plain.write_bytes(b"\n".join(lines))
    packed.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    members = [gzip.compress(one + b"\n") for one in lines]
    blocks.write_bytes(b"".join(members) + bytes(1000))
    for path in (plain, packed, blocks):
        assert list(cdxj_lines(path)) == lines
    assert list(unpacked([bytes([byte]) for byte in members[0]], "here")) != []


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "a.cdxj").write_bytes(b"")
    assert list(cdxj_lines(tmp_path / "a.cdxj")) == []


@pytest.mark.parametrize("cut", [1, 8, 100])
def test_a_cut_index_is_damaged_after_the_lines_before(tmp_path, cut):
    data = gzip.compress(b"".join(line(offset=number) + b"\n" for number in range(1000))) + gzip.compress(
        b"x\n"
    )
    (tmp_path / "a.cdxj.gz").write_bytes(data[:-cut])
    found = []
    with pytest.raises(
        DamagedInput, match=r"a\.cdxj\.gz is truncated: it ends inside a gzip member, at byte"
    ):
        found.extend(cdxj_lines(tmp_path / "a.cdxj.gz"))


@pytest.mark.parametrize("at", [-8, -4, 60])
def test_a_wrong_checksum_is_damage(tmp_path, at):
    data = bytearray(gzip.compress(b"".join(line(offset=number) + b"\n" for number in range(1000))))
    data[at] ^= 0xFF
    (tmp_path / "a.cdxj.gz").write_bytes(data)
    with pytest.raises(DamagedInput, match=r"a\.cdxj\.gz does not unpack"):
        list(cdxj_lines(tmp_path / "a.cdxj.gz"))


def test_what_follows_the_last_member_and_is_none_is_damage(tmp_path):
    (tmp_path / "a.cdxj.gz").write_bytes(gzip.compress(line()) + b"garbage")
    with pytest.raises(DamagedInput, match="does not unpack"):
        list(cdxj_lines(tmp_path / "a.cdxj.gz"))


@pytest.mark.parametrize("fill", [b"x", b"\n", b"x\n"])
def test_an_index_that_swells_is_refused(tmp_path, fill):
    (tmp_path / "a.cdxj.gz").write_bytes(gzip.compress(fill * (30 << 20)))
    with pytest.raises(DamagedInput, match=r"a\.cdxj\.gz unpacks to more than"):
        for _ in cdxj_lines(tmp_path / "a.cdxj.gz"):
            pass


def test_a_cdx_with_columns_is_told(tmp_path):
    (tmp_path / "a.cdx").write_text(" CDX N b a m s k r M S V g\norg,example)/ 2026 ...\n")
    with pytest.raises(DamagedInput, match=r"a\.cdx is a CDX with columns"):
        list(cdxj_lines(tmp_path / "a.cdx"))


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ArchiveError, match=r"a\.cdxj cannot be read: No such file"):
        list(cdxj_lines(tmp_path / "a.cdxj"))


def test_what_cdxj_indexer_writes_is_read(tmp_path: Path):
    from cdxj_indexer.main import write_cdx_index

    from scrapy_dedupe.warc import records
    from scrapy_dedupe.warc.capture import Capture
    from scrapy_dedupe.warc.files import WarcWriter
    from scrapy_dedupe.warc.reading import read_record

    captured = Capture(
        url=URL,
        method="GET",
        status=200,
        date=datetime(2026, 11, 28, tzinfo=UTC),
        request_headers=(),
        request_body=b"",
        response_headers=((b"Content-Type", b"text/html"),),
        body=b"<p>one" * 300,
    )
    digest = captured.payload_digest()
    with WarcWriter(tmp_path, "t", info={"software": "tests"}) as writer:
        writer.write([records.response(captured, digest=digest)])
        writer.write(
            [
                records.revisit(
                    captured, digest=digest, refers_to_uri=URL, refers_to_date="2026-11-28T00:00:00.000Z"
                )
            ]
        )
    (file,) = [tmp_path / written.file for written in writer.files]
    with (tmp_path / "index.cdxj").open("w") as out:
        write_cdx_index(out, [str(file)], {"sort": False})
    response, revisit = read_cdxj(cdxj_lines(tmp_path / "index.cdxj"))
    assert isinstance(response, CdxCapture)
    assert isinstance(revisit, CdxCapture)
    assert (response.is_revisit, revisit.is_revisit) == (False, True)
    assert response.digest == revisit.digest == f"sha256:{digest}"
    assert response.offset is not None
    assert read_record(file, response.offset).payload() == captured.body
    assert response.length == read_record(file, response.offset).length
