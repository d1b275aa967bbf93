from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from offline.outputs import assert_deduplicated, snapshot
from offline.planted import SITE, Copy, Planting, digest, text
from sampling import sampled

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError, UsageError
from scrapy_dedupe.offline import final_names, rewriting, steps
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.steps import Deduped, StepOptions, run_steps
from scrapy_dedupe.tasks import work
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.tasks.progress import NoProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class Died(BaseException):
    """Stands for a kill."""


def die(*args: Any, **options: Any) -> None:
    raise Died


def planted() -> Planting:
    """An ARC file, and three files of which two have a page in common."""
    p = Planting()
    p.file("old.arc.gz", "arc gzip")
    p.arc_capture("old.arc.gz", "old", f"{SITE}/old", text("old", 3_000))
    p.arc_capture("old.arc.gz", "old-again", f"{SITE}/old/again", text("old", 3_000))
    for number, name in enumerate(("a.warc.gz", "b/b.warc", "b/without.warc.gz")):
        p.file(name, "gzip" if name.endswith("gz") else "plain")
        p.exchange(name, f"own-{number}", f"{SITE}/own/{number}", text(f"own {number}", 3_000))
        if "without" not in name:
            fate = Copy("same-0") if number else None
            p.exchange(name, f"same-{number}", f"{SITE}/same", text("same", 3_000), fate=fate)
    return p


@pytest.fixture
def planting() -> Planting:
    return planted()


@pytest.fixture
def folder(tmp_path: Path, planting: Planting, monkeypatch: pytest.MonkeyPatch) -> Path:
    planting.write(tmp_path / "in")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, **options: Any) -> Deduped:
    keep_going = options.get("keep_going", False)
    faults = Faults(keep_going=keep_going)
    output = None if options.get("in_place") else folder / "out"
    inputs = find_inputs(["in"], faults=faults, recursive=True)
    return run_steps(inputs, output, StepOptions(**options), faults=faults, watch=NoProgress())


def all_but_the_report(folder: Path) -> dict[str, bytes]:
    """The files in a folder, without the report, which has times."""
    return {name: data for name, data in snapshot(folder).items() if "report.json" not in name}


@dataclass(frozen=True)
class Undisturbed:
    """The folder of a run that nothing has disturbed, and its result. Tests only read it."""

    folder: Path
    done: Deduped

    @property
    def files(self) -> dict[str, bytes]:
        return all_but_the_report(self.folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Undisturbed]:
    """Gives the run with these options."""
    known: dict[str, Undisturbed] = {}

    def undisturbed(**how: Any) -> Undisturbed:
        if (key := repr(how)) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            planted().write(folder / "in")
            with contextlib.chdir(folder):
                known[key] = Undisturbed(folder, run(folder, **how))
        return known[key]

    return undisturbed


def test_all_files_are_there_with_revisits_for_copies(
    undisturbed: Callable[..., Undisturbed], planting: Planting
) -> None:
    folder, done = undisturbed().folder, undisturbed().done
    assert_deduplicated(planting, folder / "out")
    assert (done.files, done.records, done.converted, done.left) == (4, 7, 1, {"arc": 1})
    assert (done.clusters, done.collisions, done.fault_count, done.findings_count) == (2, 0, 0, 0)
    assert done.old_bytes == sum(len(file.to_bytes()) for file in planting.files.values())
    assert done.new_bytes == sum(len((folder / "out" / name).read_bytes()) for name in planting.files)
    assert 0 < done.saved_bytes < done.old_bytes
    assert sorted(done.paths) == sorted(str(folder / "out" / name) for name in planting.files)
    assert snapshot(folder / "in") == {name: file.to_bytes() for name, file in planting.files.items()}


def test_the_manifest_and_the_report_stay_and_nothing_else(undisturbed: Callable[..., Undisturbed]) -> None:
    folder, done = undisturbed().folder, undisturbed().done
    kept = folder / "out" / ".dedupe"
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out"]
    assert sorted(path.name for path in kept.iterdir()) == ["manifest.txt", "report.json"]
    assert Deduped.from_json(json.loads((kept / "report.json").read_text())) == done
    assert len((kept / "manifest.txt").read_text().splitlines()) == done.records


