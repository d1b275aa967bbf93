"""Runs the command line again and again, and dies where it is told to.

Reads a line of JSON for each run: the folder, the words, and the number of the step before which the process dies by
SIGKILL, 0 for none. A step is whatever makes, renames, truncates or removes a file or folder, or opens one for writing;
the interpreter tells of each before it happens (PEP 578). Answers each line with the exit code, the number of steps so
far, and what was written to stderr. Each run is a fork of this process, which has imported everything already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

from scrapy_dedupe.commands.console import main
from scrapy_dedupe.commands.verbs import VERBS, verb_named

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run(folder: str, words: list[str], dies_before: int) -> NoReturn:
    """In a process of its own."""
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
            if steps == dies_before:
                os.kill(os.getpid(), signal.SIGKILL)

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
    for name in VERBS:
        verb_named(name)
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for line in sys.stdin:
            folder, words, dies_before = json.loads(line)
            child = os.fork()
            if not child:
                for number, name in ((1, "out"), (2, "err")):
                    os.dup2(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
                run(folder, words, dies_before)
            _, status = os.waitpid(child, 0)
            log, errors = Path("steps").read_text(), Path("err").read_text()
            print(json.dumps([os.waitstatus_to_exitcode(status), int(log or 0), errors]), flush=True)


if __name__ == "__main__":
    serve()
