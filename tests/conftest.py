"""Fixtures: a real Redis-protocol server, a web server of this process, and crawls in this process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crawling
import pytest
import unsynced
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from servers import RedisCluster, RedisServer
from webserver import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator


# How long examples take depends on the load of the machine. CI tries the same examples each time, so that chance
# does not decide whether a change passes.
_OPTIONS: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
if os.environ.get("CI"):
    _OPTIONS |= {"derandomize": True, "database": None}
hypothesis_settings.register_profile("sample", max_examples=25, **_OPTIONS)
hypothesis_settings.register_profile("exhaustive", max_examples=100, **_OPTIONS)
hypothesis_settings.load_profile("sample")

MAX_PROCESSES = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run a single file in this process; starting others would take longer than most files do."""
    if len(config.args) == 1 and Path(config.args[0].partition("::")[0]).is_file():
        return 0
    # One more than there are cores: a quarter of the time tests wait for servers and other processes.
    return min((os.cpu_count() or 1) + 1, MAX_PROCESSES)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # The option is pytest-twisted's; without that plugin (-p no:twisted) the tests run without a reactor, whatever
    # pyproject.toml says.
    if not pluginmanager.hasplugin("twisted"):
        parser.addoption("--reactor", help="ignored without pytest-twisted")


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise argparse looks on the disk for a translation of each of its words.
    os.environ["LANGUAGE"] = "C"
    preloaded = ["pytest", "hypothesis", "redis", "scrapy_dedupe.crawls", "scrapy_dedupe.urls"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(preloaded)
    crawling.reactorless = not config.pluginmanager.hasplugin("twisted")
    if crawling.reactorless:
        # Without a reactor Scrapy leaves its HTTP client open when a start is refused, whoever refuses it.
        config.addinivalue_line("filterwarnings", "ignore:Unclosed client session:ResourceWarning")


def pytest_collection_finish() -> None:
    """The tests and all modules stay: there is no need to look through them again for garbage."""
    gc.freeze()


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_url(_shared_redis: RedisServer) -> str:
    """The URL of an empty Redis or Valkey database."""
    _shared_redis.flush()
    return _shared_redis.url


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that belongs to one test alone."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def redis_cluster(_shared_cluster: RedisCluster) -> RedisCluster:
    """An empty cluster of three masters."""
    _shared_cluster.flush()
    return _shared_cluster


@pytest.fixture(params=["sqlite", "redis"])
def each_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, once for each kind of store."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", unsynced.fsync)
        patch.setattr(sqlite3, "connect", unsynced.connect)
        yield


@pytest.fixture
def web() -> Iterator[WebServer]:
    """A web server on 127.0.0.1 without pages; see :mod:`webserver`."""
    with WebServer() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Settings of a crawl that touches nothing outside *tmp_path* and this machine."""
    return {
        "DEDUPE_STORE_URL": f"sqlite:///{tmp_path / 'dedupe.sqlite'}",
        "DEDUPE_WARC_DIR": str(tmp_path / "warcs"),
        "DEDUPE_WACZ_DIR": str(tmp_path / "wacz"),
        "TELNETCONSOLE_ENABLED": False,
        "REMOTE_CONTROL_ENABLED": False,
        "RETRY_ENABLED": False,
        "LOG_LEVEL": "DEBUG",
    }


@pytest.fixture(params=["sqlite", "redis"])
def stored(request: pytest.FixtureRequest, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings on each of the two stores."""
    if request.param == "redis":
        settings["DEDUPE_STORE_URL"] = request.getfixturevalue("redis_url")
    return settings
