from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, StoreRefused, StoreUnavailable
from scrapy_dedupe.urls import folder as folder_module
from scrapy_dedupe.urls import journal as module
from scrapy_dedupe.urls.folder import AddedFingerprints, LastStop
from scrapy_dedupe.urls.snapshot import FilterSnapshot
from scrapy_dedupe.urls.stored_filter import StoredFilter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

MAKER = "a.Maker"
ROOT = Path(__file__).parents[2]


def folder_at(job: Path, *, maker: str = MAKER, confirm: bool = False) -> StoredFilter:
    return StoredFilter(job, maker, confirm=confirm)


def stored_at(job: Path, *, maker: str = MAKER, create: bool = False) -> AbstractContextManager[StoredFilter]:
    return folder_at(job, maker=maker).between_runs(100, 1e-6, create=create)


def run(
    job: Path,
    seen: Iterable[bytes],
    done: Iterable[bytes] = (),
    failed: Iterable[bytes] = (),
    *,
    clean: bool = True,
    confirm: bool = False,
) -> None:
    """A run that asked for what is new of ``seen``, and its stop."""
    folder = folder_at(job, confirm=confirm)
    filter_ = folder.open(100, 1e-6).filter
    folder.seen_journal.append([item for item in seen if filter_.add(item)])
    folder.done_journal.append(done)
    folder.forgotten_journal.append(failed)
    if clean:
        folder.close(filter_)
    else:
        folder.abandon()


def next_run(job: Path, *, confirm: bool = False) -> StoredFilter:
    """What the next run finds, told by one over a copy of the job."""
    copy = job.with_name(f"{job.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(job, copy)
    folder = folder_at(copy, confirm=confirm)
    opened = folder.open(100, 1e-6)
    folder.abandon()
    return opened


def answers(job: Path, fingerprints: Iterable[bytes]) -> set[bytes]:
    """Those that the next run would not ask for."""
    opened = next_run(job)
    return {item for item in fingerprints if item in opened.filter and item not in opened.forgotten}


def contents(job: Path) -> dict[str, bytes]:
    return {path.relative_to(job).as_posix(): path.read_bytes() for path in job.rglob("*") if path.is_file()}


def exact_in(job: Path) -> int:
    """How many fingerprints the exact set has."""
    with closing(sqlite3.connect(job / "dedupe" / "urls" / "urls.sqlite")) as connection:
        return int(connection.execute("SELECT count(*) FROM seen").fetchone()[0])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    return path


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "cut"])
def test_it_says_what_the_next_run_would_say(job: Path, clean: bool) -> None:
    run(job, [b"done", b"queued", b"failed"], [b"done", b"failed"], [b"failed"], clean=clean)
    with stored_at(job) as stored:
        assert stored.last_stop is (LastStop.CLEAN if clean else LastStop.CUT)
        assert stored.state(b"done") == "seen"
        assert stored.state(b"queued") == ("seen" if clean else "new")
        assert stored.state(b"failed") == "forgotten"
        assert stored.state(b"never") == "new"
        assert stored.state(b"done") == "seen"
        assert stored.state(b"failed") != "seen"
        assert list(stored.fingerprints()) == ([b"done", b"queued"] if clean else [b"done"])
        assert stored.unlisted() == 0
        figures, listed = stored.filter.figures(), stored.listed()
        assert (len(stored.forgotten), stored.has_stored_set, figures.capacity) == (1, False, 100)
    opened = next_run(job)
    assert figures == opened.filter.figures()
    assert figures.seen == listed == len(opened.filter) == (3 if clean else 2)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "cut"])
def test_to_look_changes_no_byte(job: Path, clean: bool) -> None:
    run(job, [b"a", b"b"], [b"a"], clean=clean)
    with (job / "dedupe" / "urls" / ("urls.seen" if clean else "urls.done")).open("ab") as file:
        file.write(b"\x07torn")
    before = contents(job)
    with stored_at(job) as stored:
        assert stored.state(b"a") == "seen"
        assert stored.listed() == len(list(stored.fingerprints())) == (2 if clean else 1)
    assert contents(job) == before


def test_where_there_is_nothing_nothing_is_made(job: Path) -> None:
    for folder in (job, job / "dedupe" / "urls"):
        folder.mkdir(parents=True, exist_ok=True)
        before = sorted(job.rglob("*"))
        with pytest.raises(StoreUnavailable, match="There is no URL filter in"), stored_at(job):
            pass
        assert sorted(job.rglob("*")) == before


