"""Calls of Lua scripts on one connection, with low overhead. :mod:`.cluster` has those on a cluster.

A call through redis-py's pool, retries and encoding of arguments takes two to three times as long as the round trip
itself. This module builds the command in one step and uses one connection, which it takes from the client's pool and
keeps.
"""

from __future__ import annotations

import hashlib
import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from .redis_faults import redis_faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

ScriptCall: TypeAlias = "tuple[Script, bytes, Sequence[bytes]]"
"""A script, its key and its arguments."""


def script_text(name: str) -> bytes:
    """The text of ``scripts/NAME.lua``."""
    return files("scrapy_dedupe.stores").joinpath(f"scripts/{name}.lua").read_bytes()


class Script:
    """The script ``scripts/NAME.lua``, preceded by the code *before*, with one key.

    ``ARGV[1]`` is ``"1"`` if the server may have run this call already because the connection broke after the call
    was sent, otherwise ``"0"``.
    """

    def __init__(self, name: str, before: bytes = b"") -> None:
        self.text = before + script_text(name)
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


class PreparedCall:
    """A script with its key and first arguments, prepared for many calls with two more arguments each."""

    __slots__ = ("arguments", "key", "packed", "script")

    def __init__(self, script: Script, key: bytes, *arguments: bytes) -> None:
        self.script = script
        self.key = key
        self.arguments = arguments
        whole = packed_command(b"EVALSHA", script.sha, b"1", key, b"0", *arguments, b"", b"")
        self.packed = whole[: -2 * len(b"$0\r\n\r\n")]


class ScriptCaller:
    """Runs scripts for ``redis``. Error messages contain ``url``. Thread-safe.

    A broken connection is reopened once, as by :func:`~scrapy_dedupe.stores.redis.connect`; a call that times out is
    not retried. Answers are bytes, numbers and lists of them.
    """

    def __init__(self, redis: Redis, url: str) -> None:
        self._redis = redis
        self._url = url
        self._lock = threading.Lock()
        self._client: Redis | None = None
        self._connection: Any = None

    def run(self, script: Script, key: bytes, *arguments: bytes) -> Any:
        """Run the script and return its answer. Raises the two store errors."""
        command = packed_command(b"EVALSHA", script.sha, b"1", key, b"0", *arguments)
        return self._run(command, script, key, arguments)

    def run_prepared(self, call: PreparedCall, one: bytes, two: bytes) -> Any:
        """Like :meth:`run`, with two arguments after the prepared ones."""
        packed = b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (call.packed, len(one), one, len(two), two)
        return self._run(packed, call.script, call.key, (*call.arguments, one, two))

    def _run(self, packed: bytes, script: Script, key: bytes, arguments: tuple[bytes, ...]) -> Any:
        try:
            with self._lock:
                if self._connection is None:
                    self._connect()
                try:
                    return self._send(packed, script, key, arguments)
                except NoScriptError:
                    # The script was not run: first call, SCRIPT FLUSH, or another server with this name.
                    packed = packed_command(b"EVAL", script.text, b"1", key, b"0", *arguments)
                    return self._send(packed, script, key, arguments)
        except (RedisError, OSError):
            # A context manager around each call would take as long as computing a fingerprint.
            with redis_faults(self._url):
                raise

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The answers of several calls."""
        return [self.run(script, key, *arguments) for script, key, arguments in calls]

    def close(self) -> None:
        """Return the connection to the pool. The next call takes a new one."""
        with self._lock, redis_faults(self._url):
            if self._client is not None:
                self._client.close()
            self._client = self._connection = None

    def _connect(self) -> None:
        self._client = self._redis.client()
        self._connection = self._client.connection

    def _send(self, packed: bytes, script: Script, key: bytes, arguments: tuple[bytes, ...]) -> Any:
        connection = self._connection
        try:
            connection.send_packed_command([packed])
            return connection.read_response(disable_decoding=True)
        except RedisConnectionError:
            connection.disconnect()
        # Send the text of the script: the server may have been restarted since it ran the call.
        connection.send_packed_command([packed_command(b"EVAL", script.text, b"1", key, b"1", *arguments)])
        return connection.read_response(disable_decoding=True)


def packed_command(*arguments: bytes) -> bytes:
    r"""A command in the protocol of Redis (RESP): an array of strings.

    >>> packed_command(b"GET", b"name")
    b'*2\r\n$3\r\nGET\r\n$4\r\nname\r\n'
    """
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)