def test_in_place_the_files_are_the_same_and_the_manifest_and_the_report_stay(
    planting: Planting, undisturbed: Callable[..., Undisturbed]
) -> None:
    folder, done = undisturbed(in_place=True).folder, undisturbed(in_place=True).done
    assert done.converted == 1
    kept = snapshot(folder / "in" / ".dedupe")
    assert sorted(kept) == ["manifest.txt", "report.json"]
    assert done.state == str(folder / "in" / ".dedupe")
    assert Deduped.from_json(json.loads(kept["report.json"])) == done
    elsewhere = undisturbed().folder / "out"
    assert kept["manifest.txt"] == (elsewhere / ".dedupe" / "manifest.txt").read_bytes()
    assert planted_part(planting, folder / "in") == planted_part(planting, elsewhere)


def test_in_place_again_there_is_nothing_to_do_and_what_was_kept_is_put_aside(
    folder: Path, planting: Planting
) -> None:
    run(folder, in_place=True)
    first, files = snapshot(folder / "in" / ".dedupe"), planted_part(planting, folder / "in")
    for number, force in ((1, False), (2, True)):
        assert run(folder, in_place=True, force=force).converted == 0
        assert planted_part(planting, folder / "in") == files
        kept = snapshot(folder / "in" / ".dedupe")
        assert len(kept) == 2 * (number + 1)
        assert {name: kept[f"earlier/1/{name}"] for name in first} == first
    assert kept["earlier/2/manifest.txt"] == kept["manifest.txt"] != first["manifest.txt"]


def test_files_that_were_replaced_do_not_count_as_all_when_what_told_of_them_was_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = final_names.replace

    def die(*args: Any) -> None:
        replace(*args)
        raise Died

    with monkeypatch.context() as context:
        context.setattr(final_names, "replace", die)
        with pytest.raises(Died):
            run(folder, in_place=True)
    (folder / "in" / ".dedupe" / "verified.json").unlink()
    with pytest.raises(ArchiveError, match=r"has changed since.*--force"):
        run(folder, in_place=True)
    assert run(folder, in_place=True, force=True).converted == 0


def planted_part(planting: Planting, folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(folder).items() if name in planting.files}


def test_a_dry_run_writes_nothing_and_says_what_would_be_saved(
    folder: Path, undisturbed: Callable[..., Undisturbed]
) -> None:
    before = snapshot(folder)
    tried = run(folder, dry_run=True)
    assert snapshot(folder) == before
    assert not (folder / "out").exists()
    done = undisturbed().done
    assert (tried.converted, tried.left) == (done.converted, done.left)
    assert tried.savings is not None
    assert [host.name for host in tried.savings.hosts] == ["garden.example"]
    # It is an estimate.
    assert tried.saved_bytes == pytest.approx(done.saved_bytes, rel=0.1)


def test_a_dry_run_can_leave_its_work_for_the_real_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(folder, dry_run=True, work=folder / "work")

    def never(*args: object, **options: object) -> None:
        raise AssertionError("what was summed is summed again")

    monkeypatch.setattr(steps, "make_rows", never)
    assert run(folder, work=folder / "work").converted == 1
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["manifest.txt", "report.json"]


