"""Runs the command line, or other work, again and again, and kills each run where it is told to.

`Runner` is for tests. It talks to a process, which this module is as well: it imports the package at its start, and forks
for each run. It reads a line of JSON for each run: the folder, the words of a command line or the name of a function, a
signal, the number of the step before which the run gets it (0: none; -1: at once), and the seconds after which it gets
SIGKILL (0: never). A step makes, renames, truncates or removes a file or folder, opens one for writing, or syncs one; the
interpreter tells of most of them before they happen (PEP 578). It answers each line with the exit code, the number of steps
so far, and what was written to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Runner:
    """Runs commands whose code is in *package*, and the functions in ``WORK`` of the module *work*, if any."""

    def __init__(self, log: Path, package: str, work: str = "") -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, package, work],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # A signal that ends a run of tests from outside, as a limit of time does, is meant for pytest alone,
                # which may go on for a while. The process ends with its stdin.
                start_new_session=True,
            )

    def run(
        self,
        folder: Path,
        work: str | Sequence[str],
        before: int = 0,
        *,
        number: int = signal.SIGKILL,
        after_s: float = 0.0,
    ) -> tuple[int, int, str]:
        """Exit code (the negative signal if it died), steps, stderr."""
        assert self.process.stdin
        assert self.process.stdout
        answer = ""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([str(folder), work, number, before, after_s]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            code = self.process.wait(240)
            raise RuntimeError(
                f"the runner ended with {code} and said: {self.log.read_text(errors='replace')}"
            )
        code, steps, errors = json.loads(answer)
        return code, steps, errors

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(240)
        except subprocess.TimeoutExpired:  # a test was ended in the middle of a run
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def chosen(count: int, most: int, seed: int) -> list[int]:
    """Numbers of steps; always the last ones, in which files get their final names."""
    numbers = list(range(1, count + 1))
    if count <= most:
        return numbers
    last = numbers[-most // 2 :]
    return sorted({*random.Random(seed).sample(numbers, most - len(last)), *last})


# The process


def serve(package: str, work: str) -> None:
    from scrapy_dedupe.commands.verbs import VERBS, verb_named

    works = import_module(work).WORK if work else {}
    for name, listed in VERBS.items():
        if listed.module is not None:
            verb_named(name)
    # Verbs import what is slow when they run.
    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        import_module(module.name)
    gc.freeze()
    # An interpreter that was started in the background may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for line in sys.stdin:
            folder, what, number, before, seconds = json.loads(line)
            # Here and not in the child, which may die before it does this. Earlier runs may still have the old files open.
            for name in ("steps", "out", "err"):
                Path(name).unlink(missing_ok=True)
                Path(name).touch()
            child = _forked()
            if not child:
                if before < 0:
                    os.kill(os.getpid(), number)
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for descriptor, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(name, os.O_WRONLY), descriptor)
                _run(folder, what, works, number, before)
            code = os.waitstatus_to_exitcode(_ended(child, seconds))
            # The processes of --jobs end by themselves, but a moment later, and could disturb the next run.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            log, errors = Path("steps").read_text(), Path("err").read_text(errors="replace")
            print(json.dumps([code, int(log or 0), errors]), flush=True)


def _run(
    folder: str, what: str | list[str], works: Mapping[str, Callable[[Path], None]], number: int, before: int
) -> NoReturn:
    # Not at the top, since the processes that --jobs starts import this module once more.
    from scrapy_dedupe.commands.console import main

    steps = 0
    log = os.open("steps", os.O_WRONLY)

    def step() -> None:
        nonlocal steps
        steps += 1
        os.pwrite(log, b"%d" % steps, 0)
        if steps == before:
            os.kill(os.getpid(), number)

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
        if isinstance(what, str):
            works[what](Path(folder))
        else:
            code = main(what)
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forked() -> int:
    """Fork, if need be after a while: a loaded machine may have no process or memory left at the moment."""
    for pause_s in (0.1, 0.5, 2.0, 5.0):
        try:
            return os.fork()
        except OSError:
            time.sleep(pause_s)
    return os.fork()


def _ended(child: int, seconds: float) -> int:
    import psutil

    end = time.monotonic() + seconds
    while seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= end:
            # Stopped first, so that it starts no others while they are counted. They end by themselves, a moment later.
            os.kill(child, signal.SIGSTOP)
            started = psutil.Process(child).children(recursive=True)
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            _, alive = psutil.wait_procs(started, timeout=240)
            assert not alive
            return status
        time.sleep(0.002)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    serve(*sys.argv[1:])
