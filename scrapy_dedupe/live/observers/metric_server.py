"""The HTTP server that answers scrapes, on separate threads.

Slow, silent or numerous clients must not affect the crawl. The number of simultaneous clients and the time for which a
client may be silent are limited, and the server prints nothing to the output of the crawl.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

MAX_CLIENTS: Final = 32
_SILENCE_S: Final = 5.0
# The end of the last crawl can be delayed by this time.
_POLL_S: Final = 0.05


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, *args: object) -> None:
        pass

    def get_stderr(self) -> io.StringIO:
        return io.StringIO()


class MetricServer(ThreadingMixIn, WSGIServer):
    """Listens from its creation; raises :class:`OSError` or :class:`UnicodeError` if it cannot listen.

    Connections beyond :data:`MAX_CLIENTS` simultaneous clients are closed.
    """

    daemon_threads = True
    # A client must be accepted before its connection can be closed.
    request_queue_size = 128

    def __init__(self, address: str, port: int, registry: CollectorRegistry) -> None:
        addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, sockaddr = addresses[0]
        self._free = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__(sockaddr, _Handler)  # type: ignore[arg-type]
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="dedupe-metrics", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stop listening. Responses in progress are completed."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # Usually no file descriptors are left. The client stays in the backlog: wait before the next accept.
            time.sleep(_POLL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            logger.debug("Rejected a scrape from %s: %d others are in progress.", client_address, MAX_CLIENTS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a client that disconnected; socketserver would print a traceback to the output of the crawl."""
        logger.debug("A scrape from %s was interrupted.", client_address)