def test_a_dry_run_after_an_interruption_does_not_change_the_result(
    folder: Path, planting: Planting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(rewriting, "rewrite_file", die)
        with pytest.raises(Died):
            run(folder, work=folder / "work")
    assert run(folder, work=folder / "work", dry_run=True).converted == 1
    assert run(folder, work=folder / "work").converted == 1
    assert_deduplicated(planting, folder / "out")


def test_a_dry_run_does_not_finish_work_that_is_already_verified(
    folder: Path, planting: Planting, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, replaced = final_names.replace, []

    def die(*args: Any) -> None:
        if replaced:
            raise Died
        replaced.append(args)
        replace(*args)

    p = planting
    p.exchange("a.warc.gz", "same-again", f"{SITE}/same", text("same", 3_000), fate=Copy("same-0"))
    p.write(folder / "in")
    with monkeypatch.context() as context:
        context.setattr(final_names, "replace", die)
        with pytest.raises(Died):
            run(folder, in_place=True, work=folder / "work")
    before = snapshot(folder)
    with pytest.raises(ArchiveError, match=r"work holds unfinished work with new files .* without --dry-run"):
        run(folder, in_place=True, work=folder / "work", dry_run=True)
    assert snapshot(folder) == before
    assert run(folder, in_place=True, work=folder / "work").converted == 2


@pytest.mark.parametrize("name", ["in", "notes"])
@pytest.mark.parametrize("force", [False, True])
def test_a_work_folder_with_other_files_is_refused_and_not_emptied(
    folder: Path, name: str, force: bool
) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "manifest.txt").write_text("a manifest of warcsum\n")
    before = snapshot(folder)
    with pytest.raises(
        ArchiveError, match=r"has other files, such as .*, which would be removed\. Move them"
    ):
        run(folder, work=folder / name, force=force)
    assert snapshot(folder) == before


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_unfinished_work_with_other_files_is_refused(
    folder: Path, in_place: bool, force: bool
) -> None:
    state = folder / ("in" if in_place else "out") / ".dedupe"
    state.mkdir(parents=True)
    (state / "notes.txt").write_text("of another program\n")
    before = snapshot(folder)
    with pytest.raises(ArchiveError, match=r"\.dedupe has other files, such as notes\.txt, which would"):
        run(folder, in_place=in_place, force=force)
    assert snapshot(folder) == before


def test_a_folder_for_new_files_with_other_files_is_refused(folder: Path) -> None:
    new = folder / "out" / ".dedupe"
    new.mkdir(parents=True)
    (new / "notes.txt").write_text("of another program\n")
    with pytest.raises(ArchiveError, match=r"\.dedupe has other files, such as notes\.txt, which would"):
        run(folder, work=folder / "work")
    assert (new / "notes.txt").exists()


def test_a_run_that_was_killed_when_earlier_files_were_put_aside_can_be_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, work=folder / "work", in_place=True)
    with monkeypatch.context() as context:
        context.setattr(work.WorkFolder, "begin", die)
        with pytest.raises(Died):
            run(folder, work=folder / "work", in_place=True)
    assert run(folder, work=folder / "work", in_place=True).converted == 0
    assert sorted(path.name for path in (folder / "work").iterdir()) == [
        "earlier",
        "manifest.txt",
        "report.json",
    ]


def test_a_work_folder_can_be_used_again(folder: Path) -> None:
    run(folder, work=folder / "work")
    with pytest.raises(ArchiveError, match=r"out is not empty: it has a\.warc\.gz"):
        run(folder, work=folder / "work")
    shutil.rmtree(folder / "out")
    (folder / "out").mkdir()
    assert run(folder, work=folder / "work").converted == 1


def test_unfinished_work_in_the_output_is_not_ignored_with_another_work_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(final_names, "move", die)
        with pytest.raises(Died):
            run(folder)
    with pytest.raises(
        ArchiveError, match=r"out/\.dedupe holds other unfinished work: --work was not given\."
    ):
        run(folder, work=folder / "work")
    assert run(folder).converted == 1


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("work", [None, "out/.dedupe", "work"])
@pytest.mark.parametrize(
    ("unfinished", "command"), [(".dedupe/warcrefs", "warcrefs"), (".restore", "restore")]
)
def test_unfinished_work_of_another_command_in_the_output_is_not_removed(
    folder: Path, unfinished: str, command: str, work: str | None, force: bool
) -> None:
    job = folder / "out" / unfinished / "job.json"
    job.parent.mkdir(parents=True)
    job.write_text("{}")
    before = snapshot(folder)
    with pytest.raises(
        ArchiveError, match=rf"out/{unfinished} has unfinished work of {command}\. Repeat that command"
    ):
        run(folder, work=None if work is None else folder / work, force=force)
    assert snapshot(folder) == before


