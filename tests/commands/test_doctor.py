from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from doctored_projects import ADDON, listing, of
from servers import RedisServer, cluster_options

from scrapy_dedupe import __version__
from scrapy_dedupe.commands.doctor import outputs, probes, versions
from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.stores import open_store
from scrapy_dedupe.stores.base import Original
from scrapy_dedupe.warc.files import WarcWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servers import RedisCluster

COMPRESSION = "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware"


def test_a_project_in_which_nothing_is_wrong(project: Callable[..., Any], tmp_path: Path) -> None:
    project()
    before = listing(tmp_path)
    findings = project()
    assert of(findings, "problem", "warning") == "" or "free of" in of(findings, "warning")
    told = of(findings, "ok")
    for words in (
        "Crawls have the URL filter, the content layer and the archive, through the add-on.",
        "URL filter: a fingerprint was added and found",
        "Content layer: a text was written, found and deleted",
        "Crawl index: a crawl was started",
        "Archive: a file was written, read back and deleted",
    ):
        assert words in told
    assert listing(tmp_path) == before, "nothing stays behind"


def test_metrics_need_their_package_only_if_they_are_set(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "scrapy_dedupe.live.observers.metric_outputs", raising=False)
    monkeypatch.delitem(sys.modules, "scrapy_dedupe.live.observers.metric_families", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert not of(project(ADDON), "problem")
    needs = "need the package prometheus-client, and it is not installed"
    assert needs in of(project(f"{ADDON}DEDUPE_METRICS_FILE = 'metrics.prom'\n", code=3), "problem")


def test_the_archive_as_http_cache(project: Callable[..., Any]) -> None:
    cache = f"{ADDON}DEDUPE_HTTPCACHE = True\n"
    words = (
        "Scrapy's HTTP cache reads the archive, with the policy scrapy.extensions.httpcache.RFC2616Policy."
    )
    findings = project(cache)
    assert words in of(findings, "ok")
    assert "HTTP" not in of(findings, "warning", "note")
    findings = project(f"{cache}DEDUPE_WARC_ENABLED = False\n")
    words = "DEDUPE_HTTPCACHE has no effect, since DEDUPE_WARC_ENABLED is False."
    assert words in of(findings, "warning")
    findings = project(f"{cache}HTTPCACHE_ENABLED = False\n")
    assert "DEDUPE_HTTPCACHE has no effect, since HTTPCACHE_ENABLED is False." in of(findings, "warning")


@pytest.mark.parametrize(
    ("name", "words"),
    [("compiled", "with the compiled kernel"), ("Python", "with Python code, which is slower")],
)
def test_the_code_that_judges_pages_is_told(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(versions.kernel, "NAME", name)
    assert f"Pages are judged {words}" in of(project(), "ok")


def test_the_text_tells_each_finding_and_their_number(call: Callable[..., Any], store_url: str) -> None:
    called = call("doctor", "--store", store_url)
    assert (called.code, called.err) == (0, "")
    lines = called.out.splitlines()
    assert lines[0] == "Settings"
    assert "  ok       The crawl index holds 2 crawls, with digests of stored payloads." in lines
    assert lines[-1].startswith("0 problems, ")


def test_a_store_is_the_same_afterwards(
    call: Callable[..., Any], project: Callable[..., Any], store_url: str
) -> None:
    def held() -> list[str]:
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            return list(connection.iterdump())

    before = held()
    assert any("INSERT" in line for line in before)
    assert call("doctor", "--store", store_url).code == 0
    project(f'{ADDON}DEDUPE_STORE_URL = "{store_url}"\n')
    assert held() == before


def test_every_wrong_setting_is_told_and_every_unknown_one(project: Callable[..., Any]) -> None:
    findings = project(
        ADDON + 'DEDUPE_URL_ERROR_RATE = "often"\nDEDUPE_PAYLOAD = "raw"\nDEDUPE_NEAR_TRESHOLD = 0.9\n'
        'DEDUP_WARC_DIR = "w"\n',
        code=2,
    )
    problems = of(findings, "problem")
    assert "The setting DEDUPE_URL_ERROR_RATE is 'often'. Allowed: a number from 1e-12 to 0.5." in problems
    assert "The setting DEDUPE_PAYLOAD is 'raw'" in problems
    for name, meant in (
        ("DEDUPE_NEAR_TRESHOLD", "DEDUPE_NEAR_THRESHOLD"),
        ("DEDUP_WARC_DIR", "DEDUPE_WARC_DIR"),
    ):
        words = f"The setting {name} is unknown and has no effect. Did you mean {meant}?"
        assert words in of(findings, "warning")


def test_a_spider_has_settings_of_its_own(project: Callable[..., Any], call: Callable[..., Any]) -> None:
    own = "{'DEDUPE_NEAR_THRESHOLD': 7, 'DEDUPE_NEAR_TRESHOLD': 0.9}"
    assert "DEDUPE_NEAR_THRESHOLD is 7" in of(project(ADDON, "--spider", "own", code=2, own=own), "problem")
    told = of(project(ADDON, own=own), "warning")
    assert "The spider own has a wrong setting. The setting DEDUPE_NEAR_THRESHOLD is 7" in told
    assert "DEDUPE_NEAR_TRESHOLD of the spider own is unknown and has no effect. Did you mean" in told
    called = call("doctor", "--spider", "owm")
    assert called.code == 2
    assert "no spider 'owm'; did you mean own?" in called.err


def test_a_project_without_the_addon_is_told_how_to_set_it(project: Callable[..., Any]) -> None:
    assert 'Set ADDONS = {"scrapy_dedupe.Addon": 500}' in of(project(""), "warning")
    findings = project("", own="{'ADDONS': {'scrapy_dedupe.Addon': 500}}")
    assert "not those of the project: own. Check each of them: `scrapy dedupe doctor --spider own`." in of(
        findings, "note"
    )
    assert of(findings, "warning") == "" or "free of" in of(findings, "warning")


def test_a_spider_that_cannot_be_imported(
    project: Callable[..., Any], call: Callable[..., Any], tmp_path: Path
) -> None:
    told = of(project(code=2, spiders="import no_such_module"), "problem")
    where = tmp_path / "project" / "doctored" / "spiders" / "__init__.py"
    assert (
        "A module of spiders cannot be loaded (ModuleNotFoundError: No module named 'no_such_module',"
        f" {where}, line 2). Correct it: no spider of the project starts." in told
    )
    called = call("doctor", "--spider", "own")
    assert called.code == 2
    assert (
        f"A module of spiders cannot be loaded (ModuleNotFoundError: No module named 'no_such_module', {where}"
        in called.err
    )
    # One that Scrapy was told to pass over.
    assert (
        of(project(f"{ADDON}SPIDER_LOADER_WARN_ONLY = True\n", spiders="import no_such_module"), "problem")
        == ""
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ('ADDONS = {"scrapy_dedupe.AddOn": 500}', "Write scrapy_dedupe.Addon."),
        ('ADDONS = {"scrapy_dedupe.addon": 500}', "Write scrapy_dedupe.Addon."),
        ('ADDONS = {"scrapy_dedup.Addon": 500}', "Write scrapy_dedupe.Addon."),
        ('ADDONS = {"scrapy-dedupe.Addon": 500}', "Write scrapy_dedupe.Addon."),
        (
            'ITEM_PIPELINES = {"scrapy_dedupe.pipelines.WARCPipeline": 1}',
            "Write scrapy_dedupe.pipelines.WarcPipeline.",
        ),
        ('DOWNLOADER_MIDDLEWARES = {"scrapy_dedupe.pipelines.WarcPipeline": 1}', "Move it to ITEM_PIPELINES"),
        (
            'DOWNLOADER_MIDDLEWARES = {"scrapy_dedupe.downloadermiddlewares.ContentDedupeMiddleware": 595}',
            "Give it an order below 590",
        ),
        (
            f'{ADDON}DOWNLOADER_MIDDLEWARES = {{"{COMPRESSION}": 100}}',
            "Set HttpCompressionMiddleware back to 590",
        ),
    ],
)
def test_components_that_are_wrong(project: Callable[..., Any], settings: str, sentence: str) -> None:
    findings = project(settings, code=3)
    assert sentence in of(findings, "problem")
    assert "Crawls have" not in of(findings, "ok"), "no crawl starts"


def test_a_list_in_the_place_of_a_dict(
    project: Callable[..., Any], call: Callable[..., Any], tmp_path: Path
) -> None:
    project()
    (tmp_path / "project" / "doctored" / "settings.py").write_text('ADDONS = ["scrapy_dedupe.Addon"]')
    sys.modules.pop("doctored.settings")
    called = call("doctor")
    assert called.code == 2
    assert 'write ADDONS = {"scrapy_dedupe.Addon": 500}' in called.err


def test_settings_that_do_not_go_together(project: Callable[..., Any]) -> None:
    findings = project(
        ADDON + 'DEDUPE_WARC_ENABLED = False\nDEDUPE_WACZ = True\nDEDUPE_ACTION_UNCHANGED = "drop"\n'
        "COMPRESSION_ENABLED = False\n"
    )
    told = of(findings, "note", "warning")
    assert "The setting DEDUPE_WACZ has no effect" in told
    assert "an unchanged start page ends the crawl" in told
    assert "HttpCompressionMiddleware is disabled" in told


def test_a_store_that_does_not_fit(project: Callable[..., Any], store_url: str) -> None:
    here = f'{ADDON}DEDUPE_STORE_URL = "{store_url}"\n'
    assert 'Set DEDUPE_PAYLOAD = "stored"' in of(
        project(here + 'DEDUPE_PAYLOAD = "decoded"\n', code=3), "problem"
    )
    assert "The crawl first, which DEDUPE_CRAWL_ID names, is committed" in of(
        project(here + 'DEDUPE_CRAWL_ID = "first"\n', code=3), "problem"
    )
    store = open_store(store_url)
    store.content.check_parameters({"near_num_perm": "256"})
    store.close()
    assert "near_num_perm = 256" in of(project(here, code=3), "problem")


def test_url_rules_that_are_invalid(project: Callable[..., Any], tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("version = 1\n[[rule]]\nkind = 'ignore-parameter'")
    settings = f'{ADDON}DEDUPE_URL_RULES = "{rules}"\n'
    assert "rules.toml, line 2" in of(project(settings, code=3), "problem")
    rules.write_text("version = 1\n[[rule]]\nkind = 'trailing-slash'\nhost = '*'")
    assert f"URL rules: 1 rule in {rules}." in of(project(settings), "ok")
    settings += 'DUPEFILTER_CLASS = "scrapy.dupefilters.RFPDupeFilter"\n'
    assert "DEDUPE_URL_RULES has no effect" in of(project(settings), "warning")


def test_a_store_that_is_something_else_or_not_there(call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    called = call("doctor", "--store", f"sqlite:///{path}")
    assert called.code == 3
    assert "an SQLite database of another program" in " ".join(called.out.split())
    called = call("doctor", "--store", f"sqlite:///{tmp_path / 'absent.db'}")
    assert called.code == 0
    assert "Check that --store names the right file." in " ".join(called.out.split())


def test_a_store_of_another_format_is_left_as_it_is(call: Callable[..., Any], store_url: str) -> None:
    path = store_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=1")
    connection.close()
    called = call("doctor", "--store", store_url)
    assert called.code == 3
    # How long the path is decides where lines are broken.
    assert "has format 1; this version of scrapy-dedupe reads" in " ".join(called.out.split())
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


def test_redis_is_empty_again_and_its_settings_are_told(
    project: Callable[..., Any], redis_server: RedisServer
) -> None:
    url = redis_server.url
    with redis.Redis.from_url(url) as client:
        findings = project(f'{ADDON}DEDUPE_STORE_URL = "{url}"\n')
        assert client.keys("*") == []
        told = of(findings, "ok")
        assert "It keeps its data in an append-only file." in told
        assert "evicts nothing (noeviction)" in told
        assert f"URL filter: a fingerprint was added, found and deleted in {url}." in told

        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        findings = project(f'{ADDON}DEDUPE_STORE_URL = "{url}"\n', code=3)
        assert "maxmemory-policy of" in of(findings, "problem")
        assert "a restart loses every text" in of(findings, "warning")


def test_the_socket_of_a_cluster_is_told_once_beside_the_other_stores(
    project: Callable[..., Any], tmp_path: Path
) -> None:
    socket = tmp_path / "socket"
    server = RedisServer(tmp_path, *cluster_options(), "--unixsocket", str(socket))
    try:
        settings = (
            f'DEDUPE_CONTENT_STORE_URL = "unix://{socket}"\nDEDUPE_INDEX_URL = "sqlite:///index.sqlite"\n'
        )
        findings = project(f"{ADDON}{settings}", code=3)
        assert "whose other servers are not on this socket" in of(findings, "problem")
        assert "There is no store sqlite:///" in of(findings, "note")
    finally:
        server.stop()


def test_a_server_that_is_not_there_or_only_a_replica(
    project: Callable[..., Any], redis_server: RedisServer
) -> None:
    settings = f'{ADDON}DEDUPE_STORE_URL = "{redis_server.url}"\n'
    with redis.Redis.from_url(redis_server.url) as client:
        client.replicaof("127.0.0.1", "1")
        assert "is a read-only replica of 127.0.0.1" in of(project(settings, code=3), "problem")
    redis_server.stop()
    told = of(project(settings, code=3), "problem")
    assert "does not answer" in told
    assert "Check that the server is running" in told


def test_a_server_that_is_full_is_told_of_once(
    project: Callable[..., Any], redis_server: RedisServer
) -> None:
    settings = f'{ADDON}DEDUPE_STORE_URL = "{redis_server.url}"\n'
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", "1mb")
        told = of(project(settings, code=3), "problem")
        assert told.count("Raise maxmemory") == 1
        assert "Check that the server is running" not in told
        assert "without a server" not in told
        client.config_set("maxmemory", "0")
        assert client.keys("*") == []


def test_a_server_that_may_not_be_asked_for_its_settings(
    project: Callable[..., Any], redis_server: RedisServer
) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.acl_setuser("crawler", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"],
                           commands=["-info", "-config"])  # fmt: skip
        url = redis_server.url.replace("//", "//crawler:secret@")
        findings = project(f'{ADDON}DEDUPE_STORE_URL = "{url}"\n')
        assert "does not allow INFO" in of(findings, "note")
        assert "secret" not in str(findings)
        assert "A password" not in of(findings, "problem")
        wrong = project(f'{ADDON}DEDUPE_STORE_URL = "{url.replace("secret", "guess")}"\n', code=3)
        assert "guess" not in str(wrong)


def test_files_and_crawls_that_are_left(project: Callable[..., Any], tmp_path: Path, store_url: str) -> None:
    folder = tmp_path / "project" / "warcs"
    folder.mkdir(parents=True)
    (folder / "dead-20260801120000000-00000-host.warc.gz.open").write_bytes(b"torn")
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE crawl SET started = '2020-01-01T00:00:00Z' WHERE id = 'second'")
    connection.close()
    told = of(project(f'{ADDON}DEDUPE_STORE_URL = "{store_url}"\n'), "warning")
    assert "1 WARC file of killed crawls is unfinished: dead-" in told
    assert "scrapy dedupe warc salvage" in told
    assert "`scrapy dedupe commit second` or `scrapy dedupe cancel second`" in told


def test_a_crawl_that_runs_is_not_disturbed(
    project: Callable[..., Any], tmp_path: Path, store_url: str
) -> None:
    folder = tmp_path / "project" / "warcs"
    with WarcWriter(folder, "running", info={}) as writer, open_index(store_url) as index:
        writer._begin()
        index.start("running")
        findings = project(f'{ADDON}DEDUPE_STORE_URL = "{store_url}"\n')
        assert "1 WARC file in warcs is being written by a running crawl." in of(findings, "note")
        index.add("running", [Original("cd" * 32, "running", "20260801120000", "https://example.com/", 1)])
        index.commit("running")


def test_originals_whose_digests_crawls_do_not_look_up(project: Callable[..., Any], store_url: str) -> None:
    with open_index(store_url) as index:
        for number, digest in enumerate(("cd" * 32, "sha1:" + "A" * 32)):
            index.start(f"crawl-{number}")
            original = Original(digest, f"crawl-{number}", "20260801120000", "https://example.com/", 1)
            index.add(f"crawl-{number}", [original])
            index.commit(f"crawl-{number}")
    told = of(project(f'{ADDON}DEDUPE_STORE_URL = "{store_url}"\n'), "warning")
    assert "The crawl index has originals with sha1 digests. Crawls do not find them" in told
    assert "sha256 digests" not in told


def test_a_folder_that_cannot_be_made(project: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = of(project(f'{ADDON}DEDUPE_WARC_DIR = "{tmp_path}/file/warcs"\n', code=3), "problem")
    assert f"cannot be created: {tmp_path / 'file'} is a file. Name another folder." in told
    assert "The setting is DEDUPE_WARC_DIR." in told
    if os.path.ismount("/proc") and os.geteuid() == 0:
        told = of(project(f'{ADDON}DEDUPE_WARC_DIR = "/proc/warcs"\n', code=3), "problem")
        assert (
            "The folder /proc/warcs for WARC files cannot be created: nothing can be created in /proc."
            in told
        )
        assert (
            "WARC files cannot be written to /proc/warcs: nothing can be created in /proc. Name another"
            in told
        )


def test_a_disk_that_does_not_say_how_much_room_it_has(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = shutil.disk_usage("/")
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: used._replace(total=0, free=0))
    told = of(project(), "ok")
    assert (
        "for WARC files can be written to; it is created when it is needed; its file system does not report"
        in told
    )


def test_a_disk_that_is_almost_full(project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    used = shutil.disk_usage("/")
    monkeypatch.setattr(
        outputs.shutil, "disk_usage", lambda path: used._replace(total=10**12, free=9 * 10**8)
    )
    told = of(project(), "warning")
    assert (
        "for the store has 900.0 MB free of 1.0 TB. The same applies to WARC files. Free some space" in told
    )
    assert told.count("900.0 MB") == 1, "one disk is told of once"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"f_bavail": 0, "f_bfree": 0}, "is on a disk that has no space left."),
        ({"f_favail": 0}, "is on a disk that has no inodes left for new files."),
    ],
)
def test_a_disk_that_takes_nothing(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, change: dict[str, int], sentence: str
) -> None:
    real = os.statvfs("/")
    values = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")} | {
        "f_files": 1000,
        **change,
    }
    monkeypatch.setattr(outputs.os, "statvfs", lambda path: SimpleNamespace(**values))
    assert sentence in of(project(code=3), "problem")


