"""The small site that stands behind the host names of the pages: what it has of each kind of page is enough to show all."""

from __future__ import annotations

import functools
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from listed_archives import in_ranges
from webserver import Page, WebServer

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = ("example.com", "example.org", "example.net")

_WORDS = """
heron reed water boat morning ferry island lantern willow harbour otter meadow storm ladder basket copper
violet garden stone bridge winter honey candle thunder pebble marble orchard silver feather canyon
"""


def _text(seed: int, words: int = 160) -> str:
    """Words in an order of their own, so that the texts of two seeds are not alike."""
    words_known = _WORDS.split()
    state, text = seed * 2654435761 + 1, []
    for _ in range(words):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        text.append(words_known[(state >> 33) % len(words_known)])
    return " ".join(text)


def _page(title: str, *paragraphs: str, links: tuple[str, ...] = ()) -> str:
    anchors = " ".join(f'<a href="{link}">{link.strip("/") or "home"}</a>' for link in links)
    body = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return f"<!doctype html><title>{title}</title><h1>{title}</h1>{body}<nav>{anchors}</nav>"


def pages() -> dict[str, Page]:
    """By path. /news is /news?ref=letter again, /herons/print nearly /herons, /gone is not there."""
    news = _page("News", _text(2), links=("/", "/herons"))
    made: dict[str, str] = {
        "/": _page(
            "Home", _text(1), links=("/news", "/news?ref=letter", "/herons", "/herons/print", "/gone")
        ),
        "/news": news,
        "/news?ref=letter": news,
        "/herons": _page("Herons", _text(3), _text(4), links=("/",)),
        "/herons/print": _page("Herons", _text(3), _text(4) + " printed", links=("/",)),
        "/robots.txt": "User-agent: *\nDisallow:\n",
    }
    types = {"/robots.txt": "text/plain"}
    return {
        path: Page(body.encode(), content_type=types.get(path, "text/html; charset=utf-8"))
        for path, body in made.items()
    }


class Folder:
    """A `WebServer` page of everything below a folder: files in ranges, as they are when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, request: Any) -> Page:
        file = self.folder / request.path.lstrip("/")
        if ".." in request.path or not file.is_file():
            return Page(b"<p>There is nothing here.", 404)
        answer: Page = in_ranges(file.read_bytes())(request)
        return answer


class _Pages(dict[str, Any]):
    """The pages of a site, and otherwise the files of a folder."""

    def __init__(self, folder: Path, known: dict[str, Page]) -> None:
        super().__init__(known)
        self.folder = Folder(folder)

    def get(self, path: str, default: Any = None) -> Any:
        return super().get(path, self.folder)


def server_of(folder: Path, known: dict[str, Page] | None = None) -> WebServer:
    """A server of *known* pages and of the files in *folder*; it is to be entered."""
    server = WebServer()
    server.pages = _Pages(folder, known or {})
    return server


def port_of(server: WebServer) -> int:
    return int(server.url().rpartition(":")[2].strip("/"))


class TlsServer(WebServer):
    """The same with TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        # The handshake belongs into the thread of the connection: a client that breaks off must not end the server.
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )


@functools.cache
def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of the hosts, in a file that clients can trust, and the context of a server that has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the hosts of the examples")])
    names = [x509.DNSName(f"{prefix}{host}") for host in HOSTS for prefix in ("", "*.")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "hosts.pem", folder / "hosts.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    return chain, context
