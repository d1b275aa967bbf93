"""Which body the payload digests of other programs are computed from.

``stored``: the body as the server sent it, with its content coding. ``decoded``: the body without content coding, as a
browser provides it. Both are written as WARC-Payload-Digest; only the name of the program, in warcinfo or in the
datapackage.json of a WACZ, shows which one it is.
"""

from __future__ import annotations

import re

STORED = "stored"
DECODED = "decoded"

# The first match decides. Programs that drive a browser come first, since they also name the libraries that they use.
_WRITERS = (
    # The Webrecorder server recorded through a proxy; it is unknown from which body it computed its digests.
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
    """``stored`` or ``decoded``, from the software that a file names; None if unknown.

    A file of scrapy-dedupe with decoded bodies has its own field for this.

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
