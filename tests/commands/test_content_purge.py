"""``content stats`` and ``content purge``, on both stores."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_dedupe.content import Deduplicator, Document
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import SeenText

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_dedupe.stores.base import TextMatch

HOUR_MS = 3_600_000
LONG = "<p>" + " ".join(f"Sentence number {number} of a text that is long enough." for number in range(40))
A, B, C, D = (f"http://example.com/{name}" for name in "abcd")


@pytest.fixture
def store_url(each_store_url: str) -> str:
    return each_store_url


def text_at(url: str, crawl: str, age_hours: float) -> SeenText:
    name = url.rpartition("/")[2].encode()
    return SeenText(name * 16, url, crawl, time.time_ns() // 1_000_000 - round(age_hours * HOUR_MS))


TEXTS = ((A, "first", 100), (B, "first", 30), (C, "second", 30), (D, "second", 1))


@pytest.fixture
def texts(store_url: str) -> list[SeenText]:
    """Four texts; that of B was seen at A too. D has not gone through."""
    captures = [text_at(*text) for text in TEXTS]
    store = open_store(store_url)
    try:
        store.content.claim(captures[:3], pending=False)
        store.content.claim(captures[3:])
        again = SeenText(
            captures[1].digest, A, "second", captures[1].seen_ms + 1, "exact", captures[1].digest
        )
        store.content.settle([again])
    finally:
        store.close()
    return captures


def left(store_url: str, texts: list[SeenText]) -> list[str]:
    store = open_store(store_url)
    try:
        # Asked from elsewhere, so that a pending text counts as well.
        found: list[TextMatch | None] = store.content.find(
            [SeenText(text.digest, "http://other/", "other", text.seen_ms) for text in texts]
        )
    finally:
        store.close()
    return [seen.url for seen in found if seen is not None]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# stats


def test_stats_read_well(call: Callable[..., Any], store_url: str, texts: list[SeenText]) -> None:
    called = call("content", "stats", "--store", store_url)
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[:5] == [
        f"Store      {store_url}",
        "Texts      4 different texts, 0 compared with new ones, 1 pending",
        "Templates  0 hosts",
        "Compared   as text/1 (DEDUPE_CANONICALIZER)",
        "Near       nothing was compared yet",
    ]
    size = lines[5].partition(" ")[2].strip()
    assert (
        size == "not reported by Redis" if store_url.startswith("redis") else size.endswith("the whole file")
    )


def test_stats_as_json(call: Callable[..., Any], store_url: str) -> None:
    with Deduplicator(store_url) as dedupe:
        dedupe.check_many([Document(A, LONG), Document(B, LONG + "More."), Document(C, "Short.")])
    stats = call("content", "stats", "--store", store_url, "--json").json
    size = stats.pop("bytes")
    assert (size is None) if store_url.startswith("redis") else size > 4_096
    assert stats == {
        "store": store_url,
        "texts": 3,
        "kept": 1,
        "pending": 0,
        "templates": 0,
        "canonicalizer": "text/1",
        "parameters": {
            "near_bands": "16 x 8",
            "near_num_perm": "128",
            "near_shingle_size": "7",
            "near_identity": "on",
            "near_signature": "affine32/3",
        },
    }


# purge


@pytest.mark.parametrize(
    ("words", "stay"),
    [
        (("--older-than", "2"), [B, C, D]),
        (("--older-than", "1.5d"), [B, C, D]),
        (("--older-than", "29h"), [D]),
        (("--older-than", "2001-01-01"), [A, B, C, D]),
        (("--crawl", "first"), [C, D]),
        (("--crawl", "second"), [A, B]),
        (("--crawl", "third"), [A, B, C, D]),
        (("--crawl", "first", "--older-than", "2"), [B, C, D]),
        (("--crawl", "second", "--older-than", "2"), [A, B, C, D]),
        (("--url", A), [B, C, D]),
        (("--url", B, D, "http://unknown/", B), [A, C]),
        (("--all",), []),
    ],
    ids=" ".join,
)
def test_what_is_meant_is_counted_and_forgotten(
    call: Callable[..., Any], store_url: str, texts: list[SeenText], words: tuple[str, ...], stay: list[str]
) -> None:
    purge = ("content", "purge", "--store", store_url, "--json")
    dry = call(*purge, *words, "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert (dry.json["texts"], dry.json["forgotten"], dry.json["dry_run"]) == (4 - len(stay), 0, True)
    assert left(store_url, texts) == [A, B, C, D]
    called = call(*purge, *words, "--yes")
    assert (called.code, called.err) == (0, "")
    assert (called.json["texts"], called.json["forgotten"]) == (4 - len(stay), 4 - len(stay))
    assert left(store_url, texts) == stay


@pytest.mark.parametrize(
    ("answer", "is_done"), [("y\n", True), ("Yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_it_asks_before_it_forgets(
    call: Callable[..., Any],
    store_url: str,
    texts: list[SeenText],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    is_done: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    called = call("content", "purge", "--store", store_url, "--crawl", "first")
    assert called.code == 0
    assert called.err == (
        f"2 texts of {store_url} will be forgotten, and are new when they are seen again. Continue? [y/N] "
    )
    assert called.out == ("2 texts were forgotten.\n" if is_done else "Nothing was forgotten.\n")
    assert left(store_url, texts) == ([C, D] if is_done else [A, B, C, D])


def test_where_nobody_can_be_asked_it_forgets_nothing(
    call: Callable[..., Any], store_url: str, texts: list[SeenText], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    called = call("content", "purge", "--store", store_url, "--url", A)
    assert (called.code, called.out) == (2, "")
    assert "1 text of" in called.err
    assert "--yes" in called.err
    assert left(store_url, texts) == [A, B, C, D]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Select texts in exactly one way"),
        (("--all", "--crawl", "first"), "Select texts in exactly one way"),
        (("--url", A, "--older-than", "1"), "Select texts in exactly one way"),
        (("--older-than", "soon"), "--older-than is 'soon'"),
        (("--older-than=-1",), "--older-than is '-1'"),
        (("--older-than", "99999999999"), "too long ago"),
        (("--crawl", "a b"), "The crawl id is 'a b'"),
    ],
)
def test_what_is_not_meant_is_not_forgotten(
    call: Callable[..., Any], store_url: str, texts: list[SeenText], words: tuple[str, ...], sentence: str
) -> None:
    called = call("content", "purge", "--store", store_url, "--yes", *words)
    assert (called.code, called.out) == (2, "")
    assert sentence in called.err
    assert len(called.err.splitlines()) == 1
    assert left(store_url, texts) == [A, B, C, D]


def test_a_text_whose_first_capture_is_forgotten_is_new_again(
    call: Callable[..., Any], store_url: str
) -> None:
    with Deduplicator(store_url) as dedupe:
        assert [item.kind for item in dedupe.check_many([Document(A, LONG), Document(B, LONG)])] == [
            "unique",
            "exact",
        ]
    assert (
        call("content", "purge", "--store", store_url, "--url", A, "--yes").out == "1 text was forgotten.\n"
    )
    with Deduplicator(store_url) as dedupe:
        assert [
            item.kind for item in dedupe.check_many([Document(B, LONG), Document(C, LONG + "More.")])
        ] == [
            "unique",
            "near",
        ]
    assert "is new again" in call("content", "purge", "--help").out.replace("\n", " ")


def test_a_near_copy_is_a_text_of_its_own_url(call: Callable[..., Any], store_url: str) -> None:
    with Deduplicator(store_url) as dedupe:
        dedupe.check_many([Document(A, LONG), Document(B, LONG + "More."), Document(C, LONG + "More.")])
    words = ("content", "purge", "--store", store_url, "--json", "--dry-run", "--url")
    assert [call(*words, url).json["texts"] for url in (A, B, C)] == [1, 1, 0]
    done = call("content", "purge", "--store", store_url, "--json", "--yes", "--url", B, C).json
    assert (done["texts"], done["forgotten"]) == (1, 1)


def test_texts_are_counted_beyond_one_batch(store_url: str) -> None:
    store = open_store(store_url)
    try:
        store.content.claim(
            [SeenText(number.to_bytes(16, "big"), A, f"{number % 2}", number) for number in range(2_500)],
            pending=False,
        )
        assert store.content.count() == 2_500
        assert store.content.count(before_ms=1_500) == 1_500
        assert store.content.count(before_ms=1_500, crawl="1") == 750
        assert store.content.purge(before_ms=1_500, crawl="1") == 750
        assert store.content.count() == 1_750
    finally:
        store.close()
