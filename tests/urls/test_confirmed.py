from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import StoreError, StoreUnavailable
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.exact import ConfirmedBloomFilter, ExactSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def fingerprint(number: int) -> bytes:
    return hashlib.sha1(b"%d" % number).digest()


class Case:
    def __init__(self, path: Path | None, error_rate: float, capacity: int = 1_000) -> None:
        self.errors: list[StoreError] = []
        self.exact = ExactSet(path, "x.Y")
        self.bloom = GrowingBloomFilter(capacity, error_rate)
        self.filter = ConfirmedBloomFilter(self.bloom, self.exact, self.errors.append)


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[Case]:
    """A filter that calls every fifth new fingerprint seen."""
    case = Case(tmp_path / "urls.exact", 0.3)
    yield case
    case.exact.close()


def fail(exact: ExactSet) -> None:
    """What a disk that fails looks like: every statement raises."""
    exact._reader.close()
    exact._writer.close()


def test_every_false_positive_is_let_through_and_recorded(bad: Case) -> None:
    count = 5_000
    for number in range(count):
        assert bad.filter.add(fingerprint(number)) is True
        if number % 700 == 0:
            bad.exact.write_pending()
    # The filter is as bad as it was meant to be, so this has been shown more than once.
    assert bad.filter.false_positives > 200
    assert len(bad.bloom) == count - bad.filter.false_positives
    assert len(bad.filter) == len(bad.exact) == count
    assert bad.filter.confirmed == 0
    for number in range(count):
        assert bad.filter.add(fingerprint(number)) is False
        assert fingerprint(number) in bad.filter
    assert bad.filter.confirmed == count
    assert not any(fingerprint(number) in bad.filter for number in range(count, 2 * count))
    assert bad.errors == []


@given(
    numbers=st.lists(st.integers(0, 60), max_size=200),
    writes=st.sets(st.integers(0, 199)),
)
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_it_answers_as_a_plain_set_does(tmp_path: Path, numbers: list[int], writes: set[int]) -> None:
    case = Case(None, 0.3, capacity=20)
    seen: set[int] = set()
    for place, number in enumerate(numbers):
        assert (fingerprint(number) in case.filter) == (number in seen)
        assert case.filter.add(fingerprint(number)) == (number not in seen)
        seen.add(number)
        if place in writes:
            case.exact.write_pending()
        assert len(case.filter) == len(seen)
    assert case.filter.confirmed == len(numbers) - len(seen)
    assert case.filter.false_positives == len(seen) - len(case.bloom)
    case.exact.close()


def test_many_are_answered_in_order(bad: Case) -> None:
    assert bad.filter.add_many([b"a", b"b", b"a"]) == [True, True, False]


def test_the_account_is_that_of_the_bloom_filter_but_nothing_is_lost(bad: Case) -> None:
    for number in range(1_500):
        bad.filter.add(fingerprint(number))
    figures = bad.bloom.figures()
    assert figures.layers == 2
    assert figures.expected_lost > 50
    assert bad.filter.figures() == replace(figures, seen=1_500, expected_lost=0.0)
    assert bad.filter.expected_figures() == replace(
        bad.bloom.expected_figures(), seen=1_500, expected_lost=0.0
    )


def test_what_cannot_be_confirmed_is_new_once(bad: Case) -> None:
    for number in range(100):
        bad.filter.add(fingerprint(number))
    bad.exact.write_pending()
    false_positives = bad.filter.false_positives
    fail(bad.exact)
    assert bad.filter.add(fingerprint(1)) is True
    assert len(bad.errors) == 1
    assert isinstance(bad.errors[0], StoreUnavailable)
    assert bad.filter.false_positives == false_positives
    # It is in memory from now on, so the link that every page has does not come through again and again.
    assert bad.filter.add(fingerprint(1)) is False
    assert len(bad.errors) == 1
    assert fingerprint(2) not in bad.filter
    assert len(bad.filter) == 100
    assert len(bad.errors) == 3
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        bad.exact.close()


def test_a_closed_set_lets_everything_through(bad: Case) -> None:
    bad.filter.add(b"a")
    bad.exact.close()
    assert bad.filter.add(b"b") is True
    assert bad.filter.add(b"a") is True
    assert bad.errors


def test_it_goes_on_with_what_both_have_kept(tmp_path: Path) -> None:
    path = tmp_path / "urls.exact"
    case = Case(path, 0.3)
    for number in range(2_000):
        case.filter.add(fingerprint(number))
    case.exact.close()
    bloom = GrowingBloomFilter.from_layers(1_000, 0.3, case.bloom.dump_layers())
    again = ConfirmedBloomFilter(bloom, ExactSet(path, "x.Y"), case.errors.append)
    assert not any(again.add(fingerprint(number)) for number in range(2_000))
    assert all(again.add(fingerprint(number)) for number in range(2_000, 4_000))
    again.exact.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM seen").fetchone() == (4_000,)
    assert case.errors == []
