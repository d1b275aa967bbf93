"""The URL filter: a growing Bloom filter of request fingerprints, stored in a job's folder or in Redis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .bloom import GrowingBloomFilter
    from .shared import SharedBloomFilter

__all__ = [
    "GrowingBloomFilter",
    "SharedBloomFilter",
]

_MODULES: Final = {
    "GrowingBloomFilter": "bloom",
    "SharedBloomFilter": "shared",
}


def __getattr__(name: str) -> Any:
    # Imported when first used, so that using one module does not import all others.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