@pytest.mark.parametrize("force", [False, True])
def test_a_dry_run_in_a_folder_with_unfinished_work_of_warcrefs_is_refused(folder: Path, force: bool) -> None:
    job = folder / "in" / ".dedupe" / "warcrefs" / "job.json"
    job.parent.mkdir(parents=True)
    job.write_text("{}")
    with pytest.raises(ArchiveError, match=r"in/\.dedupe/warcrefs has unfinished work of warcrefs"):
        run(folder, dry_run=True, work=folder / "in" / ".dedupe", force=force)
    assert job.exists()


def test_a_folder_with_unfinished_work_of_another_command_is_not_used_for_the_work(folder: Path) -> None:
    with work.WorkFolder(folder / "work", command="restore") as other:
        other.begin(work.Job({}, {}))
    before = snapshot(folder)
    with pytest.raises(ArchiveError, match=r"work has unfinished work of restore\. Repeat that command"):
        run(folder, work=folder / "work", force=True)
    assert snapshot(folder) == before


def test_with_another_work_folder_new_files_are_written_below_the_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(final_names, "move", die)
        with pytest.raises(Died):
            run(folder, work=folder / "work")
    assert (folder / "out" / ".dedupe" / "new" / "a.warc.gz").exists()
    for other in (None, folder / "more"):
        with pytest.raises(ArchiveError, match=r"out/\.dedupe holds .*: (--work was .*/work|.* was)\b"):
            run(folder, work=other)
    assert run(folder, work=folder / "work").converted == 1
    assert not (folder / "out" / ".dedupe").exists()
    assert sorted(snapshot(folder / "work")) == ["manifest.txt", "report.json"]


@pytest.mark.parametrize(("name", "inside"), [("out", "out"), ("in", "in/a.warc.gz")])
def test_a_work_folder_with_the_output_or_an_input_is_refused(folder: Path, name: str, inside: str) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "job.json").write_text("{}")  # as an earlier run leaves it
    before = snapshot(folder)
    with pytest.raises(UsageError, match=rf"{inside} is in .*, whose files are removed at the end"):
        run(folder, work=folder / name, force=True)
    assert snapshot(folder) == before


@pytest.mark.parametrize("force", [False, True])
def test_in_place_unfinished_work_of_warcrefs_is_refused(folder: Path, force: bool) -> None:
    unfinished = folder / "in" / ".dedupe" / "warcrefs"
    unfinished.mkdir(parents=True)
    (unfinished / "job.json").write_text("{}")
    before = snapshot(folder)
    for options in ({}, {"work": folder / "work"}):
        with pytest.raises(ArchiveError, match="warcrefs has unfinished work of warcrefs"):
            run(folder, in_place=True, force=force, **options)
        assert snapshot(folder) == before


class Meets(NoProgress):
    """Starts other runs in the middle of a run, and expects that they are refused."""

    def __init__(self, others: Iterable[Callable[[], object]]) -> None:
        self.others = list(others)

    def advance(self, size_bytes: int) -> None:
        while self.others:
            other = self.others.pop()
            with pytest.raises(ArchiveError, match=r"Another process is working in .*/\.dedupe\. Wait until"):
                other()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("mine", "others"), [("work", (None, "more")), (None, (None, "work"))])
