"""HTML parsing in bounded time.

An HTML5 parser takes linear time on usual pages and quadratic time on some others: each ``<div>`` walks all open
elements, each attribute is compared with those before it, each paragraph gets copies of all formatting elements that
were not closed. Two checks protect the crawl from such pages.

The *screen* reads the markup in linear time and estimates how long lexbor will take. A page over the budget, about
50 ms of parsing, is rejected. The screen also bounds the memory. It has two steps. :class:`TagCounts` accepts nearly
all pages at a small part of the cost of parsing them: it identifies tags by their first two letters and counts them with
array operations. A page is *light* if its tags are paired, its nesting is within the budget, it has few attributes, and
few different formatting elements. Other pages are read tag by tag (:mod:`.screen`). Comments and scripts are not
distinguished from markup in the first step, so a crafted page can look light. The damage is bounded: the deadline bounds
the time, and the first step bounds the memory, because it counts formatting elements wherever they occur and limits the
number of different ones times the number of tags.

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
import re
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import numpy as np
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from scrapy_dedupe import kernel

from .screen import MOST_ALIKE, STEP_NS, WorkEstimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

_BUDGET_NS: Final = 50_000_000
_BUDGET_NS_PER_BYTE: Final = 125
# Reading this many tags takes about as long as the budget allows. Quadratic work shows long before; only copies of
# formatting elements, which also need memory, are searched for up to the end of the page.
_MOST_TAGS_READ: Final = 20_000

# A tag of more than this many bytes is checked individually.
_LONG: Final = 2_000
_MOST_LONG: Final = 100
# Copies of elements, about 700 bytes each in lexbor; half of the page's size in bytes, if that is more.
_MOST_COPIES: Final = 700_000

_LETTERS: Final = 27
_NO_NAME: Final = 26 * _LETTERS

# Attributes that every parser reads in the same way, and the end of the tag.
_ATTRIBUTES: Final = (
    rb"""(?:\s++[\w:.-]++(?:="[^"<>]*+"|='[^'<>]*+'|=[\w\#%.,:;?&/+-]++)?+(?=[\s/>])){0,50}+\s*+/?>"""
)
_SIMPLE_TAG: Final = re.compile(rb"</?[a-zA-Z][^\s/<>]*+" + _ATTRIBUTES)

# Formatting elements that can be reopened several times in one block; <a> and <nobr> close an earlier one.
_FORMATTING_NAMES: Final = (
    "b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u",
)  # fmt: skip
# Both cases are written out, because a case-insensitive pattern is several times slower.
_AFTER_FIRST_LETTER: Final = "|".join(
    "".join(f"[{letter}{letter.upper()}]" for letter in name[1:]) for name in _FORMATTING_NAMES
)
# A start tag whose end tag follows, with only text and simple elements in between, is never reopened.
_LEFT_OPEN: Final = re.compile(
    rb"""(<([bceifstuBCEIFSTU](?:%(rest)s))(?=[\s/>])
    (?!%(attributes)s(?:[^<]++|<(a|b|code|em|i|span|strong|tt|var)%(attributes)s[^<]*+</\3>)*+</\2>)
    (?:%(attributes)s)?+)"""
    % {b"rest": _AFTER_FIRST_LETTER.encode(), b"attributes": _ATTRIBUTES},
    re.VERBOSE,
)


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


def rejection_reason(html: bytes) -> str | None:
    """Why a page is rejected; None if it is accepted. *html* is UTF-8."""
    budget_ns = max(_BUDGET_NS, _BUDGET_NS_PER_BYTE * len(html))
    counts = TagCounts(html)
    if counts.is_light and counts.steps <= budget_ns // 2 // STEP_NS:
        return None
    work = WorkEstimate(html.decode(), budget_ns, _MOST_TAGS_READ if counts.is_light else len(html))
    if work.spent_ns > budget_ns:
        return "too many elements stay open inside each other, or one tag has too many attributes"
    return None


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


def _key(name: str) -> int:
    return (ord(name[0]) - 97) * _LETTERS + (ord(name[1]) - 96 if len(name) > 1 else 0)


def _keys_of_pairs() -> NDArray[np.uint16]:
    """The key of each pair of bytes that may follow ``<`` or ``</``."""
    first, second = np.divmod(np.arange(0x10000), 0x100)
    first = (first | 0x20) - 97
    second = (second | 0x20) - 96
    second[(second < 1) | (second > 26)] = 0
    keys = first * _LETTERS + second
    keys[(first < 0) | (first > 25)] = _NO_NAME
    return keys.astype(np.uint16)


