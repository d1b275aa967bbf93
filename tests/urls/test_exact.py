from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sampling import examples

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.urls import exact as exact_module
from scrapy_dedupe.urls.exact import APPLICATION_ID, WRITE_FROM_BYTES, ExactSet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


def fingerprint(number: int) -> bytes:
    return hashlib.sha1(b"%d" % number).digest()


def fingerprints(start: int, stop: int) -> list[bytes]:
    return [fingerprint(number) for number in range(start, stop)]


def opened(path: Path | None, **options: object) -> ExactSet:
    return ExactSet(path, FINGERPRINTER, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "urls" / "urls.exact"


def stored(path: Path, count: int) -> list[bytes]:
    """Fingerprints that were written into *path*, which is closed."""
    items = fingerprints(0, count)
    exact = opened(path)
    exact.add_all(items)
    exact.close()
    return items


# What it answers


# Few and structured ones, so that they meet again: short, long, with a common start, prefixes of each other.
some_fingerprints = st.one_of(
    st.binary(min_size=1, max_size=2),
    st.integers(0, 50).map(fingerprint),
    st.sampled_from([0, 1, 5_000, 65_515]).map(lambda size: b"https://example.com/" + b"a" * size),
)


class AgainstAPlainSet(RuleBasedStateMachine):
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.path = self.folder / f"{time.monotonic_ns()}.exact"
        self.exact = opened(self.path)
        self.model: set[bytes] = set()
        self.known: set[bytes] = {b"never added"}

    @rule(items=st.lists(some_fingerprints, max_size=20))
    def add(self, items: list[bytes]) -> None:
        for item in items:
            self.exact.add(item)
        self.model.update(items)
        self.known.update(items)

    @rule(items=st.lists(some_fingerprints, max_size=20))
    def add_all(self, items: list[bytes]) -> None:
        self.exact.add_all(items)
        self.model.update(items)
        self.known.update(items)

    @rule()
    def clear(self) -> None:
        self.exact.clear()
        self.model.clear()

    @rule()
    def write(self) -> None:
        self.exact.write_pending()
        assert self.exact.pending == 0
        assert self.exact.count == len(self.model)

    @rule()
    def reopen(self) -> None:
        self.exact.close()
        assert self.exact.count == len(self.model)
        assert [file.name for file in self.folder.glob(self.path.name + "*")] == [self.path.name]
        self.exact = opened(self.path)
        assert self.exact.count == len(self.model)

    @invariant()
    def it_holds_what_the_plain_set_holds(self) -> None:
        assert {item for item in self.known if item in self.exact} == self.model
        assert len(self.exact) == len(self.model)

    def teardown(self) -> None:
        self.exact.close()
        self.path.unlink()


@pytest.mark.hypothesis
def test_it_answers_as_a_plain_set_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgainstAPlainSet, "folder", tmp_path, raising=False)
    # Small parts, so that the seams between them are met.
    monkeypatch.setattr(exact_module, "_TRANSACTION_FINGERPRINTS", 3)
    monkeypatch.setattr(exact_module, "_STATEMENT_ROWS", 2)
    monkeypatch.setattr(exact_module, "_CACHE_FINGERPRINTS", 4)
    AgainstAPlainSet.TestCase.settings = settings(
        max_examples=examples(40),
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    AgainstAPlainSet.TestCase().runTest()


def test_adding_and_asking_in_memory_touch_no_file(path: Path) -> None:
    exact = opened(path)
    statements: list[str] = []
    exact._writer.set_trace_callback(statements.append)
    exact._reader.set_trace_callback(statements.append)
    exact.add(b"a")
    assert b"a" in exact
    assert statements == []
    exact.write_pending()
    assert statements
    exact.close()


def test_a_second_answer_comes_from_memory(path: Path) -> None:
    items = stored(path, 10)
    exact = opened(path)
    statements: list[str] = []
    exact._reader.set_trace_callback(statements.append)
    assert [items[0] in exact for _ in range(3)] == [True] * 3
    assert len(statements) == 1
    exact.close()


def test_the_answers_in_memory_are_the_latest_short_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "_CACHE_FINGERPRINTS", 4)
    items = stored(path, 10)
    exact = opened(path)
    exact.add_all([b"x" * 200])
    for item in items:
        assert items[0] in exact
        assert item in exact
    assert b"x" * 200 in exact
    assert list(exact._recent) == [*items[7:9], items[0], items[9]]
    exact.close()


