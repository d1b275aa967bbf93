"""Tasks for the Python processes of Spark, which import this module."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.implementations.memory import MemoryFileSystem

from scrapy_dedupe.errors import ArchiveError, DamagedInput
from scrapy_dedupe.files import whole_file
from scrapy_dedupe.offline.file_rewriting import rewrite_file
from scrapy_dedupe.offline.plan import size_of
from scrapy_dedupe.offline.row_scan import make_rows
from scrapy_dedupe.spark.uploads import upload_file
from scrapy_dedupe.verification.side_by_side import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from scrapy_dedupe.offline.places import Places


@dataclass(frozen=True)
class Task:
    name: str
    folder: Path
    places: Places | None = None


def double(number: int) -> int:
    return 2 * number


def killed(task: Task, *others: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_first(task: Task) -> str:
    """Leave half of a file, and be killed; the second time, write all of it."""
    target = task.folder / task.name
    with whole_file.replacing(target, suffix=".new") as file:
        file.write(b"first half,")
        file.flush()
        try:
            (task.folder / f"{task.name}.tried").touch(exist_ok=False)
        except FileExistsError:
            file.write(b" second half")
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return task.name


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is met, at most four minutes."""
    until = time.monotonic() + 240
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


def written_together(task: Task) -> int:
    """Write a file while another process writes it, too."""
    begun = task.folder.parent / "begun"
    begun.mkdir(exist_ok=True)
    (begun / str(os.getpid())).touch()
    wait_for(lambda: len(list(begun.iterdir())) > 1)
    return written_slowly(task)


def written_slowly(task: Task) -> int:
    """Write a file in steps."""
    with whole_file.replacing(task.folder / task.name, suffix=".new") as file:
        for number in range(20):
            file.write(b"%d\n" % number)
            file.flush()
            time.sleep(0.01)
    return os.getpid()


def unavailable_at_first(task: Task) -> str:
    try:
        (task.folder / f"{task.name}.tried").touch(exist_ok=False)
    except FileExistsError:
        return "available"
    raise ArchiveError(f"{task.name} is not available.")


def unavailable(task: Task) -> None:
    with (task.folder / "tries").open("a") as file:
        file.write("x")
    raise ArchiveError(f"{task.name} is not available.")


def never_rewritten(task: Any, faults: Any, advance: Any) -> None:
    raise ArchiveError(f"{task.path} cannot be written: no space is left.")


def damaged_or_slow(task: Task) -> None:
    if task.name == "damaged":
        with (task.folder / "tries").open("a") as file:
            file.write("x")
        raise DamagedInput("a.warc.gz, offset 12: damaged.")
    wait_for((task.folder / "job ended").exists)
    (task.folder / "slow").touch()


def identity_of_places(task: Task) -> tuple[int, int]:
    """The process, and the address of the places."""
    return os.getpid(), id(task.places)


def broken(task: Task) -> None:
    raise ZeroDivisionError("a bug")


def rewritten_on_a_full_disk(task: Any, *others: Any) -> Any:
    """No file may become larger than a part of the new ones."""
    with most_bytes(2_000):
        return rewrite_file(task, *others)


@contextmanager
def most_bytes(count: int, process: int = 0) -> Iterator[None]:
    """In the block, no file of *process* (0: this one) may become larger than *count* bytes."""
    soft, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, (soft, hard))


def full_disk_of(session: Any) -> AbstractContextManager[None]:
    """In the block, the Java process of a local session cannot write files of some size."""
    # The first task starts a Python process, which keeps the limit with which it was started.
    session.sparkContext.parallelize([0]).map(double).collect()
    # Java unpacks these libraries into files, and does not try again.
    session.sparkContext._jvm.com.github.luben.zstd.util.Native.load()
    session.sparkContext._jvm.org.xerial.snappy.Snappy.getNativeLibraryVersion()
    return most_bytes(1_000, session.sparkContext._gateway.proc.pid)


def rows_after_a_kill(task: Any, *others: Any) -> Any:
    killed_once("rows")
    return make_rows(task, *others)


def rewritten_after_a_kill(task: Any, *others: Any) -> Any:
    killed_once("rewrite")
    return rewrite_file(task, *others)


def compared_after_a_kill(task: Any) -> Any:
    killed_once("compare")
    return compare(task)


def size_after_a_kill(folder: Path, row: Any) -> Any:
    killed_once(str(folder / "size"))
    return size_of(row)


def killed_once(name: str) -> None:
    """Tasks run in the working folder of the test."""
    try:
        Path(f"{name}.killed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def rows_on_a_full_disk(task: Any, *others: Any) -> Any:
    with most_bytes(2_000):
        return make_rows(task, *others)


def uploaded_except_b(task: Any) -> str:
    if task.name.startswith("b"):
        wait_for((task.source.parents[1] / "uploaded" / "0.json").exists)
        raise ArchiveError(f"{task.name} cannot be written: the connection was lost.")
    return upload_file(task)


class ForgetfulFiles(MemoryFileSystem):
    """A server that loses the last byte of each file."""

    protocol = "forgetful"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]

    def put_file(self, source: str, target: str, **options: Any) -> None:
        with open(source, "rb") as file:  # noqa: PTH123 - as in fsspec
            self.pipe_file(target, file.read()[:-1])
