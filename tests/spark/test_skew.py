"""Many copies of one payload are divided over many tasks."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from offline.calling import done
from offline.outputs import snapshot
from offline.planted import record_id, text

from scrapy_dedupe import spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.exhaustive

COPIES = 100_000
FILES = 20
ENGINE = ("--engine", "spark")
# The rows of all copies have about 20 MB when they are sent to other tasks.
MOST_BYTES = 9 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def session_settings(log: Path) -> Iterator[dict[str, str]]:
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    yield settings
    from pyspark import SparkContext

    # The next sessions are started by the same Java process.
    SparkContext.setSystemProperty("spark.eventLog.enabled", "false")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page, captured 100,000 times at different moments, each with its request, and a revisit in each file."""
    folder = tmp_path_factory.mktemp("archive")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1200\r\n\r\n"
    block = head + text("page", 1_200)
    asked = b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n"
    for file in range(FILES):
        with (folder / f"{file:02}.warc.gz").open("wb") as stream:
            for number in range(file * COPIES // FILES, (file + 1) * COPIES // FILES):
                stream.write(stored("response", f"{number}", number, block))
                linked = b"WARC-Concurrent-To: " + record_id(f"{number}") + b"\r\n"
                stream.write(stored("request", f"{number}?", number, asked, linked))
    return folder


def stored(kind: str, label: str, second: int, block: bytes, more: bytes = b"") -> bytes:
    minutes, seconds = divmod(second, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fields = (
        b"WARC/1.1\r\nWARC-Type: %s\r\nWARC-Record-ID: %s\r\nWARC-Date: 2020-01-%02dT%02d:%02d:%02dZ\r\n"
        b"WARC-Target-URI: http://one.example/\r\nContent-Type: application/http; msgtype=%s\r\n%sContent-Length: %d\r\n\r\n"
    ) % (
        *(kind.encode(), record_id(label), days + 1, hours, minutes, seconds),
        *(kind.encode(), more, len(block)),
    )
    return gzip.compress(fields + block + b"\r\n\r\n", 1, mtime=0)


def read_bytes(log: Path) -> dict[str, list[int]]:
    """The bytes that each task has read from other tasks, by stage."""
    (path,) = log.iterdir()
    while True:
        events = [json.loads(line) for line in path.read_text().splitlines()]
        kinds = [event["Event"] for event in events]
        if kinds.count("SparkListenerJobStart") == kinds.count("SparkListenerJobEnd"):
            break
        time.sleep(0.5)  # the end of the last job is written later
    found = defaultdict(list)
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]["Shuffle Read Metrics"]
            size = metrics["Local Bytes Read"] + metrics["Remote Bytes Read"]
            found[f"{event['Stage ID']}.{event['Stage Attempt ID']}"].append(size)
    return found


def test_the_plan_divides_the_copies(
    session: Any, log: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)
    session.conf.set("spark.sql.shuffle.partitions", "16")
    # Small tables would be sent to all tasks.
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    done(tmp_path, "dedupe", archive, "-o", "near", "--jobs", "2")
    done(tmp_path, "dedupe", archive, "-o", "far", *ENGINE)
    new = [
        {name: data for name, data in snapshot(tmp_path / folder).items() if not name.endswith("report.json")}
        for folder in ("near", "far")
    ]
    assert new[0] == new[1]
    assert session.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes", None) is None
    stages = read_bytes(log)
    assert max(sum(sizes) for sizes in stages.values()) > 2 * MOST_BYTES
    assert max(max(sizes) for sizes in stages.values()) < MOST_BYTES
    shutil.rmtree(tmp_path)


def test_the_comparison_of_bytes_divides_the_copies(
    session: Any, log: Path, archive: Path, tmp_path: Path
) -> None:
    done(tmp_path, "warcsum", archive, "-o", "sums.txt")
    done(tmp_path, "warccollres", "sums.txt", "--proc", "-o", "near.txt")
    done(tmp_path, "warccollres", "sums.txt", "--proc", "-o", "far.txt", *ENGINE)
    assert (tmp_path / "far.txt").read_bytes() == (tmp_path / "near.txt").read_bytes()
    assert max(map(len, read_bytes(log).values())) >= 10
