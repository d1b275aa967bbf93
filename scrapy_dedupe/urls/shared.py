"""The growing filter of request fingerprints in Redis or Valkey, for several processes at once.

It keeps the promise of :class:`~scrapy_dedupe.urls.bloom.GrowingBloomFilter`, over all processes together: a
fingerprint is new to exactly one of them. A batch is one call of one Lua script, so each answer is atomic and
growth happens in one place. Only core commands are used.

**Keys**, all with the hash tag of the filter, so that they lie in one slot of a cluster::

    dedupe:urls:2:{KEY}:meta        hash    version, hash, fingerprinter, capacity, error_rate (as Python
                                            writes it), born (name of this generation), used (a line for each
                                            layer), plan (those that may follow), full (what each layer but the
                                            newest holds), count (what the newest holds);
                                            forgotten (size of that set), if there was any; cut (token of a
                                            process that ended without leaving), if any; call:TOKEN (the last
                                            call of that process which found something new, and its answers)
    dedupe:urls:2:{KEY}:bits:L:S    string  shard S of layer L, at most 16 MiB
    dedupe:urls:2:{KEY}:attached    sorted set  token of each attached process, until when it holds its lease
    dedupe:urls:2:{KEY}:forgotten   set     the first 16 bytes of the words of each forgotten fingerprint
    dedupe:urls:2:{KEY}:starts      set     the same of those that start requests recorded, until a redirect to
                                            one passes

**Words.** The words of a fingerprint are its BLAKE2b digest of 64 bytes, read as 16 words of 4 bytes,
big-endian. Word 0 modulo the number of shards is the shard. In a layer of bits, word *i* modulo the bits of a
slice is the bit in slice *i* - 1. In a layer of tags, word 1 modulo the number of buckets *B* is the first
bucket; the tag is the bytes of the digest from the ninth on, where zeros, which mean "empty", become 1; and the
second bucket is (163841641 t - first) mod *B*, where *t* is the number in the first three bytes of the tag (the
first two and a zero in a tag of two).

**Layers** are planned as :mod:`~scrapy_dedupe.urls.shared_layers` says, by the process that begins the filter.
The geometry is the store's: each process compares it with its own parameters when it attaches. A layer of tags
that finds no place for a fingerprint before it is full counts as full.

**Leases.** A process that is attached renews its lease with its calls. It counts as gone when its lease has run
out, or at once when a process on the same machine sees that it does not run any more (tokens are described in
:mod:`~scrapy_dedupe.urls.attachment`). One that is gone without having left took its queue with it, and with
that pages that count as seen: the filter is then marked as cut.

**How long a filter lives.** As long as a process is attached, others join it. The last one that leaves and
wishes so deletes it, never under another one. A filter that nobody uses is deleted and begun anew by the next
one that attaches, unless that one says what it may keep: the generation that its own job has used, if that was
not cut, or any (``"*"``), where the queue lies in Redis too.

**Forgetting.** What a layer holds cannot be taken out. A forgotten fingerprint is kept in a set, and answered as
new to the one process that asks for it first, which takes it out of the set. Another process that remembers it as
seen goes on saying so until it attaches anew.

**Calls.** redis-py may send a call again when the connection broke. The second one would find the fingerprints
of the first, so the last call of each process and its answers are kept, and a call that comes twice is
answered twice the same.
"""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable
from scrapy_dedupe.stores.redis_faults import redis_faults
from scrapy_dedupe.stores.scripting import PreparedCall, Script, ScriptCaller
from scrapy_dedupe.urls.attachment import Attachment, hold, is_gone, let_go, new_token
from scrapy_dedupe.urls.bloom import check_parameters
from scrapy_dedupe.urls.shared_head import VERSION, description, head_of, name_of, read_head, text
from scrapy_dedupe.urls.shared_layers import Description, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis import Redis

HASH = "blake2b-32"
_BATCH = 500
# The call of a tool is kept under one name, so that tools leave nothing behind for each of their runs.
_GUEST = "guest"
_MOST_GENERATIONS = 5
SEEN, NEW, AGAIN = b"012"


