"""Random lives of several crawls in two processes, with kills between any two steps, against a model in memory.

A process dies in front of the n-th command that it sends to Redis, or the n-th statement that it gives to SQLite; with
it die its connection and what it had not committed. Another process, which was there all the time, and one that is
started anew see the index then as it was before the step that was cut off, or as it is after it; never anything
between. The step is done again later, or what may be done in its place.

``DEDUPE_LIVES`` is the number of lives; with it they are others each time.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import signal
import sqlite3
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import lives
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lives import CRAWLS, DIGESTS, SOURCES, URLS, Model, Step, differences, take
from sampling import examples

from scrapy_dedupe import stores
from scrapy_dedupe.errors import CrawlStateError
from scrapy_dedupe.stores import open_store

if TYPE_CHECKING:
    from servers import RedisServer

    from scrapy_dedupe.stores import Store

LIVES = int(os.environ.get("DEDUPE_LIVES", "0"))
STEPS = 30


class Killed(BaseException):
    """No error that a program could catch on purpose: it ends here."""


class Fuse:
    """Lets so many steps pass, and none after them."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_burnt = False

    def burn(self) -> None:
        if self.is_burnt or self.left == 0:
            self.is_burnt = True
            raise Killed
        if self.left is not None:
            self.left -= 1


class MortalConnection(sqlite3.Connection):
    """A connection whose statements burn a fuse."""

    fuse: Fuse

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.fuse.burn()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self.fuse.burn()
        return super().executemany(*arguments)


def mortal_client(client: Any, fuse: Fuse) -> None:
    """Let what a client sends burn a fuse; the commands of a pipeline that is no transaction one by one."""
    pool: Any = client.connection_pool
    make, pipeline = pool.make_connection, client.pipeline

    def mortal(connection: Any) -> Any:
        send = connection.send_packed_command

        def send_packed_command(*arguments: Any, **options: Any) -> Any:
            fuse.burn()
            return send(*arguments, **options)

        connection.send_packed_command = send_packed_command
        return connection

    def mortal_pipeline(*arguments: Any, **options: Any) -> Any:
        made: Any = pipeline(*arguments, **options)
        run = made.execute

        def execute(*arguments: Any, **options: Any) -> Any:
            commands = len(made.command_stack)
            if made.transaction or made.explicit_transaction or fuse.left is None or fuse.left >= commands:
                return run(*arguments, **options)
            # So many the server has got of it.
            made.command_stack, fuse.left = made.command_stack[: fuse.left], None
            run(*arguments, **options)
            fuse.left = 0
            return fuse.burn()

        made.execute = execute
        return made

    pool.make_connection = lambda: mortal(make())
    mortal(client.connection)
    client.pipeline = mortal_pipeline


def open_mortal(url: str, fuse: Fuse) -> Store:
    connect: Any = sqlite3.connect
    sqlite3.connect = cast("Any", partial(connect, factory=MortalConnection))
    MortalConnection.fuse = Fuse()
    try:
        store = open_store(url)
    finally:
        sqlite3.connect = connect
    if url.startswith("sqlite"):
        store._connection.fuse = fuse  # type: ignore[attr-defined]
    else:
        mortal_client(store._client, fuse)  # type: ignore[attr-defined]
        # What connecting takes is no step.
        store.index.find(lives.STRANGER, DIGESTS)
    return store


# The process, the command in front of which it is killed, and what follows once it was killed.
HOW = st.tuples(st.integers(0, 1), st.none() | st.integers(0, 24), st.integers(0, 5))
PICK = st.integers(0, 11)
CRAWL = st.sampled_from(CRAWLS)
SOURCE = st.integers(0, len(SOURCES) - 1)
PAYLOADS = st.lists(st.integers(0, len(DIGESTS) - 1), min_size=1, max_size=4, unique=True).map(tuple)
FEW = st.lists(st.integers(0, len(DIGESTS) - 1), max_size=2).map(tuple)
URL = st.none() | st.integers(0, len(URLS) - 1)
NEEDED = st.none() | CRAWL


