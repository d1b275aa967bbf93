"""The server of the bundled site, in a thread, on 127.0.0.1."""

from __future__ import annotations

import gzip
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import urlsplit

from example.site.pages import MOVED, Resource, resources, weather

CHUNK_BYTES = 700


class Handler(BaseHTTPRequestHandler):
    """Handles one connection: HTTP/1.1 with keep-alive."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    server: SiteServer

    def do_GET(self) -> None:
        """Answer GET."""
        address = _with_sorted_query(self.path)
        if address in MOVED:
            status, target = MOVED[address]
            self._redirect(status, target)
        elif address.startswith("/calendar?") and address != self.path:
            # A redirect to the same request: Scrapy's fingerprint ignores the order of the query.
            self._redirect(302, address)
        elif address == "/guestbook" and self.client_address[0] not in self.server.greeted:
            # Like a cookie wall: the first visit is redirected to the same URL.
            self.server.greeted.add(self.client_address[0])
            self._redirect(302, address)
        elif address == "/weather":
            self._send(200, weather(f"{datetime.now():%H:%M:%S.%f}"))
        elif (resource := resources().get(address)) is not None:
            self._send(200, resource)
        else:
            self._send(404, Resource(b"<title>Not found</title><p>There is no such page at Saltmere.</p>"))

    def _redirect(self, status: int, target: str) -> None:
        moved = Resource(f'<title>Moved</title><p>See <a href="{target}">there</a>.</p>'.encode())
        self._send(status, moved, Location=target)

    def _send(self, status: int, resource: Resource, **headers: str) -> None:
        body = resource.body
        self.send_response(status, HTTPStatus(status).phrase)
        self.send_header("Content-Type", resource.content_type)
        if resource.is_gzipped and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        if resource.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if resource.is_chunked:
            for start in range(0, len(body), CHUNK_BYTES):
                chunk = body[start : start + CHUNK_BYTES]
                self.wfile.write(b"%X\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the terminal shows the log of the crawl."""


class SiteServer(ThreadingHTTPServer):
    """The server of the bundled site. The constructor binds the port; ``start()`` serves, ``stop()`` frees the port."""

    daemon_threads = True
    request_queue_size = 64
    host: ClassVar[str] = "127.0.0.1"

    def __init__(self, port: int) -> None:
        """Bind ``port`` (0: any free port). Raises :class:`OSError` if it is in use."""
        super().__init__((self.host, port), Handler)
        self.greeted: set[str] = set()
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def start(self) -> None:
        """Serve in a separate thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the server and free the port."""
        self.shutdown()
        self._thread.join()
        self.server_close()


def _with_sorted_query(target: str) -> str:
    path, query = urlsplit(target)[2:4]
    return f"{path}?{'&'.join(sorted(query.split('&')))}" if query else path
