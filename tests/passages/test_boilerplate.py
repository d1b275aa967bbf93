"""What counts as the template of a host."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.passages.boilerplate import Boilerplate

HOSTS = ["", "a.example", "b.example"]


def texts_on(hosts: list[int], names: list[int] | None = None, *, has_texts: bool = True) -> Any:
    """What `Boilerplate` asks of a snapshot, for texts on these hosts that have so many names each."""
    counts = np.array(names or [1] * len(hosts), np.int64)
    numbers = np.array(hosts, np.int64)
    return SimpleNamespace(
        host_names=HOSTS,
        text_host=numbers,
        document_counts=counts,
        documents_per_host=np.bincount(numbers, weights=counts, minlength=3).astype(np.int64),
        parameters=SimpleNamespace(has_texts=has_texts),
    )


def told(boilerplate: Boilerplate, posts: list[tuple[int, int]]) -> list[bool]:
    keys, texts = np.array(posts, np.int64).reshape(-1, 2).T
    return boilerplate.is_boilerplate(keys, texts).tolist()


def test_a_key_in_more_than_the_share_of_a_hosts_documents_is_boilerplate_there_alone() -> None:
    boilerplate = Boilerplate(texts_on([1] * 50 + [2] * 20))
    posts = [(0, text) for text in range(11)] + [(0, 60)] + [(1, text) for text in range(10)]
    assert told(boilerplate, posts) == [True] * 11 + [False] * 11


def test_a_key_in_fewer_than_ten_documents_is_never_boilerplate() -> None:
    boilerplate = Boilerplate(texts_on([1] * 12))
    assert told(boilerplate, [(0, text) for text in range(9)]) == [False] * 9
    assert told(boilerplate, [(0, text) for text in range(10)]) == [True] * 10


def test_documents_without_a_host_have_no_boilerplate() -> None:
    assert told(Boilerplate(texts_on([0] * 30)), [(0, text) for text in range(30)]) == [False] * 30


def test_a_text_counts_with_all_its_names() -> None:
    boilerplate = Boilerplate(texts_on([1, 1, 1], [6, 5, 9]))
    assert told(boilerplate, [(0, 0), (0, 1)]) == [True, True]
    assert told(boilerplate, [(0, 0), (1, 1)]) == [False, False]


def test_a_text_that_has_a_key_many_times_counts_once() -> None:
    boilerplate = Boilerplate(texts_on([1] * 20, has_texts=False))
    assert told(boilerplate, [(0, 3)] * 15) == [False] * 15


def test_the_share_is_what_it_says() -> None:
    # 0.29 x 100 is 28.999999999999996 in floating point.
    boilerplate = Boilerplate(texts_on([1] * 100), 0.29)
    assert not any(told(boilerplate, [(0, text) for text in range(29)]))
    assert all(told(boilerplate, [(0, text) for text in range(30)]))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match="share of a host's documents between 0 and 1"):
        Boilerplate(texts_on([1]), share)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=40),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 39)), max_size=150),
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]),
    st.integers(1, 6),
)
def test_it_is_what_counting_one_by_one_gives(
    texts: list[tuple[int, int]], posts: set[tuple[int, int]], share: float, least: int
) -> None:
    hosts, names = [host for host, _ in texts], [count for _, count in texts]
    there = sorted((key, text) for key, text in posts if text < len(texts))
    in_host = Counter[int]()
    for host, count in texts:
        in_host[host] += count
    counts = Counter[tuple[int, int]]()
    for key, text in there:
        counts[key, hosts[text]] += names[text]
    expected = [
        hosts[text] != 0
        and counts[key, hosts[text]] >= least
        and counts[key, hosts[text]] > share * in_host[hosts[text]] + 1e-9
        for key, text in there
    ]
    assert told(Boilerplate(texts_on(hosts, names), share, least), there) == expected
