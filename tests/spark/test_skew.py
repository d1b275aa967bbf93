"""Many copies of one payload, and many texts in one bucket, are divided over many tasks."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe import spark
from scrapy_dedupe.near import joins as near_joins
from scrapy_dedupe.near.joins import FileRows
from scrapy_dedupe.near.pages import CAPTURES, PAGES
from scrapy_dedupe.near.signing import SIGNATURES
from scrapy_dedupe.near.tables import RowsWriter, Tables, joining
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.plan import PlanTask, make_plan, read_slice, slice_folder
from scrapy_dedupe.offline.plan_lines import number_rows
from scrapy_dedupe.offline.rows import RecordRow, write_rows
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.warc.dates import date_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.plan import Slice
    from scrapy_dedupe.tasks.jobs import Jobs

pytestmark = pytest.mark.exhaustive

COPIES = 100_000
FILES = 20
DIGEST = "sha1:" + 32 * "A"
# The most bytes of the copies that one task may read from other tasks, compressed.
MOST_BYTES = 8 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def session_settings(log: Path) -> Iterator[dict[str, str]]:
    pytest.importorskip("pyspark", reason="pyspark is not installed (extra spark)")
    from pyspark import SparkContext

    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    yield settings
    # The next sessions are started by the same Java process.
    SparkContext.setSystemProperty("spark.eventLog.enabled", "false")


def copies(file: int) -> Iterator[RecordRow]:
    """The rows of some captures of one page at different moments, each with its request, and of a revisit."""
    page = hashlib.sha256(b"page").digest()
    uri, offset = b"http://one.example/", 0
    for number in range(file * COPIES // FILES, (file + 1) * COPIES // FILES):
        own = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, str(number))}".encode()
        date = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        text = date.strftime("%Y-%m-%dT%H:%M:%SZ")
        yield RecordRow(
            offset,
            4_000,
            "response",
            id=b"<%s>" % own,
            id_key=own,
            uri=uri,
            date=text.encode(),
            date_key=date_key(text),
            digest=DIGEST.encode(),
            digest_key=DIGEST,
            concurrent_to=None,
            stored=hashlib.sha256(own).digest(),
            is_gzip=True,
            is_listed=True,
            target_uri=uri,
            target_date=text,
            sha256=page,
            blake2b=page,
            size_bytes=5_000,
            is_alone=False,
            is_chunked=False,
            mime="text/html",
            heads_bytes=500,
        )
        yield RecordRow(offset + 4_000, 300, "request", id_key=own[::-1], concurrent_to=[own], is_gzip=True)
        offset += 4_300
    yield RecordRow(offset, 500, "revisit", uri=uri, digest=DIGEST.encode(), digest_key=DIGEST, is_gzip=True)


def read_bytes(log: Path) -> dict[str, list[int]]:
    """The bytes that each task has read from other tasks, by stage."""
    if not (path := next(log.iterdir(), None)):
        return {}
    for _ in range(600):
        # The last line may not be complete.
        events = [
            json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        kinds = [event["Event"] for event in events]
        if kinds.count("SparkListenerJobStart") == kinds.count("SparkListenerJobEnd"):
            break
        time.sleep(0.5)  # the end of the last job is written later
    else:
        pytest.fail("The last job of Spark did not end.")
    found = defaultdict(list)
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]["Shuffle Read Metrics"]
            size = metrics["Local Bytes Read"] + metrics["Remote Bytes Read"]
            found[f"{event['Stage ID']}.{event['Stage Attempt ID']}"].append(size)
    return found


def slices(folder: Path, jobs: Jobs, rows: dict[str, Path]) -> list[Slice]:
    """The parts of the plan for all files."""
    folder.mkdir()
    planned, _ = number_rows(folder, rows, "sha256")
    by_number = {file.id: rows[file.name] for file in planned}
    task = PlanTask(folder, planned, by_number, Places(), Eligibility(), False, jobs)
    make_plan(task, Faults())
    found = [read_slice(slice_folder(folder, file.id)) for file in planned]
    for part in found:
        part.standing.sort(key=repr)
    return found


@pytest.fixture
def many_tasks(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session.conf.set("spark.sql.shuffle.partitions", "16")
    # Otherwise a small table is sent to all tasks, which needs no division.
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)


def assert_divided(log: Path, before: dict[str, list[int]]) -> None:
    """No task has read most of what all tasks of its stage have read, in the largest new stages."""
    found = [sizes for stage, sizes in read_bytes(log).items() if stage not in before]
    largest = sorted(found, key=sum)[-5:]
    assert [max(sizes) for sizes in largest if max(sizes) > MOST_BYTES] == []
    assert [sizes for sizes in largest if max(sizes) > sum(sizes) / 2] == []


@pytest.mark.usefixtures("many_tasks")
def test_the_plan_divides_the_copies_of_one_payload(session: Any, log: Path, tmp_path: Path) -> None:
    rows = {f"{file:02}.warc.gz": tmp_path / f"{file:02}.parquet" for file in range(FILES)}
    for file, path in enumerate(rows.values()):
        write_rows(path, copies(file))
    before = read_bytes(log)
    far = slices(tmp_path / "far", spark.SparkWorkers(session), rows)
    assert far == slices(tmp_path / "near", 1, rows)
    assert sum(change.target is not None for part in far for change in part.changes) == COPIES - 1
    assert session.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes", None) is None
    assert_divided(log, before)


def write_pages(folder: Path) -> list[FileRows]:
    """Rows of pages with one URI: each second one has the same text, the others have texts of their own."""
    found = []
    for file in range(FILES):
        name = f"{file:02}.warc.gz"
        rows = FileRows(name, folder / name, folder / f"{file:02}.pages", folder / f"{file:02}.captures")
        with RowsWriter(rows.captures, CAPTURES), RowsWriter(rows.pages, PAGES) as writer:
            for number in range(file * COPIES // FILES, (file + 1) * COPIES // FILES):
                key = hashlib.sha256(str(number * (number % 2)).encode()).digest()[:16]
                place = (name, number * 1_000, 0, "http://one.example/", "2024-01-01T00:00:00Z", number)
                page = (key, 1_000, "text/html", "one.example", True, ["Page"], key, True, None, None, None)
                writer.write((*place, *page))
        found.append(rows)
    return found


def near_rows(folder: Path, tables: Tables, files: list[FileRows]) -> list[tuple[Any, ...]]:
    """The documents and groups, if all texts are in one bucket and no two are near."""
    folder.mkdir()
    paths = [
        folder / name for name in ("originals", "documents", "texts", "signatures", "decisions", "groups")
    ]
    originals, documents, texts, signatures, decisions, groups = paths
    near_joins.find_originals(tables, files, originals)
    near_joins.join_documents(tables, files, originals, documents)
    near_joins.join_texts(tables, files, documents, texts)
    with RowsWriter(signatures, SIGNATURES) as writer:
        numbers = tables.fetch("SELECT DISTINCT text, text_key FROM documents")
        for number, key in sorted(numbers):
            rows = hashlib.shake_128(key).digest(128)
            writer.write((number, [1, 2 + number], [], rows, b"", b"", 109, 109, 90, key, False))
    near_joins.decide(tables, documents, [signatures], decisions)
    near_joins.join_groups(tables, documents, decisions, groups)
    return [
        *tables.fetch("SELECT * FROM documents ORDER BY document"),
        near_joins.count_groups(tables, groups),
    ]


@pytest.mark.usefixtures("many_tasks")
def test_the_joins_of_near_copies_divide_the_texts_of_one_bucket(
    session: Any, log: Path, tmp_path: Path
) -> None:
    files = write_pages(tmp_path)
    before = read_bytes(log)
    with spark.SparkWorkers(session).joins(tmp_path / "scratch") as tables:
        far = near_rows(tmp_path / "far", tables, files)
    with joining(tmp_path) as engine:
        assert far == near_rows(tmp_path / "near", Tables(engine), files)
    assert far[-1]["unchanged"] == COPIES // 2 - 1
    assert_divided(log, before)
