"""kill -9 at every step of an archived crawl: what ``warc salvage``, ``commit`` and another run make of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from sampling import sampled
from webserver import WebServer

from scrapy_dedupe.crawls import open_index
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent.parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
}
KILLS = int(os.environ.get("DEDUPE_TEST_KILLS", "15"))
SEED = int(os.environ.get("DEDUPE_TEST_SEED", "1"))
PAGE = "<p>Every bed has a number, and every herb a place." * 60

# In the order in which a crawl comes to them.
STATES = {
    "entered in the index": "after start#1",
    "file empty": "before append#1",
    "warcinfo written": "after append#1",
    "marked as incomplete": "after mark_incomplete#1",
    "file named in the index": "after add_file#1",
    "first exchange written": "after append#2",
    "second file, nothing in it": "before append#5",
    "second file named in the index": "after add_file#2",
    "two names": "os.remove .gz.open#2",
    "final name": "before add#2",
    "entries added": "after add#2",
    "size added": "after add#3",
    "marked as complete": "after mark_incomplete#3",
    "committed": "after commit#1",
}
STORES = ("sqlite", "redis")
KILLED_SALVAGE = ("os.remove .gz.open#1", "after add_file#1")
USUAL = (
    ("redis", "entered in the index"),
    ("sqlite", "file empty"),
    ("redis", "warcinfo written"),
    ("sqlite", "file named in the index"),
    ("redis", "second file named in the index"),
    ("sqlite", "final name"),
)


class Result:
    """What a run ended with. ``steps`` are those that it came to."""

    def __init__(self, code: int, steps: list[str], out: str, err: str) -> None:
        self.code, self.steps, self.out, self.err = code, steps, out, err


def has_no_store(result: Result) -> bool:
    """Whether a verb says so, which it does after a kill during the imports."""
    return "There is no store" in result.err


class Runner:
    """Crawls and verbs in processes that are killed at a step."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "faults" / "killed_archives.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def __call__(self, **request: Any) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Result(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(240)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Five pages, two of them with one text."""
    with WebServer() as web:
        web.page("/", "".join(f'<a href="/{number}">x</a>' for number in range(4)) + PAGE)
        for number in range(3):
            web.page(f"/{number}", f"<p>Garden {number // 2}" + PAGE)
        web.page("/3", "small")
        yield web.url("/")


class Crawl:
    """A crawl ``c`` in a folder of its own, and the verbs for it."""

    def __init__(self, runner: Runner, url: str, folder: Path, store_url: str, wacz: bool) -> None:
        folder.mkdir(parents=True)
        self.folder, self.warcs, self.url, self._runner = folder, folder / "warcs", url, runner
        self._store = store_url
        self.settings = {
            "ADDONS": {"scrapy_dedupe.Addon": 500},
            "DEDUPE_STORE_URL": store_url,
            "DEDUPE_URL_STORE_URL": "local",
            "DEDUPE_WARC_DIR": str(self.warcs),
            "DEDUPE_WACZ_DIR": str(folder / "wacz"),
            "DEDUPE_WACZ": wacz,
            "DEDUPE_CRAWL_ID": "c",
            # Files of two or three exchanges.
            "DEDUPE_WARC_FILE_SIZE": 3_500,
            "JOBDIR": str(folder / "job"),
            "CONCURRENT_REQUESTS": 1,
            "TELNETCONSOLE_ENABLED": False,
            "REMOTE_CONTROL_ENABLED": False,
            "RETRY_ENABLED": False,
            "LOG_LEVEL": "INFO",
        }

    def run(self, at: int | str = 0, **settings: Any) -> Result:
        values = {**self.settings, **settings}
        return self._runner(folder=str(self.folder), settings=values, url=self.url, at=at)

    def call(self, *words: str, at: int | str = 0) -> Result:
        return self._runner(folder=str(self.folder), words=[*words, "--store", self._store], at=at)

    def salvage(self, at: int | str = 0) -> Result:
        self.warcs.mkdir(exist_ok=True)
        return self.call("warc", "salvage", str(self.warcs), at=at)

    def commit(self, at: int | str = 0) -> Result:
        return self.call("commit", "c", "--warc-dir", str(self.warcs), at=at)

    def state(self) -> str:
        with open_index(self._store) as index:
            return next((info.state for info in index.crawls() if info.id == "c"), "unknown")

    def records(self) -> set[str]:
        """The whole records on disk, those without a final name too."""
        return {
            str(record.id)
            for path in self.warcs.glob("*.warc*")
            for record in read_records(path, on_damage=lambda damage: None)
        }

    def assert_sound(self, before: set[str], what: str) -> None:
        """Nothing is lost, nothing is left, and ``check`` finds nothing."""
        checked = self.call("check", "--warc-dir", str(self.warcs))
        # Killed before it had made the store.
        assert checked.code == 0 or (not before and has_no_store(checked)), (what, checked.out, checked.err)
        assert self.records() >= before, what
        assert not list(self.warcs.glob("*.open")), what

    def settle(self, what: str, how: str, at: int) -> None:
        """Do with a killed crawl what a user may do, and see that it is sound."""
        before = self.records()
        if how.startswith("killed salvage"):
            self.salvage(at)
        elif how.startswith("killed commit"):
            self.commit(at)
        elif how.startswith("another crawl"):
            other = self.run(DEDUPE_CRAWL_ID="other", JOBDIR=str(self.folder / "other"))
            assert (other.code, "Traceback" in other.err) == (0, False), (what, other.err)
        if how.endswith("salvage"):
            done = self.salvage()
        elif how.endswith("commit"):
            done = self.commit()
            if done.code == 3 and ("unknown" in done.err or has_no_store(done)):
                assert not before, (what, done.err)
                return
        else:
            done = self.run()
        is_committed = "it cannot be crawled again" in done.err
        assert done.code == 0 or (not before and has_no_store(done)), (what, done.out, done.err)
        assert is_committed or "Traceback" not in done.err, (what, done.err)
        self.assert_sound(before, what)
        if self.state() != "committed":
            again = self.run()
            assert (again.code, "Traceback" in again.err) == (0, False), (what, again.err)
            self.assert_sound(before, what)
        assert self.state() == "committed", what


WAYS = (
    "salvage",
    "killed salvage, salvage",
    "commit",
    "killed commit, commit",
    "run",
    "another crawl, salvage",
)


@pytest.fixture(params=STORES)
def new_crawl(request: pytest.FixtureRequest, runner: Runner, site: str, tmp_path: Path) -> Any:
    """Makes crawls, each with an empty store."""
    number = 0

    def make(*, wacz: bool = False) -> Crawl:
        nonlocal number
        number += 1
        folder = tmp_path / str(number)
        if request.param == "redis":
            url = request.getfixturevalue("redis_url")
            with redis.Redis.from_url(url) as client:
                client.flushall()
        else:
            url = f"sqlite:///{folder}/dedupe.sqlite"
        return Crawl(runner, site, folder, url, wacz)

    return make


@pytest.mark.parametrize(
    ("new_crawl", "state"), sampled(product(STORES, STATES), USUAL), indirect=["new_crawl"]
)
def test_a_crawl_that_was_killed_is_sound_after_a_salvage_and_goes_on(new_crawl: Any, state: str) -> None:
    crawl = new_crawl()
    killed = crawl.run(STATES[state])
    assert killed.code == -signal.SIGKILL, killed.steps
    before = crawl.records()
    assert crawl.salvage().code == 0
    crawl.assert_sound(before, state)
    if state != "committed":
        assert crawl.state() == "uncommitted"
        again = crawl.run()
        assert (again.code, "Traceback" in again.err) == (0, False), again.err
    assert crawl.state() == "committed"
    crawl.assert_sound(before, state)


@pytest.mark.parametrize(
    ("new_crawl", "step"),
    sampled(product(STORES, KILLED_SALVAGE), [("sqlite", KILLED_SALVAGE[0]), ("redis", KILLED_SALVAGE[1])]),
    indirect=["new_crawl"],
)
def test_a_salvage_that_was_killed_is_done_by_the_next_one(new_crawl: Any, step: str) -> None:
    crawl = new_crawl()
    assert crawl.run("after append#3").code == -signal.SIGKILL
    before = crawl.records()
    killed = crawl.salvage(step)
    assert killed.code == -signal.SIGKILL, killed.steps
    done = crawl.salvage()
    assert (done.code, "The crawl c: its entries were read again" in done.out) == (0, True), done.out
    crawl.assert_sound(before, step)


def test_a_crawl_that_goes_on_and_has_no_new_file_yet_is_left_as_it_is(new_crawl: Any) -> None:
    """A salvage does not take a crawl that is running for one that was killed."""
    crawl = new_crawl()
    assert crawl.run("after append#3").code == -signal.SIGKILL
    # The second run has settled what the first one left, and waits for its first page.
    assert crawl.run("before append#1").code == -signal.SIGKILL
    before = crawl.records()
    for path in crawl.warcs.glob("*.open"):
        path.unlink()
    assert crawl.salvage().out == "There are no unfinished WARC files.\n"
    crawl.assert_sound(before, "no new file")


@pytest.mark.exhaustive
def test_a_crawl_that_is_killed_at_any_step(new_crawl: Any) -> None:
    chance = random.Random(SEED)
    for number in range(KILLS):
        wacz = number % 4 == 3
        crawl = new_crawl(wacz=wacz)
        # More steps than there are: some crawls come to their end.
        at, how, at_then = (
            chance.randrange(1, 100 if wacz else 75),
            chance.choice(WAYS),
            chance.randrange(1, 25),
        )
        killed = crawl.run(at)
        what = f"{number}: {at} {killed.steps[-1] if killed.steps else '-'}, {how} {at_then}"
        crawl.settle(what, how, at_then)


@pytest.mark.exhaustive
def test_a_crawl_that_is_killed_at_any_moment(new_crawl: Any) -> None:
    """From the first millisecond of the process on, imports included."""
    chance = random.Random(SEED)
    longest = 2.0
    for number in range(KILLS // 2):
        crawl = new_crawl()
        words = [
            sys.executable,
            str(TESTS / "faults" / "killed_crawl.py"),
            json.dumps(crawl.settings),
            crawl.url,
        ]
        seconds = chance.uniform(0, longest)
        began = time.monotonic()
        process = subprocess.Popen(
            words, env=ENVIRONMENT, cwd=crawl.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(seconds)
            longest = time.monotonic() - began
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            longest = max(longest, 1.1 * seconds)
        how = chance.choice(WAYS)
        crawl.settle(f"{number}: {seconds} s, {how}", how, chance.randrange(1, 25))
