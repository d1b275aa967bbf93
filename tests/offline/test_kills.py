"""kill -9 between any two steps of a verb, and at any moment: the same command again ends with the same bytes.

Ctrl-C and SIGTERM likewise, with a sentence.

``DEDUPE_KILLS=1000`` kills so many times per verb instead of a few; a verb has some dozens of steps.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from killed_runs import Runner, chosen
from offline.calling import PROGRAM
from offline.outputs import snapshot
from offline.planted import SITE, Copy, Planting, text
from sampling import sampled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = int(os.environ.get("DEDUPE_KILLS", "3"))


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and those that make its input."""

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    is_not_repeatable: bool = False
    goes_on: bool = True


SUM = ("warcsum", "-r", "in", "-o", "sums")
RESOLVE = ("warccollres", "sums", "--proc", "-o", "numbered")
DEDUPE = ("dedupe", "-r", "in", "-o", "out")
CASES = {
    "warcsum": Case(SUM),
    "warccollres": Case(RESOLVE, (SUM,), goes_on=False),
    "warcsumproc": Case(
        ("warcsumproc", "resolved", "-o", "out"),
        (SUM, ("warccollres", "sums", "-o", "resolved")),
        goes_on=False,
    ),
    "warcsumsplit": Case(
        ("warcsumsplit", "resolved", "-c", "2", "-o", "part"),
        (SUM, ("warccollres", "sums", "-o", "resolved")),
        goes_on=False,
    ),
    "warcrefs": Case(("warcrefs", "numbered", "-o", "out"), (SUM, RESOLVE)),
    "warcrefs in place": Case(("warcrefs", "numbered", "--in-place"), (SUM, RESOLVE), is_not_repeatable=True),
    "dedupe": Case(DEDUPE),
    "dedupe bytes": Case((*DEDUPE, "--compare", "bytes")),
    "dedupe in place": Case(("dedupe", "-r", "in", "--in-place")),
    "restore": Case(("restore", "out", "-o", "back"), (DEDUPE,)),
    "restore in place": Case(("restore", "out", "--in-place"), (DEDUPE,)),
    "arc2warc": Case(("arc2warc", "-r", "in/arc", "-o", "out")),
}


