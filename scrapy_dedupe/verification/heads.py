"""The head of a WARC record as bytes, and what two heads must have in common if one was rewritten.

The fields are parsed here and not by `warc.raw_heads`, which the code that writes records uses.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.bodies import hasher_of
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.framing import open_head, unfolded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy_dedupe.warc.reading import StoredRecord

FORMER, NONE = b"former-", b"none"
REFERS_TO, CONCURRENT_TO, LENGTH = b"warc-refers-to", b"warc-concurrent-to", b"content-length"

_KEPT_ORDERS = 256
_PLAIN = re.compile(rb"(?:[ -~]*\r\n)+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f]")
_REFERRED_ID = re.compile(rb"<[^\s<>]+>|[^\s<>]+")
_USUAL_DIGEST = re.compile(r"sha1:[A-Z2-7]{32}")

Field = tuple[bytes, bytes]


# A program writes its heads with few different orders of fields.
@lru_cache(_KEPT_ORDERS)
def _encoded(titles: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple([title.encode("ascii") for title in titles])


@lru_cache(_KEPT_ORDERS)
def _lowered(titles: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple([title.lower() for title in titles])


@lru_cache(_KEPT_ORDERS)
def _without(titles: tuple[bytes, ...], out: tuple[bytes, ...]) -> tuple[list[bytes], list[int]]:
    names = _lowered(titles)
    places = [place for place, name in enumerate(names) if name not in out and not name.startswith(FORMER)]
    return [titles[place] for place in places], places


@lru_cache(_KEPT_ORDERS)
def _former(names: tuple[bytes, ...]) -> list[tuple[bytes, int]]:
    return [(name[len(FORMER) :], place) for place, name in enumerate(names) if name.startswith(FORMER)]


class Head:
    """The version line of a record and its fields in order, as bytes. Folded lines are joined; `text` is as stored.

    ``titles`` are the names of the fields as stored, ``names`` in lower case.
    """

    __slots__ = ("_values", "names", "text", "titles", "version")

    def __init__(
        self, version: bytes, titles: Iterable[bytes], values: Sequence[bytes], text: bytes = b""
    ) -> None:
        self.version = version
        self.titles = tuple(titles)
        self.names = _lowered(self.titles)
        self.text = text
        self._values = values

    @property
    def fields(self) -> list[Field]:
        """The fields, as pairs of name and value."""
        return list(zip(self.titles, self._values, strict=True))

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field, given by its lower-case name."""
        if name not in self.names:
            return []
        return [value for lower, value in zip(self.names, self._values, strict=True) if lower == name]

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field."""
        return self._values[self.names.index(name)] if name in self.names else None

    def replaced(self, name: bytes, value: bytes) -> Head:
        """The head with a new value for a field."""
        pairs = zip(self.names, self._values, strict=True)
        return Head(self.version, self.titles, [value if lower == name else old for lower, old in pairs])

    def without(self, names: tuple[bytes, ...]) -> tuple[list[bytes], list[bytes]]:
        """The names and values of the fields, except those with one of these names and the ``Former-`` fields."""
        titles, places = _without(self.titles, names)
        return titles, [self._values[place] for place in places]

    def former(self) -> list[Field]:
        """The ``Former-NAME`` fields, as pairs of name (without the prefix) and value."""
        return [(name, self._values[place]) for name, place in _former(self.names)]


def head_of(record: StoredRecord) -> Head:
    """The head of a WARC record. Raises DamagedInput if it must be read again and is gone."""
    text = open_head(record.path, record.frame)
    version, _, rest = text.partition(b"\n")
    version = version.rstrip(b" \t\r")
    if record.frame.head is not None:
        layout, match = record.frame.head
        if text.count(b"\r") == len(layout.names) + 2:
            values = [value.strip(b" \t") for value in match.groups()]
            return Head(version, _encoded(layout.names), values, text)
    lines = [line.rstrip(b"\r").partition(b":") for line in unfolded(rest).split(b"\n")]
    fields = [(name.strip(b" \t"), value.strip(b" \t")) for name, colon, value in lines if name or colon]
    return Head(version, [name for name, _ in fields], [value for _, value in fields], text)


def digest_like(form: bytes | None, data: Iterable[bytes]) -> bytes | None:
    """The digest of *data* in the notation of the digest *form*; None if that is missing or its algorithm is unknown.

    The result has the label and base of *form*. It also has its case, if that is uniform; otherwise hex is lower case
    and Base32 upper case.
    """
    text = (form or b"").decode("latin-1").strip()
    try:
        hasher = hasher_of("sha1" if _USUAL_DIGEST.fullmatch(text) else parse_digest(text).label)
    except ValueError:
        return None
    for piece in data:
        hasher.update(piece)
    prefix, colon, value = text.rpartition(":")
    raw = hasher.digest()
    if len(value.rstrip("=")) == 2 * len(raw):
        shown = raw.hex().upper() if value.isupper() else raw.hex()
    else:
        shown = base64.b32encode(raw).decode("ascii")
        shown = shown if value.endswith("=") else shown.rstrip("=")
        shown = shown.lower() if value.islower() else shown
    return f"{prefix}{colon}{shown}".encode("latin-1")


@lru_cache(_KEPT_ORDERS)
def count_faults(names: tuple[bytes, ...], single: tuple[bytes, ...], least: int) -> list[str]:
    """Problems of the fields *single*, which must be in a head exactly once, or at most once if *least* is 0."""
    faults = []
    for name in single:
        count = names.count(name)
        if count > 1:
            faults.append(f"{title(name)} is there {count} times")
        elif count < least:
            faults.append(f"{title(name)} is missing")
    return faults


def kept_faults(
    old: Head,
    new: Head,
    changing: tuple[bytes, ...],
    changed: dict[bytes, list[bytes]],
    former: list[Field],
) -> list[str]:
    """Problems of what a change must keep: version, other fields, number of links, and old values in ``Former-NAME``.

    The values of the fields *changing* may differ. *changed* has the old values of the fields that differ, besides the links.
    *former* has the former values in *new*.
    """
    faults = []
    if new.version != old.version:
        faults.append(f"the version is {shown(new.version)}, but was {shown(old.version)}")
    faults += _stray_faults(old, new) + rest_faults(old, new, changing) + _link_faults(old, new)
    # A link that is gone or was added is found in the evidence.
    links = zip(old.values(CONCURRENT_TO), new.values(CONCURRENT_TO), strict=False)
    changed[CONCURRENT_TO] = [was for was, value in links if was != value]
    wanted = [(name, value) for name, values in changed.items() for value in values]
    if not old.former() and sorted(former) == sorted(wanted):
        return faults
    had, has = Counter(old.former()), Counter(former)
    came = has - had
    faults += [f"the field Former-{_shown_field(field)} is gone" for field in had - has]
    for name, value in came:
        # For a digest, an empty field is the same as a missing one.
        if value == NONE and changed.get(name) == [b""]:
            continue
        # The former value of a field that did not change is allowed; a value that the field never had is not.
        if value not in (*changed.get(name, ()), *old.values(name)):
            faults.append(f"Former-{title(name)} is {shown(value)}, which was not its value")
    # A field that is changed again keeps its first former value.
    first = {name for name, _ in had}
    faults += [
        f"no Former-{title(name)} keeps its old value {shown(value)}"
        for name, value in wanted
        if name not in first and (name, value) not in came and not (value == b"" and (name, NONE) in came)
    ]
    return faults


def _link_faults(old: Head, new: Head) -> list[str]:
    """Problems in the form of new references to record ids. The evidence has ids without their angle brackets."""
    return [
        f"{title(name)} is {shown(value)}, which is not a record id"
        for name in (REFERS_TO, CONCURRENT_TO)
        for value in new.values(name)
        if not _REFERRED_ID.fullmatch(value) and value not in old.values(name)
    ]


def rest_faults(old: Head, new: Head, changing: tuple[bytes, ...]) -> list[str]:
    """Problems in the fields that must not change, and in the order of the fields that both heads have."""
    was, now = old.without(changing), new.without(changing)
    if was == now and _are_in_same_order(old.names, new.names):
        return []
    had, has = Counter(zip(*was, strict=True)), Counter(zip(*now, strict=True))
    faults = [f"the field {_shown_field(field)} is gone or changed" for field in had - has]
    faults += [f"the field {_shown_field(field)} was not there before" for field in has - had]
    return faults or ["the order of its fields changed"]


@lru_cache(_KEPT_ORDERS)
def _are_in_same_order(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> bool:
    """Whether two heads have the fields that are in both in the same order."""
    # Content-Length may be anywhere; writers put it last.
    both = {name for name in set(one) & set(other) if name != LENGTH and not name.startswith(FORMER)}
    orders = [[name for name in names if name in both] for names in (one, other)]
    return orders[0] == orders[1]


def _stray_faults(old: Head, new: Head) -> list[str]:
    """Added fields with bytes that readers interpret differently."""
    if _PLAIN.fullmatch(new.text):
        return []
    known = set(old.fields)
    return [
        f"the field {_shown_field(field)} has control characters or surrounding white space"
        for field in dict.fromkeys(new.fields)
        if field not in known and (_CONTROL.search(field[1]) or _has_surrounding_space(field[1]))
    ]


def _has_surrounding_space(value: bytes) -> bool:
    """Whether a value in UTF-8, or else in Latin-1, begins or ends with a white space of Unicode."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    return text.strip() != text


def title(name: bytes) -> str:
    parts = name.decode("latin-1").split("-")
    return "-".join([part.upper() if part in ("warc", "id", "uri") else part.capitalize() for part in parts])


def shown(value: bytes | None) -> str:
    return "missing" if value is None else repr(value.decode("utf-8", "replace")[:200])


def _shown_field(field: Field) -> str:
    return f"{field[0].decode('utf-8', 'replace')}: {field[1].decode('utf-8', 'replace')[:200]}"