def test_runs_with_one_output_exclude_each_other_wherever_their_work_is(
    folder: Path, planting: Planting, mine: str | None, others: tuple[str | None, ...], in_place: bool
) -> None:
    output = None if in_place else folder / "out"

    def start(work: str | None, watch: NoProgress) -> Deduped:
        faults = Faults(keep_going=False)
        inputs = find_inputs(["in"], faults=faults, recursive=True)
        options = StepOptions(work=None if work is None else folder / work, in_place=in_place)
        return run_steps(inputs, output, options, faults=faults, watch=watch)

    watch = Meets(partial(start, other, NoProgress()) for other in others)
    assert start(mine, watch).converted == 1
    assert watch.others == []
    assert_deduplicated(planting, output or folder / "in")
    assert not list((folder / "in").rglob("lock"))


@pytest.fixture
def half_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Killed before the second of the new files got its final name, with another work folder."""
    moved: list[Path] = []

    def dies(new: Path, final: Path) -> None:
        if moved:
            raise Died
        moved.append(final)
        real(new, final)

    real = final_names.move
    with monkeypatch.context() as context:
        context.setattr(final_names, "move", dies)
        with pytest.raises(Died):
            run(folder, work=folder / "work")
    return folder


def test_another_output_with_the_same_work_folder_is_refused(half_moved: Path) -> None:
    (half_moved / "out").rename(half_moved / "first")
    inputs = find_inputs(["in"], faults=Faults(), recursive=True)
    options = StepOptions(work=half_moved / "work")
    with pytest.raises(ArchiveError, match=r"work holds other unfinished work: -o was .*out\. Repeat"):
        run_steps(inputs, half_moved / "other", options, faults=Faults(), watch=NoProgress())
    (half_moved / "first").rename(half_moved / "out")
    assert run(half_moved, work=half_moved / "work").converted == 1
    assert len([name for name in snapshot(half_moved / "out") if "arc" in name]) == 4


def test_a_new_file_that_is_removed_before_the_work_is_finished_is_reported(half_moved: Path) -> None:
    (moved,) = [
        path for path in (half_moved / "out").rglob("*arc*") if path.is_file() and "new" not in path.parts
    ]
    moved.unlink()
    with pytest.raises(
        ArchiveError, match=f"{moved.name} was removed before this work was finished. Start again"
    ):
        run(half_moved, work=half_moved / "work")
    assert run(half_moved, work=half_moved / "work", force=True).converted == 1
    assert moved.exists()


def test_arc_files_are_made_warc_files_if_that_is_asked_for(folder: Path) -> None:
    done = run(folder, convert_arc=True)
    assert (done.files, done.arcs, done.converted, done.left) == (4, 1, 2, {})
    assert (folder / "out" / "old.warc.gz").exists()
    assert not (folder / "out" / "old.arc.gz").exists()
    assert done.old_bytes == sum(map(len, snapshot(folder / "in").values()))


@pytest.mark.exhaustive
def test_several_processes_convert_arc_files_to_the_same_bytes(folder: Path) -> None:
    p = Planting()
    p.file("older.arc", "arc")
    p.arc_capture("older.arc", "older", f"{SITE}/older", text("older", 3_000))
    p.write(folder / "in")
    assert run(folder, convert_arc=True).arcs == 2
    wanted = all_but_the_report(folder / "out")
    shutil.rmtree(folder / "out")
    assert run(folder, convert_arc=True, jobs=2).arcs == 2
    assert all_but_the_report(folder / "out") == wanted


@pytest.mark.parametrize("name", ["old.arc", "old.warc.gz"])
def test_a_file_with_the_name_of_a_converted_one_is_refused(folder: Path, name: str) -> None:
    p = Planting()
    p.file(name, "arc" if name.endswith("arc") else "gzip")
    if name.endswith("arc"):
        p.arc_capture(name, "other", f"{SITE}/other", text("other", 3_000))
        p.file("old.warc", "plain")
        p.exchange("old.warc", "third", f"{SITE}/third", text("third", 3_000))
    else:
        p.exchange(name, "other", f"{SITE}/other", text("other", 3_000))
    p.write(folder / "in")
    with pytest.raises(
        UsageError, match=r"both have the name in/old\.warc(\.gz)? after --convert-arc\. Rename one"
    ):
        run(folder, convert_arc=True)
    assert not (folder / "out").exists()
    assert run(folder).files == (6 if name.endswith("arc") else 5)


def test_options_decide_what_becomes_a_revisit(folder: Path) -> None:
    assert run(folder, eligibility=Eligibility(min_size=4_000)).left == {"small": 2}


STEPS = {
    "convert_arc": steps,
    "make_rows": steps,
    "number_rows": steps,
    "list_lines": steps,
    "number_clusters": steps,
    "write_lines": steps,
    "make_plan": rewriting,
    "rewrite_file": rewriting,
    "verify": rewriting,
    "move": final_names,
    "replace": final_names,
}
# Only in place are files replaced, and only elsewhere are they moved or converted.
DEATHS = [
    (step, in_place, is_done)
    for step in STEPS
    for in_place in (False, True)
    for is_done in (False, True)
    if step not in (("move", "convert_arc") if in_place else ("replace",))
]
USUAL = [
    ("convert_arc", False, True),
    ("make_rows", True, False),
    ("number_rows", False, True),
    ("list_lines", True, True),
    ("number_clusters", False, False),
    ("write_lines", True, False),
    ("make_plan", False, True),
    ("rewrite_file", True, True),
    ("verify", False, True),
    ("move", False, False),
    ("replace", True, True),
]


@pytest.mark.parametrize(("step", "in_place", "is_done"), sampled(DEATHS, USUAL))
def test_a_death_before_or_after_a_step_costs_nothing(
    folder: Path,
    undisturbed: Callable[..., Undisturbed],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    in_place: bool,
    is_done: bool,
) -> None:
    how: dict[str, Any] = {"in_place": True} if in_place else {}
    if step == "convert_arc":
        how["convert_arc"] = True
    if step in ("number_clusters", "write_lines"):
        how["compare"] = "bytes"
    do: Callable[..., Any] = getattr(STEPS[step], step)

    def die(*args: Any, **options: Any) -> None:
        if is_done:
            do(*args, **options)
        raise Died

    with monkeypatch.context() as context:
        context.setattr(STEPS[step], step, die)
        with pytest.raises(Died):
            run(folder, **how)
    done = run(folder, **how)
    assert done.converted == (2 if step == "convert_arc" else 1)
    assert all_but_the_report(folder) == undisturbed(**how).files


@pytest.fixture
def cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that died before it wrote anything but its state."""

    with monkeypatch.context() as context:
        context.setattr(rewriting, "make_plan", die)
        with pytest.raises(Died):
            run(folder)
    return folder


