"""Servers whose every byte is known: what they send is set by the test, what they receive is kept as it came.

`RawServer` speaks HTTP/1 over TCP by hand, `Http2Server` HTTP/2 over TLS with a certificate of its own. Both
run in a thread; ``with RawServer() as server: server.answers["/"] = Answer(...)``.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

Headers = list[tuple[bytes, bytes]]

CONNECTION_HEADERS = {b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade"}


@dataclass
class Answer:
    """One response. `body` is what the response means; `wire` is how it is sent, if that is something else.

    `fields` is how the header lines are sent, if that is something else than `headers`; `before` is sent before
    the status line (interim responses).
    """

    body: bytes = b""
    status: bytes = b"200 OK"
    headers: Headers = field(default_factory=list)
    wire: bytes | None = None
    fields: bytes | None = None
    before: bytes = b""
    version: bytes = b"HTTP/1.1"
    closes: bool = False

    @property
    def code(self) -> int:
        return int(self.status.split()[0])

    def to_bytes(self) -> bytes:
        fields = self.fields
        if fields is None:
            fields = b"".join(name + b": " + value + b"\r\n" for name, value in self.headers)
        wire = self.body if self.wire is None else self.wire
        return self.before + self.version + b" " + self.status + b"\r\n" + fields + b"\r\n" + wire


@dataclass
class Asked:
    """One request as it came; of HTTP/2, the pseudo headers are among `headers` and `line` is empty."""

    line: bytes
    headers: Headers
    body: bytes

    @property
    def target(self) -> bytes:
        return self.get(b":path") or self.line.split(b" ")[1]

    def get(self, name: bytes) -> bytes | None:
        return next((value for header, value in self.headers if header.lower() == name), None)


class _Server:
    scheme = "http"

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.asked: list[Asked] = []
        self.port = 0
        self._tls: ssl.SSLContext | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, target: str = "/") -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{target}"

    def asked_for(self, target: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.target == target.encode("ascii")]

    def answer_to(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        target = asked.target.decode("latin-1")
        answer = self.answers.get(target)
        if answer is None:  # Some clients write a target with less percent-encoding.
            answer = {unquote(known): answer for known, answer in self.answers.items()}.get(unquote(target))
        if answer is None:
            return Answer(b"nothing here", b"404 Not Found", [(b"Content-Length", b"12")])
        return answer(asked) if callable(answer) else answer

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=1 << 20, ssl=self._tls
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _hang_up(self) -> None:
        self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # The client has gone, which is its right.
        finally:
            writer.close()
            self._connections.discard(task)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class RawServer(_Server):
    """HTTP/1.1 over TCP, or TLS if there is a *folder* for the certificate; keeps connections unless told."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        if folder is not None:
            self.scheme = "https"
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate(folder))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *lines = head[:-4].split(b"\r\n")
            headers = [(name, value) for name, _, value in (text.partition(b": ") for text in lines)]
            asked = Asked(line, headers, b"")
            asked.body = await reader.readexactly(int(asked.get(b"content-length") or 0))
            answer = self.answer_to(asked)
            writer.write(answer.to_bytes())
            await writer.drain()
            if answer.closes:
                return


class Http2Server(_Server):
    """HTTP/2 over TLS. The certificate, made for the occasion, is kept in *folder*."""

    scheme = "https"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.set_alpn_protocols(["h2"])
        self._tls.load_cert_chain(certificate(folder))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.events import DataReceived, RequestReceived, StreamEnded

        # No checks and no decoding: the bytes are those of the test, and those of the client.
        connection = H2Connection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        waiting: dict[int, Asked] = {}
        unsent: dict[int, bytes] = {}
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    waiting[event.stream_id] = Asked(b"", list(event.headers), b"")
                elif isinstance(event, DataReceived):
                    waiting[event.stream_id].body += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    stream = event.stream_id
                    answer = self.answer_to(waiting.pop(stream))
                    if answer.before:
                        connection.send_headers(stream, [(b":status", answer.before)])
                    connection.send_headers(
                        stream, [(b":status", answer.status), *answer.headers], end_stream=not answer.body
                    )
                    if answer.body:
                        unsent[stream] = answer.body
            for stream in list(unsent):
                self._send(connection, stream, unsent)
            writer.write(connection.data_to_send())
            await writer.drain()

    @staticmethod
    def _send(connection: Any, stream: int, unsent: dict[int, bytes]) -> None:
        while rest := unsent[stream]:
            size = min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size)
            if size <= 0:
                return  # until the client opens its window
            connection.send_data(stream, rest[:size], end_stream=len(rest) <= size)
            unsent[stream] = rest[size:]
        del unsent[stream]


def certificate(folder: Path) -> Path:
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    return path
