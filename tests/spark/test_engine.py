"""The offline jobs on Spark write the same bytes as on one machine."""

from __future__ import annotations

import re
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from offline.calling import call, done
from offline.garden import garden
from offline.outputs import assert_deduplicated, snapshot
from spark import odd_tasks

from scrapy_dedupe import spark
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.offline import rewriting, steps
from scrapy_dedupe.offline.digests import DigestOptions
from scrapy_dedupe.offline.manifest import read_lines
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.steps import StepOptions, run_steps
from scrapy_dedupe.offline.summing import SumOptions
from scrapy_dedupe.spark import joins
from scrapy_dedupe.tasks.faults import Faults
from scrapy_dedupe.tasks.inputs import find_inputs
from scrapy_dedupe.verification import verifying
from scrapy_dedupe.verification.verifying import pairs_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from offline.planted import Planting

ENGINE = ("--engine", "spark")


@pytest.fixture
def planting() -> Planting:
    return garden()


@pytest.fixture
def folder(session: Any, tmp_path: Path, planting: Planting) -> Path:
    """A folder with an archive in ``in``. The verbs use the session of the tests."""
    planting.write(tmp_path / "in")
    return tmp_path


def files_in(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(folder).items() if not name.endswith("report.json")}


def new_files(folder: Path) -> list[str]:
    return [name for name in snapshot(folder) if not name.startswith(".dedupe/")]


def test_the_manifest_is_the_same(folder: Path) -> None:
    here = done(folder, "warcsum", "in", "-r", "-o", "near.txt", "--recompute")
    there = done(folder, "warcsum", "in", "-r", "-o", "far.txt", "--recompute", *ENGINE)
    assert (folder / "far.txt").read_bytes() == (folder / "near.txt").read_bytes()
    assert there.out == here.out.replace("near", "far")
    assert sorted(path.name for path in folder.iterdir()) == ["far.txt", "in", "near.txt"]


def test_the_new_files_are_the_same(folder: Path, planting: Planting) -> None:
    here, there = (
        done(folder, "dedupe", "in", "-r", "-o", out, *words)
        for out, words in (("near", ()), ("far", ENGINE))
    )
    assert files_in(folder / "far") == files_in(folder / "near")
    assert there.out == here.out.replace("near", "far")
    assert sorted(snapshot(folder / "far/.dedupe")) == ["manifest.txt", "report.json"]
    shutil.rmtree(folder / "far/.dedupe")
    assert_deduplicated(planting, folder / "far")
    proof = done(folder, "verify", "in", "far", "--work", ".", *ENGINE)
    assert proof.out.endswith("Nothing is lost.\n")


def test_a_plan_in_spark_sql_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)
    for name, words in (("near", ()), ("far", ENGINE)):
        done(folder, "dedupe", "in", "-r", "-o", name, "--status", "all", "--min-size", "500", *words)
    assert files_in(folder / "far") == files_in(folder / "near")


def test_a_full_disk_and_a_killed_process_during_a_plan_in_spark_sql(
    folder: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)
    command = ("dedupe", "in", "-r", "--min-size", "500")
    with odd_tasks.full_disk_of(session):
        called = call(folder, *command, "-o", "far [1] 100%", *ENGINE)
    assert called.code == 3
    assert re.search(
        r"The joins on Spark failed: .*File too large\. Check the free space, also", called.sentences
    )
    assert called.err.count("\n") == 1
    # Tasks that Spark ends may leave temporary files until the work is finished.
    assert new_files(folder / "far [1] 100%") == []
    monkeypatch.setattr(joins, "size_of", partial(odd_tasks.size_after_a_kill, folder))
    done(folder, *command, "-o", "far [1] 100%", *ENGINE)
    assert not list((folder / "far [1] 100%").rglob("scratch"))
    assert (folder / "size.killed").exists()
    done(folder, *command, "-o", "near")
    assert files_in(folder / "far [1] 100%") == files_in(folder / "near")


