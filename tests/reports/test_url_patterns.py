"""URL patterns, and which of them are reported as traps."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.reports.url_patterns import UrlPatterns, patterns_of

SITE = "https://example.com"


def counted(urls: list[str], kind: str = "exact", original: str | None = f"{SITE}/original") -> UrlPatterns:
    patterns = UrlPatterns()
    for url in urls:
        patterns.count(url, kind, original)
    return patterns


def names(patterns: UrlPatterns) -> list[str]:
    return [trap.pattern for trap in patterns.traps(10)]


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        (f"{SITE}/calendar/2026/11?month=12", "example.com/calendar/{n}/{n}?month={n}"),
        (f"{SITE}/", "example.com/"),
        (SITE, "example.com/"),
        ("http://me:secret@Example.com:8080/A/#top", "example.com:8080/A/"),
        (f"{SITE}/news/2026-11-28-title", "example.com/news/{n}-{n}-{n}-title"),
        (f"{SITE}/o/3f2a90bc77/x", "example.com/o/{id}/x"),
        (f"{SITE}/o/123e4567-e89b-12d3-a456-426614174000", "example.com/o/{id}"),
        (f"{SITE}/s/Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZg==", "example.com/s/{token}"),
        (f"{SITE}/decade/facade", "example.com/decade/facade"),
        (f"{SITE}/l?b=x&a=1", "example.com/l?a={n}&b={value}"),
        (f"{SITE}/l?q=&q=&q=", "example.com/l?q={value}"),
        (f"{SITE}/l?q=1&q=2;q=3", "example.com/l?q={n}"),
        (f"{SITE}/l;jsessionid=12AB?a=1", "example.com/l?;jsessionid={value}&a={n}"),
        (f"{SITE}/l?filter[3]=x&filter[4]=y", "example.com/l?filter[{n}]={value}"),
        (f"{SITE}/l?&&", "example.com/l"),
        (f"{SITE}/a/a/a/b", "example.com/a/{repeated}/b"),
        (f"{SITE}/a/b/a/b/a/b", "example.com/a/b/{repeated}"),
        (f"{SITE}/2026/11/11", "example.com/{n}/{n}/{n}"),
        (f"{SITE}/{'x/' * 50}", "example.com/x/{repeated}/"),
        ("no url at all", "(none)/"),
        ("data:text/html,<a href=http://example.com/a>", "(none)/"),
        ("http://a;b/c", "a;b/c"),
    ],
)
def test_the_pattern_of_a_url(url: str, pattern: str) -> None:
    assert patterns_of(url).whole == pattern


@given(st.text(max_size=3_000), st.sampled_from(["", "http://", "https://example.com/", "http://a/?"]))
def test_any_text_has_a_short_harmless_pattern(text: str, start: str) -> None:
    whole, path, folder, wide = patterns_of(start + text)
    for pattern in (whole, path or "", folder or "", *wide):
        assert len(pattern) < 3_000
        pattern.encode()
        assert not any(ord(character) < 32 for character in pattern)


def test_an_endless_calendar_is_a_trap() -> None:
    urls = [
        f"{SITE}/calendar/{year}/{month}?view=month" for year in range(2000, 2010) for month in range(1, 13)
    ]
    (trap,) = counted(urls, "near").traps(10)
    assert trap.pattern == "example.com/calendar/{n}/{n}?view={value}"
    assert (trap.pages, trap.exact, trap.near, trap.share) == (120, 0, 120, 1.0)
    assert trap.examples == urls[:3]


@pytest.mark.parametrize("mark", ["?sid=", ";jsessionid="])
def test_a_session_in_the_url_is_a_trap_across_pages(mark: str) -> None:
    pages = [
        "home",
        "about",
        "contact",
        "shop",
        "cart",
        "help",
        "news",
        "team",
        "press",
        "jobs",
        "legal",
        "map",
    ]
    patterns = counted([f"{SITE}/{page}" for page in pages], "unique", None)
    for session in ("a8F3kk20", "b7Gh1150"):
        for page in pages:
            patterns.count(f"{SITE}/{page}{mark}{session}", "exact", f"{SITE}/original")
    name = mark.strip("?")
    assert names(patterns) == [f"example.com/…?{name}{{value}}"]


@pytest.mark.parametrize("mark", ["?sid=", ";jsessionid="])
def test_the_page_with_the_session_is_the_copy_even_if_it_was_read_first(mark: str) -> None:
    patterns = UrlPatterns()
    for number in range(40):
        patterns.count(f"{SITE}/page/{number}{mark}a{number}b", "unique", None)
        patterns.count(f"{SITE}/page/{number}", "exact", f"{SITE}/page/{number}{mark}a{number}b")
    (trap,) = patterns.traps(10)
    assert trap.pattern == f"example.com/page/{{n}}?{mark.strip('?')}{{value}}"
    assert (trap.pages, trap.exact, trap.share) == (40, 40, 1.0)
    assert trap.examples[0] == f"{SITE}/page/0{mark}a0b"


def test_no_pattern_has_more_copies_than_pages() -> None:
    patterns = UrlPatterns()
    patterns.count(f"{SITE}/list?sid=1", "unique", None)
    for _ in range(30):
        patterns.count(f"{SITE}/list", "exact", f"{SITE}/list?sid=1")
    rows = [row for _, row in patterns]
    assert rows
    assert all(row.fruitless <= row.calls for row in rows)


def test_combinations_of_filters_are_one_trap() -> None:
    filters = ["color=red", "size=xl", "brand=acme", "sort=asc", "stock=yes", "sale=no"]
    urls = [
        f"{SITE}/shoes?{'&'.join(chosen)}"
        for count in (3, 4, 5, 6)
        for chosen in combinations(filters, count)
    ]
    assert names(counted(urls)) == ["example.com/shoes?…"]


def test_growing_paths_are_one_trap() -> None:
    assert names(counted([f"{SITE}{'/about' * depth}/team" for depth in range(2, 40)])) == [
        "example.com/about/{repeated}/team"
    ]


def test_a_repeated_parameter_occurs_once_in_the_pattern() -> None:
    assert names(counted([f"{SITE}/search?{'q=&' * number}" for number in range(1, 40)])) == [
        "example.com/search?q={value}"
    ]


def test_printer_versions_are_a_trap() -> None:
    patterns = UrlPatterns()
    for number in range(40):
        patterns.count(f"{SITE}/article-{number}", "unique", None)
        patterns.count(f"{SITE}/article-{number}?print=1", "near", f"{SITE}/original")
    assert names(patterns) == ["example.com/article-{n}?print={n}"]


@pytest.mark.parametrize(
    ("kind", "original"), [("unchanged", "http://b/"), ("unique", None), ("near", None), ("exact", None)]
)
def test_pages_that_do_not_copy_other_pages_are_no_trap(kind: str, original: str | None) -> None:
    urls = [f"{SITE}/list?page={number}" for number in range(100)]
    assert names(counted(urls, kind, original)) == []


def test_fewer_than_twenty_pages_are_no_trap() -> None:
    urls = [f"{SITE}/calendar/{number}" for number in range(20)]
    assert names(counted(urls[:19])) == []
    assert names(counted(urls)) == ["example.com/calendar/{n}"]


def test_copies_on_half_of_the_pages_are_no_trap() -> None:
    patterns = counted([f"{SITE}/{number}" for number in range(20)])
    for number in range(20):
        patterns.count(f"{SITE}/{number}", "unique", None)
    assert names(patterns) == []
    patterns.count(f"{SITE}/0", "near", f"{SITE}/original")
    assert names(patterns) == ["example.com/{n}"]


def test_a_later_crawl_with_unchanged_pages_does_not_hide_a_trap() -> None:
    urls = [f"{SITE}/calendar/{number}" for number in range(30)]
    first = counted(urls)
    for _ in range(3):
        first.merge(counted(urls, "unchanged"))
    (trap,) = first.traps(10)
    assert (trap.pages, trap.exact, trap.share) == (30, 30, 1.0)


def test_traps_are_found_among_many_other_pages() -> None:
    patterns = UrlPatterns()
    for number in range(3_000):
        patterns.count(f"{SITE}/{'abcdefghij'[number % 10]}{'x' * (number // 10)}", "unique", None)
        if number % 10 == 0:
            patterns.count(f"{SITE}/calendar/{number}", "exact", f"{SITE}/original")
    assert names(patterns) == ["example.com/calendar/{n}"]
    assert patterns.traps(1)[0].pages == 300


def test_the_trap_with_most_copies_comes_first_after_a_merge() -> None:
    first = counted([f"{SITE}/a/{number}" for number in range(30)])
    second = counted([f"{SITE}/b/{number}" for number in range(25)])
    for number in range(15):
        second.count(f"{SITE}/a/{number}", "near", f"{SITE}/original")
    first.merge(second)
    assert [(trap.pattern, trap.exact, trap.near) for trap in first.traps(10)] == [
        ("example.com/a/{n}", 30, 15),
        ("example.com/b/{n}", 25, 0),
    ]
    assert len(first.traps(1)) == 1


def test_restored_patterns_continue_to_count() -> None:
    first = counted([f"{SITE}/a/{number}" for number in range(15)])
    second = UrlPatterns()
    second.take(first.as_dict())
    for number in range(15, 30):
        second.count(f"{SITE}/a/{number}", "exact", f"{SITE}/original")
    assert second.traps(1)[0].pages == 30
    assert second.as_dict()["rows"][0][1] == 30


def bare(urls: list[str]) -> UrlPatterns:
    patterns = UrlPatterns()
    for url in urls:
        patterns.count(url, "unique", is_bare=True)
    return patterns


def test_pages_with_hardly_any_text_are_counted_apart_from_copies() -> None:
    urls = [f"{SITE}/calendar/{number}" for number in range(40)]
    patterns = bare(urls[:30])
    patterns.count(urls[30], "exact", f"{SITE}/original")
    patterns.count(urls[31], "near", f"{SITE}/original", is_bare=True)
    for url in urls[32:]:
        patterns.count(url, "unique")
    (trap,) = patterns.traps(10)
    assert trap.pattern == "example.com/calendar/{n}"
    assert (trap.pages, trap.exact, trap.near, trap.template, trap.share) == (40, 1, 1, 30, 0.8)
    assert trap.examples == urls[:3]


def test_copies_and_pages_with_hardly_any_text_make_a_trap_together() -> None:
    patterns = bare([f"{SITE}/{number}" for number in range(10)])
    for number in range(10):
        patterns.count(f"{SITE}/{number}", "near", f"{SITE}/original")
        patterns.count(f"{SITE}/{number}", "unique")
    assert names(patterns) == ["example.com/{n}"]
    assert names(bare([f"{SITE}/{number}" for number in range(19)])) == []


@pytest.mark.parametrize("kind", ["unchanged", "near", "exact"])
def test_a_known_page_is_not_counted_as_a_page_with_hardly_any_text(kind: str) -> None:
    patterns = UrlPatterns()
    for number in range(30):
        patterns.count(f"{SITE}/{number}", kind, is_bare=True)
    assert [row.bare for _, row in patterns] == [0, 0]


NAMES = [f"{a}{b}{c}" for a in "abc" for b in "defg" for c in "hij"]


def test_pages_with_any_name_are_one_trap_for_the_folder() -> None:
    patterns = counted([f"{SITE}/old/{name}" for name in NAMES])
    patterns.merge(counted([f"{SITE}/lost/{name}/" for name in NAMES[:25]]))
    assert names(patterns) == ["example.com/old/{name}", "example.com/lost/{name}/"]


@pytest.mark.parametrize(("bare_pages", "is_told"), [(26, False), (27, True)])
def test_a_folder_is_a_trap_if_three_quarters_of_its_pages_are_short(bare_pages: int, is_told: bool) -> None:
    patterns = bare([f"{SITE}/manual/{name}" for name in NAMES[:bare_pages]])
    for name in NAMES[bare_pages:]:
        patterns.count(f"{SITE}/manual/{name}", "unique")
    assert (names(patterns) == ["example.com/manual/{name}"]) == is_told


def test_folders_with_short_pages_come_last() -> None:
    patterns = bare([f"{SITE}/manual/{name}" for name in NAMES])
    for number in range(20):
        patterns.count(f"{SITE}/calendar/{number}", "unique", is_bare=True)
    assert names(patterns) == ["example.com/calendar/{n}", "example.com/manual/{name}"]


def test_a_page_whose_url_looks_like_a_pattern_counts_once() -> None:
    patterns = counted([f"{SITE}/{{name}}"])
    assert [(name, row.calls, row.exact) for name, row in patterns] == [("example.com/{name}", 1, 1)]


def test_paths_that_grow_in_any_order_are_one_trap() -> None:
    parts = ("about", "team", "contact")
    urls = [f"{SITE}/{'/'.join(path)}/" for depth in (1, 2, 3, 4) for path in product(parts, repeat=depth)]
    assert names(counted(urls)) == ["example.com/…/{repeated}/…"]


def test_a_page_with_a_session_is_counted_once_even_if_it_has_hardly_any_text() -> None:
    patterns = UrlPatterns()
    for number in range(30):
        patterns.count(f"{SITE}/{number}?sid=a{number}", "unique", is_bare=True)
        patterns.count(f"{SITE}/{number}", "exact", f"{SITE}/{number}?sid=a{number}")
    (trap,) = patterns.traps(10)
    assert trap.pattern == "example.com/{n}?sid={value}"
    assert (trap.pages, trap.exact, trap.template, trap.share) == (30, 30, 0, 1.0)


def test_a_row_with_more_copies_than_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="more copies than pages"):
        UrlPatterns().take({"floor": 0, "rows": [["example.com/a/{n}", 30, 0, 20, 4, 1, 6]]})


def test_a_trap_is_found_among_two_thousand_folders() -> None:
    drawn = random.Random(1)
    patterns = UrlPatterns()
    for number in range(20_000):
        if number % 150 == 0:
            patterns.count(f"{SITE}/calendar/{number}", "unique", is_bare=True)
        else:
            folder = f"http://h{drawn.randrange(200)}.example/{'abcdefghij'[drawn.randrange(10)]}"
            patterns.count(f"{folder}/{drawn.getrandbits(40):x}z", "unique")
    assert names(patterns) == ["example.com/calendar/{n}"]
