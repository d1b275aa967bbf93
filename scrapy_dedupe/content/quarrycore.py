"""Texts that QuarryCore has seen: the hashes of its table ``hash_dedup``.

QuarryCore keys a page by the SHA-256, in hexadecimal digits, of a canonical text of its own: ``<script>`` and
``<style>`` are dropped, the text of the tree is joined without separators, runs of white space become one space, and
the ends are trimmed. Its parser Modest took the text of ``<body>`` alone, its other parser that of the whole tree,
title included; which one was at work was never noted, so a page has up to two such hashes.

These say nothing about our own canonical text, hence they are kept under keys of their own: the first 16 bytes of the
SHA-256 of ``quarrycore/1``, a zero byte and the hash in lower case. A store that holds such keys says so with the
parameter ``imported = quarrycore/1``.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from .markup import parse

NAMESPACE: Final = "quarrycore/1"
PARAMETERS: Final = {"imported": NAMESPACE}

# The kinds of pages whose hashes are looked up.
KINDS: Final = ("html", "xhtml")

_HASH: Final = re.compile(r"[0-9a-f]{64}")


def is_hash(text: object) -> bool:
    """Whether that is a hash as QuarryCore writes it."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def key_of(hash_: str) -> bytes:
    """The 16 bytes under which a hash is kept.

    >>> key_of("ab" * 32).hex()
    'ee55d948f244585e142f8b962446ad6b'
    """
    return sha256(f"{NAMESPACE}\0{hash_}".encode()).digest()[:16]


def keys_of_page(html: str) -> tuple[bytes, ...]:
    """The keys of a page: of its body, then of the whole tree if that is another text. None of an empty text.

    Raises :class:`.HostileMarkup`.

    >>> len(keys_of_page("<title>T</title><p>A")), len(keys_of_page("<p>A")), len(keys_of_page("<script>A</script>"))
    (2, 1, 0)
    """
    # A lone surrogate is no character; QuarryCore could not hash such a page at all.
    tree = parse(html.encode("utf-8", "replace"))
    tree.strip_tags(["script", "style"])
    texts = [node.text() for node in (tree.body, tree.root) if node is not None]
    canonical = dict.fromkeys(" ".join(text.split()) for text in texts)
    return tuple(key_of(sha256(text.encode("utf-8", "replace")).hexdigest()) for text in canonical if text)
