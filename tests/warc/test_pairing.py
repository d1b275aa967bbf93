from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc.exchanges import WINDOW_RECORDS, exchanges
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path


def record(kind: str, record_id: str, *names: str, method: str = "POST", second: int = 0) -> bytes:
    block = f"{method} / HTTP/1.1\r\n\r\n" if kind == "request" else "HTTP/1.1 200 OK\r\n\r\nbody"
    lines = [
        "WARC/1.1",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:{record_id}>",
        f"WARC-Date: 2026-08-01T12:00:{second:02}Z",
        "WARC-Target-URI: http://example.org/",
        f"Content-Length: {len(block)}",
        *(f"WARC-Concurrent-To: {name}" for name in names),
    ]
    return "\r\n".join([*lines, "", block, "", ""]).encode()


RESPONSE, OTHER, REVISIT = record("response", "a"), record("response", "b"), record("revisit", "a")
RESPONSE_NAMING = record("response", "a", "<urn:m>", "urn:q")
METADATA = record("metadata", "m", "<urn:a>")
REQUEST, PUT = record("request", "q"), record("request", "p", method="PUT")
REQUEST_OF_A, PUT_OF_B = record("request", "q", "<urn:a>"), record("request", "p", " urn:b ", method="PUT")
LATER = record("request", "q", second=1)
OTHERS = [record("response", f"{number}", second=2) for number in range(WINDOW_RECORDS)]


@pytest.mark.parametrize(
    ("stored", "methods"),
    [
        ([RESPONSE, REQUEST_OF_A], ["POST"]),
        ([REQUEST_OF_A, REVISIT], ["POST"]),
        ([REQUEST, RESPONSE_NAMING], ["POST"]),
        ([RESPONSE_NAMING, LATER], ["POST"]),
        ([RESPONSE, METADATA, REQUEST_OF_A], ["POST"]),
        ([RESPONSE, OTHER, PUT_OF_B, REQUEST_OF_A], ["POST", "PUT"]),
        ([PUT_OF_B, REQUEST_OF_A, RESPONSE, OTHER], ["POST", "PUT"]),
        ([REQUEST_OF_A, RESPONSE, RESPONSE], ["POST", "none"]),
        # without names: the same URL and date, the nearest first
        ([RESPONSE, REQUEST, OTHER, PUT], ["POST", "PUT"]),
        ([REQUEST, RESPONSE, PUT, OTHER], ["POST", "PUT"]),
        ([RESPONSE, LATER], ["none"]),
        # the request of a response that is missing
        ([OTHER, REQUEST_OF_A], ["none"]),
        ([REQUEST_OF_A, OTHER], ["none"]),
        ([RESPONSE, *OTHERS[1:], REQUEST_OF_A], ["POST", *["none"] * (WINDOW_RECORDS - 1)]),
        ([RESPONSE, *OTHERS, REQUEST_OF_A], ["none"] * (WINDOW_RECORDS + 1)),
    ],
)
def test_a_response_has_the_method_of_its_own_request(
    tmp_path: Path, stored: list[bytes], methods: list[str]
) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(b"".join(stored))
    found = list(exchanges(read_records(path), unknown_method="none"))
    assert [method for _, method in found] == methods
    offsets = [one.offset for one, _ in found]
    assert offsets == sorted(offsets)


def test_records_before_damage_are_paired_and_the_damage_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(OTHER + PUT_OF_B + RESPONSE + REQUEST_OF_A[:-9])
    found = []
    with pytest.raises(DamagedInput, match=r"a\.warc"):
        found.extend(method for _, method in exchanges(read_records(path)))
    assert found == ["PUT", "GET"]
