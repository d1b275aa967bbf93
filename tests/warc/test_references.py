"""The order of the evidence for the original of a revisit."""

from __future__ import annotations

import base64
import gzip
import hashlib
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.references import CaptureTable, digest_key, milliseconds, reference_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URL, ELSEWHERE = "http://example.org/", "http://example.org/elsewhere"
DATE = "2020-01-01T00:00:00"
HEAD = "HTTP/1.1 200 OK\r\n\r\n"


def sha1(body: bytes) -> str:
    return f"sha1:{base64.b32encode(hashlib.sha1(body).digest()).decode()}"


def record(kind: str, name: str, date: str, block: bytes, url: str = URL, **fields: str) -> bytes:
    named = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:x:{name}>",
        "WARC-Date": date,
        "WARC-Target-URI": url,
        **{field.replace("_", "-"): value for field, value in fields.items()},
        "Content-Type": "application/http; msgtype=response" if kind != "resource" else "text/html",
        "Content-Length": str(len(block)),
    }
    head = "".join(f"{field}: {value}\r\n" for field, value in named.items())
    return gzip.compress(f"WARC/1.1\r\n{head}\r\n".encode() + block + b"\r\n\r\n")


def response(
    name: str, body: bytes, date: str = f"{DATE}Z", url: str = URL, head: str = HEAD, **fields: str
) -> bytes:
    return record(
        "response", name, date, head.encode() + body, url, **{"WARC_Payload_Digest": sha1(body), **fields}
    )


def revisit(**fields: str) -> bytes:
    profile = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
    return record(
        "revisit", "revisit", "2020-06-01T00:00:00Z", HEAD.encode(), "http://example.org/again",
        **{"WARC_Profile": profile, **fields},
    )  # fmt: skip


PLACE = {"WARC_Refers_To_Target_URI": URL, "WARC_Refers_To_Date": f"{DATE}Z"}


@pytest.fixture
def original(tmp_path: Path) -> Callable[..., str | None]:
    """The name of the original of a revisit with these fields among captures."""

    def find(*captures: bytes, **fields: str) -> str | None:
        path = tmp_path / "a.warc.gz"
        path.write_bytes(b"".join([*captures, revisit(**fields)]))
        table = CaptureTable()
        try:
            *_, last = table.noted(read_records(path))
            found = table.original(reference_of(last))
            return None if found is None else (table.record_of(found).id or "").strip("<>").rpartition(":")[2]
        finally:
            table.close()

    return find


@pytest.mark.parametrize(("months", "nearest"), [("01 05 08", "1"), ("01 07 04", "1"), ("07 12", "0")])
def test_the_nearest_capture_is_meant_by_a_digest_without_url(
    original: Callable[..., str | None], months: str, nearest: str
) -> None:
    captures = [
        response(str(number), b"page", f"2020-{month}-01T00:00:00Z")
        for number, month in enumerate(months.split())
    ]
    assert original(*captures, WARC_Payload_Digest=sha1(b"page")) == nearest


def test_the_nearest_capture_of_the_second_is_meant(original: Callable[..., str | None]) -> None:
    captures = [
        response("late", b"1", f"{DATE}.900Z"),
        response("near", b"2", f"{DATE}.1Z"),
        response("next", b"3", "2020-01-01T00:00:01Z"),
    ]
    assert original(*captures, **PLACE) == "near"
    assert original(*captures, **{**PLACE, "WARC_Refers_To_Date": f"{DATE}.8Z"}) == "late"
    assert original(*captures, **{**PLACE, "WARC_Refers_To_Date": "2020-01-01T00:00:02Z"}) is None


def test_the_named_id_decides_in_the_second_and_url_and_date_decide_against_another_one(
    original: Callable[..., str | None],
) -> None:
    captures = [response("a", b"1"), response("b", b"2", f"{DATE}.5Z"), response("c", b"3", url=ELSEWHERE)]
    assert original(*captures, **PLACE, WARC_Refers_To="<urn:x:b>") == "b"
    assert original(*captures, **PLACE, WARC_Refers_To="urn:x:c") == "a"
    assert original(*captures, WARC_Refers_To="urn:x:c") == "c"


def test_no_capture_with_another_digest_is_an_original(original: Callable[..., str | None]) -> None:
    other = response("a", b"1")
    assert original(other, **PLACE, WARC_Refers_To="<urn:x:a>", WARC_Payload_Digest=sha1(b"2")) is None
    same = response("b", b"2", "2019-01-01T00:00:00Z", ELSEWHERE)
    assert original(other, same, **PLACE, WARC_Payload_Digest=sha1(b"2")) == "b"


def test_the_bytes_of_a_capture_decide_about_a_digest_of_its_chunks(
    original: Callable[..., str | None],
) -> None:
    chunks = b"1\r\nx\r\n0\r\n\r\n"
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    capture = response("a", chunks, head=head, WARC_Payload_Digest=sha1(b"x"))
    assert original(capture, **PLACE, WARC_Payload_Digest=sha1(chunks)) == "a"
    assert (
        original(capture, **PLACE, WARC_Payload_Digest=f"SHA-256:{hashlib.sha256(b'x').hexdigest().upper()}")
        == "a"
    )


def test_an_unknown_algorithm_is_only_compared_with_itself(original: Callable[..., str | None]) -> None:
    assert original(response("a", b"1"), **PLACE, WARC_Payload_Digest="tiger:AAAA") == "a"
    own = response("a", b"1", WARC_Payload_Digest="tiger:BBBB")
    assert original(own, **PLACE, WARC_Payload_Digest="tiger:AAAA") is None


def test_the_own_url_comes_before_others_where_only_a_digest_is_given(
    original: Callable[..., str | None],
) -> None:
    captures = [response("a", b"1"), response("b", b"1", url="http://example.org/again")]
    assert original(*captures, WARC_Payload_Digest=sha1(b"1")) == "b"


def test_what_was_not_modified_is_the_nearest_capture_of_the_named_url(
    original: Callable[..., str | None],
) -> None:
    captures = [response("old", b"1", "2019-01-01T00:00:00Z"), response("new", b"2", "2020-05-01T00:00:00Z")]
    profile = "http://netpreserve.org/warc/0.18/revisit/server-not-modified"
    assert original(*captures, WARC_Profile=profile, WARC_Refers_To_Target_URI=URL) == "new"
    assert original(*captures, WARC_Profile=profile) is None
    assert original(*captures, WARC_Refers_To_Target_URI=URL) is None


def test_only_a_response_or_resource_with_a_payload_is_an_original(
    original: Callable[..., str | None],
) -> None:
    unmodified = response("a", b"", head="HTTP/1.1 304 Not Modified\r\n\r\n")
    revisited = record("revisit", "b", f"{DATE}Z", HEAD.encode(), WARC_Payload_Digest=sha1(b"1"))
    assert original(unmodified, revisited, **PLACE, WARC_Refers_To="<urn:x:b>") is None
    resource = record("resource", "c", f"{DATE}Z", b"1")
    assert original(unmodified, revisited, resource, **PLACE, WARC_Payload_Digest=sha1(b"1")) == "c"


def test_dates_and_digests_are_read_in_all_their_forms() -> None:
    assert milliseconds("20200101000000123") == milliseconds("2020-01-01T00:00:00.1239Z") == 1_577_836_800_123
    assert milliseconds("2020") == milliseconds("20200101000000") == 1_577_836_800_000
    assert milliseconds("yesterday") is milliseconds(None) is None
    assert digest_key(f" sha-1:{hashlib.sha1(b'').hexdigest().upper()}") == sha1(b"")