def test_a_full_disk_is_told_once_and_a_full_quota_by_each_probe(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(probes.tempfile, "TemporaryDirectory", refuse)
    settings = f'{ADDON}DEDUPE_REPORT = "r.html"\n'
    told = [found for found in project(settings, code=3) if found["level"] == "problem"]
    assert {found["sentence"] for found in told} == {
        f"The {what} cannot be tested: No space left on device." for what in ("content layer", "crawl index")
    }
    used = shutil.disk_usage("/")
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: used._replace(free=0))
    (told,) = [found for found in project(settings, code=3) if found["level"] == "problem"]
    assert told["section"] == "disks"
    assert (
        "is on a disk that has no space left. The same applies to WARC files, the report." in told["sentence"]
    )


def test_an_index_on_a_server_and_files_that_only_one_machine_sees(
    project: Callable[..., Any], redis_url: str
) -> None:
    settings = f'{ADDON}DEDUPE_INDEX_URL = "{redis_url}"\n'
    words = "payloads whose file is not visible to this machine are stored again."
    assert words in of(project(settings), "note")
    assert words not in str(project(f"{settings}DEDUPE_WARC_CHECK_FILES = False\n"))
    assert words not in str(project(f"{settings}DEDUPE_WARC_ENABLED = False\n"))
    assert words not in str(project())


