from __future__ import annotations

import pytest

from scrapy_dedupe.warc.codings import payload_mode


@pytest.mark.parametrize(
    ("software", "mode"),
    [
        ("Browsertrix-Crawler 1.14.1 (with warcio.js 2.4.7)", "decoded"),
        ("Webrecorder ArchiveWeb.page 0.15.2, using warcio.js 2.4.2", "decoded"),
        ("Webrecorder wabac.js/warcio.js", "decoded"),
        ("warcio.js", "decoded"),
        ("scrapy-dedupe 0.1.0", "stored"),
        ("Heritrix/3.4.0-20220727 http://archive.org", "stored"),
        ("Wget/1.21.3 (linux-gnu)", "stored"),
        ("Wget-AT 1.21.3", "stored"),
        ("warcprox 2.4.27", "stored"),
        ("brozzler 1.5", "stored"),
        ("wpull/2.0.3", "stored"),
        ("Zeno 2.0.1", "stored"),
        ("gowarc", "stored"),
        ("Webrecorder Platform v3.7", None),
        ("py-wacz 0.6.0", None),
        ("Scrapy/2.13", None),
        ("zenodo", None),
        ("", None),
        (None, None),
    ],
)
def test_the_software_tells_how_it_hashes_or_nothing_does(software, mode):
    assert payload_mode(software) == mode