def test_it_wants_to_be_written_when_much_is_pending(path: Path) -> None:
    exact = opened(path)
    for item in fingerprints(0, 10):
        exact.add(item)
    assert not exact.wants_writing
    while exact.pending_bytes < WRITE_FROM_BYTES:
        exact.add(exact.pending.to_bytes(60_000, "big"))
    assert exact.wants_writing
    count = exact.pending
    assert count < 30
    exact.write_pending()
    assert not exact.wants_writing
    assert exact.pending_bytes == 0
    assert exact.count == count
    exact.close()


def test_a_reader_is_not_held_up_by_a_transaction(path: Path) -> None:
    items = stored(path, 100)
    exact = opened(path)
    exact._writer.execute("BEGIN IMMEDIATE")
    exact._writer.execute("DELETE FROM seen")
    assert items[7] in exact
    exact._writer.execute("ROLLBACK")
    exact.close()


def test_a_file_that_is_locked_is_said_at_once(path: Path) -> None:
    items = stored(path, 100)
    exact = opened(path)
    # A connection in this mode keeps all others out of the file, as a repair by hand might.
    exact._reader.close()
    exact._writer.close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    exact._reader = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    with pytest.raises(StoreUnavailable, match=r"urls\.exact cannot be read.*locked.*count as new"):
        _ = items[0] in exact
    exact._reader.close()
    other.close()


# Two threads


def test_no_fingerprint_is_missing_while_another_thread_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_module, "_TRANSACTION_FINGERPRINTS", 50)
    exact = opened(path)
    is_done = threading.Event()
    errors: list[BaseException] = []
    writes = 0

    def write() -> None:
        nonlocal writes
        try:
            while not is_done.is_set():
                exact.write_pending()
                writes += 1
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    # The threads change over often, so that each step of a write meets each step of a question.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(6_000):
            exact.add(fingerprint(number))
            for back in (0, 1, 10, 60, 300, 3_000):
                if back <= number:
                    assert fingerprint(number - back) in exact
            if number % 500 == 0:
                assert len(exact) == number + 1
                # The other thread may not have had a turn yet.
                before = writes
                while writes == before and not errors:
                    time.sleep(0.001)
    finally:
        is_done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not errors
    assert writes > 10
    exact.close()
    assert exact.count == 6_000


def test_clearing_during_writes_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "_TRANSACTION_FINGERPRINTS", 20)
    exact = opened(path)
    is_done = threading.Event()

    def write() -> None:
        while not is_done.is_set():
            exact.write_pending()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for turn in range(60):
            for number in range(100):
                exact.add(b"%d-%d" % (turn, number))
            assert b"%d-0" % turn in exact
            exact.clear()
            assert all(b"%d-%d" % (turn, number) not in exact for number in range(100))
            exact.add(b"kept-%d" % turn)
            assert len(exact) == 1
    finally:
        is_done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert b"kept-59" in exact
    exact.close()
    assert exact.count == 1


def test_clearing_succeeds_on_a_full_disk(path: Path) -> None:
    stored(path, 5_000)
    exact = opened(path)
    full(exact)
    exact.clear()
    for item in fingerprints(10_000, 20_000):
        exact.add(item)
    exact.close()
    again = opened(path)
    assert exact.count == again.count == 10_000
    assert fingerprint(7) not in again
    again.close()


def test_what_was_answered_from_memory_is_gone_when_it_is_cleared(path: Path) -> None:
    items = stored(path, 10)
    exact = opened(path)
    assert all(item in exact for item in items)
    exact.clear()
    for _ in range(2):
        assert not any(item in exact for item in items)
        exact.write_pending()
    exact.close()


# The file


