"""A shared filter with a local fallback for when its server is unavailable or has lost the filter.

The process also keeps a local filter of its own requests. While the server does not answer, the local filter answers,
so that links are not queued repeatedly; another process may request the same pages meanwhile. Fingerprints that
were added in that time are sent when the server answers again. After the server was emptied
(``FLUSHALL``), the requests of this process still count as seen, because the local filter has them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.shared import NEW, SEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from scrapy_dedupe.urls.shared import SharedBloomFilter

_MAX_UNSENT = 1_000_000
# Up to this many are sent on the thread that calls add(), which takes some hundredths of a second.
_MAX_SENT_BY_CALLER = 2_000


class ServerGuard(Protocol):
    """A circuit breaker: decides when a server that failed may be used again."""

    @property
    def open(self) -> bool:
        """True while the server must not be used."""

    def failed(self, error: BaseException) -> None: ...

    def worked(self, *, has_written: bool = False) -> None: ...


class FallbackSharedFilter:
    """A shared filter whose :meth:`add` and ``in`` never raise if the server is unavailable.

    ``submit`` runs a function on a worker thread, in order, and returns its future. :meth:`tick` must be called
    regularly on the thread that calls :meth:`add`; it reads the filter's figures every ``refresh_s`` seconds.
    ``survives_loss``: requests of this process still count as seen after the server has lost the filter; False if the
    queue is lost with the filter. ``dropped`` counts new fingerprints that will not be sent to the server, because
    too many are waiting.
    """

    def __init__(
        self,
        shared: SharedBloomFilter,
        guard: ServerGuard,
        submit: Callable[..., Future[Any]],
        *,
        refresh_s: float = 10.0,
        survives_loss: bool = True,
    ) -> None:
        self.shared = shared
        self._guard = guard
        self._submit = submit
        self._refresh_s = refresh_s
        self._survives_loss = survives_loss
        self._refreshed = time.monotonic()
        self._local = GrowingBloomFilter(shared.capacity, shared.error_rate)
        # The current job on the worker sends _sending; if it fails, they go back to _unsent.
        self._unsent: list[bytes] = []
        self._sending: list[bytes] = []
        # Start requests of this process; _unsent_starts were not sent to the server yet.
        self._starts = Forgotten()
        self._unsent_starts: list[bytes] = []
        self._new_offline: list[bytes] = []
        self._job: Future[Any] | None = None
        self.is_offline = False
        self.dropped = 0

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new as far as is known now."""
        if not self.is_offline:
            try:
                answer = self.shared.answer(fingerprint)
            except StoreError as error:
                self._go_offline(error)
            else:
                is_known_locally = not self._local.add(fingerprint)
                return answer != SEEN and not (answer == NEW and is_known_locally and self._uses_local)
        is_new = self._local.add(fingerprint)
        if is_new:
            if len(self._unsent) < _MAX_UNSENT:
                self._unsent.append(fingerprint)
            else:
                self.dropped += 1
            self._new_offline.append(fingerprint)
        return is_new

    def note_start(self, fingerprint: bytes) -> None:
        """Record that one redirect to the fingerprint may pass in this process and one in another process."""
        self._starts.add_many((fingerprint,))
        # The server stores each in about 80 bytes.
        if len(self._starts) <= _MAX_UNSENT:
            self._unsent_starts.append(fingerprint)
        if not self.is_offline:
            try:
                self._send_starts()
            except StoreError as error:
                self._go_offline(error)

    def take_start(self, fingerprint: bytes) -> bool:
        """Whether a redirect to the fingerprint may pass; the next one may not."""
        if self._starts.was_taken(fingerprint):
            return False
        is_own = self._starts.take(fingerprint)
        if not self.is_offline:
            try:
                return self.shared.take_start(fingerprint) or is_own
            except StoreError as error:
                self._go_offline(error)
        return is_own

    def take_asked_again(self) -> list[bytes]:
        """Fingerprints that were new since the last call but may have been requested before by this job.

        These are the fingerprints of :meth:`SharedBloomFilter.take_asked_again` and all that were new while the server
        was unavailable.
        """
        new_offline, self._new_offline = self._new_offline, []
        return new_offline + self.shared.take_asked_again()

    def __contains__(self, fingerprint: bytes) -> bool:
        if not self.is_offline:
            try:
                return fingerprint in self.shared or (self._uses_local and fingerprint in self._local)
            except StoreError as error:
                self._go_offline(error)
        return fingerprint in self._local

    def contains_many(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """For each fingerprint, whether it was recorded; with one call for each batch."""
        found = [False] * len(fingerprints)
        if not self.is_offline:
            try:
                found = self.shared.contains_many(fingerprints)
            except StoreError as error:
                self._go_offline(error)
        if self.is_offline or self._uses_local:
            found = [
                is_found or item in self._local for item, is_found in zip(fingerprints, found, strict=True)
            ]
        return found

    def tick(self) -> None:
        """Start the next job on the worker: reconnect to the server, send changes, renew the lease or read figures."""
        if self._job is not None:
            if not self._job.done():
                return
            self._finish_job(self._job)
            self._job = None
        if self.is_offline:
            if not self._guard.open:
                self._sending, self._unsent = self._unsent, []
                self._job = self._submit(self._send, self._sending)
        elif self.shared.wants_renewal:
            self._job = self._submit(self.shared.renew)
        elif time.monotonic() - self._refreshed > self._refresh_s:
            self._refreshed = time.monotonic()
            self._job = self._submit(self.shared.describe)

    def clear(self, *, of_all: bool = False) -> None:
        """Forget the requests of this process and detach; the last process to detach deletes the shared filter.

        With ``of_all`` this process deletes it even if others use it, and they recreate it.
        """
        self._local = GrowingBloomFilter(self.shared.capacity, self.shared.error_rate)
        self._unsent, self._sending = [], []
        self._starts, self._unsent_starts = Forgotten(), []
        self.shared.describe()
        self.shared.detach(delete=True, of_all=of_all)

    def leave(self, *, delete: bool, cut: bool = False, failed: Iterable[bytes] = ()) -> None:
        """Send all changes, forget ``failed``, and detach as :meth:`SharedBloomFilter.detach` does.

        For the worker; may raise StoreError.
        """
        unsent = self._sending + self._unsent
        if unsent or self.is_offline:
            self._send(unsent)
        self.shared.forget(failed)
        self._unsent, self._sending = [], []
        self.shared.describe()
        self.shared.detach(delete=delete, cut=cut)

    @property
    def _uses_local(self) -> bool:
        return self._survives_loss and self.shared.times_lost > 0

    def _send_starts(self) -> None:
        self.shared.note_starts(self._unsent_starts)
        self._unsent_starts = []

    def _send(self, unsent: list[bytes]) -> None:
        self.shared.attach()
        # Send the starts first. Otherwise another process could find the fingerprints recorded and filter a redirect.
        self.shared.note_starts(tuple(self._unsent_starts))
        self.shared.add_many(unsent)

    def _go_offline(self, error: BaseException) -> None:
        self.is_offline = True
        self._guard.failed(error)

    def _finish_job(self, job: Future[Any]) -> None:
        error = job.exception()
        if error is not None:
            self._unsent = self._sending + self._unsent
            self._go_offline(error)
        self._sending = []
        if error is None and self.is_offline and len(self._unsent) <= _MAX_SENT_BY_CALLER:
            self._go_online()

    def _go_online(self) -> None:
        # While the worker sends, a busy crawl adds new fingerprints, so the last ones are sent here.
        try:
            self._send_starts()
            self.shared.add_many(self._unsent)
        except StoreError as error:
            self._guard.failed(error)
            return
        self._unsent = []
        self.is_offline = False
        self._guard.worked(has_written=True)
