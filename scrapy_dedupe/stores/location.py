"""Store URLs.

=====================================  =======================================================
``sqlite:///relative.db``              a file, relative to the working directory
``sqlite:////absolute.db``             a file with an absolute path
``redis://[[user]:pass@]host[:port]/db``  Redis or Valkey; ``rediss://`` with TLS
``unix://[user:pass@]/path.sock?db=0``    Redis or Valkey on a Unix socket
=====================================  =======================================================

The SQLite forms are those of SQLAlchemy, the Redis forms those of redis-py. Of redis-py's URL options only
:data:`OPTIONS` and :data:`TLS_OPTIONS` are allowed: others would change the type of answers, timeouts or retries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from scrapy_dedupe.errors import SettingError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

NAMELESS = "the store URL"
REDIS_SCHEMES = ("redis", "rediss", "unix")
ALLOWED = (
    "sqlite:///relative.db, sqlite:////absolute.db, redis://host:port/db, rediss://… or unix:///path.sock"
)

# Allowed options with a pattern of their values; None: redis-py checks the value.
OPTIONS: dict[str, str | None] = {
    "db": "[0-9]+",
    "username": None,
    "password": None,
    "client_name": None,
    "health_check_interval": "[0-9]+",
    "protocol": "2|3",
    "socket_keepalive": None,
}
TLS_OPTIONS: dict[str, str | None] = {
    "ssl_ca_certs": None,
    "ssl_ca_data": None,
    "ssl_ca_path": None,
    "ssl_cert_reqs": "none|optional|required",
    "ssl_certfile": None,
    "ssl_check_hostname": None,
    "ssl_ciphers": None,
    "ssl_keyfile": None,
    "ssl_min_version": "[0-9]+",
    "ssl_password": None,
}
# The reasons why other options are refused, and the remedies.
_BYTES = "this package reads bytes and could not compare decoded text with them. Leave the option out."
_WAITING = "this package decides how long it waits and what it tries again. Set DEDUPE_STORE_TIMEOUT instead."
_PLACE = "write it before the ?, as in redis://host:6379/0 or unix:///path.sock."
_REFUSED = {
    **dict.fromkeys(("decode_responses", "encoding", "encoding_errors", "legacy_responses"), _BYTES),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout", "timeout"), _WAITING),
    **dict.fromkeys(("retry", "retry_on_error", "retry_on_timeout"), _WAITING),
    **dict.fromkeys(("host", "port", "path"), _PLACE),
    "ssl": "write rediss:// in place of redis:// for TLS.",
}

_LONGEST = 200
_SECRET_OPTION = re.compile(r"(?<=[?&])((?:ssl_)?password=)[^&#]*")
_DATABASE = re.compile(r"(/[0-9]*)?")
# Matches up to the last @, since an unquoted password may contain @, /, : and ?.
_PASSWORD = re.compile(r"(?<=/)([^/@:\s]*):(.*)@", re.DOTALL)
_QUOTED = "In the user and the password, write / as %2F, @ as %40, : as %3A, ? as %3F and # as %23."
# A scheme in capitals, or followed by no or one slash.
_SLASHES = re.compile(r"((?:redis|rediss|unix)):/*([^/].*|/.+)", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:[\\/].+")
_HOST = re.compile(r"(localhost|[0-9.]+)(:[0-9]+)?(/[0-9]*)?")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A checked store URL. ``path`` is None for a Redis URL."""

    url: str
    path: Path | None

    @property
    def is_redis(self) -> bool:
        return self.path is None

    @property
    def shown(self) -> str:
        """The URL without its password, for messages.

        >>> parse_store_url("redis://me:secret@127.0.0.1:6379/0").shown
        'redis://me:***@127.0.0.1:6379/0'
        """
        if not self.is_redis:
            return self.url
        shown, parts = self.url, urlsplit(self.url)
        if parts.password is not None:
            host = parts.netloc.rpartition("@")[2]
            shown = urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
        return _SECRET_OPTION.sub(r"\1***", shown)


