"""The keys of the crawl index in Redis or Valkey: Browsertrix's, and ours beside them.

Written exactly as Browsertrix does, so that both crawlers can use one index:

=====================  ======  ==================================================================
``h:{crawl}``          hash    digest without label -> entry (see :mod:`.index_values`)
``h:{crawl}:counts``   hash    ``totalUrls``, ``dupeUrls``, ``conservedSize``, ``totalCrawlSize``
``c:{crawl}:wacz``     list    the crawl's containers, JSON with ``filename``, ``hash``, ``size``
``uncommittedcrawls``  set     crawl ids; ``allcrawls`` the committed ones, ``canceledcrawls``
``alldupes``           hash    digest -> the crawl whose record is the original
``allcounts``          hash    the sums over the committed crawls
``src:d``              set     names of the containers of committed crawls
=====================  ======  ==================================================================

Beside them, what Browsertrix has no field for:

========================  ======  ===============================================================
``dedupe:index``          hash    ``format`` 1, ``payload`` ``stored`` or ``decoded``
``dedupe:crawl:{crawl}``  hash    ``started``, ``committed``, ``software``, ``stats`` (JSON),
                                  ``incomplete``, ``canceling``, ``token`` of the last addition
``dedupe:files:{crawl}``  zset    WARC file -> its number from 0. Where a renaming gives two numbers one
                                  name, that of the second is followed by 0x00 and its number
``dedupe:where:{crawl}``  hash    first 16 bytes of the packed digest -> place of the record; empty if
                                  two digests of the crawl should ever begin alike
``dedupe:urls:{crawl}``   hash    hash of a URL -> what the crawl recorded last of it
``dedupe:needs:{crawl}``  set     the containers of other crawls that its revisits refer to
``dedupe:committing``     set     crawls with a commit that is under way or was cut off
========================  ======  ===============================================================
"""

from __future__ import annotations

MARK = "dedupe:index"
COMMITTING = "dedupe:committing"
COMMITTED = "allcrawls"
UNCOMMITTED = "uncommittedcrawls"
CANCELED = "canceledcrawls"
DUPES = "alldupes"
TOTALS = "allcounts"
DONE_SOURCES = "src:d"

COUNTS = ("totalUrls", "dupeUrls", "conservedSize", "totalCrawlSize")


def records(crawl: str) -> str:
    """The key of a crawl's originals."""
    return f"h:{crawl}"


def counts(crawl: str) -> str:
    """The key of a crawl's counts."""
    return f"h:{crawl}:counts"


def wacz(crawl: str) -> str:
    """The key of a crawl's containers."""
    return f"c:{crawl}:wacz"


def meta(crawl: str) -> str:
    """The key of what is known of a crawl as a whole."""
    return f"dedupe:crawl:{crawl}"


def files(crawl: str) -> str:
    """The key of a crawl's WARC files."""
    return f"dedupe:files:{crawl}"


def where(crawl: str) -> str:
    """The key of the places of a crawl's originals."""
    return f"dedupe:where:{crawl}"


def urls(crawl: str) -> str:
    """The key of the URLs that a crawl recorded."""
    return f"dedupe:urls:{crawl}"


def needs(crawl: str) -> str:
    """The key of the containers that a crawl refers to."""
    return f"dedupe:needs:{crawl}"


def types(crawl: str) -> dict[str, str]:
    """The keys that a crawl uses, each with the type that it has if it is there."""
    return {
        MARK: "hash",
        meta(crawl): "hash",
        COMMITTED: "set",
        UNCOMMITTED: "set",
        CANCELED: "set",
        COMMITTING: "set",
        DUPES: "hash",
        TOTALS: "hash",
        records(crawl): "hash",
        counts(crawl): "hash",
        wacz(crawl): "list",
        files(crawl): "zset",
        where(crawl): "hash",
        urls(crawl): "hash",
        needs(crawl): "set",
    }
