"""Which fields of a WARC record may change when it becomes a revisit, or when its references are updated.

This is an independent check: the code that writes records uses nothing from this module. This module compares two
heads only; the place and digest of an original are checked against the whole archive (`evidence`).

If the old value of a changed field cannot be derived, it is kept in a field ``Former-NAME``; ``none`` means that the
field did not exist. `restoring` needs these values to revert the change, so a missing one is a fault.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy_dedupe.warc.bodies import hasher_of
from scrapy_dedupe.warc.capture import parse_digest
from scrapy_dedupe.warc.framing import open_head
from scrapy_dedupe.warc.records import IDENTICAL_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scrapy_dedupe.warc.reading import StoredRecord

FORMER = b"former-"
CONCURRENT_TO = b"warc-concurrent-to"
PAYLOAD_DIGEST = b"warc-payload-digest"
BLOCK_DIGEST = b"warc-block-digest"
FORMER_ID = b"former-warc-record-id"

_LENGTH = b"content-length"
_TYPE, _ID = b"warc-type", b"warc-record-id"
_PROFILE, _TRUNCATED = b"warc-profile", b"warc-truncated"
_REFERS_TO = (b"warc-refers-to", b"warc-refers-to-target-uri", b"warc-refers-to-date")
_OF_REVISITS = (_PROFILE, _TRUNCATED, *_REFERS_TO)
_ONCE = (_TYPE, _ID, _PROFILE, PAYLOAD_DIGEST, *_REFERS_TO[1:])
_AT_MOST_ONCE = (_REFERS_TO[0], _TRUNCATED, BLOCK_DIGEST)
_CONVERTED = (_TYPE, _ID, PAYLOAD_DIGEST, BLOCK_DIGEST, _LENGTH, CONCURRENT_TO, *_OF_REVISITS)
_NONE = b"none"
_RECORD_END = b"\r\n\r\n"
_KEPT_ORDERS = 256
_PLAIN = re.compile(rb"(?:[ -~]*\r\n)+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f]")
_USUAL_DIGEST = re.compile(rb"sha1:[A-Z2-7]{32}")
_RECORD_ID = re.compile(rb"<[^\s<>]+>")
_HASHED = ("md5", "sha1", "sha256", "sha384", "sha512")

Field = tuple[bytes, bytes]


# A program writes its heads with few different orders of fields.
@lru_cache(_KEPT_ORDERS)
def _encoded(titles: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple([title.encode("ascii") for title in titles])


@lru_cache(_KEPT_ORDERS)
def _lowered(titles: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple([title.lower() for title in titles])


class Head:
    """The version line of a record and its fields in order, as bytes. Folded lines are joined; `text` is as stored.

    ``titles`` are the names of the fields as stored, ``names`` in lower case.
    """

    __slots__ = ("_values", "names", "text", "titles", "version")

    def __init__(
        self, version: bytes, titles: tuple[bytes, ...], values: list[bytes], text: bytes = b""
    ) -> None:
        self.version = version
        self.titles = titles
        self.names = _lowered(titles)
        self.text = text
        self._values = values

    @classmethod
    def of(cls, version: bytes, fields: Sequence[Field], text: bytes = b"") -> Head:
        """The head with these fields."""
        return cls(version, tuple([name for name, _ in fields]), [value for _, value in fields], text)

    def is_like(self, other: Head) -> bool:
        """Whether both have the same version and fields."""
        return self.version == other.version and self.fields == other.fields

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
        values = [
            value if lower == name else old for lower, old in zip(self.names, self._values, strict=True)
        ]
        return Head(self.version, self.titles, values)

    def without(self, names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], list[bytes]]:
        """The names and values of the fields, except those with one of these names and the ``Former-`` fields."""
        titles, places = _without(self.titles, names)
        return titles, [self._values[place] for place in places]

    def former(self) -> list[Field]:
        """The ``Former-NAME`` fields, as pairs of name (without the prefix) and value."""
        return [(name, self._values[place]) for name, place in _former(self.names)]


@lru_cache(_KEPT_ORDERS)
def _former(names: tuple[bytes, ...]) -> list[tuple[bytes, int]]:
    return [(name[len(FORMER) :], place) for place, name in enumerate(names) if name.startswith(FORMER)]


@lru_cache(_KEPT_ORDERS)
def _without(titles: tuple[bytes, ...], out: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], list[int]]:
    names = [title.lower() for title in titles]
    places = [place for place, name in enumerate(names) if name not in out and not name.startswith(FORMER)]
    return tuple([titles[place] for place in places]), places


@lru_cache(_KEPT_ORDERS)
def _are_in_same_order(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> bool:
    """Whether two heads have the fields that are in both in the same order."""
    # Content-Length may be anywhere; writers put it last.
    both = {name for name in set(one) & set(other) if name != _LENGTH and not name.startswith(FORMER)}
    orders = [[name for name in names if name in both] for names in (one, other)]
    return orders[0] == orders[1]


@lru_cache(_KEPT_ORDERS)
def _names_of_revisits(names: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The names of fields that a response must not have, since they could not be restored from a revisit."""
    refused = _REFERS_TO[0], FORMER + b"warc-"
    return tuple(dict.fromkeys(name for name in names if name in _OF_REVISITS or name.startswith(refused)))


