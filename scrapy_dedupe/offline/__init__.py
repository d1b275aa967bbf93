"""Offline deduplication of WARC files: find duplicates, verify them, replace them with revisits, and restore them.

Each step is a function of files and manifests, so that several machines can share the work: `summing` writes a
manifest of digests, `collisions` compares payloads, `ordering` sorts and splits manifests and chooses originals,
`rewriting` writes revisits, `scrapy_dedupe.verification` compares both archives, `restoring` reverts the change.
`arc_conversion` converts ARC files to WARC. `steps` runs all steps of a deduplication.

Their parts are in these modules:

- manifests, and the files that they name: `manifest`, `manifest_lines`, `digests`, `places`;
- rows and the plan: `rows`, `row_scan`, `plan`, `plan_lines`, `plan_queries`;
- new records and files: `eligibility`, `revisits`, `reference_changes`, `file_rewriting`, `final_names`;
- restoration: `restored_files`, `restored_records`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy_dedupe.verification import verify

    from .arc_conversion import convert_arc
    from .collisions import resolve_collisions
    from .manifest import LineWriter, ManifestLine, read_lines
    from .ordering import by_cluster, number
    from .places import Places
    from .restoring import restore
    from .rewriting import rewrite
    from .summing import sum_files

__all__ = [
    "LineWriter",
    "ManifestLine",
    "Places",
    "by_cluster",
    "convert_arc",
    "number",
    "read_lines",
    "resolve_collisions",
    "restore",
    "rewrite",
    "sum_files",
    "verify",
]

_MODULES: Final = {
    "LineWriter": "manifest",
    "ManifestLine": "manifest",
    "Places": "places",
    "by_cluster": "ordering",
    "convert_arc": "arc_conversion",
    "number": "ordering",
    "read_lines": "manifest",
    "resolve_collisions": "collisions",
    "restore": "restoring",
    "rewrite": "rewriting",
    "sum_files": "summing",
    "verify": ".verification",  # the folder beside this one
}


def __getattr__(name: str) -> Any:
    # Imported when first used, so that using one module does not import all others.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
