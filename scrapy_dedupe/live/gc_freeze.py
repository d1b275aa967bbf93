"""Excludes the objects of the startup from garbage collection while crawls run (``DEDUPE_GC_FREEZE``).

A crawl creates and drops so many objects that Python often searches all objects of the process for garbage. Most of them
belong to modules and classes, which exist until the process ends. The search takes a fifth of the CPU time of a crawl,
even without this package. :func:`gc.freeze` excludes these objects, which saves about half of it. The call affects the
whole process, so the objects are frozen when the first crawl has started and unfrozen when the last one has stopped.
"""

from __future__ import annotations

import gc

# Number of running crawls for which the objects are frozen. All crawls of a process run on one thread.
_crawls = 0


def crawl_started() -> bool:
    """Freeze the objects for one more crawl; False if the application has frozen objects itself, which has priority."""
    global _crawls
    if _crawls == 0:
        if gc.get_freeze_count():
            return False
        # Not the oldest generation: that takes 50 ms, and a startup leaves hardly any garbage in it.
        gc.collect(1)
        gc.freeze()
    _crawls += 1
    return True


def crawl_stopped() -> None:
    """Unfreeze the objects if no other crawl needs them frozen. Call this once for each crawl that froze them."""
    global _crawls
    _crawls -= 1
    if _crawls == 0:
        gc.unfreeze()
