"""Ask each URL once, read each text once, store each byte once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .addon import Addon

__all__ = ["Addon"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazy, so that the rooms can be used without a crawl and `scrapy` starts no slower for having us.
    if name == "Addon":
        from .addon import Addon

        return Addon
    if name.lower() in ("addon", "addons", "dedupeaddon") and name != "addon":  # that is a module
        from .errors import SettingError

        # Scrapy would hide an AttributeError behind a sentence of its own, which names no other spelling.
        raise SettingError(
            f'The package has nothing named {name}. Write the add-on as ADDONS = {{"scrapy_dedupe.Addon": 500}}.'
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
