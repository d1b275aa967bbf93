from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.urls.scrapy_file import read_requests_seen, write_requests_seen

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


@given(st.lists(st.binary(min_size=1, max_size=64)), st.lists(st.binary(min_size=1, max_size=64)))
def test_what_is_written_is_read(lines: list[bytes], records: list[bytes]) -> None:
    file = io.BytesIO()
    assert write_requests_seen(file, lines, as_text=True) == len(lines)
    assert write_requests_seen(file, records, as_text=False) == len(records)
    file.seek(0)
    assert list(read_requests_seen(file)) == lines + records