class SharedBloomFilter:
    """A set of fingerprints in Redis that may say "seen" of a new one, with a probability of ``error_rate``.

    ``redis`` is a client of redis-py; ``key`` names the filter among the processes that share it;
    ``capacity`` and ``error_rate`` make the filter where there is none yet. ``cache_size`` is the number of
    fingerprints that are remembered here as seen, and answered without asking; an answer of "new" is never
    remembered. ``url`` is where it lies, for messages. ``keep`` is the generation (:attr:`born`) of a filter that
    may be kept though no process is attached, or ``"*"`` for any; ``gone`` are tokens of processes that are
    known to run no more. Every call may raise :class:`~scrapy_dedupe.errors.StoreUnavailable`.

    :meth:`renew` and :meth:`forget` may be called while another thread asks; all else is for one thread at a time.
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
        self.name = name_of(key)
        self._meta = f"{self.name}:meta"
        self._key = self._meta.encode()
        self.url = url
        self._redis = redis
        self._caller = ScriptCaller(redis, url)
        self._asking = Script("bloom")
        self._members = Script("bloom_members")
        self.token = new_token()
        self._keep = keep
        self._gone = tuple(gone)
        self._is_guest = False
        # The calls of two threads, or of two tools, must not have one name.
        self._calls = count(1)
        self._calls_of = b""
        self._lock = threading.Lock()
        self._seen: dict[bytes, None] = {}
        self._asked_again: list[bytes] = []
        # How often the server lost the filter while it was in use here, and the generation that it lost last.
        self.times_lost = 0
        self._lost: str | None = None
        self._cache_size = cache_size
        self._born: str | None = None
        self._prepared: dict[bytes, PreparedCall] = {}
        self._renewed = 0.0
        self.last_description = Description()

    @classmethod
    def existing(cls, redis: Redis, key: str, *, url: str = "in Redis") -> SharedBloomFilter | None:
        """The filter that lies under ``key``, for a tool; None where there is none.

        It is opened with its own parameters. The tool is not attached: it does not count as a process, begins
        and deletes nothing, and leaves no mark. Raises :class:`~scrapy_dedupe.errors.StoreRefused` when this
        version cannot read the filter.
        """
        with redis_faults(url):
            head = read_head(redis, f"{name_of(key)}:meta")
        if not head:
            return None
        for field, ours in (("version", VERSION), ("hash", HASH)):
            if head.get(field) != ours:
                raise StoreRefused(
                    f"The shared URL filter {name_of(key)} cannot be read: its {field} is {head.get(field)}, this "
                    f"version reads {ours}. Use the version of scrapy-dedupe that made it."
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
        self._calls_of = f"{tool}-".encode()
        self.last_description = description(head)
        return self

    @property
    def born(self) -> str | None:
        """Name of the generation in use; None while not attached."""
        return self._born

    def attach(self) -> Attachment:
        """Join the processes that use the filter; begin it if there is none, or none that may be kept.

        Raises :class:`~scrapy_dedupe.errors.StoreRefused` when it was made with another error rate, hash version
        or fingerprinter.
        """
        if self._is_guest:
            raise RuntimeError("a filter that was opened with existing() cannot be attached to")
        first, _, following = plan(self.capacity, self.error_rate).partition("\n")
        # Before the script knows the token, lest another thread takes it for one of a lost process.
        hold(self.token)
        values, others, discarded, cut = self._run(
            self._members, "attach", self.token, self._lease_ms, VERSION, HASH, self.fingerprinter, self.capacity,
            repr(self.error_rate), first, following, uuid.uuid4().hex, self._born or "",
            self._keep, *self._tokens_gone(),
        )  # fmt: skip
        head = head_of(values)
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
        with self._lock:
            self._seen.clear()
        self._note_loss(head["born"])
        self._use(head["born"])
        self._renewed = time.monotonic()
        self.last_description = found = description(head)
        note = None
        if int(head["capacity"]) != self.capacity:
            note = (
                f"The shared URL filter {self.name} was made for {int(head['capacity']):,} fingerprints, this "
                f"process asks for {self.capacity:,}. It keeps its size, and grows when it is full."
            )
        is_another = self._keep not in {"", "*", head["born"]}
        return Attachment(found.seen, others, discarded, bool(cut), is_another, note)

    @property
    def wants_renewal(self) -> bool:
        """Whether a third of the lease has run since it was last renewed."""
        if self._born is None or self._is_guest:
            return False
        return time.monotonic() - self._renewed > self.lease_s / 3

    def renew(self) -> None:
        """Keep the lease of a process that asks nothing for a while."""
        if self._born is not None and not self._is_guest:
            self._run(self._members, "renew", self.token, self._lease_ms)
            self._renewed = time.monotonic()

    def detach(self, *, delete: bool = False, cut: bool = False, of_all: bool = False) -> bool:
        """Leave. With ``delete`` the last one to leave deletes the filter, with ``of_all`` any; True if that was done.

        With ``cut`` the filter is marked as if this process had not left by itself. A tool has nothing to leave.
        """
        deletes = 2 if of_all else int(delete)
        deleted = not self._is_guest and bool(
            self._run(self._members, "detach", self.token, 0, deletes, int(cut), *self._tokens_gone())
        )
        let_go(self.token)
        self._born = None
        with self._lock:
            self._seen.clear()
        self._caller.close()
        return deleted

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new to all processes."""
        return self.answer(fingerprint) != SEEN

    def answer(self, fingerprint: bytes) -> int:
        """As :meth:`add`: :data:`SEEN`, :data:`NEW`, or :data:`AGAIN` if it is new since it was forgotten."""
        if fingerprint in self._seen:
            return SEEN
        answer = self._ask_batch(b"add", words(fingerprint))
        self._remember((fingerprint,), answer)
        return answer[0]

    def add_many(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Record fingerprints in order; for each, True if it is new to all processes."""
        fingerprints = list(fingerprints)
        seen = self._seen
        # Noted before asking: another generation, or another thread that forgets, changes what is remembered.
        is_known = [fingerprint in seen for fingerprint in fingerprints]
        if True in is_known:
            asked = [fingerprints[i] for i, known in enumerate(is_known) if not known]
            digits = self._ask(b"add", asked)
            answers_asked = iter(digits)
            answers = [not known and next(answers_asked) != SEEN for known in is_known]
        else:
            asked = fingerprints
            digits = self._ask(b"add", asked)
            answers = [digit != SEEN for digit in digits]
        self._remember(asked, digits)
        return answers

    def forget(self, fingerprints: Iterable[bytes]) -> None:
        """Let each of them be new once more, to the one process that asks for it first.

        One that was never seen is new then as it would have been. Each takes some 80 bytes of the server until it
        is asked for.
        """
        fingerprints = list(fingerprints)
        with self._lock:
            for fingerprint in fingerprints:
                self._seen.pop(fingerprint, None)
        self._ask(b"forget", fingerprints)
        # It may have been asked for meanwhile, and been remembered as seen, by another thread.
        with self._lock:
            for fingerprint in fingerprints:
                self._seen.pop(fingerprint, None)

    def note_starts(self, fingerprints: Iterable[bytes]) -> None:
        """Note that a redirect to each of these may pass, in one of the processes."""
        items = [words(fingerprint)[:16] for fingerprint in fingerprints]
        with redis_faults(self.url):
            for start in range(0, len(items), _BATCH):
                self._redis.sadd(f"{self.name}:starts", *items[start : start + _BATCH])

    def take_start(self, fingerprint: bytes) -> bool:
        """Whether the fingerprint was noted as a start and nobody has taken it since; it is taken then."""
        with redis_faults(self.url):
            return bool(self._redis.srem(f"{self.name}:starts", words(fingerprint)[:16]))

    def take_asked_again(self) -> list[bytes]:
        """Those that were new here since the last call because they were forgotten, or because the filter was lost.

        Once it was lost in a run, each that is new is one that may have been asked for before.
        """
        if not self._asked_again:
            return []
        with self._lock:
            again, self._asked_again = self._asked_again, []
        return again

    def are_forgotten(self, fingerprints: Iterable[bytes]) -> list[bool]:
        """Whether each of them is forgotten, and was not asked for since."""
        with redis_faults(self.url):
            pipeline = self._redis.pipeline(transaction=False)
            for fingerprint in fingerprints:
                pipeline.sismember(f"{self.name}:forgotten", words(fingerprint)[:16])  # type: ignore[arg-type]
            return [bool(answer) for answer in pipeline.execute()]

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._seen or self._ask_batch(b"has", words(fingerprint)) == b"1"

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Whether each of them was recorded, in one round trip for many."""
        asked = [fingerprint for fingerprint in fingerprints if fingerprint not in self._seen]
        answers = dict(zip(asked, self._ask(b"has", asked), strict=True))
        return [answers.get(fingerprint, NEW) == NEW for fingerprint in fingerprints]

    def __len__(self) -> int:
        """Distinct fingerprints recorded, by all processes."""
        return self.describe().seen

    def describe(self) -> Description:
        """Read the layers and what they hold; none where there is no filter yet. See :attr:`last_description`."""
        with redis_faults(self.url):
            head = read_head(self._redis, self._meta)
        if head.get("born") != self._born:
            self._note_loss(head.get("born"))
            with self._lock:
                self._seen.clear()
        self.last_description = description(head)
        return self.last_description

    @property
    def layers(self) -> int:
        return len(self.describe().layers)

    @property
    def size_bytes(self) -> int:
        """Bytes of the layers, once every shard was written to."""
        return self.describe().size_bytes

    @property
    def fill_ratio(self) -> float:
        """Share of the filter that is filled, as it is expected for the fingerprints held."""
        return self.describe().fill_ratio

    @property
    def estimated_error(self) -> float:
        """Probability that the next new fingerprint is called seen, for the number of fingerprints held."""
        return self.describe().estimated_error

    @property
    def expected_lost(self) -> float:
        """Expected number of new fingerprints that were called seen on the way to the present size."""
        return self.describe().expected_lost

    @property
    def forgotten(self) -> int:
        """Fingerprints that :meth:`forget` was told of, and that nobody has asked for since."""
        return self.describe().forgotten

    @property
    def _lease_ms(self) -> int:
        return round(self.lease_s * 1000)

    def _tokens_gone(self) -> list[str]:
        with redis_faults(self.url):
            tokens = cast("list[str | bytes]", self._redis.zrange(f"{self.name}:attached", 0, -1))
        attached = [text(token) for token in tokens]
        return [token for token in attached if token in self._gone or is_gone(token)]

    def _note_loss(self, born: str | None) -> None:
        """Count that the generation in use here is gone, and ``born`` in its place."""
        if self._born not in {None, born, self._lost}:
            self._lost = self._born
            self.times_lost += 1

    def _use(self, born: str) -> None:
        """Ask the generation ``born`` from now on."""
        self._born = born
        self._prepared = {
            operation: PreparedCall(
                self._asking, self._key, operation, self.token.encode(), b"0", born.encode()
            )
            for operation in (b"add", b"has", b"forget")
        }

    def _ask(self, operation: bytes, fingerprints: Sequence[bytes]) -> bytes:
        """A digit for each fingerprint, as the script gives it."""
        starts = range(0, len(fingerprints), _BATCH)
        parts = (fingerprints[start : start + _BATCH] for start in starts)
        return b"".join([self._ask_batch(operation, b"".join(map(words, part))) for part in parts])

    def _ask_batch(self, operation: bytes, data: bytes) -> bytes:
        # Two threads may ask, so a name is taken in one step.
        call = b"%b%d" % (self._calls_of, next(self._calls))
        for _ in range(_MOST_GENERATIONS):
            if self._born is None:
                self.attach()
            if self.wants_renewal:
                reply = self._run(
                    self._asking, operation, self.token, self._lease_ms, self._born or "", call, data
                )
                self._renewed = time.monotonic()
            else:
                reply = self._caller.run_prepared(self._prepared[operation], call, data)
            if not isinstance(reply, list):
                return cast("bytes", reply)
            # Somebody emptied the database, or the filter was deleted and made anew after a lease of ours had run
            # out. What is remembered here belongs to the old one.
            if self._is_guest:
                raise StoreUnavailable(
                    f"The shared URL filter {self.name} was deleted or begun anew meanwhile. Open it again."
                )
            self.attach()
        raise StoreUnavailable(
            f"The shared URL filter {self.name} is deleted again and again. See who empties the store {self.url}."
        )

    def _run(self, script: Script, *arguments: str | int | bytes) -> Any:
        return self._caller.run(
            script, self._key, *[a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        )

    def _remember(self, fingerprints: Sequence[bytes], answers: bytes) -> None:
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
