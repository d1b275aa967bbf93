from __future__ import annotations

import random
from typing import TYPE_CHECKING

from scrapy_dedupe.near import deciding
from scrapy_dedupe.near.deciding import Decisions

if TYPE_CHECKING:
    import pytest

ROWS = random.Random(1).randbytes(128)


def signed(
    key: int, rows: bytes, puts: list[int] | None, others: list[int] | None = None
) -> tuple[object, ...]:
    return (puts, others, key.to_bytes(16, "big"), rows, b"", b"", 109, 109, 90)


def changed(count: int) -> bytes:
    return bytes(255 - value if place < count else value for place, value in enumerate(ROWS))


def test_a_text_is_compared_only_with_kept_ones() -> None:
    decisions = Decisions(1)
    # The third is near to the second, which is not kept, but not to the first.
    for number, count in enumerate((0, 15, 30)):
        decisions.add(number, number, None, signed(number, changed(count), [0]))
    assert [row[1] for row in decisions.rows()] == [0, 0, 2]


def test_the_nearest_of_several_kept_texts_is_taken() -> None:
    decisions = Decisions(2)
    decisions.add(0, 0, None, signed(0, changed(18), [0]))
    decisions.add(1, 1, None, signed(1, changed(10), [1]))
    decisions.add(2, 2, None, signed(2, changed(0), [0], [1]))
    # The third text connects both, so they are in one component.
    assert [(row[1], row[3]) for row in decisions.rows()] == [(0, 0), (1, 0), (1, 0)]


def test_a_bucket_of_many_texts_costs_one_comparison_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    find = deciding.near_candidates

    def counted(signature, candidates):  # type: ignore[no-untyped-def]
        nonlocal compared
        compared += len(candidates)
        return find(signature, candidates)

    monkeypatch.setattr(deciding, "near_candidates", counted)
    decisions = Decisions(1)
    numbers = random.Random(2)
    for number in range(3_000):
        # Half of them are near to each other, the others to none.
        rows = changed(numbers.randrange(5)) if number % 2 else numbers.randbytes(128)
        decisions.add(number, number, None, signed(number, rows, [0]))
    assert compared == 2_999


def test_a_version_of_a_page_is_near_to_a_text_that_its_uri_had() -> None:
    decisions = Decisions(1)
    decisions.add(0, 0, None, signed(0, changed(0), [0]))
    decisions.add(1, 0, 7, None)  # the URI 7 has the same text
    decisions.add(2, 2, 7, signed(2, changed(5), [0]))
    decisions.add(3, 3, 8, signed(3, changed(6), [0]))
    assert [row[4] for row in decisions.rows()] == [False, True, False]
