"""The keys of the crawl index in Redis or Valkey: those of Browsertrix, and additional ones of this package.

These keys have exactly Browsertrix's format, so that both crawlers can use one index:

========================  ======  ===============================================================
``h:{crawl}``             hash    digest without label -> entry (see :mod:`.index_values`)
``h:{crawl}:counts``      hash    ``totalUrls``, ``dupeUrls``, ``conservedSize``, ``totalCrawlSize``
``c:{crawl}:wacz``        list    the crawl's containers, JSON with ``filename``, ``hash``, ``size``
``uncommittedcrawls``     set     crawl ids; ``allcrawls`` has all committed crawls, even if they are in another set
``canceledcrawls``        set     members of ``allcrawls`` that Browsertrix's next removal forgets (``--cancelCrawlId``
                                  of a committed crawl)
``alldupes``              hash    digest -> the crawl whose record is the original
``allcounts``             hash    the sums over the committed crawls; ``updateProgress``, ``removedCrawls``,
                                  ``removedCrawlSize``
``src:q``                 list    sources to import, JSON (see :mod:`.index_values`); the last item is the next source
``src:qset``              set     the names of queued sources; this package also keeps claimed ones here
``src:d``                 set     names of imported sources and of the containers of committed crawls
``pending:q``             list    claimed sources
``pending:q:{name}``      string  exists as long as a claim is valid; this package stores the token in it
``rev:{digest}:s``        hash    crawl -> sum of the sizes of revisits that wait for an original; the digest has its
                                  label. ``rev:{digest}:c``: their number. This package only reads and deletes them
``last_update_ts``        string  the time of the last import
========================  ======  ===============================================================

Additional keys, for data that Browsertrix has no field for:

===========================  ======  ============================================================
``dedupe:index``             hash    ``format`` 2; ``payload``: ``stored`` or ``decoded``, while there are crawls;
                                     ``scanned``: the ``last_update_ts`` up to which ``rev:`` keys were searched;
                                     ``ended``: the number of sources that have ended; ``swapped``: the process that
                                     last replaced the merged index
``dedupe:canceled``          hash    canceled crawl -> its start time, a space and its software
``dedupe:crawl:{crawl}``     hash    ``started``, ``committed``, ``software``, ``stats`` (JSON), ``incomplete``,
                                     ``imported``, ``concurrent``, ``replaced`` (by this crawl), ``token``: those of
                                     the last additions, 8 bytes each; ``committing``, ``canceling``, ``resetting``:
                                     the token of an operation that is running or was interrupted; ``since`` and
                                     ``ended``: the number of sources of the index that had ended when the crawl
                                     began, and when its own last source ended
``dedupe:files:{crawl}``     zset    WARC file -> its number from 0. If a renaming gives two numbers one name, the
                                     name of the second is followed by 0x00 and its number
``dedupe:where:{crawl}``     hash    first 16 bytes of the packed digest -> place of the record; empty if two digests
                                     of the crawl have the same first bytes
``dedupe:urls:{crawl}``      hash    hash of a URL -> the last capture of the URL in this crawl
``dedupe:needs:{crawl}``     set     the containers of other crawls that its revisits refer to
``dedupe:waiting:{crawl}``   hash    digest -> ``SIZE:COUNT,...`` of the revisits whose original is unknown
``dedupe:waiters``           set     the crawls that have such revisits
``dedupe:revs``              set     digests with ``rev:`` keys of another program
``dedupe:sources:{crawl}``   set     the names of the sources that were imported into it
``dedupe:hidden:{crawl}``    hash    WARC file -> the only source that has it, which has not ended; empty if that
                                     source was dropped
``dedupe:reports``           hash    crawl -> its report data (see :class:`~.redis.RedisReports`); the crawl need not be in
                                     the index
``dedupe:committing``        set     crawls with a commit that is running or was interrupted
``dedupe:concurrent``        set     uncommitted crawls whose digests are in ``alldupes`` from the start
===========================  ======  ============================================================

Keys of sources that were begun and have not ended. The sources in ``dedupe:merging`` have ended, but their URLs and
waiting revisits have not yet been moved to the keys of their crawl:

==========================  ======  =============================================================
``dedupe:begun``            hash    name -> its state (``n`` adding records, ``e`` ending, ``d`` being dropped), then
                                    ``+`` if the position of its container was added for it, otherwise ``-``, then
                                    the token of the claim (without a brace) or nothing, then JSON
``dedupe:newurls:{name}``   hash    as ``dedupe:urls``
``dedupe:newwaits:{name}``  hash    as ``dedupe:waiting``; the empty field has the number of batches that were added
``dedupe:entered:{name}``   set     the digests in ``h:{crawl}`` that are its records, hidden from other crawls
``dedupe:spare:{name}``     hash    digest -> its own record of a digest that another such source has added first
``dedupe:newfiles:{name}``  set     its WARC files
``dedupe:merging``          hash    name -> crawl, of sources that have ended
``dedupe:claims``           hash    name -> token, of sources that were claimed and are not done; kept after the claim
                                    has expired until another process claims the source
==========================  ======  =============================================================

Keys that exist while a new merged index is built:

======================  ======  =================================================================
``dedupe:rebuilding``   string  the process that builds it; expires if the process stops
``dedupe:alldupes``     hash    the new ``alldupes``
``dedupe:rebuilt``      set     the crawls that are in the new index
``dedupe:removing``     set     the crawls that are left out of it
``dedupe:replacing``    hash    a crawl that is replaced -> the crawl whose records replace its own
======================  ======  =================================================================
"""

from __future__ import annotations

MARK = "dedupe:index"
COMMITTING = "dedupe:committing"
CONCURRENT = "dedupe:concurrent"
BEGUN = "dedupe:begun"
CLAIMS = "dedupe:claims"
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


# The keys of a crawl or source, which the tables above describe, as functions of its id or name.
counts = "h:{}:counts".format
wacz = "c:{}:wacz".format
meta = "dedupe:crawl:{}".format
files = "dedupe:files:{}".format
where = "dedupe:where:{}".format
needs = "dedupe:needs:{}".format
waiting = "dedupe:waiting:{}".format
hidden = "dedupe:hidden:{}".format
entered = "dedupe:entered:{}".format


def types(crawl: str, source: str | None = None) -> list[str]:
    """The keys that a crawl, and a source of it, use, each followed by its type."""
    hashes = [
        MARK, CANCELED, DUPES, TOTALS, CLAIMS, BEGUN, MERGING, REPORTS, f"h:{crawl}", counts(crawl), meta(crawl),
        where(crawl), f"dedupe:urls:{crawl}", waiting(crawl), hidden(crawl),
    ]  # fmt: skip
    sets = [
        COMMITTED, UNCOMMITTED, MARKED, COMMITTING, CONCURRENT, DONE_SOURCES, QUEUED, WAITERS, needs(crawl),
        f"dedupe:sources:{crawl}",
    ]  # fmt: skip
    by_type = {"hash": hashes, "set": sets, "list": [QUEUE, CLAIMED, wacz(crawl)], "zset": [files(crawl)]}
    if source is not None:
        hashes += [f"dedupe:{kind}:{source}" for kind in ("spare", "newurls", "newwaits")]
        sets += [entered(source), f"dedupe:newfiles:{source}"]
        by_type["string"] = [f"{CLAIMED}:{source}"]
    return [word for kind, keys in by_type.items() for key in keys for word in (key, kind)]
