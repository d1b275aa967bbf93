"""Deduplication for Scrapy: filters known URLs, finds pages with known texts, stores each payload once in WARC files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .addon import Addon

__all__ = ["Addon"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Imported lazily, so that subpackages can be used without Scrapy and `scrapy` commands start quickly.
    if name == "Addon":
        from .addon import Addon

        return Addon
    if name.lower() in ("addon", "addons", "dedupeaddon") and name != "addon":  # a submodule
        from .errors import SettingError

        # Scrapy replaces an AttributeError by a message of its own, which does not name the correct spelling.
        raise SettingError(
            f'The package scrapy_dedupe has no attribute {name}. Enable the add-on with ADDONS = {{"scrapy_dedupe.Addon": 500}}.'
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
