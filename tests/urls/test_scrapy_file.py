from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.urls.scrapy_file import read_requests_seen, unread_from, write_requests_seen

FINGERPRINTS = [hashlib.sha1(bytes([n])).digest() for n in range(5)]
TEXT = b"".join(item.hex().encode() + b"\n" for item in FINGERPRINTS[:3])
BINARY = b"".join(b"\x00\x14" + item for item in FINGERPRINTS[3:])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (TEXT, FINGERPRINTS[:3]),
        (TEXT[:-5], FINGERPRINTS[:2]),
        (TEXT.replace(b"\n", b"\r\n"), FINGERPRINTS[:3]),
        (BINARY, FINGERPRINTS[3:]),
        (BINARY[:-1], FINGERPRINTS[3:4]),
        (TEXT + BINARY, FINGERPRINTS),
        (BINARY + bytes(4096), FINGERPRINTS[3:]),
        (b"", []),
    ],
)
def test_scrapys_own_file_is_read_whichever_version_wrote_it(data: bytes, expected: list[bytes]) -> None:
    assert list(read_requests_seen(io.BytesIO(data))) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"https://example.com/\nhttps://example.com/a\n",
        b"not hexadecimal\n" + TEXT,
        b"abc\n",
        b'{"seen": []}',
        b"SQLite format 3\x00" + bytes(50_000),
        b"\x80\x04\x95" + bytes(range(256)) * 300,
        "30\n".encode("utf-16"),
        bytes(3000) + b"x",
        b"z",
    ],
)
def test_a_file_of_neither_form_is_refused(data: bytes) -> None:
    with pytest.raises(StoreRefused, match=r"requests\.seen is not a file of Scrapy's dupefilter"):
        list(read_requests_seen(io.BytesIO(data)))


@pytest.mark.parametrize("start", [b"", TEXT, BINARY])
@pytest.mark.parametrize("end", [b"\x00", b"\x00\x14", b"\x00\x14abc", b"3f2", b"3f2a\r", bytes(70_000)])
def test_a_torn_end_is_left_unread(start: bytes, end: bytes) -> None:
    file = io.BytesIO(start + end)
    assert b"".join(read_requests_seen(file)) == b"".join(read_requests_seen(io.BytesIO(start)))
    assert unread_from(file) == len(start)


def test_a_whole_file_is_read_to_its_end() -> None:
    file = io.BytesIO(TEXT + BINARY)
    assert len(list(read_requests_seen(file))) == 5
    assert unread_from(file) is None


def test_text_after_a_damaged_line_is_no_fingerprint() -> None:
    file = io.BytesIO(TEXT + b"damaged\n" + TEXT * 2000)
    assert list(read_requests_seen(file)) == FINGERPRINTS[:3]
    assert unread_from(file) == len(TEXT)


@given(st.lists(st.binary(min_size=1, max_size=64)), st.lists(st.binary(min_size=1, max_size=64)))
def test_what_is_written_is_read(lines: list[bytes], records: list[bytes]) -> None:
    file = io.BytesIO()
    assert write_requests_seen(file, lines, as_text=True) == len(lines)
    assert write_requests_seen(file, records, as_text=False) == len(records)
    file.seek(0)
    assert list(read_requests_seen(file)) == lines + records
