"""Reads the ``DEDUPE_*`` settings, and finds wrong and misspelled ones. Settings are only read here.

:func:`read_settings` converts Scrapy's settings to the frozen dataclasses of :mod:`.groups`. A wrong value raises
:class:`~scrapy_dedupe.errors.SettingError` with the name, the value and the allowed values.
"""

from __future__ import annotations

import logging
import re
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from scrapy.settings import default_settings

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.location import NAMELESS, parse_store_url, shown_value

from .groups import Settings, in_data_folder
from .values import LOCAL, Spec

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

MIN_URL_CAPACITY: Final = 10_000

# The classes of the groups, by the names of their fields and in their order.
_GROUPS: Final[dict[str, Any]] = {
    name: kind for name, kind in get_type_hints(Settings).items() if is_dataclass(kind)
}


def _specs_of(group: type) -> dict[str, Spec]:
    """The settings of a group, by the names of its fields."""
    return {each.name: each.metadata["spec"] for each in fields(group) if "spec" in each.metadata}


SPECS: Final[tuple[Spec, ...]] = tuple(
    spec for group in (Settings, *_GROUPS.values()) for spec in _specs_of(group).values()
)
"""All settings."""


def read_settings(settings: BaseSettings) -> Settings:
    """Read and check all settings. Raises :class:`SettingError` for the first wrong one."""
    own, urls, content, warc, *others = (
        {name: _value(settings, spec) for name, spec in _specs_of(group).items()}
        for group in (Settings, *_GROUPS.values())
    )
    if warc["item_field"] is not None and warc["scope"] == "items":
        # Other items may be processed before the WarcItem that records their response.
        raise SettingError(
            'The setting DEDUPE_WARC_ITEM_FIELD needs DEDUPE_WARC_SCOPE = "responses". With "items", read the record of'
            " a WarcItem from item.response.meta['warc'] after the pipeline."
        )
    urls |= _url_values(settings, urls, own["store_url"])
    own["store_url"] = store_url = own["store_url"] or f"sqlite:///{in_data_folder('dedupe/dedupe.sqlite')}"
    content["store_url"] = content["store_url"] or store_url
    warc["index_url"] = warc["index_url"] or store_url
    jobdir = settings.get("JOBDIR")
    groups = {
        name: group(**values)
        for (name, group), values in zip(_GROUPS.items(), (urls, content, warc, *others), strict=True)
    }
    return Settings(**own, **groups, jobdir=Path(jobdir) if jobdir else None)


def _url_values(settings: BaseSettings, values: dict[str, Any], store_url: str | None) -> dict[str, Any]:
    """The values of the URL filter that depend on other settings."""
    capacity = values["capacity"]
    if capacity is None:
        pages = settings.getint("CLOSESPIDER_PAGECOUNT")
        capacity = max(MIN_URL_CAPACITY, pages * values["urls_per_page"])
    url = values["store_url"] or store_url
    is_shared = url is not None and url != LOCAL and parse_store_url(url).is_redis
    if is_shared and values["confirm"]:
        raise SettingError(
            "The setting DEDUPE_URL_CONFIRM is True, but the URL filter is in Redis. An exact set on disk cannot be"
            ' shared by several processes. Set DEDUPE_URL_STORE_URL = "local", or set DEDUPE_URL_CONFIRM = False and a'
            " lower DEDUPE_URL_ERROR_RATE."
        )
    has_jobdir = bool(settings.get("JOBDIR"))
    queue_persists = settings.getbool("SCHEDULER_PERSIST")
    forget_failed = values["forget_failed"]
    return {
        "capacity": capacity,
        "store_url": url if is_shared else None,
        "persist": has_jobdir or queue_persists,
        "queue_persists": queue_persists,
        "forget_failed": has_jobdir if forget_failed is None else forget_failed,
    }


def _value(settings: BaseSettings, spec: Spec) -> Any:
    raw = settings.get(spec.name)
    if raw is None:
        return None if spec.default is None else spec.read(spec.default)
    try:
        return spec.read(raw)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, SettingError) and str(error).startswith(NAMELESS):
            # This message names the mistake and has no password.
            raise SettingError(f"The setting {spec.name}{str(error).removeprefix(NAMELESS)}") from None
        # The value of any setting may be a URL with a password, which shown_value() removes.
        raise SettingError(
            f"The setting {spec.name} is {shown_value(raw)}. Allowed: {spec.allowed}."
        ) from error


def faults_of(settings: BaseSettings) -> list[str]:
    """A sentence for each wrong setting, not only the first one."""
    faults = []
    for spec in SPECS:
        try:
            _value(settings, spec)
        except SettingError as error:
            faults.append(str(error))
    if faults:
        return faults
    try:
        # Single settings are correct, but their combination may be wrong.
        read_settings(settings)
    except SettingError as error:
        faults.append(str(error))
    return faults


_PREFIX: Final = "DEDUPE_"
_KNOWN: Final = [spec.name for spec in SPECS]
_RESTS: Final = [name.removeprefix(_PREFIX) for name in _KNOWN]
# Not DUPE, which may belong to another package.
_SIMILAR_NAME: Final = re.compile(r"(?:SCRAPY_)?DE_?D[UP][A-Z]*_(.{1,100})")
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
    found = _SIMILAR_NAME.fullmatch(name.upper())
    near = get_close_matches(found[1], _RESTS, n=1, cutoff=_MIN_REST_SIMILARITY) if found else []
    return f"{_PREFIX}{near[0]}" if near else None
