"""An exchange between the crawler and a server, as plain values, and its HTTP/1.1 representation.

A `Capture` is immutable. Its HTTP heads are reconstructed, since Scrapy does not keep them: the status line has the
standard phrase, and every header value is kept as bytes and in order. Connection headers (RFC 9110, section 7.6.1),
Trailer, whose fields are lost with the chunks, and the proxy password are left out. The body has no transfer
coding, so Content-Length is set to the length of the body as stored; the content coding is kept. Responses to HEAD,
and responses with status 204 or 304, never have a body: their Content-Length describes another response and is kept.

A head has the version HTTP/1.1, or HTTP/1.0 if the server answered with that; HTTP/2 has no such line. The target of
a request line is the path and query of the URL, even if a proxy got the whole URL.

No URL, method or header can break its line: CR and LF in a header value become spaces, as RFC 9112, section 5.2,
requires for folded lines; elsewhere they are percent-encoded.

Digests have one text form: ``sha256`` in lower case hex, ``sha1`` in upper case Base32.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from scrapy_dedupe.warc.dates import NOT_DIGITS, in_milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = tuple[tuple[bytes, bytes], ...]

TRUNCATIONS = frozenset({"length", "time", "disconnect", "unspecified"})
"""The reasons that WARC-Truncated can name (WARC 1.1, section 5.13)."""

_SAFE_URI = re.compile(r"[!#-;=?-~]+")  # printable ASCII without space, double quote, < and >
SAFE_URI_CHARACTERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"<>')
_LINE_CHARACTERS = re.compile(r"[!-~]+")  # allowed in a request line
_URI_PARTS = re.compile(r"([^:/?]*)://([^/?]*)(.*)", re.DOTALL)
_METHOD_CHARACTERS = "!#$%&'*+-.^_`|~"
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_UNSAFE_NAME = re.compile(rb"[\r\n:]|\A[ \t]")

# The empty name marks a field that is not a header; see `_header_name`.
_CONNECTION_HEADERS = frozenset(
    {b"", b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
_NOT_IN_REQUESTS = _CONNECTION_HEADERS | {b"proxy-authorization"}
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_DIGEST_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64, "blake3": 32}
# Size of an object with its tuples and header objects, without the bytes in them.
_OVERHEAD_BYTES = 1024
_HEADER_OVERHEAD_BYTES = 130


@dataclass(frozen=True, slots=True)
class Rendering:
    """Why a body differs from what the server sent: a browser rendered it, or a download handler decoded it.

    `sign` is the evidence, for messages. `is_html`: the body is HTML, regardless of its Content-Type.
    """

    sign: str
    is_html: bool = False


@dataclass(frozen=True, slots=True)
class Capture:
    """One exchange: a request and its response; the body is stored without transfer coding.

    `date` is aware and cut to milliseconds. `protocol` is Scrapy's name for it (``HTTP/1.1``, ``h2``), or several
    names separated by commas. `truncated` is a WARC-Truncated reason or None. `rendering` is None unless the body
    differs from what the server sent. Raises ValueError.
    """

    url: str
    method: str
    status: int
    date: datetime
    request_headers: Headers
    request_body: bytes
    response_headers: Headers
    body: bytes
    ip_address: str | None = None
    protocol: str | None = None
    truncated: str | None = None
    rendering: Rendering | None = None
    target_uri: str = field(init=False, repr=False, compare=False)
    """The URL as WARC-Target-URI."""
    warc_date: str = field(init=False, repr=False, compare=False)
    """The date as WARC-Date."""
    _sha256: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        date = self.date
        if date.tzinfo is not UTC or date.microsecond % 1000:
            date = in_milliseconds(date)
            object.__setattr__(self, "date", date)
        object.__setattr__(self, "warc_date", date.isoformat(timespec="milliseconds")[:23] + "Z")
        object.__setattr__(self, "target_uri", target_uri(self.url))
        if self.truncated is not None and self.truncated not in TRUNCATIONS:
            allowed = ", ".join(sorted(TRUNCATIONS))
            raise ValueError(f"{self.truncated!r} is not a WARC-Truncated reason; use one of {allowed}.")

    @property
    def size_bytes(self) -> int:
        """Approximate memory use of this object."""
        size = _OVERHEAD_BYTES + len(self.url) + len(self.body) + len(self.request_body)
        for headers in (self.request_headers, self.response_headers):
            for name, value in headers:
                size += len(name) + len(value) + _HEADER_OVERHEAD_BYTES
        return size

    @property
    def date_digits(self) -> str:
        """The 17 digits of the date, as in a crawl index."""
        return self.warc_date.translate(NOT_DIGITS)

    @property
    def is_complete(self) -> bool:
        """Whether the body is the whole content of the URL: neither truncated nor a range of it (206)."""
        return self.truncated is None and self.status != HTTPStatus.PARTIAL_CONTENT

    @property
    def has_body_by_definition(self) -> bool:
        """See the function of this name."""
        return has_body_by_definition(self.method, self.status)

    @property
    def content_type(self) -> bytes | None:
        """The first Content-Type of the response."""
        return next((value for name, value in self.response_headers if name.lower() == b"content-type"), None)

    def payload_digest(self, algorithm: str = "sha256") -> str:
        """Return the digest of the body, without label. SHA-256 is computed once."""
        if algorithm != "sha256":
            return digest_text(self.body, algorithm)
        if not self._sha256:
            object.__setattr__(self, "_sha256", digest_text(self.body, algorithm))
        return self._sha256

    def response_head(self) -> bytes:
        """Return the status line and the headers, with the blank line."""
        version = "HTTP/1.0" if self.protocol in ("HTTP/1.0", "http/1.0") else "HTTP/1.1"
        length = len(self.body) if self.has_body_by_definition else None
        return _head(_status_line(version, self.status), self.response_headers, _CONNECTION_HEADERS, length)

    def request_head(self) -> bytes:
        """Return the request line and the headers, with the blank line."""
        uri = self.target_uri
        if self.url != uri:
            # Scrapy's verbatim_url may have sent a string that is not a valid URI, as long as it has no space.
            url = self.url.partition("#")[0]
            uri = url if _LINE_CHARACTERS.fullmatch(url) else uri
        parts = _URI_PARTS.fullmatch(uri)
        scheme, authority, path = parts.groups() if parts else ("", "", uri)
        if not path.startswith("/"):
            path = "/" + path
        method = _method(self.method)
        headers = self.request_headers
        names = {_header_name(name)[0] for name, _ in headers}
        if b"host" not in names:
            # Scrapy's handlers add Host when they send, and never to the request object.
            headers = ((b"Host", _host(scheme, authority)), *headers)
        has_length = (
            bool(self.request_body)
            or b"content-length" in names
            or method in ("POST", "PUT")
            # Scrapy's HTTP/2 handler sends Content-Length for every body, even an empty one.
            or self.protocol == "h2"
        )
        length = len(self.request_body) if has_length else None
        return _head(f"{method} {path} HTTP/1.1".encode("ascii"), headers, _NOT_IN_REQUESTS, length)


def has_body_by_definition(method: str, status: int) -> bool:
    """Whether the Content-Length of a response describes its body: not for HEAD, 1xx, 204 and 304."""
    return not (method.upper() == "HEAD" or status in (204, 304) or 100 <= status < 200)


def has_whole_page(status: int | None) -> bool:
    """Whether a response of this status has the complete content of its URL: not 1xx, 206, 304 or an unknown status."""
    return status is not None and status >= 200 and status not in (206, 304)


def target_uri(url: str) -> str:
    """Return *url* as WARC-Target-URI: without its fragment, everything but plain ASCII percent-encoded.

    >>> target_uri("http://example.org/a b?q=<é>#top")
    'http://example.org/a%20b?q=%3C%C3%A9%3E'
    """
    url = url.partition("#")[0]
    if _SAFE_URI.fullmatch(url):
        return url
    if not url:
        raise ValueError("A capture without a URL cannot be recorded.")
    return quote(url.encode("utf-8", "surrogatepass"), safe=SAFE_URI_CHARACTERS)


def digest_text(data: bytes, algorithm: str, more: bytes = b"") -> str:
    """Return the digest of *data*, followed by *more*, in its text form, without label. Raises ValueError.

    >>> digest_text(b"", "sha1")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    if algorithm == "sha256":
        digest = hashlib.sha256(data)
        digest.update(more)
        return digest.hexdigest()
    if algorithm == "sha1":
        digest = hashlib.sha1(data, usedforsecurity=False)
        digest.update(more)
        return base64.b32encode(digest.digest()).decode("ascii")
    raise ValueError(f"{algorithm!r} is not a supported digest; use sha256 or sha1.")


