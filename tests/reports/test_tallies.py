"""Counters by name and groups of duplicates: bounded memory, exact sums and correct bounds."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.reports.tallies import Groups, Tallies
from scrapy_dedupe.reports.wording import harmless

NAMES = st.lists(st.one_of(st.sampled_from("abc"), st.text(max_size=6).map(harmless)), max_size=200)


def tallied(names: list[str], most_rows: int = 4, most_bytes: int = 40) -> Tallies:
    tallies = Tallies(2, most_rows, most_bytes)
    for name in names:
        tallies.count(name, [(0, 1), (1, 3)])
    return tallies


def check(tallies: Tallies, names: list[str]) -> None:
    true = Counter(names)
    assert tallies.sums() == [len(names), 3 * len(names)]
    for name, row in tallies:
        assert row.counts == [row.calls, 3 * row.calls]
        assert row.calls <= true[name] <= row.calls + row.missed
    kept = {name for name, _ in tallies}
    assert all(number <= tallies.floor for name, number in true.items() if name not in kept)


@given(NAMES)
def test_sums_are_exact_and_bounds_hold(names: list[str]) -> None:
    tallies = tallied(names)
    check(tallies, names)
    assert len(tallies) <= 8
    tallies.cut()
    check(tallies, names)
    assert len(tallies) <= 4
    assert sum(len(name.encode("utf-8", "surrogatepass")) for name, _ in tallies) <= 40


@given(NAMES, NAMES)
def test_sums_are_exact_and_bounds_hold_after_a_merge(first: list[str], second: list[str]) -> None:
    tallies = tallied(first)
    tallies.merge(tallied(second))
    check(tallies, first + second)


@given(NAMES, NAMES)
def test_restored_tallies_continue_to_count(first: list[str], second: list[str]) -> None:
    tallies = Tallies(2, 4, 40)
    tallies.take(json.loads(json.dumps(tallied(first).as_dict())))
    for name in second:
        tallies.count(name, [(0, 1), (1, 3)])
    check(tallies, first + second)


def test_a_frequent_name_is_never_removed() -> None:
    names = [f"rare{number}" if number % 3 else "frequent" for number in range(3_000)]
    tallies = tallied(names)
    row = dict(tallies)["frequent"]
    assert (row.calls, row.missed) == (1_000, 0)


def test_groups_have_kinds_examples_and_the_least_similarity() -> None:
    groups = Groups()
    for number in range(8):
        groups.count("http://a/", f"http://a/{number}", "near" if number % 2 else "exact", 1 - number / 100)
    groups.count("http://b/", "http://b/x", "exact", None)
    groups.count("http://b/", "http://b/x", "exact", 1.0)
    largest, second = groups.largest(10)
    assert (largest.url, largest.pages, largest.exact, largest.near) == ("http://a/", 8, 4, 4)
    assert largest.least_similarity == 0.93
    assert [example.url for example in largest.examples] == [f"http://a/{number}" for number in range(5)]
    assert largest.examples[1].similarity == 0.99
    assert not largest.is_bound
    assert (second.exact, second.least_similarity, len(second.examples)) == (2, 1.0, 1)
    assert len(groups.largest(1)) == 1


def test_urls_that_are_equal_after_shortening_have_separate_groups() -> None:
    groups = Groups()
    long = "http://a/" + "x" * 5_000
    for ending in "abc":
        groups.count(long + ending, "http://b/", "exact", 1.0)
    groups.count("http://me:one@a/", "http://b/", "exact", 1.0)
    groups.count("http://me:two@a/", "http://b/", "exact", 1.0)
    found = groups.largest(10)
    assert [group.pages for group in found] == [1] * 5
    assert max(len(group.url) for group in found) == 2_000
    assert {group.url for group in found if len(group.url) < 2_000} == {"http://a/"}


def test_a_large_group_is_found_among_ten_thousand() -> None:
    groups = Groups()
    for number in range(10_000):
        groups.count(f"http://a/{number}", f"http://a/{number}/copy", "exact", 1.0)
        if number % 20 == 0:
            groups.count("http://a/large", f"http://a/large/{number}", "near", 0.9)
    again = Groups()
    again.take(json.loads(json.dumps(groups.as_dict())))
    assert groups.largest(10) == again.largest(10)
    assert groups.largest(1)[0].url == "http://a/large"
    assert groups.largest(1)[0].pages == 500
    assert len(json.dumps(groups.as_dict())) < 60_000


def test_merged_groups_are_added() -> None:
    first, second = Groups(), Groups()
    first.count("http://a/", "http://a/1", "exact", 1.0)
    for number in range(7):
        second.count("http://a/", f"http://a/{number}", "near", 0.9)
    first.merge(second)
    (group,) = first.largest(10)
    assert (group.pages, group.exact, group.near, group.least_similarity) == (8, 1, 7, 0.9)
    assert [example.url for example in group.examples] == [f"http://a/{number}" for number in (1, 0, 2, 3, 4)]
