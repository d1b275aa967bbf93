"""Near copies across archives: the documents in WARC files, grouped by their texts as a crawl would.

Each file is read by itself (`pages`), the texts of each host are signed by themselves (`signing`), and joins over these
rows give the result (`joins`, `deciding`). `job` runs all steps.
"""

from __future__ import annotations

from .job import NearCopies, NearJobOptions, find_near_copies
from .joins import FORMATS, GROUPS
from .pages import PageOptions, read_file
from .signing import sign_texts

__all__ = [
    "FORMATS",
    "GROUPS",
    "NearCopies",
    "NearJobOptions",
    "PageOptions",
    "find_near_copies",
    "read_file",
    "sign_texts",
]
