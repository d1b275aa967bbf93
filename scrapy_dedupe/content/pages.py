"""Pages: the text, key, names and identity that are read before a page is compared with others.

The **key** of a text is the first 16 bytes of the SHA-256 of the canonicaliser's name and version and the canonical text.

A page without text, or with text only in its title and ``<noscript>``, is not judged: otherwise all shells of pages
that JavaScript fills would be copies of each other. The same applies to a page whose markup would take too long to
parse.

The **identity** names a page by its title and its URL. A later version of a page is similar to the page, and so is a
neighbour, another page made from the same template. Their texts do not always distinguish them, because two versions may
differ in more words than two neighbours. But a version usually keeps the path of the page, or its title except for a
version number, while a neighbour has another title and another path.

An identity has five keys of 3 bytes, in this order. A key is a hash, or zeros if the page says nothing.

url
    The whole URL, without its fragment.
tail
    The last two segments of the path, and the query. If the first of the two consists of digits, the segments of digits
    before it are added. Segments that are a version number (``3.11``, ``v2.0``) are left out. A file name such as
    ``index.html`` comes after these segments.
title
    The title without numbers. If 10 % of the pages of the host have the same title, the main heading replaces it. If they
    have the same heading too, the beginning of the page's own text replaces it: four words, from the first one that is
    not on several pages of the host, such as the name of a product. The lowest bit of the last byte is 1 for a beginning.
name
    The words of the last segment of the path that occur in the text, because an opaque id does not occur there. If the
    segment consists of digits, it is one word with the segments of digits before it (``2026/02/01``). This word counts
    if the last segment occurs in the text, or if the word is a date.
words
    The same words, and those of the values of the query, where small numbers and dates always count, and numbers of at
    most nine digits if no other word of the query counts. 0xFFFFFF means that the page has hardly any text outside the
    template of its host: then only its path can show that it is the same page.

:func:`scrapy_dedupe.stores.content_values.near_candidates` compares two identities.
"""

from __future__ import annotations

import re
import struct
import time
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import AnyStr, Final
from urllib.parse import unquote

from scrapy_dedupe.stores.base import SeenText
from scrapy_dedupe.stores.content_values import KEY_BYTES, NO_REST, NOTHING

from .canonical import read, version
from .markup import HostileMarkup

# The number of characters at the beginning of a text that are searched first.
_BEGINNING: Final = 500

# The number of places at which a word is looked for, so that no page takes long.
_MOST_TRIES: Final = 100

# The words of longer URLs are not looked for, for the same reason. Servers accept URLs of 8,000 characters at most.
_MOST_URL_CHARS: Final = 8_192

# Numbers with so many digits at most are numbers of pages and entries rather than opaque ids.
_SMALL_DIGITS: Final = 4

# Longer numbers, such as times, are opaque ids. A number up to this length counts if the query has no other word.
_MOST_DIGITS: Final = 9

# The longest beginning of a text, in words and in characters. Not all scripts separate words.
_OWN_WORDS: Final = 4
_MOST_CHARS: Final = 80

_DIGITS: Final = re.compile(r"[0-9]+")
_NUMBERS: Final = re.compile(r"\d+(?:[.,:/_-]\d+)*")
_VERSION: Final = re.compile(r"v?\d+(?:[._]\d+)+", re.IGNORECASE)
_INDEX: Final = re.compile(r"(?:index|default)(?:\.\w+)?", re.IGNORECASE)
_DATE: Final = re.compile(r"(?:19|20)\d\d(?:[-/]\d\d?){1,2}|(?:\d\d?[-/]){1,2}(?:19|20)\d\d")
_EXTENSION: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,4}\Z")
# A word with a letter
_OWN_WORD: Final = re.compile(r"[^\W_]*[^\W\d_][^\W_]*")
# Doxygen writes numbers for punctuation: classGtk_1_1Window.
_WORD: Final = re.compile(r"\d+(?=[^\W\d_]{3})|[^\W_]+")


@dataclass(frozen=True, slots=True)
class Page:
    """A page to judge: its decoded body, its kind (one of :data:`.canonical.KINDS`), and its origin.

    ``mime`` is its content type, ``seen_ms`` the time of the capture in milliseconds since the epoch (UTC). ``source`` is
    the key of the undecoded page (:meth:`.Judge.source_of`), with which :meth:`.Judge.recall` finds the text again. ``utf8``
    is ``text`` in UTF-8, None if the caller does not have it.
    """

    url: str
    text: str
    crawl: str
    kind: str = "html"
    mime: str = "text/html"
    seen_ms: int | None = None
    source: bytes = b""
    utf8: bytes | None = None


