"""Few positions remain in a periodic section, and comparing ranges by sums gives the same result as by items."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.passages.index import PassageIndex
from scrapy_dedupe.passages.repeats import PrefixSums
from scrapy_dedupe.passages.sequences import Periods

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

KNOWN = 5

EXTRACTING = """
import sys
from pathlib import Path
from scrapy_dedupe.passages import PassageIndex
with PassageIndex(sys.argv[1]) as index:
    (found, *_) = index.extract(top=2)
# The maxrss of getrusage would be that of the process from which this one was started.
(highest,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(found.tokens, found.documents, int(highest.split()[1]) >> 10)
"""


def left(values: list[int], part: int) -> list[int]:
    """The positions that are left, if the values are given in parts of so many."""
    sequence = np.array([*values, *[0] * 50], np.uint32)
    periods = Periods(KNOWN)
    for start in range(0, len(sequence), part):
        periods.add(sequence[start : start + part])
    periods.finish(sequence)
    dropped = np.concatenate(
        [periods.masks(start, min(start + part, len(values)))[0] for start in range(0, len(values), part)]
    )
    return np.flatnonzero(~dropped).tolist()


@pytest.mark.parametrize("part", [3, 10, 1000])
def test_of_a_section_at_the_end_of_a_text_the_first_period_is_kept(part: int) -> None:
    # The windows at the last four positions reach over the end.
    assert left([0, *[1, 2, 3] * 20], part) == [0, 1, 2, 3, 57, 58, 59, 60]


@pytest.mark.parametrize("part", [3, 10, 1000])
def test_a_position_is_kept_if_another_section_has_the_length_that_follows(part: int) -> None:
    long, short = [1, 2, 3] * 20, [1, 2, 3] * 8
    positions = left([0, *long, 9, 8, 0, *short, 9, 7], part)
    # The first period, the start of another section of 24, and the last period.
    assert positions[:8] == [0, 1, 2, 3, 61 - 24, 54, 55, 56]


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read as Linux tells it")
def test_two_texts_of_one_line_take_little_memory(tmp_path: Path) -> None:
    line = "the quick brown fox jumps over the lazy dog near the river bank\n"
    with PassageIndex(tmp_path / "index") as index:
        index.add("one", line * 120_000)
        index.add("two", f"x {line * 60_000}")
    done = subprocess.run(
        [sys.executable, "-c", EXTRACTING, str(tmp_path / "index")],
        capture_output=True,
        text=True,
        check=True,
    )
    tokens, documents, size_mb = map(int, done.stdout.split())
    assert (tokens, documents) == (60_000 * 13, 2)
    assert size_mb < 250


@pytest.mark.parametrize("has_texts", [True, False])
def test_a_line_that_repeats_in_two_texts_is_told_without_comparing_each_place_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_texts: bool
) -> None:
    compared = 0
    are_equal = PrefixSums.are_equal

    def counted(self: PrefixSums, ours: NDArray[np.int64], *others: NDArray[np.int64]) -> NDArray[np.bool_]:
        nonlocal compared
        compared += len(ours)
        return are_equal(self, ours, *others)

    monkeypatch.setattr(PrefixSums, "are_equal", counted)
    line = [f"w{number}" for number in range(20)]
    with PassageIndex(tmp_path / "index", store_text=has_texts) as index:
        index.add("long", " ".join(line * 2_000))
        index.add("short", " ".join(line * 400))
        told = [(passage.tokens, len(passage.places)) for passage in index.extract()]
    # Without texts passages begin and end at blots.
    assert told == ([(8_000, 2), (20, 2_400)] if has_texts else [(7_998, 2), (18, 2_400)])
    assert compared < 5 * 2_400 * len(line)


@given(values=st.lists(st.integers(1, 2), min_size=2, max_size=30), block=st.sampled_from([1, 4, 7, 1 << 18]))
def test_ranges_are_equal_if_their_items_are(
    values: list[int], block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scrapy_dedupe.passages.repeats._BLOCK", block)
        sequence = np.array(values, np.uint32)
        sums = PrefixSums(tmp_path_factory.mktemp("work") / "sums", sequence)
    pairs = [(a, b) for a in range(len(values)) for b in range(len(values)) if a != b]
    expected = []
    for a, b in pairs:
        length = 0
        while max(a, b) + length < len(values) and values[a + length] == values[b + length]:
            length += 1
        expected.append(length)
    ours, others = np.array(pairs).T
    most = len(values) - np.maximum(ours, others)
    assert sums.reaches(ours, others, np.zeros(len(pairs), np.int64), most).tolist() == expected
    sums.release(sequence)
    assert sums.are_equal(ours, others, np.array(expected)).all()
