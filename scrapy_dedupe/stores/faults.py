"""Turns what sqlite3 and redis-py raise into this package's two store errors."""

from __future__ import annotations

import re
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

# What SQLite says of a file that is no database, or is a damaged one.
_NOT_OURS = ("file is not a database", "malformed", "not a database")


@contextmanager
def sqlite_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`sqlite3.Error` inside."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if any(words in str(error) for words in _NOT_OURS):
            raise StoreRefused(
                f"The file of the store {url} is not a sound SQLite database ({error}). It was left as it is;"
                " move it away, or name another file in DEDUPE_STORE_URL."
            ) from error
        raise StoreUnavailable(
            f"The store {url} does not answer: {_reason(error)}.{_file_remedy(error)}"
        ) from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The store {url} does not answer: {_reason(error)}.") from error


@contextmanager
def redis_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`redis.RedisError` inside."""
    try:
        yield
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise StoreRefused(
                f"A key in the store {url} holds something that is not ours ({error}). It was left as it is;"
                " use another database number in the URL."
            ) from error
        raise StoreUnavailable(
            f"The store {url} refused a command: {_reason(error)}.{_remedy(error, url)}"
        ) from error
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(
            f"The store {url} does not answer: {_reason(error)}.{_remedy(error, url)}"
        ) from error


# What servers and redis-py say, and what a person can do about it.
_CREDENTIALS = (
    "See to the user and the password in the URL; @, / and : in them are written as %40, %2F and %3A."
)
_NO_CREDENTIALS = "The server wants a password: redis://USER:PASSWORD@host:port/0, or without the user."
_PERMISSION = (
    "Give the user that the URL names all keys, and all commands but those of administrators:"
    " ACL SETUSER name ~* +@all -@admin on the server."
)
_NO_TLS = "The server speaks no TLS at this port: write redis:// in place of rediss://."
_OTHER_NAME = "Write the host in the URL as its certificate names it."
_TLS = "If the server wants TLS, write rediss:// in the URL."
_REMEDIES = (
    (
        "index is out of range",
        "The server has fewer databases, 16 as a rule: use a smaller number in the URL.",
    ),
    ("noauth", _NO_CREDENTIALS),
    ("hello must be called with the client already authenticated", _NO_CREDENTIALS),
    ("authentication required", _NO_CREDENTIALS),
    ("without any password configured", "The server has no password: leave it out of the URL."),
    ("wrongpass", _CREDENTIALS),
    ("invalid username-password", _CREDENTIALS),
    ("invalid password", _CREDENTIALS),
    ("no permissions", _PERMISSION),
    ("noperm", _PERMISSION),
    ("read only replica", "Name the primary server in the URL."),
    ("wrong version number", _NO_TLS),
    ("wrong_version_number", _NO_TLS),
    ("record layer failure", _NO_TLS),
    ("hostname mismatch", _OTHER_NAME),
    ("ip address mismatch", _OTHER_NAME),
    (
        "certificate verify failed",
        "Name the authority of its certificate with ?ssl_ca_certs=FILE at the end of the URL.",
    ),
    (
        "command not allowed when used memory",
        "Raise maxmemory (CONFIG SET maxmemory, and in its configuration file), or forget what is not needed.",
    ),
    ("misconf", "See to the disk of the server: its log says why it cannot save."),
    ("connection closed by server", _TLS),
    ("connection reset by peer", _TLS),
    (
        "no such file or directory",
        "See to the files that the URL names: the socket, or that of ssl_ca_certs.",
    ),
    ("connection refused", "See whether the server runs, and at this host and port."),
    ("name or service not known", "See to the name of the host in the URL."),
)


_FILE_REMEDIES = (
    ("disk is full", "Make room on its disk, or name a file on another one."),
    ("disk i/o error", "Its disk is full, or broken: see to it, or name a file on another one."),
    ("readonly database", "Change the permissions of the file and its folder, or name another file."),
    (
        "unable to open database file",
        "Change the permissions of its folder, make room on the disk, or name another file.",
    ),
    (
        "database is locked",
        "Another process has written to it for long: raise DEDUPE_STORE_TIMEOUT, or use Redis.",
    ),
)


def _file_remedy(error: Exception) -> str:
    """What to do about the fault of an SQLite file, with a space before it; or nothing."""
    words = str(error).lower()
    return next((f" {remedy}" for said, remedy in _FILE_REMEDIES if said in words), "")


def _remedy(error: Exception, url: str) -> str:
    """What to do about an error that people make with the URL of a server, with a space before it; or nothing."""
    words = str(error).lower()
    if "timeout" in words or "timed out" in words:
        # A server without TLS waits for the rest of what it takes for a command.
        tls = f", or {_NO_TLS[0].lower()}{_NO_TLS[1:-1]}" if url.startswith("rediss:") else ""
        return f" The server cannot be reached from here, or is busy{tls}."
    return next((f" {remedy}" for said, remedy in _REMEDIES if said in words), "")


# Where in a script of ours a server refused it, which is of no use to a person.
_SCRIPT = re.compile(r"\.? script: .*", re.DOTALL)


def _reason(error: Exception) -> str:
    return _SCRIPT.sub("", str(error)).rstrip(".")
