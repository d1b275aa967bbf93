"""``scrapy check``, ``parse``, ``fetch``, ``view`` and ``shell`` are not crawls: nothing is recorded or remembered."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import redis
from archives import files_of
from programs import Program
from sampling import sampled

if TYPE_CHECKING:
    from pathlib import Path

    from webserver import WebServer

SPIDER = '''
import scrapy


class Birds(scrapy.Spider):
    name = "birds"
    start_urls = ["{url}"]

    def parse(self, response):
        """
        @url {url}
        @returns items 1 1
        @returns requests 1 1
        """
        yield {{"url": response.url, "kind": response.meta["dedupe"].kind}}
        yield response.follow("{twin}")
'''

SETTINGS = """
SPIDER_MODULES = ["spiders"]
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "WARNING"
DEDUPE_STORE_URL = {store!r}
DEDUPE_ACTION_UNCHANGED = "drop"
DEDUPE_PASSAGES = True
DEDUPE_REPORT = "report.html"
DEDUPE_DUPLICATES_LOG = "duplicates.jsonl"
DEDUPE_METRICS_FILE = "metrics.prom"
"""

ADDON = 'ADDONS = {"scrapy_dedupe.Addon": 500}\n'

CLASSES = """
DUPEFILTER_CLASS = "scrapy_dedupe.dupefilters.BloomDupeFilter"
DOWNLOADER_MIDDLEWARES = {
    "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 543,
    "scrapy_dedupe.downloadermiddlewares.ProvenanceMiddleware": 540,
}
SPIDER_MIDDLEWARES = {"scrapy_dedupe.spidermiddlewares.ProvenanceSpiderMiddleware": 950}
DEDUPE_WARC_ITEM_FIELD = "record"
ITEM_PIPELINES = {"scrapy_dedupe.pipelines.WarcPipeline": 900}
EXTENSIONS = {
    "scrapy_dedupe.extensions.PassageExtension": 500,
    "scrapy_dedupe.extensions.ReportExtension": 500,
    "scrapy_dedupe.extensions.DuplicatesLogExtension": 500,
    "scrapy_dedupe.extensions.MetricsExtension": 500,
}
# All that the shell sets itself.
KEEP_ALIVE = True
LOGSTATS_INTERVAL = 60.0
REMOTE_CONTROL_ENABLED = False
"""

BODY = "<html><title>Reed</title>" + "<p>The reed warbler sings by night as well." * 60


def _start(project: Path, *words: str) -> Program:
    # `scrapy view` must not open a browser.
    environment = {"BROWSER": "true", "TMPDIR": str(project.parent)}
    return Program("python", "-W", "ignore", "-m", "scrapy", *words, cwd=project, env=environment)


def _errors(written: str) -> list[str]:
    """The lines of stderr, without the warning of Scrapy's client that works without the Twisted reactor."""
    return [line for line in written.splitlines() if "DownloadHandler is experimental" not in line]


def _paths(project: Path) -> set[str]:
    """All that is there but what Scrapy itself keeps of a job."""
    paths = {path.relative_to(project) for path in project.rglob("*")}
    scrapy_s = re.compile(r".*__pycache__.*|jobs(/\w+(/spider\.state|/requests\.queue.*)?)?")
    return {text for path in paths if not scrapy_s.fullmatch(text := path.as_posix())}


@pytest.mark.parametrize("way", sampled(["addon", "classes"], ["addon"]))
def test_commands_that_look_at_pages_leave_no_trace(
    way: str, web: WebServer, tmp_path: Path, redis_url: str
) -> None:
    web.page("/", BODY)
    web.page("/twin", BODY)
    store = "sqlite:///dedupe.sqlite" if way == "addon" else redis_url
    project = tmp_path / "project"
    project.mkdir()
    (project / "scrapy.cfg").write_text("[settings]\ndefault = settings\n")
    (project / "settings.py").write_text(
        SETTINGS.format(store=store) + (ADDON if way == "addon" else CLASSES)
    )
    (project / "spiders.py").write_text(SPIDER.format(url=web.url(), twin=web.url("/twin")))
    before = _paths(project)
    looks = {
        "check": ["check"],
        "parse": ["parse", "--spider", "birds", "--nocolour", "-d", "2", "--pipelines", web.url()],
        "fetch": ["fetch", web.url()],
        "view": ["view", web.url()],
        "shell": ["shell", "-c", 'response.meta["dedupe"].kind', web.url()],
    }
    # A second check finds what the first one found.
    for commands in (looks, {"check": looks["check"]}):
        # Not for the shell: in a queue on disk Scrapy loses what waits for its request.
        running = {
            name: _start(project, *words, "-s", "JOBDIR=" + (f"jobs/{name}" if name != "shell" else ""))
            for name, words in commands.items()
        }
        outputs = {name: process.communicate(timeout=120) for name, process in running.items()}
        assert {process.returncode for process in running.values()} == {0}, outputs
        assert not [name for name, (_, error) in outputs.items() if name != "check" and _errors(error)], (
            outputs
        )
        assert _paths(project) == before
        assert "Ran 2 contracts" in outputs["check"][1]
        assert "OK" in outputs["check"][1]
        if "parse" in outputs:
            assert outputs["parse"][0].count("'kind': 'unique'") == 2
            assert outputs["fetch"][0].strip() == BODY
            assert outputs["shell"][0].strip() == "unique"
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == []
    crawl = _start(project, "crawl", "birds", "-O", "items.json", "-s", "JOBDIR=jobs/parse")
    _, errors = crawl.communicate(timeout=240)
    assert crawl.returncode == 0, errors
    items = json.loads((project / "items.json").read_text())
    assert [item["kind"] for item in items] == ["unique", "exact"]
    assert len(files_of(project / "warcs")) == 1
    assert (project / "jobs" / "parse" / "dedupe" / "urls").is_dir()
    assert _errors(errors) == []
