"""kill -9 between any two steps of a piece of work, and at any moment: the index answers as before it or as after it.

``DEDUPE_KILLS=1000`` kills so many times for each piece of work instead of a few; a piece has some dozens of steps.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from killed_runs import Runner, chosen
from passages.killed_work import SHARED, documents, text
from sampling import sampled

from scrapy_dedupe.errors import StoreRefused
from scrapy_dedupe.passages import PassageIndex

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_dedupe.passages.values import Hit, Passage

KILLS = int(os.environ.get("DEDUPE_KILLS", "3"))
ASKED = f"{text(6)} {text(27)} {text(103)} {text(4, 1)}"


@dataclass(frozen=True, slots=True)
class Case:
    """A piece of work, or the words of a command line, and what is done before it begins."""

    work: str | tuple[str, ...]
    before: tuple[str | tuple[str, ...], ...] = ()
    changes: int = 1
    """How many times the index changes; in between it may be caught in any of these states."""


INDEX = ("passages", "index", "pages.jsonl", "--root", "index")
MORE = ("passages", "index", "more.jsonl", "--root", "index", "--append")
CASES = {
    "index": Case("index"),
    "append": Case("append", ("index",)),
    "append to many": Case("append", ("index", "append_singly")),
    "append singly": Case("append_singly", ("index",), changes=14),
    "delete": Case("delete", ("index", "append")),
    "compact": Case("compact", ("index", "append", "append_singly", "delete")),
    "index verb": Case(INDEX),
    "append verb": Case(MORE, (INDEX,)),
    "append verb, 2 jobs": Case((*MORE, "--jobs", "2"), (INDEX,)),
    "delete verb": Case(
        ("passages", "delete", "https://kill.example/3", "https://kill.example/7", "--root", "index"),
        (INDEX, MORE),
    ),
    "compact verb": Case(("passages", "compact", "--root", "index"), (INDEX, MORE)),
}


def runner(log: Path) -> Runner:
    return Runner(log, "scrapy_dedupe.passages", "passages.killed_work")


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    works = runner(tmp_path_factory.mktemp("works") / "log")
    yield works
    works.close()


@dataclass(frozen=True, slots=True)
class State:
    """What an index answers."""

    texts: dict[str, str]
    hits: tuple[Hit, ...]
    passages: tuple[Passage, ...]


def state_of(folder: Path) -> State:
    """Of the index in *folder*, which must be sound; where there is none, nothing is answered."""
    try:
        index = PassageIndex(folder / "index", create=False)
    except StoreRefused:
        assert not (folder / "index" / "manifest.json").exists()
        return State({}, (), ())
    with index:
        assert index.check(full=True).problems == ()
        names = [document.doc_id for document in index.snapshot().iter_documents()]
        assert len(names) == len(set(names))
        texts = {name: index.text(name) for name in names}
        assert None not in texts.values()
        return State(texts, tuple(index.like(ASKED, top=1_000)), tuple(index.extract()))  # type: ignore[arg-type]


@dataclass
class Ground:
    """A case, what it starts from, and the states that an undisturbed run goes through, in so many steps and seconds."""

    case: Case
    start: Path
    states: list[State]
    count: int
    seconds: float

    def fresh(self, folder: Path) -> Path:
        shutil.copytree(self.start, folder)
        return folder

    def assert_is_a_state_of_it(self, folder: Path) -> None:
        found = state_of(folder)
        if self.case.changes == 1:
            assert found in self.states
            return
        # In between are documents that were added one by one, in their order.
        before, after = self.states[0].texts, self.states[-1].texts
        assert before.items() <= found.texts.items() <= after.items()
        assert list(found.texts) == list(after)[: len(found.texts)]

    def assert_goes_on(self, folder: Path, works: Runner) -> None:
        """That the same piece of work and the next one are done, and that nothing is left of what was cut."""
        if self.case.work == INDEX:
            code, _, errors = works.run(folder, (*INDEX, "--append"))
        else:
            code, _, errors = works.run(folder, self.case.work)
        is_deleted_already = self.case.work[:2] == ("passages", "delete") and code == 4
        assert code == 0 or is_deleted_already, errors
        found = state_of(folder)
        assert found.texts == self.states[-1].texts
        assert sorted(map(repr, found.passages)) == sorted(map(repr, self.states[-1].passages))
        with PassageIndex(folder / "index", create=False) as index:
            index.add("next", f"once more {SHARED} and on")
            assert "next" in {hit.doc_id for hit in index.like(SHARED, top=1_000)}
            index.compact()
            assert index.check(full=True).problems == ()
        kinds = sorted(
            path.name if "." not in path.name else path.name.split(".", 1)[1] for path in _files(folder)
        )
        assert kinds == ["json", "lock", "segment"]


def _files(folder: Path) -> list[Path]:
    return list((folder / "index").iterdir())


def prepared(case: Case, folder: Path, works: Runner) -> Ground:
    start, whole = folder / "start", folder / "whole"
    start.mkdir()
    for name, first, count in (("pages.jsonl", 0, 24), ("more.jsonl", 20, 10)):
        lines = [
            json.dumps({"url": doc_id, "text": written})
            for doc_id, written in documents(first, count, version=int(first > 0))
        ]
        (start / name).write_text("\n".join(lines) + "\n")
    for work in case.before:
        code, _, errors = works.run(start, work)
        assert code == 0, (work, errors)
    shutil.copytree(start, whole)
    begun = time.monotonic()
    code, count, errors = works.run(whole, case.work)
    seconds = time.monotonic() - begun
    assert code == 0, errors
    return Ground(case, start, [state_of(start), state_of(whole)], count, seconds)


@pytest.fixture(scope="module", params=sampled(CASES, ["append", "compact verb"]))
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, works: Runner) -> Ground:
    ground = prepared(CASES[request.param], tmp_path_factory.mktemp("ground"), works)
    assert ground.count > 0
    if "compact" not in request.param:
        assert ground.states[0] != ground.states[1]
    return ground


def test_a_death_before_any_step_leaves_the_index_as_before_or_as_after(
    ground: Ground, works: Runner, tmp_path: Path
) -> None:
    for number in chosen(ground.count, KILLS, seed=7):
        folder = ground.fresh(tmp_path / f"died-{number}")
        code, count, errors = works.run(folder, ground.case.work, number)
        assert (code, count) == (-signal.SIGKILL, number), errors
        try:
            ground.assert_is_a_state_of_it(folder)
            ground.assert_goes_on(folder, works)
        except AssertionError as error:
            error.add_note(f"after a death before step {number} of {ground.count}")
            raise
        shutil.rmtree(folder)


def test_a_death_at_any_moment_leaves_the_index_as_before_or_as_after(
    ground: Ground, works: Runner, tmp_path: Path
) -> None:
    rng = random.Random(13)
    for turn in range(max(1, KILLS // 4)):
        folder = ground.fresh(tmp_path / f"any-{turn}")
        after_s = ground.seconds * rng.uniform(0.02, 1.0)
        code, _, errors = works.run(folder, ground.case.work, after_s=after_s)
        assert code in (0, -signal.SIGKILL), errors
        ground.assert_is_a_state_of_it(folder)
        ground.assert_goes_on(folder, works)
        shutil.rmtree(folder)


def test_deaths_in_a_row_leave_nothing_behind(ground: Ground, works: Runner, tmp_path: Path) -> None:
    rng = random.Random(11)
    for turn in range(max(1, KILLS // 8)):
        folder = ground.fresh(tmp_path / f"row-{turn}")
        for _ in range(3):
            works.run(folder, ground.case.work, rng.randint(1, ground.count))
            if ground.case.changes == 1:
                assert state_of(folder) in ground.states
        ground.assert_goes_on(folder, works)
        shutil.rmtree(folder)


def test_a_piece_that_dies_before_it_begins_does_not_end_the_runner(tmp_path: Path) -> None:
    works = runner(tmp_path / "log")
    try:
        # The first one, so that no earlier piece has left what is looked for.
        code, steps, _ = works.run(tmp_path, "index", before=-1)
        assert (code, steps) == (-signal.SIGKILL, 0)
        assert works.run(tmp_path, "index")[0] == 0
    finally:
        works.close()
