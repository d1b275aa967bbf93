"""Boards of metrics and the places where they can be read, without a crawl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from scrapes import LAYERS, samples
from waiting import wait_until

from scrapy_dedupe.errors import DedupeError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.live.figures import LiveFigures
from scrapy_dedupe.live.observers.metric_families import Reading, read_crawl
from scrapy_dedupe.live.observers.metric_outputs import Board, MetricsFile

if TYPE_CHECKING:
    from pathlib import Path


class Counting:
    """A crawl of which a test sets the figures."""

    def __init__(self, spider: str, reading: Reading) -> None:
        self.spider = spider
        self.reading = reading
        self.errors: list[Exception] = []

    def read(self) -> Reading:
        return dict(self.reading)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


def test_counters_never_go_back() -> None:
    board = Board()
    name = ("dedupe_warc_bytes_written_total", "")
    seen = ("dedupe_url_seen", "")
    first, second = Counting("a", {name: 10.0, seen: 3.0}), Counting("a", {name: 1.0, seen: 2.0})
    board.add(first)
    board.add(second)

    def value(key: str) -> float | None:
        return samples(generate_latest(board.registry).decode()).get((key,))

    assert (value(name[0]), value(seen[0])) == (11, 5)
    first.reading = {name: 4.0}  # whoever sets a stat back
    assert value(name[0]) == 11
    assert board.remove(first) is False
    assert (value(name[0]), value(seen[0])) == (11, 2)
    assert board.remove(second) is True
    assert board.remove(second) is False
    assert (value(name[0]), value(seen[0])) == (11, None)


def test_a_crawl_that_cannot_be_read_leaves_the_last_figures() -> None:
    class Broken(Counting):
        is_broken = False

        def read(self) -> Reading:
            if self.is_broken:
                raise RuntimeError("no stats")
            return super().read()

    board, source = Board(), Broken("a", {("dedupe_url_seen", ""): 3.0})
    board.add(source)
    before = generate_latest(board.registry)
    source.is_broken = True
    assert generate_latest(board.registry) == before
    assert [str(error) for error in source.errors] == ["no stats"]


HOSTILE = ['a"b\\c\nd', "\ud800", "x" * 100_000, "", "{}", "é"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_counted_the_text_can_be_read(name: str) -> None:
    live = LiveFigures()
    for step in LAYERS:
        live.latency(step)
    stats = {f"dedupe/errors/{name}": 7, 5: 1, "dedupe/content/exact": "many", "dupefilter/filtered": 10**400}
    stats |= {f"dedupe/content/skipped/{number}": 1 for number in range(10_000)}
    reading = read_crawl(stats, live, name, 5, is_running=True)
    board = Board()
    board.add(Counting("a", reading))
    text = generate_latest(board.registry).decode()
    assert samples(text)["dedupe_warc_queue_bytes",] == 5
    assert len(text) < 100_000
    errors = next(f for f in parse(text) if f.name == "dedup_errors")
    assert sum(sample.value for sample in errors.samples) == 7


def test_the_text_is_open_metrics_too() -> None:
    live = LiveFigures()
    for step in LAYERS:
        live.latency(step).add(0.5)
    board = Board()
    for spider in ("a", "b"):
        board.add(Counting(spider, read_crawl({}, live, f"crawl-{spider}", 5, is_running=True)))
    families = {
        family.name: family for family in parse_openmetrics(generate_open_metrics(board.registry).decode())
    }
    assert families["dedupe_crawl"].type == "info"
    assert [s.labels["crawl"] for s in families["dedupe_crawl"].samples] == ["crawl-a", "crawl-b"]
    sums = {
        (s.labels["spider"], s.labels["layer"]): s.value
        for s in families["dedup_latency_seconds"].samples
        if s.name.endswith("_sum")
    }
    assert sums == {(spider, layer): 0.5 for spider in "ab" for layer in LAYERS}


def test_the_file_is_written_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "x.prom"
    place = MetricsFile(file, 0.01)
    source = Counting("a", {("dedupe_url_seen", ""): 3.0})
    place.board.add(source)
    place.open()
    assert samples(file.read_text())["dedupe_url_seen",] == 3
    source.reading = {("dedupe_url_seen", ""): 4.0}
    # It is there at any time, and whole.
    wait_until(lambda: samples(file.read_text())["dedupe_url_seen",] == 4)
    place.close()
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.prom"
    place = MetricsFile(file, 3600.0)
    source = Counting("a", {("dedupe_url_seen", ""): 3.0})
    place.board.add(source)
    place.open()
    before = file.read_bytes()
    taken = tmp_path / "taken"
    taken.mkdir()
    monkeypatch.setattr(whole_file, "temporary_path", lambda path, *args, **options: taken)
    source.reading = {("dedupe_url_seen", ""): 4.0}
    place.publish()
    place.close()
    assert file.read_bytes() == before
    (error,) = source.errors
    # A sentence, not a traceback.
    assert isinstance(error, DedupeError)
    assert str(file) in str(error)
