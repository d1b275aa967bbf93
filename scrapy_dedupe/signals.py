"""Signals that this package sends."""

from __future__ import annotations

from typing import Final

content_judged: Final = object()
"""Sent for every page with a verdict, before the page is passed on or dropped.

Arguments: ``verdict`` (:class:`~scrapy_dedupe.content.Verdict`), ``response``, ``request`` and ``spider``. Handlers are
called on the event loop and must not be coroutines.
"""
