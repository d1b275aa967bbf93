r"""The index keys of URLs, and the URLs for requests with methods other than GET.

Keys are SURTs (Sort-friendly URI Reordering Transform) of the package ``surt``, which pywb and cdxj-indexer use as
well: ``http://www.example.org/a?c&b`` becomes ``org,example)/a?b&c``. A URL without a SURT, for instance because its
port is invalid, is its own key.

Replay programs look up a POST as a URL with the method and the body in its query,
``…?__wb_method=POST&name=value``. They use different texts for the body, so both are kept:

- The key has pywb's text (2.10, `MethodQueryCanonicalizer`): form fields unquoted, parts of ``multipart/*`` and JSON
  values as quoted pairs, everything else as Base64 in ``__wb_post_data``. Where cdxj-indexer differs (``True`` and
  ``None`` for ``true`` and ``null``), pywb's text is used.
- `Lookup.body`, the field ``requestBody`` of an index line, has the text of wabac.js (2.27, with warcio.js 2.4), which
  builds its lookup URL from this field. It reads a body as a browser does: form fields unchanged, JSON by the rules
  of JavaScript, and decodes the result with ``decodeURI``.

wabac.js has its own keys, `wabac_key`, which it needs in an index that it does not load completely. For example, they
keep the slash at the end of a path.

Only POST and PUT have a body in this sense; other methods contribute only their name. This includes HEAD: a capture
without a body must not be listed among the captures of GET.
"""

from __future__ import annotations

import base64
import json
import math
import re
import threading
import warnings
from decimal import Decimal
from email import message_from_bytes
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_BODY_CHARACTERS = 4096
"""The maximum length of the text of a body, as in pywb and cdxj-indexer."""

_WITH_BODY = frozenset({"POST", "PUT"})
_PRINTABLE = "".join(chr(c) for c in range(0x21, 0x7F))
_SAFE_IN_PATH = "".join(char for char in _PRINTABLE if char not in '"#<>?`{}')
_SAFE_IN_QUERY = "".join(char for char in _PRINTABLE if char not in "\"#<>'")
_WWW = re.compile(r"^(https?://)www\d*\.", re.ASCII)
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# decodeURI keeps the characters ;/?:@&=+$,# escaped (ECMA-262, 19.2.6.2).
_ESCAPED_RESERVED = re.compile("%(?=3b|2f|3f|3a|40|26|3d|2b|24|2c|23)", re.IGNORECASE)
_ARRAY_INDEX = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_JS_PART = re.compile(r'name="([^"]+)"\r\n\r\n([^\r\n\u2028\u2029]*)', re.IGNORECASE)

_lock = threading.Lock()
_surt: Callable[[str], str] | None = None


class Lookup(NamedTuple):
    """How a capture is found: its key, and for methods other than GET the method and the body as text."""

    key: str
    method: str | None = None
    body: str | None = None


def lookup(url: str, method: str = "GET", content_type: str = "", body: bytes = b"") -> Lookup:
    """Return the lookup values for the answer to a request. Raises SettingError if the package surt is missing."""
    method = method.upper()
    if method == "GET":
        return Lookup(url_key(url))
    query = pywb_query(content_type, body) if method in _WITH_BODY else ""
    joined = with_method(url, method) + (f"&{query}" if query else "")
    if method not in _WITH_BODY:
        return Lookup(url_key(joined), method)
    return Lookup(url_key(joined), method, wabac_query(content_type, body))


def url_key(url: str) -> str:
    """Return the key of a URL, free of spaces and control characters. Raises SettingError if surt is missing."""
    surt = load_surt()
    try:
        key = surt(url)
    except (AssertionError, AttributeError, IndexError, TypeError, ValueError):
        key = url  # surt has no exception class of its own
    return _printable(key)


def with_method(url: str, method: str) -> str:
    """Return the URL with the method in its query, in the form of replay programs."""
    return f"{url}{'&' if '?' in url else '?'}__wb_method={method}"


