import re
from pathlib import Path
from textwrap import dedent

import pytest

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.urls.rule_file import read_rules, rules_text
from scrapy_dedupe.urls.rules import KINDS, RuleEvidence, UrlRule, UrlRules

RULES = [
    UrlRule(
        "ignore-parameter",
        "a.org",
        'a "quoted"\\ é\x7f name',
        "/shop/",
        ("print", "amp"),
        enabled=False,
        evidence=RuleEvidence(200, 1, 0.9731, 150, 10_000, (("http://a.org/?b=1", "http://a.org/?b=2"),), 30),
    ),
    UrlRule("replace-suffix", "*.a.org", ".html"),
    UrlRule("host-alias", "www.a.org", "a.org"),
    UrlRule("trailing-slash", "*"),
]


def test_rules_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(rules_text(RULES), encoding="utf-8")
    assert list(read_rules(path).rules) == RULES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\n[[rule", "not valid TOML"),
        ("", "line 1: the file has no version"),
        ("# ours\nversion = 2", "line 2: the file has version 2. This release reads version 1"),
        ("version = 1\nrules = []", "line 2: 'rules' is not allowed here. Begin each rule with"),
        ("version = 1\n[rule]\nkind = 'x'", "line 2: 'rule' is not allowed here"),
        ("version = 1\n[[rule]]\nhost = 'a'", "line 2: a rule needs a kind. The kinds are host-alias"),
        ("version = 1\n[[rule]]\nhost = 'a'\nkind = 'x'", "line 4: 'x' is not a kind of rule"),
        ("version = 1\n[[rule]]\nkind = 'trailing-slash'\nhost = 'A/'", "line 4: host = 'A/' is not a host"),
        ("version = 1\n[[rule]]\nkind = 'trailing-slash'\nhost = 'a*'", "line 4: host = 'a.' is not a host"),
        ("version = 1\n[[rule]]\nkind = 'trailing-slash'", "line 2: host = None is not a host"),
        ("# a\u2028b\x85c\nversion = 2", "line 2: the file has version 2"),
        ("version = 1\n[[rule]]\nhost = 'a'\nkind = 'ignore-parameter'", 'line 4: .* needs parameter = "…"'),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\nto = ''",
            "line 5: 'to' is not a key of",
        ),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\npath = 'b'",
            "line 5: path = 'b' must begin",
        ),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\nenabled = 1",
            "line 5: .* true or false",
        ),
        (
            "version = 1\n[[rule]]\nhost = '*'\nkind = 'host-alias'\nto = 'b'",
            "line 3: an alias needs one host",
        ),
        ("version = 1\n[[rule]]\nhost = 'a'\nkind = 'remove-segment'\nsegment = 'b/c'", "line 5: .* a slash"),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'ignore-parameter'\nparameter = 'b'\nvalues = [1]",
            "line 6: values must be texts",
        ),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\n[rule.evidence]\nfor = 'x'",
            "line 6: for = 'x' must be a whole number",
        ),
        (
            "version = 1\n[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\n[rule.evidence]\nexamples = [1]",
            "line 6: examples must be pairs of URLs",
        ),
        (
            "version = 1\n" + 2 * "[[rule]]\nhost = 'a'\nkind = 'trailing-slash'\n",
            "line 6: the rule trailing-slash on a is there twice",
        ),
        (
            (
                "version = 1\n[[rule]]\nkind = 'host-alias'\nhost = 'c'\nto = 'b'\n"
                "[[rule]]\nkind = 'host-alias'\nhost = 'b'\nto = 'a'\n"
            ),
            "Make c an alias of a",
        ),
    ],
)
def test_invalid_file_is_refused_with_line_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingError, match=f"rules.toml.*{message}"):
        read_rules(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        read_rules(tmp_path / "rules.toml")


def test_reference_has_an_example_of_each_kind(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "url_rules.rst"
    example = dedent(page.read_text(encoding="utf-8").partition(".. code-block:: toml\n")[2])
    path = tmp_path / "rules.toml"
    path.write_text(example, encoding="utf-8")
    rules = read_rules(path).rules
    assert [rule.kind for rule in rules] == list(KINDS)
    pairs = re.findall(r"# (http\S+) (http\S+)\n", example)
    for rule, (one, other) in zip(rules, pairs, strict=True):
        only = UrlRules([rule])
        assert only.identity(one)[0] == only.identity(other)[0], rule