def test_what_is_closed_is_one_file_with_these_tables(path: Path) -> None:
    stored(path, 1_000)
    assert [file.name for file in path.parent.iterdir()] == ["urls.exact"]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x64647531,)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(connection.execute("SELECT name, value FROM about")) == [
        ("count", 1_000),
        ("fingerprinter", FINGERPRINTER),
    ]
    assert sorted(connection.execute("SELECT * FROM seen")) == [
        (item,) for item in sorted(fingerprints(0, 1_000))
    ]
    connection.close()


def test_closing_writes_what_is_pending_and_may_be_repeated(path: Path) -> None:
    exact = opened(path)
    exact.add(b"a")
    exact.close()
    exact.close()
    exact.write_pending()
    assert exact.count == 1
    for use in (lambda: exact.add(b"b"), exact.clear, lambda: exact.add_all([b"b"]), lambda: b"b" in exact):
        with pytest.raises(StoreUnavailable, match=r"urls\.exact"):
            use()
    again = opened(path)
    assert b"a" in again
    again.close()


def test_the_wal_file_stays_small(path: Path) -> None:
    exact = opened(path)
    largest = 0
    wal = path.with_name("urls.exact-wal")
    for start in range(0, 200_000, 5_000):
        for item in fingerprints(start, start + 5_000):
            exact.add(item)
            if start and item[0] == 0:
                assert fingerprint(start - 1) in exact
        exact.write_pending()
        largest = max(largest, wal.stat().st_size)
    assert largest < 16 << 20
    exact.close()
    assert exact.count == 200_000


def test_a_temporary_set_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    exact = opened(None)
    assert os.name == "nt" or list(tmp_path.iterdir()) == []
    items = fingerprints(0, 50_000)
    exact.add_all(items)
    for item in fingerprints(50_000, 50_100):
        exact.add(item)
    exact.write_pending()
    assert all(item in exact for item in items[::100])
    assert fingerprint(50_050) in exact
    assert fingerprint(60_000) not in exact
    assert len(exact) == 50_100
    exact.close()
    assert list(tmp_path.iterdir()) == []


def test_recreating_removes_what_was_there(path: Path) -> None:
    stored(path, 100)
    path.with_name("urls.exact-wal").write_bytes(b"left by a kill")
    exact = opened(path, recreate=True)
    assert len(exact) == 0
    assert fingerprint(1) not in exact
    exact.close()
    path.write_bytes(b"damaged" * 1000)
    opened(path, recreate=True).close()


def test_recreating_spares_another_application_s_database(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id=7")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    for recreate in (False, True):
        with pytest.raises(StoreRefused, match=r"urls\.exact is not an exact URL set.*Move it away"):
            opened(path, recreate=recreate)
    assert path.read_bytes() == before


# What is refused


def test_another_fingerprinter_is_refused(path: Path) -> None:
    stored(path, 3)
    with pytest.raises(StoreRefused, match=r"urls\.exact were made by scrapy\..*is other\.Class"):
        ExactSet(path, "other.Class")
    exact = opened(path)
    assert exact.count == 3
    exact.close()


def test_another_version_is_refused(path: Path) -> None:
    stored(path, 3)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(StoreRefused, match=r"urls\.exact has format version 2.*reads 1"):
        opened(path)


def test_what_is_no_database_is_refused_and_left(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"# not a database\n" * 100)
    with pytest.raises(StoreRefused, match=r"urls\.exact is not an exact URL set.*Move it away"):
        opened(path)
    assert path.read_bytes() == b"# not a database\n" * 100
    assert [file.name for file in path.parent.iterdir()] == ["urls.exact"]


def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreRefused, match="is a folder"):
        opened(path)


def test_a_count_that_cannot_be_is_refused(path: Path) -> None:
    stored(path, 3)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM seen")
    connection.commit()
    connection.close()
    with pytest.raises(StoreRefused, match=r"urls\.exact is damaged.*Delete it"):
        opened(path)


