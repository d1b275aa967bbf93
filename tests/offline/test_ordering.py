from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_lines import a_line, dates, manifest_lines, texts
from sampling import examples

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import ordering
from scrapy_dedupe.offline.ordering import by_cluster, by_place
from scrapy_dedupe.warc.dates import date_key, parse_date

if TYPE_CHECKING:
    from scrapy_dedupe.offline.manifest import ManifestLine


def as_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def in_place(line: ManifestLine) -> object:
    return as_bytes(line.file), line.offset


def in_cluster(line: ManifestLine) -> object:
    time = parse_date(line.date), line.date.partition(".")[2].rstrip("Z").ljust(9, "0")
    return line.digest, line.extension or 1, time, in_place(line)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(40),
)
@given(
    st.lists(manifest_lines(7) | manifest_lines(6), max_size=12),
    st.sampled_from([0, 300, 1 << 20]),
    st.sampled_from([2, 64]),
)
def test_the_order_is_that_of_the_values_in_memory_and_on_disk(
    tmp_path: Path, lines: list[ManifestLine], memory: int, most_runs: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "MEMORY_BYTES", memory)
        patch.setattr(ordering, "MOST_RUNS", most_runs)
        assert list(by_cluster(lines, tmp_path)) == sorted(lines, key=in_cluster)  # type: ignore[arg-type]
        assert list(by_place(lines, tmp_path)) == sorted(lines, key=in_place)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@given(st.lists(texts, min_size=2, max_size=2))
def test_names_are_compared_as_bytes(names: list[str]) -> None:
    keys = [ordering._name_key(name) for name in names]
    assert (keys[0] < keys[1]) == (as_bytes(names[0]) < as_bytes(names[1]))
    assert not any(byte <= ord(" ") for key in keys for byte in key)


@given(st.lists(dates, min_size=2, max_size=2))
def test_dates_are_compared_as_times(two: list[str]) -> None:
    first, second = ((parse_date(date), date.partition(".")[2].rstrip("Z").ljust(9, "0")) for date in two)
    assert (date_key(two[0]) < date_key(two[1])) == (first < second)


def test_a_date_with_a_fraction_is_later_than_the_second_it_belongs_to(tmp_path: Path) -> None:
    lines = [a_line(date="2012-04-08T20:13:38.5Z"), a_line(date="2012-04-08T20:13:38Z")]
    assert [line.date for line in by_cluster(lines, tmp_path)] == [
        "2012-04-08T20:13:38Z",
        "2012-04-08T20:13:38.5Z",
    ]


def test_files_on_disk_are_gone_when_no_more_lines_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 0)
    lines = by_place((a_line(offset=offset) for offset in range(9, 0, -1)), tmp_path)
    assert next(lines).offset == 1
    lines.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_files_on_disk_are_gone_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 0)

    def failing() -> object:
        yield a_line()
        raise KeyError

    with pytest.raises(KeyError):
        list(by_place(failing(), tmp_path))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 0)
    with pytest.raises(ArchiveError, match="cannot be sorted in"):
        list(by_place([a_line()], tmp_path / "none"))


def test_lines_that_are_alike_keep_their_order_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 5_000)
    lines = [a_line(length=number) for number in range(5_000)]
    assert list(by_place(lines, tmp_path)) == lines
    assert list(by_cluster(lines, tmp_path)) == lines


def test_long_names_are_sorted_on_disk_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 5_000)
    asked = by_place((a_line(uri="x" * 1_000, offset=9 - number) for number in range(9)), tmp_path)
    assert next(asked).offset == 1
    assert [line.offset for line in asked] == list(range(2, 10))


def test_manifests_of_any_size_are_sorted_without_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 1_000)
    lines = [a_line(offset=number * 7 % 1_000) for number in range(1_000)]
    assert list(by_place(lines, tmp_path)) == sorted(lines, key=in_place)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("count", [1, 6, 71])
def test_a_disk_that_is_full_is_one_sentence(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "MEMORY_BYTES", 10_000)
    lines = [a_line(offset=number) for number in range(5_000)]
    first_file = tempfile.TemporaryFile
    files: list[object] = []

    def opened(**options: Any) -> IO[bytes]:
        files.append(options)
        return Path("/dev/full").open("r+b") if len(files) == count else first_file(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    with pytest.raises(ArchiveError, match=r"cannot be sorted in .*: No space left on device\. Free"):
        list(by_place(lines, tmp_path))
    assert list(tmp_path.iterdir()) == []
