"""What a newcomer reads when something is not as it should be: each sentence says what to do."""

from __future__ import annotations

import platform
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from crawling import LinkSpider, collecting, crawl, crawl_test
from packaging.specifiers import SpecifierSet
from programs import run_program
from scrapy.utils.misc import load_object

import scrapy_dedupe
from scrapy_dedupe.commands.console import main
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.errors import CrawlStateError, SettingError, StoreUnavailable
from scrapy_dedupe.settings.placement import PLACES, misplaced, named_components
from scrapy_dedupe.settings.specs import faults_of
from scrapy_dedupe.stores import open_store, parse_store_url

if TYPE_CHECKING:
    from servers import RedisServer
    from webserver import WebServer

CONTENT = "scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware"
WARC = "scrapy_dedupe.pipelines.WarcPipeline"
BLOOM = "scrapy_dedupe.dupefilters.BloomDupeFilter"


def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """The one sentence that says why the crawl does not start."""
    told = [record.getMessage() for record in caplog.records if "does not start" in record.getMessage()]
    assert len(told) == 1
    return told[0]


async def refused(web: WebServer, settings: dict[str, Any], *, addon: bool = True) -> None:
    web.page("/", "<p>x")
    with pytest.raises(Exception):  # noqa: B017 - Scrapy may put an error of its own in place of ours
        await crawl(LinkSpider, settings, addon=addon, urls=web.url())
    assert web.paths == []


# Store URLs


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://localhost/x", "mysql is neither"),
        ("http://localhost:6379", "Did you mean redis://localhost:6379?"),
        ("redis:/localhost:6379/0", "Did you mean redis://localhost:6379/0?"),
        ("localhost:6379", "Did you mean redis://localhost:6379?"),
        ("C:\\data\\dedupe.db", "Did you mean sqlite:///C:/data/dedupe.db?"),
        ("dedupe.sqlite", "Did you mean sqlite:///dedupe.sqlite?"),
        ("/var/lib/dedupe.sqlite", "Did you mean sqlite:////var/lib/dedupe.sqlite?"),
        ("sqlite://dedupe.db", "Did you mean sqlite:///dedupe.db?"),
        ("redis://localhost:6379/zero", "the database 'zero' is not a number"),
        ("redis:", "Allowed: sqlite:///relative.db"),
    ],
)
def test_a_wrong_store_url_is_answered_with_the_right_one(url: str, words: str) -> None:
    faults = faults_of(_settings(DEDUPE_STORE_URL=url))
    assert len(faults) == 1
    assert faults[0].startswith("The setting DEDUPE_STORE_URL is ")
    assert words in faults[0]
    with pytest.raises(SettingError, match="--store is "):
        parse_store_url(url, "--store")


def test_a_password_in_a_wrong_store_url_is_told_to_nobody() -> None:
    for url in ("mysql://me:secret@host/x", "redis:/:secret@host/0", "https://me:secret@host:1/0"):
        with pytest.raises(SettingError) as caught:
            parse_store_url(url)
        assert "secret" not in str(caught.value)
        assert "secret" not in faults_of(_settings(DEDUPE_STORE_URL=url, DEDUPE_INDEX_URL=url))[1]


def _settings(**values: Any) -> Any:
    from scrapy.settings import Settings

    return Settings(values)


# Redis


def tried(url: str) -> None:
    with closing(open_store(url)) as store:
        store.probe()


