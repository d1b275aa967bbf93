"""Deduplication to a URL, such as ``s3://bucket/folder``.

The new files are first written to a folder that all machines see, and verified there. Then each file is uploaded as a whole
by one task, read back and compared, and recorded. Object stores (S3, GCS, Azure) show a file only when it is complete, so
no program sees a partial file there. On other servers, such as SFTP, a file is visible while it is uploaded. In both cases,
``.dedupe/report.json`` is uploaded last: if it exists, all files are complete.

Until all files are uploaded, the folder for the work has:

``job.json``
    the URL, the options and the inputs (`tasks.work`); it is uploaded first, so that a URL that cannot be written is found
    before the work
``output/``
    the new files, as `offline.steps` writes them
``uploaded/``
    exists if the URL has been checked, and ``job.json`` uploaded
``uploaded/N.json``
    the size and the BLAKE2b-256 of file N, which was uploaded and read back
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from scrapy_dedupe.errors import ArchiveError, DedupeError, SettingError, UsageError
from scrapy_dedupe.offline.steps import MANIFEST, REPORT, Deduped, refuse_files_in, run_steps
from scrapy_dedupe.tasks.inputs import STATE_FOLDER
from scrapy_dedupe.tasks.jobs import run_jobs
from scrapy_dedupe.tasks.progress import part
from scrapy_dedupe.tasks.state import LOCK, StateFolder, reading, writing
from scrapy_dedupe.tasks.work import JOB, WorkFolder
from scrapy_dedupe.warc.remote import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scrapy_dedupe.offline.steps import StepOptions
    from scrapy_dedupe.tasks.faults import Faults
    from scrapy_dedupe.tasks.inputs import Input
    from scrapy_dedupe.tasks.progress import Progress

_OUTPUT: Final = "output"
_UPLOADED: Final = "uploaded"
_PIECE_BYTES: Final = 1 << 20


def dedupe_to_url(
    inputs: Sequence[Input], url: str, options: StepOptions, *, faults: Faults, watch: Progress
) -> Deduped:
    """All steps, as `steps.run_steps` does; the new files are uploaded to the folder *url*.

    ``options.work`` is a folder for the unfinished work, with space for all new files. It is removed at the end. The same
    call continues after a kill. If the verification finds a difference, nothing is uploaded.

    Raises the exceptions of `steps.run_steps`, UsageError without ``options.work``, ArchiveError if the URL has other
    files or cannot be written, or if an uploaded file differs.
    """
    if options.work is None:
        raise UsageError(
            f"The new files are written and verified in a folder before they are uploaded to {shown(url)}. Name a folder"
            " that all machines see with --work."
        )
    refuse_files_in(options.work)
    with WorkFolder(options.work, command="dedupe") as state:
        target = Target(url)
        _begin(state, target, inputs, options)
        output = state.path / _OUTPUT
        finished = StateFolder(output / STATE_FOLDER)
        report = None if (finished.path / JOB).exists() else finished.read_json(REPORT)
        if options.dry_run:
            if report is not None:
                raise ArchiveError(
                    f"{state.path} holds unfinished work with new files that are already verified. Run the command without"
                    " --dry-run to upload them, or name another folder with --work."
                )
            # The real run continues from this state.
            tried = replace(options, work=finished.path, force=False)
            return replace(run_steps(inputs, output, tried, faults=faults, watch=watch), output=shown(url))
        if report is None:
            done = run_steps(
                inputs, output, replace(options, work=None, force=False), faults=faults, watch=watch
            )
            if done.kept_in is not None:
                return replace(done, output=shown(url))
        else:
            done = Deduped.from_json(report)
        names = [Path(path).relative_to(done.output).as_posix() for path in done.paths]
        _upload(state, output, target, names, options, watch)
        done = replace(
            done,
            output=shown(url),
            paths=tuple(target.url_of(name) for name in names),
            state=shown(target.url_of(STATE_FOLDER)),
        )
        for name, source in ((MANIFEST, finished.path / MANIFEST), (REPORT, state.path / REPORT)):
            if name == REPORT:
                state.write_json(REPORT, asdict(done))
            upload_file(UploadTask(0, source, target, f"{STATE_FOLDER}/{name}"))
        state.remove()
    return done


def _begin(state: WorkFolder, target: Target, inputs: Sequence[Input], options: StepOptions) -> None:
    """Start new work, or check that the unfinished one has the same URL, inputs and options.

    The URL is checked before the first run that is not a dry run; after this, the folder ``uploaded`` exists.
    """
    if options.force:
        state.clear(keep=frozenset({LOCK}), last=(JOB,))
    is_new = state.job() is None
    files = {given.name: given.file for given in inputs}
    state.begin_or_continue({"-o": shown(target.url), **options.to_json()}, files, {}, may_be_replaced=False)
    checked = state.path / _UPLOADED
    if options.dry_run or checked.exists():
        return
    try:
        if not options.force:
            target.refuse_files()
        upload_file(UploadTask(0, state.path / JOB, target, f"{STATE_FOLDER}/{JOB}"))
        with writing(checked):
            checked.mkdir()
    except DedupeError:
        if is_new:  # nothing was done, so leave no state
            state.remove()
        raise


def _upload(
    state: StateFolder,
    output: Path,
    target: Target,
    names: Sequence[str],
    options: StepOptions,
    watch: Progress,
) -> None:
    tasks = [UploadTask(number, output / name, target, name) for number, name in enumerate(names)]
    with reading(output):
        sizes = [task.source.stat().st_size for task in tasks]
    with part(watch, "uploading", sum(sizes)):
        left = []
        for task, size in zip(tasks, sizes, strict=True):
            if state.read_json(f"{_UPLOADED}/{task.number}.json") is None:
                left.append(task)
            else:
                watch.advance(size)
        for task, digest in run_jobs(upload_file, left, options.jobs):
            size = sizes[task.number]
            state.write_json(f"{_UPLOADED}/{task.number}.json", {"size": size, "blake2b": digest})
            watch.advance(size)


@dataclass(frozen=True, slots=True)
class Target:
    """The folder at a URL."""

    url: str

    def url_of(self, name: str) -> str:
        """The URL of a file in the folder."""
        return f"{self.url.rstrip('/')}/{name}"

    def opened(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path of the folder in it."""
        with _driver_errors(self.url):
            import fsspec

            system, path = fsspec.core.url_to_fs(self.url)
            return system, path.rstrip("/")

    def refuse_files(self) -> None:
        """Raise ArchiveError if the folder has files, except those of an unfinished run."""
        system, folder = self.opened()
        with _driver_errors(self.url):
            system.invalidate_cache()
            try:
                found = sorted(
                    path.rstrip("/").rpartition("/")[2] for path in system.ls(folder, detail=False)
                )
            except FileNotFoundError:
                return
            is_finished = system.exists(f"{folder}/{STATE_FOLDER}/{REPORT}")
        others = [name for name in found if name != STATE_FOLDER]
        if others or is_finished:
            raise ArchiveError(
                f"{shown(self.url)} is not empty: it has {others[0] if others else STATE_FOLDER}. Choose another folder, or"
                " start again with --force, which replaces files of the same names."
            )


