"""The HTTP server that answers scrapes, on threads of its own.

Whoever can reach the port may be slow, silent or many; the crawl must not feel it. So there is an end to how many are
answered at once and to how long one may keep silent, and nothing is printed among the lines of the crawl.
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

MOST_CLIENTS: Final = 32
_SILENCE_S: Final = 5.0
# The end of the last crawl waits for so long.
_POLL_S: Final = 0.05


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, *args: object) -> None:
        pass

    def get_stderr(self) -> io.StringIO:
        return io.StringIO()


class MetricServer(ThreadingMixIn, WSGIServer):
    """Listens at an address once it is made; raises :class:`OSError` or :class:`UnicodeError` if that cannot be.

    Of more than :data:`MOST_CLIENTS` at a time the last ones are turned away.
    """

    daemon_threads = True
    # Before they are turned away they have to come in.
    request_queue_size = 128

    def __init__(self, address: str, port: int, registry: CollectorRegistry) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, place = found[0]
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(place, _Handler)  # type: ignore[arg-type]
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_S,), name="dedupe-metrics", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Listen no more. Whoever is being answered gets the rest."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            # As a rule the process has no more files to open, and the client is still there at the next look.
            time.sleep(_POLL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            logger.debug("A scrape from %s was turned away: %d are answered.", client_address, MOST_CLIENTS)
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
        """Said of a client that went away; socketserver would print it among the lines of the crawl."""
        logger.debug("A scrape from %s was cut off.", client_address)
