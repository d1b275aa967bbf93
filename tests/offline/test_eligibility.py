from __future__ import annotations

import pytest
from listed_archives import warc_record

from scrapy_dedupe.offline.eligibility import REASONS, Eligibility
from scrapy_dedupe.warc import reading
from scrapy_dedupe.warc.reading import read_records


@pytest.mark.parametrize("kept", [60, 8 << 20])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"3\r\nabc\r\n0\r\n\r\n", None),
        (b"plain text", None),
        (b"3\r\nabc\r\n", "cut-chunks"),
        (b"3\r\nabc\r\n9\r\nab", "cut-chunks"),
        (b"3;a=b\r\nabc\r\n0\r\n\r\n", "cut-chunks"),
        (b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n", "cut-chunks"),
    ],
)
def test_a_record_whose_payload_is_not_sure_is_left_alone_whatever_the_manifest_says(
    tmp_path, monkeypatch, body, reason, kept
):
    monkeypatch.setattr(reading, "KEPT_BYTES", kept)
    path = tmp_path / "a.warc"
    path.write_bytes(warc_record(body, headers=("Transfer-Encoding: chunked",)))
    (record,) = read_records(path)
    assert Eligibility(min_size=0).reason_against(record) == reason
    assert Eligibility(min_size=0).reason_against(record, size_bytes=3) == reason
    assert reason is None or reason in REASONS
