"""Rules learnt from generated pages. A page is written as its URL and its text."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import sqrt

import pytest

from scrapy_dedupe.urls.differences import candidates, differences
from scrapy_dedupe.urls.learning import learn
from scrapy_dedupe.urls.rule_evidence import PageFact, lower_bound
from scrapy_dedupe.urls.rules import UrlRule, UrlRules

PAGES = 200


def facts(pages: Iterable[tuple[str, str]], near: Callable[[str], str] = str) -> Iterator[PageFact]:
    for url, text in pages:
        yield PageFact(url, text.encode(), near(text).encode(), 1000)


def learnt(*urls: str, pages: int = PAGES, **options: float) -> list[str]:
    """The rules learnt from a site whose page number N has the text N at each of *urls*, in which %s is N."""
    named = ((url.replace("%s", f"p{number}"), str(number)) for number in range(pages) for url in urls)
    return [str(rule) for rule in learn(facts(named), **options)]  # type: ignore[arg-type]


def test_each_kind_is_learnt() -> None:
    for urls, rules in {
        ("http://a.org/%s", "http://a.org/%s?sid=%s"): ["ignore-parameter sid on a.org"],
        ("http://a.org/%s?b=1&c=2", "http://a.org/%s?c=2&b=1"): ["sort-parameters on a.org"],
        ("http://a.org/%s?b=1", "http://a.org/%s?b=1&b=1"): ["ignore-repeated-parameters on a.org"],
        ("http://a.org/%s?b=1", "http://a.org/%s?b=1&b=2"): ["keep-first-value b on a.org"],
        ("http://a.org/%s?b=2", "http://a.org/%s?b=1&b=2"): ["keep-last-value b on a.org"],
        ("http://a.org/%s?b=1", "http://a.org/%s?b=1&c="): ["ignore-empty-parameters on a.org"],
        ("http://a.org/%s/", "http://a.org/%s/index.html"): ["default-document index.html on a.org"],
        ("http://a.org/%s/", "http://a.org/%s"): ["trailing-slash on a.org"],
        ("http://a.org/b/%s", "http://a.org/b//%s"): ["collapse-slashes on a.org"],
        ("http://a.org/%s", "http://a.org/%s;jsessionid=%s"): ["ignore-path-parameter jsessionid on a.org"],
        ("http://a.org/b/%s", "http://a.org/print/b/%s"): ["remove-segment print on a.org"],
        ("http://a.org/%s", "http://a.org/%s/amp"): ["remove-segment amp on a.org"],
        ("http://a.org/%s", "http://a.org/%s.html"): ["replace-suffix .html by nothing on a.org"],
        ("http://a.org/%s.htm", "http://a.org/%s.html"): ["replace-suffix .html by .htm on a.org"],
        ("http://a.org/%s", "http://www.a.org/%s"): ["host-alias a.org on www.a.org"],
        ("http://a.org/%s", "https://a.org/%s"): ["ignore-scheme on a.org"],
        ("http://a.org/%s", "http://a.org/B/../%s"): [],
        ("http://a.org/b/%s", "http://a.org/B/%s"): ["lowercase-path on a.org"],
    }.items():
        assert learnt(*urls) == rules, urls


def test_differences_that_only_occur_together_are_learnt() -> None:
    assert sorted(learnt("http://a.org/%s?sid=1%s&t=2%s", "http://a.org/%s?sid=3%s&t=4%s")) == [
        "ignore-parameter sid on a.org",
        "ignore-parameter t on a.org",
    ]
    assert sorted(learnt("http://a.org/%s", "http://a.org/%s?sid=1%s", "http://a.org/%s?sid=3%s&t=4")) == [
        "ignore-parameter sid on a.org",
        "ignore-parameter t on a.org",
    ]


def test_rules_of_an_alias_are_learnt_for_its_host() -> None:
    rules = learnt("http://a.org/%s", "http://www.a.org/%s", "http://www.a.org/%s?sid=1")
    assert rules == ["host-alias a.org on www.a.org", "ignore-parameter sid on a.org"]


def test_parameter_that_matters_is_not_ignored() -> None:
    pages = [(f"http://a.org/?id={number}", str(number)) for number in range(PAGES)]
    assert learn(facts(pages)) == []


def test_rule_is_limited_to_the_values_without_effect() -> None:
    pages = [
        (f"http://a.org/{number}{query}", f"{number}{text}")
        for number in range(PAGES)
        for query, text in {"": "", "?page=1": "", "?page=2": "second", "?page=3": "third"}.items()
    ]
    assert [str(rule) for rule in learn(facts(pages))] == ["ignore-parameter page (1) on a.org"]


def test_rule_is_learnt_together_with_one_that_is_limited_to_a_path() -> None:
    pages = [
        (f"http://a.org/shop/{number}{query}", str(number))
        for number in range(PAGES)
        for query in ("", f"?sid={number}", f"?utm=x&sid={number + 1}")
    ]
    pages += [
        (f"http://a.org/news/{number}?sid={sid}", f"{number} {sid}")
        for number in range(PAGES)
        for sid in (1, 2)
    ]
    assert sorted(map(str, learn(facts(pages)))) == [
        "ignore-parameter sid on a.org/shop/",
        "ignore-parameter utm on a.org",
    ]


def test_rule_is_limited_to_the_paths_where_it_holds() -> None:
    pages = [
        (f"http://a.org/{part}/{number}{query}", f"{part}{number}{query if part == 'shop' else ''}")
        for number in range(PAGES)
        for part in ("shop", "news", "blog")
        for query in ("", "?lang=en", "?lang=de")
    ]
    assert sorted(str(rule) for rule in learn(facts(pages))) == [
        "ignore-parameter lang on a.org/blog/",
        "ignore-parameter lang on a.org/news/",
    ]


def test_mirror_with_other_pages_is_no_alias() -> None:
    pages = [
        (f"http://{host}/{number}", f"{number}{host if number % 20 == 0 else ''}")
        for number in range(1000)
        for host in ("a.org", "b.org")
    ]
    assert learn(facts(pages)) == []


def test_few_pairs_are_not_enough() -> None:
    assert learnt("http://a.org/%s", "http://a.org/%s?sid=1", pages=100) == []
    assert learnt("http://a.org/%s", "http://a.org/%s?sid=1", pages=10, min_share=0.5) != []
    assert learnt("http://a.org/%s", "http://a.org/%s?sid=1", pages=9, min_share=0.5) == []


def test_pages_that_change_at_every_visit_say_nothing() -> None:
    pages = [
        (f"http://a.org/{number}{query}", str(number)) for number in range(PAGES) for query in ("", "?sid=1")
    ]
    visits = [(f"http://a.org/now{query}", str(visit)) for visit in range(50) for query in ("", "?sid=1")]
    clocks = [(f"http://a.org/clock{visit}?sid={visit}", f"clock {visit}") for visit in range(50)]
    clocks += [(f"http://a.org/clock{visit}?sid=0{visit}", f"clock 0{visit}") for visit in range(50)]
    near = facts([*pages, *visits, *clocks], near=lambda text: text.split(" ")[0])
    (rule,) = learn(near)
    assert str(rule) == "ignore-parameter sid on a.org"
    assert rule.evidence is not None
    assert (rule.evidence.pairs_for, rule.evidence.pairs_against) == (PAGES, 0)
    assert (rule.evidence.downloads, rule.evidence.size_bytes) == (PAGES, 1000 * PAGES)


@pytest.mark.parametrize(
    ("texts", "found"), [(["a"], [False]), (["a", "a"], [True]), (["a", "b"], [])], ids=str
)
def test_canonical_links_only_nominate_rules(texts: list[str], found: list[bool]) -> None:
    nominated: Counter[tuple[UrlRule, ...]] = Counter()
    pages = []
    for number in range(PAGES):
        urls = f"http://a.org/{number}?sid={number}", f"http://a.org/{number}"
        nominated.update(candidates(*urls))
        pages += [(url, f"{number}{text}") for url, text in zip(urls, texts, strict=False)]
    rules = learn(facts(pages), nominated)
    assert [rule.enabled for rule in rules] == found
    assert all(str(rule) == "ignore-parameter sid on a.org" for rule in rules)
    assert learn(facts(pages[:9])) == []


def test_one_text_at_very_many_urls_is_cheap() -> None:
    pages = [(f"http://a.org/{number}", "not found") for number in range(100_000)]
    assert learn(facts(pages)) == []


def test_lower_bound_is_that_of_wilson() -> None:
    # The bound p solves (95/100 - p) / sqrt(p (1 - p) / 100) = z, with z = 1.645 for one-sided 95 %.
    bound = lower_bound(95, 100)
    assert round((0.95 - bound) / sqrt(bound * (1 - bound) / 100), 3) == 1.645


def test_url_without_a_common_rule_has_no_differences() -> None:
    assert differences("http://a.org/b/c", "http://a.org/d/e") is None
    assert differences("http://a.org/", "data:,") is None
    assert UrlRules(differences("http://a.org/b", "http://a.org/b") or ()).rules == ()


def test_urls_with_very_many_parameters_are_compared_in_linear_time() -> None:
    names = [f"p{number}" for number in range(20_000)]
    one, other = (
        f"http://a.org/?{'&'.join(f'{name}={value}' for name in names)}&sid={value}" for value in (1, 2)
    )
    begun = time.process_time()
    assert len(differences(one, other) or ()) == len(names) + 1
    assert list(candidates(one, other)) == []
    assert time.process_time() - begun < 5


def test_rules_of_very_many_hosts_are_learnt_in_linear_time() -> None:
    pages = [
        (f"http://host{host}.org/{number}{query}", f"{host} {number}")
        for host in range(1_500)
        for number in range(10)
        for query in ("", "?sid=1")
    ]
    begun = time.process_time()
    assert len(learn(facts(pages), min_share=0.5)) == 1_500
    # Links with rel=canonical suggest the same rules.
    nominated = Counter(
        {(UrlRule("ignore-parameter", f"host{host}.org", "sid"),): 10 for host in range(1_500)}
    )
    found = learn(facts(pages), nominated, min_share=0.99)
    assert [rule.enabled for rule in found] == [False] * 1_500
    assert time.process_time() - begun < 20
