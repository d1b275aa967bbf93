"""Does pieces of work on a passage index again and again, and dies where it is told to.

Reads a line of JSON for each piece: the folder, the name of the work in `WORK` or the words of a command line, the
number of the step before which the process gets SIGKILL, 0 for none and -1 for at once, and the seconds after which it
gets it, 0 for never. A step is whatever makes, renames, truncates or removes a file or folder, or opens one for writing, of which the
interpreter tells before it happens (PEP 578), and every sync. Answers each line with the exit code, the number of steps
so far, and what was written to stderr. Each piece is a fork of this process, which has imported everything already. It
has a process group of its own, which ends with it: the processes of --jobs would go on writing where the next piece works.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WORDS = [f"w{number}" for number in range(400)]
SHARED = " ".join(f"s{number}" for number in range(30))


def text(number: int, version: int = 0) -> str:
    """A text; every third one has a passage in the middle, and every fifth one is a copy of the one before."""
    rng = random.Random(f"{number - (number % 5 == 4)} {version}")
    words = rng.choices(WORDS, k=120)
    return " ".join(words[:60]) + (f" {SHARED} " if number % 3 == 0 else " ") + " ".join(words[60:])


def documents(first: int, count: int, version: int = 0) -> Iterator[tuple[str, str]]:
    for number in range(first, first + count):
        yield f"https://kill.example/{number}", text(number, version)


def index(folder: Path) -> None:
    _add(folder, list(documents(0, 24)))


def append(folder: Path) -> None:
    """New documents, and new texts for old ones."""
    _add(folder, [*documents(24, 6), *documents(3, 4, version=1)])


def append_singly(folder: Path) -> None:
    """So many small segments that some are merged on the way."""
    for document in documents(100, 14):
        _add(folder, [document])


def delete(folder: Path) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        opened.delete_many([doc_id for doc_id, _ in documents(2, 7)])


def compact(folder: Path) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        opened.compact()


def _add(folder: Path, pairs: list[tuple[str, str]]) -> None:
    from scrapy_dedupe.passages import PassageIndex

    with PassageIndex(folder / "index") as opened:
        for doc_id, written in pairs:
            opened.add(doc_id, written)


WORK: dict[str, Callable[[Path], None]] = {
    work.__name__: work for work in (index, append, append_singly, delete, compact)
}


def run(folder: str, work: str | list[str], before: int) -> NoReturn:
    """In a process of its own."""
    # Not at the top, since the processes that --jobs starts import this module once more.
    from scrapy_dedupe.commands.console import main

    steps = 0
    log = os.open("steps", os.O_WRONLY)

    def step() -> None:
        nonlocal steps
        steps += 1
        os.pwrite(log, b"%d" % steps, 0)
        if steps == before:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(event: str, args: tuple[Any, ...]) -> None:
        path = args[0] if args else None
        if isinstance(path, str) and path.startswith("/dev/"):
            return
        if event in CHANGES or (event == "open" and isinstance(path, str) and args[2] & WRITING):
            step()

    def sync(fd: int) -> None:
        # A kill loses nothing that was written, synced or not, so there is no need to wait for the disk.
        step()

    os.chdir(folder)
    code = 0
    try:
        os.fsync = sync
        sys.addaudithook(count)
        if isinstance(work, str):
            WORK[work](Path(folder))
        else:
            code = main(work)
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    import scrapy_dedupe.passages
    from scrapy_dedupe.commands.verbs import VERBS, verb_named

    for name, listed in VERBS.items():
        if listed.module is not None:
            verb_named(name)
    for module in pkgutil.walk_packages(scrapy_dedupe.passages.__path__, "scrapy_dedupe.passages."):
        import_module(module.name)
    gc.freeze()
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for line in sys.stdin:
            folder, work, before, seconds = json.loads(line)
            # Here and not in the child, which may die before it comes to it. What an earlier one has still open is gone.
            for name in ("steps", "out", "err"):
                Path(name).unlink(missing_ok=True)
                Path(name).touch()
            child = _forked()
            if not child:
                if before < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for descriptor, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(name, os.O_WRONLY), descriptor)
                run(folder, work, before)
            code = os.waitstatus_to_exitcode(_ended(child, seconds))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            log, errors = Path("steps").read_text(), Path("err").read_text(errors="replace")
            print(json.dumps([code, int(log or 0), errors]), flush=True)


def _forked() -> int:
    """Fork, if need be after a while: a loaded machine may have no process or memory left at the moment."""
    for pause_s in (0.1, 0.5, 2.0, 5.0):
        try:
            return os.fork()
        except OSError:
            time.sleep(pause_s)
    return os.fork()


def _ended(child: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(0.002)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    serve()
