"""The tables of the seen texts in SQLite.

=========================  ====================================================================================
``content_parameters``     name and value of each parameter of the near layer
``content_crawls``         crawl ids; other tables refer to them by number
``content_texts``          digest (16 bytes) of a text, and its first capture: URL, crawl, and time in milliseconds
                           since the epoch. The URL is split into ``scheme`` (0 for ``https://``, 1 for ``http://``, 2
                           for anything else) and ``rest``, which is text, or bytes if it contains lone surrogates
``content_pending``        the same for texts whose page has not succeeded yet. A text is in one of the two tables
``content_captures``       other captures of a text: the first 16 bytes of BLAKE2b of the URL, digest, verdict
                           (``kind``, the original's digest if it differs, similarity), crawl and time. The first
                           capture of a text is here too if it is a copy of another text
``content_signatures``     digest of each kept text and its row bytes: those of the whole text, then those of
                           the text without the template, if they differ
``content_bands``          band hash, as a signed 64-bit number (big-endian), and the digest of the last text
                           that was kept in this bucket
``content_templates``      host, and its template (:mod:`scrapy_dedupe.content.template`)
=========================  ====================================================================================

The separate table of pending texts is small enough to stay in memory. A new text therefore costs one write at a random
position of the big table, instead of one when it is claimed and another when its page succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .content_values import raw, url_key

if TYPE_CHECKING:
    from .base import SeenText

SCHEMA = """
CREATE TABLE content_texts (
    digest BLOB PRIMARY KEY, scheme INTEGER NOT NULL, rest NOT NULL, crawl INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE content_parameters (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE content_crawls (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE content_pending (
    digest BLOB PRIMARY KEY, scheme INTEGER NOT NULL, rest NOT NULL, crawl INTEGER NOT NULL, seen_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE VIEW content_first AS
    SELECT digest, scheme, rest, crawl, seen_ms, 0 AS pending FROM content_texts
    UNION ALL SELECT digest, scheme, rest, crawl, seen_ms, 1 FROM content_pending;
CREATE TABLE content_captures (
    url_key BLOB, digest BLOB, kind TEXT NOT NULL, original BLOB, similarity REAL, crawl INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL, PRIMARY KEY (url_key, digest)
) WITHOUT ROWID;
CREATE TABLE content_signatures (digest BLOB PRIMARY KEY, row_bytes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE content_bands (hash INTEGER PRIMARY KEY, digest BLOB NOT NULL);
CREATE TABLE content_templates (host PRIMARY KEY, template BLOB NOT NULL) WITHOUT ROWID;
"""

_SCHEMES = ("https://", "http://", "")


def split_url(url: str) -> tuple[int, str | bytes]:
    """Scheme and rest of a URL, as stored."""
    if url.startswith("https://"):
        return 0, kept_text(url[8:])
    if url.startswith("http://"):
        return 1, kept_text(url[7:])
    return 2, kept_text(url)


def kept_text(text: str) -> str | bytes:
    """The form that SQLite can store: text, or bytes if the text contains lone surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return raw(text)
    return text


def joined_url(scheme: int, rest: str | bytes) -> str:
    """The URL of a scheme and rest; reverses :func:`split_url`."""
    return _SCHEMES[scheme] + (rest if isinstance(rest, str) else rest.decode("utf-8", "surrogatepass"))


def first_captures(before_ms: int | None, crawl: str | None) -> tuple[str, list[Any]]:
    """An SQL condition on first captures, and its values."""
    conditions, values = ["1"], list[Any]()
    if before_ms is not None:
        conditions.append("seen_ms < ?")
        values.append(before_ms)
    if crawl is not None:
        conditions.append("crawl = (SELECT number FROM content_crawls WHERE id = ?)")
        values.append(crawl)
    return " AND ".join(conditions), values


def noted_row(capture: SeenText, crawl: int) -> tuple[Any, ...]:
    """A row of ``content_captures``."""
    original = None if capture.original == capture.digest else capture.original
    decided = (capture.kind, original, capture.similarity)
    return (url_key(capture.url), capture.digest, *decided, crawl, capture.seen_ms)