class Digest(NamedTuple):
    """A parsed digest: label in lower case without hyphen, value in the text form of this module."""

    label: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}:{self.value}"


def parse_digest(text: str) -> Digest:
    """Return the digest in *text*, in any case and base. Raises ValueError.

    Without a label the length decides: 64 hex digits are SHA-256; 40 hex digits and 32 Base32 digits are SHA-1.

    >>> str(parse_digest("SHA-1:da39a3ee5e6b4b0d3255bfef95601890afd80709"))
    'sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    label, colon, value = text.strip().rpartition(":")
    value = value.rstrip("=")
    label = label.lower().replace("-", "")
    if not colon:
        label = {64: "sha256", 40: "sha1", 32: "sha1"}.get(len(value), "")
    size = _DIGEST_SIZES.get(label)
    try:
        if size and len(value) == 2 * size:
            raw = bytes.fromhex(value)
        elif size and len(value) == -(-size * 8 // 5):
            raw = base64.b32decode(value.upper() + "=" * (-len(value) % 8))
        else:
            raise ValueError("unknown label or length")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a digest in a known form: {error}.") from None
    return Digest(label, base64.b32encode(raw).decode("ascii") if label == "sha1" else raw.hex())


def digest_in_form_of(text: bytes | str, pieces: Iterable[bytes]) -> bytes | None:
    """The digest of *pieces* in the algorithm and notation of the digest *text*: its label, base and case.

    None if *text* has an unknown form, or if its algorithm is not available.
    """
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    try:
        hasher = hashlib.new(parse_digest(text).label, usedforsecurity=False)
    except ValueError:
        return None
    for piece in pieces:
        hasher.update(piece)
    raw = hasher.digest()
    label, colon, value = text.strip().rpartition(":")
    bare = value.rstrip("=")
    if len(bare) == 2 * len(raw):
        shown = raw.hex().upper() if bare.isupper() else raw.hex()
    else:
        padded = base64.b32encode(raw).decode("ascii")
        shown = padded if bare != value else padded.rstrip("=")
        shown = shown.lower() if bare.islower() else shown
    return f"{label}{colon}{shown}".encode("latin-1")


# A crawl has few distinct names, methods, hosts and statuses, each of them thousands of times.
@lru_cache(256)
def _header_name(name: bytes) -> tuple[bytes, bytes]:
    """Return *name* for comparison, empty if it is not a header, and the beginning of its line."""
    lower = name.strip().lower()
    if lower.startswith(b":"):  # Scrapy's HTTP/2 can keep the pseudo header :status among the headers.
        lower = b""
    return lower, _UNSAFE_NAME.sub(lambda match: b"%%%02X" % match[0][0], name) + b": "


@lru_cache(1024)
def _host(scheme: str, authority: str) -> bytes:
    """Return the value of Host as Scrapy's handlers send it."""
    host = authority.rpartition("@")[2].removesuffix(_DEFAULT_PORTS.get(scheme.lower(), " "))
    return host.encode("ascii")


@lru_cache(64)
def _method(method: str) -> str:
    return quote(method.encode("utf-8", "surrogatepass"), safe=_METHOD_CHARACTERS)


@lru_cache(256)
def _status_line(version: str, status: int) -> bytes:
    return f"{version} {status:03d} {_PHRASES.get(status, '')}".encode("ascii")


def _head(first_line: bytes, headers: Headers, dropped: frozenset[bytes], length: int | None) -> bytes:
    lines = [first_line]
    has_length = False
    for name, value in headers:
        lower, written = _header_name(name)
        if lower in dropped:
            continue
        if length is not None and lower == b"content-length":
            if has_length:
                continue
            has_length = True
            value = b"%d" % length
        lines.append(written + value)
    if length is not None and not has_length:
        lines.append(b"Content-Length: %d" % length)
    head = b"\r\n".join(lines)
    if head.count(b"\r") + head.count(b"\n") > 2 * (len(lines) - 1):
        head = b"\r\n".join(line.translate(_LINE_ENDS) for line in lines)
    return head + b"\r\n\r\n"
