"""The growing Bloom filter in Redis or Valkey, for several processes at once.

It keeps the promise of :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter`, over all processes together: a
fingerprint is new to exactly one of them. A batch is one call of one Lua script, so each answer is atomic and
growth happens in one place. Only core commands are used.

**Keys**, all with the hash tag of the filter, so that they lie in one slot of a cluster::

    dedupe:urls:1:{KEY}:meta        hash    version, hash, fingerprinter, capacity, error_rate (as Python
                                            writes it), born (name of this generation), layers,
                                            layer:0 "capacity hashes slice_bits shards", count:0, layer:1
                                            ...; cut (token of a process that ended without leaving), if any
    dedupe:urls:1:{KEY}:bits:L:S    string  the bits of shard S of layer L, at most 16 MiB
    dedupe:urls:1:{KEY}:attached    sorted set  token of each attached process, until when it holds its lease
    dedupe:urls:1:{KEY}:calls       hash    token -> its last call and the answers

**Positions.** The words of a fingerprint are the 60-byte BLAKE2b digests of it with the salts 0, 1, 2 ... (two
bytes, big-endian, then zeros), cut into words of 6 bytes, big-endian: independent bits for every position, and
below 2^53, the limit of exact numbers in Lua. Word 0 modulo the number of shards is the shard; word *i* modulo
the bits of a slice is the bit in slice *i* - 1. A layer with more hashes needs more words; the script says so
and the client sends them.

**Layers** have the capacities and the shares of the error as in :mod:`~scrapy_dedupe.urls.bloom`. The geometry
is the store's: each process compares it with its own parameters when it attaches.

**Leases.** A process that is attached renews its lease with its calls. It counts as gone when its lease has run
out, or at once when a process on the same machine sees that it does not run any more (tokens are described in
:mod:`~scrapy_dedupe.urls.attachment`). One that is gone without having left took its queue with it, and with
that pages that count as seen: the filter is then marked as cut.

**How long a filter lives.** As long as a process is attached, others join it. The last one that leaves and
wishes so deletes it, never under another one. A filter that nobody uses is deleted and begun anew by the next
one that attaches, unless that one says what it may keep: the generation that its own job has used, if that was
not cut, or any (``"*"``), where the queue lies in Redis too.

**Calls.** redis-py may send a call again when the connection broke. The second one would find the fingerprints
of the first, so the last call of each process and its answers are kept, and a call that comes twice is
answered twice the same.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import SettingError, StoreRefused
from scrapy_dedupe.stores.faults import redis_faults
from scrapy_dedupe.urls.attachment import Attachment, hold, is_gone, let_go, new_token
from scrapy_dedupe.urls.bloom import (
    check_parameters,
    expected_lost,
    layer_share,
    optimal_hashes,
    slice_error,
    sum_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis import Redis

VERSION = "1"
HASH = "blake2b-48"
_WORD_BYTES = 6
_WORDS_PER_DIGEST = 10
_BATCH = 500


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """A layer as the store describes it."""

    capacity: int
    hashes: int
    slice_bits: int
    shards: int
    count: int

    @property
    def size_bytes(self) -> int:
        return self.shards * ((self.hashes * self.slice_bits + 7) // 8)

    def error_at(self, count: float) -> float:
        """Probability that a fingerprint which was not added is found, after ``count`` additions."""
        return slice_error(self.slice_bits, count / self.shards, 8 * _WORD_BYTES) ** self.hashes

    def lost_by(self, count: int) -> float:
        """Sum of :meth:`error_at` over the additions 0 to ``count`` - 1."""
        return sum_over(self.error_at, count)


class SharedBloomFilter:
    """A set of fingerprints in Redis that may say "seen" of a new one, with a probability of ``error_rate``.

    ``redis`` is a client of redis-py; ``key`` names the filter among the processes that share it;
    ``capacity`` and ``error_rate`` make the filter where there is none yet. ``cache_size`` is the number of
    fingerprints that are remembered here as seen, and answered without asking; an answer of "new" is never
    remembered. ``url`` is where it lies, for messages. ``keep`` is the generation (:attr:`born`) of a filter that
    may be kept though no process is attached, or ``"*"`` for any; ``gone`` are tokens of processes that are
    known to run no more. Every call may raise :class:`~scrapy_dedupe.errors.StoreUnavailable`.
    """

    def __init__(
        self,
        redis: Redis,
        key: str,
        capacity: int,
        error_rate: float,
        *,
        url: str = "in Redis",
        fingerprinter: str = "",
        lease_s: float = 60.0,
        cache_size: int = 65_536,
        keep: str = "",
        gone: Iterable[str] = (),
    ) -> None:
        check_parameters(capacity, error_rate)
        if not key or "{" in key or "}" in key:
            raise SettingError(f"The name of a shared URL filter is {key!r}; it must be text without braces.")
        self.key = key
        self.capacity = capacity
        self.error_rate = error_rate
        self.fingerprinter = fingerprinter
        self.lease_s = lease_s
        self.name = f"dedupe:urls:{VERSION}:{{{key}}}"
        self._url = url
        self._redis = redis
        self._script = redis.register_script(
            files("scrapy_dedupe.stores").joinpath("scripts/bloom.lua").read_text(encoding="utf-8")
        )
        self.token = new_token()
        self._keep = keep
        self._gone = tuple(gone)
        self._calls = 0
        self._words = 1 + optimal_hashes(layer_share(error_rate, 0)) + 1
        self._seen: dict[bytes, None] = {}
        self._cache_size = cache_size
        self._born: str | None = None
        self._renewed = 0.0

    @property
    def born(self) -> str | None:
        """Name of the generation in use; None while not attached."""
        return self._born

    def attach(self) -> Attachment:
        """Join the processes that use the filter; begin it if there is none, or none that may be kept.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` when it was made with another error rate, hash version
        or fingerprinter.
        """
        # Before the script knows the token, lest another thread takes it for one of a lost process.
        hold(self.token)
        flat, fingerprints, others, discarded, cut = self._run(
            "attach", self._lease_ms, VERSION, HASH, self.fingerprinter, self.capacity, repr(self.error_rate),
            uuid.uuid4().hex, self._born or "", self._keep, *self._tokens_gone(),
        )  # fmt: skip
        head = _pairs(flat)
        for field, ours, what in (
            ("version", VERSION, "the format version"),
            ("hash", HASH, "the hash"),
            ("fingerprinter", self.fingerprinter, "the fingerprinter (REQUEST_FINGERPRINTER_CLASS)"),
            ("error_rate", repr(self.error_rate), "the error rate (DEDUPE_URL_ERROR_RATE)"),
        ):
            if head.get(field) != ours:
                raise StoreRefused(
                    f"The shared URL filter {self.name} was made with another value of {what}: it has "
                    f"{head.get(field)}, this process has {ours}. Use {head.get(field)}, or another filter with "
                    "DEDUPE_URL_KEY."
                )
        if head["born"] != self._born:
            self._seen.clear()
        self._born = head["born"]
        self._renewed = time.monotonic()
        note = None
        if int(head["capacity"]) != self.capacity:
            note = (
                f"The shared URL filter {self.name} was made for {int(head['capacity']):,} fingerprints, this "
                f"process asks for {self.capacity:,}. It keeps its size, and grows when it is full."
            )
        is_another = self._keep not in {"", "*", head["born"]}
        return Attachment(fingerprints, others, discarded, bool(cut), is_another, note)

    @property
    def wants_renewal(self) -> bool:
        """Whether a third of the lease has run since it was last renewed."""
        return self._born is not None and time.monotonic() - self._renewed > self.lease_s / 3

    def renew(self) -> None:
        """Keep the lease of a process that asks nothing for a while."""
        if self._born is not None:
            self._run("renew", self._lease_ms)
            self._renewed = time.monotonic()

    def detach(self, *, delete: bool = False, cut: bool = False) -> bool:
        """Leave. With ``delete`` the last one to leave deletes the filter; True if that was done.

        With ``cut`` the filter is marked as if this process had not left by itself.
        """
        deleted = bool(self._run("detach", 0, int(delete), int(cut), *self._tokens_gone()))
        let_go(self.token)
        self._born = None
        self._seen.clear()
        return deleted

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new to all processes."""
        return self.add_many((fingerprint,))[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; for each, True if it is new to all processes."""
        fingerprints = list(fingerprints)
        answers = [False] * len(fingerprints)
        asked = [i for i, fingerprint in enumerate(fingerprints) if fingerprint not in self._seen]
        found = self._ask("add", [fingerprints[i] for i in asked])
        for i, is_new in zip(asked, found, strict=True):
            answers[i] = is_new
            self._remember(fingerprints[i])
        return answers

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._seen or self._ask("has", [fingerprint])[0]

    def __len__(self) -> int:
        """Distinct fingerprints recorded, by all processes."""
        return sum(layer.count for layer in self.describe())

    def describe(self) -> list[SharedLayer]:
        """The layers, oldest first; none where there is no filter yet."""
        with redis_faults(self._url):
            head = _pairs(self._redis.hgetall(f"{self.name}:meta"))
        return [
            _parse_layer(head[f"layer:{number}"], head[f"count:{number}"])
            for number in range(int(head.get("layers", 0)))
        ]

    @property
    def layers(self) -> int:
        return len(self.describe())

    @property
    def size_bytes(self) -> int:
        """Bytes of the bits, once every shard was written to."""
        return sum(layer.size_bytes for layer in self.describe())

    @property
    def fill_ratio(self) -> float:
        """Share of the bits that are set, as it is expected for the fingerprints held."""
        layers = self.describe()
        total = sum(layer.size_bytes for layer in layers)
        return sum(_fill(layer) * layer.size_bytes for layer in layers) / total if total else 0.0

    @property
    def estimated_error(self) -> float:
        """Probability that the next new fingerprint is called seen, for the number of fingerprints held."""
        right = 1.0
        for layer in self.describe():
            right *= 1 - layer.error_at(layer.count)
        return 1 - right

    @property
    def expected_lost(self) -> float:
        """Expected number of new fingerprints that were called seen on the way to the present size."""
        layers = self.describe()
        return expected_lost(layers, [layer.count for layer in layers])

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    def _tokens_gone(self) -> list[str]:
        with redis_faults(self._url):
            tokens = cast("list[str | bytes]", self._redis.zrange(f"{self.name}:attached", 0, -1))
        attached = [_text(token) for token in tokens]
        return [token for token in attached if token in self._gone or is_gone(token)]

    def _ask(self, operation: str, fingerprints: Sequence[bytes]) -> list[bool]:
        if self._born is None:
            self.attach()
        answers: list[bool] = []
        while len(answers) < len(fingerprints):
            batch = fingerprints[len(answers) : len(answers) + _BATCH]
            is_renewal = self.wants_renewal
            self._calls += 1
            born, digits, needed = self._run(
                operation,
                self._lease_ms if is_renewal else 0,
                self._calls,
                self._words,
                b"".join(words(fingerprint, self._words) for fingerprint in batch),
            )
            if is_renewal:
                self._renewed = time.monotonic()
            if _text(born) != self._born:
                # Somebody emptied the database, or the filter was deleted and made anew after a lease of ours
                # had run out. What is remembered here belongs to the old one.
                self.attach()
            answers += [digit == "1" for digit in _text(digits)]
            self._words = max(self._words, needed)
        return answers

    def _run(self, operation: str, lease_ms: int, *arguments: str | int | bytes) -> Any:
        with redis_faults(self._url):
            return self._script(
                keys=[f"{self.name}:meta"], args=[operation, self.token, lease_ms, *arguments]
            )

    def _remember(self, fingerprint: bytes) -> None:
        if len(self._seen) >= self._cache_size:
            del self._seen[next(iter(self._seen))]
        self._seen[fingerprint] = None


def words(fingerprint: bytes, count: int) -> bytes:
    """The first ``count`` words of a fingerprint, 6 bytes each.

    >>> words(b"abc", 2).hex(), words(b"abc", 11).startswith(words(b"abc", 2)), len(words(b"abc", 22))
    ('bdc0b8b38bd714f166d1cf22', True, 132)
    """
    digests = -(-count // _WORDS_PER_DIGEST)
    return b"".join(
        hashlib.blake2b(
            fingerprint, digest_size=_WORDS_PER_DIGEST * _WORD_BYTES, salt=number.to_bytes(2, "big")
        ).digest()
        for number in range(digests)
    )[: count * _WORD_BYTES]


def _parse_layer(geometry: str, count: str) -> SharedLayer:
    capacity, hashes, slice_bits, shards = map(int, geometry.split())
    return SharedLayer(capacity, hashes, slice_bits, shards, int(count))


def _fill(layer: SharedLayer) -> float:
    return slice_error(layer.slice_bits, layer.count / layer.shards, 8 * _WORD_BYTES)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def _pairs(reply: Any) -> dict[str, str]:
    """A hash, whether redis-py gave it as a dict or as the flat list of a script."""
    items = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {_text(name): _text(value) for name, value in items}
