"""The WARC files of a running crawl: recording, packing, commit, upload and replay."""

from __future__ import annotations

import scrapy

from scrapy_dedupe import __version__

SOFTWARE = f"scrapy-dedupe/{__version__} Scrapy/{scrapy.__version__}"
"""The ``software`` field of warcinfo records and WACZ files."""
