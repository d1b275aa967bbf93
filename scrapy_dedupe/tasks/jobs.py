"""The same work on many things, in one process or in several.

Results come in the order in which they are ready (`run_jobs`), or in that of the tasks (`run_in_order`). The first
error ends the rest and is raised. Processes are started afresh (spawn), so the function and its tasks must be importable
and plain values; they end when the process that started them ends, however it ends: each one watches a pipe that the
system closes then. They do not import the main module of the program, which for a command would be all of Scrapy and
longer than many tasks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, TypeVar

from scrapy_dedupe.errors import ArchiveError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from multiprocessing.connection import Connection

Task = TypeVar("Task")
Result = TypeVar("Result")

# Only one thread at a time may hide the main module: another one would take what is hidden for what there was.
_hiding = threading.Lock()

_WAITING_PER_JOB = 2
_AHEAD_PER_JOB = 8


def run_jobs(
    function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int
) -> Generator[tuple[Task, Result]]:
    """Yield each task with what *function* gives for it, as soon as it is there.

    With one job all is done in this process, task by task, as the caller asks for it; 0 jobs are as many as there are
    cores. Raises what *function* raises, SettingError for a number below 0, ArchiveError if the system ends a process.
    """
    count = min(job_count(jobs), len(tasks))
    if count <= 1:
        for task in tasks:
            yield task, function(task)
    else:
        yield from _in_processes(function, tasks, count)


def run_in_order(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    jobs: int,
    weight: Callable[[Task], int] | None = None,
    most: int = 0,
) -> Generator[Result]:
    """Yield what *function* gives for each task, in the order of the tasks.

    Tasks are taken as they are needed, in this process, so they may be as many as they like: at most eight a job are
    taken before their results are. So the processes have something to do also while the caller is busy with a result.
    Given a *weight*, those that are handed over weigh *most* together; a heavier one is handed over alone. With one job,
    or one task, all is done in this process. Raises as `run_jobs` does, and what *tasks* raises.
    """
    left = iter(tasks)
    count = job_count(jobs)
    first = list(islice(left, 2 if count > 1 else 0))
    is_alone = len(first) < 2
    # The list itself would keep two tasks to the end.
    left, first = chain(first, left), []
    if is_alone:
        for task in left:
            yield function(task)
    else:
        yield from _in_order(function, left, count, weight or (lambda task: 0), most)


def job_count(jobs: int) -> int:
    """How many processes ``--jobs`` asks for. Raises SettingError.

    >>> job_count(3)
    3
    """
    if jobs < 0:
        raise SettingError(f"There cannot be {jobs} jobs. Give a number from 1 on, or 0 for all cores.")
    if jobs:
        return jobs
    # A container may be given fewer cores than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_processes(
    function: Callable[[Task], Result], tasks: Sequence[Task], count: int
) -> Generator[tuple[Task, Result]]:
    with _pool_of(count) as pool:
        left = iter(tasks)
        # Few are handed over at a time, so that results do not pile up where the caller is slow.
        waiting = {_submit(pool, function, task): task for task in islice(left, _WAITING_PER_JOB * count)}
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                task, result = waiting.pop(future), future.result()
                for following in islice(left, 1):
                    waiting[_submit(pool, function, following)] = following
                yield task, result


def _in_order(
    function: Callable[[Task], Result],
    tasks: Iterator[Task],
    count: int,
    weight: Callable[[Task], int],
    most: int,
) -> Generator[Result]:
    with _pool_of(count) as pool:
        waiting: deque[tuple[Future[Result], int]] = deque()
        heavy = 0

        def next_result() -> Result:
            nonlocal heavy
            future, weighing = waiting.popleft()
            result = future.result()
            heavy -= weighing
            return result

        for task in tasks:
            weighing = weight(task)
            while waiting and heavy + weighing > most:
                yield next_result()
            waiting.append((_submit(pool, function, task), weighing))
            heavy += weighing
            # Else it would be held here until the next one comes, besides that.
            del task
            if waiting[0][0].done() or len(waiting) >= _AHEAD_PER_JOB * count:
                yield next_result()
        while waiting:
            yield next_result()


@contextmanager
def _pool_of(count: int) -> Iterator[ProcessPoolExecutor]:
    context = get_context("spawn")
    # Nothing is ever written: the pipe ends when its writer is closed, by us or by the system.
    reader, writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(reader,))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise ArchiveError(
            "A worker process was ended by the system, maybe for want of memory. Run the command again, with fewer"
            " --jobs."
        ) from None
    finally:
        writer.close()
        pool.shutdown(cancel_futures=True)
        reader.close()


def _submit(pool: ProcessPoolExecutor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
    """Hand a task over; this is where processes are started, as long as there are fewer than there may be."""
    with _interrupts_held_back(), _hiding, _hidden_main(function, task):
        return pool.submit(function, task)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let processes that are started now never hear Ctrl-C, which reaches all those of a terminal; the first decides.

    They inherit it, so they are deaf also while they import, which `_begin` would be too late for.
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
    """Have processes that are started meanwhile do without the main module, unless they need it for what they are given."""
    called = function.func if isinstance(function, partial) else function
    if "__main__" in (getattr(called, "__module__", None), type(task).__module__):
        yield
        return
    # multiprocessing.spawn.get_preparation_data names the main module by these two, for a process to import it.
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