class Lives(RuleBasedStateMachine):
    """The stores of two processes, and the model."""

    url = ""
    # Of more steps few calls consist.
    most_steps = 24

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.serial = 0
        self.done = 0
        self.pending: list[Step] = []
        self.reopened: set[str] = set()
        self.failed = False
        self.fuses = [Fuse(), Fuse()]
        self.stores: list[Store] = []

    def empty(self) -> None:
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """What is in the store after all crawls were purged and should not be."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.empty()
        self.stores = [open_mortal(self.url, fuse) for fuse in self.fuses]

    def next(self) -> int:
        self.serial += 1
        return self.serial

    # What a life consists of. Steps that the index takes come more often than those that it refuses.

    def opened(self, pick: int, other: str = "") -> str:
        """A crawl that is crawled here, one that is started now if there is none."""
        pick += self.done
        crawls = [crawl for crawl in CRAWLS if crawl != other]
        found = [crawl for crawl in crawls if self.model.open(crawl)]
        if not found:
            found = [crawl for crawl in crawls if lives.Start(crawl).is_allowed(self.model)]
            if not found:
                self.do(lives.Purge((crawls[0],)), (pick % 2, None, 1))
                found = crawls[:1]
            self.do(lives.Start(found[pick % len(found)], pick % 3 == 0), (pick % 2, None, 1))
            found = [crawl for crawl in crawls if self.model.open(crawl)]
        return found[pick % len(found)] if found else crawls[0]

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS, url=URL, needed=NEEDED, waiting=FEW)
    def add(self, how: Any, pick: int, payloads: Any, url: Any, needed: Any, waiting: Any) -> None:
        self.do(lives.Add(self.opened(pick), self.next(), payloads, url, needed, waiting), how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS, waiting=FEW)
    def commit(self, how: Any, pick: int, payloads: Any, waiting: Any) -> None:
        crawl = self.opened(pick)
        self.do(lives.Add(crawl, self.next(), payloads, None, None, waiting), (how[0], None, 1))
        self.do(lives.Commit(crawl), how)
        if pick % 2:
            self.do(lives.Resolve(), how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS)
    def cancel(self, how: Any, pick: int, payloads: Any) -> None:
        crawl = self.opened(pick)
        self.do(lives.Add(crawl, self.next(), payloads), (how[0], None, 1))
        self.do(lives.Cancel(crawl), how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS)
    def move_what_is_needed(self, how: Any, pick: int, payloads: Any) -> None:
        crawl = self.opened(pick)
        other = self.opened(pick, crawl)
        for step in (
            lives.Add(crawl, self.next(), payloads),
            lives.Add(crawl, self.next(), payloads[:1]),
            lives.Add(other, self.next(), (), None, crawl),
        ):
            self.do(step, (how[0], None, 1))
        self.do(lives.Rename(crawl, 0, self.next()), how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS)
    def reset(self, how: Any, pick: int, payloads: Any) -> None:
        crawl = self.opened(pick)
        self.do(lives.Reset(crawl), how)
        self.do(lives.Add(crawl, self.next(), payloads), (how[0], None, 1))

    @rule(how=HOW, pick=PICK, number=SOURCE, numbers=st.lists(SOURCE, max_size=3).map(tuple))
    def note(self, how: Any, pick: int, number: int, numbers: Any) -> None:
        """One of the steps that change little."""
        crawl = self.opened(pick)
        renames = [lives.Rename(other, number, self.next()) for other in CRAWLS]
        steps: list[Step] = [
            lives.AddFile(crawl, self.next()),
            lives.SetContainer(crawl, False),
            lives.SetContainer(crawl, True),
            lives.SetCounts(crawl, self.next()),
            lives.Mark(crawl, bool(self.next() % 2)),
            lives.Queue(numbers),
            lives.Claim(),
            lives.Release(number),
            lives.Rebuild(),
            *(step for step in renames if step.is_offered(self.model)),
        ]
        self.do(steps[(pick + self.done) % len(steps)], how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS, url=URL, needed=NEEDED, waiting=FEW, last=st.integers(0, 4))
    def import_source(
        self, how: Any, pick: int, payloads: Any, url: Any, needed: Any, waiting: Any, last: int
    ) -> None:
        """An import, the last step of which may be cut off; or no more than its beginning."""
        begins = [lives.Begin(number) for number in range(len(SOURCES))]
        begins = [step for step in begins if step.is_offered(self.model) and step.is_allowed(self.model)]
        if not begins:
            return
        begin = begins[pick % len(begins)]
        number = begin.number
        steps: list[Step] = [] if SOURCES[number].name in self.model.hidden else [begin]
        steps.append(lives.AddImported(number, self.next(), payloads, url))
        steps.append(lives.End(number, self.next(), needed, waiting))
        steps = steps[: last + 1]
        for step in steps[:-1]:
            self.do(step, (how[0], None, 1))
        self.do(steps[-1], how)
        if pick % 3 == 0:
            self.do(lives.Resolve(), how)

    @rule(how=HOW, payloads=PAYLOADS, waiting=FEW, is_dropped=st.booleans())
    def import_side_by_side(self, how: Any, payloads: Any, waiting: Any, is_dropped: bool) -> None:
        """Two sources of one crawl that have the same payloads."""
        if not all(
            lives.Begin(n).is_offered(self.model) and lives.Begin(n).is_allowed(self.model) for n in (0, 1)
        ):
            return
        waiting = (*waiting, 4, 0)
        for step in (
            lives.Begin(0),
            lives.Begin(1),
            lives.AddImported(0, self.next(), payloads),
            lives.AddImported(1, self.next(), payloads),
            lives.Drop(0) if is_dropped else lives.End(0, self.next(), None, waiting),
        ):
            self.do(step, (how[0], None, 1))
        self.do(lives.End(1, self.next(), None, waiting), how)
        self.do(lives.Resolve(), (how[0], None, 1))

    @rule(how=HOW, pick=PICK, is_begun_again=st.booleans())
    def leave_source(self, how: Any, pick: int, is_begun_again: bool) -> None:
        if hidden := [number for number, source in enumerate(SOURCES) if source.name in self.model.hidden]:
            number = hidden[pick % len(hidden)]
            self.do(lives.Begin(number) if is_begun_again else lives.Drop(number), how)

    @rule(how=HOW)
    def resolve(self, how: Any) -> None:
        self.do(lives.Resolve(), how)

    @rule(how=HOW, pick=PICK, is_wider=st.booleans())
    def purge(self, how: Any, pick: int, is_wider: bool) -> None:
        crawls = [crawl for crawl in CRAWLS if self.model.state_of(crawl) in ("committed", "canceled")]
        if crawls:
            first = pick % len(crawls)
            self.do(lives.Purge(tuple(crawls[first : first + 1 + is_wider])), how)

    @rule(how=HOW, pick=PICK, payloads=PAYLOADS, waiting=FEW)
    def replace(self, how: Any, pick: int, payloads: Any, waiting: Any) -> None:
        crawls = [crawl for crawl in CRAWLS if self.model.state_of(crawl) == "committed"]
        if crawls:
            crawl = crawls[pick % len(crawls)]
            by = self.opened(pick, crawl)
            self.do(lives.Add(by, self.next(), payloads, None, None, waiting), (how[0], None, 1))
            self.do(lives.Replace(crawl, by), how)

    @rule(how=HOW, crawl=CRAWL, number=SOURCE, what=st.integers(0, 13))
    def anything(self, how: Any, crawl: str, number: int, what: int) -> None:
        """Steps that are as likely as not refused."""
        steps: tuple[Step, ...] = (
            lives.Add(crawl, self.next(), (0,)),
            lives.AddFile(crawl, self.next()),
            lives.SetContainer(crawl, False),
            lives.SetCounts(crawl, 5),
            lives.Mark(crawl, True),
            lives.Reset(crawl),
            lives.Commit(crawl),
            lives.Cancel(crawl),
            lives.Purge((crawl,)),
            lives.Begin(number),
            lives.Drop(number),
            lives.End(number, self.next()),
            lives.Start(crawl),
            lives.Start(crawl, True),
        )
        self.do(steps[what], how)

    # How a step is done

    def do(self, step: Step, how: tuple[int, int | None, int]) -> None:
        """Do a step in the process *how[0]*, which is killed after *how[1]* commands."""
        side, fuse, choice = how
        self.done += 1
        self.failed = True
        self.settle(step, side, choice)
        if step.is_offered(self.model):
            if fuse is None:
                self.complete(step, side, again=choice == 0)
            else:
                # Hypothesis likes to draw the same numbers again; the calls are cut off at all of their steps.
                self.cut_off(step, side, (fuse + 7 * self.done) % self.most_steps)
            self.look(1 - side)
        self.failed = False

    def complete(self, step: Step, side: int, *, again: bool = False) -> None:
        index, before = self.stores[side].index, self.model
        self.model = take(step, index, before)
        if not again or not step.is_repeatable or not step.is_allowed(before):
            return
        if isinstance(step, (lives.Rename, lives.Replace)):
            step.call(index, before)
        else:
            self.model = take(step, index, self.model)

    def cut_off(self, step: Step, side: int, fuse: int) -> None:
        index, is_allowed = self.stores[side].index, step.is_allowed(self.model)
        self.fuses[side].left = fuse
        try:
            answer = step.call(index, self.model)
        except CrawlStateError as error:
            if is_allowed:
                raise AssertionError(f"{step} was refused.") from error
        except Killed:
            self.reopen(side)
            self.after_death(step, side, is_allowed)
        else:
            assert is_allowed, f"{step} was not refused"
            self.model = step.changed(self.model, answer)
        self.fuses[side].left = None

    def after_death(self, step: Step, side: int, is_allowed: bool) -> None:
        if not is_allowed:
            return
        if step.is_urgent:
            # Until it is done again the readers have nothing wrong at least.
            looks = (
                text
                for look in lives.READING
                for text in look(self.stores[1 - side].index, self.model, self.dirty)
            )
            if not isinstance(step, lives.Rename):
                assert not list(looks)
            self.complete(step, side)
            return
        self.pending.append(step)
        after = step.changed(self.model, None)
        wrong = []
        for model in (self.model, after):
            wrong.append([differences(store.index, model, self.dirty) for store in self.stores])
            if not any(wrong[-1]):
                self.model = model
                break
        else:
            raise AssertionError(
                f"{step} was cut off. The index is neither as before: {wrong[0]} nor as after: {wrong[1]}"
            )
        if not step.instead(self.model):
            self.pending.remove(step)

    def settle(self, step: Step, side: int, choice: int) -> None:
        """Do what steps that were cut off leave to do before *step*."""
        for other in list(self.pending):
            if set(other.crawls) & set(step.crawls):
                options = other.instead(self.model)
                instead = options[choice % len(options)]
                self.complete(instead, side)
                self.pending.remove(other)
                if isinstance(instead, lives.Start):
                    self.reopened.add(instead.crawl)

    @property
    def dirty(self) -> frozenset[str]:
        return frozenset(crawl for step in self.pending for crawl in step.dirty)

    def reopen(self, side: int) -> None:
        self.fuses[side] = Fuse()
        store = self.stores[side]
        if self.url.startswith("sqlite"):
            sqlite3.Connection.close(store._connection)  # type: ignore[attr-defined]
        else:
            store._client.connection_pool.disconnect()  # type: ignore[attr-defined]
        self.stores[side] = open_mortal(self.url, self.fuses[side])

    def look(self, side: int) -> None:
        index = self.stores[side].index
        if found := differences(index, self.model, self.dirty):
            raise AssertionError("\n".join(found))
        # What a commit has entered that was cut off stays in the merged index while its crawl goes on.
        if not self.pending and not any(self.model.open(crawl) for crawl in self.reopened):
            assert index.merged_faults() == 0
        if not self.pending:
            assert index.unfinished_purge() == []
        assert index.unreadable == 0  # type: ignore[attr-defined]

    def teardown(self) -> None:
        try:
            if self.stores and not self.failed:
                self.end()
        finally:
            for store in self.stores:
                store.close()

    def end(self) -> None:
        """Purge all there is: nothing is left then."""
        self.settle(lives.Purge(CRAWLS), 0, 0)
        for number, source in enumerate(SOURCES):
            if source.name in self.model.hidden:
                self.complete(lives.Drop(number), 0)
            self.complete(lives.Release(number), 0)
        for crawl in CRAWLS:
            if self.model.state_of(crawl) == "uncommitted":
                self.complete(lives.Cancel(crawl), 0)
        self.complete(lives.Purge(CRAWLS), 0)
        self.look(1)
        assert self.leftovers() == []


class SqliteLives(Lives):
    folder = Path()
    number = 0

    def empty(self) -> None:
        cls = type(self)
        cls.number += 1
        self.url = f"sqlite:///{self.folder / f'{cls.number}.sqlite'}"

    def leftovers(self) -> list[str]:
        connection = self.stores[0]._connection  # type: ignore[attr-defined]
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name not in ("index_mark", "crawl")
        ]
        # The rows of crawls stay, without anything in them.
        rows = ["crawl WHERE state <> 'gone'", *tables]
        return [name for name in rows if connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]]


class RedisLives(Lives):
    most_steps = 12

    def empty(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def leftovers(self) -> list[str]:
        # The sums are there, and are zero: see Lives.look.
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return sorted(set(client.keys()) - {"dedupe:index", "allcounts"})


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    make_batches_small(monkeypatch)


def make_batches_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a call is about one or two records, so that there is something between any two."""
    for module in pkgutil.iter_modules(stores.__path__, "scrapy_dedupe.stores."):
        if "_index" in module.name or "_import" in module.name or "_purg" in module.name:
            loaded = importlib.import_module(module.name)
            for name, value in vars(loaded).items():
                if name.endswith(("_BATCH", "_AT_ONCE")) and isinstance(value, int):
                    monkeypatch.setattr(loaded, name, 1)


