from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.tasks import jobs
from scrapy_dedupe.tasks.jobs import job_count, run_in_order, run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The functions that processes are given are those of the standard library, which any process can import.

LONG_S = 240.0
# A shell that runs the tests in the background lets its programs ignore Ctrl-C.
PROGRAM = f"""
import signal
import time
from scrapy_dedupe.tasks.jobs import run_jobs

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for task, result in run_jobs(time.sleep, [0.0, {LONG_S}, {LONG_S}], 2):
        print("ready", flush=True)
"""


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_task_comes_once_with_its_result(jobs: int) -> None:
    tasks = list(range(20))
    assert dict(run_jobs(math.factorial, tasks, jobs)) == {task: math.factorial(task) for task in tasks}


def test_one_job_works_in_this_process_and_as_it_is_asked() -> None:
    done: list[int] = []
    results = run_jobs(done.append, [1, 2, 3], 1)
    next(results)
    assert done == [1]
    results.close()  # type: ignore[attr-defined]
    assert done == [1]


def test_what_is_ready_first_comes_first(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.write_bytes(b"1")
    # It is read to its end when something was written, as late as the test likes.
    os.mkfifo(slow)
    ender = threading.Timer(LONG_S, slow.write_bytes, (b"2",))
    ender.start()
    results = run_jobs(Path.read_bytes, [slow, fast], 2)
    assert next(results) == (fast, b"1")
    ender.cancel()
    slow.write_bytes(b"2")
    assert list(results) == [(slow, b"2")]


def test_no_tasks_are_no_work() -> None:
    assert list(run_jobs(math.sqrt, [], 4)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_error_is_raised_and_ends_the_rest(jobs: int) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError):
        for _ in run_jobs(time.sleep, [-1.0, LONG_S], jobs):
            pass
    assert time.monotonic() - began < LONG_S / 2


def test_a_caller_who_stops_ends_the_processes() -> None:
    before = set(psutil.Process().children())
    results = run_jobs(time.sleep, [0.0, LONG_S, LONG_S], 2)
    next(results)
    results.close()  # type: ignore[attr-defined]
    left = set(psutil.Process().children()) - before
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]


def test_a_process_that_the_system_ends_is_told_in_one_sentence() -> None:
    with pytest.raises(ArchiveError, match="fewer --jobs"):
        list(run_jobs(os._exit, [9, 9, 9], 2))


def _workers_of(program: subprocess.Popen[str]) -> list[psutil.Process]:
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return psutil.Process(program.pid).children(recursive=True)


