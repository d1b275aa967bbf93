"""Read by every Python of a world at its start: the hosts that pages name are on this machine, and there are no others.

The variable ``DOCUMENTED`` holds JSON: ``hosts``, an address for each name; ``places``, the port behind each
``address:port``; ``ports``, the port behind each port of this machine; and ``buckets``, the folder behind s3://.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from typing import Any


def _world() -> dict[str, Any]:
    return json.loads(os.environ.get("DOCUMENTED", "{}"))


def _address(host: Any) -> Any:
    """The address of a name that a page may use; socket.gaierror for any other name."""
    name = host.decode() if isinstance(host, bytes) else host
    if not name or name in {"localhost", "localhost.localdomain", "redis", socket.gethostname()}:
        return name if name in {"", None} else "127.0.0.1"
    try:
        ipaddress.ip_address(name)
    except ValueError:
        hosts = _world().get("hosts", {})
        while name not in hosts:
            _, dot, name = name.partition(".")
            if not dot:
                raise socket.gaierror(socket.EAI_NONAME, f"no page names the host {host}") from None
        return hosts[name]
    return name


def _place(address: Any) -> Any:
    """Where a program that goes to *address* gets to."""
    if not isinstance(address, tuple):
        return address
    host, port, *rest = address
    world = _world()
    if behind := world.get("places", {}).get(f"{host}:{port}"):
        return ("127.0.0.1", behind, *rest)
    if host in {"127.0.0.1", "localhost", "0.0.0.0", "::1"}:
        return (host, world.get("ports", {}).get(str(port), port), *rest)
    return address


def _install() -> None:
    resolve, by_name = socket.getaddrinfo, socket.gethostbyname

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve(_address(host), *args, **kwargs)

    def gethostbyname(host: Any) -> str:
        return by_name(_address(host))

    socket.getaddrinfo, socket.gethostbyname = getaddrinfo, gethostbyname

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            super().connect(_place(address))

        def connect_ex(self, address: Any) -> int:
            return super().connect_ex(_place(address))

        def bind(self, address: Any) -> None:
            super().bind(_place(address))

    socket.socket = Socket  # type: ignore[misc]


def _install_buckets() -> None:
    """A driver for s3:// whose buckets are folders."""
    try:
        from fsspec import register_implementation
    except ImportError:
        return
    register_implementation("s3", "buckets.Buckets", clobber=True)


if "DOCUMENTED" in os.environ:
    _install()
    _install_buckets()
