"""The tables of the crawl index in SQLite.

The same model as Browsertrix's keys (see :mod:`.redis_index_keys`):

``crawl``
    One row per crawl. ``state`` is ``uncommitted``, ``committed`` or ``canceled``. ``commit_order`` numbers the
    commits: if several crawls have a payload, the one that was committed first owns it. Other crawls find only records
    of crawls with a ``commit_order``; a ``concurrent`` crawl gets it at its start. ``imported`` is 1 for a crawl whose
    records were imported.

    The records of each source of an imported crawl belong to a separate row, a part, whose ``part_of`` is the number
    of the crawl. Its state is ``hidden`` until the source has ended, then ``committed``, with the order of its crawl.

    Forgotten data becomes waste in one step: the row loses its order and its id (parts and waste have ids with a slash,
    which crawl ids do not have). The state is ``purging`` for a purged crawl and ``waste`` for anything else; after its
    records have been deleted in small transactions, it is ``gone``. A row is never deleted, so that no number is used
    twice.
``crawl_file``
    The WARC files of a crawl or part, numbered from 0. After a renaming two numbers may have the same name.
``crawl_container``
    The WACZ files of a crawl, numbered from 0; ``hash`` (SHA-256 in hex) and ``size`` once they are packed.
``crawl_url``
    One row per URL whose complete payload a crawl or part recorded: the ``hash`` of the URL and its last capture, both
    as in :mod:`.index_values`. If the record with the payload was added at the same time, the digest is replaced by the
    byte 0x01 and the running number of the record (4 bytes, big-endian). The hash comes first in the key: lookups are
    frequent; forgetting a crawl, which reads the whole table, is rare.
``crawl_need``
    The containers of other crawls that the revisits of a crawl refer to. ``file`` is empty if it is unknown.
``crawl_waiting``
    Revisits of a crawl or part whose originals are not in the index: the packed digest, the size of the compressed
    record, and their number.
``original``
    One row per record. Its ``id`` is the number of the crawl or part times 2^32, plus a running number. Therefore the
    records of a crawl are adjacent, and can be counted or deleted without a separate index. ``digest`` and ``record``,
    the details, are packed as in :mod:`.index_values`; ``date`` has the 14 or 17 digits as a number.
``source_queue``
    The sources to import, in order. ``claimed_until`` (seconds since the epoch) and ``token``, that of the last claim,
    are NULL for a source that was not claimed.
``source_begun``, ``source_done``
    The sources that were begun and have not ended, with their parts and the tokens of the processes that began them;
    and the names of those that have ended, with the highest number of a crawl or part at that time.
``report``
    The report data of a crawl, as opaque bytes (see :class:`~.redis.RedisReports`); the crawl need not be in the index.
``index_mark``
    ``payload``: the form of payloads that the crawls hash, ``stored`` or ``decoded``. ``imports``: the notes on imports,
    as JSON.

Only 8 bytes of each digest are indexed; the whole digest is compared in the row. A commit changes one row, and the end
of a source a few, so both are atomic at any size.
"""

from __future__ import annotations

SCHEMA = """
CREATE TABLE index_mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE crawl (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    started TEXT NOT NULL,
    committed TEXT,
    commit_order INTEGER,
    incomplete INTEGER NOT NULL DEFAULT 0,
    software TEXT NOT NULL,
    stats TEXT,
    total_urls INTEGER NOT NULL DEFAULT 0,
    dupe_urls INTEGER NOT NULL DEFAULT 0,
    conserved_size INTEGER NOT NULL DEFAULT 0,
    total_crawl_size INTEGER NOT NULL DEFAULT 0,
    imported INTEGER NOT NULL DEFAULT 0,
    concurrent INTEGER NOT NULL DEFAULT 0,
    part_of INTEGER
);
CREATE TABLE crawl_file (
    crawl INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
CREATE TABLE original (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    wacz_index INTEGER NOT NULL,
    date INTEGER NOT NULL,
    url TEXT NOT NULL,
    size INTEGER NOT NULL,
    record BLOB,
    file INTEGER,
    "offset" INTEGER
);
CREATE INDEX original_digest ON original (substr(digest, 1, 8));
CREATE TABLE crawl_container (
    crawl INTEGER NOT NULL,
    number INTEGER NOT NULL,
    filename TEXT NOT NULL,
    hash TEXT,
    size INTEGER,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
CREATE TABLE crawl_url (
    hash BLOB NOT NULL,
    crawl INTEGER NOT NULL,
    capture BLOB NOT NULL,
    PRIMARY KEY (hash, crawl)
) WITHOUT ROWID;
CREATE TABLE crawl_need (
    crawl INTEGER NOT NULL,
    other TEXT NOT NULL,
    wacz_index INTEGER NOT NULL,
    file TEXT NOT NULL,
    PRIMARY KEY (crawl, other, wacz_index, file)
) WITHOUT ROWID;
CREATE TABLE crawl_waiting (
    crawl INTEGER NOT NULL,
    digest BLOB NOT NULL,
    size INTEGER NOT NULL,
    revisits INTEGER NOT NULL,
    PRIMARY KEY (crawl, digest, size)
) WITHOUT ROWID;
CREATE TABLE source_queue (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    claimed_until REAL,
    token TEXT
);
CREATE TABLE source_begun (
    name TEXT PRIMARY KEY,
    crawl INTEGER NOT NULL,
    part INTEGER NOT NULL,
    source TEXT NOT NULL,
    token TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE source_done (
    name TEXT PRIMARY KEY,
    crawl INTEGER NOT NULL,
    ended_after INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE report (
    crawl TEXT PRIMARY KEY,
    data BLOB NOT NULL
);
CREATE INDEX crawl_file_name ON crawl_file (crawl, name);
CREATE INDEX crawl_container_filename ON crawl_container (filename);
CREATE INDEX crawl_need_file ON crawl_need (other, file);
"""