@pytest.mark.parametrize(
    "end",
    [lambda program: program.kill(), lambda program: program.send_signal(signal.SIGINT)],
    ids=["kill", "Ctrl-C"],
)
def test_the_processes_end_with_the_one_that_started_them(
    end: Callable[[subprocess.Popen[str]], None],
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        workers = _workers_of(program)
        assert len(workers) >= 2
        end(program)
        _, alive = psutil.wait_procs(workers, timeout=LONG_S / 3)
        assert not alive
        program.wait(LONG_S / 3)


def test_threads_that_start_processes_at_once_leave_the_main_module_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = sys.modules["__main__"]
    for name in ("__spec__", "__file__"):
        monkeypatch.setattr(main, name, f"the {name}", raising=False)
    first_hides, second_hides = threading.Event(), threading.Event()

    class FirstPool:
        def submit(self, *arguments: object) -> None:
            first_hides.set()
            second_hides.wait(0.2)  # which does not happen before this one is done

    class SecondPool:
        def submit(self, *arguments: object) -> None:
            second_hides.set()
            first.join(LONG_S)

    first = threading.Thread(target=jobs._submit, args=(FirstPool(), math.sqrt, 4.0))
    second = threading.Thread(target=jobs._submit, args=(SecondPool(), math.sqrt, 4.0))
    first.start()
    assert first_hides.wait(LONG_S)
    second.start()
    second.join(LONG_S)
    assert (main.__spec__, main.__file__) == ("the __spec__", "the __file__")


def test_zero_jobs_are_all_cores() -> None:
    assert job_count(0) == len(os.sched_getaffinity(0))


def test_a_number_below_zero_is_refused() -> None:
    with pytest.raises(SettingError, match="-1 jobs"):
        job_count(-1)


def test_a_worker_does_not_import_the_program_that_started_it(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "program.py"
    program.write_text(
        f"open({str(told)!r}, 'a').write('imported ')\n"
        "import math\n"
        "from scrapy_dedupe.tasks.jobs import run_jobs\n"
        "if __name__ == '__main__':\n"
        "    print(sorted(result for _, result in run_jobs(math.factorial, [3, 4, 5], 2)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=240, check=True
    )
    assert (done.stdout, told.read_text()) == ("[6, 24, 120]\n", "imported ")


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_results_in_order_are_those_of_the_tasks_one_by_one(jobs: int) -> None:
    tasks = list(range(40))
    assert list(run_in_order(math.factorial, iter(tasks), jobs)) == [math.factorial(task) for task in tasks]


def test_what_is_ready_first_waits_for_its_turn() -> None:
    slow, fast = 50_000, 1
    assert list(run_in_order(math.factorial, [slow, fast], 2)) == [math.factorial(slow), 1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_in_order_are_taken_as_they_are_needed(jobs: int) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(1_000):
            taken.append(number)
            yield number

    results = run_in_order(math.factorial, tasks(), jobs)
    assert [next(results) for _ in range(5)] == [1, 1, 2, 6, 24]
    results.close()
    assert len(taken) <= 5 + 8 * jobs
    assert taken == list(range(len(taken)))


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_error_of_a_task_comes_at_its_turn(jobs: int) -> None:
    results = run_in_order(math.sqrt, [4.0, 9.0, -1.0, 16.0], jobs)
    assert (next(results), next(results)) == (2.0, 3.0)
    with pytest.raises(ValueError):
        next(results)
    assert list(results) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_tasks_themselves_ends_the_work(jobs: int) -> None:
    def tasks() -> Iterator[float]:
        yield 4.0
        yield 9.0
        raise KeyError("the third")

    before = set(psutil.Process().children())
    with pytest.raises(KeyError):
        list(run_in_order(math.sqrt, tasks(), jobs))
    left = set(psutil.Process().children()) - before
    assert not [process for process in left if "resource_tracker" not in " ".join(process.cmdline())]


def test_a_single_task_starts_no_process() -> None:
    its_number = "__import__('os').getpid()"
    assert list(run_in_order(eval, [its_number], 2)) == [os.getpid()]
    assert os.getpid() not in list(run_in_order(eval, [its_number] * 2, 2))
    assert list(run_in_order(eval, [], 2)) == []


def test_a_process_that_ends_amid_tasks_in_order_is_told_in_one_sentence() -> None:
    with pytest.raises(ArchiveError, match="fewer --jobs"):
        list(run_in_order(os._exit, [9, 9, 9], 2))


def test_tasks_are_taken_ahead_as_far_as_they_weigh_no_more_than_the_most() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for number in (10, 10, 10, 50, 10, 10, 10, 10):
            taken.append(number)
            yield number

    results = run_in_order(math.factorial, tasks(), 2, weight=lambda task: task, most=30)
    found = []
    ahead = []
    for result in results:
        found.append(result)
        ahead.append(sum(taken) - sum(taken[: len(found)]))
    assert found == [math.factorial(number) for number in (10, 10, 10, 50, 10, 10, 10, 10)]
    # The one that is next is held as well, and waits for the others.
    assert max(ahead) <= 30 + 50


def test_a_task_heavier_than_the_most_is_handed_over_alone() -> None:
    assert list(run_in_order(math.factorial, [5, 6, 7, 8], 2, lambda task: 100, 30)) == [
        120,
        720,
        5040,
        40320,
    ]
