"""The port at which metrics are scraped: slow, silent and many clients."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Gauge
from scrapes import samples, scraped
from servers import free_port

from scrapy_dedupe.live.observers import metric_server
from scrapy_dedupe.live.observers.metric_server import MAX_CLIENTS, MetricServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("seen", "Seen.", registry=registry).set(3)
    return registry


@pytest.fixture
def port(registry: CollectorRegistry) -> Iterator[int]:
    port = free_port()
    server = MetricServer("127.0.0.1", port, registry)
    yield port
    server.end()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=240)


def test_clients_that_say_nothing_are_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_server._Handler, "timeout", 0.05)
    with connected(port) as client:
        assert client.recv(1) == b""
    # Where the line is cut before all of this was sent, that is told as an error.
    with connected(port) as client, suppress(ConnectionError):
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        assert client.recv(100) == b""


def test_no_more_than_so_many_are_answered_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_server._Handler, "timeout", 120)
    before = set(threading.enumerate())
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(port)) for _ in range(MAX_CLIENTS + 8)]
        # They come in as they connected.
        assert all(client.recv(1) == b"" for client in clients[MAX_CLIENTS:])
        assert len(set(threading.enumerate()) - before) <= MAX_CLIENTS
        for client in clients[:MAX_CLIENTS]:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.0 200"


def test_whoever_went_away_leaves_room(port: int) -> None:
    for _ in range(3 * MAX_CLIENTS):
        with connected(port) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            while client.recv(10_000):
                pass
    assert samples(scraped(port))["seen",] == 3


def test_nothing_that_clients_do_is_printed(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for request in (b"\x16\x03\x01", b"GET\r\n\r\n", b"GET /" + b"x" * 70_000, b"BREW / HTTP/1.1\r\n\r\n"):
        with connected(port) as client, suppress(ConnectionError):
            client.sendall(request)
    assert samples(scraped(port))["seen",] == 3
    assert capfd.readouterr() == ("", "")


def test_the_port_is_free_when_it_has_ended(registry: CollectorRegistry) -> None:
    port, before = free_port(), set(threading.enumerate())
    for _ in range(3):
        server = MetricServer("localhost", port, registry)
        # One that says nothing does not keep it open.
        with connected_anywhere(port):
            server.end()
    left = set(threading.enumerate()) - before
    assert not any(thread.name == "dedupe-metrics" for thread in left)


def connected_anywhere(port: int) -> socket.socket:
    return socket.create_connection(("localhost", port), timeout=240)