def test_a_server_that_wants_a_password(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.acl_setuser(
            "reader", enabled=True, passwords=["+right"], keys=["*"], commands=["+ping", "+get"]
        )
        client.config_set("requirepass", "right")
    said = {}
    for name, user in (("none", ""), ("wrong", ":wrong@"), ("reader", "reader:right@")):
        with pytest.raises(StoreUnavailable) as caught:
            tried(redis_server.url.replace("//", f"//{user}"))
        said[name] = str(caught.value)
    assert "The server requires a password: redis://USER:PASSWORD@host:port/0" in said["none"]
    assert "Check the user and the password in the URL" in said["wrong"]
    assert "Allow the user in the URL to access all keys" in said["reader"]
    with open_index(redis_server.url.replace("//", "//:right@")) as index:
        assert index.crawls() == []


def test_a_server_without_tls_or_with_fewer_databases(redis_url: str) -> None:
    for url, words, timeout_s in (
        # It waits for the end of what it takes for a command.
        (redis_url.replace("redis:", "rediss:"), "write redis:// instead of rediss://", 1),
        (f"{redis_url[:-1]}99", "use a smaller number in the URL", 240),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            open_store(url, timeout_s=timeout_s)
        assert words in str(caught.value)


# Components


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"DOWNLOADER_MIDDLEWARES": {WARC: 543}}, f'Move it to ITEM_PIPELINES = {{"{WARC}": 900}}.'),
        ({"ITEM_PIPELINES": {CONTENT: 543}}, f'Move it to DOWNLOADER_MIDDLEWARES = {{"{CONTENT}": 543}}.'),
        ({"SPIDER_MIDDLEWARES": {CONTENT: 543}}, "Move it to DOWNLOADER_MIDDLEWARES"),
        ({"EXTENSIONS": {BLOOM: 543}}, f'Move it to DUPEFILTER_CLASS = "{BLOOM}".'),
        ({"DUPEFILTER_CLASS": WARC}, "Move it to ITEM_PIPELINES"),
        ({"EXTENSIONS": {"scrapy_dedupe.Addon": 1}}, 'Move it to ADDONS = {"scrapy_dedupe.Addon": 500}.'),
        ({"DOWNLOADER_MIDDLEWARES": {CONTENT: 595}}, "Give it an order below 590"),
    ],
)
@crawl_test
async def test_a_class_in_the_wrong_place_stops_the_start(
    web: WebServer,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, Any],
    words: str,
) -> None:
    await refused(web, settings | wrong, addon=False)
    assert words in refusal(caplog)


def test_every_class_has_its_place_there_and_under_the_addon() -> None:
    for path in PLACES:
        assert isinstance(load_object(path), type)
    values = {"DEDUPE_PASSAGES": True, "DEDUPE_REPLAY": ["x.wacz"], "DEDUPE_REPLAY_MISSING": "fetch"}
    settings = _settings(**values, DEDUPE_WARC_ITEM_FIELD="record", ADDONS={"scrapy_dedupe.Addon": 500})
    scrapy_dedupe.Addon().update_settings(settings)
    assert misplaced(settings) == []
    ours = {path for _, path in named_components(settings) if path.startswith("scrapy_dedupe.")}
    assert ours <= set(PLACES)
    assert len(ours) >= 8


@pytest.mark.parametrize("addon", ["AddOn", "ADDON", "Addons"])
@crawl_test
async def test_an_addon_that_is_misspelt(web: WebServer, settings: dict[str, Any], addon: str) -> None:
    with pytest.raises(SettingError, match=r'ADDONS = \{"scrapy_dedupe.Addon": 500\}'):
        await crawl(LinkSpider, {**settings, "ADDONS": {f"scrapy_dedupe.{addon}": 500}}, urls=web.url())
    assert not hasattr(scrapy_dedupe, "something_else")


@crawl_test
async def test_addon_and_classes_by_hand_are_one_and_the_same(
    web: WebServer, settings: dict[str, Any]
) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    by_hand = {
        "DUPEFILTER_CLASS": BLOOM,
        "DOWNLOADER_MIDDLEWARES": {CONTENT: 543},
        "ITEM_PIPELINES": {WARC: 900},
    }
    spider, items = collecting()
    crawler = await crawl(spider, settings | by_hand, urls=web.url())
    assert [item["kind"] for item in items] == ["unique"]
    stats = crawler.stats.get_stats()
    assert (stats["dedupe/content/unique"], stats["dedupe/warc/response"]) == (1, 1)


