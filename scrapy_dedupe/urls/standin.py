"""A shared filter that goes on when its server is away.

While the server does not answer, a filter of this process answers from what the process itself has asked, so
that links are not queued again and again; another process may ask for the same pages meanwhile. What was new
then is owed to the server and written back when it answers again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from scrapy_dedupe.errors import StoreError
from scrapy_dedupe.urls.bloom import GrowingBloomFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from scrapy_dedupe.urls.shared import SharedBloomFilter

_MOST_OWED = 1_000_000


class Guard(Protocol):
    """Decides when a server that failed may be asked again; told of every failure."""

    @property
    def open(self) -> bool:
        """True while the server is not to be asked."""

    def failed(self, error: BaseException) -> None: ...

    def worked(self) -> None: ...


class SteadySharedFilter:
    """:meth:`add` never raises for a server that is away.

    ``submit`` runs a function on a worker thread, in order, and returns its future. :meth:`tick` has to be
    called from time to time, on the thread that calls :meth:`add`.
    """

    def __init__(self, shared: SharedBloomFilter, guard: Guard, submit: Callable[..., Future[Any]]) -> None:
        self.shared = shared
        self._guard = guard
        self._submit = submit
        self._own = GrowingBloomFilter(shared.capacity, shared.error_rate)
        self._owed: list[bytes] = []
        self._lent: list[bytes] = []
        self._attempt: Future[None] | None = None
        self.is_away = False
        self.forgotten = 0

    def add(self, fingerprint: bytes) -> bool:
        """Record the fingerprint; True if it is new, as far as that can be known now."""
        if not self.is_away:
            try:
                is_new = self.shared.add(fingerprint)
            except StoreError as error:
                self.is_away = True
                self._guard.failed(error)
            else:
                self._own.add(fingerprint)
                return is_new
        is_new = self._own.add(fingerprint)
        if is_new:
            if len(self._owed) < _MOST_OWED:
                self._owed.append(fingerprint)
            else:
                self.forgotten += 1
        return is_new

    def tick(self) -> None:
        """Keep the lease while the server answers; try it, and pay back, while it does not."""
        if self._attempt is not None:
            if not self._attempt.done():
                return
            self._settle(self._attempt)
            self._attempt = None
        if self.is_away:
            if not self._guard.open:
                self._lent, self._owed = self._owed, []
                self._attempt = self._submit(self._pay, self._lent)
        elif self.shared.wants_renewal:
            self._attempt = self._submit(self.shared.renew)

    def clear(self) -> None:
        """Forget what this process asked, and leave; the last one to leave deletes the shared filter."""
        self._own = GrowingBloomFilter(self.shared.capacity, self.shared.error_rate)
        self._owed = []
        self.shared.detach(delete=True)

    def leave(self, *, delete: bool, cut: bool = False) -> None:
        """Pay back what is owed and leave as :meth:`SharedBloomFilter.detach`; on the worker. May raise StoreError."""
        owed = self._lent + self._owed
        if owed:
            self._pay(owed)
        self.shared.detach(delete=delete, cut=cut)

    def _pay(self, owed: list[bytes]) -> None:
        self.shared.attach()
        self.shared.add_many(owed)

    def _settle(self, attempt: Future[None]) -> None:
        error = attempt.exception()
        if error is not None:
            self.is_away = True
            self._owed = self._lent + self._owed
            self._lent = []
            self._guard.failed(error)
            return
        self._lent = []
        if self.is_away and not self._owed:
            self.is_away = False
            self._guard.worked()
