"""What every content store has to do; each test runs on SQLite, on a Redis-protocol server and on a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from content_pages import (
    ROWS,
    A,
    B,
    C,
    band,
    changed,
    claim,
    claim_near,
    copy_of,
    fill,
    find_near,
    keep,
    near,
    page,
    seen,
    signature,
)
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import NearAnswer, SeenText, Signature
from scrapy_dedupe.stores.content_values import equal_bytes, joined_url, split_url

if TYPE_CHECKING:
    from scrapy_dedupe.stores import Store
    from scrapy_dedupe.stores.base import ContentStore


@pytest.fixture
def store_url(content_store_url: str) -> str:
    return content_store_url


# The exact layer


def test_a_new_text_is_claimed_once(content: ContentStore) -> None:
    first = page(1, A, "c1", 1_700_000_000_123)
    assert claim(content, first, pending=False) is None
    assert claim(content, page(1, B, "c2", 2)) == seen(first)
    assert claim(content, page(2, B, "c2", 3)) is None


def test_an_earlier_capture_of_the_same_url_is_known(content: ContentStore) -> None:
    answers = []
    for moment, url in enumerate([A, A, B, B, C, A]):
        capture = page(1, url, ms=moment)
        answers.append(claim(content, capture))
        content.settle([copy_of(capture, 1) if answers[-1] else capture])
    assert [text and text.had_this_url for text in answers] == [None, True, False, True, False, True]
    assert {text.url for text in answers if text} == {A}


def test_a_url_had_a_text_only_once_its_page_went_through(content: ContentStore) -> None:
    claim(content, page(1, A), pending=False)
    again = page(1, B, ms=2)
    assert claim(content, again) == seen(page(1, A))
    content.settle([], [copy_of(again, 1)])
    assert claim(content, page(1, B, ms=3)) == seen(page(1, A))


def test_another_text_of_that_url_is_no_earlier_capture_of_this_one(content: ContentStore) -> None:
    claim(content, page(1, A), pending=False)
    claim(content, page(2, B), pending=False)
    assert claim(content, page(1, B, ms=2)) == seen(page(1, A))


@pytest.mark.parametrize(
    "url",
    [
        "http://a/ b\nc",
        "http://ä/ü?x= 1 2",
        "",
        "http://",
        "https://",
        "HTTPS://a/",
        "17",
        "http://a/" + "x" * 5000,
        "https://a/\0b",
        "http://a/\ud800",
    ],
)
def test_urls_come_back_as_they_were(content: ContentStore, url: str) -> None:
    first = page(url, url, "a crawl", 0)
    claim(content, first)
    assert claim(content, page(url, C, ms=1)) == seen(first, pending=True)
    content.settle([first])
    assert claim(content, page(url, url, "another", 1)) == seen(first, had_this_url=True)
    assert content.captures(url) == [(first, None)]
    content.settle([copy_of(page(1, url, ms=2), 1)])
    assert content.forget(url) == 2
    assert content.captures(url) == []


@given(st.text(st.characters(exclude_categories=())), st.sampled_from(["", "http://", "https://"]))
def test_a_url_that_is_split_is_joined_again(rest: str, scheme: str) -> None:
    assert joined_url(*split_url(scheme + rest)) == scheme + rest


def test_crawls_are_told_apart(content: ContentStore) -> None:
    pages = [page(number, A, f"c{number % 3}", number) for number in range(12)]
    content.claim(pages, pending=False)
    answers = content.claim([page(number, A, "later", 99) for number in range(12)])
    assert answers == [seen(capture, had_this_url=True) for capture in pages]


def test_a_text_that_comes_twice_in_a_batch_is_new_once(content: ContentStore) -> None:
    first, other, last = page(1, A), page(2, A), page(1, B, ms=2)
    assert content.claim([first, other, last]) == [None, None, seen(first, pending=True)]
    assert content.claim([page(3, A), page(3, A, ms=2), page(3, B)], pending=False) == [
        None,
        seen(page(3, A), had_this_url=True),
        seen(page(3, A)),
    ]
    assert content.statistics()["texts"] == 3


def test_an_empty_batch_is_answered_with_nothing(content: ContentStore) -> None:
    assert content.claim([]) == content.find([]) == []
    assert claim_near(content, []) == find_near(content, []) == []
    content.settle([])


def test_batches_of_any_size_equal_one_by_one(content: ContentStore) -> None:
    for size in [*range(1, 10), 33, 511, 512, 513, 1100]:
        pages = [page((size, number), ms=number) for number in range(size)]
        assert content.claim(pages) == [None] * size
        asked = [page((size, number), B) for number in range(size)]
        expected = [seen(capture, pending=True) for capture in pages]
        assert content.find(asked) == expected
        assert [content.find([capture])[0] for capture in asked[:40]] == expected[:40]
        content.settle(pages)
        assert content.find(asked) == [seen(capture) for capture in pages]


def test_a_text_is_found_by_the_source_in_which_it_was_seen_first(content: ContentStore) -> None:
    first, again = page(1, A, source=b"1" * 16), page(1, B, ms=2, source=b"2" * 16)
    assert not content.has_sources()
    content.claim([first, page(2, A)], pending=False)
    assert content.claim([again], pending=False) == [seen(first)]
    asked = [page(0, B, source=source) for source in (first.source, again.source, b"")]
    assert content.has_sources()
    assert content.recall(asked) == [seen(first), None, None]
    assert content.recall([]) == []
    content.purge(crawl="c1")
    assert content.claim([replace(again, crawl="c2")], pending=False) == [None]
    assert content.recall(asked) == [None, seen(replace(again, crawl="c2"), had_this_url=True), None]


# Pending texts


def test_a_text_that_is_pending_at_the_same_url_is_new(content: ContentStore) -> None:
    assert claim(content, page(1, A)) is None
    assert claim(content, page(1, A, ms=2)) is None
    assert claim(content, page(1, A, "c2", ms=3)) is None
    assert claim(content, page(1, A, "c2", ms=4), pending=False) is None
    assert claim(content, page(1, A, ms=5)) == seen(page(1, A, "c2", ms=4), had_this_url=True)
    assert content.statistics() == {"texts": 1, "kept": 0, "pending": 0, "templates": 0}


def test_another_url_is_told_that_the_first_page_has_not_gone_through(content: ContentStore) -> None:
    claim(content, page(1, A))
    assert claim(content, page(1, B, ms=2)) == seen(page(1, A), pending=True)
    content.settle([page(1, A)])
    assert claim(content, page(1, B, ms=3)) == seen(page(1, A))


def test_a_failed_page_leaves_neither_text_nor_signature(content: ContentStore) -> None:
    near(content, signature(page(1, A), "x"))
    assert content.statistics() == {"texts": 1, "kept": 1, "pending": 1, "templates": 0}
    content.settle([], [page(1, A)])
    assert content.statistics() == {"texts": 0, "kept": 0, "pending": 0, "templates": 0}
    assert claim(content, page(1, B)) is None
    assert near(content, signature(page(1, B), "x")) == NearAnswer()


@pytest.mark.parametrize(
    "failed",
    [
        pytest.param(page(1, A, "c2"), id="another crawl"),
        pytest.param(page(1, B), id="another URL"),
        pytest.param(page(1, A, ms=0), id="an earlier claim"),
        pytest.param(page(2, A), id="another text"),
    ],
)
def test_a_failure_removes_nothing_of_others(content: ContentStore, failed: SeenText) -> None:
    near(content, signature(page(1, A), "x"))
    content.settle([], [failed])
    assert claim(content, page(1, C)) == seen(page(1, A), pending=True)
    assert content.statistics()["kept"] == 1


def test_a_failure_removes_no_confirmed_text(content: ContentStore) -> None:
    claim(content, page(1, A))
    content.settle([page(1, A)], [page(1, A)])
    content.settle([], [page(1, A)])
    assert claim(content, page(1, C)) == seen(page(1, A))


def test_a_page_that_goes_through_first_becomes_the_first_one(content: ContentStore) -> None:
    slow, quick = page(1, A), page(1, B, "c2", 2)
    claim(content, slow)
    assert claim(content, quick) == seen(slow, pending=True)
    content.settle([copy_of(quick, 1)])
    assert claim(content, page(1, C)) == seen(quick)
    # The other one comes later: its URL had the text too.
    assert claim(content, page(1, A, ms=9)) == seen(quick)
    content.settle([slow])
    assert claim(content, page(1, A, ms=10)) == seen(quick, had_this_url=True)
    assert claim(content, page(1, C, ms=10)) == seen(quick)
    assert content.captures(A) == [(slow, None)]
    assert content.captures(B) == [(quick, None)]
    assert content.statistics() == {"texts": 1, "kept": 0, "pending": 0, "templates": 0}


def test_the_failure_of_the_slow_page_leaves_the_quick_one(content: ContentStore) -> None:
    slow, quick = page(1, A), page(1, B, "c2", 2)
    claim(content, slow)
    content.settle([copy_of(quick, 1)], [slow])
    content.settle([], [slow])
    assert claim(content, page(1, A, ms=9)) == seen(quick)


def test_settling_twice_is_settling_once(content: ContentStore) -> None:
    first, copy, similar = page(1, A), copy_of(page(1, B, ms=2), 1), copy_of(page(2, C, ms=3), 1, "near", 0.9)
    failed = page(3, A, ms=4)
    content.claim([first, copy, similar, failed])
    content.settle([first, copy, similar], [failed])
    once = [content.captures(url) for url in (A, B, C)]
    content.settle([first, copy, similar], [failed])
    assert [content.captures(url) for url in (A, B, C)] == once
    assert content.statistics() == {"texts": 2, "kept": 0, "pending": 0, "templates": 0}


def test_a_page_that_goes_through_brings_its_forgotten_text_back(content: ContentStore) -> None:
    claim(content, page(1, A))
    content.purge()
    content.settle([page(1, A)], [page(2, A)])
    assert claim(content, page(1, B)) == seen(page(1, A))
    assert content.statistics()["texts"] == 1


def test_a_page_in_hand_twice_fails_and_goes_through(content: ContentStore) -> None:
    content.claim([page(1, A), page(1, A, ms=2)])
    content.settle([page(1, A)], [page(1, A, ms=2)])
    assert claim(content, page(1, B)) == seen(page(1, A))


def test_looking_writes_nothing(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    claim(content, page(2, A))
    before = content.statistics()
    assert content.find([page(1, B), page(2, A), page(2, B), page(9, B, "new crawl")]) == [
        seen(page(1, A)),
        None,
        seen(page(2, A), pending=True),
        None,
    ]
    asked = [signature(page(9, B), "x"), signature(page(9, B), "y"), signature(page(9, B), "y")]
    assert find_near(content, asked) == [NearAnswer(seen(page(1, A))), NearAnswer(), NearAnswer()]
    assert content.statistics() == before
    assert claim(content, page(9, C)) is None
    assert find_near(content, [signature(page(8, B), "y")]) == [NearAnswer()]


# The near layer


def test_a_text_without_neighbours_is_kept(content: ContentStore) -> None:
    keep(content, page(1), "x")
    assert content.statistics() == {"texts": 1, "kept": 1, "pending": 0, "templates": 0}


def test_a_similar_text_in_a_shared_bucket_is_found_and_the_new_one_not_kept(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    similar = signature(page(2, B, "c2", 2), "x", "y", rows=changed(ROWS, 12))
    assert near(content, similar) == NearAnswer(seen(page(1, A), similarity=116 / 128))
    assert content.statistics() == {"texts": 2, "kept": 1, "pending": 1, "templates": 0}
    assert find_near(content, [signature(page(3, C), "y")]) == [NearAnswer()]


@pytest.mark.parametrize(("different", "is_near"), [(0, True), (19, True), (20, False), (128, False)])
def test_the_number_of_equal_rows_decides(content: ContentStore, different: int, is_near: bool) -> None:
    keep(content, page(1, A), "x")
    answer = near(content, signature(page(2, B), "x", rows=changed(ROWS, different)))
    assert (answer.seen is not None) == is_near
    assert not answer.is_template


RARE = bytes(range(100, 228))


@pytest.mark.parametrize("different", [19, 20])
@pytest.mark.parametrize("rare_different", [29, 30])
def test_what_is_no_template_has_to_be_similar_too(
    content: ContentStore, different: int, rare_different: int
) -> None:
    keep(content, page(1, A), "x", rare_rows=RARE)
    asked = signature(
        page(2, B),
        "x",
        rows=changed(ROWS, different),
        rare_rows=changed(RARE, rare_different),
        min_equal=109,
        min_equal_rare=99,
    )
    is_similar, is_rare_similar = different <= 19, rare_different <= 29
    (answer,) = find_near(content, [asked])
    if is_similar and is_rare_similar:
        assert answer == NearAnswer(seen(page(1, A), similarity=(128 - different) / 128))
    else:
        assert answer == NearAnswer(None, is_template=is_similar)
    claim(content, page(2, B))
    assert near(content, asked) == answer
    assert content.statistics()["kept"] == (1 if answer.seen else 2)


def test_without_any_rest_the_whole_texts_stand_for_it(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    claim(content, page(2, B))
    asked = [
        signature(page(2, B), "x", rows=changed(ROWS, different), min_equal=99, min_equal_rare=109)
        for different in (19, 20)
    ]
    assert [answer.seen is not None for answer in find_near(content, asked)] == [True, False]


@pytest.mark.parametrize("kept_has_rest", [False, True], ids=["asked", "kept"])
@pytest.mark.parametrize(
    ("decided", "unequal", "is_near"),
    [
        (8, 1, True),
        (8, 2, False),
        (7, 0, False),
        (0, 0, False),
        (100, 19, True),
        (128, 29, True),
        (128, 30, False),
    ],
)
def test_if_one_rest_is_known_the_rows_that_it_decides_stand_for_it(
    content: ContentStore, kept_has_rest: bool, decided: int, unequal: int, is_near: bool
) -> None:
    # 99 of 128 rare rows are 77 %, and 7 of 8 are more, 6 of 8 less.
    rest = ROWS[:decided] + bytes(255 - value for value in ROWS[decided:])
    with_rest, without = {"rows": ROWS, "rare_rows": rest}, {"rows": changed(ROWS, unequal)}
    kept, asked = (with_rest, without) if kept_has_rest else (without, with_rest)
    keep(content, page(1, A), "x", **kept)
    claim(content, page(2, B))
    (answer,) = find_near(content, [signature(page(2, B), "x", min_equal=90, min_equal_rare=99, **asked)])
    assert answer == (
        NearAnswer(seen(page(1, A), similarity=(128 - unequal) / 128)) if is_near else NearAnswer(None, True)
    )


def test_more_bands_find_others_and_keep_nothing(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    asked = replace(signature(page(2, B), "y", rows=changed(ROWS, 60)), more_bands=[band("x"), band("z")])
    claim(content, page(2, B))
    assert near(content, asked) == NearAnswer()
    assert near(content, signature(page(3, C), "z", rows=asked.rows)) == NearAnswer()
    assert find_near(content, [signature(page(4, C), "y", rows=asked.rows)])[0].seen == replace(
        seen(page(2, B)), pending=True
    )
    (answer,) = find_near(content, [replace(asked, rows=ROWS)])
    assert answer.seen == seen(page(1, A))


def test_a_text_that_only_shares_a_template_does_not_hide_another_one(content: ContentStore) -> None:
    keep(content, page("template", A), "x", rare_rows=changed(RARE, 60))
    keep(content, page("near", B), "y", rows=changed(ROWS, 10), rare_rows=RARE)
    answer = near(content, signature(page(3, C), "x", "y", rare_rows=RARE))
    assert answer == NearAnswer(seen(page("near", B), similarity=118 / 128))


def test_a_similar_text_in_no_shared_bucket_is_not_found(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    assert near(content, signature(page(2, B), "y")) == NearAnswer()


def test_the_most_similar_candidate_is_taken(content: ContentStore) -> None:
    keep(content, page("far", A), "x", rows=changed(ROWS, 40))
    keep(content, page("best", B), "y", rows=changed(ROWS, 15))
    keep(content, page("good", C), "z", rows=changed(ROWS, 18), min_equal=128)
    answer = near(content, signature(page("new"), "x", "y", "z"))
    assert answer == NearAnswer(seen(page("best", B), similarity=113 / 128))


def test_the_last_text_stays_in_a_bucket(content: ContentStore) -> None:
    keep(content, page("first", A), "x", "y")
    keep(content, page("last", B), "x", rows=changed(ROWS, 128))
    assert find_near(content, [signature(page("new"), "x", rows=ROWS)]) == [NearAnswer()]
    assert find_near(content, [signature(page("new", C), "y")]) == [NearAnswer(seen(page("first", A)))]


def test_a_text_is_not_near_to_itself(content: ContentStore) -> None:
    claim(content, page(1))
    for _ in range(2):
        assert near(content, signature(page(1), "x")) == NearAnswer()
    assert content.statistics()["kept"] == 1


def test_near_to_an_earlier_version_of_the_same_url(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    content.settle([copy_of(page(1, B, "c2", 2), 1)])
    for url, had_this_url in [(A, True), (B, True), (C, False)]:
        answer = near(content, signature(page(url, url, "c3", 3), "x"))
        assert answer == NearAnswer(seen(page(1, A), had_this_url))


def test_near_to_a_text_whose_page_has_not_gone_through(content: ContentStore) -> None:
    near(content, signature(page(1, A), "x"))
    assert find_near(content, [signature(page(2, B), "x")]) == [NearAnswer(seen(page(1, A), pending=True))]


def test_a_page_that_failed_is_no_near_copy_of_itself(content: ContentStore) -> None:
    # It was in hand when the process was killed; now it comes with another date in its footer.
    near(content, signature(page("as it was", A), "x"))
    assert near(content, signature(page("as it is", A, "c2", 2), "x", rows=changed(ROWS, 2))) == NearAnswer()
    content.settle([page("as it is", A, "c2", 2)])
    answer = find_near(content, [signature(page(3, A), "x", rows=changed(ROWS, 2))])
    assert answer == [NearAnswer(seen(page("as it is", A, "c2", 2), had_this_url=True))]


def test_a_batch_finds_what_it_has_just_kept(content: ContentStore) -> None:
    pages = [page("one", A), page("two", B), page("three", C)]
    content.claim(pages)
    asked = [
        signature(pages[0], "x"),
        signature(pages[1], "x", "y", rows=changed(ROWS, 5)),
        signature(pages[2], "y", rows=changed(ROWS, 5)),
    ]
    assert claim_near(content, asked) == [
        NearAnswer(),
        NearAnswer(seen(pages[0], pending=True, similarity=123 / 128)),
        NearAnswer(),
    ]


def test_band_hashes_of_any_value_are_kept(content: ContentStore) -> None:
    extreme = [b"\0" * 8, b"\xff" * 8, b"\x80" + b"\0" * 7, b"\x7f" + b"\xff" * 7]
    claim_near(content, [Signature(page(1, A), extreme, ROWS, 109)], pending=False)
    for hashed in extreme:
        asked = Signature(page(2, B), [hashed], ROWS, 109)
        assert find_near(content, [asked]) == [NearAnswer(seen(page(1, A)))]


def test_signatures_of_several_lengths_live_together(content: ContentStore) -> None:
    keep(content, page(1, A), "x", rows=bytes(64), rare_rows=bytes(64), min_equal=1)
    keep(content, page(2, A), "y", rows=bytes(32), min_equal=1)
    for rows in (bytes(24), bytes(48), bytes(256)):
        asked = Signature(page(3, B), [band("x"), band("y")], rows, 1, rows, 1)
        assert find_near(content, [asked]) == [NearAnswer()]


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_equal_bytes_counts_places(one: bytes, other: bytes) -> None:
    length = min(len(one), len(other))
    one, other = one[:length], other[:length]
    assert equal_bytes(one, other) == sum(x == y for x, y in zip(one, other, strict=True))


# Lifetimes


@pytest.mark.parametrize(("ms", "is_new"), [(60_999, False), (61_000, True)])
def test_a_text_older_than_its_lifetime_is_new(content: ContentStore, ms: int, is_new: bool) -> None:
    content.remember_for(60)
    keep(content, page(1, A, ms=1000), "x")
    late = page(1, B, "c2", ms)
    assert content.find([late]) == [None if is_new else seen(page(1, A, ms=1000))]
    asked = signature(page(2, B, "c2", ms), "x")
    assert find_near(content, [asked]) == [NearAnswer() if is_new else NearAnswer(seen(page(1, A, ms=1000)))]
    assert claim(content, late) == (None if is_new else seen(page(1, A, ms=1000)))
    if is_new:
        content.settle([late])
        assert claim(content, page(1, C, ms=ms + 1)) == seen(late)
    assert content.statistics()["texts"] == 1


def test_that_a_url_had_a_text_is_forgotten_with_it(content: ContentStore) -> None:
    content.remember_for(60)
    claim(content, page(1, A, ms=0), pending=False)
    content.settle([copy_of(page(1, B, ms=1000), 1)])
    claim(content, page(1, C, ms=60_500), pending=False)
    assert claim(content, page(1, B, ms=60_999)) == seen(page(1, C, ms=60_500), had_this_url=True)
    assert claim(content, page(1, B, ms=61_000)) == seen(page(1, C, ms=60_500))
    content.settle([copy_of(page(1, B, ms=61_000), 1)])
    assert claim(content, page(1, B, ms=62_000)) == seen(page(1, C, ms=60_500), had_this_url=True)


def test_that_a_url_had_the_text_of_an_original_is_forgotten_with_it(content: ContentStore) -> None:
    content.remember_for(60)
    claim(content, page(1, C, ms=0), pending=False)
    content.settle([copy_of(page(1, A, ms=1000), 1)])
    original = page(1, B, ms=60_500)
    claim(content, original, pending=False)
    for ms, had_this_url in ((60_999, True), (61_000, False)):
        content.settle([copy_of(page(ms, A, ms=ms), 1, "near", 0.9)])
        _, found = content.captures(A)[-1]
        assert found == seen(original, had_this_url)


def test_a_store_without_lifetime_never_forgets(content: ContentStore) -> None:
    content.remember_for(1)
    claim(content, page(1, A, ms=0), pending=False)
    content.remember_for(None)
    assert claim(content, page(1, B, ms=10**13)) == seen(page(1, A, ms=0))


def test_a_forgotten_text_that_is_claimed_again_can_fail(content: ContentStore) -> None:
    content.remember_for(60)
    claim(content, page(1, A, ms=0), pending=False)
    claim(content, page(1, B, ms=70_000))
    assert content.statistics()["pending"] == 1
    content.settle([], [page(1, B, ms=70_000)])
    assert content.statistics() == {"texts": 0, "kept": 0, "pending": 0, "templates": 0}


# What is known, and forgetting it


def test_the_captures_of_a_url_tell_what_was_decided(content: ContentStore) -> None:
    first = page("text", A, ms=10)
    content.claim([first])
    content.settle([first])
    exact = copy_of(page("text", B, "c2", 20), "text")
    unchanged = copy_of(page("text", A, "c3", 30), "text", "unchanged")
    similar = copy_of(page("similar", B, "c3", 40), "text", "near", 0.8671875)
    content.claim([exact, unchanged, similar])
    content.settle([exact, unchanged, similar])
    new = page("new", B, "c4", 50)
    content.claim([new])
    original = seen(first, had_this_url=True)
    assert content.captures(A) == [(first, None)]
    assert content.captures(B) == [
        (replace(exact, original=None, similarity=1.0), original),
        (similar, original),
        (new, None),
    ]
    assert content.captures(C) == []
    # The same for many URLs at once.
    assert content.captures_of([A, B, C]) == {
        url: [text for text, _ in content.captures(url)] for url in (A, B)
    }


def test_the_original_of_a_copy_can_be_gone(content: ContentStore) -> None:
    similar = copy_of(page("similar", B, ms=2), "text", "near", 0.9)
    content.claim([page("text", A), similar], pending=False)
    content.settle([similar])
    content.forget(A)
    assert content.captures(B) == [(similar, None)]


def test_forgetting_a_url(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    claim(content, page(2, A))
    keep(content, page(3, B), "z")
    content.settle([copy_of(page(3, A, ms=2), 3)])
    assert content.forget(A) == 2
    assert content.forget(A) == 0
    assert content.captures(A) == []
    assert content.statistics() == {"texts": 1, "kept": 1, "pending": 0, "templates": 0}
    assert claim(content, page(3, A)) == seen(page(3, B))
    assert claim(content, page(1, C)) is None
    assert find_near(content, [signature(page(4, C), "x")]) == [NearAnswer()]


@pytest.mark.parametrize(
    ("what", "purged", "left", "notes"),
    [
        ({}, 3, set(), 0),
        ({"before_ms": 10}, 0, {"old", "new", "pending"}, 2),
        ({"before_ms": 15}, 1, {"new", "pending"}, 1),
        ({"before_ms": 16}, 2, {"new"}, 1),
        ({"crawl": "c1"}, 2, {"new"}, 0),
        ({"crawl": "c2"}, 1, {"old", "pending"}, 0),
        ({"crawl": "c1", "before_ms": 15}, 1, {"new", "pending"}, 1),
        ({"crawl": "unknown"}, 0, {"old", "new", "pending"}, 2),
    ],
)
def test_purging(
    content: ContentStore, what: dict[str, Any], purged: int, left: set[str], notes: int
) -> None:
    fill(content)
    assert content.purge(**what) == purged
    assert content.statistics() == {
        "texts": len(left),
        "kept": len(left - {"pending"}),
        "pending": len(left & {"pending"}),
        "templates": 1 if what else 0,
    }
    names = ["old", "new", "pending"]
    answers = content.find([page(name, "http://d/") for name in names])
    assert {name for name, answer in zip(names, answers, strict=True) if answer} == left
    assert len(content.captures(C)) == notes
    found = find_near(content, [signature(page(9), name) for name in "xy"])
    assert [answer.seen is not None for answer in found] == ["old" in left, "new" in left]
    assert content.purge(**what) == 0


def test_purging_goes_through_many_texts(content: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_dedupe.stores.sqlite_content._PURGE_AT_ONCE", 10)
    monkeypatch.setattr("scrapy_dedupe.stores.redis_content._SCAN_AT_ONCE", 10)
    monkeypatch.setattr("scrapy_dedupe.stores.redis_content._FORGET_AT_ONCE", 10)
    pages = [page(number, f"http://{number}/", f"c{number % 2}", number) for number in range(100)]
    asked = [signature(capture) for capture in pages]
    claim_near(content, asked[:50])
    claim_near(content, asked[50:], pending=False)
    content.settle([copy_of(page(capture.digest, B, ms=1000), 1, "near", 0.9) for capture in pages])
    assert content.purge(crawl="c0") == 50
    assert content.purge(before_ms=60) == 30
    assert content.statistics() == {"texts": 120, "kept": 20, "pending": 0, "templates": 0}
    assert content.purge() == 120


def test_templates_are_kept_by_host(content: ContentStore) -> None:
    for host in ("a", "a:8080", "", "ä", "\ud800", "text,1 a"):
        assert content.load_template(host) is None
        content.save_template(host, b"one")
        content.save_template(host, host.encode("utf-8", "replace") + b"\0\xff")
    assert content.load_template("a:8080") == b"a:8080\0\xff"
    assert content.load_template("") == b"\0\xff"
    assert content.statistics()["templates"] == 6


def test_parameters_are_kept_and_compared(store: Store, store_url: str) -> None:
    assert store.content.parameters() == {}
    store.content.check_parameters({"near_num_perm": "128", "near_bands": "16"})
    other = open_store(store_url)
    other.content.check_parameters({"near_bands": "16", "near_num_perm": "128"})
    with pytest.raises(StoreRefused, match=r"near_num_perm = 128.*near_num_perm = 256"):
        other.content.check_parameters({"near_num_perm": "256", "near_bands": "16"})
    other.content.check_parameters({"near_num_perm": "128", "near_more": "ä"})
    assert other.content.parameters() == {"near_num_perm": "128", "near_bands": "16", "near_more": "ä"}
    other.close()


def test_texts_survive_closing(store_url: str) -> None:
    first = open_store(store_url)
    keep(first.content, page(1, A), "x")
    claim(first.content, page(2, A))
    first.content.flush()
    first.close()
    second = open_store(store_url)
    assert second.content.find([page(1, A, "c2", 5), page(2, B)]) == [
        seen(page(1, A), had_this_url=True),
        seen(page(2, A), pending=True),
    ]
    assert find_near(second.content, [signature(page(3, B), "x")]) == [NearAnswer(seen(page(1, A)))]
    second.close()


def test_a_copy_that_was_dropped_leaves_a_note_and_no_text(content: ContentStore) -> None:
    keep(content, page(1, A), "x")
    dropped = replace(page(2, B, "c2", 2), kind="near", original=page(1, A).digest, similarity=0.9)
    claim(content, page(2, B, "c2", 2))
    content.settle([], [], [dropped])
    assert content.statistics()["texts"] == 1
    assert content.find([page(2, C, "c3", 3)]) == [None]
    ((noted, original),) = content.captures(B)
    assert (noted.kind, noted.similarity) == ("near", 0.9)
    assert original is not None
    assert original.url == A
    # The same text of another page that goes through is an original like any other.
    claim(content, page(2, C, "c3", 3))
    content.settle([page(2, C, "c3", 3)])
    content.settle([], [], [dropped])
    assert content.find([page(2, A, "c4", 4)])[0] is not None