def test_a_cluster_is_a_store_for_all_but_the_index(
    project: Callable[..., Any], call: Callable[..., Any], redis_cluster: RedisCluster
) -> None:
    url = redis_cluster.url
    findings = project(f'{ADDON}DEDUPE_STORE_URL = "{url}"\nDEDUPE_INDEX_URL = "sqlite:///index.sqlite"\n')
    assert f"The store {url} is a cluster of 3 masters." in of(findings, "ok")
    assert of(findings, "problem") == ""
    assert "in DEDUPE_INDEX_URL." in of(project(f'{ADDON}DEDUPE_STORE_URL = "{url}"\n', code=3), "problem")
    called = call("doctor", "--store", url)
    assert (called.code, called.err) == (0, "")
    assert "is a cluster, so it has no crawl index." in called.out
    assert not any(redis_cluster.ask(master, "DBSIZE") for master in redis_cluster.masters)
    for words in ("content purge --all", "report"):
        assert call(*words.split(), "--store", url).code == 0
    assert "in DEDUPE_INDEX_URL." in call("crawls", "--store", url).err


def test_the_passage_index_is_opened(project: Callable[..., Any], tmp_path: Path) -> None:
    with PassageIndex(tmp_path / "passages") as index:
        index.add("https://example.com/", "one two three four five six seven eight nine ten")
    settings = f'{ADDON}DEDUPE_PASSAGES = True\nDEDUPE_PASSAGES_DIR = "{tmp_path / "passages"}"\n'
    assert "was opened and has 1 document." in of(project(settings), "ok")
    told = of(project(settings + 'DEDUPE_PASSAGES_TOKENISER = "cjk"\n', code=3), "problem")
    assert "tokeniser" in told


