"""The tables of the crawl index in SQLite.

The same model as Browsertrix's keys (see :mod:`.redis_index_keys`):

``crawl``
    One row a crawl. ``state`` is ``uncommitted``, ``committed`` or ``canceled``. ``commit_order`` counts the
    commits, so that the crawl that was committed first owns a payload that several have; others find the
    records of a crawl that has one. A ``concurrent`` crawl gets it at its start. ``imported`` is 1 for a crawl
    whose records were imported.

    What a source of an imported crawl holds lies under a row of its own, a part, with ``part_of``, the number
    of the crawl. Its state is ``hidden`` until the source has ended, then ``committed``, with the order of
    its crawl.

    What is forgotten becomes waste in one step: the row loses its order and its id (parts and waste have one with a
    slash, which no crawl id has). The state is ``purging`` for a crawl that was purged and ``waste``
    for anything else; once its records have been deleted, some at a time, it is ``gone``. A row is never deleted,
    so that no number is used twice.
``crawl_file``
    The WARC files of a crawl or part, numbered from 0. After a renaming two numbers may have one name.
``crawl_container``
    The WACZ files of a crawl, numbered from 0; ``hash`` (SHA-256 in hex) and ``size`` once they are packed.
``crawl_url``
    One row for each URL whose complete payload a crawl or part recorded: the ``hash`` of the URL and what was
    recorded last, both as :mod:`.index_values` says; but where the record with that payload was entered at the
    same time, the byte 0x01 and its running number (4 bytes, big-endian) stand for the digest. The hash comes first in
    the key: looking up is frequent, forgetting a crawl, which reads the whole table, is rare.
``crawl_need``
    The containers of other crawls that the revisits of a crawl refer to. ``file`` is empty where it is not known.
``crawl_waiting``
    Revisits of a crawl or part whose originals are not in the index: the packed digest, the size of the
    compressed record, and how many there are.
``original``
    One row a record. Its ``id`` is the number of the crawl or part x 2^32 + a running number: the records of
    a crawl lie together and can be counted or forgotten without an index of their own. ``digest`` and
    ``record``, the details, are packed as :mod:`.index_values` says, ``date`` holds the 14 or 17 digits as a
    number.
``source_queue``
    The sources that are to be imported, in their order. ``claimed_until`` (seconds since the epoch) and ``token``,
    that of the last claim, are NULL for one that nobody has claimed.
``source_begun``, ``source_done``
    The sources that were begun and have not ended, with their parts and the tokens of those who began them; and the
    names of those that have ended, with the greatest number that a crawl or part had then.
``report``
    What was seen during a crawl, as it was given (see :class:`~.base.ReportStore`); the crawl need not be one of the
    index.
``index_mark``
    ``payload``: how the crawls hash, ``stored`` or ``decoded``. ``imports``: what was noted of imports, as JSON.

Only 8 bytes of each digest are indexed; the whole digest is compared in the row. A commit changes one row,
the end of a source a few, so both are atomic at any size.
"""

from __future__ import annotations

# Stores of earlier versions lack these, under the same format number.
LATER_COLUMNS = {
    ("crawl", "imported"): "INTEGER NOT NULL DEFAULT 0",
    ("crawl", "concurrent"): "INTEGER NOT NULL DEFAULT 0",
    ("crawl", "part_of"): "INTEGER",
    ("source_queue", "token"): "TEXT",
    ("source_begun", "token"): "TEXT NOT NULL DEFAULT ''",
    ("source_done", "ended_after"): "INTEGER NOT NULL DEFAULT 0",
}
"""Tables and their columns, with what these hold."""

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
CREATE TABLE IF NOT EXISTS crawl_waiting (
    crawl INTEGER NOT NULL,
    digest BLOB NOT NULL,
    size INTEGER NOT NULL,
    revisits INTEGER NOT NULL,
    PRIMARY KEY (crawl, digest, size)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS source_queue (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    claimed_until REAL,
    token TEXT
);
CREATE TABLE IF NOT EXISTS source_begun (
    name TEXT PRIMARY KEY,
    crawl INTEGER NOT NULL,
    part INTEGER NOT NULL,
    source TEXT NOT NULL,
    token TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS source_done (
    name TEXT PRIMARY KEY,
    crawl INTEGER NOT NULL,
    ended_after INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS report (
    crawl TEXT PRIMARY KEY,
    data BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS crawl_file_name ON crawl_file (crawl, name);
CREATE INDEX IF NOT EXISTS crawl_container_filename ON crawl_container (filename);
CREATE INDEX IF NOT EXISTS crawl_need_file ON crawl_need (other, file);
"""

LATER_NAMES = (
    "crawl_container",
    "crawl_url",
    "crawl_need",
    "crawl_waiting",
    "source_queue",
    "source_begun",
    "source_done",
    "report",
    "crawl_file_name",
    "crawl_container_filename",
    "crawl_need_file",
)
"""The tables and indexes of :data:`LATER_SCHEMA`."""

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
    total_crawl_size INTEGER NOT NULL DEFAULT 0,
    imported INTEGER NOT NULL DEFAULT 0,
    concurrent INTEGER NOT NULL DEFAULT 0,
    part_of INTEGER
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
