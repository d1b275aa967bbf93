"""Record ids: their form in heads, and the id of the revisit that replaces a record."""

from __future__ import annotations

import hashlib
import uuid
from functools import lru_cache
from typing import Final

_NAMESPACE: Final = uuid.UUID("5d8a3a4e-6f0b-4b57-9a53-0c7d41b2f6ce")


# The records of an exchange refer to the same record, and are next to each other.
@lru_cache(64)
def revisit_id(old_id: bytes) -> bytes:
    """The id of the revisit that replaces a record: UUID version 5 (RFC 9562, section 5.5) of the record's id.

    >>> revisit_id(b"<urn:uuid:0b8b1c1e-4f4e-4b3c-9d6a-3f1a2b3c4d5e>")
    b'<urn:uuid:a40a39f4-df9d-54e8-a5db-09b1e1a247b8>'
    """
    name = hashlib.sha1(_NAMESPACE.bytes + bare(old_id), usedforsecurity=False).digest()
    return f"<urn:uuid:{uuid.UUID(bytes=name[:16], version=5)}>".encode("ascii")


def bare(value: bytes) -> bytes:
    """An id or URI without surrounding angle brackets, and without the white space that readers strip."""
    value = value.strip()
    if not value.isascii():
        value = _stripped(value)
    return value[1:-1] if value.startswith(b"<") and value.endswith(b">") else value


def _stripped(value: bytes) -> bytes:
    """A value without surrounding Unicode white space, decoded as readers do."""
    try:
        return value.decode("utf-8").strip().encode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1").strip().encode("latin-1")
