from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from offline.planted import SITE, Planting, text
from sampling import sampled

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.offline.collisions import number_clusters
from scrapy_dedupe.offline.manifest import LineWriter, read_lines
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.summing import sum_files
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.tasks.progress import NoProgress
from scrapy_dedupe.tasks.state import StateFolder
from scrapy_dedupe.warc import windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from scrapy_dedupe.offline.collisions import CollisionCounts
    from scrapy_dedupe.offline.manifest import ManifestLine
    from scrapy_dedupe.warc.reading import StoredRecord


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


def numbered(folder: Path, *, keep_going: bool = False, jobs: int = 1) -> tuple[CollisionCounts, Faults]:
    faults = Faults(keep_going=keep_going)
    with StateFolder(folder / "state") as state:
        counts = number_clusters(
            folder / "sums",
            folder / "numbered",
            Places(),
            state,
            faults=faults,
            watch=NoProgress(),
            jobs=jobs,
        )
    return counts, faults


def copies(folder: Path) -> list[tuple[str, int | None]]:
    return sorted((line.uri, line.copy) for line in read_lines(folder / "numbered"))


TRUTH = sorted((f"{SITE}/{number}/{copy}", copy + 1) for number in range(1, 6) for copy in range(number))


class Reads:
    """The places of the records that are read, in this order; *most* of them, then the machine fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[str, int]] = []
        self.most: int | None = None
        first_records = Places.records

        @contextmanager
        def records(places: Places, name: str) -> Iterator[Callable[[ManifestLine], StoredRecord]]:
            with first_records(places, name) as record_of:

                def counted(line: ManifestLine) -> StoredRecord:
                    if self.most is not None and len(self.places) >= self.most:
                        raise ZeroDivisionError
                    self.places.append((line.file, line.offset))
                    return record_of(line)

                yield counted

        monkeypatch.setattr(Places, "records", records)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_each_record_with_a_copy_is_read_once_in_the_order_of_its_file(folder: Path, reads: Reads) -> None:
    counts, _ = numbered(folder)
    assert copies(folder) == TRUTH
    assert (counts.lines, counts.digests, counts.collisions) == (15, 4, 0)
    repeated = [line for line in read_lines(folder / "sums") if "/1/" not in line.uri]
    assert sorted(reads.places) == sorted((line.file, line.offset) for line in repeated)
    # The first records of all digests, then all others.
    firsts, others = reads.places[:4], reads.places[4:]
    assert (firsts, others) == (sorted(firsts), sorted(others))


def spread(folder: Path, count: int) -> list[ManifestLine]:
    """Put the records of the archive into several files, and list them in ``sums``."""
    data = (folder / "a.warc.gz").read_bytes()
    lines = []
    for number, line in enumerate(read_lines(folder / "sums")):
        path = folder / f"{number % count}.warc.gz"
        with path.open("ab") as file:
            lines.append(line._replace(file=path.name, offset=file.tell()))
            file.write(data[line.offset : line.offset + line.length])
    with LineWriter(folder / "sums", columns=6, force=True) as writer:
        for line in lines:
            writer.write(line)
    return lines


@pytest.mark.parametrize("jobs", sampled([1, 2], [1]))
def test_records_of_several_files_are_compared(folder: Path, jobs: int) -> None:
    spread(folder, 3)
    counts, _ = numbered(folder, jobs=jobs)
    assert copies(folder) == TRUTH
    assert counts.compared == 14


def test_no_other_bytes_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = spread(folder, 4)
    sizes: list[int] = []
    read_at = windows.WindowedFile._read_at

    def counted(window: windows.WindowedFile, offset: int, size: int) -> bytes:
        data = read_at(window, offset, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(windows.WindowedFile, "_read_at", counted)
    numbered(folder)
    repeated = [line for line in lines if "/1/" not in line.uri]
    # Some bytes after each record show that it is whole.
    assert sum(sizes) <= sum(line.length + 64 for line in repeated)


@pytest.mark.parametrize("most", [0, 2, 5, 9])
def test_files_that_are_done_are_not_read_again(folder: Path, reads: Reads, most: int) -> None:
    spread(folder, 2)
    reads.most = most
    with pytest.raises(ZeroDivisionError):
        numbered(folder)
    assert not (folder / "numbered").exists()
    done = {path.name for path in (folder / "state").rglob("*.json")}
    before, reads.most = list(reads.places), None
    numbered(folder)
    again = len(reads.places) - 14
    assert copies(folder) == TRUTH
    # Only the file that was being read is read again.
    assert again == len([place for place in before if reads.places.count(place) > 1])
    assert again < 7
    assert done or most < 2


def test_stored_payloads_that_are_gone_are_read_again(folder: Path, reads: Reads) -> None:
    reads.most = 8  # four first records, and some others
    with pytest.raises(ZeroDivisionError):
        numbered(folder)
    (stored,) = (folder / "state").rglob("first/*.payloads")
    stored.write_bytes(b"")
    reads.most = None
    _, faults = numbered(folder, keep_going=True)
    assert copies(folder) == TRUTH
    assert faults.count == 0


def test_nothing_but_the_result_is_left(folder: Path) -> None:
    numbered(folder)
    assert [path.name for path in (folder / "state").iterdir()] == ["lock"]


def test_faults_of_a_file_that_is_done_are_told_again(folder: Path, reads: Reads) -> None:
    spread(folder, 2)
    lines = list(read_lines(folder / "sums"))
    wrong = next(line for line in lines if line.file == "0.warc.gz" and "/5/" in line.uri)
    with LineWriter(folder / "sums", columns=6, force=True) as writer:
        for line in lines:
            writer.write(line._replace(length=line.length + 7) if line == wrong else line)
    reads.most = 13
    with pytest.raises(ZeroDivisionError):
        numbered(folder, keep_going=True)
    reads.most = None
    _, faults = numbered(folder, keep_going=True)
    assert len(reads.places) < 20
    assert [fault.place for fault in faults.first] == [f"0.warc.gz, offset {wrong.offset}"]
    with pytest.raises(DamagedInput, match=f"offset {wrong.offset}"):
        numbered(folder)