def _table(values: dict[str, int], default: int, dtype: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    table = np.full(_NO_NAME + 1, default, dtype)
    table[[_key(name) for name in values]] = list(values.values())
    table[_NO_NAME] = 0
    return table


_KEYS: Final = _keys_of_pairs()
# Empty elements, and elements with optional end tags, have the weight 0: the elements around them count the depth.
_WEIGHTS: Final = _table(
    dict.fromkeys(
        ("p", "br", "hr", "im", "in", "li", "wb", "co", "td", "th", "tr", "tb", "tf", "dd", "dt", "rt", "rp"),
        0,
    ),
    1,
    np.int32,
)
_LEVELS: Final = np.concatenate((_WEIGHTS, -_WEIGHTS))
# The length of the formatting element whose name starts with these letters; 0 if there is none, and for end tags.
_FORMATTING_LENGTHS: Final = np.concatenate(
    (_table({name: len(name) for name in _FORMATTING_NAMES}, 0, np.int64), np.zeros(_NO_NAME + 1, np.int64))
)


class TagCounts:
    """Tag counts of a page, given as UTF-8.

    *steps* is the approximate number of open elements that lexbor must walk through. *is_light* means that neither
    attributes nor copies of formatting elements can become expensive.
    """

    __slots__ = ("is_light", "steps")

    def __init__(self, source: bytes) -> None:
        counted = count_tags(source, _KEYS, _LEVELS, _FORMATTING_LENGTHS, _LONG)
        self.steps, tags, kinds, with_attributes, long = counted
        most = max(_MOST_COPIES, len(source) // 2) // max(tags, 1)
        self.is_light = _has_few_attributes(source, long) and _has_few_formats(
            source, kinds, with_attributes, most
        )


# What the compiled kernel does faster.


def _count_tags(
    source: bytes,
    keys: NDArray[np.uint16],
    levels: NDArray[np.int32],
    formatting_lengths: NDArray[np.int64],
    long: int,
) -> tuple[int, int, int, list[int], list[int]]:
    """Count the tags of *source*; the tables are those of this module.

    Returns the steps, the number of tags, the number of different formatting elements without attributes, the
    positions of formatting elements with attributes, and those of tags with more than *long* bytes to the next tag.
    """
    data = np.frombuffer(source + b"   ", np.uint8)
    tags = np.flatnonzero(data == 0x3C)
    names = tags + 1
    # take() needs less time than indexing.
    is_end = data.take(names) == 0x2F
    names += is_end
    key = keys.take((data.take(names).astype(np.uint16) << 8) | data.take(names + 1)).astype(np.int64)
    key += is_end * (_NO_NAME + 1)
    counts = np.bincount(key, minlength=len(levels)).reshape(2, -1)
    # Unpaired names include non-tags, which may be part of an attribute.
    unpaired = int((np.abs(counts[0] - counts[1]) * levels[: _NO_NAME + 1]).sum() + counts[:, _NO_NAME].sum())
    level = np.cumsum(levels.take(key))
    # End tags without a start tag before them do not reduce the depth of the tags after them.
    ground = np.minimum(np.minimum.accumulate(level), 0)
    steps = int(level.sum() - ground.sum()) + unpaired * len(tags)
    lengths = formatting_lengths.take(key)
    formatting = np.flatnonzero(lengths)
    after = np.minimum(tags[formatting] + lengths[formatting] + 1, len(source))
    is_bare = data[after] == 0x3E
    kinds = len(np.unique(key[formatting[is_bare]]))
    is_long = np.diff(tags, append=len(source)) > long
    return steps, len(tags), kinds, tags[formatting[~is_bare]].tolist(), tags[is_long].tolist()


def _simple_tags(source: bytes, positions: list[int]) -> set[bytes] | None:
    """The different tags at *positions*; None if one of them is not simple."""
    tags = set()
    for at in positions:
        # Nothing is read beyond the next tag, however many tags there are without an end.
        if (match := _SIMPLE_TAG.match(source, at)) is None:
            return None
        tags.add(match[0])
    return tags


def _left_open(source: bytes) -> tuple[set[bytes], int]:
    """The different formatting elements that can be reopened in one block, and the number of tags among them whose
    attributes were not read completely. Each of those may differ from all others.
    """
    found = [tag for tag, *_ in _LEFT_OPEN.findall(source)]
    return set(found), sum(not tag.endswith(b">") for tag in found)


left_open: Final = kernel.function("left_open", _left_open)
simple_tags: Final = kernel.function("simple_tags", _simple_tags)
count_tags: Final = kernel.function("count_tags", _count_tags)


def _has_few_formats(source: bytes, kinds: int, with_attributes: list[int], most: int) -> bool:
    """Whether at most *most* formatting elements can be open at once, counting three of each different one.

    *kinds* is the number of different formatting elements without attributes, *with_attributes* are the positions of
    the others.
    """
    if MOST_ALIKE * kinds + len(with_attributes) <= most:
        return True
    different = simple_tags(source, with_attributes)
    if different is not None and MOST_ALIKE * (kinds + len(different)) <= most:
        return True
    different, unread = left_open(source)
    return MOST_ALIKE * len(different) + unread <= most


def _has_few_attributes(source: bytes, long: list[int]) -> bool:
    return len(long) <= _MOST_LONG and all(
        not source[at + 1 : at + 2].isalpha() or _SIMPLE_TAG.match(source, at) is not None for at in long
    )