@pytest.fixture
def hash_tables(redis_server: RedisServer) -> str:
    """The URL of a server that gives small hashes in parts too."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.config_set("hash-max-listpack-entries", 0)
        if client.config_get("set-max-listpack-entries"):  # since Redis 7.2
            client.config_set("set-max-listpack-entries", 0)
        client.config_set("appendonly", "no")
    return redis_server.url


class Deadly(Fuse):
    """Kills this very process, which can do nothing more then."""

    def burn(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().burn()


FATAL_STEPS: dict[str, Step] = {
    "commit": lives.Commit("a"),
    "end": lives.End(3, 50, "a", (0, 4)),
    "purge": lives.Purge(("c",)),
}


def die_in(url: str, name: str, left: int, model: Model) -> None:
    fuse = Deadly()
    store = open_mortal(url, fuse)
    fuse.left = left
    FATAL_STEPS[name].call(store.index, model)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize(("name", "left"), [("commit", 2), ("end", 1), ("end", 5), ("purge", 4)])
def test_a_process_that_is_really_killed_leaves_nothing_between(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, name: str, left: int
) -> None:
    url = f"sqlite:///{tmp_path / 'a.sqlite'}" if kind == "sqlite" else request.getfixturevalue("redis_url")
    store, step, model = open_store(url), FATAL_STEPS[name], Model()
    steps: list[Step] = [
        lives.Start("a"),
        lives.Add("a", 1, (0, 1, 2), 0, "c", (3, 3)),
        lives.Start("c"),
        lives.Add("c", 2, (1, 2, 3)),
        lives.Commit("c"),
        lives.Begin(3),
        lives.AddImported(3, 3, (1, 3, 4), 1),
    ]
    for each in steps:
        model = take(each, store.index, model)
    child = multiprocessing.get_context("forkserver").Process(target=die_in, args=(url, name, left, model))
    child.start()
    child.join(240)
    assert child.exitcode == -signal.SIGKILL
    after = step.changed(model, None)
    dirty = frozenset(step.dirty)
    wrong = [differences(store.index, each, dirty) for each in (model, after)]
    assert not all(wrong), wrong
    model = take(step, store.index, after if wrong[0] else model)
    assert differences(store.index, model) == []
    assert store.index.merged_faults() == 0
    store.close()


def run(machine: type[Lives], **attributes: Any) -> None:
    run_state_machine_as_test(
        type(machine.__name__, (machine,), attributes),
        settings=settings(
            max_examples=LIVES or examples(60),
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not LIVES,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.hypothesis
def test_lives_with_kills_in_sqlite_agree_with_the_model(tmp_path: Path) -> None:
    run(SqliteLives, folder=tmp_path)


@pytest.mark.hypothesis
def test_lives_with_kills_in_redis_agree_with_the_model(hash_tables: str) -> None:
    run(RedisLives, url=hash_tables)