def parse_store_url(url: object, name: str = NAMELESS) -> StoreLocation:
    """Check a store URL.

    Raises :class:`SettingError` that names *name*, the value and what is allowed.

    >>> parse_store_url("sqlite:///dedupe.sqlite").path.as_posix()
    'dedupe.sqlite'
    >>> parse_store_url("sqlite:////var/lib/dedupe.sqlite").path.as_posix()
    '/var/lib/dedupe.sqlite'
    """
    if isinstance(url, str):
        scheme, separator, rest = url.partition("://")
        if scheme == "sqlite" and rest.startswith("/") and rest[1:] not in ("", ":memory:"):
            return StoreLocation(url, Path(unquote(rest[1:])))
        if scheme in REDIS_SCHEMES and separator and rest.strip("/"):
            if _has_bare_password(url):
                raise SettingError(f"{name} is {shown_value(url)}: its password is not quoted. {_QUOTED}")
            try:
                parts = urlsplit(url)
                _ = parts.port
            except ValueError as error:
                raise SettingError(f"{name} is {shown_value(url)}: {error}. Allowed: {ALLOWED}.") from error
            # redis-py would use database 0 if this is not a number.
            if scheme != "unix" and not _DATABASE.fullmatch(parts.path):
                raise SettingError(
                    f"{name} is {shown_value(url)}: the database {parts.path[1:]!r} is not a number. End the URL with"
                    " the number of a database, such as /0."
                )
            if fault := _option_fault(parts):
                raise SettingError(f"{name} is {shown_value(url)}: {fault}")
            return StoreLocation(url, None)
    raise SettingError(f"{name} is {shown_value(url)}. Allowed: {ALLOWED}.{hint_on(url)}")


def _option_fault(parts: SplitResult) -> str | None:
    """The first invalid option of a Redis URL and how to correct it, as text; None if all are valid."""
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        if option in TLS_OPTIONS and parts.scheme != "rediss":
            return f"the option {option} is one of TLS. Write rediss:// in place of {parts.scheme}://."
        allowed = {**OPTIONS, **TLS_OPTIONS}
        if option not in allowed:
            if reason := _REFUSED.get(option):
                return f"the option {option} cannot be used: {reason}"
            known = ", ".join(OPTIONS if parts.scheme != "rediss" else allowed)
            return f"there is no option {option!r}. Leave it out, or use one of {known}."
        values = allowed[option]
        if values is not None and not re.fullmatch(values, value):
            said = {"[0-9]+": "a whole number"}.get(values, values.replace("|", ", "))
            return f"the option {option} is {value!r}. Allowed: {said}."
    return None


def hint_on(url: object) -> str:
    r"""A hint on the probably intended store URL, as a sentence with a leading space; empty if there is none.

    >>> hint_on("redis:/localhost:6379/0")
    ' Did you mean redis://localhost:6379/0?'
    >>> hint_on("C:\\data\\dedupe.db")
    ' Did you mean sqlite:///C:/data/dedupe.db?'
    """
    if not isinstance(url, str) or not url.strip() or len(url) > _LONGEST:
        return ""
    scheme, _, rest = url.partition("://")
    meant = ""
    if match := _SLASHES.fullmatch(url):
        meant = f"{match[1].lower()}://{match[2].lstrip('/') if match[1].lower() != 'unix' else match[2]}"
    elif match := _DRIVE.fullmatch(url):
        meant = f"sqlite:///{match[0]}".replace(chr(92), "/")
    elif url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:").lstrip("/")
        meant = f"sqlite:///{path}" if path not in ("", ":memory:") else "sqlite:///dedupe.sqlite"
    elif scheme.lower() in ("http", "https", "tcp", "valkey", "valkeys") and rest:
        meant = f"{'rediss' if scheme.lower() in ('https', 'valkeys') else 'redis'}://{rest.rstrip('/')}"
    elif _HOST.fullmatch(url):
        meant = f"redis://{url}"
    elif "://" in url:
        return f" A store is an SQLite file, or a Redis or Valkey server; {scheme[:20]} is neither."
    else:
        meant = f"sqlite:///{url}"
    return f" Did you mean {_masked(meant)}?"


def _has_bare_password(url: str) -> bool:
    """Whether the URL has an unquoted password, so that one of its characters ends the part with user and password."""
    _, _, rest = url.partition("://")
    early = re.split(r"[/?#]", rest, maxsplit=1)
    if "@" not in early[-1] or len(early) == 1:
        return False
    if rest[len(early[0])] == "?" and "=" in early[1].partition("@")[0]:
        return False  # an option, such as a file name
    if "?" in early[1] and "@" not in early[1].partition("?")[0]:
        return False
    # The path of a socket may contain an @.
    return ":" in early[0]


def shown_value(value: object) -> str:
    """A valid or invalid store URL for a message: without its password, and not longer than a line."""
    text = repr(value) if not isinstance(value, str) else repr(_masked(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _masked(url: str) -> str:
    if url.startswith("sqlite:"):
        return url
    url = _SECRET_OPTION.sub(r"\1***", url)
    return _PASSWORD.sub(r"\1:***@", url)
