"""HTML parsing in bounded time.

An HTML5 parser takes linear time on usual pages and quadratic time on some others: each ``<div>`` walks all open
elements, each attribute is compared with those before it, each paragraph gets copies of all formatting elements that
were not closed. Two checks protect the crawl from such pages.

The *screen* (:mod:`.screen`) reads the markup in linear time and estimates how long lexbor will take. A page over the
budget, about 50 ms of parsing, is rejected. The screen also bounds the memory.

The *deadline* covers patterns that the screen does not know. The page is parsed on a helper thread; lexbor releases
the GIL. The parse is abandoned after 100 ms of processor time, or 250 ms per MB if that is more; normal pages need
about a tenth of this. Only processor time counts, so that a busy machine rejects no page, except that wall-clock time
is limited to 50 times the deadline. Where the system cannot report the processor time of another thread, the limit is
5 times the deadline in wall-clock time. A parse cannot be stopped from outside and runs to its end; while two
abandoned parses run, pages that need a helper are rejected at once. Helpers are daemon threads: they do not keep the
process alive.

Small pages skip both checks: with at most 800 tags and 16,000 bytes no known pattern takes 50 ms or 150 MB.
"""

from __future__ import annotations

import os
import threading
import time
from queue import SimpleQueue
from typing import Final

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from .screen import rejection_reason

_FEW_TAGS: Final = 800
_FEW_BYTES: Final = 16_000

_DEADLINE_S: Final = 0.1
_DEADLINE_S_PER_BYTE: Final = 0.25e-6
# Limits of the wall-clock time, in deadlines: with and without the processor time of the helper.
_CLOCK_FACTOR: Final = 50
_CLOCK_FACTOR_WITHOUT_CPU_TIME: Final = 5
_MOST_GIVEN_UP: Final = 2

# Whether a thread can read the processor time of another.
_HAS_THREAD_CLOCKS: Final = hasattr(time, "pthread_getcpuclockid")


class HostileMarkup(Exception):
    """Parsing the page would take far longer than its size explains. The message gives the reason in one sentence."""


def parse(html: bytes) -> LexborHTMLParser:
    """Parse a page, given as UTF-8. Raises :class:`HostileMarkup`.

    >>> parse(b"<p>a").body.text()
    'a'
    """
    if len(html) <= _FEW_BYTES and html.count(b"<") <= _FEW_TAGS:
        return _parse(html)
    if (reason := rejection_reason(html)) is not None:
        raise HostileMarkup(f"Parsing the page would take too long: {reason}.")
    return _helpers.parse(html)


def _parse(html: bytes) -> LexborHTMLParser:
    # Without mutation events lexbor is faster, and does not copy the chosen <option> into <selectedcontent>.
    return LexborHTMLParser(html, options=LexborDocumentOptions.WO_EVENTS)


class _Job:
    """A page for a helper to parse. The lock *done* is held until the parse has ended."""

    __slots__ = ("done", "error", "html", "is_given_up", "start_s", "tree")

    def __init__(self, html: bytes) -> None:
        self.html = html
        self.tree: LexborHTMLParser | None = None
        self.error: Exception | None = None
        self.start_s: float | None = None
        self.is_given_up = False
        self.done = threading.Lock()
        self.done.acquire()


class _Helper:
    """A thread that parses pages one after another."""

    def __init__(self, helpers: _Helpers) -> None:
        self._helpers = helpers
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._clock: int | None = None
        threading.Thread(target=self._run, name="dedupe-parser", daemon=True).start()

    def start(self, job: _Job) -> None:
        self._jobs.put(job)

    def wait(self, job: _Job, deadline_s: float) -> bool:
        """Wait until the job is done; False if its deadline passes first."""
        factor = _CLOCK_FACTOR if _HAS_THREAD_CLOCKS else _CLOCK_FACTOR_WITHOUT_CPU_TIME
        clock_end_s = time.monotonic() + factor * deadline_s
        while True:
            left_s = deadline_s - self._spent_s(job) if _HAS_THREAD_CLOCKS else factor * deadline_s
            clock_left_s = clock_end_s - time.monotonic()
            if left_s <= 0 or clock_left_s <= 0:
                return False
            if job.done.acquire(timeout=min(max(left_s, 0.001), clock_left_s)):
                return True

    def _spent_s(self, job: _Job) -> float:
        # The helper sets both before it starts to parse.
        if job.start_s is None or self._clock is None:
            return 0.0
        return time.clock_gettime(self._clock) - job.start_s

    def _run(self) -> None:
        if _HAS_THREAD_CLOCKS:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        while True:
            job = self._jobs.get()
            job.start_s = time.thread_time()
            try:
                job.tree = _parse(job.html)
            except Exception as error:  # noqa: BLE001 (raised again in _Helpers.parse())
                job.error = error
            self._helpers.end(self, job)
            del job  # only the waiting thread may keep the tree alive


class _Helpers:
    """The idle helpers, and the number of abandoned parses that still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Helper] = []
        self._given_up = 0

    def parse(self, html: bytes) -> LexborHTMLParser:
        """Let a helper parse a page. Raises :class:`HostileMarkup` after the deadline."""
        with self._lock:
            if self._given_up >= _MOST_GIVEN_UP:
                raise HostileMarkup(
                    f"The page is not parsed: {self._given_up} earlier pages that took too long are still being parsed."
                )
            helper = self._free.pop() if self._free else None
        if helper is None:
            helper = _Helper(self)
        job = _Job(html)
        deadline_s = max(_DEADLINE_S, _DEADLINE_S_PER_BYTE * len(html))
        helper.start(job)
        is_done = False
        try:
            is_done = helper.wait(job, deadline_s)
        finally:
            with self._lock:
                # end() takes the same lock: a job either ends in time or is abandoned, never both.
                is_done = is_done or job.done.acquire(blocking=False)
                if is_done:
                    self._free.append(helper)
                else:
                    job.is_given_up = True
                    self._given_up += 1
        if not is_done:
            raise HostileMarkup(f"Parsing the page was given up after {deadline_s * 1000:.0f} ms.")
        if job.error is not None:
            raise job.error
        assert job.tree is not None
        return job.tree

    def end(self, helper: _Helper, job: _Job) -> None:
        """Called by a helper when its job has ended."""
        with self._lock:
            job.done.release()
            if job.is_given_up:
                self._given_up -= 1
                self._free.append(helper)


_helpers = _Helpers()


def _forget_helpers() -> None:
    global _helpers
    _helpers = _Helpers()


# Threads do not survive in the child of a fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)
