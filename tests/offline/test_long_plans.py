"""A plan of many records: what DuckDB cannot move to files must fit in its limit of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.offline import engine, plan_lines
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.rows import RecordRow, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = 60_000


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine, "MEMORY_LIMIT", "20MB")
    engine._reader.cache_clear()
    yield
    engine._reader.cache_clear()


def rows(file: int) -> Iterator[RecordRow]:
    for number in range(RECORDS):
        key = number.to_bytes(32, "big")
        yield RecordRow(
            number * 1_000,
            1_000,
            "response",
            is_listed=True,
            target_uri=b"http://example.org/%d/%d/" % (file, number) + b"long" * 50,
            target_date="2026-01-01T00:00:00Z",
            moment=f"2026-01-01T00:00:0{file}Z",
            sha256=key,
            blake2b=key,
            size_bytes=5_000,
            is_alone=False,
        )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("low_limit")
def test_manifests_longer_than_the_limit_of_memory_are_written(tmp_path: Path) -> None:
    files = {f"{file}.warc.gz": tmp_path / f"{file}.parquet" for file in range(2)}
    for file, path in enumerate(files.values()):
        write_rows(path, rows(file))
    plan_lines.list_rows(files, "sha256", tmp_path / "sums.txt")
    places = [(line.file, line.offset) for line in read_lines(tmp_path / "sums.txt")]
    assert places == [(name, number * 1_000) for name in files for number in range(RECORDS)]
    plan_lines.number_rows(tmp_path, files, "sha256")
    plan_lines.list_lines(tmp_path, tmp_path / "manifest.txt")
    assert [(line.file, line.offset, line.copy) for line in read_lines(tmp_path / "manifest.txt")] == [
        (name, number * 1_000, copy) for number in range(RECORDS) for copy, name in enumerate(files, 1)
    ]
