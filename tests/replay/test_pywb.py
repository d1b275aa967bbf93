"""pywb, a replay program of the web archives, shows what our revisit records refer to.

pywb wants a redis client of 2014, so it cannot live in our environment: ``tox -e replay`` makes one for it and
names its folder of programs in PYWB_BIN. Without that variable the programs are looked for on the PATH.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from archives import files_of, records_of
from crawling import LinkSpider, crawl, crawl_test
from servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from webserver import WebServer

WAYBACK = shutil.which("wayback", path=os.environ.get("PYWB_BIN"))
MANAGER = shutil.which("wb-manager", path=os.environ.get("PYWB_BIN"))

pytestmark = pytest.mark.skipif(not (WAYBACK and MANAGER), reason="pywb is not there; use tox -e replay")


def body(name: str) -> bytes:
    words = random.Random(name)
    text = " ".join(f"{words.getrandbits(40):x}" for _ in range(300))
    return f"<title>{name}</title><p>{text}".encode()


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    folder = tmp_path / "replay"
    folder.mkdir()
    return folder


class Replay:
    """A pywb server with one collection that holds the given files."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.port = free_port()
        assert WAYBACK
        assert MANAGER
        for words in (["init", "lake"], ["add", "lake", *map(str, files)]):
            subprocess.run([MANAGER, *words], cwd=folder, check=True, capture_output=True)
        with (folder / "wayback.log").open("wb") as log:
            self.process = subprocess.Popen(
                [WAYBACK, "-p", str(self.port), "-b", "127.0.0.1"],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def get(self, date: str, url: str) -> bytes:
        stamp = "".join(char for char in date if char.isdigit())[:14]
        asked = f"http://127.0.0.1:{self.port}/lake/{stamp}id_/{url}"
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    content: bytes = answer.read()
                    return content
            except urllib.error.HTTPError:
                raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def stopping() -> Iterator[list[Replay]]:
    running: list[Replay] = []
    yield running
    for replay in running:
        replay.stop()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@crawl_test
async def test_revisits_of_a_second_crawl_replay_with_the_bytes_of_the_first(
    store: str,
    web: WebServer,
    settings: dict[str, Any],
    tmp_path: Path,
    collection: Path,
    stopping: list[Replay],
    request: pytest.FixtureRequest,
) -> None:
    if store == "redis":
        settings["DEDUPE_STORE_URL"] = request.getfixturevalue("redis_url")
    links = "".join(
        f'<a href="{path}">x</a>' for path in ("/a", "/twin-of-a", "/zipped", "/chunked", "/page?b=2&a=1")
    )
    web.page("/", links.encode() + body("home"))
    web.page("/a", body("a"))
    web.page("/twin-of-a", body("a"))
    web.page("/zipped", gzip.compress(body("zipped"), mtime=0), headers=[("Content-Encoding", "gzip")])
    web.page("/chunked", body("chunked"), chunked=True)
    web.page("/page?b=2&a=1", body("page"))
    for folder in ("first", "second"):
        await crawl(LinkSpider, {**settings, "DEDUPE_WARC_DIR": str(tmp_path / folder)}, urls=web.url())
    files = [*files_of(tmp_path / "first"), *files_of(tmp_path / "second")]
    replay = Replay(collection, files)
    stopping.append(replay)
    revisits = [record for record in records_of(tmp_path / "second") if record.type == "revisit"]
    assert {record.uri.removeprefix(web.url("")) for record in revisits} == {
        "/",
        "/a",
        "/twin-of-a",
        "/zipped",
        "/chunked",
        "/page?b=2&a=1",
    }
    for record in revisits:
        page = web.pages[record.uri.removeprefix(web.url(""))]
        shown = replay.get(record.headers["WARC-Date"], record.uri)
        if shown.startswith(b"\x1f\x8b"):
            shown = gzip.decompress(shown)
        wanted = page.body  # type: ignore[union-attr]
        assert shown == (gzip.decompress(wanted) if wanted.startswith(b"\x1f\x8b") else wanted), record.uri
