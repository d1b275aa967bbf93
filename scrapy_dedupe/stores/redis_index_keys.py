"""The keys of the crawl index in Redis or Valkey: Browsertrix's, and ours beside them.

Written exactly as Browsertrix does, so that both crawlers can use one index:

========================  ======  ===============================================================
``h:{crawl}``             hash    digest without label -> entry (see :mod:`.index_values`)
``h:{crawl}:counts``      hash    ``totalUrls``, ``dupeUrls``, ``conservedSize``, ``totalCrawlSize``
``c:{crawl}:wacz``        list    the crawl's containers, JSON with ``filename``, ``hash``, ``size``
``uncommittedcrawls``     set     crawl ids; ``allcrawls`` the committed ones, whatever else they are in
``canceledcrawls``        set     those of ``allcrawls`` that Browsertrix's next removal forgets (``--cancelCrawlId`` of a
                                  committed crawl). An id that is in no other set was canceled by an early version
                                  of this package
``alldupes``              hash    digest -> the crawl whose record is the original
``allcounts``             hash    the sums over the committed crawls; ``updateProgress``, ``removedCrawls``,
                                  ``removedCrawlSize``
``src:q``                 list    sources to import, JSON (see :mod:`.index_values`); the next one is the last
``src:qset``              set     the names of those in the queue, with us also of those claimed
``src:d``                 set     names of imported sources and of the containers of committed crawls
``pending:q``             list    sources that were claimed
``pending:q:{name}``      string  there for as long as a claim lasts; with us its token
``rev:{digest}:s``        hash    crawl -> sum of the sizes of revisits that wait for an original, the digest with
                                  its label; ``rev:{digest}:c`` their number. Read and deleted only
``last_update_ts``        string  the time of the last import
========================  ======  ===============================================================

Beside them, what Browsertrix has no field for:

===========================  ======  ============================================================
``dedupe:index``             hash    ``format`` 1, ``payload`` ``stored`` or ``decoded`` as long as there are crawls,
                                     ``scanned``: the ``last_update_ts`` up to which ``rev:`` keys were looked
                                     for, ``ended``: how many sources have ended, ``swapped``: who last put a new
                                     merged index in its place
``dedupe:canceled``          hash    canceled crawl -> when it was started, a space and its software, as they were
``dedupe:crawl:{crawl}``     hash    ``started``, ``committed``, ``software``, ``stats`` (JSON), ``incomplete``,
                                     ``imported``, ``concurrent``, ``replaced`` (by which crawl), ``token``: those
                                     of the last additions, 8 bytes each; ``committing``, ``canceling``,
                                     ``resetting``: the token of what is under way or was cut off; ``since`` and
                                     ``ended``: how many sources of the index had ended when the crawl began, and
                                     with the last one of its own
``dedupe:files:{crawl}``     zset    WARC file -> its number from 0. Where a renaming gives two numbers one
                                     name, that of the second is followed by 0x00 and its number
``dedupe:where:{crawl}``     hash    first 16 bytes of the packed digest -> place of the record; empty if
                                     two digests of the crawl should ever begin alike
``dedupe:urls:{crawl}``      hash    hash of a URL -> what the crawl recorded last of it
``dedupe:needs:{crawl}``     set     the containers of other crawls that its revisits refer to
``dedupe:waiting:{crawl}``   hash    digest -> ``SIZE:COUNT,...`` of the revisits whose original is not known
``dedupe:waiters``           set     the crawls that have such revisits
``dedupe:revs``              set     digests with ``rev:`` keys of another program
``dedupe:sources:{crawl}``   set     the names of the sources that were imported into it
``dedupe:hidden:{crawl}``    hash    WARC file -> the source that alone has it and has not ended, or nothing if
                                     that was dropped
``dedupe:report:{crawl}``     string  what was seen during it (see :class:`~.base.ReportStore`); the crawl need not be one
                                     of the index
``dedupe:reports``           set     the crawls that have such a key
``dedupe:committing``        set     crawls with a commit that is under way or was cut off
``dedupe:concurrent``        set     uncommitted crawls whose digests are in ``alldupes`` from the start
===========================  ======  ============================================================

Of a source that was begun and has not ended; those in ``dedupe:merging`` have ended, and their URLs and waiting
revisits are still to be moved to those of their crawl:

==========================  ======  =============================================================
``dedupe:begun``            hash    name -> its state (``n`` being entered, ``e`` ending, ``d`` being dropped), then
                                    ``+`` if the place of its container was added for it, else ``-``, then the
                                    token of the claim, without a brace, or nothing, then JSON
``dedupe:newurls:{name}``   hash    as ``dedupe:urls``
``dedupe:newwaits:{name}``  hash    as ``dedupe:waiting``
``dedupe:entered:{name}``   set     the digests in ``h:{crawl}`` that are its records: no other crawl finds them
``dedupe:spare:{name}``     hash    digest -> the record that it has too of a digest of another such source
``dedupe:newfiles:{name}``  set     its WARC files
``dedupe:merging``          hash    name -> crawl, of sources that have ended
``dedupe:claims``           hash    name -> token, of sources that were claimed and are not done; also when the claim
                                    has lapsed, until another process claims it
==========================  ======  =============================================================

While the merged index is made anew:

======================  ======  =================================================================
``dedupe:rebuilding``   string  who makes it; it lapses with him
``dedupe:alldupes``     hash    what ``alldupes`` will be
``dedupe:rebuilt``      set     the crawls that are in it
``dedupe:removing``     set     the crawls that will not be
``dedupe:replacing``    hash    a crawl that is replaced -> the crawl whose records it will have
======================  ======  =================================================================
"""