@dataclass(frozen=True, slots=True)
class UploadTask:
    """A file to upload, and its name in the target."""

    number: int
    source: Path
    target: Target
    name: str


def upload_file(task: UploadTask) -> str:
    """Upload a file, read it back, and return the BLAKE2b-256 of both. Raises ArchiveError if the two differ."""
    url = task.target.url_of(task.name)
    with reading(task.source), task.source.open("rb") as file:
        expected = _digest(file)
    system, folder = task.target.opened()
    with _driver_errors(url):
        path = f"{folder}/{task.name}"
        system.put_file(str(task.source), path)
        with system.open(path, "rb") as file:
            found = _digest(file)
    if found != expected:
        raise ArchiveError(
            f"{shown(url)} differs from {task.source} after the upload. Run the same command again to upload it again."
        )
    return expected


def _digest(file: BinaryIO) -> str:
    hasher = blake2b(digest_size=32)
    while piece := file.read(_PIECE_BYTES):
        hasher.update(piece)
    return hasher.hexdigest()


@contextmanager
def _driver_errors(url: str) -> Iterator[None]:
    """Turn the exceptions of fsspec and of a driver into SettingError or ArchiveError."""
    try:
        yield
    except (ArchiveError, SettingError):
        raise
    except ImportError as error:
        raise SettingError(
            f"{shown(url)} cannot be written because a package is missing: {error}. Run"
            ' pip install "scrapy-dedupe[storage]", and install the driver of the protocol.'
        ) from error
    except Exception as error:
        # Each driver has its own exceptions.
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ArchiveError(
            f"{shown(url)} cannot be written: {shown(reason)}. Check the network, the credentials and the permissions."
        ) from error
