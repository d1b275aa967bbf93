"""Runs the command line again and again, and dies or is stopped where it is told to.

Reads a line of JSON for each run: the folder, the words, a signal, the number of the step before which the process gets
it, 0 for none, and the seconds after which it gets SIGKILL, 0 for never. A step is whatever makes, renames, truncates or
removes a file or folder, or opens one for writing; the interpreter tells of each before it happens (PEP 578). Answers
each line with the exit code, the number of steps so far, and what was written to stderr. Each run is a fork of this
process, which has imported everything already.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run(folder: str, words: list[str], number: int, before: int) -> NoReturn:
    """In a process of its own."""
    # Not at the top, since the processes that --jobs starts import this module once more.
    from scrapy_dedupe.commands.console import main

    steps = 0
    log = os.open("steps", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps
        path = args[0] if args else None
        if isinstance(path, str) and path.startswith("/dev/"):
            return
        if event in CHANGES or (event == "open" and isinstance(path, str) and args[2] & WRITING):
            steps += 1
            os.pwrite(log, b"%d" % steps, 0)
            if steps == before:
                os.kill(os.getpid(), number)

    os.chdir(folder)
    code = 1
    try:
        sys.addaudithook(count)
        code = main(words)
    except SystemExit as stop:
        code = int(str(stop.code or 0))
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    import scrapy_dedupe.offline
    from scrapy_dedupe.commands.verbs import VERBS, verb_named

    for name, listed in VERBS.items():
        if listed.module is not None:
            verb_named(name)

    # Verbs import what is slow when they run.
    for module in pkgutil.walk_packages(scrapy_dedupe.offline.__path__, "scrapy_dedupe.offline."):
        import_module(module.name)
    gc.freeze()
    # A kill loses nothing that was written, synced or not.
    os.fsync = lambda fd: None
    # An interpreter that was started in the background may have been told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for line in sys.stdin:
            folder, words, number, before, seconds = json.loads(line)
            child = os.fork()
            if not child:
                for descriptor, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
                run(folder, words, number, before)
            code = os.waitstatus_to_exitcode(_ended(child, seconds))
            log, errors = Path("steps").read_text(), Path("err").read_text()
            print(json.dumps([code, int(log or 0), errors]), flush=True)


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
        time.sleep(0.005)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    serve()
