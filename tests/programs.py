"""Programs in processes of their own, which start in a few milliseconds: forks of :mod:`preloaded`.

The first word is ``scrapy``, ``scrapy-dedupe`` or ``python``; after ``python`` come ``-m``, ``-c`` or a file. Tests of
imports, of the start of the interpreter and of its encodings need :mod:`subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import crawling

TESTS = Path(__file__).parent


class Server:
    """The process that forks."""

    def __init__(self, environment: dict[str, str]) -> None:
        # The path of a socket must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="tests-")
        self.socket = Path(self._folder.name) / "s"
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "preloaded.py", self.socket],
            env={**environment, "PYTHONUTF8": "1", "REACTORLESS": "1" if crawling.reactorless else ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


@functools.cache
def server() -> Server:
    """The server of this process; it ends with it."""
    paths = [str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = Server({**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    atexit.register(started.close)
    return started


class _Output(threading.Thread):
    """Reads what a program writes to a pipe: a limit of its file sizes does not apply there."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._reader, self.writer = os.pipe()
        self.text = ""
        self.start()

    def run(self) -> None:
        with os.fdopen(self._reader, "rb") as file:
            self.text = file.read().decode()


class Program:
    """A program that runs; what it writes is kept for `communicate`, unless *stdout* or *stderr* is given."""

    def __init__(
        self,
        *words: Any,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | IO[bytes] = b"",
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.args = list(map(str, words))
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(server().socket))
        environment = {**os.environ, **(env or {})}
        asked = {"words": self.args, "folder": str(cwd or Path.cwd()), "environment": environment}
        data = json.dumps(asked).encode()
        self._outputs = _Output(), _Output()
        out, err = (output.writer for output in self._outputs)
        with tempfile.TemporaryFile() as file:
            if isinstance(stdin, bytes):
                file.write(stdin)
                file.seek(0)
                stdin = file
            numbers = [stdin.fileno(), out if stdout is None else stdout, err if stderr is None else stderr]
            self._connection.sendall(len(data).to_bytes(4, "big"))
            sent = socket.send_fds(self._connection, [data], numbers)
            self._connection.sendall(data[sent:])
        os.close(out)
        os.close(err)
        self.pid = int.from_bytes(self._connection.recv(4, socket.MSG_WAITALL), "big")

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def wait(self, timeout: float = 240) -> int:
        """The exit code, at its end; a negative number is the signal that ended it."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            answer = self._connection.recv(4, socket.MSG_WAITALL)
            assert answer, "the server has ended"
            self.returncode = int.from_bytes(answer, "big", signed=True)
            self._connection.close()
            for output in self._outputs:
                output.join(timeout or None)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs, and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """What it wrote to stdout and stderr, at its end."""
        self.wait(timeout)
        out, err = self._outputs
        return out.text, err.text


def run_program(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    program = Program(*words, **options)
    out, err = program.communicate()
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)