@lru_cache(_KEPT_ORDERS)
def _count_faults(names: tuple[bytes, ...], single: tuple[bytes, ...], least: int) -> list[str]:
    """Problems of the fields *single*, which must be in a head exactly once, or at most once if *least* is 0."""
    faults = []
    for name in single:
        count = names.count(name)
        if count > 1:
            faults.append(f"{_title(name)} is there {count} times")
        elif count < least:
            faults.append(f"{_title(name)} is missing")
    return faults


def head_of(record: StoredRecord) -> Head:
    """The head of a WARC record. Raises DamagedInput if it must be read again and is gone."""
    text = open_head(record.path, record.frame)
    version, _, rest = text.partition(b"\n")
    version = version.rstrip(b" \t\r")
    if record.frame.head is not None:
        layout, match = record.frame.head
        if text.count(b"\r") == len(layout.names) + 2:
            return Head(
                version, _encoded(layout.names), [value.strip(b" \t") for value in match.groups()], text
            )
    fields: list[tuple[bytes, list[bytes]]] = []
    for line in rest.split(b"\n"):
        shown = line.rstrip(b"\r")
        if shown[:1] in (b" ", b"\t") and fields:
            fields[-1][1].append(shown.strip(b" \t"))
        elif shown:
            name, _, value = shown.partition(b":")
            fields.append((name.strip(b" \t"), [value.strip(b" \t")]))
    return Head.of(version, [(name, b" ".join(filter(None, values))) for name, values in fields], text)


def form_faults(head: Head) -> list[str]:
    """Problems in the form of a rewritten head: it must have one line for each field, and lines must end in CRLF."""
    lines = [head.version, *map(b": ".join, head.fields), b"", b""]
    faults = (
        []
        if b"\r\n".join(lines) == head.text
        else ["its head is not written as `NAME: VALUE` in lines that end in CRLF"]
    )
    return faults + _count_faults(head.names, (_LENGTH,), 1)


def end_faults(record: StoredRecord, *, is_gzip: bool) -> list[str]:
    """Problems after a record's block, which must be followed by CRLF CRLF and end its gzip member."""
    end = record.frame.block_end
    is_right = end == _RECORD_END if is_gzip else end.startswith(_RECORD_END)
    return [] if is_right else ["its block is not followed by CRLF CRLF and the end of the record"]


def conversion_faults(response: Head, revisit: Head, block: bytes) -> list[str]:
    """Problems of a revisit that was made from a response; *block* is the revisit's block."""
    faults = _count_faults(revisit.names, _ONCE, 1) + _count_faults(revisit.names, _AT_MOST_ONCE, 0)
    if response.value(_TYPE) != b"response" or revisit.value(_TYPE) != b"revisit":
        faults.append(f"WARC-Type is {_shown(revisit.value(_TYPE))}, but was {_shown(response.value(_TYPE))}")
    if revisit.value(_PROFILE) != IDENTICAL_PAYLOAD.encode():
        faults.append(f"WARC-Profile is {_shown(revisit.value(_PROFILE))}")
    if revisit.value(_TRUNCATED) != b"length":
        faults.append("WARC-Truncated is not length")
    old_id = response.value(_ID)
    if old_id is None or revisit.value(_ID) == old_id:
        faults.append("it has the record id of the response")
    if not _RECORD_ID.fullmatch(revisit.value(_ID) or b""):
        faults.append(f"WARC-Record-ID is {_shown(revisit.value(_ID))}, which is not an id in angle brackets")
    faults += _bracket_faults(revisit) + _irrevocable(response)
    faults += _block_digest_faults(response.value(BLOCK_DIGEST), revisit.value(BLOCK_DIGEST), block)
    changed = {_ID: [old_id or _NONE], **_changed(response, revisit, (PAYLOAD_DIGEST, BLOCK_DIGEST))}
    # A record that already was a revisit has former references, which the response does not have.
    former = [pair for pair in revisit.former() if pair[0] not in _REFERS_TO]
    return faults + _kept_faults(response, revisit, _CONVERTED, changed, former)


