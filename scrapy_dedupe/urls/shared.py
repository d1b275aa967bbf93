"""The growing filter of request fingerprints in Redis or Valkey, shared by several processes.

It has the same error bound as :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter`, for all processes together, and a
fingerprint is new to exactly one of them. A batch is one call of a Lua script, so the answers are atomic and only
the script adds layers. Only core commands are used.

**Keys.** All keys have the hash tag of the filter, so that they are in one slot of a cluster::

    dedupe:urls:2:{KEY}:meta        hash    version, hash, fingerprinter, capacity, error_rate (as Python
                                            writes it), born (name of this generation), used (a line for each
                                            layer in use), plan (lines for further layers), full (number of
                                            fingerprints in each full layer), count (number in the newest layer);
                                            forgotten (size of that set), if it was ever used; cut (token of a
                                            process that ended without detaching), if any; call:TOKEN (the last
                                            call of that process that found new fingerprints, and its answers)
    dedupe:urls:2:{KEY}:bits:L:S    string  shard S of layer L, at most 16 MiB
    dedupe:urls:2:{KEY}:attached    sorted set  token of each attached process, scored with the end of its lease
    dedupe:urls:2:{KEY}:forgotten   set     the first 16 bytes of the words of each forgotten fingerprint
    dedupe:urls:2:{KEY}:starts      set     the same for start requests, until a redirect to them passes

**Words.** The words of a fingerprint are its BLAKE2b digest of 64 bytes, read as 16 words of 4 bytes, big-endian.
Word 0 modulo the number of shards selects the shard. Word 1 modulo the number of buckets *B* is the first bucket. The
tag consists of the bytes of the digest from the ninth; a tag of zeros, which would mean "empty", becomes 1. The
second bucket is (163841641 t - first) mod *B*, where *t* is the number in the first three bytes of the tag (in
a tag of two bytes: these two and a zero).

**Layers.** The process that creates the filter plans its layers; see :mod:`~scrapy_dedupe.urls.shared_layers`. The
layers in the store are binding: each process compares its own parameters with them when it attaches. A layer
that has no free place for a fingerprint counts as full even below its capacity.

**Leases.** An attached process renews its lease with its calls. It counts as gone when its lease has expired, or
immediately when a process on the same machine notices that it is no longer running (tokens are described in
:mod:`~scrapy_dedupe.urls.attachment`). If a process ended without detaching, its queue is lost, and the queued pages
count as seen. The filter is then marked as cut.

**Lifetime of a filter.** While a process is attached, new processes join the filter. If requested, the last process
deletes the filter when it detaches; it is never deleted while others use it. A filter that no process uses is deleted
and recreated by the next process that attaches, unless that process may keep it. A process may keep the generation that
its own job has used, if it is not marked as cut, or any generation (``"*"``) if the queue is in Redis too.

**Forgetting.** A fingerprint cannot be removed from a layer. A forgotten fingerprint is therefore added to a set. The
first process that asks for it gets the answer "new" and removes it from the set. A process that has cached
the fingerprint as seen treats it as seen until it attaches again.

**Repeated calls.** redis-py may send a call again after a connection error. The second call would find the
fingerprints of the first as seen. Therefore the last call of each process is stored with its answers, and a
repeated call gets the stored answers.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import SettingError, StoreRefused, StoreUnavailable
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.stores.scripting import PreparedCall, Script, ScriptCaller
from scrapy_dedupe.urls.attachment import Attachment, is_gone, new_token, own_tokens
from scrapy_dedupe.urls.bloom import check_parameters
from scrapy_dedupe.urls.shared_layers import Description, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis import Redis

VERSION = "2"
HASH = "blake2b-32"
# bloom_members.lua returns these fields of the hash ``meta`` in the same order.
_FIELDS = ("version", "hash", "fingerprinter", "capacity", "error_rate", "born", "used", "full", "count",
           "forgotten")  # fmt: skip
_BATCH = 500
# All tools store their last call under this token, so that they do not add a field with each run.
_GUEST = "guest"
_MAX_GENERATIONS = 5
SEEN, NEW, AGAIN = b"012"


class SharedBloomFilter:
    """A set of fingerprints in Redis. A new fingerprint is reported as seen with at most the probability ``error_rate``.

    ``redis`` is a client of redis-py. All processes with the same ``key`` share a filter. ``capacity`` and
    ``error_rate`` are used if the filter must be created. ``cache_size`` is the number of seen fingerprints that
    are cached in this process, so that they need no call; answers of "new" are never cached. ``url`` is the location
    of the store, for messages. ``keep`` is the :attr:`generation` of a filter that may be kept although no process is
    attached, or ``"*"`` for any. ``gone`` are tokens of processes that are known to have ended. All methods may raise
    :class:`~scrapy_dedupe.errors.StoreUnavailable`.

    :meth:`renew` and :meth:`forget` may be called while another thread uses the filter. Other methods are not
    thread-safe.
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
        self.key = key
        self.capacity = capacity
        self.error_rate = error_rate
        self.fingerprinter = fingerprinter
        self.lease_s = lease_s
        self.name = _name_of(key)
        self._meta = f"{self.name}:meta"
        self._key = self._meta.encode()
        self.url = url
        self._redis = redis
        self._caller = ScriptCaller(redis, url)
        self._batch_script = Script("bloom")
        self._member_script = Script("bloom_members")
        self.token = new_token()
        self._keep = keep
        self._gone = tuple(gone)
        self._is_guest = False
        # Calls of two threads or two tools must not have the same name.
        self._calls = count(1)
        self._call_prefix = b""
        self._lock = threading.Lock()
        self._seen: dict[bytes, None] = {}
        self._asked_again: list[bytes] = []
        # How often the server lost the filter during this run, and the last lost generation.
        self.times_lost = 0
        self._lost: str | None = None
        self._cache_size = cache_size
        # The name of the generation in use; None while not attached.
        self.generation: str | None = None
        self._prepared: dict[bytes, PreparedCall] = {}
        self._renewed = 0.0
        self.last_description = Description()

    @classmethod
    def existing(cls, redis: Redis, key: str, *, url: str = "in Redis") -> SharedBloomFilter | None:
        """The existing filter with this ``key``, for a tool; None if there is none.

        It is opened with its stored parameters. The tool is not attached: it does not count as a process and does not
        create, delete or mark the filter. Raises :class:`~scrapy_dedupe.errors.StoreRefused` if this version
        cannot read the filter.
        """
        with redis_faults(url):
            head = _read_head(redis, f"{_name_of(key)}:meta")
        if not head:
            return None
        for field, ours in (("version", VERSION), ("hash", HASH)):
            if head.get(field) != ours:
                raise StoreRefused(
                    f"The shared URL filter {_name_of(key)} cannot be read: its {field} is {head.get(field)}, but this "
                    f"version reads {ours}. Use the version of scrapy-dedupe that created it."
                )
        self = cls(
            redis,
            key,
            int(head["capacity"]),
            float(head["error_rate"]),
            url=url,
            fingerprinter=head["fingerprinter"],
            cache_size=0,
        )
        self._is_guest = True
        self.token, tool = _GUEST, uuid.uuid4().hex
        self._use(head["born"])
        self._call_prefix = f"{tool}-".encode()
        self.last_description = Description.of(head)
        return self

    def attach(self) -> Attachment:
        """Attach this process to the filter; create the filter if there is none that may be used.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the filter has another error rate, hash, format version
        or fingerprinter.
        """
        if self._is_guest:
            raise RuntimeError("a filter that was opened with existing() cannot be attached to")
        first, _, following = plan(self.capacity, self.error_rate).partition("\n")
        # Add the token first. Otherwise another thread could mistake it for the token of an ended process.
        own_tokens.add(self.token)
        values, others, discarded, cut = self._run(
            self._member_script, "attach", self.token, self._lease_ms, VERSION, HASH, self.fingerprinter, self.capacity,
            repr(self.error_rate), first, following, uuid.uuid4().hex, self.generation or "",
            self._keep, *self._tokens_gone(),
        )  # fmt: skip
        head = _head_of(values)
        for field, ours, what in (
            ("version", VERSION, "the format version"),
            ("hash", HASH, "the hash"),
            ("fingerprinter", self.fingerprinter, "the fingerprinter (REQUEST_FINGERPRINTER_CLASS)"),
            ("error_rate", repr(self.error_rate), "the error rate (DEDUPE_URL_ERROR_RATE)"),
        ):
            if head.get(field) != ours:
                raise StoreRefused(
                    f"The shared URL filter {self.name} was created with another value of {what}: it has "
                    f"{head.get(field)}, but this process has {ours}. Use {head.get(field)}, or another filter with "
                    "DEDUPE_URL_KEY."
                )
        with self._lock:
            self._seen.clear()
        self._note_loss(head["born"])
        self._use(head["born"])
        self._renewed = time.monotonic()
        self.last_description = found = Description.of(head)
        return Attachment(
            self.name,
            found.seen,
            others,
            discarded,
            was_cut=bool(cut),
            is_other_filter=self._keep not in {"", "*", head["born"]},
            capacities=(int(head["capacity"]), self.capacity),
        )

    @property
    def wants_renewal(self) -> bool:
        """Whether a third of the lease has passed since it was last renewed."""
        if self.generation is None or self._is_guest:
            return False
        return time.monotonic() - self._renewed > self.lease_s / 3

    def renew(self) -> None:
        """Renew the lease of a process that makes no calls for a while."""
        if self.generation is not None and not self._is_guest:
            self._run(self._member_script, "renew", self.token, self._lease_ms)
            self._renewed = time.monotonic()

    def detach(self, *, delete: bool = False, cut: bool = False, of_all: bool = False) -> bool:
        """Detach this process; True if the filter was deleted.

        With ``delete`` the filter is deleted if no other process is attached, with ``of_all`` in any case. With ``cut``
        it is marked as if this process had ended without detaching. Does nothing on the server for a tool.
        """
        deletes = 2 if of_all else int(delete)
        deleted = not self._is_guest and bool(
            self._run(self._member_script, "detach", self.token, 0, deletes, int(cut), *self._tokens_gone())
        )
        own_tokens.discard(self.token)
        self.generation = None
        with self._lock:
            self._seen.clear()
        self._caller.close()
        return deleted

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new to all processes."""
        return self.answer(fingerprint) != SEEN

    def answer(self, fingerprint: bytes) -> int:
        """Record the fingerprint; :data:`SEEN`, :data:`NEW`, or :data:`AGAIN` if it is new because it was forgotten."""
        if fingerprint in self._seen:
            return SEEN
        answer = self._ask_batch(b"add", words(fingerprint))
        self._cache((fingerprint,), answer)
        return answer[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; True for each that is new to all processes."""
        fingerprints = list(fingerprints)
        # Read the cache before the call: a new generation, or another thread that forgets, changes it.
        is_known = [fingerprint in self._seen for fingerprint in fingerprints]
        asked = [fingerprint for fingerprint, known in zip(fingerprints, is_known, strict=True) if not known]
        digits = self._ask(b"add", asked)
        rest = iter(digits)
        answers = [not known and next(rest) != SEEN for known in is_known]
        self._cache(asked, digits)
        return answers

    def forget(self, fingerprints: Iterable[bytes]) -> None:
        """Make each fingerprint new again for the first process that asks for it.

        A fingerprint that was never seen stays new. Each takes about 80 bytes on the server until a process asks for
        it.
        """
        fingerprints = list(fingerprints)
        self._drop_from_cache(fingerprints)
        self._ask(b"forget", fingerprints)
        # Another thread may have asked for it meanwhile and cached it as seen.
        self._drop_from_cache(fingerprints)

    def note_starts(self, fingerprints: Iterable[bytes]) -> None:
        """Record that a redirect to each of these fingerprints may pass in one of the processes."""
        items = [words(fingerprint)[:16] for fingerprint in fingerprints]
        with redis_faults(self.url):
            for start in range(0, len(items), _BATCH):
                self._redis.sadd(f"{self.name}:starts", *items[start : start + _BATCH])

    def take_start(self, fingerprint: bytes) -> bool:
        """Take a fingerprint that was noted as a start; True if no process has taken it since."""
        with redis_faults(self.url):
            return bool(self._redis.srem(f"{self.name}:starts", words(fingerprint)[:16]))

    def take_asked_again(self) -> list[bytes]:
        """Fingerprints that were new since the last call because they were forgotten or the filter was lost.

        After a loss every new fingerprint may have been requested before, so all of them are included.
        """
        if not self._asked_again:
            return []
        with self._lock:
            again, self._asked_again = self._asked_again, []
        return again

    def are_forgotten(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """For each fingerprint, whether it is forgotten and no process has asked for it since."""
        with redis_faults(self.url):
            pipeline = self._redis.pipeline(transaction=False)
            for fingerprint in fingerprints:
                pipeline.sismember(f"{self.name}:forgotten", words(fingerprint)[:16])  # type: ignore[arg-type]
            return [bool(answer) for answer in pipeline.execute()]

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._seen or self._ask_batch(b"has", words(fingerprint)) == b"1"

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """For each fingerprint, whether it was recorded; with one call for each batch."""
        asked = [fingerprint for fingerprint in fingerprints if fingerprint not in self._seen]
        answers = dict(zip(asked, self._ask(b"has", asked), strict=True))
        return [answers.get(fingerprint, NEW) == NEW for fingerprint in fingerprints]

    def __len__(self) -> int:
        """Number of distinct fingerprints recorded by all processes."""
        return self.describe().seen

    def describe(self) -> Description:
        """Read the layers and their counts into :attr:`last_description`; empty if there is no filter."""
        with redis_faults(self.url):
            head = _read_head(self._redis, self._meta)
        if head.get("born") != self.generation:
            self._note_loss(head.get("born"))
            with self._lock:
                self._seen.clear()
        self.last_description = Description.of(head)
        return self.last_description

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    def _tokens_gone(self) -> list[str]:
        with redis_faults(self.url):
            tokens = cast("list[str | bytes]", self._redis.zrange(f"{self.name}:attached", 0, -1))
        attached = [_text(token) for token in tokens]
        return [token for token in attached if token in self._gone or is_gone(token)]

    def _note_loss(self, generation: str | None) -> None:
        """Count a loss if the generation in use was replaced by ``generation``."""
        if self.generation not in {None, generation, self._lost}:
            self._lost = self.generation
            self.times_lost += 1

    def _use(self, generation: str) -> None:
        """Use this generation in further calls."""
        self.generation = generation
        self._prepared = {
            operation: PreparedCall(
                self._batch_script, self._key, operation, self.token.encode(), b"0", generation.encode()
            )
            for operation in (b"add", b"has", b"forget")
        }

    def _ask(self, operation: bytes, fingerprints: Sequence[bytes]) -> bytes:
        """The script's answer for each fingerprint: one digit each."""
        starts = range(0, len(fingerprints), _BATCH)
        parts = (fingerprints[start : start + _BATCH] for start in starts)
        return b"".join([self._ask_batch(operation, b"".join(map(words, part))) for part in parts])

    def _ask_batch(self, operation: bytes, data: bytes) -> bytes:
        # next() is atomic, so two threads never get the same number.
        call = b"%b%d" % (self._call_prefix, next(self._calls))
        for _ in range(_MAX_GENERATIONS):
            if self.generation is None:
                self.attach()
            if self.wants_renewal:
                lease = (self.token, self._lease_ms, self.generation or "")
                reply = self._run(self._batch_script, operation, *lease, call, data)
                self._renewed = time.monotonic()
            else:
                reply = self._caller.run_prepared(self._prepared[operation], call, data)
            if not isinstance(reply, list):
                return cast("bytes", reply)
            # The database was emptied, or the filter was recreated after the lease of this process had expired. The
            # cache belongs to the old generation; attach() clears it.
            if self._is_guest:
                raise StoreUnavailable(
                    f"The shared URL filter {self.name} was deleted or recreated meanwhile. Open it again."
                )
            self.attach()
        raise StoreUnavailable(
            f"The shared URL filter {self.name} is deleted repeatedly. Find out which process empties the store "
            f"{self.url}."
        )

    def _run(self, script: Script, *arguments: str | int | bytes) -> Any:
        return self._caller.run(
            script, self._key, *[a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        )

    def _drop_from_cache(self, fingerprints: Iterable[bytes]) -> None:
        with self._lock:
            for fingerprint in fingerprints:
                self._seen.pop(fingerprint, None)

    def _cache(self, fingerprints: Sequence[bytes], answers: bytes) -> None:
        if self._is_guest:
            return
        with self._lock:
            if AGAIN in answers or self.times_lost:
                again = (AGAIN, NEW) if self.times_lost else (AGAIN,)
                pairs = zip(fingerprints, answers, strict=True)
                self._asked_again += [fingerprint for fingerprint, answer in pairs if answer in again]
            if not self._cache_size:
                return
            seen = self._seen
            for fingerprint in fingerprints:
                seen[fingerprint] = None
            for _ in range(len(seen) - self._cache_size):
                del seen[next(iter(seen))]


def words(fingerprint: bytes) -> bytes:
    """The 16 words of a fingerprint, 4 bytes each.

    >>> words(b"abc").hex()[:16], len(words(b"abc"))
    ('ba80a53f981c4d0d', 64)
    """
    return hashlib.blake2b(fingerprint).digest()


def _name_of(key: str) -> str:
    """The prefix of the filter's keys in Redis.

    Raises :class:`~scrapy_dedupe.errors.SettingError` if ``key`` is empty or has braces.
    """
    if not key or "{" in key or "}" in key:
        raise SettingError(f"The name of a shared URL filter is {key!r}; it must be text without braces.")
    return f"dedupe:urls:{VERSION}:{{{key}}}"


def _read_head(redis: Redis, meta: str) -> dict[str, str]:
    """The fields of the hash ``meta``; empty if there is no filter."""
    return _head_of(redis.hmget(meta, list(_FIELDS)))


def _head_of(values: Iterable[str | bytes | None]) -> dict[str, str]:
    return {field: _text(value) for field, value in zip(_FIELDS, values, strict=True) if value is not None}


def _text(value: str | bytes) -> str:
    """A reply of the server as text, whether or not the client decodes replies."""
    return value if isinstance(value, str) else value.decode()