def test_scrapys_own_file_is_named_where_there_is_no_filter_yet(job: Path) -> None:
    (job / "requests.seen").write_bytes(b"\x00\x01a")
    with pytest.raises(StoreUnavailable, match="Scrapy's own file"), stored_at(job):
        pass


def test_a_running_crawl_is_refused_and_left_alone(job: Path) -> None:
    folder = folder_at(job)
    opened = folder.open(100, 1e-6)
    for create in (False, True):
        with pytest.raises(ArchiveError, match="in use by another process"), stored_at(job, create=create):
            pass
    opened.filter.add(b"a")
    folder.close(opened.filter)
    with stored_at(job) as stored:
        assert stored.state(b"a") == "seen"
        with pytest.raises(ArchiveError, match="in use by another process"):
            folder_at(job).open(100, 1e-6)


def test_another_fingerprinter_and_damage_are_refused_as_a_run_refuses_them(job: Path) -> None:
    run(job, [b"a"], [b"a"])
    with pytest.raises(StoreRefused, match=r"made by a\.Maker"), stored_at(job, maker="another.Maker"):
        pass
    snapshot = job / "dedupe" / "urls" / "urls.bloom"
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StoreRefused, match="is damaged"), stored_at(job):
        pass
    snapshot.unlink()
    (job / "dedupe" / "urls" / "urls.done").write_bytes(b"These are my notes")
    with pytest.raises(StoreRefused, match="is not a journal of done requests"), stored_at(job):
        pass


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "cut"])
def test_what_is_forgotten_is_asked_for_once_more(job: Path, clean: bool) -> None:
    run(job, [b"a", b"b", b"c"], [b"a", b"b", b"c"], clean=clean)
    with stored_at(job) as stored:
        assert stored.forget([b"a", b"never", b"a", b"b"]) == 2
        assert stored.forget([b"a"]) == 0
        assert [stored.state(item) for item in (b"a", b"b", b"c")] == ["forgotten", "forgotten", "seen"]
        assert list(stored.fingerprints()) == [b"c"]
    with stored_at(job) as stored:
        assert stored.state(b"a") == "forgotten"
        assert len(stored.filter) == 3
    opened = next_run(job)
    assert opened.last_stop is (LastStop.CLEAN if clean else LastStop.CUT)
    assert [opened.forgotten.take(item) for item in (b"a", b"a", b"c")] == [True, False, False]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "cut"])
def test_what_is_added_counts_as_seen_and_the_stop_stays_what_it_was(job: Path, clean: bool) -> None:
    run(job, [b"a", b"f"], [b"a", b"f"], [b"f"], clean=clean)
    for _ in range(2):
        run_before = next_run(job).last_stop
        with stored_at(job) as stored:
            added = stored.add_many([b"a", b"x", b"y", b"x", b"f"])
            assert [stored.state(item) for item in (b"a", b"x", b"y", b"f")] == ["seen"] * 4
        assert next_run(job).last_stop is run_before
        with stored_at(job) as stored:
            assert list(stored.fingerprints()) == [b"a", b"f", b"x", b"y"]
            assert len(stored.forgotten) == 0
    assert added == AddedFingerprints(0, 0, 5)
    assert answers(job, [b"a", b"f", b"x", b"y", b"z"]) == {b"a", b"f", b"x", b"y"}
    assert (job / "dedupe" / "urls" / "urls.bloom").exists() is clean


def test_added_fingerprints_are_counted(job: Path) -> None:
    run(job, [b"a", b"f"], failed=[b"f"])
    with stored_at(job) as stored:
        assert stored.add_many([b"a", b"x", b"x", b"f", b"f"]) == AddedFingerprints(new=1, again=1, known=3)
        assert stored.forget([b"x"]) == 1
        assert stored.add_many([b"x"]) == AddedFingerprints(again=1)


def test_what_a_kill_took_out_of_the_filter_and_a_tool_adds_again_is_not_forgotten(job: Path) -> None:
    run(job, [b"a", b"b"])
    with stored_at(job) as stored:
        assert stored.forget([b"a", b"b"]) == 2
    run(job, [], clean=False)
    with stored_at(job) as stored:
        assert stored.last_stop is LastStop.CUT
        assert [stored.state(item) for item in (b"a", b"b")] == ["new", "new"]
        assert stored.add_many([b"a"]) == AddedFingerprints(new=1)
        assert stored.state(b"a") == "seen"
        assert stored.forget([b"a"]) == 1
        assert stored.state(b"a") == "forgotten"
        assert stored.add_many([b"a"]) == AddedFingerprints(again=1)
    assert answers(job, [b"a", b"b"]) == {b"a"}


