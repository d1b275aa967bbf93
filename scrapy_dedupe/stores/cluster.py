"""Redis Cluster: several master servers, each with a part of the keys.

A cluster has 16,384 slots. The part of a key in braces, its hash tag, decides the slot of the key, and each slot is on
one master. A script can only use keys of one slot. Therefore the shared stores divide their data into :data:`SHARDS`
shards in a cluster, each with its own hash tag, so that the data spreads over up to that many masters. On a single
server there is one shard.

While a slot is being moved, some of its keys are on the old master and some on the new one. A script that runs then
would take the others for missing, and create them. Therefore each call names a key of the slot that never exists as its
second key. As long as the slot is moving, servers answer such calls with ``TRYAGAIN`` instead of running the script.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from .redis_faults import redis_faults
from .scripting import ScriptCaller, packed_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .scripting import PreparedCall, Script, ScriptCall

SHARDS = 16

_REDIRECTIONS = (AskError, MovedError, TryAgainError, ClusterDownError, NoScriptError)


def hash_tags(client: redis.Redis | redis.RedisCluster, name: str) -> list[str]:
    """The hash tags of the shards of *name*, without braces: only *name* on a single server.

    The slots of the tags are spread evenly over all slots, so that masters with equal ranges of slots get about the same
    number of shards.
    """
    if not isinstance(client, redis.RedisCluster):
        return [name]
    width = REDIS_CLUSTER_HASH_SLOTS // SHARDS
    tags: dict[int, str] = {}
    for number in count():
        tag = f"{name}:{number}"
        place, offset = divmod(key_slot(tag.encode()), width)
        # In the middle of each sixteenth, so that each of three masters has five or six shards.
        if abs(offset - width // 2) < width // 8:
            tags.setdefault(place, tag)
        if len(tags) == SHARDS:
            break
    return [tags[place] for place in range(SHARDS)]


def script_caller(client: redis.Redis | redis.RedisCluster, url: str) -> ScriptCaller | ClusterScriptCaller:
    """The object that runs scripts for *client*; error messages contain *url*."""
    if isinstance(client, redis.RedisCluster):
        return ClusterScriptCaller(client, url)
    return ScriptCaller(client, url)


class ClusterScriptCaller:
    """A :class:`~.scripting.ScriptCaller` for a cluster. Thread-safe.

    The calls for one master are sent together, and the calls for all masters before the first answer is read. If a slot
    has moved or a connection broke, the call is repeated by redis-py's cluster client. This client may send a call more
    than once, so each of its calls counts as a repetition.
    """

    def __init__(self, cluster: redis.RedisCluster, url: str) -> None:
        self._cluster = cluster
        self._url = url
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._is_outdated = False

    def run(self, script: Script, key: bytes, *arguments: bytes) -> Any:
        """Run the script and return its answer. Raises the two store errors."""
        return self.run_many([(script, key, arguments)])[0]

    def run_prepared(self, call: PreparedCall, one: bytes, two: bytes) -> Any:
        """Like :meth:`run`, with two arguments after the prepared ones."""
        return self.run(call.script, call.key, *call.arguments, one, two)

    def run_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The answers of several calls, which take one round trip for each master."""
        with self._lock, redis_faults(self._url):
            if self._is_outdated:
                self._cluster.nodes_manager.initialize()
                self._is_outdated = False
            try:
                answers = self._sent(calls)
            except (redis.TimeoutError, SlotNotCoveredError):
                # A replica may replace the master, or a master get the slot. redis-py only notices this for its own calls.
                self._is_outdated = True
                raise
            for number, answer in enumerate(answers):
                if isinstance(answer, (RedisConnectionError, *_REDIRECTIONS)):
                    answers[number] = self._repeated(*calls[number])
                elif isinstance(answer, Exception):
                    raise answer
            return answers

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        with self._lock, redis_faults(self._url):
            for name in [*self._clients]:
                self._disconnect(name)

    def _sent(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """The answers to all calls, with exceptions in place of answers."""
        answers: list[Any] = [None] * len(calls)
        nodes, by_master = {}, dict[str, list[int]]()
        for number, (_, key, _) in enumerate(calls):
            node = self._cluster.nodes_manager.get_node_from_slot(key_slot(key))
            nodes[node.name] = node
            by_master.setdefault(node.name, []).append(number)
        failed: dict[str, RedisConnectionError] = {}
        unread: set[str] = set()
        try:
            for name, numbers in by_master.items():
                unread.add(name)
                commands = [_command(*calls[number]) for number in numbers]
                try:
                    if name not in self._clients:
                        self._clients[name] = self._cluster.get_redis_connection(nodes[name]).client()
                    self._clients[name].connection.send_packed_command([b"".join(commands)])
                except RedisConnectionError as error:
                    failed[name] = error
            for name, numbers in by_master.items():
                for number in numbers:
                    if name not in failed:
                        try:
                            answers[number] = self._clients[name].connection.read_response(
                                disable_decoding=True
                            )
                            continue
                        except ResponseError as error:
                            answers[number] = error
                            continue
                        except RedisConnectionError as error:
                            failed[name] = error
                    answers[number] = failed[name]
                unread.discard(name)
        finally:
            # After a timeout, the late answer must not be taken for that of the next call.
            for name in unread.union(failed):
                self._disconnect(name)
        return answers

    def _disconnect(self, name: str) -> None:
        # redis-py's cluster client does not close the connections in its pools.
        if (client := self._clients.pop(name, None)) is not None:
            client.connection.disconnect()
            client.close()

    def _repeated(self, script: Script, key: bytes, arguments: Sequence[bytes]) -> Any:
        words = (2, key, _never_existing(key), b"1", *arguments)
        try:
            return self._cluster.execute_command("EVALSHA", script.sha, *words)
        except NoScriptError:
            return self._cluster.execute_command("EVAL", script.text, *words)


def _command(script: Script, key: bytes, arguments: Sequence[bytes]) -> bytes:
    return packed_command(b"EVALSHA", script.sha, b"2", key, _never_existing(key), b"0", *arguments)


def _never_existing(key: bytes) -> bytes:
    """A key in the slot of *key* that nothing ever creates.

    >>> _never_existing(b"dedupe:{content:17}:v3:i")
    b'dedupe:moving:{content:17}'
    """
    return b"dedupe:moving:" + key[key.index(b"{") : key.index(b"}") + 1]
