"""Shortens texts from the web and removes harmful characters before they are stored or shown."""

from __future__ import annotations

import re
from hashlib import blake2b

MOST_CHARS = 2_000
MOST_HOST_CHARS = 253

# Control characters, lone surrogates, and characters that change the direction of the following text, which could make
# a URL look like another one.
_HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")
_MIME_CHARS = re.compile(r"[a-z0-9!#$&^_.+*-]+/[a-z0-9!#$&^_.+*-]+")
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")


def harmless(text: str, most_chars: int = MOST_CHARS) -> str:
    r"""A text with at most *most_chars* characters, and U+FFFD for harmful characters.

    >>> harmless("a\tb" + chr(0xD800))
    'a�b�'
    """
    if len(text) > most_chars:
        text = f"{text[: most_chars - 1]}\u2026"
    return text if _PRINTABLE_ASCII.fullmatch(text) else _HARMFUL.sub("\ufffd", text)


def shown_url(url: str, most_chars: int = MOST_CHARS) -> str:
    """A URL that may be shown to others: without harmful characters, user name and password.

    >>> shown_url("https://me:secret@example.com/"), shown_url("https://example.com//@me")
    ('https://example.com/', 'https://example.com//@me')
    """
    # Remove the user before shortening: a password may be a token of thousands of characters.
    return harmless(without_user(url), most_chars)


def without_user(url: str) -> str:
    """A URL without a user name and password.

    >>> without_user("https://me:secret@example.com/?to=you@example.com")
    'https://example.com/?to=you@example.com'
    """
    return _USER.sub(r"\1", url) if "@" in url else url


def host_of(url: str) -> str:
    """The host of a URL, with its port if it has one, in lower case; ``(none)`` if there is none.

    >>> host_of("https://me@Example.com:8080/a"), host_of("data:,http://example.com/")
    ('example.com:8080', '(none)')
    """
    return host_and_rest(url)[0]


def host_and_rest(url: str) -> tuple[str, str]:
    """The host of a URL as returned by :func:`host_of`, and the rest after it; the rest is empty if there is no host.

    >>> host_and_rest("https://example.com/a?b")
    ('example.com', '/a?b')
    """
    # urlsplit() raises for some hosts and takes ten times as long.
    found = _AUTHORITY.match(url)
    if found is None:
        return "(none)", ""
    host = found[1].rpartition("@")[2].lower()
    # Values in parentheses are used by this module; no host starts with a parenthesis.
    is_host = host and not host.startswith("(")
    return harmless(host, MOST_HOST_CHARS) if is_host else "(none)", url[found.end() :]


def mime_of(content_type: str) -> str:
    """The MIME type of a Content-Type, in lower case and without parameters.

    >>> mime_of("Text/HTML; charset=utf-8"), mime_of(""), mime_of("<b>")
    ('text/html', '(none)', '(not a MIME type)')
    """
    mime = content_type[:200].partition(";")[0].strip().lower()
    if not mime:
        return "(none)"
    return mime if len(mime) <= 100 and _MIME_CHARS.fullmatch(mime) else "(not a MIME type)"


def key_of(url: str, shown: str) -> str:
    """A key that identifies a URL: its shown form, or a hash if other URLs may be shown the same way.

    Only both ends and the length of a very long URL are hashed.

    >>> key_of("https://example.com/", "https://example.com/")
    'https://example.com/'
    """
    if url == shown and not url.startswith("#"):
        return url
    ends = url if len(url) <= 20_000 else f"{url[:10_000]} {len(url)} {url[-10_000:]}"
    return f"#{blake2b(ends.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
