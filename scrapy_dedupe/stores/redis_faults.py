"""Converts the exceptions of redis-py into this package's store errors."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from scrapy_dedupe.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

# Parts of the messages of servers and redis-py, and the advice to give for each.
_CREDENTIALS = "Check the user and the password in the URL; write @ as %40, / as %2F and : as %3A."
_NO_CREDENTIALS = "The server requires a password: redis://USER:PASSWORD@host:port/0; the user is optional."
_PERMISSION = (
    "Allow the user in the URL to access all keys and all commands except administrative ones:"
    " ACL SETUSER name ~* +@all -@admin on the server."
)
_NO_TLS = "The server does not use TLS on this port: write redis:// instead of rediss://."
_OTHER_NAME = "Write the host in the URL as the certificate of the server names it."
_TLS = "If the server requires TLS, write rediss:// in the URL."
_REMEDIES = (
    (
        "index is out of range",
        "The server has fewer databases (16 by default, 1 in a cluster): use a smaller number in the URL.",
    ),
    ("noauth", _NO_CREDENTIALS),
    ("hello must be called with the client already authenticated", _NO_CREDENTIALS),
    ("authentication required", _NO_CREDENTIALS),
    ("without any password configured", "The server has no password: remove it from the URL."),
    ("wrongpass", _CREDENTIALS),
    ("invalid username-password", _CREDENTIALS),
    ("invalid password", _CREDENTIALS),
    ("no permissions", _PERMISSION),
    ("noperm", _PERMISSION),
    ("read only replica", "Use the URL of the primary server."),
    ("wrong version number", _NO_TLS),
    ("wrong_version_number", _NO_TLS),
    ("record layer failure", _NO_TLS),
    ("hostname mismatch", _OTHER_NAME),
    ("ip address mismatch", _OTHER_NAME),
    (
        "certificate verify failed",
        "Add the certificate of its authority with ?ssl_ca_certs=FILE at the end of the URL.",
    ),
    (
        "command not allowed when used memory",
        "Raise maxmemory (CONFIG SET maxmemory, and in its configuration file), or delete unneeded data.",
    ),
    ("not allowed in cluster mode", "A cluster has only database 0: end the URL with /0."),
    (
        "clusterdown",
        "A master of the cluster is down, or has not joined it: see CLUSTER INFO and CLUSTER NODES.",
    ),
    ("ttl exhausted", "The cluster is moving these keys to another master."),
    ("misconf", "Check the disk of the server: its log says why it cannot save."),
    ("connection closed by server", _TLS),
    ("connection reset by peer", _TLS),
    ("no such file or directory", "Check the files in the URL: the socket, or ssl_ca_certs."),
    ("connection refused", "Check that the server is running, and the host and port in the URL."),
    ("name or service not known", "Check the host name in the URL."),
)

# The position in a Lua script, which servers append to an error, and the position in a pipeline, which redis-py puts
# before it, are useless to users.
_POSITION = re.compile(r"\.? script: .*|^Command # \d+ \(.*?\) of pipeline caused error: ", re.DOTALL)


@contextmanager
def redis_faults(url: str) -> Iterator[None]:
    """Raise :class:`StoreUnavailable` or :class:`StoreRefused` for any :class:`redis.RedisError` inside."""
    try:
        yield
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise StoreRefused(
                f"A key in the store {url} was not written by scrapy-dedupe ({error}). It was left unchanged;"
                " use another database number in the URL."
            ) from error
        raise StoreUnavailable(
            f"The store {url} rejected a command: {_reason(error)}.{_remedy(error, url)}"
        ) from error
    except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise StoreUnavailable(
            f"The store {url} does not answer: {_reason(error)}.{_remedy(error, url)}"
        ) from error


def _reason(error: Exception) -> str:
    return _POSITION.sub("", str(error)).rstrip(".")


def _remedy(error: Exception, url: str) -> str:
    """The advice for *error*, with a leading space; empty if there is none."""
    message = str(error).lower()
    if "timeout" in message or "timed out" in message:
        # A server without TLS reads the handshake as an incomplete command and waits for the rest.
        tls = f", or {_NO_TLS[0].lower()}{_NO_TLS[1:-1]}" if url.startswith("rediss:") else ""
        return f" The server cannot be reached from here, or is busy{tls}."
    return next((f" {remedy}" for part, remedy in _REMEDIES if part in message), "")
