"""How a setting is declared, and the kinds of values: the allowed values in words, and how a raw value is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy_dedupe.errors import SettingError
from scrapy_dedupe.stores.location import ALLOWED, REDIS_SCHEMES, parse_store_url
from scrapy_dedupe.warc.files import checked_name

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL: Final = "local"


class ValueKind(NamedTuple):
    """A kind of value. ``read`` converts a raw value, and raises ValueError or TypeError if it is wrong."""

    allowed: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """One setting. ``read`` converts the raw value, which is never None, and raises ValueError if it is wrong."""

    name: str
    default: Any
    read: Callable[[Any], Any]
    allowed: str
    help: str
    unit: str = ""


def setting(name: str, default: Any, kind: ValueKind, text: str, unit: str = "") -> Any:
    """Return the field of a dataclass that is read from the setting *name*."""
    return field(metadata={"spec": Spec(name, default, kind.read, kind.allowed, text, unit)})


def flag(name: str, default: bool | None, text: str) -> Any:
    """Return the field of a dataclass that is read from a setting that is True or False."""
    return setting(name, default, ValueKind("True or False", boolean), text)


def boolean(value: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    key = str(value).strip().lower()
    if key not in words:
        raise ValueError
    return words[key]


def _checked(allowed: str, convert: Callable[[Any], Any], is_allowed: Callable[[Any], object]) -> ValueKind:
    def read(value: Any) -> Any:
        converted = convert(value)
        if not is_allowed(converted):
            raise ValueError
        return converted

    return ValueKind(allowed, read)


def integer(minimum: int, maximum: int | None = None) -> ValueKind:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)

    limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    return _checked(
        f"a whole number {limits}",
        convert,
        lambda number: minimum <= number and (maximum is None or number <= maximum),
    )


def number(allowed: str, is_allowed: Callable[[float], bool]) -> ValueKind:
    def convert(value: Any) -> float:
        if isinstance(value, bool):
            raise ValueError  # noqa: TRY004 - the same error for all wrong values
        return float(value)

    return _checked(allowed, convert, is_allowed)


def choice(*words: str) -> ValueKind:
    quoted = [f'"{word}"' for word in words]
    return _checked(f"{', '.join(quoted[:-1])} or {quoted[-1]}", lambda value: value, words.__contains__)


def matching(pattern: str, allowed: str) -> ValueKind:
    return _checked(
        allowed, lambda value: value, lambda value: isinstance(value, str) and re.fullmatch(pattern, value)
    )


def name_of(most_chars: int) -> ValueKind:
    return matching(
        f"[A-Za-z0-9._-]{{1,{most_chars}}}",
        f"1 to {most_chars} letters, digits, dots, underscores and hyphens",
    )


def _url_store(value: Any) -> str:
    if value == LOCAL:
        return LOCAL
    if str(value).partition("://")[0] not in REDIS_SCHEMES:
        raise ValueError
    return parse_store_url(value).url


def _url_key(value: Any) -> str:
    key: str = matching(r"[^\s{}]+", "").read(value)
    try:
        key % {"spider": "name"}
    except (KeyError, TypeError) as error:
        raise ValueError from error
    return key


def _path(value: Any) -> Path:
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError
    return Path(value)


def _named_path(value: Any) -> str:
    text = str(_path(value))
    # Other percent signs are literal.
    if not set(re.findall(r"%\((.*?)\)s", text)) <= {"name", "time"}:
        raise ValueError
    return text


def fill_in(path: str, name: str, time: str) -> Path:
    """Replace the placeholders of a path of the kind :data:`NAMED_PATH`; *name* is the spider's name."""
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


def each(allowed: str, read: Callable[[Any], Any], collection: Callable[[Any], Any] = frozenset) -> ValueKind:
    """A list of values that *read* converts."""
    return ValueKind(allowed, lambda value: collection(map(read, _sequence(value))))


def some_of(*words: str) -> ValueKind:
    """One or more of the words."""
    *others, last = (f'"{word}"' for word in words)
    allowed = f"a list of {', '.join(others)} and {last}, at least one of them"
    return _checked(allowed, each("", choice(*words).read).read, bool)


def _file_name(value: Any) -> str:
    try:
        return checked_name(str(value))
    except SettingError as error:
        raise ValueError from error


def _file_patterns(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and not value.strip():
        raise ValueError  # e.g. an unset shell variable, which must not replace a replay by a crawl of the network
    names = [value] if isinstance(value, Path) else _sequence(value)
    for name in names:
        _path(name)
    return tuple(map(str, names))


def _storage(value: Any) -> str:
    is_folder = isinstance(value, Path) or "://" not in str(value)
    return str(_path(value) if is_folder else matching(r"\S+", "").read(value))


def mime_type(value: Any) -> str:
    return str(matching(r"[^/\s]+/[^/\s]+", "").read(value)).lower()


def per_type(kind: ValueKind) -> ValueKind:
    """A value for all content types, or a dict of values by content type with the default at ``*``."""

    def read(value: Any) -> Mapping[str, Any]:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)
        # Numbers first: for a new type, isinstance(…, Mapping) searches all subclasses of Mapping, which takes 3 ms.
        if isinstance(value, (str, int, float)) or not isinstance(value, Mapping):
            return {"*": kind.read(value)}
        if not value:
            raise ValueError
        return {name if name == "*" else mime_type(name): kind.read(item) for name, item in value.items()}

    words = 'or a dict of such values by MIME type, such as {"text/html": …, "*": …}'
    return ValueKind(f"{kind.allowed}, {words}", read)


FILE_NAME: Final = ValueKind(
    "letters, digits, dots, underscores, hyphens and {prefix}, {timestamp}, {serial}, {host} and {crawl}; {serial}"
    " is required",
    _file_name,
)
FILE_PATTERNS: Final = ValueKind(
    "a list of file names; the wildcards *, ? and ** are allowed", _file_patterns
)
NAMED_PATH: Final = ValueKind("a path; it may contain %(name)s and %(time)s", _named_path)
PATH: Final = ValueKind("a path", _path)
REASONS: Final = each("a list of finish reasons, * allowed", matching(r"\S+", "").read, tuple)
STORAGE: Final = ValueKind("a folder, or a URL that fsspec knows, such as s3://bucket/folder", _storage)
STORE: Final = ValueKind(ALLOWED, lambda value: parse_store_url(value).url)
URL_KEY: Final = ValueKind(
    "text without white space and braces; %(spider)s is allowed, and a percent sign is written %%", _url_key
)
URL_STORE: Final = ValueKind('"local", redis://host:port/db, rediss://… or unix:///path.sock', _url_store)
