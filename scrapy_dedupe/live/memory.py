"""Settings that make memory cheaper while crawls run: the garbage collection of Python, and the limits of malloc.

**Garbage collection** (``DEDUPE_GC_FREEZE``). A crawl creates and drops many objects, so Python often searches for
garbage. The searches take a fifth of the CPU time of a crawl, even without this package. Two changes save most of it:

- Most objects of the process belong to modules and classes, which exist until the process ends. :func:`gc.freeze` excludes
  them from the search.
- Python searches the new objects whenever there are 700 (2,000 in newer versions). Many of these objects are still in use, only because their page is
  not finished: Scrapy has about 1,000 objects for each page in progress, most of them for the items. With 20,000, most
  have been freed before the search. Objects that survive are searched again after fewer searches than by default.

Both affect the whole process, so they apply from the start of the first crawl to the end of the last one.

A response refers to itself through its selector, so only a search would free its body and its tree, which are much larger
than the objects that Python counts. :class:`PageTrees` frees them soon after the last other reference is gone.

**malloc.** By default glibc returns memory to the operating system as soon as 128 kB at the end of a heap are free, and takes
blocks of 128 kB or more directly from it. The trees of a page, here and in Scrapy's selectors, need a few megabytes. Then
each page costs hundreds of page faults, which take more time than parsing it.

glibc raises both limits when a program frees a larger block: the second one to the size of the block, the first one to
twice this size (mallopt(3), M_MMAP_THRESHOLD). This affects the whole process, as any freed block of this size does. Limits
in the environment (GLIBC_TUNABLES) have priority, and other C libraries are not affected.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

if TYPE_CHECKING:
    from scrapy.http import Response

# With 5,000 the searches take about 0.15 ms of a page more.
_THRESHOLDS: Final = (20_000, 3, 3)
# Responses of which PageTrees knows. Older ones are left to the garbage collection.
_MOST_RESPONSES: Final = 1_000

# The trees of a page of 1 MB need about 15 MB.
_BLOCK_BYTES: Final = 8 * 1_048_576

# Number of running crawls for which the objects are frozen. All crawls of a process run on one thread.
_crawls = 0
# The thresholds that were replaced.
_earlier: tuple[int, ...] = ()


def freeze_for_crawl() -> bool:
    """Freeze the objects for one more crawl; False if the application has frozen objects itself, which has priority."""
    global _crawls, _earlier
    if _crawls == 0:
        if gc.get_freeze_count():
            return False
        # Not the oldest generation: that takes 50 ms, and a startup leaves hardly any garbage in it.
        gc.collect(1)
        gc.freeze()
        thresholds = gc.get_threshold()
        # 0 as the first number: the program wants no searches. As the last one: the collector of Python 3.14.0 to 3.14.4, for
        # which the second number means something else.
        if 0 < thresholds[0] < _THRESHOLDS[0] and thresholds[2]:
            _earlier = thresholds
            gc.set_threshold(*_THRESHOLDS)
    _crawls += 1
    return True


def unfreeze_after_crawl() -> None:
    """Unfreeze the objects if no other crawl needs them frozen. Call this once for each crawl that froze them."""
    global _crawls, _earlier
    _crawls -= 1
    if _crawls == 0:
        gc.unfreeze()
        if _earlier and gc.get_threshold() == _THRESHOLDS:
            gc.set_threshold(*_earlier)
        _earlier = ()


def keep_freed_memory() -> None:
    """Raise the limits of glibc to 8 and 16 MB. Takes microseconds, because the block is not used."""
    bytes(_BLOCK_BYTES)


class PageTrees:
    """The trees of the responses of one crawl, which are freed when nothing uses the response any more.

    Use it on the event loop.
    """

    def __init__(self) -> None:
        self._responses: list[ref[Response]] = []

    def add(self, response: Response) -> None:
        """Free the tree of *response* when nothing uses it."""
        self._responses.append(ref(response))

    def free(self) -> None:
        """Free the trees of responses to which only their selectors refer."""
        kept = []
        for known in self._responses[-_MOST_RESPONSES:]:
            response: Any = known()
            if response is None:
                continue
            # Scrapy creates the selector, and with it the cycle, on first access.
            if getattr(response, "_cached_selector", None) is not None and _references(response) == _UNUSED:
                response._cached_selector = None
            else:
                kept.append(known)
        self._responses = kept


def _references(response: Any) -> tuple[int, int]:
    """The numbers of references to a response and to its selector."""
    return sys.getrefcount(response), sys.getrefcount(response._cached_selector)


def _references_if_unused() -> tuple[int, int]:
    # Versions of Python count the references of calls and variables differently.
    response = SimpleNamespace()
    response._cached_selector = SimpleNamespace(response=response)
    return _references(response)


_UNUSED: Final = _references_if_unused()
