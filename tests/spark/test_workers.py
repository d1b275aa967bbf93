"""Tasks in Spark give what they give in this process, whatever happens to the processes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from spark import odd_tasks
from spark.odd_tasks import Task

from scrapy_dedupe.errors import ArchiveError, DamagedInput, EngineError
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.tasks.jobs import job_count, run_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.spark import SparkWorkers


@pytest.fixture(scope="module")
def workers(session: Any) -> SparkWorkers:
    from scrapy_dedupe.spark import SparkWorkers

    return SparkWorkers(session)


def test_each_task_is_yielded_with_its_result(workers: SparkWorkers) -> None:
    assert sorted(run_jobs(odd_tasks.double, range(50), workers)) == [(n, 2 * n) for n in range(50)]
    assert list(run_jobs(odd_tasks.double, [], workers)) == []
    assert job_count(workers) == 2


def test_a_task_whose_process_is_killed_runs_again(workers: SparkWorkers, tmp_path: Path) -> None:
    assert [done for _, done in workers.run(odd_tasks.killed_at_first, [Task("file", tmp_path)])] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"first half, second half"


def test_a_task_whose_processes_are_all_killed_is_named(workers: SparkWorkers, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"^The Spark task of a\.warc\.gz failed \(killed\): .*\.$"
    ) as raised:
        list(workers.run(odd_tasks.killed, [Task("a.warc.gz", tmp_path)]))
    assert "\n" not in str(raised.value)
    assert "crashed" in str(raised.value)


def test_a_task_that_runs_twice_at_the_same_time_writes_one_whole_file(
    workers: SparkWorkers, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    done = workers.run(odd_tasks.written_together, [Task("file", folder)] * 4)
    assert len({result for _, result in done}) > 1
    assert (folder / "file").read_text().split() == [str(number) for number in range(20)]
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_an_unavailable_file_is_tried_again(workers: SparkWorkers, tmp_path: Path) -> None:
    done = workers.run(odd_tasks.unavailable_at_first, [Task("file", tmp_path)])
    assert [result for _, result in done] == ["available"]
    with pytest.raises(ArchiveError, match=r"^file is not available\.$"):
        list(workers.run(odd_tasks.unavailable, [Task("file", tmp_path)]))
    assert (tmp_path / "tries").read_text() == "xx"


def test_a_damaged_file_is_read_once_and_ends_the_job(workers: SparkWorkers, tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match=r"^a\.warc\.gz, offset 12: damaged\.$"):
        list(workers.run(odd_tasks.damaged_or_slow, [Task(name, tmp_path) for name in ("slow", "damaged")]))
    assert not (tmp_path / "slow").exists(), "the job did not wait for the other task"
    (tmp_path / "job ended").touch()
    assert (tmp_path / "tries").read_text() == "x"


def test_the_places_of_files_are_sent_once_for_all_tasks(workers: SparkWorkers, tmp_path: Path) -> None:
    from scrapy_dedupe.spark.workers import _without_places

    places = Places(paths={f"{number}.warc.gz": f"/archive/{number}.warc.gz" for number in range(10_000)})
    tasks = [Task(str(number), tmp_path, places) for number in range(20)]
    sent, shared = _without_places(tasks)
    assert max(len(pickle.dumps(task)) for task in sent) < 1_000
    assert shared == [places]
    assert len({result for _, result in workers.run(odd_tasks.identity_of_places, tasks)}) <= 2


def test_a_bug_in_a_task_is_named(workers: SparkWorkers, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match=r"^a bug\nIn the Spark task of file:\nTraceback .*"):
        list(workers.run(odd_tasks.broken, [Task("file", tmp_path)]))


def test_a_caller_that_stops_early_leaves_no_tasks_running(
    workers: SparkWorkers, session: Any, tmp_path: Path
) -> None:
    results = workers.run(odd_tasks.written_slowly, [Task(str(number), tmp_path) for number in range(200)])
    next(results)
    results.close()
    # Spark updates its status a moment later.
    odd_tasks.wait_for(lambda: not session.sparkContext.statusTracker().getActiveJobsIds())
    assert list(session.sparkContext.statusTracker().getActiveJobsIds()) == []
    assert len(list(tmp_path.iterdir())) < 200