def test_a_file_that_changes_while_the_payloads_are_compared_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = steps.number_rows

    def meanwhile(*args: Any, **options: Any) -> Any:
        (folder / "in" / "a.warc.gz").write_bytes((folder / "in" / "b" / "b.warc").read_bytes())
        return do(*args, **options)

    monkeypatch.setattr(steps, "number_rows", meanwhile)
    with pytest.raises(ArchiveError, match=r"in/a\.warc\.gz has changed since this work began"):
        run(folder)
    assert not [name for name in snapshot(folder / "out") if ".dedupe/" not in name]


def test_another_question_does_not_go_on_with_the_work(cut: Path) -> None:
    with pytest.raises(ArchiveError, match="--hash was sha256"):
        run(cut, algorithm="md5")
    with pytest.raises(ArchiveError, match="--compare was digest"):
        run(cut, compare="bytes")
    with pytest.raises(ArchiveError, match="--min-size was 1024"):
        run(cut, eligibility=Eligibility(min_size=5))
    assert run(cut, sample=3).converted == 1


@pytest.mark.exhaustive
def test_the_work_continues_with_another_number_of_processes(cut: Path) -> None:
    assert run(cut, jobs=2).converted == 1


def test_other_files_do_not_go_on_with_the_work(cut: Path) -> None:
    path = cut / "in" / "a.warc.gz"
    data = path.read_bytes()
    path.write_bytes(data + data)
    with pytest.raises(ArchiveError, match=r"in/a\.warc\.gz has changed since"):
        run(cut)
    path.rename(cut / "elsewhere.warc.gz")
    with pytest.raises(ArchiveError, match=r"in/a\.warc\.gz was one of its files"):
        run(cut)
    path.write_bytes(data)
    (cut / "in" / "new.warc.gz").write_bytes(data)
    with pytest.raises(ArchiveError, match=r"has changed since|was none of its files"):
        run(cut)
    assert run(cut, force=True).files == 5


