"""Work that continues after an interruption: a state folder with proofs of finished parts.

All files are JSON, and are written when their part is complete:

``job.json``
    The options and input files with which the work was begun (`Job`): ``format`` is the version of these files, ``version`` that of this package,
    ``options`` and ``notes`` are those of the caller, and ``files`` has the `FileFacts` of the input files by name.
``NAME.json``
    The proof that a step is finished: ``value`` is its result; ``fault_count`` and ``faults`` are the faults that it found.
    The proof of a file task is named by the task, and also has ``key``, everything that the result depends on; ``outputs``,
    the sizes of the files that the task has written (null: it wrote none); and ``id``, a random number.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from scrapy_dedupe import __version__
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.tasks.faults import Fault, Faults
from scrapy_dedupe.tasks.jobs import run_watched
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, write_whole, writing
from scrapy_dedupe.warc.remote import RemoteFile, real_place

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from typing import Self, TypeAlias

    from scrapy_dedupe.tasks.jobs import Jobs
    from scrapy_dedupe.tasks.progress import Progress
    from scrapy_dedupe.warc.sources import ReadableFile

    Advance: TypeAlias = Callable[[int], None]
    """Is called with the number of bytes that have been read since the last call."""

Task = TypeVar("Task")

JOB: Final = "job.json"
_FORMAT: Final = 2


class FileFacts(NamedTuple):
    """The location of a file, and values that change if the file, or the container of a member, is replaced or changed.

    Of a remote file, only ``place`` is known, or also ``size_bytes`` and ``version``, a text of the server that changes with
    the file.
    """

    place: str
    size_bytes: int | None = None
    inode: int | None = None
    modified_ns: int | None = None
    version: str | None = None
    # The time at which the inode changed. A program that replaces a file can preserve its modification time, but not this.
    changed_ns: int | None = None

    def has_changed(self, now: FileFacts) -> bool:
        """Whether the file was changed or replaced. Other permissions, or another hard link, do not count."""
        return self[:-1] != now[:-1]


def facts_of(file: ReadableFile, *, asks_server: bool = False) -> FileFacts:
    """The facts about a file. *asks_server*: request the size and version of a remote file from its server.

    Raises ArchiveError if the file cannot be read.
    """
    here = file if isinstance(file, Path | RemoteFile) else getattr(file, "container", None)
    place = real_place(file)
    if asks_server and isinstance(here, RemoteFile):
        size_bytes, version = here.version()
        return FileFacts(place, size_bytes, version=version)
    if not isinstance(here, Path):
        return FileFacts(place)
    with reading(here):
        found = here.stat()
    return FileFacts(place, found.st_size, found.st_ino, found.st_mtime_ns, changed_ns=found.st_ctime_ns)


def size_of(file: ReadableFile) -> int:
    """The stored size of a file; 0 if it is unknown without reading the file. Raises ArchiveError."""
    if isinstance(file, Path):
        with reading(file):
            return file.stat().st_size
    return int(getattr(file, "size_bytes", 0))


@dataclass(frozen=True, slots=True)
class Job:
    """The options and input files with which a work folder was begun. All values can be stored as JSON.

    ``files`` are the facts about the input files by name, in order. ``notes`` may differ when the work is continued.
    """

    options: Mapping[str, Any]
    files: Mapping[str, FileFacts]
    notes: Mapping[str, Any] = field(default_factory=dict)

    def difference(self, now: Job) -> str | None:
        """The first difference to the job *now*, for a message; None if both have the same options, and files in the same places."""
        for name in {**self.options, **now.options}:
            if (before := self.options.get(name)) != now.options.get(name):
                return f"{name} was {_shown(before)}"
        for name in {**self.files, **now.files}:
            if name not in now.files or name not in self.files:
                return f"{name} was {'one of its files' if name in self.files else 'none of its files'}"
            if self.files[name].place != now.files[name].place:
                return f"{name} was another file"
        return None if list(self.files) == list(now.files) else "its files had another order"

    def changed_file(self, now: Mapping[str, FileFacts]) -> str | None:
        """The name of the first file in *now* that has been changed or replaced; None if there is none."""
        return next((name for name, facts in now.items() if self.files[name].has_changed(facts)), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step or task, and the faults that it found."""

    value: Any
    fault_count: int = 0
    faults: tuple[Fault, ...] = ()

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`; other values in *stored* are ignored."""
        return cls(stored["value"], stored["fault_count"], tuple(Fault(**it) for it in stored["faults"]))

    def to_json(self) -> dict[str, Any]:
        """The values as a proof has them."""
        return {
            "value": self.value,
            "fault_count": self.fault_count,
            "faults": [asdict(fault) for fault in self.faults],
        }


class FileTask(Protocol):
    """A task that reads an input file and writes files, in any process.

    ``name`` is the name of the file. ``path`` is the path of the proof without its suffix. ``outputs`` are the files that the
    task writes, each at once. ``depends_on`` is a JSON value: everything that the result depends on besides the file and the
    version of this package.
    """

    @property
    def name(self) -> str: ...

    @property
    def file(self) -> ReadableFile: ...

    @property
    def path(self) -> Path: ...

    @property
    def outputs(self) -> Sequence[Path]: ...

    @property
    def depends_on(self) -> object: ...


AnyFileTask = TypeVar("AnyFileTask", bound=FileTask)


@dataclass(frozen=True, slots=True)
class OutputTask:
    """A `FileTask` that writes the file ``target``. Its result depends only on the input file and the job by default."""

    name: str
    file: ReadableFile
    path: Path
    target: Path

    @property
    def outputs(self) -> tuple[Path]:
        return (self.target,)

    @property
    def depends_on(self) -> object:
        return None


class WorkFolder(StateFolder):
    """A state folder for one job. *restart* says how to start again, for messages.

    *command* is the command that does the job; its name is stored in the lock file. As a context manager, also raises
    ArchiveError if the folder has unfinished work of another command.
    """

    def __init__(self, path: Path, *, command: str = "", restart: str = "start again with --force") -> None:
        super().__init__(path)
        self._command = command
        self._restart = restart

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._take_over()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take_over(self) -> None:
        if not self._command:
            return
        lock = self.path / LOCK
        with writing(self.path):
            before = lock.read_text("utf-8", "replace")
            if before == self._command:
                return
            if before and any(path.name != LOCK for path in self.path.iterdir()):
                raise unfinished_work(self.path, before)
            lock.write_text(self._command, "utf-8")

    def task_path(self, name: str) -> Path:
        """The path, without suffix, for the files of the task for the file *name*."""
        return self.path / hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()

    def job(self) -> Job | None:
        """The job that the folder was begun with, if any. Raises ArchiveError if another version has begun it."""
        stored = self.read_json(JOB)
        if stored is None:
            return None
        version, file_format = stored.get("version"), stored.get("format")
        if version != __version__:
            raise self.other_work(f"it was started by version {version}, but this is {__version__}")
        if file_format != _FORMAT:
            raise self.other_work(
                f"its files have format {file_format}, but this state of version {version} uses format {_FORMAT}"
            )
        files = {name: FileFacts(*facts) for name, facts in stored["files"]}
        return Job(stored["options"], files, stored["notes"])

    def begin(self, job: Job) -> None:
        """Store the job. From now on, a later run can continue it."""
        stored = {
            "format": _FORMAT,
            "version": __version__,
            "options": job.options,
            "files": list(job.files.items()),
            "notes": job.notes,
        }
        self.write_json(JOB, stored)

    def begin_or_continue(
        self,
        options: Mapping[str, Any],
        files: Mapping[str, ReadableFile],
        notes: Mapping[str, Any],
        *,
        may_be_replaced: bool,
    ) -> SourceFiles:
        """Begin a job that reads *files*, or continue it; *options* and *notes* are those of `Job`.

        Raises ArchiveError if the folder has another job or, unless *files* *may_be_replaced* already, if one has changed.
        """
        now = Job(options, {name: facts_of(file, asks_server=True) for name, file in files.items()}, notes)
        before = self.job()
        if before is None:
            self.begin(now)
            return SourceFiles(self, now, files)
        if difference := before.difference(now):
            raise self.other_work(difference)
        sources = SourceFiles(self, before, files)
        if not may_be_replaced:
            sources.check_unchanged()
        return sources

    def step(self, name: str, run: Callable[[Faults], Any], faults: Faults) -> Any:
        """The result of *run*, a JSON value. It is called only if no earlier run has stored a result with this name.

        *run* gets a collection of its own for the faults that it finds. They are added to *faults*, also if an earlier run
        found them. Raises the exceptions of *run* and of `Faults.add`.
        """
        proof = f"{name}.json"
        stored = self.read_json(proof)
        if stored is None:
            own = Faults(keep_going=faults.keep_going)
            outcome = Outcome(run(own), own.count, tuple(own.first))
            self.write_json(proof, outcome.to_json())
        else:
            outcome = Outcome.from_json(stored)
        faults.replay(outcome.fault_count, outcome.faults)
        return outcome.value

    def run(
        self,
        function: Callable[[AnyFileTask, Faults, Advance], Any],
        tasks: Sequence[AnyFileTask],
        jobs: Jobs,
        watch: Progress,
        title: str,
        faults: Faults,
    ) -> list[Any]:
        """The results of *function*, JSON values, in the order of *tasks*; *title* is that of the progress.

        The function is called as by `run_tasks`, but only for tasks that no earlier run has finished with the same file,
        options and version. A task with a remote file is always run if the server does not report changes. Faults are added
        to *faults* as by `step`, in the order of the tasks. Raises ArchiveError if a file has changed while it was read.
        """
        before = {task.path: facts_of(task.file, asks_server=True) for task in tasks}
        sizes = {task.path: size_of(task.file) for task in tasks}
        outcomes: dict[Path, Outcome] = {}
        with part(watch, title, sum(sizes.values())):
            left = []
            for task in tasks:
                known = _known(task, before[task.path])
                if known is None:
                    with writing(task.path):
                        task.path.parent.mkdir(parents=True, exist_ok=True)
                        _proof(task).unlink(missing_ok=True)
                    left.append(task)
                else:
                    outcomes[task.path] = known
                    watch.advance(sizes[task.path])
            for task, outcome in run_tasks(
                function, left, jobs, watch, lambda task: sizes[task.path], keep_going=faults.keep_going
            ):
                if before[task.path].has_changed(facts_of(task.file, asks_server=True)):
                    raise self.changed(task.name)
                _store(task, before[task.path], outcome)
                outcomes[task.path] = outcome
        for task in tasks:
            faults.replay(outcomes[task.path].fault_count, outcomes[task.path].faults)
        return [outcomes[task.path].value for task in tasks]

    def changed(self, name: str) -> ArchiveError:
        """The error for the file *name*, which has changed since it was read."""
        return ArchiveError(f"{name} has changed since this work began. {self._restart_sentence}")

    def removed(self, path: Path) -> ArchiveError:
        """The error for the finished file *path*, which is gone."""
        return ArchiveError(f"{path} was removed before this work was finished. {self._restart_sentence}")

    def remove_at_end(self) -> None:
        """Remove the folder, even if a signal interrupts the removal once."""
        try:
            self.remove()
        except BaseException:
            shutil.rmtree(self._gone if self._gone.exists() else self.path, ignore_errors=True)
            raise

    @property
    def _restart_sentence(self) -> str:
        return f"{self._restart[0].upper()}{self._restart[1:]}."

    def other_work(self, difference: str) -> ArchiveError:
        """The error for a folder that another job has begun; *difference* says how it differs from this one."""
        return ArchiveError(
            f"{self.path} holds other unfinished work: {difference}. Repeat that command to finish it, or {self._restart}."
        )


def unfinished_work(path: Path, command: str) -> ArchiveError:
    """The error for a folder with unfinished work of another command, which must not be removed or mixed with new work."""
    return ArchiveError(
        f"{path} has unfinished work of {command}. Repeat that command to finish it, or remove {path} to discard it."
    )


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files that a job reads, by name. They must not change until the end of the job."""

    work: WorkFolder
    job: Job
    files: Mapping[str, ReadableFile]

    def check_unchanged(self, names: Iterable[str] | None = None) -> None:
        """Raise ArchiveError for the first of *names* (None: all) that has changed since the job began."""
        now = {
            name: facts_of(self.files[name], asks_server=True)
            for name in (self.files if names is None else names)
        }
        if (changed := self.job.changed_file(now)) is not None:
            raise self.work.changed(changed)


def run_tasks(
    function: Callable[[Task, Faults, Advance], Any],
    tasks: Sequence[Task],
    jobs: Jobs,
    watch: Progress,
    size_of: Callable[[Task], int],
    *,
    keep_going: bool,
) -> Generator[tuple[Task, Outcome]]:
    """Yield each task with its outcome, as `run_watched` does.

    The function gets the task, a collection for its faults, and a function to call with the number of bytes that it has read.
    """
    return run_watched(_WithFaults(function, keep_going), tasks, jobs, watch, size_of)


@dataclass(frozen=True, slots=True)
class _WithFaults(Generic[Task]):
    """A function of a task that returns the faults of the task with the result. ``func`` as in `functools.partial`."""

    func: Callable[[Task, Faults, Advance], Any]
    keep_going: bool

    def __call__(self, task: Task, advance: Advance = lambda size_bytes: None) -> Outcome:
        faults = Faults(keep_going=self.keep_going)
        value = self.func(task, faults, advance)
        return Outcome(value, faults.count, tuple(faults.first))


def _shown(value: Any) -> str:
    """The value of an option, for a message."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "empty"
    return "not given" if value is None or value is False else "given" if value is True else str(value)


def proof_id(task: FileTask) -> str:
    """The random number in the proof of a finished task. Another run of the task stores another number."""
    found: str = json.loads(_proof(task).read_bytes())["id"]
    return found


def _proof(task: FileTask) -> Path:
    return Path(f"{task.path}.json")


def _key(task: FileTask, facts: FileFacts) -> Any:
    key = {"name": task.name, "file": facts, "depends_on": task.depends_on, "version": __version__}
    # Convert tuples to lists, as in a key that is read back.
    return json.loads(json.dumps(key))


def _known(task: FileTask, facts: FileFacts) -> Outcome | None:
    """The outcome of an earlier run of a task; None if there is none, or if its file or options have changed."""
    if facts.inode is None and not facts.version:
        return None  # a change of the remote file could not be detected
    try:
        stored = json.loads(_proof(task).read_bytes())
        if stored["key"] == _key(task, facts) and stored["outputs"] == _output_sizes(task):
            return Outcome.from_json(stored)
    except (OSError, ValueError, KeyError, TypeError):
        # An unusable result is made again.
        return None
    return None


def _store(task: FileTask, facts: FileFacts, outcome: Outcome) -> None:
    proof = {"key": _key(task, facts), "outputs": _output_sizes(task), "id": uuid.uuid4().hex}
    write_whole(_proof(task), (json.dumps(proof | outcome.to_json(), indent=1) + "\n").encode())


def _output_sizes(task: FileTask) -> list[int | None]:
    # A task may find that there is nothing to write.
    return [path.stat().st_size if path.exists() else None for path in task.outputs]
