"""WARC files: captured exchanges (capture), writing them (records, files), salvage and reading.

Plain Python that needs no crawl: no module here imports Scrapy or another subpackage.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .containers import find_files
    from .files import WarcWriter
    from .reading import StoredRecord, read_record, read_records
    from .wacz import pack, write_multi_wacz

__all__ = [
    "StoredRecord",
    "WarcWriter",
    "find_files",
    "pack",
    "read_record",
    "read_records",
    "write_multi_wacz",
]

_MODULES: Final = {
    "StoredRecord": "reading",
    "WarcWriter": "files",
    "find_files": "containers",
    "pack": "wacz",
    "read_record": "reading",
    "read_records": "reading",
    "write_multi_wacz": "wacz",
}


def __getattr__(name: str) -> Any:
    # Imported when first used, so that using one module does not import all others.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
