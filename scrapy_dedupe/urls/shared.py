"""The growing filter of request fingerprints in Redis or Valkey, shared by several processes.

It has the same error bound as :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter`, for all processes together, and a
fingerprint is new to exactly one of them. A batch is one call of a Lua script (in a cluster one for each part), so
the answers are atomic and only the script adds layers. Only core commands are used.

**Keys.** On a single server::

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

In a cluster the filter has 16 parts (:mod:`scrapy_dedupe.stores.cluster`). The keys of a part have ``{KEY:NUMBER}`` in
place of ``{KEY}``. Each part is a filter for a sixteenth of the fingerprints with some room for chance, and has the
error rate of the whole filter. The last byte of the words modulo 16 selects the part. The first part decides which
processes are attached, and the generation that new parts get. A part whose master has lost it is recreated.

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
from scrapy_dedupe.stores.cluster import hash_tags, script_caller
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.stores.scripting import PreparedCall, Script
from scrapy_dedupe.urls.attachment import Attachment, is_gone, new_token, own_tokens, was_cut
from scrapy_dedupe.urls.bloom import check_parameters
from scrapy_dedupe.urls.shared_layers import Description, part_capacity, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redis import Redis, RedisCluster

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

_BATCH_SCRIPT, _MEMBER_SCRIPT = Script("bloom"), Script("bloom_members")


class SharedBloomFilter:
    """A set of fingerprints in Redis. A new fingerprint is reported as seen with at most the probability ``error_rate``.

    ``redis`` is a client of redis-py for a server or a cluster. All processes with the same ``key`` share a filter.
    ``capacity`` and ``error_rate`` are used if the filter must be created. ``cache_size`` is the number of seen
    fingerprints that are cached in this process, so that they need no call; answers of "new" are never cached. ``url`` is the location
    of the store, for messages. ``keep`` is the :attr:`generation` of a filter that may be kept although no process is
    attached, or ``"*"`` for any. ``gone`` are tokens of processes that are known to have ended. All methods may raise
    :class:`~scrapy_dedupe.errors.StoreUnavailable`.

    :meth:`renew` and :meth:`forget` may be called while another thread uses the filter. Other methods are not
    thread-safe.
    """

    def __init__(
        self,
        redis: Redis | RedisCluster,
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
        self.url = url
        self._redis = redis
        self._caller = script_caller(redis, url)
        self.token = new_token()
        self._gone = tuple(gone)
        self._is_guest = False
        # Calls of two threads or two tools must not have the same name.
        self._calls = count(1)
        self._call_prefix = b""
        self._lock = threading.Lock()
        self._seen: dict[bytes, None] = {}
        self._asked_again: list[bytes] = []
        # How often a server lost the filter, or a part of it, during this run.
        self.times_lost = 0
        self._cache_size = cache_size
        self._parts = [_FilterPart(_name_of(tag)) for tag in hash_tags(redis, key)]
        kept = keep.split(",")
        for number, part in enumerate(self._parts):
            part.keep = kept[number % len(kept)]
        self._renewed = 0.0
        self.last_description = Description()

    @classmethod
    def existing(
        cls, redis: Redis | RedisCluster, key: str, *, url: str = "in Redis"
    ) -> SharedBloomFilter | None:
        """The existing filter with this ``key``, for a tool; None if there is none.

        It is opened with its stored parameters. The tool is not attached: it does not count as a process and does not
        create, delete or mark the filter. Raises :class:`~scrapy_dedupe.errors.StoreRefused` if this version
        cannot read the filter.
        """
        with redis_faults(url):
            heads = [_read_head(redis, f"{_name_of(tag)}:meta") for tag in hash_tags(redis, key)]
        if not heads[0]:
            return None
        for field, ours in (("version", VERSION), ("hash", HASH)):
            if heads[0].get(field) != ours:
                raise StoreRefused(
                    f"The shared URL filter {_name_of(key)} cannot be read: its {field} is {heads[0].get(field)}, but this "
                    f"version reads {ours}. Use the version of scrapy-dedupe that created it."
                )
        if not all(heads):
            raise StoreUnavailable(
                f"The shared URL filter {_name_of(key)} in {url} is incomplete, because a master of the cluster has lost its"
                " part. The next crawl that uses the filter recreates this part."
            )
        self = cls(
            redis,
            key,
            int(heads[0]["capacity"]),
            float(heads[0]["error_rate"]),
            url=url,
            fingerprinter=heads[0]["fingerprinter"],
            cache_size=0,
        )
        self._is_guest = True
        self.token, tool = _GUEST, uuid.uuid4().hex
        for part, head in zip(self._parts, heads, strict=True):
            part.use(head["born"], self.token)
        self._call_prefix = f"{tool}-".encode()
        self.last_description = Description.of(heads)
        return self

    def attach(self) -> Attachment:
        """Attach this process to the filter; create the filter if there is none that may be used.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` if the filter has another error rate, hash, format version
        or fingerprinter.
        """
        if self._is_guest:
            raise RuntimeError("a filter that was opened with existing() cannot be attached to")
        # Add the token first. Otherwise another thread could mistake it for the token of an ended process.
        own_tokens.add(self.token)
        gone = self._tokens_gone()
        # The other parts get the generation of the first one, unless another process has created them already.
        head, others, discarded, cut = self._attach_parts(self._parts[:1], uuid.uuid4().hex, gone)[0]
        answers = self._attach_parts(self._parts[1:], head["born"], gone, 0 if others else 1 + cut)
        with self._lock:
            self._seen.clear()
        self._renewed = time.monotonic()
        self.last_description = found = Description.of([head, *(answer[0] for answer in answers)])
        return Attachment(
            self.name,
            found.seen,
            others,
            discarded + sum(answer[2] for answer in answers),
            was_cut=bool(cut),
            is_other_filter=any(part.keep not in {"", "*", part.generation} for part in self._parts),
            capacities=(int(head["capacity"]), self.capacity),
        )

    def _attach_parts(
        self, parts: Sequence[_FilterPart], born: str, gone: Sequence[str] = (), alone: int = 0
    ) -> list[tuple[dict[str, str], int, int, int]]:
        """Attach to parts; *born* is the generation of new ones. *alone* is 1 if no other process is attached to the first
        part, 2 if that part was cut too.

        For each part: its head, the number of other processes, the number of discarded fingerprints, and whether it was
        cut.
        """
        first, _, following = plan(part_capacity(self.capacity, len(self._parts)), self.error_rate).partition(
            "\n"
        )
        replies = self._run_on(
            parts,
            lambda part: (
                "attach", self.token, self._lease_ms, VERSION, HASH, self.fingerprinter, self.capacity,
                repr(self.error_rate), first, following, born, part.generation or "", part.keep, alone, *gone,
            ),
        )  # fmt: skip
        answers = []
        for part, (values, *rest) in zip(parts, replies, strict=True):
            head = _head_of(values)
            self._refuse_other_filter(head)
            self._note_loss(part, head["born"])
            part.use(head["born"], self.token)
            answers.append((head, *rest))
        return answers

    def _refuse_other_filter(self, head: dict[str, str]) -> None:
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

    @property
    def generation(self) -> str | None:
        """The name of the generation in use; None while not attached.

        If the parts of a filter in a cluster have different generations, it is all of them, separated by commas.
        """
        names = [part.generation for part in self._parts if part.generation is not None]
        if not names:
            return None
        return names[0] if len(set(names)) == 1 else ",".join(names)

    @property
    def wants_renewal(self) -> bool:
        """Whether a third of the lease has passed since it was last renewed."""
        if not self._is_attached or self._is_guest:
            return False
        return time.monotonic() - self._renewed > self.lease_s / 3

    def renew(self) -> None:
        """Renew the lease of a process that makes no calls for a while."""
        if self._is_attached and not self._is_guest:
            self._run_on(self._parts, lambda part: ("renew", self.token, self._lease_ms))
            self._renewed = time.monotonic()

    def detach(self, *, delete: bool = False, cut: bool = False, of_all: bool = False) -> bool:
        """Detach this process; True if the filter was deleted.

        With ``delete`` the filter is deleted if no other process is attached, with ``of_all`` in any case. With ``cut``
        it is marked as if this process had ended without detaching. Does nothing on the server for a tool.
        """
        deletes = 2 if of_all else int(delete)
        deleted = False
        if not self._is_guest:
            gone = self._tokens_gone()
            deleted = all(
                self._run_on(self._parts, lambda part: ("detach", self.token, 0, deletes, int(cut), *gone))
            )
        own_tokens.discard(self.token)
        for part in self._parts:
            part.generation = None
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
        answer = self._ask_one(b"add", fingerprint)
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
        by_part: dict[str, list[bytes]] = {}
        for fingerprint in fingerprints:
            item = words(fingerprint)
            by_part.setdefault(self._part_of(item).name, []).append(item[:16])
        with redis_faults(self.url):
            for name, items in by_part.items():
                for start in range(0, len(items), _BATCH):
                    self._redis.sadd(f"{name}:starts", *items[start : start + _BATCH])

    def take_start(self, fingerprint: bytes) -> bool:
        """Take a fingerprint that was noted as a start; True if no process has taken it since."""
        item = words(fingerprint)
        with redis_faults(self.url):
            return bool(self._redis.srem(f"{self._part_of(item).name}:starts", item[:16]))

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
            for item in map(words, fingerprints):
                pipeline.sismember(f"{self._part_of(item).name}:forgotten", item[:16])  # type: ignore[arg-type]
            return [bool(answer) for answer in pipeline.execute()]

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._seen or self._ask_one(b"has", fingerprint) == b"1"

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
            heads = [_read_head(self._redis, f"{part.name}:meta") for part in self._parts]
        for part, head in zip(self._parts, heads, strict=True):
            if head.get("born") != part.generation:
                self._note_loss(part, head.get("born"))
                with self._lock:
                    self._seen.clear()
        self.last_description = Description.of(heads)
        return self.last_description

    def was_cut(self) -> bool:
        """Whether no process uses the filter, and one of its processes ended without detaching."""
        with redis_faults(self.url):
            return was_cut(self._redis, self._parts[0].name)

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    def _tokens_gone(self) -> list[str]:
        with redis_faults(self.url):
            key = f"{self._parts[0].name}:attached"
            tokens = cast("list[str | bytes]", self._redis.zrange(key, 0, -1))
        attached = [_text(token) for token in tokens]
        return [token for token in attached if token in self._gone or is_gone(token)]

    def _note_loss(self, part: _FilterPart, generation: str | None) -> None:
        """Count a loss if the generation in use was replaced by ``generation``."""
        if part.generation not in {None, generation, part.lost}:
            part.lost = part.generation
            self.times_lost += 1

    def _part_of(self, item: bytes) -> _FilterPart:
        """The part for a fingerprint with these words."""
        return self._parts[item[-1] % len(self._parts)]

    def _ask(self, operation: bytes, fingerprints: Sequence[bytes]) -> bytes:
        """The script's answer for each fingerprint: one digit each."""
        starts = range(0, len(fingerprints), _BATCH)
        batches = ([*map(words, fingerprints[start : start + _BATCH])] for start in starts)
        return b"".join([self._ask_batch(operation, items) for items in batches])

    def _ask_one(self, operation: bytes, fingerprint: bytes) -> bytes:
        item = words(fingerprint)
        return self._ask_part(self._part_of(item), operation, item)

    def _ask_batch(self, operation: bytes, items: Sequence[bytes]) -> bytes:
        if len(self._parts) == 1:
            return self._ask_part(self._parts[0], operation, b"".join(items))
        self._get_ready()
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item[-1] % len(self._parts), []).append(place)
        data = {number: b"".join([items[place] for place in its]) for number, its in places.items()}
        calls = []
        for number in places:
            call = self._parts[number].prepared[operation]
            calls.append((call.script, call.key, (*call.arguments, self._call_name(), data[number])))
        answers = bytearray(len(items))
        for number, reply in zip(places, self._caller.run_many(calls), strict=True):
            if isinstance(reply, list):
                self._attach_again(self._parts[number])
                reply = self._ask_part(self._parts[number], operation, data[number])
            # "forget" has no answers.
            for place, digit in zip(places[number], reply, strict=False):
                answers[place] = digit
        return bytes(answers)

    def _ask_part(self, part: _FilterPart, operation: bytes, data: bytes) -> bytes:
        self._get_ready()
        call = self._call_name()
        for _ in range(_MAX_GENERATIONS):
            reply = self._caller.run_prepared(part.prepared[operation], call, data)
            if not isinstance(reply, list):
                return cast("bytes", reply)
            self._attach_again(part)
        raise StoreUnavailable(
            f"The shared URL filter {self.name} is deleted repeatedly. Find out which process empties the store "
            f"{self.url}."
        )

    @property
    def _is_attached(self) -> bool:
        return self._parts[0].generation is not None

    def _get_ready(self) -> None:
        if not self._is_attached:
            self.attach()
        elif self.wants_renewal:
            self.renew()

    def _call_name(self) -> bytes:
        # next() is atomic, so two threads never get the same number.
        return b"%b%d" % (self._call_prefix, next(self._calls))

    def _attach_again(self, part: _FilterPart) -> None:
        # The database was emptied, or the filter was recreated after the lease of this process had expired. The cache
        # belongs to the old generation.
        if self._is_guest:
            raise StoreUnavailable(
                f"The shared URL filter {self.name} was deleted or recreated meanwhile. Open it again."
            )
        if len(self._parts) == 1:
            self.attach()
            return
        self._attach_parts([part], uuid.uuid4().hex)
        with self._lock:
            self._seen.clear()

    def _run_on(
        self, parts: Sequence[_FilterPart], arguments: Callable[[_FilterPart], Iterable[str | int | bytes]]
    ) -> list[Any]:
        """The answers of ``bloom_members.lua`` for each part."""
        return self._caller.run_many(
            [
                (
                    _MEMBER_SCRIPT,
                    part.key,
                    [a if isinstance(a, bytes) else str(a).encode() for a in arguments(part)],
                )
                for part in parts
            ]
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


class _FilterPart:
    """A part of a filter. ``generation`` is the one in use, ``keep`` the one that may be kept, ``lost`` the last lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = f"{name}:meta".encode()
        self.generation: str | None = None
        self.keep = ""
        self.lost: str | None = None
        self.prepared: dict[bytes, PreparedCall] = {}

    def use(self, generation: str, token: str) -> None:
        """Use this generation in further calls."""
        self.generation = generation
        self.prepared = {
            operation: PreparedCall(_BATCH_SCRIPT, self.key, operation, token.encode(), generation.encode())
            for operation in (b"add", b"has", b"forget")
        }


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


def _read_head(redis: Redis | RedisCluster, meta: str) -> dict[str, str]:
    """The fields of the hash ``meta``; empty if there is no filter."""
    return _head_of(redis.hmget(meta, list(_FIELDS)))


def _head_of(values: Iterable[str | bytes | None]) -> dict[str, str]:
    return {field: _text(value) for field, value in zip(_FIELDS, values, strict=True) if value is not None}


def _text(value: str | bytes) -> str:
    """A reply of the server as text, whether or not the client decodes replies."""
    return value if isinstance(value, str) else value.decode()
