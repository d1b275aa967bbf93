"""Tasks on the executors of Spark: the `Workers` of `tasks.jobs`.

Each task is one partition of one Spark job. Spark may run a task again, or twice at the same time: tasks write whole
files under unique temporary names, so that a repeated task replaces a file with the same bytes, and a killed one leaves no
partial file under a final name. The result of a task is sent with an accumulator, which Spark counts once for each
partition, so that results arrive while other tasks run.

Damaged input and wrong usage end the work at once, since a retry cannot help. After any other exception Spark tries the
task again (``spark.task.maxFailures``): another machine, or a second request, may succeed. Exceptions are sent like results,
so that the caller gets them as from a function of its own process.

Executors need this package, and must see the files and the working folder of the driver at the same paths.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import traceback
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.errors import DamagedInput, DedupeError, EngineError, SettingError, UsageError
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.spark.joins import SparkJoins
from scrapy_dedupe.spark.session import reason_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterable, Iterator

Task = TypeVar("Task")
Result = TypeVar("Result")

_FINAL: Final = (DamagedInput, SettingError, UsageError)
_POLL_S: Final = 0.05
_DEFAULT_FAILURES: Final = 4
_LOCAL: Final = re.compile(r"local(?:\[[^,\]]*(?:,\s*(\d+)\s*)?\])?")
_FAILED: Final = re.compile(r"Task (\d+) in stage \S+ failed")


class SparkWorkers:
    """Runs tasks, and the joins of large plans, in the classic session *session* (not Spark Connect)."""

    least_join_bytes = 256 << 20
    """Fewer rows, such as a plan of about 3 million records, are joined by DuckDB in the driver."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._context = session.sparkContext

    @property
    def count(self) -> int:
        """How many tasks run at the same time."""
        return max(1, int(self._context.defaultParallelism))

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Generator[tuple[Task, Result]]:
        """Yield each task with its result, in the order of completion.

        Raises the exceptions of *function*, and EngineError if the system ends a process.
        """
        given = list(tasks)
        if not given:
            return
        job = _SparkJob(self._context, function, given)
        job.start()
        try:
            for index, result, error in job.outcomes():
                if error is not None:
                    raise error
                yield given[index], result
        finally:
            job.stop()

    @contextmanager
    def joins(self, scratch: Path) -> Iterator[SparkJoins]:
        """Joins with temporary files in *scratch*. Raises EngineError if a statement fails."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        joins = SparkJoins(self._session, scratch)
        try:
            yield joins
        except (Py4JError, PySparkException) as error:
            raise EngineError(
                f"The joins on Spark failed: {reason_of(error)}. Check the free space, also in Spark's temporary folders"
                f" (spark.local.dir), and that all machines see {scratch.parent}; then run the same command again to continue."
            ) from error
        finally:
            with suppress(Exception):
                joins.close()
            shutil.rmtree(scratch, ignore_errors=True)


class _SparkJob:
    def __init__(self, context: Any, function: Callable[[Any], Any], tasks: list[Any]) -> None:
        from pyspark import InheritableThread

        self._context = context
        self._tasks = tasks
        self._group = f"scrapy-dedupe-{uuid.uuid4().hex}"
        self._title = getattr(function, "func", function).__name__
        self._finished = context.accumulator([], _Lists())
        self._failure: BaseException | None = None
        sent, shared = _without_places(tasks)
        self._shared = context.broadcast(shared)
        self._rows = context.parallelize(list(enumerate(sent)), len(sent))
        self._run = partial(
            _run_tasks,
            function=function,
            folder=str(Path.cwd()),
            shared=self._shared,
            finished=self._finished,
            most_failures=_most_failures(context),
        )
        self._thread: threading.Thread = InheritableThread(target=self._submit, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def outcomes(self) -> Iterator[tuple[int, Any, Exception | None]]:
        """Number, result and exception of each task. Raises EngineError if Spark gives up."""
        taken = 0
        while True:
            # Only after the thread has ended, all results are there.
            is_over = not self._thread.is_alive()
            results = self._finished.value
            while taken < len(results):
                yield results[taken]
                taken += 1
            if is_over:
                break
            self._thread.join(_POLL_S)
        if self._failure is not None:
            raise self._explained(self._failure) from self._failure

    def stop(self) -> None:
        """Cancel the tasks that are left."""
        # The session may be lost.
        with suppress(Exception):
            if self._thread.is_alive():
                self._context.cancelJobGroup(self._group)
            self._thread.join()
            self._shared.unpersist()

    def _submit(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"scrapy-dedupe: {self._title}", interruptOnCancel=True)
            self._rows.foreachPartition(self._run)
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the caller
            self._failure = error

    def _explained(self, failure: BaseException) -> EngineError:
        text = str(failure)
        found = _FAILED.search(text)
        where = f" of {_name_of(self._tasks[int(found[1])])}" if found else ""
        return EngineError(
            f"The Spark task{where} failed ({self._title}): {reason_of(failure)}. Run the same command again to continue."
        )


class _Lists:
    """The accumulator parameter of lists that are joined."""

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value: list[Any], more: list[Any]) -> list[Any]:
        value.extend(more)
        return value


@dataclass(frozen=True, slots=True)
class _SharedPlaces:
    """Takes the place of the places of files in a task: all tasks share them, and they grow with the number of files."""

    number: int


def _without_places(tasks: list[Any]) -> tuple[list[Any], list[Places]]:
    """The tasks without the places of files, and these."""
    shared: list[Places] = []
    numbers: dict[int, int] = {}

    def number_of(places: Places) -> int:
        number = numbers.setdefault(id(places), len(shared))
        if number == len(shared):
            shared.append(places)
        return number

    return [
        _replaced(task, Places, lambda places: _SharedPlaces(number_of(places))) for task in tasks
    ], shared


def _with_places(task: Any, shared: list[Places]) -> Any:
    return _replaced(task, _SharedPlaces, lambda left: shared[left.number])


def _replaced(task: Any, kind: type[Any], by: Callable[[Any], object]) -> Any:
    """The task, with other values in the fields of a type."""
    if not is_dataclass(task) or isinstance(task, type):
        return task
    values = {field.name: getattr(task, field.name) for field in fields(task)}
    found = {name: by(value) for name, value in values.items() if isinstance(value, kind)}
    return replace(task, **found) if found else task


def _run_tasks(
    rows: Iterable[tuple[int, Any]],
    *,
    function: Callable[[Any], Any],
    folder: str,
    shared: Any,
    finished: Any,
    most_failures: int,
) -> None:
    """Run tasks in a Python process of an executor, in the working folder of the driver."""
    from pyspark import TaskContext

    context = TaskContext.get()
    is_last = context is None or context.attemptNumber() + 1 >= most_failures
    for index, sent in rows:
        task = _with_places(sent, shared.value)
        try:
            with _working_in(folder), whole_file.several_writers():
                finished.add([(index, function(task), None)])
        except Exception as error:
            if not is_last and not isinstance(error, _FINAL):
                raise
            if not isinstance(error, DedupeError):
                error.add_note(f"In the Spark task of {_name_of(task)}:\n{traceback.format_exc()}")
            finished.add([(index, None, error)])


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Make *folder* the working folder: names of files may be relative to it."""
    before = Path.cwd()
    try:
        os.chdir(folder)
    except OSError as error:
        raise EngineError(
            f"{folder}, the working folder, cannot be opened on {socket.gethostname()}: {error.strerror or error}. Run the"
            " command in a folder that all machines have."
        ) from error
    try:
        yield
    finally:
        os.chdir(before)


def _most_failures(context: Any) -> int:
    """How often Spark tries a task."""
    if local := _LOCAL.fullmatch(context.master):
        return int(local[1] or 1)
    return int(context.getConf().get("spark.task.maxFailures", str(_DEFAULT_FAILURES)))


def _name_of(task: Any) -> str:
    """The file of a task, for messages."""
    given = getattr(task, "given", task)
    for name in ("name", "file", "before", "after", "number"):
        if (value := getattr(given, name, None)) is not None:
            return str(value)
    return repr(task)[:100]