@given(data=st.data())
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_is_refused_or_never_says_seen_of_what_it_lacks(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = tmp_path / "whole.exact"
    if not whole.exists():
        stored(whole, 3_000)
    content = bytearray(whole.read_bytes())
    if data.draw(st.booleans(), "truncated"):
        del content[data.draw(st.integers(1, len(content) - 1), "size") :]
    else:
        start = data.draw(st.integers(0, len(content) - 1), "start")
        size = data.draw(st.integers(1, 3_000), "size")
        content[start : start + size] = data.draw(st.binary(min_size=size, max_size=size), "damage")[
            : len(content) - start
        ]
    path = tmp_path / "damaged.exact"
    path.write_bytes(content)
    sentences = []
    try:
        exact = opened(path)
    except (StoreRefused, StoreUnavailable) as error:
        sentences.append(str(error))
    else:
        for item in fingerprints(3_000, 6_000):
            with suppressed(StoreUnavailable, sentences):
                assert item not in exact
        with suppressed(StoreUnavailable, sentences):
            assert len(exact) >= 0
        exact.add(b"new")
        with suppressed(StoreUnavailable, sentences):
            exact.write_pending()
        assert b"new" in exact
        with suppressed(StoreUnavailable, sentences):
            exact.close()
    assert all(str(path) in sentence for sentence in sentences)


@contextmanager
def suppressed(kind: type[Exception], sentences: list[str]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        sentences.append(str(error))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"CREATE TABLE seen", b"CREATE TABLE \xff\xfe\xff\xff"),
        (b"CREATE TABLE seen", b"CREATE TABLE sean"),
        (b"PRIMARY KEY", b"PRIMARY \xff\xff\xff"),
        (b"fingerprinter", b"fingerpointer"),
    ],
)
def test_damage_in_what_describes_the_tables_is_refused(path: Path, before: bytes, after: bytes) -> None:
    stored(path, 100)
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))
    with pytest.raises(StoreRefused, match=r"urls\.exact is damaged.*Delete it"):
        opened(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    stored(path, 3_000)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(StoreRefused, match=r"urls\.exact is damaged"):
        opened(path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match=r"cannot be used.*DEDUPE_URL_CONFIRM"):
        opened(tmp_path / "file" / "urls.exact")


@pytest.mark.skipif(
    os.name == "nt" or getattr(os, "geteuid", lambda: 0)() == 0, reason="root writes everywhere"
)
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match=r"cannot be used.*DEDUPE_URL_CONFIRM"):
            opened(tmp_path / "urls.exact")
    finally:
        tmp_path.chmod(0o700)


# A full disk


def full(exact: ExactSet) -> None:
    """Let the file take no page more, as a full disk would."""
    pages = exact._writer.execute("PRAGMA page_count").fetchone()[0]
    exact._writer.execute(f"PRAGMA max_page_count={pages}")


def roomy(exact: ExactSet) -> None:
    exact._writer.execute("PRAGMA max_page_count=1000000")


def test_what_a_full_disk_does_not_take_stays_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = stored(path, 5_000)
    exact = opened(path)
    full(exact)
    more = fingerprints(5_000, 10_000)
    for item in more:
        exact.add(item)
    with pytest.raises(StoreUnavailable, match=r"urls\.exact cannot be written.*full.*Free disk space"):
        exact.write_pending()
    assert all(item in exact for item in (*items, *more))
    assert b"new" not in exact
    assert len(exact) == 10_000
    assert exact.count == 5_000
    assert exact.pending == 5_000
    # It is not told again, not tried at each flush, and does not ask for more of them.
    exact.write_pending()
    assert not exact.wants_writing
    monkeypatch.setattr(exact_module, "_RETRY_S", 0.0)
    exact.write_pending()
    assert exact.pending == 5_000
    roomy(exact)
    exact.write_pending()
    assert exact.pending == 0
    assert exact.count == 10_000
    full(exact)
    for item in fingerprints(20_000, 30_000):
        exact.add(item)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        exact.write_pending()
    roomy(exact)
    exact.close()
    assert exact.count == 20_000