def test_libraries_that_are_missing_or_too_old(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        version = __version__
        requires = (
            "numpy>=999",
            "no-such-library>=1.0",
            'another-one; python_version < "3"',
            "no-such-wacz>=2; extra == 'wacz'",
            "no-such-report; extra == 'report'",
            "no-such-metrics; extra == 'prometheus'",
            "no-such-test; extra == 'test'",
        )

    monkeypatch.setattr(versions, "distribution", lambda name: Installed)
    findings = project(f"{ADDON}DEDUPE_WACZ = True\n", code=3)
    told = of(findings, "problem")
    assert "library numpy has version " in told
    assert 'Upgrade it: pip install "numpy>=999"' in told
    assert (
        'The library no-such-library is not installed. Install it: pip install "no-such-library>=1.0"' in told
    )
    assert "The setting DEDUPE_WACZ needs the extra wacz: The library no-such-wacz is not installed." in told
    assert (
        "Extras that are not installed, and not needed by these settings: report, prometheus. If you want all of them:"
        ' pip install "scrapy-dedupe[report,prometheus]"'
    ) in of(findings, "note")
    assert "another-one" not in str(findings)
    assert "no-such-test" not in str(findings)


def test_what_fails_in_an_unexpected_way_does_not_keep_the_rest(
    project: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(patient: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(outputs, "folders", broken)
    findings = project(code=3)
    assert "unexpected RuntimeError: out of order" in of(findings, "problem")
    assert "Archive: a file was written" in of(findings, "ok")


def test_a_wrong_setting_beside_classes_that_are_set_by_hand(project: Callable[..., Any]) -> None:
    pipeline = 'ITEM_PIPELINES = {"scrapy_dedupe.pipelines.WarcPipeline": 300}\n'
    findings = project(f'{pipeline}DEDUPE_PAYLOAD = "raw"\n', code=2)
    assert "AssertionError" not in str(findings)
    assert "The layers were not tested, since settings are wrong." in of(findings, "note")
