"""The file of URL rules: TOML, for people to read and edit.

``version = 1``, then one table ``[[rule]]`` per rule::

    [[rule]]
    host = "example.org"          # or "*.example.org" for its subdomains too, or "*"
    kind = "ignore-parameter"     # see scrapy_dedupe.urls.rules
    parameter = "sid"             # the key depends on the kind: parameter, segment, document, suffix or to
    path = "/shop/"               # optional: only paths that begin with it
    values = ["print", "amp"]     # optional, for ignore-parameter: only these values
    enabled = false               # optional: true by default
    [rule.evidence]               # optional: written by `urls learn`, not used when the rule is applied
    for = 1200
    against = 0
    lower_bound = 0.9975
    downloads = 900
    bytes = 12000000
    examples = [["https://example.org/a?sid=1", "https://example.org/a?sid=2"]]
    canonical_links = 40          # only for a rule that is proposed because of such links, and not enabled

A rule written by hand needs no evidence.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError

from .rules import KINDS, RuleEvidence, UrlRule, UrlRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

VERSION: Final = 1

_COMMON: Final = {"kind": str, "host": str, "path": str, "enabled": bool, "evidence": dict}
_EVIDENCE: Final = {
    "for": int, "against": int, "lower_bound": (int, float), "downloads": int, "bytes": int, "examples": list,
    "canonical_links": int,
}  # fmt: skip
_HEADER: Final = """\
# URL rules of scrapy-dedupe: differences between URLs that do not change the page.
# Used with DEDUPE_URL_RULES. Edit the file as you like; `enabled = false` turns a rule off.
# A rule with canonical_links is only suggested by such links: too few of its pages were downloaded to compare them.
# Test it on another crawl with: scrapy dedupe urls check-rules {name} CRAWL
version = {version}
"""


def read_rules(path: Path) -> UrlRules:
    """The rules in a file.

    Raises :class:`~scrapy_dedupe.errors.SettingError` with the file, the line and the remedy if it is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"The file of URL rules {path} cannot be read: {error.strerror or error}. Check the path and the permissions."
            " `scrapy dedupe urls learn -o FILE` writes such a file."
        ) from error
    except ValueError as error:
        raise SettingError(
            f"The file of URL rules {path} cannot be read: {error}. It must be TOML, encoded as UTF-8."
        ) from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not valid TOML: {error}.") from error
    lines = _Lines(text)
    version = tables.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        problem = "has no version" if version is None else f"has version {version!r}"
        raise SettingError(
            f"{path}, line {lines.of('version')}: the file {problem}. This release reads version {VERSION}: learn the"
            f" rules again, or write `version = {VERSION}` if the file was written by hand."
        )
    rules = tables.pop("rule", [])
    if tables or not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        other = next(iter(tables), "rule")
        raise SettingError(
            f"{path}, line {lines.of(other)}: {other!r} is not allowed here. Begin each rule with [[rule]]."
        )
    found: dict[tuple[object, ...], UrlRule] = {}
    for number, table in enumerate(rules):
        try:
            rule = _rule(table)
            if rule.key() in found:
                raise _Invalid("host", f"the rule {rule} is there twice. Remove one of the two")
        except _Invalid as error:
            line = lines.of(error.name, number)
            raise SettingError(f"{path}, line {line}: {error.message}.") from error
        found[rule.key()] = rule
    try:
        return UrlRules(found.values())
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


def rules_text(rules: Iterable[UrlRule], name: str = "rules.toml") -> str:
    """The text of a file with *rules*."""
    return "\n".join(
        [_HEADER.format(name=name, version=VERSION), *("\n".join(_lines(rule)) for rule in rules)]
    )


def _lines(rule: UrlRule) -> Iterator[str]:
    yield "[[rule]]"
    yield f"host = {_quoted(rule.host)}"
    yield f"kind = {_quoted(rule.kind)}"
    if KINDS[rule.kind]:
        yield f"{KINDS[rule.kind]} = {_quoted(rule.name)}"
    if rule.kind == "replace-suffix":
        yield f"to = {_quoted(rule.to)}"
    if rule.path != "/":
        yield f"path = {_quoted(rule.path)}"
    if rule.values:
        yield f"values = [{', '.join(map(_quoted, rule.values))}]"
    yield f"enabled = {str(rule.enabled).lower()}"
    evidence = rule.evidence
    if evidence is not None:
        yield "[rule.evidence]"
        yield f"for = {evidence.pairs_for}"
        yield f"against = {evidence.pairs_against}"
        yield f"lower_bound = {evidence.lower_bound:.4f}"
        yield f"downloads = {evidence.downloads}"
        yield f"bytes = {evidence.size_bytes}"
        pairs = (f"    [{_quoted(one)}, {_quoted(other)}]," for one, other in evidence.examples)
        yield "\n".join(["examples = [", *pairs, "]"])
        if evidence.canonical_links:
            yield f"canonical_links = {evidence.canonical_links}"
    yield ""


