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
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
