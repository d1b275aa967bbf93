"""A project that uses SQLite does not pay for importing optional parts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import sys
from contextlib import closing
from scrapy_dedupe.content import Judge, Page
from scrapy_dedupe.stores import open_store

with closing(open_store(sys.argv[1])) as store:
    judge = Judge(store.content)
    page = Page(url="http://a.example/", crawl="crawl", kind="html", text="<p>One page with a text.")
    judge.find([judge.read(page)])
for name in ("redis", "datasketch"):
    assert name not in sys.modules, name
"""


def test_an_sqlite_store_and_a_judge_import_neither_redis_nor_datasketch(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dedupe.sqlite'}"
    done = subprocess.run([sys.executable, "-c", _PROGRAM, url], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_CRAWL = """
import sys
from scrapy import Spider
from scrapy.crawler import CrawlerProcess


class OnePage(Spider):
    name = "one"
    start_urls = ["data:text/html,<p>One page with a text."]

    def parse(self, response):
        assert response.meta["dedupe"].kind == "unique"


process = CrawlerProcess({"ADDONS": {"scrapy_dedupe.Addon": 500}})
process.crawl(OnePage)
process.start()
for name in ("redis", "datasketch", "duckdb", "fsspec", "jinja2", "prometheus_client", "vl_convert"):
    assert name not in sys.modules, name
"""


def test_a_crawl_with_default_settings_imports_no_optional_part(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CRAWL], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "'dedupe/content/unique': 1" in done.stderr