def _quoted(text: str) -> str:
    # A JSON string is a TOML string, except for DEL and lone surrogates, which TOML does not allow.
    clean = text.encode("utf-8", "backslashreplace").decode()
    return json.dumps(clean, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Invalid(ValueError):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name, self.message = name, message


def _rule(table: dict[str, Any]) -> UrlRule:
    kind = table.get("kind")
    if kind not in KINDS:
        given = "a rule needs a kind" if kind is None else f"{kind!r} is not a kind of rule"
        raise _Invalid("kind", f"{given}. The kinds are {', '.join(KINDS)}")
    types = dict(_COMMON)
    if KINDS[kind]:
        types[KINDS[kind]] = str
    if kind == "replace-suffix":
        types["to"] = str
    if kind == "ignore-parameter":
        types["values"] = list
    _check(table, types, f"a rule of kind {kind}")
    host, name, path = table.get("host"), table.get(KINDS[kind], ""), table.get("path", "/")
    if (
        not host
        or host != host.lower()
        or re.search(r"[/?#@\s]", host)
        or "*" in host.removeprefix("*."[: 1 + (len(host) > 1)])
    ):
        raise _Invalid(
            "host",
            f"host = {host!r} is not a host in lower case, *.HOST or *. Write the host as in the URLs, without scheme",
        )
    if KINDS[kind] and not name:
        raise _Invalid("kind", f'a rule of kind {kind} needs {KINDS[kind]} = "…"')
    if kind in ("remove-segment", "default-document") and "/" in name:
        raise _Invalid(KINDS[kind], f"{KINDS[kind]} = {name!r} must not have a slash")
    if kind == "host-alias" and (host.startswith("*") or path != "/"):
        raise _Invalid("host", "an alias needs one host, and applies to all of its paths")
    if not path.startswith("/"):
        raise _Invalid("path", f"path = {path!r} must begin with a slash")
    values = table.get("values", [])
    if not all(isinstance(value, str) for value in values):
        raise _Invalid("values", "values must be texts in quotes")
    return UrlRule(
        kind=kind,
        host=host,
        name=name.lower() if kind == "host-alias" else name,
        path=path,
        values=tuple(values),
        to=table.get("to", "") if kind == "replace-suffix" else "",
        enabled=table.get("enabled", True),
        evidence=_evidence(table["evidence"]) if "evidence" in table else None,
    )


def _evidence(table: dict[str, Any]) -> RuleEvidence:
    _check(table, _EVIDENCE, "evidence")
    pairs = []
    for pair in table.get("examples", []):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(url, str) for url in pair):
            raise _Invalid("examples", "examples must be pairs of URLs")
        pairs.append((pair[0], pair[1]))
    return RuleEvidence(
        pairs_for=table.get("for", 0),
        pairs_against=table.get("against", 0),
        lower_bound=table.get("lower_bound", 0.0),
        downloads=table.get("downloads", 0),
        size_bytes=table.get("bytes", 0),
        examples=tuple(pairs),
        canonical_links=table.get("canonical_links", 0),
    )


def _check(table: dict[str, Any], types: dict[str, Any], what: str) -> None:
    for name, value in table.items():
        if name not in types:
            raise _Invalid(name, f"{name!r} is not a key of {what}. Its keys are {', '.join(types)}")
        expected = types[name]
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            shown = {
                str: "a text in quotes",
                bool: "true or false",
                int: "a whole number",
                list: "a list",
                dict: "a table",
            }
            raise _Invalid(name, f"{name} = {value!r} must be {shown.get(expected, 'a number')}")


class _Lines:
    """Finds the lines of keys in a TOML text, for messages."""

    def __init__(self, text: str) -> None:
        # Only "\n" ends a line in TOML.
        self._lines = text.split("\n")
        self._rules = [
            number for number, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*rule\s*]]", line)
        ]

    def of(self, name: str, rule: int | None = None) -> int:
        """The line, counted from 1, of a key; in a rule, the line of the rule if the key is not there."""
        begin = 0 if rule is None or rule >= len(self._rules) else self._rules[rule]
        for number in range(begin, len(self._lines)):
            if rule is not None and number > begin and number in self._rules:
                break
            if re.match(rf"\s*(\[+\s*)?[\"']?{re.escape(name)}\b", self._lines[number]):
                return number + 1
        return begin + 1
