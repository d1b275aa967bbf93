from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.content import Deduplicator, Document, Verdict
from scrapy_dedupe.content.pages import Identity, beginning_at, identity_of, without_numbers
from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.content_values import KEY_BYTES, NOTHING, SameKeys

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=6)) for seed in range(3_000)]


def prose(seed: object, words: int = 120) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=words))


def page(url: str, title: str, text: str) -> Document:
    return Document(f"http://a.example/{url}", f"<title>{title}</title><p>{prose('menu', 1_400)}<p>{text}")


OLD = prose("own", 80)
NEW = f"{OLD[:-7]} {prose('added', 1)}"
OTHER = f"{prose('other', 20)} {OLD[:420]}"


@pytest.fixture
def site(tmp_path: Path) -> Deduplicator:
    """A host whose template is known, with the page /guide/red-shoes and a list in several parts."""
    deduplicator = Deduplicator(f"sqlite:///{tmp_path / 'texts.sqlite'}")
    deduplicator.check_many(page(f"pages/{n}", f"Page {prose(n, 3)}", prose(n)) for n in range(40))
    deduplicator.check_many(
        [
            page("guide/red-shoes", "Red shoes 1.0 - Shop", f"red shoes {OLD}"),
            page("list?page=1", "All shoes", prose("list")),
            page("cal/2026/01/01", "Calendar", f"Events on 1 January {prose('cal')}"),
            page("docs/14/Foo.html", "Foo 14", f"Foo {prose('Foo')}"),
        ]
    )
    return deduplicator


@pytest.mark.parametrize(
    ("url", "title", "text", "is_near"),
    [
        ("guide/red-shoes", "Another title", f"red shoes {prose('new', 5)}", True),  # the same URL
        (
            "v2.0/guide/red-shoes",
            "Red shoes 2.0 - Shop",
            f"red shoes {prose('new', 5)}",
            True,
        ),  # tail and title
        ("v2.0/guide/red-shoes", "Another title", f"red shoes {NEW}", True),  # tail and rest
        ("v2.0/guide/red-shoes", "Another title", f"red shoes {prose('new', 80)}", False),
        ("sale/red-shoes", "Red shoes - Shop", f"red shoes {NEW}", True),  # title, words and rest
        ("item/83742", "Red shoes - Shop", f"red shoes {NEW}", True),  # title and rest; the id says nothing
        ("item/83742", "Red shoes - Shop", f"red shoes {prose('new', 80)}", False),
        ("sale/red-boots", "Red shoes - Shop", f"red shoes boots {NEW}", False),  # other words
        ("item/83742", "Blue shoes - Shop", f"red shoes {NEW}", False),  # another title
        ("sale/red-shoes", "", f"red shoes {NEW}", True),  # no title: words and rest
        ("sale/red-shoes", "", f"red shoes {OTHER}", False),
        ("list?page=2", "All shoes", f"{prose('list')} more", False),  # small numbers are words
        ("list?page=1&utm_source=menu", "All shoes", f"{prose('list')} more", True),
        ("list", "All shoes", f"{prose('list')} more", True),
        ("cal/2026/02/01", "Calendar", f"Events on 1 February {prose('cal')}", False),  # a date is one word
        ("cal/2027/01/01", "Calendar", f"Events on 1 January {prose('cal')}", False),
        ("docs/15/Foo.html", "Foo 15", f"Foo {prose('Foo')} more", True),  # not a date: a version
    ],
)
def test_title_url_and_rest_decide_whether_a_similar_text_is_near(
    site: Deduplicator, url: str, title: str, text: str, is_near: bool
) -> None:
    with site:
        assert (site.check(page(url, title, text)).kind == "near") == is_near


def test_a_near_verdict_says_what_was_compared(site: Deduplicator) -> None:
    with site:
        verdict = site.check(page("sale/red-shoes", "Red shoes 3 - Shop", f"red shoes {NEW}"))
    assert (verdict.kind, verdict.same_title, verdict.same_path, verdict.same_words) == (
        "near",
        True,
        False,
        True,
    )
    assert verdict.rest_similarity is not None
    assert verdict.similarity is not None
    assert 0.8 < verdict.rest_similarity < verdict.similarity
    assert Verdict("unique").as_dict()["rest_similarity"] is None


