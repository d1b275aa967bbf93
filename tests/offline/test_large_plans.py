"""Plans and manifests of so many records that DuckDB must move data to files, or read it piece by piece."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import plan as plans
from scrapy_dedupe.offline import rows
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.plan import PlanTask, make_plan, read_slice, slice_folder
from scrapy_dedupe.offline.plan_lines import list_lines, list_rows, number_rows
from scrapy_dedupe.offline.rows import RecordRow, write_rows
from scrapy_dedupe.stores import duckdb as engine
from scrapy_dedupe.stores.duckdb import open_engine, quoted, source
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.dates import date_key

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = 20
EXCHANGES = 25_000  # in each file
LISTED = 60_000  # in each file of the test of manifests
BEGUN = datetime(2020, 1, 1, tzinfo=UTC)
# The rows of another file: all of its records have other ids and URIs, and half of its payloads are new.
OTHER = """
COPY (SELECT * REPLACE (
    encode(decode(id) || '{0}') AS id,
    encode(decode(id_key) || '{0}') AS id_key,
    CASE WHEN kind = 'request' THEN [encode(decode(concurrent_to[1]) || '{0}')] END AS concurrent_to,
    encode(decode(uri) || '{0}') AS uri,
    encode(decode(target_uri) || '{0}') AS target_uri,
    CASE WHEN "offset" % 8600 = 0 THEN sha256 ELSE encode(left(hex(sha256), 30) || '{0}') END AS sha256
) FROM read_parquet({1})) TO {2} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192)
"""


def exchanges(count: int) -> Iterator[RecordRow]:
    """Rows of responses and their requests."""
    rng = random.Random(1)
    for number in range(count):
        own, request = rng.randbytes(20).hex().encode(), rng.randbytes(20).hex().encode()
        payload = rng.randbytes(32)
        text = (BEGUN + timedelta(seconds=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
        uri = b"http://host-%d.example/%s/%d" % (number % 50, rng.randbytes(20).hex().encode(), number)
        offset = 4_300 * number
        yield RecordRow(
            offset,
            4_000,
            "response",
            id=own,
            id_key=own,
            uri=uri,
            date=text.encode(),
            date_key=date_key(text),
            digest=payload.hex().encode(),
            digest_key="sha256:" + payload.hex(),
            stored=payload,
            is_gzip=True,
            is_listed=True,
            target_uri=uri,
            target_date=text,
            sha256=payload,
            blake2b=payload,
            size_bytes=5_000,
            is_alone=False,
            is_chunked=False,
            mime="text/html",
            heads_bytes=500,
            start=rng.randbytes(300),
            head_bytes=300,
            block_bytes=5_200,
        )
        yield RecordRow(offset + 4_000, 300, "request", id_key=request, concurrent_to=[own], is_gzip=True)


def write_files(folder: Path, files: int, count: int) -> dict[str, Path]:
    """Write the rows of files with *count* exchanges each; the paths by the names of the files."""
    first, *others = paths = [folder / f"{file}.parquet" for file in range(files)]
    write_rows(first, exchanges(count))
    with open_engine("A test", ArchiveError) as engine:
        for number, path in enumerate(others):
            engine.execute(OTHER.format(f"-{number}", source(first), quoted(path)))
    return {f"{path.stem}.warc.gz": path for path in paths}


PLAN = """
import sys
from pathlib import Path
from offline.test_large_plans import plan
folder = Path(sys.argv[1])
plan(folder, {f"{path.stem}.warc.gz": path for path in folder.glob("*.parquet")})
print(Path("/proc/self/status").read_text())
"""


def plan(folder: Path, paths: dict[str, Path]) -> None:
    planned, _ = number_rows(folder, paths, "sha256")
    numbered = {file.id: paths[file.name] for file in planned}
    make_plan(PlanTask(folder, planned, numbered, Places(), Eligibility(), False, 1), Faults())


def revisits(folder: Path, file: int) -> int:
    """The number of copies in a file that become revisits."""
    return sum(change.target is not None for change in read_slice(slice_folder(folder, file)).changes)


@pytest.mark.exhaustive
def test_a_large_plan_needs_less_than_300_mb(tmp_path: Path) -> None:
    write_files(tmp_path, FILES, EXCHANGES)
    done = subprocess.run(
        [sys.executable, "-c", PLAN, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert found is not None
    assert int(found[1]) < 300_000
    changed = sorted(revisits(tmp_path, file) for file in range(1, FILES + 1))
    assert changed == [0, *(FILES - 1) * [EXCHANGES // 2]]


def test_a_plan_in_many_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("whole", "parts"):
        folder = tmp_path / name
        folder.mkdir()
        plan(folder, write_files(folder, 4, 30))
        table = duckdb.read_parquet(str(folder / "0.parquet")).fetchall()
        slices = [read_slice(slice_folder(folder, file)) for file in range(1, 5)]
        found.append((table, (folder / "lines.parquet").read_bytes(), slices))
        monkeypatch.setattr(rows, "_MOST_ROWS", 7)
        monkeypatch.setattr(plans, "_MOST_LINES", 1)
        monkeypatch.setattr(plans, "_WRITTEN_ROWS", 1)
    assert found[0] == found[1]
    assert [revisits(tmp_path / "parts", file) for file in range(1, 5)] == [0, 15, 15, 15]


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine, "MEMORY_LIMIT", "20MB")
    engine._reader.cache_clear()
    yield
    engine._reader.cache_clear()


def long_rows(date: str) -> Iterator[RecordRow]:
    """Rows of responses with long URIs; number N has the same payload in all files."""
    for number in range(LISTED):
        key = number.to_bytes(32, "big")
        yield RecordRow(
            number * 1_000,
            1_000,
            "response",
            date_key=date_key(date),
            is_listed=True,
            target_uri=b"http://example.org/%d/" % number + b"long" * 50,
            target_date=date,
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
        write_rows(path, long_rows(f"2026-01-0{file + 1}T00:00:00Z"))
    list_rows(files, "sha256", tmp_path / "sums.txt")
    places = [(line.file, line.offset) for line in read_lines(tmp_path / "sums.txt")]
    assert places == [(name, number * 1_000) for name in files for number in range(LISTED)]
    planned, _ = number_rows(tmp_path, files, "sha256")
    list_lines(tmp_path, planned, tmp_path / "manifest.txt")
    assert [(line.file, line.offset, line.copy) for line in read_lines(tmp_path / "manifest.txt")] == [
        (name, number * 1_000, copy) for number in range(LISTED) for copy, name in enumerate(files, 1)
    ]