def test_a_job_without_a_filter_gets_one_as_after_a_clean_stop(job: Path) -> None:
    with stored_at(job / "new", create=True) as stored:
        assert stored.last_stop is LastStop.NONE
        assert stored.add_many([b"a", b"b", b"a"]) == AddedFingerprints(2, 0, 1)
        assert stored.last_stop is LastStop.CLEAN
        assert stored.add_many([b"c"]) == AddedFingerprints(1)
    opened = next_run(job / "new")
    assert opened.last_stop is LastStop.CLEAN
    assert opened.filter.add_many([b"a", b"b", b"c", b"d"]) == [False, False, False, True]
    run(job / "new", [b"d"], [b"d"], clean=False)
    assert answers(job / "new", [b"a", b"d"]) == {b"d"}


def test_a_filter_that_is_made_takes_scrapys_own_file_over(job: Path) -> None:
    (job / "requests.seen").write_bytes(b"6161\n" + b"\x00\x01b")
    with stored_at(job, create=True) as stored:
        assert stored.add_many([b"b", b"c"]) == AddedFingerprints(new=1, known=1, taken_over=2)
    assert answers(job, [b"aa", b"b", b"c"]) == {b"aa", b"b", b"c"}


def test_an_import_into_a_new_job_that_ends_in_an_error_is_no_earlier_run(job: Path) -> None:
    def broken() -> Iterable[bytes]:
        yield from (b"%d" % number for number in range(25_000))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stored_at(job, create=True) as stored:
        stored.add_many(broken())
    opened = next_run(job)
    assert (opened.last_stop, opened.warnings) == (LastStop.NONE, [])


def test_an_import_that_ends_in_an_error_leaves_a_clean_stop_as_it_was(job: Path) -> None:
    run(job, [b"a"], [b"a"])

    def broken() -> Iterable[bytes]:
        yield from (b"%d" % number for number in range(25_000))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), stored_at(job) as stored:
        stored.add_many(broken())
    with stored_at(job) as stored:
        assert list(stored.fingerprints()) == [b"a"]
        assert stored.state(b"1") != "seen"
        assert stored.unlisted() == 0
    assert answers(job, [b"a", b"1"]) == {b"a"}
    with stored_at(job) as stored:
        assert stored.add_many([b"b"]) == AddedFingerprints(1)
        assert list(stored.fingerprints()) == [b"a", b"b"]