def test_closing_on_a_full_disk_says_so_and_leaves_what_was_written(path: Path) -> None:
    items = stored(path, 5_000)
    exact = opened(path)
    full(exact)
    for item in fingerprints(5_000, 10_000):
        exact.add(item)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        exact.close()
    exact.close()
    assert exact.count == 5_000
    again = opened(path)
    assert again.count == 5_000
    assert all(item in again for item in items)
    assert fingerprint(7_000) not in again
    again.close()


def test_beyond_its_bound_it_forgets_new_ones_and_counts_them(path: Path) -> None:
    exact = opened(path, max_pending_bytes=160_000)
    full(exact)
    exact.add_all([])
    items = fingerprints(0, 1_500)
    for item in items:
        exact.add(item)
    assert exact.forgotten == 500
    assert all(item in exact for item in items[:1_000])
    assert not any(item in exact for item in items[1_000:])
    # Known ones are no burden.
    exact.add(items[0])
    assert exact.forgotten == 500
    exact.add(bytes(60_000))
    assert exact.forgotten == 501
    roomy(exact)
    exact.close()
    assert exact.count == 1_000


_LIMITED = """
import hashlib, resource, sys
from pathlib import Path
from scrapy_dedupe.errors import StoreUnavailable
from scrapy_dedupe.urls.exact import ExactSet
exact = ExactSet(Path(sys.argv[1]), "x.Y")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
items = [hashlib.sha1(b"%d" % n).digest() for n in range(30_000)]
failures = 0
for start in range(0, 30_000, 1_000):
    for item in items[start : start + 1_000]:
        exact.add(item)
    try:
        exact.write_pending()
    except StoreUnavailable as error:
        assert "cannot be written" in str(error), error
        failures += 1
    assert all(item in exact for item in items[: start + 1_000]), start
    assert not any(item in exact for item in items[start + 1_000 : start + 2_000]), start
assert failures == 1, failures
assert len(exact) == 30_000 and exact.forgotten == 0
try:
    exact.close()
except StoreUnavailable as error:
    print(exact.count)
"""


@pytest.mark.skipif(os.name == "nt", reason="needs a limit for the size of files")
def test_a_file_that_may_not_grow_loses_nothing(path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    exact = ExactSet(path, "x.Y")
    assert 0 < exact.count == int(ended.stdout) < 30_000
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM seen").fetchone() == (exact.count,)
    exact.close()


# A kill


_WRITER = """
import hashlib, sys
from pathlib import Path
from scrapy_dedupe.urls.exact import ExactSet
path = sys.argv[1]
exact = ExactSet(Path(path) if path else None, "x.Y")
number = 0
while True:
    for _ in range(500):
        exact.add(hashlib.sha1(b"%d" % number).digest())
        number += 1
    exact.write_pending()
    print(number, flush=True)
"""


def killed_after(path: str, lines: int, folder: Path) -> int:
    """Run the writer, kill it at once when it has written *lines* batches, and return what it said last."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(lines)]
        process.kill()
        said += [int(line) for line in process.stdout.read().splitlines()]
    assert os.name == "nt" or process.returncode == -signal.SIGKILL
    return said[-1]


@pytest.mark.parametrize("lines", [1, 3, 10, 40])
def test_after_a_kill_it_opens_and_knows_what_was_written_and_nothing_else(path: Path, lines: int) -> None:
    path.parent.mkdir()
    written = killed_after(str(path), lines, path.parent)
    exact = ExactSet(path, "x.Y")
    assert all(fingerprint(number) in exact for number in range(written))
    # The batch that was under way is there in whole or not at all.
    assert exact.count == len(exact) in range(written, written + 100_000, 500)
    assert not any(fingerprint(number) in exact for number in range(exact.count, exact.count + 2_000))
    exact.close()


@pytest.mark.skipif(os.name == "nt", reason="open files keep their names")
def test_a_kill_leaves_no_temporary_file(tmp_path: Path) -> None:
    killed_after("", 3, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_mark_in_the_file_is_that_of_the_format() -> None:
    assert APPLICATION_ID.to_bytes(4, "big") == b"ddu1"