from __future__ import annotations

MARK = "dedupe:index"
COMMITTING = "dedupe:committing"
CONCURRENT = "dedupe:concurrent"
BEGUN = "dedupe:begun"
REBUILDING = "dedupe:rebuilding"
MERGING = "dedupe:merging"
WAITERS = "dedupe:waiters"
REVS = "dedupe:revs"
REPORTS = "dedupe:reports"
COMMITTED = "allcrawls"
UNCOMMITTED = "uncommittedcrawls"
MARKED = "canceledcrawls"
CANCELED = "dedupe:canceled"
DUPES = "alldupes"
TOTALS = "allcounts"
QUEUE = "src:q"
QUEUED = "src:qset"
DONE_SOURCES = "src:d"
CLAIMED = "pending:q"
LAST_IMPORT = "last_update_ts"

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


def waiting(crawl: str) -> str:
    """The key of the payloads that revisits of a crawl name and that are not in the index."""
    return f"dedupe:waiting:{crawl}"


def hidden(crawl: str) -> str:
    """The key of the WARC files of sources that have not ended."""
    return f"dedupe:hidden:{crawl}"


def sources(crawl: str) -> str:
    """The key of the names of what was imported into a crawl."""
    return f"dedupe:sources:{crawl}"


def report(crawl: str) -> str:
    """The key of what was seen during a crawl."""
    return f"dedupe:report:{crawl}"


def entered(name: str) -> str:
    """The key of the digests that a source has entered."""
    return f"dedupe:entered:{name}"


def types(crawl: str) -> dict[str, str]:
    """The keys that a crawl uses, each with the type that it has if it is there."""
    return {
        MARK: "hash",
        meta(crawl): "hash",
        COMMITTED: "set",
        UNCOMMITTED: "set",
        MARKED: "set",
        CANCELED: "hash",
        COMMITTING: "set",
        CONCURRENT: "set",
        DUPES: "hash",
        TOTALS: "hash",
        DONE_SOURCES: "set",
        QUEUE: "list",
        QUEUED: "set",
        CLAIMED: "list",
        "dedupe:claims": "hash",
        BEGUN: "hash",
        MERGING: "hash",
        WAITERS: "set",
        records(crawl): "hash",
        counts(crawl): "hash",
        wacz(crawl): "list",
        files(crawl): "zset",
        where(crawl): "hash",
        urls(crawl): "hash",
        needs(crawl): "set",
        waiting(crawl): "hash",
        hidden(crawl): "hash",
        sources(crawl): "set",
        report(crawl): "string",
        REPORTS: "set",
    }


def source_types(name: str) -> dict[str, str]:
    """The keys that a source uses, each with the type that it has if it is there."""
    return {
        f"{CLAIMED}:{name}": "string",
        entered(name): "set",
        f"dedupe:spare:{name}": "hash",
        f"dedupe:newurls:{name}": "hash",
        f"dedupe:newwaits:{name}": "hash",
        f"dedupe:newfiles:{name}": "set",
    }