def former_response(revisit: Head) -> Head:
    """The head of the response that a revisit was made from, except Content-Length."""
    former = dict(revisit.former())
    fields: list[Field] = []
    for name, (title, value) in zip(revisit.names, revisit.fields, strict=True):
        old = b"response" if name == _TYPE else former.get(name, value)
        is_of_revisits = name in _OF_REVISITS or name.startswith(FORMER)
        if not is_of_revisits and (name, old) != (PAYLOAD_DIGEST, _NONE):
            fields.append((title, old))
    return Head.of(revisit.version, fields)


def _irrevocable(response: Head) -> list[str]:
    """Fields and values of a response that could not be restored from a revisit."""
    faults = [f"the response has a field {_title(name)}" for name in _names_of_revisits(response.names)]
    nones = [name for name in (PAYLOAD_DIGEST, BLOCK_DIGEST, CONCURRENT_TO) if _NONE in response.values(name)]
    return faults + [f"{_title(name)} of the response is none" for name in nones]


def foreign_restoration_faults(old: Head, new: Head, block_digest_of_new: bytes | None) -> list[str]:
    """Problems of a response that was restored from a revisit of another program; its id and digest must not change.

    A payload digest of chunks that are missing may have been replaced; the caller puts the old one back in *new*.
    """
    gone = {*_OF_REVISITS, *(name for name in old.names if name.startswith(_REFERS_TO[0]))}
    faults = _rest_faults(old, new, (_TYPE, _LENGTH, BLOCK_DIGEST, b"content-type", *gone))
    faults += [f"{_title(name)} is still there" for name in new.names if name in gone]
    if (value := new.value(BLOCK_DIGEST)) is not None and value != block_digest_of_new:
        faults.append("WARC-Block-Digest does not match its block")
    return faults


def reference_faults(old: Head, new: Head, *, is_revisit: bool) -> list[str]:
    """Problems of a record in which only references may have changed."""
    single = (*_REFERS_TO, PAYLOAD_DIGEST) if is_revisit else _REFERS_TO
    faults = [*_count_faults(new.names, single, 0)]
    changed = _changed(old, new, single)
    for name in () if is_revisit else changed:
        if new.value(name) is None:
            faults.append(f"{_title(name)} is gone")
        elif old.value(name) is None:
            faults.append(f"{_title(name)} was not there before")
    if _REFERS_TO[1] in changed:
        faults += _bracket_faults(new)
    return faults + _kept_faults(old, new, (CONCURRENT_TO, _LENGTH, *single), changed, new.former())


def rechunked_faults(old: Head, new: Head, block_digest_of_new: bytes | None) -> list[str]:
    """Problems of a response in which only chunked transfer coding was removed or added.

    *block_digest_of_new* is None if there is no block digest or its algorithm is unknown. A payload digest of the
    chunks may have been replaced; the caller puts the old one back in *new*.
    """
    faults = _rest_faults(old, new, (_LENGTH, BLOCK_DIGEST))
    value, was = new.value(BLOCK_DIGEST), old.value(BLOCK_DIGEST)
    if (value is None) != (was is None) and digest_like(was, ()) is not None:
        faults.append("WARC-Block-Digest is gone")
    elif was is None and value is not None:
        faults.append("WARC-Block-Digest was not there before")
    elif value is not None and block_digest_of_new not in (None, value):
        faults.append("WARC-Block-Digest does not match its block")
    return faults


def is_undone(before: Head, after: Head) -> bool:
    """Whether `restoring` made the change between two heads: former values were removed, and none was added."""
    if not before.former():
        return False
    had, has = Counter(before.former()), Counter(after.former())
    return bool(had - has and not has - had)


def digest_like(form: bytes | None, data: Iterable[bytes]) -> bytes | None:
    """The digest of *data* in the notation of the digest *form*; None if that is missing or its algorithm is unknown.

    The result has the label and base of *form*. It also has its case, if that is uniform; otherwise hex is lower case
    and Base32 upper case.
    """
    if form is None:
        return None
    # Text has other white space than bytes, and `parse_digest` reads text.
    form = form.decode("latin-1").strip().encode("latin-1")
    try:
        label = "sha1" if _USUAL_DIGEST.fullmatch(form) else parse_digest(form.decode("latin-1")).label
    except ValueError:
        return None
    if label not in _HASHED:
        return None
    hasher = hasher_of(label)
    for piece in data:
        hasher.update(piece)
    prefix, colon, value = form.rpartition(b":")
    raw = hasher.digest()
    if len(value.rstrip(b"=")) == 2 * len(raw):
        text = raw.hex().encode("ascii")
        return prefix + colon + (text.upper() if value.isupper() else text)
    text = base64.b32encode(raw)
    text = text if value.endswith(b"=") else text.rstrip(b"=")
    return prefix + colon + (text.lower() if value.islower() else text)


