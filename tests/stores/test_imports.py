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
