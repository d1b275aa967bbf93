"""A shared filter that goes on when its server is away, or has lost it.

While the server does not answer, a filter of this process answers from what the process itself has asked, so
that links are not queued again and again; another process may ask for the same pages meanwhile. What was new
then, and what is to be forgotten, is owed to the server and told when it answers again. When the server was emptied
(``FLUSHALL``), requests of this process stay seen: its own filter knows them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.bloom import GrowingBloomFilter
from scrapy_dedupe.urls.forgotten import Forgotten
from scrapy_dedupe.urls.shared import NEW, SEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from scrapy_dedupe.urls.shared import SharedBloomFilter
    from scrapy_dedupe.urls.shared_layers import Description

_MOST_OWED = 1_000_000
# Told to the server on the thread that calls add(); some hundredths of a second.
_AT_ONCE = 2_000


class ServerGuard(Protocol):
    """Decides when a server that failed may be asked again; told of every failure."""

    @property
    def open(self) -> bool:
        """True while the server is not to be asked."""

    def failed(self, error: BaseException) -> None: ...

    def worked(self, *, has_written: bool = False) -> None: ...


class SteadySharedFilter:
    """:meth:`add`, :meth:`forget` and ``in`` never raise for a server that is away.

    ``submit`` runs a function on a worker thread, in order, and returns its future. :meth:`tick` has to be
    called from time to time, on the thread that calls :meth:`add`; it reads the filter's figures every
    ``refresh_s`` seconds. ``outlives_store``: requests of this process stay seen after the server has lost the filter;
    False where the queue is lost together with it. ``given_up`` counts what was new and is not owed, since too much is.
    """

    def __init__(
        self,
        shared: SharedBloomFilter,
        guard: ServerGuard,
        submit: Callable[..., Future[Any]],
        *,
        refresh_s: float = 10.0,
        outlives_store: bool = True,
    ) -> None:
        self.shared = shared
        self._guard = guard
        self._submit = submit
        self._refresh_s = refresh_s
        self._outlives_store = outlives_store
        self._refreshed = time.monotonic()
        self._own = GrowingBloomFilter(shared.capacity, shared.error_rate)
        # Lent is what the attempt under way tells the server; it is owed again when that fails.
        self._owed: list[bytes] = []
        self._lent: list[bytes] = []
        self._to_forget: dict[bytes, None] = {}
        self._lent_to_forget: dict[bytes, None] = {}
        # What start requests of this process recorded, and what of that the server is not told yet.
        self._starts = Forgotten()
        self._owed_starts: list[bytes] = []
        self._asked_away: list[bytes] = []
        self._attempt: Future[Any] | None = None
        self.is_away = False
        self.given_up = 0

    @property
    def description(self) -> Description:
        """The shared filter when its figures were last read; the server is not asked."""
        return self.shared.last_description

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new, as far as that can be known now."""
        if not self.is_away:
            try:
                answer = self.shared.answer(fingerprint)
            except StoreError as error:
                self._lose(error)
            else:
                was_asked = not self._own.add(fingerprint)
                return answer != SEEN and not (answer == NEW and was_asked and self._goes_by_own)
        is_new = self._own.add(fingerprint)
        if is_new:
            if len(self._owed) < _MOST_OWED:
                self._owed.append(fingerprint)
            else:
                self.given_up += 1
        for pending in (self._to_forget, self._lent_to_forget):
            if fingerprint in pending:
                # The server need not be told: it has been new once more.
                pending.pop(fingerprint, None)
                is_new = True
        if is_new:
            self._asked_away.append(fingerprint)
        return is_new

    def note_start(self, fingerprint: bytes) -> None:
        """Note that one redirect to the fingerprint may pass, here and in one other process."""
        self._starts.add_many((fingerprint,))
        # The server keeps each in some 80 bytes.
        if len(self._starts) <= _MOST_OWED:
            self._owed_starts.append(fingerprint)
        if not self.is_away:
            try:
                self._tell_starts()
            except StoreError as error:
                self._lose(error)

    def take_start(self, fingerprint: bytes) -> bool:
        """Whether a redirect to the fingerprint may pass; it has passed then."""
        if self._starts.was_taken(fingerprint):
            return False
        is_own = self._starts.take(fingerprint)
        if not self.is_away:
            try:
                return self.shared.take_start(fingerprint) or is_own
            except StoreError as error:
                self._lose(error)
        return is_own

    def take_asked_again(self) -> list[bytes]:
        """Those that were new since the last call, and that may have been asked for before by this job.

        They are those of :meth:`SharedBloomFilter.take_asked_again`, and all that were new while the server was away.
        """
        away, self._asked_away = self._asked_away, []
        return away + self.shared.take_asked_again()

    def __contains__(self, fingerprint: bytes) -> bool:
        if not self.is_away:
            try:
                return fingerprint in self.shared or (self._goes_by_own and fingerprint in self._own)
            except StoreError as error:
                self._lose(error)
        if fingerprint in self._to_forget or fingerprint in self._lent_to_forget:
            return False
        return fingerprint in self._own

    def forget(self, fingerprints: Iterable[bytes]) -> None:
        """Let each be new once more, as :meth:`SharedBloomFilter.forget`, from the next :meth:`tick` on."""
        self._to_forget.update(dict.fromkeys(fingerprints))

    def tick(self) -> None:
        """Keep the lease and tell what is owed while the server answers; try it while it does not."""
        if self._attempt is not None:
            if not self._attempt.done():
                return
            self._settle(self._attempt)
            self._attempt = None
        if self.is_away:
            if not self._guard.open:
                self._lent, self._owed = self._owed, []
                self._lent_to_forget, self._to_forget = self._to_forget, {}
                self._attempt = self._submit(self._pay, self._lent, self._lent_to_forget)
        elif self._to_forget:
            self._lent_to_forget, self._to_forget = self._to_forget, {}
            self._attempt = self._submit(self.shared.forget, self._lent_to_forget)
        elif self.shared.wants_renewal:
            self._attempt = self._submit(self.shared.renew)
        elif time.monotonic() - self._refreshed > self._refresh_s:
            self._refreshed = time.monotonic()
            self._attempt = self._submit(self.shared.describe)

    def clear(self, *, of_all: bool = False) -> None:
        """Forget what this process asked, and leave; the last one to leave deletes the shared filter.

        With ``of_all`` any does, and the others begin it anew.
        """
        self._own = GrowingBloomFilter(self.shared.capacity, self.shared.error_rate)
        self._owed, self._lent = [], []
        self._starts, self._owed_starts = Forgotten(), []
        self._to_forget, self._lent_to_forget = {}, {}
        self.shared.describe()
        self.shared.detach(delete=True, of_all=of_all)

    def leave(self, *, delete: bool, cut: bool = False) -> None:
        """Tell what is owed and leave as :meth:`SharedBloomFilter.detach`; on the worker. May raise StoreError."""
        owed, to_forget = self._lent + self._owed, self._lent_to_forget | self._to_forget
        if owed or self.is_away:
            self._pay(owed, to_forget)
        elif to_forget:
            self.shared.forget(to_forget)
        self._owed, self._lent = [], []
        self._to_forget, self._lent_to_forget = {}, {}
        self.shared.describe()
        self.shared.detach(delete=delete, cut=cut)

    @property
    def _goes_by_own(self) -> bool:
        return self._outlives_store and self.shared.times_lost > 0

    def _tell_starts(self) -> None:
        self.shared.note_starts(self._owed_starts)
        self._owed_starts = []

    def _pay(self, owed: list[bytes], to_forget: Iterable[bytes]) -> None:
        self.shared.attach()
        # First, or another process could find them recorded by then, and its redirect would not pass.
        self.shared.note_starts(tuple(self._owed_starts))
        self.shared.add_many(owed)
        self.shared.forget(to_forget)

    def _lose(self, error: StoreError) -> None:
        self.is_away = True
        self._guard.failed(error)

    def _settle(self, attempt: Future[Any]) -> None:
        error = attempt.exception()
        if error is not None:
            self._owed = self._lent + self._owed
            self._to_forget = self._lent_to_forget | self._to_forget
        self._lent, self._lent_to_forget = [], {}
        if error is not None:
            self.is_away = True
            self._guard.failed(error)
        elif self.is_away and len(self._owed) <= _AT_ONCE:
            self._come_back()

    def _come_back(self) -> None:
        # A busy crawl has found something new since; told by the worker, that would go on without end.
        try:
            self._tell_starts()
            self.shared.add_many(self._owed)
        except StoreError as error:
            self._guard.failed(error)
            return
        self._owed = []
        self.is_away = False
        self._guard.worked(has_written=True)
