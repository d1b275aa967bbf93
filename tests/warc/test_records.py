from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.warc import dates, records
from scrapy_dedupe.warc.capture import Capture, digest_text, parse_digest, target_uri

DATE = datetime(2026, 11, 28, 1, 2, 3, 123456, tzinfo=UTC)
ORIGINAL = {
    "refers_to": "<urn:uuid:00000000-0000-4000-8000-000000000001>",
    "refers_to_uri": "http://example.org/first",
    "refers_to_date": "2026-11-27T00:00:00.001Z",
}


def capture(**changes: object) -> Capture:
    values: dict[str, object] = {
        "url": "http://example.org/a?b=c",
        "method": "GET",
        "status": 200,
        "date": DATE,
        "request_headers": ((b"User-Agent", b"tests"),),
        "request_body": b"",
        "response_headers": ((b"Content-Type", b"text/plain"), (b"Content-Length", b"5")),
        "body": b"hello",
        "ip_address": "192.0.2.1",
        "protocol": "HTTP/1.1",
        "truncated": None,
    }
    return Capture(**{**values, **changes})  # type: ignore[arg-type]


def response_of(captured: Capture) -> records.Record:
    return records.response(captured, digest=captured.payload_digest("sha256"))


def request_of(captured: Capture) -> records.Record:
    return records.request(captured, concurrent_to="<urn:uuid:1>")


# The bytes of a record


def test_response_record_has_exactly_these_bytes():
    record = records.response(capture(), digest=capture().payload_digest("sha256"), warcinfo_id="urn:uuid:0")
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
    assert record.to_bytes() == (
        b"WARC/1.1\r\n"
        b"WARC-Type: response\r\n"
        b"WARC-Record-ID: " + record.id.encode() + b"\r\n"
        b"WARC-Date: 2026-11-28T01:02:03.123Z\r\n"
        b"WARC-Target-URI: http://example.org/a?b=c\r\n"
        b"WARC-Warcinfo-ID: <urn:uuid:0>\r\n"
        b"WARC-IP-Address: 192.0.2.1\r\n"
        b"WARC-Protocol: http/1.1\r\n"
        b"WARC-Payload-Digest: sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\r\n"
        b"WARC-Block-Digest: sha256:" + hashlib.sha256(block).hexdigest().encode() + b"\r\n"
        b"Content-Type: application/http; msgtype=response\r\n"
        b"Content-Length: 69\r\n"
        b"\r\n" + block + b"\r\n\r\n"
    )


def test_sha1_is_base32_in_both_digests():
    record = records.response(capture(), digest=capture().payload_digest("sha1"))
    assert record.get("WARC-Payload-Digest") == "sha1:VL2MMHO4YXUKFWV63YHTWSBM3GXKSQ2N"
    assert record.get("WARC-Block-Digest") == "sha1:" + digest_text(record.block, "sha1")


def test_warcinfo_opens_with_the_file_name_and_keeps_the_order():
    record = records.warcinfo("a.warc.gz", {"software": "x", "isPartOf": "c\r\n1"}, DATE)
    assert record.get("WARC-Filename") == "a.warc.gz"
    assert record.block == b"software: x\r\nisPartOf: c  1\r\n"


def test_request_names_its_principal_and_gets_host_first():
    record = request_of(capture(url="http://example.org:8080/a%20b?q=1#part"))
    assert record.get("WARC-Concurrent-To") == "<urn:uuid:1>"
    assert record.get("WARC-Target-URI") == "http://example.org:8080/a%20b?q=1"
    assert record.get("WARC-Payload-Digest") is None
    assert record.block == (b"GET /a%20b?q=1 HTTP/1.1\r\nHost: example.org:8080\r\nUser-Agent: tests\r\n\r\n")


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("https://example.org", b"GET / HTTP/1.1", b"example.org"),
        ("https://example.org:443/", b"GET / HTTP/1.1", b"example.org"),
        ("https://example.org:80/", b"GET / HTTP/1.1", b"example.org:80"),
        ("http://user:secret@example.org?q", b"GET /?q HTTP/1.1", b"example.org"),
        ("http://[::1]:8000/x", b"GET /x HTTP/1.1", b"[::1]:8000"),
    ],
)
def test_request_line_and_host_are_those_of_the_wire(url, line, host):
    lines = request_of(capture(url=url)).block.split(b"\r\n")
    assert lines[:2] == [line, b"Host: " + host]


def test_a_host_that_was_set_stays_where_it_is():
    headers = ((b"Accept", b"*/*"), (b"Host", b"other.example"))
    lines = request_of(capture(request_headers=headers)).block.split(b"\r\n")
    assert lines[1:3] == [b"Accept: */*", b"Host: other.example"]