def test_if_a_host_has_one_title_its_headings_decide(tmp_path: Path) -> None:
    def product(number: int, heading: str, text: str) -> Document:
        return page(f"p/{number}", "Shop", f"<h1>{heading}</h1>{text}")

    with Deduplicator(f"sqlite:///{tmp_path / 'texts.sqlite'}") as deduplicator:
        deduplicator.check_many(product(n, f"Shoe {prose(n, 2)}", prose(n)) for n in range(40))
        first, other, again = (
            deduplicator.check(product(number, heading, f"{OLD} {prose(number, 1)}"))
            for number, heading in ((4011, "Red shoe"), (4012, "Blue shoe"), (90_011, "Red shoe"))
        )
    assert (first.kind, other.kind, again.kind) == ("unique", "unique", "near")
    assert again.original_url == "http://a.example/p/4011"


@pytest.mark.parametrize("articles", [0, 150])
def test_if_pages_share_title_and_heading_their_first_words_decide(tmp_path: Path, articles: int) -> None:
    def quote(number: int, symbol: str, price: float, about: int) -> Document:
        url = f"http://a.example/quote?id={random.Random(number).getrandbits(64):x}"
        text = f"<h1>Price</h1>{prose('menu')}<p>{symbol} {price} EUR {prose(about)}"
        return Document(url, f"<title>Quotes</title>{text}")

    def article(number: int) -> Document:
        text = f"<title>{prose(number, 4)}</title>{prose('menu')}<p>{prose(-number)}"
        return Document(f"http://a.example/{number}", text)

    pages = [article(number) for number in range(articles)]
    pages += [quote(number, prose(number, 1).upper(), number, number % 10) for number in range(40)]
    random.Random(1).shuffle(pages)
    with Deduplicator(f"sqlite:///{tmp_path / 'texts.sqlite'}") as deduplicator:
        first = deduplicator.check_many(pages)
        other = deduplicator.check(quote(40, "ACME", 12.5, 3))
        again = deduplicator.check(quote(41, "ACME", 12.75, 3))
    # The first pages are judged before it is known that their titles are the same.
    assert sum(verdict.kind == "near" for verdict in first) <= 4
    assert (other.kind, again.kind) == ("unique", "near")
    assert again.original_url == quote(40, "", 0, 0).url
    assert (again.same_title, again.same_beginning, again.same_words) == (None, True, None)


def test_a_version_is_preferred_to_a_more_similar_page(tmp_path: Path) -> None:
    with Deduplicator(f"sqlite:///{tmp_path / 'texts.sqlite'}", template_guard=False) as deduplicator:
        deduplicator.check_many(
            [
                page("1.0/x/register-4aa", "register", prose("version", 250)),
                page("1.0/x/register-9ee", "register", prose("neighbour", 250)),
            ]
        )
        verdict = deduplicator.check(
            page("2.0/x/register-4aa", "register", f"{prose('version', 250)} {prose('neighbour', 250)[:200]}")
        )
    assert (verdict.original_url, verdict.same_path) == ("http://a.example/1.0/x/register-4aa", True)


def test_without_identity_only_texts_decide(tmp_path: Path) -> None:
    with Deduplicator(f"sqlite:///{tmp_path / 'texts.sqlite'}", near_identity=False) as deduplicator:
        deduplicator.check(page("guide/red-shoes", "Red shoes", OLD))
        verdict = deduplicator.check(page("guide/blue-boots", "Blue boots", OLD))
    assert (verdict.kind, verdict.same_title, verdict.same_path) == ("near", None, None)