def _changed(old: Head, new: Head, names: tuple[bytes, ...]) -> dict[bytes, list[bytes]]:
    """The old values of the fields *names* that differ."""
    pairs = [(name, old.value(name)) for name in names]
    return {name: [_NONE if was is None else was] for name, was in pairs if was != new.value(name)}


def _bracket_faults(head: Head) -> list[str]:
    is_wrong = (head.value(_REFERS_TO[1]) or b"").startswith(b"<")
    return [f"{_title(_REFERS_TO[1])} is in angle brackets"] if is_wrong else []


def _stray_faults(old: Head, new: Head) -> list[str]:
    """Added fields with bytes that readers interpret differently."""
    if _PLAIN.fullmatch(new.text):
        return []
    known = set(old.fields)
    return [
        f"the field {_shown_field(field)} has control characters or surrounding white space"
        for field in dict.fromkeys(new.fields)
        if field not in known
        and (_CONTROL.search(field[1]) or decoded(field[1]).strip() != decoded(field[1]))
    ]


def decoded(value: bytes) -> str:
    """A value as text: in UTF-8 or, if it is not valid, in Latin-1."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _rest_faults(old: Head, new: Head, changing: tuple[bytes, ...]) -> list[str]:
    """Problems in the fields that must not change, and in the order of the fields that both heads have."""
    was, now = old.without(changing), new.without(changing)
    if was != now:
        had, has = Counter(zip(*was, strict=True)), Counter(zip(*now, strict=True))
        lost, came = had - has, has - had
        if not lost and not came:
            return ["the order of its fields changed"]
        faults = [f"the field {_shown_field(field)} is gone or changed" for field in lost]
        return faults + [f"the field {_shown_field(field)} was not there before" for field in came]
    return [] if _are_in_same_order(old.names, new.names) else ["the order of its fields changed"]


def _kept_faults(
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
        faults.append(f"the version is {_shown(new.version)}, but was {_shown(old.version)}")
    faults += _stray_faults(old, new) + _rest_faults(old, new, changing)
    # A link that is gone or was added is found in the evidence.
    links = zip(old.values(CONCURRENT_TO), new.values(CONCURRENT_TO), strict=False)
    changed[CONCURRENT_TO] = [was for was, value in links if was != value]
    return faults + _former_faults(old, former, changed)


def _former_faults(old: Head, former: list[Field], changed: Mapping[bytes, list[bytes]]) -> list[str]:
    wanted = [(name, value) for name, values in changed.items() for value in values]
    if not old.former() and sorted(former) == sorted(wanted):
        return []
    had, has = Counter(old.former()), Counter(former)
    gone, came = had - has, has - had
    faults = [f"the field Former-{_shown_field(field)} is gone" for field in gone]
    for name, value in came:
        # For a digest, an empty field is the same as a missing one.
        if value == _NONE and changed.get(name) == [b""]:
            continue
        # The former value of a field that did not change is allowed; a value that the field never had is not.
        if value not in (*changed.get(name, ()), *old.values(name)):
            faults.append(f"Former-{_title(name)} is {_shown(value)}, which was not its value")
    for name, values in changed.items():
        has_older_value = any(field == name for field, _ in had)
        if not has_older_value:
            faults += [
                f"no Former-{_title(name)} keeps its old value {_shown(value)}"
                for value in values
                if (name, value) not in came and not (value == b"" and (name, _NONE) in came)
            ]
    return faults


def _block_digest_faults(old: bytes | None, new: bytes | None, block: bytes) -> list[str]:
    right = digest_like(old, (block,))
    if new is None:
        return [] if right is None else ["WARC-Block-Digest is gone"]
    if old is None:
        return ["WARC-Block-Digest was not there before"]
    if not old and not new:
        return []
    return [] if right == new else ["WARC-Block-Digest does not match its block"]


def _title(name: bytes) -> str:
    return "-".join(_part(part) for part in name.decode("latin-1").split("-"))


def _part(part: str) -> str:
    return part.upper() if part in ("warc", "id", "uri") else part.capitalize()


def _shown(value: bytes | None) -> str:
    return "missing" if value is None else repr(value.decode("utf-8", "replace")[:200])


def _shown_field(field: Field) -> str:
    return f"{field[0].decode('utf-8', 'replace')}: {field[1].decode('utf-8', 'replace')[:200]}"