@dataclass(frozen=True, slots=True)
class PageReading:
    """The result of reading a page, before the store is used. Without ``capture`` the page is not judged: ``reason``.

    ``imported`` are the keys that the text has if it was imported. ``names`` are the title and the main heading, as far
    as the page has them, without numbers.
    """

    text: str = ""
    mime: str = ""
    capture: SeenText | None = None
    reason: str | None = None
    imported: tuple[bytes, ...] = ()
    names: tuple[str, ...] = ()


def read_page(page: Page, canonicalizer: str) -> PageReading:
    """Canonicalise *page*. The reason for not judging it is ``markup`` or ``no text``."""
    try:
        canonical = read(page.kind, page.text, canonicalizer, page.utf8)
    except HostileMarkup:
        return PageReading(reason="markup")
    if not canonical.text or canonical.is_shell or canonical.text.isspace():
        return PageReading(reason="no text")
    seen_ms = time.time_ns() // 1_000_000 if page.seen_ms is None else page.seen_ms
    digest = text_digest(version(canonicalizer), canonical.text)
    capture = SeenText(digest, page.url, page.crawl, seen_ms, source=page.source)
    names = names_of(canonical.title, canonical.heading)
    return PageReading(canonical.text, page.mime, capture, names=names)


def text_digest(namespace: str, canonical_text: str) -> bytes:
    """The key of a canonical text; *namespace* is the name and version of the canonicaliser."""
    hashed = sha256(f"{namespace}\0".encode())
    hashed.update(canonical_text.encode())
    return hashed.digest()[:16]


def host_of(url: str) -> str:
    """The host and port of a URL, as written; empty if the URL has none.

    >>> host_of("https://Example.org:8080/a?b"), host_of("https://example.org?b"), host_of("nothing")
    ('example.org:8080', 'example.org', '')
    """
    # Takes a tenth of the time of urlsplit().
    _, _, rest = url.partition("://")
    for end in "/?#":
        rest = rest.partition(end)[0]
    return rest.rpartition("@")[2].lower()


@dataclass(frozen=True, slots=True)
class Identity:
    """The keys of a page."""

    url: bytes
    tail: bytes
    title: bytes
    name: bytes
    words: bytes

    def __bytes__(self) -> bytes:
        return self.url + self.tail + self.title + self.name + self.words


def identity_of(url: str, title: str, text: str, beginning: str = "", *, has_rest: bool) -> Identity:
    """The identity of a page with this canonical text.

    *title* comes from :func:`without_numbers`. *beginning* comes from :func:`beginning_at`, if there is no title.
    """
    url = url.partition("#")[0]
    tail, name, values = _parts_of(url)
    has_words = has_rest and len(url) <= _MOST_URL_CHARS
    in_name, in_values = _words_in(text, name, values) if has_words else ([], [])
    words = key_of(" ".join(sorted({*in_name, *in_values}))) if has_rest else NO_REST
    name_key = title_key(title or beginning, is_beginning=not title)
    return Identity(key_of(url), key_of(tail), name_key, key_of(" ".join(in_name)), words)


def key_of(name: str) -> bytes:
    """The key of a name; zeros for an empty name."""
    if not name:
        return NOTHING
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def title_key(name: str, *, is_beginning: bool) -> bytes:
    """The key of a title, or of a beginning; zeros for an empty name."""
    if not name:
        return NOTHING
    *others, last = key_of(name)
    return bytes([*others, last | 1 if is_beginning else last & 0xFE])


def marks_of(name: str) -> tuple[int, ...]:
    """Three 32-bit hashes of a name, to count how many pages have it."""
    hashed = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).digest()
    return struct.unpack("<3I", hashed)


def names_of(title: str, heading: str) -> tuple[str, ...]:
    """The title and the main heading without numbers, as far as something is left.

    >>> names_of("any - Boost 1.81.0", "5.")
    ('any - Boost', '.')
    """
    return tuple(name for given in (title, heading) if (name := without_numbers(given)))


def without_numbers(title: str) -> str:
    """A title without its numbers and dates.

    >>> without_numbers("any - Boost 1.81.0"), without_numbers("Report of 2024-05-01"), without_numbers("2024")
    ('any - Boost', 'Report of', '')
    """
    return " ".join(_NUMBERS.sub(" ", title).split())


