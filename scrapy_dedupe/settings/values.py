"""How a setting is declared, and the functions that check and convert its raw value.

These functions raise ValueError or TypeError if the value is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.location import REDIS_SCHEMES, parse_store_url
from scrapy_dedupe.warc.files import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Spec:
    """One setting. ``read`` converts the raw value, which is never None, and raises ValueError if it is wrong."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    allowed: str
    help: str
    unit: str = ""


def setting(
    name: str, default: Any, read: Callable[[Any], Any], allowed: str, text: str, unit: str = ""
) -> Any:
    """Return the field of a dataclass that is read from the setting *name*."""
    return field(metadata={"spec": Spec(name, default, read, allowed, text, unit)})


def flag(name: str, default: bool | None, text: str) -> Any:
    """Return the field of a dataclass that is read from a setting that is True or False."""
    return setting(name, default, boolean, "True or False", text)


def boolean(value: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    key = str(value).strip().lower()
    if key not in words:
        raise ValueError
    return words[key]


def integer(minimum: int, maximum: int | None = None) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = int(value)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError
        return number

    return read


def number(check: Callable[[float], bool]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError  # noqa: TRY004 - the same error for all wrong values
        number = float(value)
        if not check(number):
            raise ValueError
        return number

    return read


def choice(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return read


def matching(pattern: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError
        return value

    return read


def store(value: Any) -> str:
    return parse_store_url(value).url


def url_store(value: Any) -> str:
    if value == LOCAL:
        return LOCAL
    if str(value).partition("://")[0] not in REDIS_SCHEMES:
        raise ValueError
    return parse_store_url(value).url


def url_key(value: Any) -> str:
    key = matching(r"[^\s{}]+")(value)
    try:
        key % {"spider": "name"}
    except (KeyError, TypeError) as error:
        raise ValueError from error
    return key


def path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError
    return Path(value)


NAMES_IN_PATHS: Final = ("name", "time")


def named_path(value: Any) -> str:
    text = str(path(value))
    # Other percent signs are literal.
    if not set(re.findall(r"%\((.*?)\)s", text)) <= set(NAMES_IN_PATHS):
        raise ValueError
    return text


def fill_in(path: str, name: str, time: str) -> Path:
    """Replace the placeholders of a path from :func:`named_path`; *name* is the spider's name."""
    # A name must not add a folder.
    name = name.replace("/", "-").replace("\\", "-")
    if name in (".", ".."):
        name = name.replace(".", "-")
    return Path(path.replace("%(name)s", name).replace("%(time)s", time))


def _sequence(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise ValueError


def status_list(value: Any) -> frozenset[int]:
    read = integer(100, 599)
    return frozenset(read(status) for status in _sequence(value))


def mime_type_list(value: Any) -> frozenset[str]:
    return frozenset(mime_type(mime).lower() for mime in _sequence(value))


def reasons(value: Any) -> tuple[str, ...]:
    read = matching(r"\S+")
    return tuple(read(reason) for reason in _sequence(value))


def some_of(*allowed: str) -> Callable[[Any], frozenset[str]]:
    """One or more of the allowed words."""
    read_one = choice(*allowed)

    def read(value: Any) -> frozenset[str]:
        words = frozenset(read_one(word) for word in _sequence(value))
        if not words:
            raise ValueError
        return words

    return read


def file_name(value: Any) -> str:
    try:
        return checked_name(str(value))
    except SettingError as error:
        raise ValueError from error


def file_patterns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and not value.strip():
        raise ValueError  # e.g. an unset shell variable, which must not replace a replay by a crawl of the network
    names = [value] if isinstance(value, Path) else _sequence(value)
    for name in names:
        path(name)
    return tuple(map(str, names))


def storage(value: Any) -> str:
    return str(path(value)) if isinstance(value, Path) or "://" not in str(value) else matching(r"\S+")(value)


def per_type(read: Callable[[Any], T]) -> Callable[[Any], Mapping[str, T]]:
    """A value for all content types, or a dict of values by content type with the default at ``*``."""

    def read_table(value: Any) -> Mapping[str, T]:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)
        # Numbers first: for a new type, isinstance(…, Mapping) searches all subclasses of Mapping, which takes 3 ms.
        if isinstance(value, (str, int, float)) or not isinstance(value, Mapping):
            return {"*": read(value)}
        if not value:
            raise ValueError
        return {name if name == "*" else mime_type(name).lower(): read(item) for name, item in value.items()}

    return read_table


mime_type = matching(r"[^/\s]+/[^/\s]+")


def for_types(allowed: str) -> str:
    return f'{allowed}, or a dict of such values by MIME type, such as {{"text/html": …, "*": …}}'