@pytest.mark.parametrize("was_on", [False, True])
def test_a_store_is_used_with_or_without_identity_but_not_both(tmp_path: Path, was_on: bool) -> None:
    url = f"sqlite:///{tmp_path / 'texts.sqlite'}"
    Deduplicator(url, near_identity=was_on).close()
    with pytest.raises(StoreRefused, match=r"near_identity = o.*purge --all"):
        Deduplicator(url, near_identity=not was_on)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        # Title, beginning; whether titles and beginnings are equal
        (("Shop", ""), ("Shop", ""), (True, None)),
        (("", "ACME"), ("", "ACME"), (None, True)),
        (("", "ACME"), ("", "EMCA"), (None, False)),
        (("", "ACME"), ("ACME", ""), (None, False)),
        (("", "ACME"), ("", ""), (None, None)),
    ],
)
def test_a_beginning_is_never_equal_to_a_title(
    one: tuple[str, str], other: tuple[str, str], same: tuple[bool | None, bool | None]
) -> None:
    keys = [
        bytes(identity_of("http://a.example/", title, "", beginning, has_rest=True))
        for title, beginning in (one, other)
    ]
    found = SameKeys.of(*keys)
    assert (found.title, found.beginning) == same


@given(st.text(), st.integers(0, 100))
def test_any_text_has_a_beginning(text: str, place: int) -> None:
    found = beginning_at(text, place)
    assert len(found.split()) <= 4
    assert len(found) <= 80
    assert not any(word.isdecimal() for word in found.split())