def test_a_file_that_changes_during_a_plan_in_spark_sql_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.SparkWorkers, "least_join_bytes", 0)
    path = folder / "in/crawl a/first.warc.gz"
    before, do = path.read_bytes(), joins.SparkJoins.run

    def meanwhile(tables: joins.SparkJoins, statements: Iterable[str]) -> None:
        path.write_bytes(before[: len(before) // 2])
        do(tables, statements)

    monkeypatch.setattr(joins.SparkJoins, "run", meanwhile)
    called = call(folder, "dedupe", "in", "-r", "-o", "far", "--min-size", "500", *ENGINE)
    assert called.code == 3
    assert "in/crawl a/first.warc.gz has changed since this work began" in called.sentences
    assert called.err.count("\n") == 1
    assert new_files(folder / "far") == []
    assert not list((folder / "far").rglob("scratch"))


def test_the_steps_are_functions_of_a_session(folder: Path, session: Any) -> None:
    done(folder, "dedupe", "in", "-r", "-o", "near")
    near = files_in(folder / "near")
    inputs = find_inputs([str(folder / "in")], faults=Faults(), recursive=True)
    options = SumOptions(DigestOptions(recompute=True))
    spark.sums(session, inputs, folder / "sums.txt", options)
    spark.plan(session, folder / "sums.txt", folder / "plan.txt", Places())
    names = [given.name for given in inputs]
    result = spark.rewrite(session, read_lines(folder / "plan.txt"), names, Places(), folder / "far")
    assert result.converted
    del near[".dedupe/manifest.txt"]
    assert files_in(folder / "far") == near
    verified = spark.verify(session, pairs_of(folder / "in", folder / "far"), work=folder / "work")
    assert verified.is_right
    assert spark.dedupe(session, inputs, folder / "again").converted == result.converted


def test_a_damaged_file_is_named_and_nothing_is_written(folder: Path) -> None:
    path = folder / "in/crawl a/first.warc.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    called = call(folder, "dedupe", "in", "-r", "-o", "out", *ENGINE)
    assert called.code == 4
    assert "in/crawl a/first.warc.gz, offset" in called.sentences
    assert called.err.count("\n") == 1
    assert new_files(folder / "out") == []
    here = call(folder, "dedupe", "in", "-r", "-o", "near", "--keep-going")
    there = call(folder, "dedupe", "in", "-r", "-o", "far", "--keep-going", *ENGINE)
    assert (there.code, there.out) == (4, here.out.replace("near", "far"))
    assert files_in(folder / "far") == files_in(folder / "near")


def test_a_killed_process_in_each_step_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "make_rows", odd_tasks.rows_after_a_kill)
    monkeypatch.setattr(rewriting, "rewrite_file", odd_tasks.rewritten_after_a_kill)
    monkeypatch.setattr(verifying, "compare", odd_tasks.compared_after_a_kill)
    done(folder, "dedupe", "in", "-r", "-o", "far", *ENGINE)
    monkeypatch.undo()
    assert sorted(path.name for path in folder.glob("*.killed")) == [
        "compare.killed",
        "rewrite.killed",
        "rows.killed",
    ]
    done(folder, "dedupe", "in", "-r", "-o", "near")
    assert files_in(folder / "far") == files_in(folder / "near")
    assert list((folder / "far").rglob("*.tmp")) == []


def test_a_file_whose_processes_are_all_killed_is_named_and_the_same_command_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(rewriting, "rewrite_file", odd_tasks.killed)
        called = call(folder, "dedupe", "in", "-r", "-o", "out", *ENGINE)
    assert called.code == 3
    assert re.search(r"The Spark task of in/.*arc\S* failed \(killed\): ", called.sentences)
    assert called.err.count("\n") == 1
    assert new_files(folder / "out") == []
    done(folder, "dedupe", "in", "-r", "-o", "out", *ENGINE)
    done(folder, "dedupe", "in", "-r", "-o", "near")
    assert files_in(folder / "out") == files_in(folder / "near")


@pytest.mark.parametrize(
    ("module", "step", "full"),
    [
        (steps, "make_rows", odd_tasks.rows_on_a_full_disk),
        (rewriting, "rewrite_file", odd_tasks.rewritten_on_a_full_disk),
    ],
)
def test_a_full_disk_is_named_and_the_same_command_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, full: Any
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, step, full)
        called = call(folder, "dedupe", "in", "-r", "-o", "out", *ENGINE)
    assert called.code == 3
    assert "cannot be written: " in called.sentences
    assert "File too large. Check the free space" in called.sentences
    assert called.err.count("\n") == 1
    # Spark ends other tasks at once, so their temporary files stay until the work is finished.
    assert new_files(folder / "out") == []
    done(folder, "dedupe", "in", "-r", "-o", "out", *ENGINE)
    assert list((folder / "out").rglob("*.tmp")) == []
    done(folder, "dedupe", "in", "-r", "-o", "near")
    assert files_in(folder / "out") == files_in(folder / "near")


class Changes:
    """Progress that changes a file when a part of the work begins."""

    def __init__(self, title: str, path: Path) -> None:
        self._title = title
        self._path = path

    def begin(self, title: str, total: int, unit: str = "B") -> None:
        if title == self._title:
            with self._path.open("ab") as file:
                file.write(b"\n")

    def advance(self, count: int) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.parametrize("title", ["comparing", "rewrite"])
def test_a_file_that_changes_meanwhile_is_named_and_nothing_is_written(
    folder: Path, session: Any, title: str
) -> None:
    inputs = find_inputs([str(folder / "in")], faults=Faults(), recursive=True)
    path = folder / "in/crawl a/first.warc.gz"
    with pytest.raises(ArchiveError, match=r"first\.warc\.gz has changed since this work began"):
        run_steps(
            inputs,
            folder / "out",
            StepOptions(jobs=spark.SparkWorkers(session)),
            faults=Faults(),
            watch=Changes(title, path),
        )
    assert new_files(folder / "out") == []


def test_a_file_that_changes_during_the_verification_is_a_difference(folder: Path, session: Any) -> None:
    inputs = find_inputs([str(folder / "in")], faults=Faults(), recursive=True)
    path = folder / "in/crawl a/first.warc.gz"
    report = run_steps(
        inputs,
        folder / "out",
        StepOptions(jobs=spark.SparkWorkers(session)),
        faults=Faults(),
        watch=Changes("verify", path),
    )
    assert report.kept_in is not None
    assert [str(path) in finding for finding in report.findings] == [True]
    assert new_files(folder / "out") == []
