"""A small web server in a thread: pages are set by the test, requests are kept for it to look at."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Page:
    """What is answered. With ``chunked`` the body is sent in chunks and without a length."""

    body: bytes = b""
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunked: bool = False
    content_type: str | None = "text/html; charset=utf-8"


class WebServer:
    """``with WebServer() as web: web.page("/", "<p>text")``; ``web.paths`` are those that were asked for.

    ``web.at_request`` is called before each answer.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page | Callable[[Any], Page]] = {}
        self.paths: list[str] = []
        self.at_request: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                outer.paths.append(self.path)
                outer.at_request()
                page = outer.pages.get(self.path, Page(b"<p>There is nothing here.", 404))
                if callable(page):
                    page = page(self)
                self.send_response(page.status)
                if page.content_type is not None:
                    self.send_header("Content-Type", page.content_type)
                for name, value in page.headers:
                    self.send_header(name, value)
                if page.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for start in range(0, len(page.body), 1000):
                        part = page.body[start : start + 1000]
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.send_header("Content-Length", str(len(page.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(page.body)

            do_POST = do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *args: object) -> None:
                pass  # A client that was killed is no fault of the server.

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def page(self, path: str, body: str | bytes, **kwargs: Any) -> None:
        """Answer *path* with *body*; see :class:`Page` for the rest."""
        self.pages[path] = Page(body.encode() if isinstance(body, str) else body, **kwargs)
