from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_lines import a_line
from sampling import examples

from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import ordering
from scrapy_dedupe.offline.manifest import ManifestLine, read_all, read_lines
from scrapy_dedupe.offline.manifest_lines import text_line
from scrapy_dedupe.offline.ordering import Part, by_cluster, split
from scrapy_dedupe.tasks.state import StateFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

groups = st.lists(st.integers(1, 6), max_size=12)
"""How many lines each digest has."""


def lines_of(sizes: list[int]) -> list[ManifestLine]:
    return [
        a_line(offset=index, digest=f"md5:{digest:032}", extension=index % 2 + 1)
        for digest, size in enumerate(sizes)
        for index in range(size)
    ]


def check(parts: list[Part], lines: list[ManifestLine], folder: Path) -> None:
    """The parts are the manifest, and no digest is in two of them."""
    paths = [Path(part.file) for part in parts]
    assert list(read_all(paths)) == list(by_cluster(lines, folder))
    held = [{line.digest for line in read_lines(path)} for path in paths]
    assert sum(map(len, held)) == len(set().union(*held))
    assert [part.size_bytes for part in parts] == [path.stat().st_size for path in paths]
    assert [part.clusters for part in parts] == [len(digests) for digests in held]
    assert [part.lines for part in parts] == [len(list(read_lines(path))) for path in paths]
    assert set(folder.iterdir()) == set(paths)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(50),
)
@given(groups, st.integers(1, 8), st.randoms(use_true_random=False))
def test_so_many_parts_are_the_manifest(tmp_path: Path, sizes: list[int], count: int, random: object) -> None:
    lines = lines_of(sizes)
    random.shuffle(lines)  # type: ignore[attr-defined]
    parts = split(lines, tmp_path / "m", count=count, force=True)
    check(parts, lines, tmp_path)
    assert len(parts) == count
    assert sum(1 for part in parts if part.lines) == min(count, len(sizes))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(50),
)
@given(groups, st.integers(1, 1_500))
def test_parts_of_a_size_are_the_manifest(tmp_path: Path, sizes: list[int], size_bytes: int) -> None:
    lines = lines_of(sizes)
    parts = split(lines, tmp_path / "m", size_bytes=size_bytes, force=True)
    check(parts, lines, tmp_path)
    assert all(part.size_bytes <= size_bytes or part.clusters == 1 for part in parts)
    for before, after in itertools.pairwise(parts):
        first = next(read_lines(Path(after.file))).digest
        cluster = sum(len(text_line(line, 7)) + 1 for line in lines if line.digest == first)
        assert before.size_bytes + cluster > size_bytes


def test_parts_of_equal_clusters_are_equal(tmp_path: Path) -> None:
    parts = split(lines_of([3] * 40), tmp_path / "m", count=4)
    assert [part.lines for part in parts] == [30] * 4


def test_parts_can_be_json(tmp_path: Path) -> None:
    parts = split(lines_of([1, 2]), tmp_path / "m", count=2, format="jsonl")
    assert [Path(part.file).read_text()[0] for part in parts] == ["{", "{"]
    check(parts, lines_of([1, 2]), tmp_path)


def test_parts_of_an_earlier_run_are_replaced_by_force_alone(tmp_path: Path) -> None:
    split(lines_of([1] * 12), tmp_path / "m", count=11)
    (tmp_path / "m.txt").write_text("another file")
    for name in ("m.1", "m.2"):
        (tmp_path / name).unlink()
    with pytest.raises(ArchiveError, match=r"m\.3 and 8 more of these files already exist.*--force"):
        split(lines_of([1, 1]), tmp_path / "m", count=2)
    split(lines_of([1, 1]), tmp_path / "m", count=2, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.1", "m.2", "m.txt"]


def test_a_fault_in_the_input_leaves_the_old_parts(tmp_path: Path) -> None:
    split(lines_of([1, 1]), tmp_path / "m", count=2)

    def failing() -> object:
        yield a_line()
        raise KeyError

    with pytest.raises(KeyError):
        split(failing(), tmp_path / "m", count=2, force=True)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.1", "m.2"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ordering, "sync", full)
    with pytest.raises(ArchiveError, match="cannot be written: No space left on device"):
        split(lines_of([1]), tmp_path / "m", count=1)
    assert list(tmp_path.iterdir()) == []


def cut_run(folder: Path, moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill leaves it that comes when so many parts have their names."""

    class Killed(BaseException):
        pass

    names: list[Path] = []
    first_replace = Path.replace

    def replace(path: Path, target: str) -> Path:
        if path.name.startswith("part-"):
            names.append(path)
            if len(names) > moved:
                raise Killed
        return first_replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(StateFolder, "remove", lambda self: None)
        with pytest.raises(Killed):
            split(lines_of([2, 2, 2]), folder / "m", count=3)


def test_parts_that_a_killed_run_has_put_in_place_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_run(tmp_path, 2, monkeypatch)
    assert (tmp_path / "m.2").exists()
    lines = lines_of([3])
    check(split(lines, tmp_path / "m", count=1), lines, tmp_path)


def test_a_file_of_somebody_else_is_not_taken_for_a_part_of_a_killed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_run(tmp_path, 2, monkeypatch)
    (tmp_path / "other").write_text("mine")
    (tmp_path / "other").replace(tmp_path / "m.2")
    with pytest.raises(ArchiveError, match=r"m\.2 already exists"):
        split(lines_of([3]), tmp_path / "m", count=1)
    assert [path.name for path in tmp_path.iterdir()] == ["m.2"]


def test_two_do_not_split_into_the_same_parts_at_once(tmp_path: Path) -> None:
    def lines() -> Iterator[ManifestLine]:
        with pytest.raises(ArchiveError, match="Another process is working in"):
            split([a_line()], tmp_path / "m", count=1)
        yield a_line()

    assert len(split(lines(), tmp_path / "m", count=1)) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "m.1"]
