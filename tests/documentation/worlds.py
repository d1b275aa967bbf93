"""The world of each page: what stands in its folder before the first block is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class World:
    """What a page needs.

    ``stands``: ``"project"`` (a Scrapy project with the add-on and the spider ``site``), ``"checkout"`` (the example
    project and the files beside it). ``prepared``: lines of bash, run in the folder before the first block; ``before``:
    such lines by the beginning of the console lines that they go before. ``scripts``: Python that goes before the first
    script. ``ports``: ports of this machine that the page names and that are another, free one. ``machines``: names of
    machines in prompts, each with a folder, which is also at http://NAME/. ``warnings``: patterns of lines that crawls may
    log as warning or error. ``not_run``: why a console line that begins so cannot be run; look for another way first.
    """

    stands: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: str = ""
    settings_add_up: bool = False
    ports: tuple[int, ...] = ()
    machines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    synopses: bool = False
    not_run: Mapping[str, str] = field(default_factory=dict)

    def expects(self, line: str) -> bool:
        """Whether a crawl may log this."""
        return any(re.search(pattern, line) for pattern in self.warnings)


PROJECT = ("project",)
CHECKOUT = ("checkout",)

ID = "site-20261128093000-5f0c2a17"
ANEW = "rm -rf .scrapy warcs wacz"
UNCOMMITTED = f"scrapy crawl site -s DEDUPE_CRAWL_ID={ID} -s DEDUPE_COMMIT_REASONS=shutdown"


def other(crawl: str, *options: str) -> str:
    """A crawl that the store of the project knows nothing of, with its files in a folder of that name."""
    words = [
        f"scrapy crawl site -s DEDUPE_STORE_URL=sqlite:///{crawl}.sqlite -s DEDUPE_CRAWL_ID={crawl}",
        f"-s DEDUPE_WARC_DIR={crawl} -s DEDUPE_WACZ_DIR={crawl}",
        *options,
    ]
    return " ".join(words)


WACZ = "-s DEDUPE_WACZ=True"
LETTER = "printf 'A heron walked through the reeds this morning and nobody saw it %.0s' 1 2 3 > letter.txt"
PAGES = (
    "mkdir site && for page in '' news herons herons/print; do"
    " curl https://example.org/$page > site/page-${page//\\//-}.html; done"
)
SCRAPY_REDIS = "Passing a 'spider' argument to StatsCollector"

WORLDS: dict[str, World] = {
    "README.md": World(
        ("checkout", "project"),
        prepared=(
            other("first"),
            other("second"),
            "mkdir old && cp first/* second/* old",
            other("museum", WACZ),
            "cp museum/*.wacz . && cp museum/museum.multi-wacz.json collection.json",
            LETTER,
        ),
        before={
            "scrapy-dedupe dedupe old -r -o clean": ("rm -rf clean",),
            "scrapy-dedupe passages index": ("scrapy crawl site -s DEDUPE_STORE_URL=sqlite:///third.sqlite",),
            "scrapy crawl site -s DEDUPE_REPLAY": ("mkdir wacz && cp museum/*.wacz wacz",),
        },
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
        prepared=(
            other("one", WACZ),
            "cp one/one.multi-wacz.json collection.json && cp one/*.wacz .",
            other("two", WACZ),
            "cp two/two.wacz old.wacz",
            other("three", WACZ),
            "cp three/three.wacz new.wacz",
            other("four"),
            "mkdir warcs && cp four/* warcs",
            other("five"),
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
    "docs/usage/replay.rst": World(
        PROJECT,
        prepared=(
            other("one", WACZ),
            other("two"),
            "mkdir wacz && cp one/one.wacz wacz/site-20261128.wacz && mv two warcs",
        ),
    ),
    "docs/usage/resume.rst": World(PROJECT),
    "docs/usage/storage.rst": World(
        PROJECT,
        prepared=("scrapy crawl site",),
        before={"scrapy dedupe warc upload": ("cp -r warcs kept",)},
        scripts="import glob, shutil\n"
        "shutil.copy(glob.glob('kept/*')[0], 'warcs/site-20261128093000123-00000-host.warc.gz')\n",
    ),
    "docs/usage/afterwards.rst": World(
        PROJECT,
        machines=("host1", "host2"),
        prepared=(
            other("one"),
            other("two"),
            "mkdir warcs host1/host1 host2/host2 && cp one/* two/* warcs && mv one/* host1/host1 && mv two/* host2/host2",
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
    "docs/reference/duplicates_log.rst": World(PROJECT),
    "docs/reference/meta.rst": World(PROJECT),
    "docs/reference/commands.rst": World(synopses=True),
}
