"""What the files of a crawl say of their payloads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.crawls.crawl_files import payload_of_files
from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.warc.records import warcinfo

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, **info: str) -> None:
    fields = {name.replace("_", "-"): value for name, value in info.items()}
    path.write_bytes(warcinfo(path.name, fields, datetime.now(UTC)).to_bytes())


def test_the_field_of_the_first_record_decides(tmp_path: Path) -> None:
    write(tmp_path / "a.warc", isPartOf="lake", dedupe_payload="decoded")
    write(tmp_path / "b.warc.open", isPartOf="lake", dedupe_payload="decoded")
    write(tmp_path / "c.warc", isPartOf="pond", dedupe_payload="stored")
    # A file that was written before there was a choice.
    write(tmp_path / "d.warc", isPartOf="mere")
    found = {crawl: payload_of_files(crawl, tmp_path) for crawl in ("lake", "pond", "mere")}
    assert found == {"lake": "decoded", "pond": "stored", "mere": "stored"}


def test_a_crawl_without_files_has_no_payloads(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(b"no record")
    (tmp_path / "b.warc.gz").mkdir()
    assert payload_of_files("lake", tmp_path) is None
    assert payload_of_files("lake", tmp_path / "missing") is None


def test_files_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.warc", isPartOf="lake")
    write(tmp_path / "b.warc", isPartOf="lake", dedupe_payload="decoded")
    with pytest.raises(CrawlStateError, match=r"stored payloads .*a\.warc.* decoded ones .*b\.warc"):
        payload_of_files("lake", tmp_path)