def test_post_carries_its_body_with_its_length_and_digest():
    record = request_of(capture(method="POST", request_body=b"a=b"))
    assert record.block.endswith(b"Content-Length: 3\r\n\r\na=b")
    assert record.get("WARC-Payload-Digest") == "sha256:" + digest_text(b"a=b", "sha256")


def test_the_password_of_a_proxy_is_not_archived():
    headers = ((b"Proxy-Authorization", b"Basic c2VjcmV0"), (b"Authorization", b"Basic eA=="))
    block = request_of(capture(request_headers=headers)).block
    assert b"c2VjcmV0" not in block
    assert b"\r\nAuthorization: Basic eA==\r\n" in block


# The HTTP head


def test_connection_headers_are_dropped_and_the_length_is_true():
    headers = (
        (b"Transfer-Encoding", b"chunked"),
        (b"connection", b"keep-alive"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Content-Encoding", b"gzip"),
        (b":status", b"200"),
        (b"Content-Length", b"999"),
        (b"Content-Length", b"998"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
    )
    assert capture(response_headers=headers).response_head() == (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n"
        b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_content_length_of_a_response_without_body_is_kept(method, status):
    head = capture(method=method, status=status, body=b"", response_headers=((b"Content-Length", b"7"),))
    assert b"Content-Length: 7\r\n" in head.response_head()
    none = capture(method=method, status=status, body=b"", response_headers=())
    assert b"Content-Length" not in none.response_head()


def test_header_bytes_are_written_as_they_are():
    headers = ((b"X-N\xe9", b"caf\xe9 \xff"), ("X-Ü".encode(), "€".encode()))
    head = capture(response_headers=headers).response_head()
    assert b"\r\nX-N\xe9: caf\xe9 \xff\r\n" in head
    assert "\r\nX-Ü: €\r\n".encode() in head


def test_an_unknown_status_has_no_phrase():
    assert capture(status=599).response_head().startswith(b"HTTP/1.1 599 \r\n")


# What the fields say


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("HTTP/1.1", ["http/1.1"]),
        ("h2", ["h2"]),
        ("HTTP/2", ["h2"]),
        ("h2, tls/1.3", ["h2", "tls/1.3"]),
        (None, []),
    ],
)
def test_protocol_is_named_as_the_registry_does(protocol, fields):
    record = response_of(capture(protocol=protocol))
    assert [value for name, value in record.headers if name == "WARC-Protocol"] == fields


def test_an_empty_body_has_no_payload_digest():
    record = response_of(capture(body=b""))
    assert record.get("WARC-Payload-Digest") is None
    assert record.get("WARC-Block-Digest")


def test_a_cut_body_says_why():
    assert response_of(capture(truncated="disconnect")).get("WARC-Truncated") == "disconnect"
    with pytest.raises(ValueError, match="dataloss"):
        capture(truncated="dataloss")


@pytest.mark.parametrize(
    ("changes", "complete"), [({}, True), ({"truncated": "length"}, False), ({"status": 206}, False)]
)
def test_only_a_whole_body_is_complete(changes, complete):
    assert capture(**changes).is_complete is complete


def test_revisit_refers_to_its_original_and_keeps_the_head_only():
    record = records.revisit(capture(), digest=capture().payload_digest("sha256"), **ORIGINAL)
    assert record.type == "revisit"
    assert record.get("WARC-Profile") == records.IDENTICAL_PAYLOAD
    assert record.get("WARC-Refers-To") == ORIGINAL["refers_to"]
    assert record.get("WARC-Refers-To-Target-URI") == ORIGINAL["refers_to_uri"]
    assert record.get("WARC-Refers-To-Date") == ORIGINAL["refers_to_date"]
    assert record.get("WARC-Truncated") == "length"
    assert record.get("WARC-Payload-Digest") == "sha256:" + capture().payload_digest("sha256")
    assert record.get("Content-Type") == "application/http; msgtype=response"
    assert record.block == capture().response_head()


@pytest.mark.parametrize("changes", [{"body": b""}, {"truncated": "time"}, {"status": 206}])
def test_what_is_empty_or_incomplete_never_becomes_a_revisit(changes):
    captured = capture(**changes)
    with pytest.raises(ValueError, match="cannot be a revisit"):
        records.revisit(captured, digest=captured.payload_digest("sha256"), **ORIGINAL)


def test_not_modified_has_no_block_and_only_exists_for_304():
    record = records.not_modified(capture(status=304, body=b""), **ORIGINAL)
    assert record.get("WARC-Profile") == records.SERVER_NOT_MODIFIED
    assert record.block == b""
    assert record.get("WARC-Refers-To-Date") == ORIGINAL["refers_to_date"]
    with pytest.raises(ValueError, match="304"):
        records.not_modified(capture(), **ORIGINAL)


def test_a_field_with_a_line_end_is_refused():
    record = records.Record((("WARC-Type", "resource"), ("X", "a\r\nWARC-Type: response")), b"")
    with pytest.raises(ValueError, match="line end"):
        record.to_bytes()


# Nothing from outside can begin a line of its own

anything = st.text() | st.text(alphabet="\r\n :aZ/?#<>é\ud800")
header_bytes = st.binary() | st.lists(st.sampled_from([b"\r", b"\n", b":", b" ", b"a", b"\xe9"])).map(
    b"".join
)


@given(
    url=anything,
    method=anything,
    ip=anything,
    protocol=anything,
    headers=st.lists(st.tuples(header_bytes, header_bytes), max_size=4).map(tuple),
)
def test_no_input_can_inject_a_line(url, method, ip, protocol, headers):
    captured = capture(
        url="http://example.org/" + url,
        method=method,
        ip_address=ip,
        protocol=protocol,
        request_headers=headers,
        response_headers=headers,
    )
    clean = capture(url="http://example.org/", request_headers=(), response_headers=(), protocol=None)
    written = [n for n, _ in headers if n.strip() and not n.strip().startswith(b":")]
    for record, reference in (
        (response_of(captured), response_of(clean)),
        (request_of(captured), request_of(clean)),
    ):
        head, _, rest = record.to_bytes().partition(b"\r\n\r\n")
        assert rest == record.block + b"\r\n\r\n"
        lines = head.split(b"\r\n")
        assert [b"\r" in line or b"\n" in line for line in lines].count(True) == 0
        extra = sum(name == "WARC-Protocol" for name, _ in record.headers)
        same = sum(name == "WARC-IP-Address" for name, _ in record.headers) - 1
        assert len(lines) == len(reference.to_bytes().partition(b"\r\n\r\n")[0].split(b"\r\n")) + extra + same
        http_lines = record.block.partition(b"\r\n\r\n")[0].split(b"\r\n")
        assert not any(b"\r" in line or b"\n" in line for line in http_lines)
        # Status or request line, the headers that were given, and at most Host and Content-Length.
        assert len(http_lines) - 1 <= len(written) + 2
        assert all(line[:1] not in b" \t" for line in http_lines[1:])
        names = {line.partition(b":")[0] for line in http_lines[1:]}
        given_names = {n for n in written if b":" not in n}
        assert not {b"Evil", b"X"} & (names - given_names)


@given(st.text(min_size=1))
def test_a_target_uri_is_plain_ascii_and_stable(url):
    uri = target_uri("http://h/" + url)
    assert uri.isascii()
    assert not set(uri) & set(' "<>#\r\n\t')
    assert target_uri(uri) == uri


# Digests and dates


@given(st.binary(), st.sampled_from(["sha1", "sha256"]))
def test_every_form_of_a_digest_is_read_as_ours(data, algorithm):
    raw = hashlib.new(algorithm, data).digest()
    ours = digest_text(data, algorithm)
    base32 = base64.b32encode(raw).decode()
    label = algorithm.upper().replace("SHA", "sha-")
    for text in (ours, f"{algorithm}:{ours}", f"{label}:{raw.hex()}", f"{algorithm}:{base32.lower()}"):
        assert parse_digest(text) == (algorithm, ours)


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:abc", "crc32:00000000", "sha1:" + "0" * 39 + "g"])
def test_what_is_no_digest_is_refused(text):
    with pytest.raises(ValueError, match="not a digest in a known form"):
        parse_digest(text)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_a_date_goes_to_digits_and_back(date):
    if not 1 < date.year < 9999:
        return
    text = dates.format_date(date)
    digits = dates.date_digits(text)
    assert len(digits) == 17
    assert dates.date_from_digits(digits) == text
    assert dates.parse_date(text) == dates.in_milliseconds(date)
    seconds = dates.date_from_digits(digits[:14])
    assert dates.date_digits(seconds) == digits[:14]


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("2026-11-28T00:00:00.1Z", "20261128000000100"),
        ("2026-11-28T00:00:00.123456789Z", "20261128000000123"),
        ("2026-11-28T00:00Z", "20261128000000"),
        ("2026-11", "20261101000000"),
    ],
)
def test_dates_of_other_writers_become_14_or_17_digits(text, digits):
    assert dates.date_digits(text) == digits


@pytest.mark.parametrize("text", ["", "2026-13-01T00:00:00Z", "2026-11-28 00:00:00", "20261128000000"])
def test_what_is_no_date_is_refused(text):
    with pytest.raises(ValueError):
        dates.date_digits(text)


def test_a_date_without_time_zone_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        capture(date=datetime(2026, 1, 1))
