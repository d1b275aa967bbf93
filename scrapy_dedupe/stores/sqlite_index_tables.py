"""The tables of the crawl index in SQLite.

The same model as Browsertrix's keys (see :mod:`.redis_index_keys`):

``crawl``
    One row a crawl. ``state`` is ``uncommitted``, ``committed`` or ``canceled``; ``commit_order`` counts the
    commits, so that the crawl that was committed first owns a payload that several have.
``crawl_file``
    The WARC files of a crawl, numbered from 0. After a renaming two numbers may have one name.
``crawl_container``
    The WACZ files of a crawl, numbered from 0; ``hash`` (SHA-256 in hex) and ``size`` once they are packed.
``crawl_url``
    One row for each URL whose complete payload a crawl recorded: the ``hash`` of the URL and what was recorded
    last, both as :mod:`.index_values` says. The hash comes first in the key: looking up is frequent, forgetting
    a crawl, which reads the whole table, is rare.
``crawl_need``
    The containers of other crawls that the revisits of a crawl refer to. ``file`` is empty where it is not known.
``original``
    One row a record. Its ``id`` is the crawl's number x 2^32 + a running number: the records of a crawl lie
    together and can be counted or forgotten without an index of their own. ``digest`` and ``record`` are
    packed as :mod:`.index_values` says, ``date`` holds the 14 or 17 digits as a number.
``index_mark``
    ``payload``: how the crawls hash, ``stored`` or ``decoded``.

Only 8 bytes of each digest are indexed; the whole digest is compared in the row. A commit changes one row,
so it is atomic at any size.
"""

from __future__ import annotations

# Stores from before crawls had these lack them, under the same format number.
LATER_SCHEMA = """
CREATE TABLE IF NOT EXISTS crawl_container (
    crawl INTEGER NOT NULL,
    number INTEGER NOT NULL,
    filename TEXT NOT NULL,
    hash TEXT,
    size INTEGER,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS crawl_url (
    hash BLOB NOT NULL,
    crawl INTEGER NOT NULL,
    capture BLOB NOT NULL,
    PRIMARY KEY (hash, crawl)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS crawl_need (
    crawl INTEGER NOT NULL,
    other TEXT NOT NULL,
    wacz_index INTEGER NOT NULL,
    file TEXT NOT NULL,
    PRIMARY KEY (crawl, other, wacz_index, file)
) WITHOUT ROWID;
"""

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS index_mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS crawl (
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
    total_crawl_size INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS crawl_file (
    crawl INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (crawl, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS original (
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
CREATE INDEX IF NOT EXISTS original_digest ON original (substr(digest, 1, 8));
{LATER_SCHEMA}"""
