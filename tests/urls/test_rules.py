import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls.rules import KINDS, UrlRule, UrlRules

HOST = "a.org"


def identity(url: str, *rules: UrlRule) -> str:
    return UrlRules(rules).identity(url)[0]


@pytest.mark.parametrize(
    ("rule", "urls"),
    [
        (UrlRule("host-alias", "www.a.org", "a.org"), ["http://a.org/b", "http://www.a.org/b", "http://WWW.a.org:80/b"]),
        (UrlRule("ignore-scheme", HOST), ["http://a.org/b", "https://a.org/b", "http://a.org:80/b"]),
        (UrlRule("lowercase-path", HOST), ["http://a.org/b/c?D=E", "http://a.org/B/C?D=E"]),
        (
            UrlRule("ignore-path-parameter", HOST, "jsessionid"),
            ["http://a.org/b;v=1?c", "http://a.org/b;jsessionid=1;v=1?c", "http://a.org/b;v=1;jsessionid=2?c"],
        ),
        (UrlRule("collapse-slashes", HOST), ["http://a.org/b/c", "http://a.org//b///c"]),
        (UrlRule("remove-segment", HOST, "print"), ["http://a.org/b/c", "http://a.org/print/b/c", "http://a.org/b/print/c"]),
        (UrlRule("default-document", HOST, "index.html"), ["http://a.org/b/", "http://a.org/b/index.html"]),
        (UrlRule("trailing-slash", HOST), ["http://a.org/b", "http://a.org/b/"]),
        (UrlRule("replace-suffix", HOST, ".html"), ["http://a.org/b", "http://a.org/b.html"]),
        (UrlRule("replace-suffix", HOST, ".htm", to=".html"), ["http://a.org/b.html", "http://a.org/b.htm"]),
        (
            UrlRule("ignore-parameter", HOST, "session id"),
            ["http://a.org/b?c=1", "http://a.org/b?c=1&session%20id=2", "http://a.org/b?session+id=3&c=1"],
        ),
        (
            UrlRule("ignore-parameter", HOST, "view", values=("print", "a b")),
            ["http://a.org/b", "http://a.org/b?view=print", "http://a.org/b?view=a+b"],
        ),
        (UrlRule("ignore-empty-parameters", HOST), ["http://a.org/b?c=1", "http://a.org/b?c=1&d=", "http://a.org/b?d&&c=1"]),
        (UrlRule("ignore-repeated-parameters", HOST), ["http://a.org/b?c=1&c=2", "http://a.org/b?c=1&c=2&c=1"]),
        (UrlRule("keep-first-value", HOST, "c"), ["http://a.org/b?c=1&d=5", "http://a.org/b?c=1&d=5&c=2"]),
        (UrlRule("keep-last-value", HOST, "c"), ["http://a.org/b?c=2&d=5", "http://a.org/b?c=1&d=5&c=2"]),
        (UrlRule("sort-parameters", HOST), ["http://a.org/b?c=1&d=2", "http://a.org/b?d=2&c=1"]),
    ],
    ids=lambda value: value.kind if isinstance(value, UrlRule) else "",
)  # fmt: skip
def test_urls_with_one_identity(rule: UrlRule, urls: list[str]) -> None:
    assert len({identity(url, rule) for url in urls}) == 1
    # Another host is not affected, and neither is the rule when it is turned off.
    assert len({identity(url.replace("a.org", "b.org"), rule) for url in urls}) == len(urls)
    off = UrlRule(rule.kind, rule.host, rule.name, values=rule.values, to=rule.to, enabled=False)
    assert [identity(url, off) for url in urls] == urls


@pytest.mark.parametrize(
    ("rule", "url"),
    [
        (UrlRule("ignore-parameter", HOST, "view", values=("print",)), "http://a.org/b?view=2"),
        (UrlRule("ignore-parameter", HOST, "view", path="/shop/"), "http://a.org/b?view=2"),
        (UrlRule("ignore-parameter", HOST, "b"), "http://a.org/b#?b=1"),
        (UrlRule("remove-segment", HOST, "print"), "http://a.org/printer/b"),
        (UrlRule("replace-suffix", HOST, ".html"), "http://a.org/.html"),
        (UrlRule("trailing-slash", HOST), "http://a.org/"),
        (UrlRule("host-alias", HOST, "b.org"), "http://sub.a.org/"),
    ],
)
def test_url_that_a_rule_leaves_alone(rule: UrlRule, url: str) -> None:
    assert identity(url, rule) == url