def test_after_an_import_that_ends_in_an_error_the_next_one_lists_what_it_adds(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART", 1)
    run(job, [b"a", b"f"], failed=[b"f"])

    def broken() -> Iterable[bytes]:
        yield from (b"b", b"f")
        raise ZeroDivisionError

    with stored_at(job) as stored:
        with pytest.raises(ZeroDivisionError):
            stored.add_many(broken())
        assert [stored.state(item) for item in (b"a", b"b", b"f")] == ["seen", "new", "forgotten"]
        assert stored.add_many([b"b", b"f"]) == AddedFingerprints(new=1, again=1)
        assert list(stored.fingerprints()) == [b"a", b"f", b"b"]
    with stored_at(job) as stored:
        assert (stored.listed(), stored.unlisted()) == (3, 0)


def test_a_fingerprint_that_no_file_can_hold_is_refused(job: Path) -> None:
    for wrong in (b"", b"x" * 65_536):
        with pytest.raises(ValueError), stored_at(job, create=True) as stored:
            stored.add_many([wrong])


def test_a_damaged_list_is_told(job: Path) -> None:
    run(job, [b"a", b"b"])
    path = job / "dedupe" / "urls" / "urls.seen"
    path.write_bytes(path.read_bytes()[:-1])
    with stored_at(job) as stored:
        assert (stored.listed(), stored.unlisted(), len(stored.filter)) == (0, 2, 2)
        assert stored.state(b"a") == "seen"


# With an exact set


def test_an_exact_set_answers_and_grows_with_the_filter(job: Path) -> None:
    run(job, [b"a", b"b"], confirm=True)
    with stored_at(job) as stored:
        assert stored.is_exact
        assert stored.has_stored_set
        # The Bloom filter alone would call it seen.
        stored.filter.bloom.add(b"false positive")  # type: ignore[union-attr]
        assert stored.state(b"false positive") != "seen"
    with stored_at(job) as stored:
        assert stored.add_many([b"b", b"c"]) == AddedFingerprints(1, 0, 1)
        assert stored.is_exact
        assert stored.has_stored_set
        assert len(stored.filter) == stored.listed() == 3
        assert stored.add_many([b"d"]) == AddedFingerprints(1)
    opened = next_run(job, confirm=True)
    assert opened.notes == []
    assert exact_in(job) == 4


@pytest.mark.parametrize("state", ["new", "cut", "clean"])
def test_where_an_exact_set_is_wanted_a_high_error_rate_leaves_nothing_out(job: Path, state: str) -> None:
    numbers = [number.to_bytes(2, "big") for number in range(120)]
    known, more, other = numbers[:40], numbers[40:80], numbers[80:]
    if state != "new":
        # Without a set, which the next run wants.
        folder = folder_at(job)
        filter_ = folder.open(100, 0.3).filter
        seen = [item for item in known if filter_.add(item)]
        folder.seen_journal.append(seen)
        folder.done_journal.append(seen)
        if state == "clean":
            folder.close(filter_)
        else:
            folder.abandon()
    folder = folder_at(job, confirm=True)
    with folder.between_runs(100, 0.3, create=True) as stored:
        stored.add_many([*known, *more])
    before = contents(job)
    with folder.between_runs(100, 0.3) as stored:
        assert stored.is_exact
        assert not stored.has_stored_set
        assert stored.listed() == len(stored.filter) == 80
        assert stored.unlisted() == 0
        assert [item for item in numbers if stored.state(item) == "seen"] == [*known, *more]
        assert contents(job) == before
    opened = folder.open(100, 0.3)
    assert [item for item in numbers if item in opened.filter] == [*known, *more]
    assert opened.filter.add_many(other) == [True] * 40
    folder.abandon()


def test_an_exact_set_that_does_not_fit_is_left_to_the_next_run(job: Path) -> None:
    run(job, [b"a", b"b"], confirm=True)
    shutil.copy(job / "dedupe" / "urls" / "urls.sqlite", job / "old.sqlite")
    run(job, [b"c"], confirm=True)
    (job / "old.sqlite").replace(job / "dedupe" / "urls" / "urls.sqlite")
    with stored_at(job) as stored:
        assert not stored.is_exact
        assert not stored.has_stored_set
        assert stored.add_many([b"d"]) == AddedFingerprints(1)
    opened = next_run(job, confirm=True)
    assert "was rebuilt" in opened.notes[0]
    assert "lacks" not in opened.notes[0]
    assert len(opened.filter.bloom) == 4  # type: ignore[union-attr]


# Kills and disks

KILLED = """
import itertools, os, shutil, sys
from pathlib import Path
from scrapy_dedupe.urls import journal
from scrapy_dedupe.urls.stored_filter import StoredFilter

def counted(function):
    def call(*arguments, **keywords):
        global calls
        calls += 1
        if calls > at:
            os._exit(9)
        return function(*arguments, **keywords)
    return call

journal._PART = 100
for at in itertools.count():
    job = Path(sys.argv[1], f"job-{at}")
    shutil.copytree(Path(sys.argv[1], "original"), job)
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 9:
            sys.exit(code)
        continue
    calls = 0
    for name in ("write", "fsync", "ftruncate", "replace", "rename"):
        setattr(os, name, counted(getattr(os, name)))
    Path.replace = counted(Path.replace)
    with StoredFilter(job, "a.Maker").between_runs(100, 1e-6, create=True) as filter_:
        filter_.add_many([b"a", b"f", *(b"%d" % number for number in range(250))])
    os._exit(0)
"""


def jobs_killed_in_an_import(folder: Path) -> list[Path]:
    """Copies of the job "original", killed before the first call that changes the disk, the second one, to the end."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [folder / f"job-{number}" for number in range(len(list(folder.glob("job-*"))))]


@pytest.mark.parametrize("state", ["clean", "clean with an exact set", "cut", "new"])
def test_a_kill_at_any_step_of_an_import_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, state: str
) -> None:
    original = tmp_path / "original"
    original.mkdir()
    if state != "new":
        run(
            original,
            [b"a", b"f"],
            [b"a", b"f"],
            [b"f"],
            clean=state != "cut",
            confirm=state == "clean with an exact set",
        )
    asked = [b"a", b"f", b"7", b"249", b"never"]
    found = []
    for job in jobs_killed_in_an_import(tmp_path):
        opened = next_run(job, confirm="exact" in state)
        if state == "new":
            assert opened.last_stop in {LastStop.NONE, LastStop.CLEAN}
        else:
            assert opened.last_stop is (LastStop.CUT if state == "cut" else LastStop.CLEAN)
        if "exact" in state:
            assert exact_in(job.with_name(f"{job.name}-copy")) == len(opened.filter.bloom)  # type: ignore[union-attr]
        answer = answers(job, asked)
        assert b"never" not in answer
        if state != "new":
            assert b"a" in answer
        if state != "cut":
            assert (b"7" in answer) is (b"249" in answer)
        found.append(answer)
    assert len(found) > 3
    assert found[0] == (set() if state == "new" else {b"a"})
    assert found[-1] == {b"a", b"f", b"7", b"249"}


def test_a_full_disk_leaves_a_clean_stop_as_it_was(job: Path) -> None:
    resource = pytest.importorskip("resource")
    run(job, [b"a"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = {name: data for name, data in contents(job).items() if "forgotten" not in name}
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "from pathlib import Path; from scrapy_dedupe.urls.stored_filter import StoredFilter;"
        "stored = StoredFilter(Path(sys.argv[1]), 'a.Maker').between_runs(100, 1e-6).__enter__();"
        "stored.add_many(b'%d' % number for number in range(100_000))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(job)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert "StoreUnavailable" in done.stderr.splitlines()[-1]
    assert "cannot be written" in done.stderr.splitlines()[-1]
    assert "The URL filter is unchanged." in done.stderr.splitlines()[-1]
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == limits
    assert contents(job)["dedupe/urls/urls.bloom"] == before["dedupe/urls/urls.bloom"]
    assert answers(job, [b"a", b"1"]) == {b"a"}


def test_memory_does_not_grow_with_the_list(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the filter is kept of what was read: the longest part in memory is that of one step."""
    longest = 0
    parts = module.in_parts

    def watched(fingerprints: Iterable[bytes]) -> Iterable[list[bytes]]:
        nonlocal longest
        for part in parts(fingerprints):
            longest = max(longest, len(part))
            yield part

    monkeypatch.setattr(folder_module, "in_parts", watched)
    with stored_at(job, create=True) as stored:
        stored.add_many(b"%d" % number for number in range(30_000))
    assert longest == 10_000


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "forget", "run", "killed run"]),
        st.lists(st.sampled_from([bytes([letter]) for letter in b"abcdefgh"]), max_size=5),
    ),
    max_size=6,
)