def test_work_of_another_version_is_begun_anew_only_if_asked(
    cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "__version__", "0.0.1")
    with pytest.raises(ArchiveError, match=r"this is 0\.0\.1"):
        run(cut)
    assert run(cut, force=True).converted == 1


def test_a_folder_with_something_in_it_is_refused_and_not_touched(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("mine")
    before = snapshot(folder)
    with pytest.raises(ArchiveError, match=r"is not empty: it has mine\. .*--force"):
        run(folder)
    assert snapshot(folder) == before
    run(folder, force=True)
    done = snapshot(folder)
    assert done["out/mine"] == b"mine"
    with pytest.raises(ArchiveError, match="is not empty"):
        run(folder)
    assert snapshot(folder) == done
    run(folder, force=True)
    assert snapshot(folder) == done


@pytest.mark.parametrize("in_place", [False, True])
def test_without_duckdb_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SettingError, match=r'needs DuckDB, which is not installed: .*\[archive\]"'):
        run(folder, in_place=in_place)
    assert sorted(folder.rglob("*")) == before


def test_an_output_whose_path_duckdb_cannot_use_is_refused_before_anything_is_written(folder: Path) -> None:
    parent = folder / os.fsdecode(b"\xff")
    with pytest.raises(UsageError, match=r"its path is not UTF-8\. Choose another folder"):
        run(parent)
    assert not parent.exists()


def test_damage_ends_the_work_or_is_counted_once(folder: Path, planting: Planting) -> None:
    path = folder / "in" / "a.warc.gz"
    members = planting.files["a.warc.gz"].members()
    path.write_bytes(b"".join([members[0][:-9] + b"\0\0\0\0" + members[0][-5:], *members[1:]]))
    with pytest.raises(DamagedInput, match=r"in/a\.warc\.gz, offset 0"):
        run(folder)
    assert not [name for name in snapshot(folder / "out") if ".dedupe/" not in name]
    done = run(folder, keep_going=True)
    assert [fault.place for fault in done.faults] == ["in/a.warc.gz, offset 0"]
    assert (done.fault_count, done.converted) == (1, 1)


def test_what_cannot_be_rewritten_is_refused(folder: Path) -> None:
    faults = Faults()
    with pytest.raises(UsageError, match="None of the files"):
        run_steps([], folder / "out", StepOptions(), faults=faults, watch=NoProgress())
    (given, *_) = find_inputs(["in/a.warc.gz"], faults=faults)

    class Member:
        name, suffixes, container = "x", (".warc",), "x.wacz"

    with pytest.raises(UsageError, match="in a container"):
        run_steps(
            [replace(given, file=Member())], folder / "out", StepOptions(), faults=faults, watch=NoProgress()
        )


def test_digests_are_computed_whatever_the_records_say(folder: Path) -> None:
    p = Planting()
    p.file("a.warc.gz")
    for number in range(2):
        p.exchange("a.warc.gz", f"same-{number}", f"{SITE}/{number}", text("same", 5_000))
    found = p.files["a.warc.gz"].records
    wrong = digest("sha1", b"another payload")
    for index, record in enumerate(found):
        if record.label == "same-1":
            fields = [
                (name, wrong if name == b"WARC-Payload-Digest" else value) for name, value in record.fields
            ]
            found[index] = replace(record, fields=tuple(fields))
    p.write(folder / "in")
    done = run(folder, algorithm="sha1")
    assert (done.converted, done.findings_count, done.fault_count) == (1, 0, 0)