def small() -> Planting:
    """Four files, each with something that changes, and an ARC file that does not."""
    p = Planting()
    p.file("arc/old.arc.gz", "arc gzip")
    p.arc_capture("arc/old.arc.gz", "old", f"{SITE}/old", text("old", 3_000))
    p.file("arc/older.arc", "arc")
    p.arc_capture("arc/older.arc", "older", f"{SITE}/older", text("older", 3_000))
    for number, (name, kind) in enumerate(
        (("a.warc.gz", "gzip"), ("b/b.warc", "plain"), ("b/c.warc.gz", "gzip"), ("d.warc.gz", "gzip"))
    ):
        p.file(name, kind)
        p.warcinfo(name)
        p.exchange(name, f"own-{number}", f"{SITE}/own/{number}", text(f"own {number}", 4_000))
        p.exchange(
            name,
            f"same-{number}",
            f"{SITE}/same",
            text("same", 4_000),
            fate=Copy("same-0") if number else None,
        )
        p.exchange(name, f"old-{number}", f"{SITE}/old", text("old", 3_000), fate=Copy("old"))
    p.revisit("d.warc.gz", "again", f"{SITE}/again", p.records["same-1"])
    return p


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    steps = Runner(tmp_path_factory.mktemp("steps") / "log", "scrapy_dedupe.offline")
    yield steps
    steps.close()


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file; a report says where it was made."""
    return {
        name: data.replace(str(folder).encode(), b"HERE") if name.endswith("report.json") else data
        for name, data in snapshot(folder).items()
    }


@dataclass
class Ground:
    """A case, what it starts from, and what an undisturbed run makes of it in so many steps and seconds."""

    case: Case
    start: Path
    before: dict[str, bytes]
    wanted: dict[str, bytes]
    count: int
    seconds: float

    def fresh(self, folder: Path) -> Path:
        shutil.copytree(self.start, folder)
        return folder

    def of_interest(self, folder: Path) -> dict[str, bytes]:
        """In place, a call that was done but for saying so finds new work in its result, and reports on that."""
        is_in_place = "--in-place" in self.case.words
        return {
            name: data for name, data in snapshot(folder).items() if not (is_in_place and ".dedupe/" in name)
        }

    def assert_no_half_file(self, folder: Path) -> None:
        """What stands under a final name is whole; nothing that was there is missing."""
        found = contents(folder)
        for name, data in self.wanted.items():
            assert found.get(name, data if name not in self.before else None) in (
                data,
                self.before.get(name),
            ), name

    def assert_finished(self, folder: Path, code: int, errors: str) -> None:
        found = contents(folder)
        wanted = dict(self.wanted)
        if "--in-place" in self.case.words:
            # If all was done but for saying so, the same call is new work, on files in which nothing is left to do.
            for notes in (found, wanted):
                for name in [name for name in notes if name.endswith(("manifest.txt", "report.json"))]:
                    del notes[name]
        assert {name: data for name, data in found.items() if name in wanted} == wanted
        if self.case.is_not_repeatable and code:
            # It was done but for saying so, and the manifest is that of the files before.
            assert "the manifest" in errors
            assert code == 4
            return
        assert found.keys() == wanted.keys(), (code, errors)
        # If the work was done but for saying so, the output is in the way of doing it again.
        assert code in (0, 3), errors
        assert (code == 3) <= ("already" in errors or "is not empty" in errors), errors


def prepared(case: Case, folder: Path, steps: Runner) -> Ground:
    start, whole = folder / "start", folder / "whole"
    small().write(start / "in")
    for words in case.before:
        code, _, errors = steps.run(start, words)
        assert code == 0, (words, errors)
    shutil.copytree(start, whole)
    begun = time.monotonic()
    code, count, errors = steps.run(whole, case.words)
    assert code == 0, errors
    ground = Ground(case, start, snapshot(start), {}, count, time.monotonic() - begun)
    ground.wanted = ground.of_interest(whole)
    return ground


@pytest.fixture(scope="module", params=sampled(CASES, ["dedupe in place", "restore"]))
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, steps: Runner) -> Ground:
    ground = prepared(CASES[request.param], tmp_path_factory.mktemp("ground"), steps)
    assert ground.count > 0
    return ground


def test_a_death_before_any_step_costs_nothing(ground: Ground, steps: Runner, tmp_path: Path) -> None:
    for number in chosen(ground.count, KILLS, seed=7):
        folder = ground.fresh(tmp_path / f"died-{number}")
        code, count, _ = steps.run(folder, ground.case.words, number)
        assert (code, count) == (-signal.SIGKILL, number)
        ground.assert_no_half_file(folder)
        code, _, errors = steps.run(folder, ground.case.words)
        try:
            ground.assert_finished(folder, code, errors)
        except AssertionError as error:
            error.add_note(f"after a death before step {number} of {ground.count}")
            raise
        shutil.rmtree(folder)


def test_deaths_in_a_row_cost_nothing(ground: Ground, steps: Runner, tmp_path: Path) -> None:
    rng = random.Random(11)
    for turn in range(max(1, KILLS // 4)):
        folder = ground.fresh(tmp_path / f"row-{turn}")
        deaths = []
        for _ in range(2):
            deaths.append(rng.randint(1, ground.count))
            code, _, errors = steps.run(folder, ground.case.words, deaths[-1])
            ground.assert_no_half_file(folder)
            if code != -signal.SIGKILL:
                break
        else:
            code, _, errors = steps.run(folder, ground.case.words)
        try:
            ground.assert_finished(folder, code, errors)
        except AssertionError as error:
            error.add_note(f"after deaths before the steps {deaths}")
            raise
        shutil.rmtree(folder)


def test_a_signal_before_any_step_is_told_in_one_sentence_and_costs_nothing(
    ground: Ground, steps: Runner, tmp_path: Path
) -> None:
    verb = ground.case.words[0]
    goes_on = "; the same command continues where it stopped" if ground.case.goes_on else ""
    for turn, before in enumerate(chosen(ground.count, max(2, KILLS // 2), seed=17)):
        number = (signal.SIGINT, signal.SIGTERM)[turn % 2]
        folder = ground.fresh(tmp_path / f"stopped-{before}")
        code, _, errors = steps.run(folder, ground.case.words, before, number=number)
        try:
            assert code == -number, errors
            assert errors == f"scrapy-dedupe {verb}: stopped{goes_on}.\n"
            ground.assert_no_half_file(folder)
            found = snapshot(folder)
            assert not [name for name in found if name.endswith((".part", ".new"))]
            if not ground.case.goes_on:
                assert found.keys() <= ground.before.keys() | ground.wanted.keys()
                assert not list(folder.rglob(".*.work"))
            code, _, errors = steps.run(folder, ground.case.words)
            ground.assert_finished(folder, code, errors)
        except AssertionError as error:
            error.add_note(f"after a signal before step {before} of {ground.count}")
            raise
        shutil.rmtree(folder)


SIDE_BY_SIDE = ("dedupe", "dedupe in place", "restore", "restore in place", "arc2warc")


@pytest.mark.parametrize("name", sampled(SIDE_BY_SIDE, ["dedupe"]))
def test_processes_that_work_side_by_side_may_die_at_any_moment(
    name: str, steps: Runner, tmp_path: Path
) -> None:
    case = CASES[name]
    ground = prepared(replace(case, words=(*case.words, "--jobs", "2")), tmp_path, steps)
    rng = random.Random(13)
    for turn in range(max(1, KILLS // 3)):
        folder = ground.fresh(tmp_path / f"any-{turn}")
        # Only the first process dies: what it started must not live on and write.
        after_s = ground.seconds * rng.uniform(0.05, 1.0)
        code, _, errors = steps.run(folder, ground.case.words, after_s=after_s)
        assert code in (0, -signal.SIGKILL), errors
        ground.assert_no_half_file(folder)
        code, _, errors = steps.run(folder, ground.case.words)
        ground.assert_finished(folder, code, errors)
        shutil.rmtree(folder)


# Ctrl-C of a terminal reaches all processes of the group: here when the first result of another one is there.
INTERRUPTED = """
import os, signal, sys
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.console import main
Bars.advance = lambda self, size_bytes: os.killpg(0, signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.parametrize("name", sampled(["dedupe", "arc2warc"], ["dedupe"]))
def test_ctrl_c_ends_the_processes_side_by_side_too(name: str, tmp_path: Path) -> None:
    words = CASES[name].words
    small().write(tmp_path / "in")
    process = subprocess.Popen(
        [*PROGRAM[:2], INTERRUPTED, *words, "--jobs", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The pipes end with the last process that has them.
    out, errors = process.communicate(timeout=240)
    assert (process.returncode, out) == (-signal.SIGINT, "")
    assert errors == f"scrapy-dedupe {words[0]}: stopped; the same command continues where it stopped.\n"
    assert not [name for name in snapshot(tmp_path) if name.endswith(".part")]