def beginning_at(text: str, place: int) -> str:
    """The first words of the text from *place* on, without numbers.

    >>> beginning_at("Quotes ACME 12.50 EUR, the maker of everything.", 8)
    'ACME EUR the maker'
    """
    while text[max(0, place - 1) : place].isalnum():
        place -= 1
    return " ".join(_OWN_WORD.findall(text, place, place + _MOST_CHARS)[:_OWN_WORDS])


def _parts_of(url: str) -> tuple[str, str, list[str]]:
    """The tail of a URL, the last segment of its path, and the values of its query.

    >>> _parts_of("https://a.example/docs/3.11/library/os.html")
    ('library/os.html', 'os', [])
    >>> _parts_of("https://a.example/a/b/c/index.html?page=2")
    ('b/c/index.html?page=2', 'c', ['2'])
    >>> _parts_of("https://a.example/calendar/2026/02/01")
    ('2026/02/01', '2026/02/01', [])
    """
    path, _, query = url.partition("://")[2].partition("?")
    segments = [segment for segment in path.split("/")[1:] if segment and not _VERSION.fullmatch(segment)]
    file = segments.pop() if segments and _INDEX.fullmatch(segments[-1]) else ""
    name = _EXTENSION.sub("", segments[-1]) if segments else ""
    first = len(segments) - 2
    while first > 0 and segments[first].isdigit() and segments[first - 1].isdigit():
        first -= 1
    tail = "/".join([*segments[max(first, 0) :], *([file] if file else [])])
    if name.isdigit():
        if first >= 0 and segments[first].isdigit():
            # The last segment is only a part of the name, such as the day of a date.
            name = "/".join([*segments[first:-1], name])
        elif file:
            # Rather a version than the name of a page.
            name = ""
    if not query:
        return tail, name, []
    return f"{tail}?{query}", name, [it for pair in query.split("&") if (it := pair.partition("=")[2])]


def _words_in(text: str, name: str, values: list[str]) -> tuple[list[str], list[str]]:
    """The words of *name* and of *values* that occur in *text*, regardless of case."""
    in_name = _words_of(name.rpartition("/")[2])
    in_values = {
        word for value in values for word in ({value} if _DATE.fullmatch(value) else _words_of(value))
    }
    missing = in_name | {word for word in in_values if not _always_counts(word)}
    # Most words are in the title.
    for part in (text[:_BEGINNING].rpartition(" ")[0], text):
        # Many names are numbers, which can be found in the text as it is.
        missing = {word for word in missing if not (_is_number(word) and _has_word(part, word))}
        # Digits have no case. The text need not be lowered for most opaque ids, because their digits are not in it.
        possible = {word for word in missing if not _is_number(word) and _has_digits_of(part, word)}
        if not possible:
            continue
        # Lowering only ASCII letters takes a quarter of the time.
        encoded = part.encode().lower()
        missing -= {word for word in possible if _has_lowered(encoded, word)}
    in_name -= missing
    if _DATE.fullmatch(name) or ("/" in name and in_name):
        in_name = {name}
    counted = {word for word in in_values if _always_counts(word) or word not in missing}
    if all(word.isdigit() for word in counted):
        # No word of the query names the page, so its numbers do.
        counted |= {word for word in in_values if len(word) <= _MOST_DIGITS and word.isdigit()}
    return sorted(in_name), sorted(counted)


def _words_of(name: str) -> set[str]:
    """The words of a part of a URL. A single letter is not a word."""
    return {word for word in _WORD.findall(unquote(name).lower()) if len(word) > 1 or word.isdigit()}


def _always_counts(word: str) -> bool:
    """Whether a word of the query counts even if it does not occur in the text: a small number, or a date."""
    return (len(word) <= _SMALL_DIGITS and word.isdigit()) or bool(_DATE.fullmatch(word))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _has_digits_of(text: str, word: str) -> bool:
    return all(digits in text for digits in _DIGITS.findall(word))


def _has_lowered(text: bytes, word: str) -> bool:
    if not word.isascii():
        # Not all scripts separate words.
        return any(form.encode().lower() in text for form in (word, word.capitalize(), word.upper()))
    return _has_word(text, word.encode())


def _has_word(text: AnyStr, word: AnyStr) -> bool:
    place = text.find(word)
    for _ in range(_MOST_TRIES):
        if place < 0:
            return False
        end = place + len(word)
        if not any(it.isascii() and it.isalnum() for it in (text[place - 1 : place], text[end : end + 1])):
            return True
        place = text.find(word, end)
    return False
