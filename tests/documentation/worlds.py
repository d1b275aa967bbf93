"""The world of each page: what stands in its folder before the first block is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WITHOUT_REACTOR = "DownloadHandler is experimental"
"""What Scrapy says of the client that it takes without the Twisted reactor."""


@dataclass(frozen=True)
class World:
    """What a page needs.

    ``stands``: ``"project"`` (a Scrapy project with the add-on and the spider ``site``), ``"checkout"`` (the example
    project and the files beside it). ``archives``: names of crawls (it needs the project), each a folder with the WARC files and the WACZ. ``prepared``: lines of bash, run in the folder before the first block; ``before``:
    such lines by the beginning of the console lines that they go before. ``scripts``: Python that goes before the first
    script. ``ports``: ports of this machine that the page names and that are another, free one. ``machines``: names of
    machines in prompts, each with a folder, which is also at http://NAME/. ``warnings``: patterns of lines that crawls may
    log as warning or error. ``not_run``: why a console line that begins so cannot be run; look for another way first.
    ``after``: a page that readers of this one have followed up to its first crawl.
    """

    stands: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: str = ""
    settings_add_up: bool = False
    ports: tuple[int, ...] = ()
    machines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    synopses: bool = False
    not_run: Mapping[str, str] = field(default_factory=dict)
    after: str = ""

    def expects(self, line: str) -> bool:
        """Whether a crawl may log this."""
        return any(re.search(pattern, line) for pattern in (*self.warnings, WITHOUT_REACTOR))


PROJECT = ("project",)
CHECKOUT = ("checkout",)
GUIDE = World(after="docs/start.rst", ports=(8000,))

ID = "site-20261128093000-5f0c2a17"
ANEW = "rm -rf .scrapy warcs wacz"
UNCOMMITTED = f"scrapy crawl site -s DEDUPE_CRAWL_ID={ID} -s DEDUPE_COMMIT_REASONS=shutdown"


LETTER = "printf 'A heron walked through the reeds this morning and nobody saw it %.0s' 1 2 3 > letter.txt"
PAGES = (
    "mkdir site && for page in '' news herons herons/print; do"
    " curl https://example.org/$page > site/page-${page//\\//-}.html; done"
)
SCRAPY_REDIS = "Passing a 'spider' argument to StatsCollector"

WORLDS: dict[str, World] = {
    "README.md": World(
        ("checkout", "project"),
        archives=("one", "two", "three"),
        prepared=(
            "mkdir old warcs wacz && cp one/*.gz two/*.gz old && cp three/*.gz warcs && cp three/*.wacz wacz",
            "cp three/three.wacz . && cp three/three.multi-wacz.json collection.json",
            LETTER,
        ),
        ports=(8377,),
    ),
    "docs/contributing.rst": World(CHECKOUT),
    "docs/example.rst": World(
        CHECKOUT,
        prepared=("mkdir scrapy-dedupe && cp -r example_project pyproject.toml scrapy-dedupe",),
        ports=(8377,),
        not_run={"git clone <": "the address of the repository is the reader's to fill in"},
    ),
    "docs/index.rst": World(PROJECT),
    "docs/setup.rst": World(PROJECT),
    "docs/start.rst": World(ports=(8000,)),
    "docs/guides/broad_crawl.rst": GUIDE,
    "docs/guides/recrawl.rst": GUIDE,
    "docs/guides/each_page_once.rst": GUIDE,
    "docs/guides/archive_and_replay.rst": replace(
        GUIDE, not_run={"pywb/bin/": "pywb wants older packages than the tests; tox -e replay runs it"}
    ),
    "docs/guides/shared_index.rst": replace(
        GUIDE,
        not_run={"docker run": "there may be no Docker", "redis-server": "this world has its Redis already"},
    ),
    "docs/guides/old_archive.rst": GUIDE,
    "docs/guides/copied_text.rst": GUIDE,
    "docs/usage/urls.rst": World(
        PROJECT, prepared=("scrapy crawl site -s JOBDIR=jobs/site-1",), warnings=(SCRAPY_REDIS,)
    ),
    "docs/usage/content.rst": World(PROJECT),
    "docs/usage/library.rst": World(),
    "docs/usage/archive.rst": World(
        PROJECT,
        before={
            "scrapy dedupe crawls": (UNCOMMITTED,),
            "scrapy dedupe cancel": (ANEW, UNCOMMITTED),
        },
    ),
    "docs/usage/wacz.rst": World(PROJECT),
    "docs/usage/crawl_index.rst": World(
        PROJECT,
        archives=("one", "two", "three", "four", "five"),
        prepared=(
            "cp one/one.multi-wacz.json collection.json && cp one/one.wacz .",
            "cp two/two.wacz old.wacz && cp three/three.wacz new.wacz",
            "mkdir warcs && cp four/*.gz warcs",
            "cp five/*.warc.gz . && cdxj-indexer *.warc.gz > index.cdxj",
        ),
        before={
            "scrapy dedupe commit": (UNCOMMITTED,),
            "scrapy dedupe cancel": (ANEW, UNCOMMITTED),
            "scrapy dedupe import collection.json": ("rm -rf .scrapy",),
            "scrapy dedupe purge museum-2019": (
                "scrapy dedupe import four/*.warc.gz --crawl-id museum-2019",
            ),
            "scrapy dedupe crawls show": (ANEW, f"scrapy crawl site -s DEDUPE_CRAWL_ID={ID}"),
        },
    ),
    "docs/usage/handlers.rst": World(PROJECT),
    "docs/usage/monitoring.rst": World(PROJECT, ports=(9410,)),
    "docs/usage/replay.rst": World(
        PROJECT,
        archives=("one", "two"),
        prepared=("mkdir wacz warcs && cp one/one.wacz wacz/site-20261128.wacz && cp two/*.gz warcs",),
    ),
    "docs/usage/resume.rst": World(PROJECT),
    "docs/usage/troubleshooting.rst": World(PROJECT),
    "docs/usage/storage.rst": World(
        PROJECT,
        prepared=("scrapy crawl site",),
        before={"scrapy dedupe warc upload": ("cp -r warcs kept",)},
        scripts="import glob, shutil\n"
        "shutil.copy(glob.glob('kept/*')[0], 'warcs/site-20261128093000123-00000-host.warc.gz')\n",
    ),
    "docs/usage/offline.rst": World(
        PROJECT,
        machines=("host1", "host2"),
        archives=("one", "two"),
        prepared=(
            "mkdir warcs host1/host1 host2/host2 && cp one/*.gz two/*.gz warcs",
            "cp one/*.gz host1/host1 && cp two/*.gz host2/host2",
        ),
    ),
    "docs/usage/beyond_one_machine.rst": World(
        not_run={
            "scrapy-dedupe": "pyspark is not among the packages of the tests; tox -e spark runs it",
            "spark-submit": "there is no cluster",
        }
    ),
    "docs/usage/near.rst": World(
        PROJECT, archives=("one", "two"), prepared=("mkdir archive && cp one/*.gz two/*.gz archive",)
    ),
    "docs/usage/report.rst": World(
        PROJECT,
        prepared=(
            "scrapy crawl site -s DEDUPE_CRAWL_ID=site-1",
            "scrapy crawl site -s DEDUPE_CRAWL_ID=site-2",
        ),
    ),
    "docs/usage/passages.rst": World(
        PROJECT,
        prepared=(
            PAGES,
            LETTER,
        ),
        scripts="text_a = text_b = text_c = 'A heron walked through the reeds this morning and nobody saw it ' * 3",
    ),
    "docs/reference/url_rules.rst": World(),
    "docs/reference/duplicates_log.rst": World(PROJECT),
    "docs/reference/meta.rst": World(PROJECT),
    "docs/reference/commands.rst": World(synopses=True),
}
