"""A process that writes exchanges is killed; what it had reported is read back after the salvage."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from sampling import sampled

from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.salvage import salvage

WRITE = """
import json, random, sys
from datetime import UTC, datetime
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter

folder, gzip, seed = sys.argv[1], sys.argv[2] == "gzip", int(sys.argv[3])
rng = random.Random(seed)
out = WarcWriter(folder, "kill", file_size=200_000, gzip=gzip, info={"isPartOf": "killed"})
while True:
    body = rng.randbytes(rng.choice([0, 10, 1_000, 100_000]))
    captured = Capture("http://example.org/", "GET", 200, datetime.now(UTC), (), b"", (), body)
    response = records.response(captured, digest=captured.payload_digest("sha256"))
    request = records.request(captured, concurrent_to=response.id)
    for record, place in zip((response, request), out.write([response, request])):
        print(json.dumps([record.id, place.file, place.offset, place.length]), flush=True)
"""


@pytest.mark.parametrize("packing", ["gzip", "plain"])
@pytest.mark.parametrize("seed", sampled(range(3), 1))
def test_what_was_reported_survives_kill_9(tmp_path, packing, seed):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(tmp_path), packing, str(seed)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    reported = [process.stdout.readline()]
    time.sleep(random.Random(seed).uniform(0, 0.15))
    process.send_signal(signal.SIGKILL)
    reported += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()

    left = list(tmp_path.glob("*.open"))
    assert len(left) <= 1
    assert all(salvage(path) for path in left)
    assert not list(tmp_path.glob("*.open"))
    stored = {record.id: record for path in tmp_path.iterdir() for record in read_records(path)}
    places = [json.loads(line) for line in reported if line.endswith((b"]", b"]\n"))]
    assert places
    for record_id, file, offset, length in places:
        record = read_record(tmp_path / file, offset)
        assert (record.id, record.length) == (record_id, length)
        assert record_id in stored
    # Beyond what was reported there can be the one exchange that was being reported.
    extra = {record.id for record in stored.values() if record.type != "warcinfo"}
    assert len(extra) - len(places) <= 3
