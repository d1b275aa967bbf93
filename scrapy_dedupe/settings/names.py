"""Finds misspelled settings: unknown ``DEDUPE_*`` names, and known names with a wrong prefix."""

from __future__ import annotations

import logging
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, Final

from scrapy.settings import default_settings

from .specs import SPECS

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

_PREFIX: Final = "DEDUPE_"
_KNOWN: Final = [spec.name for spec in SPECS]
_RESTS: Final = [name.removeprefix(_PREFIX) for name in _KNOWN]
_MAX_CHARS: Final = 100
# SCRAPY_DE_DUPE has three words.
_MAX_PREFIX_WORDS: Final = 3
# Above the similarity of DUPE (0.8), which may belong to another package.
_MIN_PREFIX_SIMILARITY: Final = 0.82
_MIN_REST_SIMILARITY: Final = 0.85


def set_names(settings: BaseSettings) -> list[str]:
    """The ``DEDUPE_*`` names that are set, known or not."""
    return sorted(name for name in settings if isinstance(name, str) and name.startswith(_PREFIX))


def unknown_names(settings: BaseSettings) -> list[tuple[str, str | None]]:
    """Misspelled names of this package's settings, each with the most similar known name or None.

    These are unknown ``DEDUPE_*`` names, and names that match a known one except for the prefix, such as
    ``DEDUP_WARC_DIR`` and ``SCRAPY_DEDUPE_STORE_URL``.
    """
    known = set(_KNOWN)
    found: list[tuple[str, str | None]] = [
        (name, next(iter(get_close_matches(name, _KNOWN, n=1)), None))
        for name in set_names(settings)
        if name not in known
    ]
    for name in settings:
        is_other = isinstance(name, str) and not name.startswith(_PREFIX)
        # Not hasattr(): Scrapy warns when a setting that it deprecates is looked up there.
        if is_other and name not in vars(default_settings) and (meant := _meant(name)) is not None:
            found.append((name, meant))
    return sorted(found)


def warn_of_unknown(settings: BaseSettings) -> None:
    """Log a warning for each misspelled name, with the most similar known name."""
    for name, nearest in unknown_names(settings):
        hint = f"; did you mean {nearest}?" if nearest else "."
        logger.warning("The setting %s is unknown and has no effect%s", name, hint)


def _meant(name: str) -> str | None:
    """The setting of this package that was probably meant by a name with another prefix.

    Both the prefix and the rest must be similar, because the name may be a setting of another package.

    >>> _meant("DE_DUPE_WARC_DIRS"), _meant("DUPEFILTER_CLASS"), _meant("DEDUP_SERVER")
    ('DEDUPE_WARC_DIR', None, None)
    """
    words = name[:_MAX_CHARS].upper().split("_")
    for count in range(1, _MAX_PREFIX_WORDS + 1):
        prefix = "".join(words[:count]).removeprefix("SCRAPY")
        if not prefix.startswith("D"):
            continue
        is_like = (
            prefix.startswith("DEDUP")
            or SequenceMatcher(None, prefix, "DEDUPE").ratio() >= _MIN_PREFIX_SIMILARITY
        )
        rest = "_".join(words[count:])
        if is_like and (near := get_close_matches(rest, _RESTS, n=1, cutoff=_MIN_REST_SIMILARITY)):
            return f"{_PREFIX}{near[0]}"
    return None