def wabac_key(url: str) -> str:
    """Return the key that wabac.js looks up: `getSurt` of warcio.js 2.4, free of control characters.

    >>> wabac_key("http://www.example.org/A/?b&a"), wabac_key("urn:A")
    ('org,example)/a/?a&b', 'urn:A')
    """
    if not url.startswith(("http:", "https:")):
        return _printable(url)
    lower = _WWW.sub(r"\1", url).lower()
    try:
        parts = urlsplit(lower)
        port = parts.port
    except ValueError:
        return _printable(url)
    host = parts.netloc.rpartition("@")[2]
    host = host.removesuffix(f":{port}") if port is not None else host.removesuffix(":")
    key = ",".join(reversed(host.split(".")))
    if port not in (None, 443 if parts.scheme == "https" else 80):
        key += f":{port}"
    # Percent-encoding of the URL standard (sections 1.3 and 4.4), as in a browser
    path = _escaped("/".join(_without_dots(parts.path.replace("\\", "/"))), _SAFE_IN_PATH)
    query = sorted(_escaped(parts.query, _SAFE_IN_QUERY).split("&")) if parts.query else []
    return _printable(f"{key}){path}" + (f"?{'&'.join(query)}" if query else ""))


def _printable(text: str) -> str:
    return _escaped(text, _PRINTABLE)


def _escaped(text: str, safe: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe=safe)


def _without_dots(path: str) -> list[str]:
    kept: list[str] = [""]
    segments = path.split("/")[1:] or [""]
    for number, segment in enumerate(segments):
        plain = segment.replace("%2e", ".")
        if plain == ".." and len(kept) > 1:
            kept.pop()
        if plain not in (".", ".."):
            kept.append(segment)
        elif number == len(segments) - 1:
            kept.append("")
    return kept


def load_surt() -> Callable[[str], str]:
    """Return the function of the package surt. Raises SettingError if it is not installed."""
    global _surt
    if _surt is None:
        with _lock, warnings.catch_warnings():
            # surt's source contains invalid escapes, which newer Pythons warn about when compiling it.
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                from surt import surt
            except ImportError as error:
                raise SettingError(
                    "WACZ files need the package surt for their index, and it is not installed "
                    f'({error}). Run: pip install "scrapy-dedupe[wacz]"'
                ) from error
        _surt = surt
    return _surt


def pywb_query(content_type: str, body: bytes) -> str:
    """Return pywb's text for the body of a POST or PUT, without the method."""
    if not body:
        return ""
    if content_type.startswith("application/x-www-form-urlencoded"):
        try:
            query = unquote_plus(body.decode("utf-8"))
        except UnicodeDecodeError:
            query = _binary(body)
    elif content_type.startswith("multipart/"):
        parts = _parts(content_type, body)
        query = _binary(body) if parts is None else _pairs(parts)
    elif content_type.startswith(("application/json", "text/plain")):
        try:
            leaves = _leaves(json.loads(body), dict.items)
            query = _pairs(_numbered((name, _python_text(value)) for name, value in leaves if name))
        except (ValueError, RecursionError):
            query = _binary(body) if content_type.startswith("text/plain") else ""
    else:
        query = _binary(body)
    return query[:MAX_BODY_CHARACTERS]


def wabac_query(content_type: str, body: bytes) -> str:
    """Return wabac.js' text for the body of a POST or PUT, without the method."""
    media_type = content_type.partition(";")[0]
    text = body.decode("utf-8", "replace").removeprefix("\ufeff")
    if media_type == "application/x-www-form-urlencoded":
        query = text
    elif media_type in ("application/json", "text/plain"):
        try:
            leaves = _leaves(json.loads(text, parse_constant=_refuse), _in_javascript_order)
            query = _pairs(
                _numbered((name, _javascript_text(value)) for name, value in leaves if value != "")
            )
        except (ValueError, RecursionError):
            query = ""
    elif media_type == "multipart/form-data":
        query = _pairs(_javascript_parts(content_type, text))
    else:
        # btoa accepts code points up to 255 and throws for others
        latin = text.encode("latin-1", "replace") if all(ord(c) < 256 for c in text) else b""
        query = _binary(latin)
    return _decode_uri(query)[:MAX_BODY_CHARACTERS]


