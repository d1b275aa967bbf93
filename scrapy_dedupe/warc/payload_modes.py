"""How the programs that write archives hash payloads.

``stored``: the digest is that of the body as the server sent it, content coding kept; ``decoded``: that of the body
without it, as a browser hands it over. Both are written as WARC-Payload-Digest, so that only the name of the program,
in warcinfo or in the datapackage.json of a WACZ, tells which one it is.
"""

from __future__ import annotations

import re

STORED = "stored"
DECODED = "decoded"

# The first one that fits decides. Programs that drive a browser come first: they name the libraries that they use, too.
_WRITERS = (
    # The server of that name recorded what went through its proxy; what its digests are of is not known for certain.
    (re.compile(r"webrecorder (platform|player)", re.IGNORECASE), None),
    (
        re.compile(
            r"browsertrix|archiveweb\.?page|express\.archiveweb|webrecorder|warcio\.js|wabac",
            re.IGNORECASE,
        ),
        DECODED,
    ),
    (
        re.compile(
            r"scrapy-dedupe|heritrix|\bwget\b|wget-(at|lua)|wpull|grab-site|warcprox|brozzler|\bzeno\b|gowarc"
            r"|httrack|netarchivesuite",
            re.IGNORECASE,
        ),
        STORED,
    ),
)


def payload_mode(software: str | None) -> str | None:
    """``stored`` or ``decoded``, by what a file says of the software that wrote it; None if that does not tell.

    A file of scrapy-dedupe with decoded bodies says so itself, in a field of its own.

    >>> payload_mode("Browsertrix-Crawler 1.14.1 (with warcio.js 2.4.7)")
    'decoded'
    >>> payload_mode("Heritrix/3.4.0 http://archive.org")
    'stored'
    >>> payload_mode("py-wacz 0.6.0") is None
    True
    """
    if software is None:
        return None
    return next((mode for pattern, mode in _WRITERS if pattern.search(software)), None)