@given(steps)
@settings(max_examples=examples(25), deadline=None)
def test_tools_and_runs_in_any_order_agree_with_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[bytes]]]
) -> None:
    job = tmp_path_factory.mktemp("model") / "job"
    job.mkdir()
    run(job, [])
    seen: set[bytes] = set()
    done: set[bytes] = set()
    forgotten: set[bytes] = set()
    is_clean = True
    for step, items in steps:
        if step == "add":
            with stored_at(job) as stored:
                added = stored.add_many(items)
            assert added.new == len(set(items) - seen)
            assert added.again == len(set(items) & seen & forgotten)
            seen |= set(items)
            forgotten -= set(items)
            if not is_clean:
                done |= set(items)
        elif step == "forget":
            with stored_at(job) as stored:
                assert stored.forget(items) == len(set(items) & (seen - forgotten))
            forgotten |= set(items) & seen
        else:
            is_clean = step == "run"
            run(job, items, items, clean=is_clean)
            seen, done = seen | set(items), done | set(items)
            if not is_clean:
                seen = set(done)
        with stored_at(job) as stored:
            assert (stored.last_stop is LastStop.CLEAN) is is_clean
            for item in {*seen, *forgotten, b"z"}:
                expected = "new" if item not in seen else "forgotten" if item in forgotten else "seen"
                assert stored.state(item) == expected
            assert set(stored.fingerprints()) == seen - forgotten
        assert answers(job, seen) == seen - forgotten


def test_a_snapshot_keeps_what_it_said_of_the_other_files(job: Path) -> None:
    run(job, [b"a", b"b"], [b"a"])
    path = job / "dedupe" / "urls" / "urls.bloom"
    before = FilterSnapshot.read(path, MAKER)
    with stored_at(job) as stored:
        stored.add_many([b"c"])
    after = FilterSnapshot.read(path, MAKER)
    assert after.done_bytes == before.done_bytes
    assert after.seen_bytes == (job / "dedupe" / "urls" / "urls.seen").stat().st_size > before.seen_bytes
    assert (after.filter.capacity, after.filter.error_rate) == (100, 1e-6)