def _binary(body: bytes) -> str:
    return "__wb_post_data=" + base64.b64encode(body).decode("ascii")


def _pairs(pairs: Iterable[tuple[str, str | bytes]]) -> str:
    return "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs)


def _quoted(text: str | bytes) -> str:
    return quote_plus(_LONE_SURROGATE.sub("\ufffd", text) if isinstance(text, str) else text)


def _numbered(leaves: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Number the repetitions of a name: ``a``, ``a.2_``, ``a.3_``."""
    found: dict[str, str] = {}
    repetitions: dict[str, int] = {}
    for name, value in leaves:
        unique = name
        if name in found:
            repetitions[name] = repetitions.get(name, 1) + 1
            unique = f"{name}.{repetitions[name]}_"
        found[unique] = value
    return list(found.items())


def _leaves(
    value: object,
    members_of: Callable[[dict[str, object]], Iterable[tuple[str, object]]],
    name: str = "",
) -> Iterator[tuple[str, object]]:
    """Yield the values in a JSON value that are no object and no list, with the key that each of them has."""
    if isinstance(value, dict):
        for key, member in members_of(value):
            yield from _leaves(member, members_of, key)
    elif isinstance(value, list):
        for member in value:
            yield from _leaves(member, members_of, name)
    else:
        yield name, value


def _python_text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _in_javascript_order(members: dict[str, object]) -> list[tuple[str, object]]:
    # JavaScript enumerates keys that look like array indexes first, in numeric order.
    indexes = sorted(filter(_is_array_index, members), key=int)
    return [(key, members[key]) for key in dict.fromkeys([*indexes, *members])]


def _is_array_index(key: str) -> bool:
    return bool(_ARRAY_INDEX.fullmatch(key)) and int(key) < 2**32 - 1


def _javascript_text(value: object) -> str:
    """Return a value as JavaScript's toString does (ECMA-262, section 6.1.6.1.20)."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    assert isinstance(value, (int, float))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    # repr gives the same shortest digits; JavaScript has other limits for the notation with an exponent.
    if number == 0 or 1e-6 <= abs(number) < 1e21:
        text = f"{Decimal(repr(abs(number))):f}".removesuffix(".0")
        return f"-{text}" if number < 0 else text
    mantissa, _, power = repr(number).partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(power):+d}"


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not valid JSON")


def _parts(content_type: str, body: bytes) -> list[tuple[str, str | bytes]] | None:
    """Return the names and contents of a multipart body (RFC 7578); None if it has no boundary."""
    boundary = message_from_bytes(
        b"Content-Type: " + content_type.encode("latin-1", "replace")
    ).get_boundary()
    if not boundary:
        return None
    found: list[tuple[str, str | bytes]] = []
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"))[1:]:
        if part.startswith(b"--"):
            break
        head, _, content = part.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
        fields = message_from_bytes(head)
        name = fields.get_param("name", header="content-disposition")
        if isinstance(name, str):
            found.append((name, content if fields.get_filename() else content.decode("utf-8", "replace")))
    return found


def _javascript_parts(content_type: str, text: str) -> list[tuple[str, str]]:
    """Return the parts as warcio.js finds them: one line of content each; the last part with a name wins."""
    _, *boundaries = content_type.split("boundary=")
    if not boundaries or not boundaries[0]:
        return []
    pairs: dict[str, str] = {}
    for part in re.split(re.escape(boundaries[0]), text, flags=re.IGNORECASE):
        if match := _JS_PART.search(part.strip("-").strip()):
            pairs[match[1]] = match[2]
    return list(pairs.items())


def _decode_uri(text: str) -> str:
    """Return the result of JavaScript's decodeURI; empty if it would throw, as in wabac.js."""
    if _NO_ESCAPE.search(text):
        return ""
    try:
        return unquote(_ESCAPED_RESERVED.sub("%25", text), errors="strict")
    except UnicodeDecodeError:
        return ""
