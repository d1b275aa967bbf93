"""Applying a function to many tasks, in this process or in several.

Results are yielded as they are completed (`run_jobs`), or in the order of the tasks (`run_in_order`). The first error
is raised and stops the rest. Processes are started with the spawn method, so the function must be importable and
tasks must be picklable. Workers end when the parent process ends, even if it is killed: each worker watches a pipe,
which the system closes when the parent ends. Workers do not import the main module of the program: for a command,
that would import all of Scrapy, which takes longer than many tasks.

Instead of a number of processes, callers of `run_jobs` may pass `Workers`: processes that another program manages, such
as a Spark cluster. Their tasks may run more than once, also at the same time, so tasks write whole files
(`files.whole_file`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from itertools import chain, islice
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from scrapy_dedupe.errors import ArchiveError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection
    from pathlib import Path
    from typing import TypeAlias

    from scrapy_dedupe.tasks.progress import Progress

Task = TypeVar("Task")
Result = TypeVar("Result")

# Only one thread at a time may hide the main module; a second thread would save the hidden state as the original.
_hidden_main_lock = threading.Lock()


class Workers(Protocol):
    """Processes that another program manages."""

    @property
    def count(self) -> int:
        """How many tasks run at the same time."""

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Generator[tuple[Task, Result]]:
        """Yield each task with its result, in the order of completion. Raises the exceptions of *function*."""


@runtime_checkable
class JoinWorkers(Protocol):
    """`Workers` that can also run joins over at least `least_join_bytes` of rows."""

    least_join_bytes: int

    def joins(self, scratch: Path) -> AbstractContextManager[Any]:
        """Open tables and statements in SQL, with temporary files in *scratch*."""


if TYPE_CHECKING:
    Jobs: TypeAlias = int | Workers
    """A number of processes, 0 for one per core; or workers."""

_WAITING_PER_JOB = 2
_AHEAD_PER_JOB = 8


def run_jobs(
    function: Callable[[Task], Result], tasks: Sequence[Task], jobs: Jobs
) -> Generator[tuple[Task, Result]]:
    """Yield each task with the result of *function*, in the order of completion.

    With one job, all tasks run in this process, each when the caller asks for the next result; 0 jobs means one per core.
    Raises the exceptions of *function*, SettingError for a negative number, ArchiveError if the system ends a process.
    """
    if runs_here(jobs, len(tasks)):
        for task in tasks:
            yield task, function(task)
    elif isinstance(jobs, int):
        count = min(job_count(jobs), len(tasks))
        with _pool_of(count) as pool:
            yield from _in_processes(pool, function, iter(tasks), count, _WAITING_PER_JOB)
    else:
        yield from jobs.run(function, tasks)


def runs_here(jobs: Jobs, task_count: int) -> bool:
    """Whether `run_jobs` runs this number of tasks in this process."""
    return isinstance(jobs, int | _Processes) and min(job_count(jobs), task_count) <= 1


@contextmanager
def kept_processes(jobs: Jobs) -> Iterator[Jobs]:
    """Keep the processes of *jobs* for several calls of `run_jobs`, to which the result is passed.

    So a process imports its modules only once. Do not catch exceptions of `run_jobs` inside the block: other tasks may
    still run until the block ends.
    """
    if not isinstance(jobs, int) or job_count(jobs) == 1:
        yield jobs
        return
    count = job_count(jobs)
    with _pool_of(count) as pool:
        yield _Processes(pool, count)


class _Processes:
    """Processes of this program, as `Workers`."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool = pool
        self.count = count

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Generator[tuple[Task, Result]]:
        yield from _in_processes(self._pool, function, iter(tasks), self.count, _WAITING_PER_JOB)


def join_workers(jobs: Jobs, size_bytes: int) -> JoinWorkers | None:
    """The workers for joins over *size_bytes* of rows; None if DuckDB in this process is to run them.

    DuckDB has joined a few rows in less time than a cluster needs to start its tasks.
    """
    return jobs if isinstance(jobs, JoinWorkers) and size_bytes >= jobs.least_join_bytes else None


def run_watched(
    function: Callable[..., Result],
    tasks: Iterable[Task],
    jobs: Jobs,
    watch: Progress,
    size_of: Callable[[Task], int],
) -> Generator[tuple[Task, Result]]:
    """Like `run_jobs`, and report the size of each task to *watch*.

    If the tasks run in this process, *function* gets the option ``advance``, which it may call with the bytes that it has
    processed. In several processes, the largest tasks are first, so that no single process runs long after the others.
    """
    left = list(tasks)
    if not runs_here(jobs, len(left)):
        left.sort(key=size_of, reverse=True)
        for task, result in run_jobs(function, left, jobs):
            yield task, result
            watch.advance(size_of(task))
        return
    for task in left:
        reported = 0

        def advance(size_bytes: int) -> None:
            nonlocal reported
            reported += size_bytes
            watch.advance(size_bytes)

        result = function(task, advance=advance)
        yield task, result
        watch.advance(max(0, size_of(task) - reported))