@pytest.mark.parametrize("host", ["a.org", "*.a.org", "*.org", "*"])
def test_host_patterns(host: str) -> None:
    rule = UrlRule("trailing-slash", host)
    assert identity("http://user@a.org:80/b/", rule) == "http://user@a.org:80/b"
    assert (identity("http://x.a.org/b/", rule) == "http://x.a.org/b") == (host != "a.org")


def test_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match=r"c\.org an alias of a\.org"):
        UrlRules([UrlRule("host-alias", "c.org", "b.org"), UrlRule("host-alias", "b.org", "a.org")])
    with pytest.raises(SettingError, match=r"Replace \.htm by \.html"):
        UrlRules(
            [
                UrlRule("replace-suffix", HOST, ".htm", to=".xhtml"),
                UrlRule("replace-suffix", HOST, ".xhtml", to=".html"),
            ]
        )


def test_default_port_depends_on_the_scheme() -> None:
    compiled = UrlRules([UrlRule("trailing-slash", HOST)])
    assert compiled.identity("http://a.org:80/b/")[0] == "http://a.org:80/b"
    assert compiled.identity("https://a.org:80/b/")[0] == "https://a.org:80/b/"
    assert compiled.group("http://a.org:80/b") == compiled.group("http://a.org/b")
    assert compiled.group("https://a.org:80/b") is None


def test_hosts_with_the_same_rules_have_one_group() -> None:
    compiled = UrlRules([UrlRule("trailing-slash", "*"), UrlRule("ignore-parameter", "a.org", "b")])
    groups = {compiled.group(f"http://{host}/") for host in ("b.org", "c.org", "a.org", "x.a.org")}
    assert len(groups) == 2
    assert set(compiled.known_groups.values()) == groups


def test_all_slashes_at_the_end_are_one_difference() -> None:
    assert identity(f"http://a.org/b{'/' * 100}", UrlRule("trailing-slash", HOST)) == "http://a.org/b"
    assert identity(f"http://a.org{'/' * 100}", UrlRule("trailing-slash", HOST)) == "http://a.org/"


ALL_KINDS = [
    UrlRule(kind, "*", "a" if KINDS[kind] else "", path=path)
    for kind in KINDS
    if kind != "host-alias"
    for path in ("/", "/a/")
]


@pytest.mark.parametrize(
    "url",
    [
        "http://" + "a." * 1_000_000 + "org/b/",
        "http://" + "u" * 2_000_000 + "@a.org/b/",
        "http://a.org/" + "a/" * 1_000_000,
        "http://a.org/?" + "a=1&" * 500_000,
        "http://a.org/?" + "&".join(f"p{number}=%61" for number in range(200_000)),
        "http://a.org/" + ";a=1" * 500_000,
        "http://a.org/\ud800?\ud800=" + "\udfff" * 1_000_000,
    ],
    ids=["host", "user", "segments", "repeated", "parameters", "path parameters", "surrogates"],
)
def test_hostile_url_has_no_rules(url: str) -> None:
    compiled = UrlRules(ALL_KINDS)
    assert compiled.identity(url) == (url, ())
    # As much of it as servers accept is quick.
    begun = time.process_time()
    for length in (16_384, 400):
        shorter = compiled.identity(url[:length])[0]
        compiled.group(shorter)
    assert time.process_time() - begun < 1


TEXTS = st.text("aAb;=/.&%é\ud800#?+ ", max_size=8)
NAMES = st.sampled_from(["a", "A", "b", "b.a", ".a", "é"])
RULES = st.builds(
    UrlRule,
    st.sampled_from([kind for kind in KINDS if kind not in ("host-alias", "replace-suffix")]),
    st.sampled_from(["a.org", "*"]),
    NAMES,
    st.sampled_from(["/", "/a/"]),
).map(lambda rule: rule if KINDS[rule.kind] else UrlRule(rule.kind, rule.host, path=rule.path))


@given(st.builds("http://a.org/{}?{}#{}".format, TEXTS, TEXTS, TEXTS) | TEXTS, st.lists(RULES, max_size=8))
def test_identity_of_an_identity_is_itself(url: str, rules: list[UrlRule]) -> None:
    compiled = UrlRules(rules)
    found, applied = compiled.identity(url)
    assert compiled.identity(found) == (found, ())
    assert (found == url) == (not applied)