@crawl_test
async def test_decompression_that_is_turned_off_is_warned_of(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    crawler = await crawl(LinkSpider, {**settings, "COMPRESSION_ENABLED": False}, urls=web.url())
    assert crawler.stats.get_stats()["dedupe/content/unique"] == 1
    assert caplog.text.count("Enable it (COMPRESSION_ENABLED = True).") == 1


@crawl_test
async def test_a_setting_with_a_wrong_prefix_is_warned_of(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    await crawl(LinkSpider, {**settings, "SCRAPY_DEDUPE_STORE_URL": "x"}, urls=web.url())
    told = "The setting SCRAPY_DEDUPE_STORE_URL is unknown and has no effect; did you mean DEDUPE_STORE_URL?"
    assert caplog.messages.count(told) == 1


# Files


@crawl_test
async def test_the_job_of_scrapys_own_filter_goes_on(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    web.page("/", '<a href="/a">a</a>')
    web.page("/a", "<p>a")
    settings["JOBDIR"] = str(tmp_path / "job")
    await crawl(LinkSpider, settings, addon=False, urls=web.url())
    assert web.paths == ["/", "/a"]
    await crawl(LinkSpider, settings, urls=web.url())
    assert web.paths == ["/", "/a", "/"]
    assert "fingerprints from" in caplog.text


@crawl_test
async def test_a_store_and_a_filter_of_another_version(
    web: WebServer, settings: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    open_store(settings["DEDUPE_STORE_URL"]).close()
    connection = sqlite3.connect(tmp_path / "dedupe.sqlite")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    await refused(web, settings)
    assert "Upgrade scrapy-dedupe, or name another file in DEDUPE_STORE_URL." in refusal(caplog)


# Commands


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(str(stop.code))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["stat"], "stats"), (["docter"], "doctor"), (["crawls", "shw"], "show"), (["urls", "chek"], "check")],
)
def test_a_verb_that_is_misspelt(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, words: list[str], meant: str
) -> None:
    code, told = called(capsys, *words)
    assert code == 2
    assert told.splitlines()[-1].endswith(f"there is no verb {words[-1]!r}. Did you mean {meant}?")


def test_a_crawl_that_is_misspelt(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'dedupe.sqlite'}"
    with open_index(url) as index:
        index.start("site-20260801")
        for act in (index.commit, index.cancel):
            with pytest.raises(CrawlStateError, match=r"Did you mean site-20260801\?$"):
                act("site-20260802")
        with pytest.raises(CrawlStateError) as caught:
            index.commit("quite-another")
        assert "Did you mean" not in str(caught.value)
    for verb in (["commit"], ["cancel"], ["crawls", "show"], ["check"], ["purge"]):
        code, told = called(capsys, *verb, "site-20260802", "--store", url)
        assert code == 3
        assert told.endswith("Did you mean site-20260801?\n")


def test_outside_of_a_project_a_command_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    code, told = called(capsys, "stats")
    assert code == 3
    assert told.startswith("scrapy-dedupe stats: There is no store sqlite:///.scrapy/dedupe/dedupe.sqlite")
    assert len(told.splitlines()) == 1


# Other ways to run Scrapy


def run(folder: Path, *words: str, **settings: str) -> str:
    options = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    done = run_program("python", *words, *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


SPIDER = """
import scrapy


class One(scrapy.Spider):
    name = "one"
    custom_settings = {"ADDONS": {"scrapy_dedupe.Addon": 500}, "TELNETCONSOLE_ENABLED": False}

    def parse(self, response):
        yield {"kind": response.meta["dedupe"].kind}
"""


def test_a_spider_in_a_file_of_its_own(web: WebServer, elsewhere: Path) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    (elsewhere / "one.py").write_text(f"{SPIDER}    start_urls = [{web.url()!r}]\n")
    told = run(elsewhere, "-m", "scrapy", "runspider", "one.py")
    assert "{'kind': 'unique'}" in told
    assert "Deduplication summary:" in told
    assert "ERROR" not in told
    assert len(list((elsewhere / "warcs").glob("one-*.warc.gz"))) == 1


def test_the_shell_leaves_nothing_behind(web: WebServer, elsewhere: Path) -> None:
    web.page("/", "<p>One page of some words. " * 60)
    told = run(
        elsewhere, "-m", "scrapy", "shell", web.url(), "-c", "print(response.status)",
        ADDONS='{"scrapy_dedupe.Addon": 500}', TELNETCONSOLE_ENABLED="False",
    )  # fmt: skip
    assert "200" in told
    assert "ERROR" not in told
    assert list(elsewhere.iterdir()) == []


# An older Python


def test_pip_refuses_an_older_python() -> None:
    """With its own sentence: Package 'scrapy-dedupe' requires a different Python: 3.10.0 not in '>=3.11'."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = SpecifierSet(project["requires-python"])
    assert platform.python_version() in wanted
    assert not any(version in wanted for version in ("3.8.20", "3.9.23", "3.10.18"))
    named = {
        line.rpartition(" ")[2]
        for line in project["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    }
    assert named
    assert all(version in wanted for version in named)