def run_in_order(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    jobs: int,
    weight: Callable[[Task], int] | None = None,
    most: int = 0,
) -> Generator[Result]:
    """Yield the result of *function* for each task, in the order of the tasks.

    *tasks* is consumed on demand, in this process, so it may be unlimited: at most eight tasks per job are taken before
    their results are yielded, so that workers stay busy while the caller processes a result. With *weight*, the tasks in
    progress have a total weight of at most *most*; a heavier task runs without others. With one job, or one task, all
    work is done in this process. Raises the exceptions of `run_jobs` and of *tasks*.
    """
    left = iter(tasks)
    count = job_count(jobs)
    first = list(islice(left, 2 if count > 1 else 0))
    is_alone = len(first) < 2
    # Clear the list, which would keep two tasks in memory to the end.
    left, first = chain(first, left), []
    if is_alone:
        for task in left:
            yield function(task)
    else:
        weigh = weight or (lambda task: 0)
        with (
            _pool_of(count) as pool,
            closing(_in_processes(pool, function, left, count, _AHEAD_PER_JOB, weigh, most)) as in_order,
        ):
            for _, result in in_order:
                yield result


def thread_count(jobs: Jobs) -> int:
    """The number of threads for work in this process: as many as jobs, or one per core with other workers."""
    return job_count(jobs if isinstance(jobs, int) else 0)


def job_count(jobs: Jobs) -> int:
    """The number of processes that ``--jobs`` requests, or that workers have. Raises SettingError.

    >>> job_count(3)
    3
    """
    if not isinstance(jobs, int):
        return jobs.count
    if jobs < 0:
        raise SettingError(f"Cannot run {jobs} jobs. Give a positive number, or 0 for all cores.")
    if jobs:
        return jobs
    # The affinity respects that a container may have fewer cores than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(
    pool: ProcessPoolExecutor,
    function: Callable[[Task], Result],
    tasks: Iterator[Task],
    count: int,
    most_per_job: int,
    weight: Callable[[Task], int] | None = None,
    most: int = 0,
) -> Generator[tuple[Task, Result]]:
    """Yield each task with its result: in the order of completion or, with *weight*, in the order of the tasks."""
    waiting: dict[Future[Result], tuple[Task, int]] = {}
    heavy = 0

    def next_result() -> tuple[Task, Result]:
        nonlocal heavy
        done = wait(waiting, return_when=FIRST_COMPLETED).done if weight is None else waiting
        future = next(iter(done))
        result = future.result()
        task, weighing = waiting.pop(future)
        heavy -= weighing
        return task, result

    for task in tasks:
        weighing = 0 if weight is None else weight(task)
        while waiting and heavy + weighing > most:
            yield next_result()
        waiting[_submit(pool, function, task)] = (task, weighing)
        heavy += weighing
        # Otherwise this variable keeps the task in memory until the next one is read.
        del task
        is_ready = weight is not None and next(iter(waiting)).done()
        if is_ready or len(waiting) >= most_per_job * count:
            yield next_result()
    while waiting:
        yield next_result()


@contextmanager
def _pool_of(count: int) -> Iterator[ProcessPoolExecutor]:
    context = get_context("spawn")
    # The parent never writes: the pipe ends when its writer is closed, by `finally` or by the system.
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(reader,))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise ArchiveError(
            "A worker process was ended by the system, possibly because memory ran out. Run the command again with fewer"
            " --jobs."
        ) from None
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def _submit(pool: ProcessPoolExecutor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
    """Submit a task. This starts a new process if there are fewer than the maximum."""
    with _interrupts_blocked(), _hidden_main_lock, _hidden_main(function, task):
        return pool.submit(function, task)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes that are started within the block; the parent handles Ctrl-C for all of them.

    The processes inherit the signal mask, so SIGINT is blocked even while they import modules, before `_begin` runs.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _hidden_main(function: Callable[[Task], object], task: Task) -> Iterator[None]:
    """Keep processes that are started within the block from importing the main module, unless their task needs it."""
    called = getattr(function, "func", function)
    if "__main__" in (getattr(called, "__module__", None), type(task).__module__):
        yield
        return
    # multiprocessing.spawn.get_preparation_data passes the main module to a process by these two attributes.
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, object] = {name: main[name] for name in ("__spec__", "__file__") if name in main}
    try:
        main["__spec__"] = None
        main.pop("__file__", None)
        yield
    finally:
        del main["__spec__"]
        main.update(hidden)


def _begin(reader: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(reader,), daemon=True).start()


def _end_with(reader: Connection) -> None:
    connection.wait([reader])
    os._exit(1)
