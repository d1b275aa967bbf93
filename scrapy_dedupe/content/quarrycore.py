"""Texts imported from QuarryCore: the hashes of its table ``hash_dedup``.

QuarryCore's key of a page is the SHA-256, in hexadecimal digits, of its own canonical text: ``<script>`` and
``<style>`` are removed, the text of the tree is joined without separators, runs of white space become one space, and
the ends are trimmed. With its parser Modest QuarryCore took the text of ``<body>`` only; with its other parser, of
the whole tree including the title. It did not record which parser it used, so a page can have two such hashes.

A QuarryCore hash says nothing about the canonical text of this package. It is therefore stored under a separate key:
the first 16 bytes of the SHA-256 of ``quarrycore/1``, a zero byte and the hash in lower case. A store with such keys
has the parameter ``imported = quarrycore/1``.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from .markup import parse

NAMESPACE: Final = "quarrycore/1"
PARAMETERS: Final = {"imported": NAMESPACE}

# The kinds of pages that are looked up among imported hashes.
KINDS: Final = ("html", "xhtml")

_HASH: Final = re.compile(r"[0-9a-f]{64}")


def is_hash(text: object) -> bool:
    """Whether *text* is a hash as QuarryCore writes it."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def key_of(hash_: str) -> bytes:
    """The 16-byte key under which a hash is stored.

    >>> key_of("ab" * 32).hex()
    'ee55d948f244585e142f8b962446ad6b'
    """
    return sha256(f"{NAMESPACE}\0{hash_}".encode()).digest()[:16]


def keys_of_page(html: str) -> tuple[bytes, ...]:
    """The keys of a page: of its body, then of the whole tree if its text differs. An empty text has no key.

    Raises :class:`.HostileMarkup`.

    >>> len(keys_of_page("<title>T</title><p>A")), len(keys_of_page("<p>A")), len(keys_of_page("<script>A</script>"))
    (2, 1, 0)
    """
    # QuarryCore cannot hash a page with a lone surrogate, so any replacement will do.
    tree = parse(html.encode("utf-8", "replace"))
    tree.strip_tags(["script", "style"])
    texts = [node.text() for node in (tree.body, tree.root) if node is not None]
    canonical = dict.fromkeys(" ".join(text.split()) for text in texts)
    return tuple(key_of(sha256(text.encode("utf-8", "replace")).hexdigest()) for text in canonical if text)
