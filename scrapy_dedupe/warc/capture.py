"""What travelled between the crawler and a server, as plain values, and how it reads as HTTP/1.1.

A `Capture` is taken at once and never changes. Its HTTP heads are reconstructed, since Scrapy does not
keep them: the status line carries the standard phrase, every header value is kept as bytes and in
order. What belonged to the connection and not to the message (RFC 9110, section 7.6.1) is left out, and
so is the proxy's password. The body has no transfer coding any more, so Content-Length is made true for
the body as stored; the content coding stays. HEAD, 204 and 304 have no body by definition: their
Content-Length describes another response and is kept.

Nothing in a URL, a method or a header can end its line: CR and LF in a header value become spaces
(what RFC 9112, section 5.2, says of folded lines), elsewhere they are percent-encoded.

Digests have one text form: ``sha256`` in lower case hex, ``sha1`` in upper case Base32.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from scrapy_dedupe.warc.dates import in_milliseconds

if TYPE_CHECKING:
    from datetime import datetime

Headers = tuple[tuple[bytes, bytes], ...]

TRUNCATIONS = frozenset({"length", "time", "disconnect", "unspecified"})
"""The reasons that WARC-Truncated can name (WARC 1.1, section 5.13)."""

_SAFE_URI = re.compile(r"[!#-;=?-~]+")  # printable ASCII without space, double quote, < and >
_SAFE_URI_CHARACTERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"<>')
_METHOD_CHARACTERS = "!#$%&'*+-.^_`|~"
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_UNSAFE_NAME = re.compile(rb"[\r\n:]|\A[ \t]")

_CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_IN_REQUESTS = _CONNECTION_HEADERS | {b"proxy-authorization"}
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_DIGEST_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64, "blake3": 32}
# What an object, its tuples and its header objects cost beside the bytes in them.
_OVERHEAD_BYTES = 1024
_HEADER_OVERHEAD_BYTES = 130


@dataclass(frozen=True, slots=True)
class Capture:
    """One exchange: a request and its response, the body as it was received without transfer coding.

    `date` is aware and is cut to milliseconds; `protocol` is what Scrapy calls it (``HTTP/1.1``, ``h2``),
    or several names with commas; `truncated` is a reason of WARC-Truncated or None. Raises ValueError.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "date", in_milliseconds(self.date))
        if self.truncated is not None and self.truncated not in TRUNCATIONS:
            allowed = ", ".join(sorted(TRUNCATIONS))
            raise ValueError(f"{self.truncated!r} is no reason for a truncation; use one of {allowed}.")

    @property
    def size_bytes(self) -> int:
        """About how much memory this holds."""
        size = _OVERHEAD_BYTES + len(self.url) + len(self.body) + len(self.request_body)
        for headers in (self.request_headers, self.response_headers):
            for name, value in headers:
                size += len(name) + len(value) + _HEADER_OVERHEAD_BYTES
        return size

    @property
    def is_complete(self) -> bool:
        """Whether the body is all that the URL stands for: neither cut nor a range (206) of it."""
        return self.truncated is None and self.status != HTTPStatus.PARTIAL_CONTENT

    @property
    def has_body_by_definition(self) -> bool:
        """Whether Content-Length speaks of this body: not for HEAD, 1xx, 204 and 304."""
        return not (self.method.upper() == "HEAD" or self.status in (204, 304) or 100 <= self.status < 200)

    @property
    def target_uri(self) -> str:
        """The URL as WARC-Target-URI."""
        return target_uri(self.url)

    def payload_digest(self, algorithm: str = "sha256") -> str:
        """Return the digest of the body, without label."""
        return digest_text(self.body, algorithm)

    def response_head(self) -> bytes:
        """Return the status line and the headers, with the blank line."""
        phrase = _PHRASES.get(self.status, "")
        length = len(self.body) if self.has_body_by_definition else None
        return _head(
            f"HTTP/1.1 {self.status:03d} {phrase}".encode("ascii"),
            self.response_headers,
            _CONNECTION_HEADERS,
            length,
        )

    def request_head(self) -> bytes:
        """Return the request line and the headers, with the blank line."""
        scheme, _, rest = self.target_uri.partition("://")
        authority = re.split(r"[/?]", rest, maxsplit=1)[0]
        path = rest[len(authority) :]
        if not path.startswith("/"):
            path = "/" + path
        method = quote(self.method.encode("utf-8", "surrogatepass"), safe=_METHOD_CHARACTERS)
        headers = self.request_headers
        if not any(name.strip().lower() == b"host" for name, _ in headers):
            # Scrapy's handlers add Host when they send, and never to the request object.
            host = authority.rpartition("@")[2].removesuffix(_DEFAULT_PORTS.get(scheme.lower(), " "))
            headers = ((b"Host", host.encode("ascii")), *headers)
        speaks_of_length = any(name.strip().lower() == b"content-length" for name, _ in headers)
        has_length = bool(self.request_body) or speaks_of_length or method == "POST"
        return _head(
            f"{method} {path} HTTP/1.1".encode("ascii"),
            headers,
            _NOT_IN_REQUESTS,
            len(self.request_body) if has_length else None,
        )


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
    return quote(url.encode("utf-8", "surrogatepass"), safe=_SAFE_URI_CHARACTERS)


def digest_text(data: bytes, algorithm: str) -> str:
    """Return the digest of *data* in its text form, without label. Raises ValueError.

    >>> digest_text(b"", "sha1")
    '3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ'
    """
    if algorithm == "sha256":
        return hashlib.sha256(data).hexdigest()
    if algorithm == "sha1":
        return base64.b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode("ascii")
    raise ValueError(f"{algorithm!r} is no digest that we write; use sha256 or sha1.")


class Digest(NamedTuple):
    """A digest that was read: label in lower case without hyphen, value in our text form."""

    label: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}:{self.value}"


def parse_digest(text: str) -> Digest:
    """Return the digest in *text*, whichever label, case or base it has. Raises ValueError.

    Without a label the length tells: 64 hex digits are SHA-256, 40 hex digits and 32 Base32 ones SHA-1.

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
        raise ValueError(f"{text!r} is no digest of a known form: {error}.") from None
    return Digest(label, base64.b32encode(raw).decode("ascii") if label == "sha1" else raw.hex())


def _head(first_line: bytes, headers: Headers, dropped: frozenset[bytes], length: int | None) -> bytes:
    lines = [first_line]
    has_length = False
    for name, value in headers:
        lower = name.strip().lower()
        # Scrapy's HTTP/2 keeps the pseudo header :status among the headers.
        if not lower or lower in dropped or lower.startswith(b":"):
            continue
        if length is not None and lower == b"content-length":
            if has_length:
                continue
            has_length = True
            value = b"%d" % length
        if _UNSAFE_NAME.search(name):
            name = _UNSAFE_NAME.sub(lambda match: b"%%%02X" % match[0][0], name)
        lines.append(name + b": " + value.translate(_LINE_ENDS))
    if length is not None and not has_length:
        lines.append(b"Content-Length: %d" % length)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
