"""What a server or a file does not let us do is told with what to do about it; each fault is a real one."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import ssl
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis
import unsynced
from exchange_servers import certificate
from scrapy.settings import Settings
from waiting import wait_until

from scrapy_dedupe.errors import SettingError, StoreUnavailable
from scrapy_dedupe.settings.specs import read_settings
from scrapy_dedupe.stores import open_store, parse_store_url
from scrapy_dedupe.stores.location import TLS_OPTIONS
from scrapy_dedupe.stores.redis import connect
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.urls.shared import SharedBloomFilter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from servers import RedisServer


def told(url: str, timeout_s: float = 30) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        use(url, timeout_s)
    return str(caught.value)


def use(url: str, timeout_s: float = 30) -> None:
    with closing(open_store(url, timeout_s=timeout_s)) as store:
        store.probe()
        store.index.crawls()


def test_a_server_whose_memory_is_full(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", "1")
        said = told(redis_server.url)
        assert "Raise maxmemory (CONFIG SET maxmemory," in said
        client.config_set("maxmemory", "100mb")
    use(redis_server.url)


def test_no_sentence_says_where_in_a_script_it_was(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client, closing(open_store(redis_server.url)) as store:
        client.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable) as caught:
            store.index.start("crawl", "stored")
    assert "script" not in str(caught.value)
    assert "Raise maxmemory" in str(caught.value)


def test_no_sentence_says_where_in_a_pipeline_it_was(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("maxmemory", "1")
        with (
            client.pipeline(transaction=False) as pipeline,
            pytest.raises(
                StoreUnavailable, match=r"rejected a command: (?!Command).*used memory.* Raise maxmemory"
            ),
            redis_faults(redis_server.url),
        ):
            pipeline.set("key (1)", "value").execute()


def test_a_server_that_cannot_save_its_data(redis_server: RedisServer) -> None:
    # Where its file would be renamed to.
    (redis_server.folder / "dump.rdb" / "taken").mkdir(parents=True)
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("save", "3600 1")
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        assert "its log says why it cannot save" in told(redis_server.url)
        shutil.rmtree(redis_server.folder / "dump.rdb")
        client.config_set("stop-writes-on-bgsave-error", "no")


def test_a_user_that_may_do_too_little_and_what_is_said_to_be_enough(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("//", "//crawler:secret@")
    with redis.Redis.from_url(redis_server.url) as client:
        for rights in ("~dedupe:* +@all", "~* +@read +@connection"):
            client.execute_command("ACL", "SETUSER", "crawler", "reset", "on", ">secret", *rights.split())
            assert "ACL SETUSER name ~* +@all -@admin on the server" in told(url)
        client.execute_command("ACL", "SETUSER", "crawler", "~*", "+@all", "-@admin")
    use(url)
    with closing(open_store(url)) as store:
        store.index.start("crawl", "stored")
        store.index.cancel("crawl")


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """The address of a server that speaks TLS, with a certificate that nobody has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(folder))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    try:
                        context.wrap_socket(client, server_side=True).close()
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    with tls_server(tmp_path) as address:
        assert "with ?ssl_ca_certs=FILE at the end of the URL" in told(f"rediss://{address}/0")
        assert "If the server requires TLS, write rediss:// in the URL." in told(f"redis://{address}/0")


def test_files_that_a_url_names_and_that_are_not_there(tmp_path: Path) -> None:
    with tls_server(tmp_path) as address:
        for url in (
            f"unix://{tmp_path}/absent.sock",
            f"rediss://{address}/0?ssl_ca_certs={tmp_path}/absent.pem",
        ):
            assert "Check the files in the URL" in told(url)


def test_a_power_failure_leaves_a_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(unsynced.connect.func(*args, **options))
        return opened[-1]

    # Other tests do not wait for the disk.
    monkeypatch.setattr(sqlite3, "connect", connect)
    with closing(open_store(f"sqlite:///{tmp_path / 'd.sqlite'}")):
        found = [connection.execute("PRAGMA synchronous").fetchone()[0] for connection in opened]
        assert found
        assert set(found) <= {1, 2}  # NORMAL or FULL