SAME, DIFFERENT, SILENT = True, False, None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        # URL, title; whether tail, title and words are equal
        (("docs/3.11/os.html", "os 3.11"), ("docs/3.12/os.html", "os 3.12"), (SAME, SAME, SAME)),
        (("a/b/c/index.html", "x"), ("x/b/c/index.html", "y"), (SAME, DIFFERENT, SILENT)),
        (("a/cat", "x"), ("b/Cat.html", "x"), (DIFFERENT, SAME, SAME)),
        (("a/cat", "x"), ("a/dog", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("a/0815", ""), ("a/cat", ""), (DIFFERENT, SILENT, SILENT)),
        (("a?id=cat", "x"), ("a?id=dog", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("a?page=7", "x"), ("a?page=8", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("2026/02/01", "x"), ("2026/01/02", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("2026/02/01", "x"), ("2027/02/01.html", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("5/2/01", "x"), ("4/2/01", "x"), (DIFFERENT, SAME, SILENT)),
        (("a?on=2026-02-01", "x"), ("a?on=2026-01-02", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("a?id=9999", "x"), ("a?id=10000", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("a?id=123456789", "x"), ("a?id=123456788", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("a?t=1700000000", "x"), ("a?t=1700000001", "x"), (DIFFERENT, SAME, SILENT)),
        (("a?title=cat&oldid=12345", "x"), ("a?title=cat&oldid=12346", "x"), (DIFFERENT, SAME, SAME)),
        (("cat?from=dog", "x"), ("cat", "x"), (DIFFERENT, SAME, SAME)),
        (("wiki/cat", "x"), ("w/index.php?title=cat&oldid=12345", "x"), (DIFFERENT, SAME, SAME)),
        (("a/classA_1_1Cat.html", "x"), ("b/classA_1_1Dog.html", "x"), (DIFFERENT, SAME, DIFFERENT)),
        (("%D0%9A%D0%BE%D1%82", "x"), ("b/%D0%BA%D0%BE%D1%82", "x"), (DIFFERENT, SAME, SAME)),
        (("", "2024"), ("", "2025"), (SILENT, SILENT, SILENT)),
    ],
)
def test_parts_of_urls_and_titles(
    one: tuple[str, str], other: tuple[str, str], same: tuple[bool | None, ...]
) -> None:
    text = "A cat, a Dog, scattered, os, c, and Кот."

    def identity(url: str, title: str) -> bytes:
        return bytes(identity_of(f"http://a.example/{url}", without_numbers(title), text, has_rest=True))

    found = SameKeys.of(identity(*one), identity(*other))
    assert (found.tail, found.title, found.words) == same


@given(st.text(), st.text(), st.text(), st.booleans())
def test_any_url_and_title_have_an_identity(url: str, title: str, text: str, has_rest: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    found = identity_of(url, title, text, has_rest=has_rest)
    assert len(bytes(found)) == 5 * KEY_BYTES
    assert found == identity_of(url, title, text, has_rest=has_rest)
    assert (found.title == NOTHING) == (not title)
    assert isinstance(found, Identity)


@given(st.integers(480, 520))
def test_words_of_the_url_are_whole_words_anywhere_in_the_text(place: int) -> None:
    def identity(text: str) -> Identity:
        return identity_of("http://a.example/red", "", f"{'.' * place} {text} {prose(1)}", has_rest=True)

    assert identity("Red").name != NOTHING
    assert identity("reddish").name == NOTHING


@pytest.mark.parametrize("text", ["8", "(8)", "ä8ö", "cat 8", "88 8"])
def test_a_number_of_the_url_is_a_whole_word_of_the_text(text: str) -> None:
    assert identity_of("http://a.example/8", "", f"{prose(1)} {text}", has_rest=True).name != NOTHING
    for other in ("88", "8a", "٨", "a8"):
        assert identity_of("http://a.example/8", "", f"{prose(1)} {other}", has_rest=True).name == NOTHING


@pytest.mark.parametrize("text", ["win32", "(Win32)", "a WIN32"])
def test_a_word_with_digits_is_found_in_any_case(text: str) -> None:
    assert identity_of("http://a.example/win32", "", f"{prose(1)} {text}", has_rest=True).name != NOTHING
    for other in ("win", "win 32", "win320", "win3"):
        assert identity_of("http://a.example/win32", "", f"{prose(1)} {other}", has_rest=True).name == NOTHING


@pytest.mark.parametrize(
    "url", ["?" + "&".join(f"p={n:x}q" for n in range(400_000)), "-".join(WORDS * 100)], ids=["query", "path"]
)
def test_words_of_a_hostile_url_are_not_looked_for(url: str) -> None:
    begun = time.process_time()
    identity = identity_of(f"http://a.example/{url}", "Shoes", prose("long", 100_000), has_rest=True)
    assert identity.name == identity.words == NOTHING
    assert NOTHING not in (identity.url, identity.tail)
    assert time.process_time() - begun < 2


def test_a_store_of_an_earlier_version_goes_on_with_texts_only(
    tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {"near_shingle_size": "7", "near_num_perm": "128", "near_bands": "16 x 8"}
    for url in (f"sqlite:///{tmp_path / 'texts.sqlite'}", redis_url):
        with closing(open_store(url)) as store:
            store.content.check_parameters(parameters | {"near_signature": "affine32/1"})
        for _ in range(2):
            caplog.clear()
            with Deduplicator(url) as deduplicator:
                deduplicator.check(page("red-shoes", "Red shoes", f"red shoes {OLD}"))
                verdict = deduplicator.check(page("blue-shoes", "Blue shoes", f"blue shoes {NEW}"))
            assert verdict.kind == "near"
            assert verdict.same_title is None
            assert caplog.text.count("start again with an empty store") == 1
            with closing(open_store(url)) as store:
                store.content.purge(before_ms=1 << 45)


def test_a_store_with_titles_of_an_earlier_version_is_refused(tmp_path: Path, redis_url: str) -> None:
    for url in (f"sqlite:///{tmp_path / 'texts.sqlite'}", redis_url):
        with closing(open_store(url)) as store:
            store.content.check_parameters({"near_identity": "on", "near_signature": "affine32/2"})
        with pytest.raises(
            StoreRefused, match=r"near_signature = affine32/2.*scrapy dedupe content purge --all"
        ):
            Deduplicator(url)


def test_a_database_of_an_earlier_version_gets_the_new_table(tmp_path: Path) -> None:
    path = tmp_path / "texts.sqlite"
    url = f"sqlite:///{path}"
    with Deduplicator(url) as deduplicator:
        deduplicator.check(page("red-shoes", "Red shoes", OLD))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("DROP TABLE content_sources; PRAGMA user_version = 4")
    with Deduplicator(url) as deduplicator:
        assert deduplicator.check(page("again", "Red shoes", OLD)).kind == "exact"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM content_sources").fetchone() == (0,)
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
