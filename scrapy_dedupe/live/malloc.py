"""Lets glibc keep the memory that a crawl frees after each page, for the next page.

By default glibc returns memory to the operating system as soon as 128 kB at the end of a heap are free, and takes blocks of
128 kB or more directly from it. The trees of a page, here and in Scrapy's selectors, need a few megabytes. Then each page
costs hundreds of page faults, which take more time than parsing it.

glibc raises both limits when a program frees a larger block: the second one to the size of the block, the first one to
twice this size (mallopt(3), M_MMAP_THRESHOLD). This affects the whole process, as any freed block of this size does. Limits
in the environment (GLIBC_TUNABLES) have priority, and other C libraries are not affected.
"""

from __future__ import annotations

from typing import Final

# The trees of a page of 1 MB need about 15 MB.
_BLOCK_BYTES: Final = 8 * 1_048_576


def keep_freed_memory() -> None:
    """Raise the limits of glibc to 8 and 16 MB. Takes microseconds, because the block is not used."""
    bytes(_BLOCK_BYTES)