def test_a_file_that_another_process_holds(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dedupe.sqlite'}"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "dedupe.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "raise DEDUPE_STORE_TIMEOUT, or use Redis" in told(url, 0.1)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("ssl_ca_cert=/x", "there is no option 'ssl_ca_cert'. Leave it out, or use one of db, "),
        ("decode_responses=True", "the option decode_responses cannot be used: this package reads bytes"),
        ("decode_responses=False", "the option decode_responses cannot be used: this package reads bytes"),
        ("encoding=utf-16", "the option encoding cannot be used"),
        ("encoding_errors=ignore", "the option encoding_errors cannot be used"),
        (
            "socket_timeout=long",
            "the option socket_timeout cannot be used: .* Set DEDUPE_STORE_TIMEOUT instead.",
        ),
        ("retry=3", "the option retry cannot be used: .* Set DEDUPE_STORE_TIMEOUT instead."),
        ("db=0&socket_connect_timeout=90", "the option socket_connect_timeout cannot be used"),
        ("protocol=4", "the option protocol is '4'. Allowed: 2, 3."),
        ("db=x", "the option db is 'x'. Allowed: a whole number."),
        ("host=other", "the option host cannot be used: write it before the \\?"),
        ("ssl=1", "the option ssl cannot be used: write rediss:// in place of redis:// for TLS."),
        ("ssl_ca_certs=/x", "the option ssl_ca_certs is one of TLS. Write rediss:// in place of redis://."),
        ("credential_provider=x", "there is no option 'credential_provider'"),
        ("single_connection_client=0", "there is no option 'single_connection_client'"),
        ("decode_responses", "the option decode_responses cannot be used"),
    ],
)
def test_an_option_that_no_store_url_may_have(redis_url: str, option: str, reason: str) -> None:
    url = f"{redis_url}?{option}"
    for attempt in (open_store, parse_store_url):
        with pytest.raises(SettingError, match=reason):
            attempt(url)
    # Each setting that names a store says so itself.
    for setting in (
        "DEDUPE_STORE_URL",
        "DEDUPE_URL_STORE_URL",
        "DEDUPE_CONTENT_STORE_URL",
        "DEDUPE_INDEX_URL",
    ):
        with pytest.raises(SettingError, match=f"The setting {setting} is .*{reason}"):
            read_settings(Settings({setting: url}))


@pytest.mark.parametrize(
    "option",
    [
        "db=1",
        "protocol=2",
        "protocol=3",
        "client_name=crawler",
        "health_check_interval=30",
        "socket_keepalive=yes",
    ],
)
def test_an_option_that_a_store_url_may_have(redis_url: str, option: str) -> None:
    with closing(open_store(f"{redis_url}?{option}")) as store:
        store.probe()
    shared = SharedBloomFilter(connect(parse_store_url(f"{redis_url}?{option}")), "spider", 100, 1e-6)
    assert [shared.add(b"page") for _ in range(2)] == [True, False]
    assert shared.describe().seen == 1
    assert shared.detach(delete=True)


def test_tls_options_are_those_that_redis_py_has() -> None:
    values = {"ssl_cert_reqs": "none", "ssl_min_version": "771", "ssl_check_hostname": "no"}
    for option in TLS_OPTIONS:
        connect(parse_store_url(f"rediss://host/0?{option}={values.get(option, 'x')}"))
    with pytest.raises(SettingError, match=r"ssl_cert_reqs is 'maybe'. Allowed: none, optional, required."):
        connect(parse_store_url("rediss://host/0?ssl_cert_reqs=maybe"))


def test_a_password_among_the_options_is_told_to_nobody() -> None:
    location = parse_store_url("unix:///run/redis.sock?db=0&password=secret")
    assert location.shown == "unix:///run/redis.sock?db=0&password=***"
    with pytest.raises(SettingError) as caught:
        parse_store_url("rediss://host/0?password=secret&ssl_password=secret&encoding=x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "password", ["se/cret", "p@/cret", "cret?x", "se#cret", "12/cret", "p w@/:cret", "a:b/cret@"]
)
def test_a_password_that_is_not_quoted_is_told_to_nobody(password: str) -> None:
    for url in (f"redis://me:{password}@host:6379/0", f"unix://me:{password}@/run/redis.sock"):
        with pytest.raises(SettingError) as caught:
            parse_store_url(url)
        said = str(caught.value)
        assert "its password is not quoted. In the user and the password, write / as %2F, @ as %40" in said
        assert "cret" not in said
        assert ":***@" in said


@pytest.mark.parametrize(
    "url",
    [
        "rediss://host:6379/0?ssl_ca_certs=/etc/a@b.pem",
        "rediss://host?ssl_ca_certs=/etc/a@b.pem",
        "unix:///run/a@b.sock?db=1",
        "rediss://me:a%2Fb%40c@host:6379/0?ssl_ca_certs=/etc/a@b.pem",
        "redis://me:a@b@host:6379/0",
    ],
)
def test_an_at_sign_elsewhere_is_no_password(url: str) -> None:
    assert parse_store_url(url).url == url
