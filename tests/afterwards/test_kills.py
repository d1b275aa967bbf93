"""kill -9 between any two steps of a verb, and at any moment: the same command again ends with the same bytes.

``DEDUPE_KILLS=1000`` kills so many times per verb instead of a few; a verb has some dozens of steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from afterwards.calling import start
from afterwards.outputs import snapshot
from afterwards.planted import SITE, Copy, Planting, text

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent.parent
KILLS = int(os.environ.get("DEDUPE_KILLS", "4"))


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and those that make its input."""

    words: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    is_not_repeatable: bool = False


SUM = ("warcsum", "-r", "in", "-o", "sums")
RESOLVE = ("warccollres", "sums", "--proc", "-o", "numbered")
DEDUPE = ("dedupe", "-r", "in", "-o", "out")
CASES = {
    "warcsum": Case(SUM),
    "warccollres": Case(RESOLVE, (SUM,)),
    "warcsumproc": Case(
        ("warcsumproc", "resolved", "-o", "out"), (SUM, ("warccollres", "sums", "-o", "resolved"))
    ),
    "warcsumsplit": Case(
        ("warcsumsplit", "resolved", "-c", "2", "-o", "part"),
        (SUM, ("warccollres", "sums", "-o", "resolved")),
    ),
    "warcrefs": Case(("warcrefs", "numbered", "-o", "out"), (SUM, RESOLVE)),
    "warcrefs in place": Case(("warcrefs", "numbered", "--in-place"), (SUM, RESOLVE), is_not_repeatable=True),
    "dedupe": Case(DEDUPE),
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


class Steps:
    """Talks to `killed_steps`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "afterwards" / "killed_steps.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, words: tuple[str, ...], dies_before: int = 0) -> tuple[int, int, str]:
        """Exit code (the negative signal if it died), steps, stderr."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([str(folder), words, dies_before]) + "\n")
        self.process.stdin.flush()
        code, steps, errors = json.loads(self.process.stdout.readline())
        return code, steps, errors


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    assert steps.process.stdin
    steps.process.stdin.close()
    steps.process.wait(20)
    assert steps.process.stdout
    steps.process.stdout.close()


@dataclass
class Ground:
    """A case, what it starts from, and what an undisturbed run makes of it."""

    case: Case
    start: Path
    before: dict[str, bytes]
    wanted: dict[str, bytes]
    count: int

    def fresh(self, folder: Path) -> Path:
        shutil.copytree(self.start, folder)
        return folder

    def assert_no_half_file(self, folder: Path) -> None:
        """What stands under a final name is whole; nothing that was there is missing."""
        for name, data in self.wanted.items():
            path = folder / name
            if path.exists():
                assert path.read_bytes() in (data, self.before.get(name)), name
            else:
                assert name not in self.before, name

    def assert_finished(self, folder: Path, code: int, errors: str) -> None:
        found = snapshot(folder)
        assert {name: data for name, data in found.items() if name in self.wanted} == self.wanted
        if self.case.is_not_repeatable and code:
            # It was done but for saying so, and the manifest is that of the files before.
            assert "the manifest" in errors
            assert code == 4
            return
        assert found.keys() == self.wanted.keys(), (code, errors)
        # If the work was done but for saying so, the output is in the way of doing it again.
        assert code in (0, 3), errors
        assert (code == 3) <= ("already" in errors), errors


@pytest.fixture(params=CASES)
def ground(request: pytest.FixtureRequest, tmp_path: Path, steps: Steps) -> Ground:
    case = CASES[request.param]
    start, whole = tmp_path / "start", tmp_path / "whole"
    small().write(start / "in")
    for words in case.before:
        code, _, errors = steps.run(start, words)
        assert code == 0, (words, errors)
    shutil.copytree(start, whole)
    code, count, errors = steps.run(whole, case.words)
    assert code == 0, errors
    assert count > 0
    return Ground(case, start, snapshot(start), snapshot(whole), count)


def test_a_death_before_any_step_costs_nothing(ground: Ground, steps: Steps, tmp_path: Path) -> None:
    numbers = list(range(1, ground.count + 1))
    if len(numbers) > KILLS:
        # The last steps are those that a resumption has to look at most closely.
        last = numbers[-KILLS // 2 :]
        numbers = sorted({*random.Random(7).sample(numbers, KILLS - len(last)), *last})
    for number in numbers:
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


def test_deaths_in_a_row_cost_nothing(ground: Ground, steps: Steps, tmp_path: Path) -> None:
    rng = random.Random(11)
    for turn in range(max(1, KILLS // 4)):
        folder = ground.fresh(tmp_path / f"row-{turn}")
        deaths = []
        for _ in range(4):
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


@pytest.mark.parametrize(
    "words", [DEDUPE, ("dedupe", "-r", "in", "--in-place")], ids=["elsewhere", "in place"]
)
def test_processes_that_work_side_by_side_may_die_at_any_moment(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    words = (*words, "--jobs", "2")
    start_folder, whole = tmp_path / "start", tmp_path / "whole"
    small().write(start_folder / "in")
    shutil.copytree(start_folder, whole)
    begun = time.monotonic()
    process = start(whole, *words)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    spent = time.monotonic() - begun
    ground = Ground(Case(words), start_folder, snapshot(start_folder), snapshot(whole), 0)
    rng = random.Random(13)
    for turn in range(max(2, KILLS // 4)):
        folder = ground.fresh(tmp_path / f"any-{turn}")
        # The first third is the start of the interpreter.
        process = start(folder, *words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(spent * rng.uniform(0.3, 1.0))
        # Only the first process: what it started must not live on and write.
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        ground.assert_no_half_file(folder)
        process = start(folder, *words)
        _, errors = process.communicate(timeout=120)
        ground.assert_finished(folder, process.returncode, errors.decode())
        shutil.rmtree(folder)
