from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from offline.planted import SITE, Planting, text

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline import clustering
from scrapy_dedupe.offline.clustering import number_clusters
from scrapy_dedupe.offline.inputs import find_inputs
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.summing import sum_files
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import StateFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.collisions import CollisionCounts
    from scrapy_dedupe.offline.manifest import ManifestLine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``sums``: five payloads, the n-th of them n times."""
    p = Planting()
    p.file("a.warc.gz")
    for number in range(1, 6):
        for copy in range(number):
            p.exchange("a.warc.gz", f"{number}-{copy}", f"{SITE}/{number}/{copy}", text(str(number), 1_500))
    p.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    sum_files(find_inputs(["a.warc.gz"], faults=Faults()), tmp_path / "sums")
    return tmp_path


def numbered(folder: Path, *, keep_going: bool = False) -> tuple[CollisionCounts, Faults]:
    faults = Faults(keep_going=keep_going)
    with StateFolder(folder / "state") as state:
        counts = number_clusters(
            folder / "sums", folder / "numbered", Places(), state, faults=faults, watch=NoProgress()
        )
    return counts, faults


def copies(folder: Path) -> list[tuple[str, int | None]]:
    return sorted((line.uri, line.copy) for line in read_lines(folder / "numbered"))


TRUTH = sorted((f"{SITE}/{number}/{copy}", copy + 1) for number in range(1, 6) for copy in range(number))


@pytest.mark.parametrize("part_lines", [1, 4, 1_000])
def test_parts_of_any_size_give_the_same_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part_lines: int
) -> None:
    numbered(folder)
    whole = (folder / "numbered").read_bytes()
    monkeypatch.setattr(clustering, "_PART_LINES", part_lines)
    (folder / "state").rename(folder / "before")
    counts, _ = numbered(folder)
    assert (folder / "numbered").read_bytes() == whole
    assert copies(folder) == TRUTH
    assert (counts.lines, counts.digests, counts.collisions) == (15, 4, 0)
    parts = len(list((folder / "state" / "clusters").glob("*.txt")))
    assert {1: parts == 5, 4: 1 < parts < 5, 1_000: parts == 1}[part_lines]


def test_parts_that_are_done_are_not_compared_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "_PART_LINES", 1)
    compared: list[str] = []
    resolve = clustering.resolve_collisions

    def note(lines: Iterator[ManifestLine], *args: object, **options: object) -> Iterator[ManifestLine]:
        if len(compared) == 3:
            compared.append("died")
            raise ZeroDivisionError
        first = next(lines)
        compared.append(first.digest)

        def again() -> Iterator[ManifestLine]:
            yield first
            yield from lines

        return resolve(again(), *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(clustering, "resolve_collisions", note)
    with pytest.raises(ZeroDivisionError):
        numbered(folder)
    assert not (folder / "numbered").exists()
    counts, _ = numbered(folder)
    compared.remove("died")
    assert len(compared) == len(set(compared)) == 5
    assert counts.lines == 15
    assert copies(folder) == TRUTH


def test_faults_of_a_part_that_is_done_are_told_again(folder: Path) -> None:
    lines = (folder / "sums").read_text().splitlines(keepends=True)
    wrong = lines[2].replace(" ", "1 ", 1).replace("a.warc.gz1 ", "a.warc.gz ")
    offset = wrong.split(" ")[1]
    wrong = wrong.replace(f" {offset} ", f" {int(offset) + 7} ")
    (folder / "sums").write_text("".join([*lines[:2], wrong, *lines[3:]]))
    for _ in range(2):
        _, faults = numbered(folder, keep_going=True)
        assert faults.count == 1
        assert faults.first[0].place == f"a.warc.gz, offset {int(offset) + 7}"
    with pytest.raises(DamagedInput, match=f"offset {int(offset) + 7}"):
        numbered(folder)
