"""The extensions of this package, for the ``EXTENSIONS`` setting.

Each extension is imported when first used, so that crawls do not load extensions that they do not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .live.observers.duplicates_log import DuplicatesLogExtension
    from .live.observers.metrics import MetricsExtension
    from .live.observers.passages import PassageExtension
    from .live.observers.report import ReportExtension

__all__ = ["DuplicatesLogExtension", "MetricsExtension", "PassageExtension", "ReportExtension"]

_MODULES: Final = {
    "DuplicatesLogExtension": "duplicates_log",
    "MetricsExtension": "metrics",
    "PassageExtension": "passages",
    "ReportExtension": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".live.observers.{_MODULES[name]}", __package__), name)
