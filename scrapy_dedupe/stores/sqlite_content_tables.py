"""The tables of the seen texts in SQLite.

=========================  ====================================================================================
``content_parameters``     name and value of each parameter of the near layer
``content_crawls``         crawl ids; other tables refer to them by number
``content_texts``          digest (16 bytes) of a text, and its first capture: URL, crawl, and time in milliseconds
                           since the epoch. The URL is split into ``scheme`` (0 for ``https://``, 1 for ``http://``, 2
                           for anything else) and ``rest``, which is text, or bytes if it contains lone surrogates
``content_pending``        the same for texts whose page has not succeeded yet. A text is in one of the two tables
``content_captures``       other captures of a text: an 8-byte BLAKE2b hash of the URL, digest, verdict
                           (``kind``, the original's digest if it differs, similarity), crawl and time. The first
                           capture of a text is here too if it is a copy of another text
``content_sources``        16-byte key of the undecoded page in which a text was seen first, and the digest of the text
``content_signatures``     reference of each kept text (the first 5 bytes of its digest as a number), its digest, and its
                           signature (:func:`.content_values.packed_signature`)
``content_bands``          the first 5 bytes of a band hash as a number (big-endian), and the reference of the last text
                           that was kept in this bucket
``content_recent``         number, digest, signature and bands of the texts that were kept last, which are not yet in the
                           two tables above (:mod:`.sqlite_content_signatures`)
``content_templates``      host, and its template (:mod:`scrapy_dedupe.content.template`)
=========================  ====================================================================================

The separate table of pending texts is small enough to stay in memory. A new text therefore costs one write at a random
position of the big table, instead of one when it is claimed and another when its page succeeds.
"""

from __future__ import annotations

# Format 5 added this table to format 4.
SOURCES = "CREATE TABLE content_sources (source BLOB PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID"

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
CREATE TABLE content_signatures (
    ref INTEGER PRIMARY KEY, digest BLOB NOT NULL, row_bytes BLOB NOT NULL
);
CREATE TABLE content_bands (hash INTEGER PRIMARY KEY, ref INTEGER NOT NULL);
CREATE TABLE content_recent (
    number INTEGER PRIMARY KEY, digest BLOB NOT NULL, row_bytes BLOB NOT NULL, bands BLOB NOT NULL
);
CREATE TABLE content_templates (host PRIMARY KEY, template BLOB NOT NULL) WITHOUT ROWID;
"""
SCHEMA += f"{SOURCES};"
