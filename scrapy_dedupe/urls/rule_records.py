"""What a crawl records about its URL rules: the requests that rules filtered, and the texts of pages.

**Format.** An SQLite database with ``application_id`` 0x64647532 ("ddu2"), ``user_version`` 1 and these tables:

``about``     ``rules``: the id of the rules; ``file``: the name of their file; ``earlier``: ``1`` if the URL filter had
              fingerprints before there were rules
``held``      filtered requests: fingerprint of the URL, identity, ids of the rules, request as JSON. ``due`` is 1 if the
              request is to be scheduled
``held_by``   the requests in ``held`` by rule: a row for each rule that filtered the request
``pages``     for each identity its first page: URL, text, family of the text, ids of the rules that changed the URL
``tallies``   for each rule: filtered requests, probes, compared pages, pairs for and against it, whether it is suspended

Ids of rules have 8 bytes each. In ``JOBDIR`` the file is kept between runs. After a kill it may lack the last requests.
These are found again, because pages in which a request was filtered by a rule are requested again after a kill. The
file may also have requests that the next run makes anyway; the URL filter then filters them.
"""

from __future__ import annotations

import base64
import heapq
import json
import sqlite3
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from scrapy_dedupe.errors import SettingError, StoreRefused
from scrapy_dedupe.stores.sqlite_file import sqlite_faults, transaction

from .folder import RECORDS_NAME
from .rules import RULE_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

APPLICATION_ID: Final = 0x64647532
VERSION: Final = 1
MOST_HELD: Final = 1_000_000
_MOST_PAGES: Final = 5_000_000

_TABLES: Final = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE held (
    fingerprint BLOB PRIMARY KEY, identity BLOB, rules BLOB, request TEXT, due INTEGER DEFAULT 0
);
CREATE INDEX held_identity ON held (identity);
CREATE INDEX held_due ON held (due) WHERE due;
CREATE TABLE held_by (rule BLOB, fingerprint BLOB, PRIMARY KEY (rule, fingerprint)) WITHOUT ROWID;
CREATE TABLE pages (identity BLOB PRIMARY KEY, url TEXT, text BLOB, family BLOB, rules BLOB) WITHOUT ROWID;
CREATE TABLE tallies (
    rule BLOB PRIMARY KEY, filtered INTEGER, probes INTEGER, compared INTEGER, pairs_for INTEGER,
    pairs_against INTEGER, suspended INTEGER
) WITHOUT ROWID;
"""
_OF_RULE: Final = "fingerprint IN (SELECT fingerprint FROM held_by WHERE rule = ?)"


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that a rule filtered. ``identity`` is the key of its page, ``request`` its text from :func:`to_json`."""

    fingerprint: bytes
    identity: bytes
    rules: bytes
    request: str


@dataclass(frozen=True, slots=True)
class RequestedPage:
    """The first page of an identity."""

    url: str
    text: bytes
    family: bytes
    rules: bytes


@dataclass(slots=True)
class RuleTally:
    """The figures of a rule in this crawl. ``compared`` is the number of pages that were compared with another one; ``suspended`` is 0 or 1."""

    filtered: int = 0
    probes: int = 0
    compared: int = 0
    pairs_for: int = 0
    pairs_against: int = 0
    suspended: int = 0


class RuleRecords:
    """The records in the file *path*, or in a temporary file. Used by one thread at a time.

    ``held`` is the number of held requests, ``has_earlier`` whether the URL filter had fingerprints when the file was
    created. Raises :class:`~scrapy_dedupe.errors.SettingError` if the file belongs to
    other rules, :class:`~scrapy_dedupe.errors.StoreRefused` if it has another format, and
    :class:`~scrapy_dedupe.errors.StoreUnavailable` if it cannot be used.
    """

    def __init__(self, path: Path | None, rules_id: str, rules_file: str, *, has_earlier: bool) -> None:
        self._name = "the temporary file of URL rules" if path is None else str(path)
        # Fingerprints of scheduled requests that could not be removed.
        self._scheduled: set[bytes] = set()
        with sqlite_faults(self._name):
            # SQLite deletes a database without a name itself.
            self._connection = sqlite3.connect(
                "" if path is None else path, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(rules_id, rules_file, has_earlier)
                self.held: int = self._one("SELECT count(*) FROM held")
                self._pages: int = self._one("SELECT count(*) FROM pages")
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self, rules_id: str, rules_file: str, has_earlier: bool) -> None:
        execute = self._connection.execute
        # A kill loses nothing that is needed; see the module.
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = OFF")
        found = self._one("PRAGMA application_id"), self._one("PRAGMA user_version")
        if found == (0, 0) and not self._one("SELECT count(*) FROM sqlite_master"):
            execute("BEGIN")
            for statement in filter(str.strip, _TABLES.split(";")):
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {VERSION}")
            self.has_earlier = has_earlier
            about = [("rules", rules_id), ("file", rules_file), ("earlier", str(int(has_earlier)))]
            self._connection.executemany("INSERT INTO about VALUES (?, ?)", about)
            execute("COMMIT")
            return
        if found != (APPLICATION_ID, VERSION):
            raise StoreRefused(
                f"{self._name} is not a file of URL rules of this version. Use another JOBDIR, or move the file away;"
                " requests that URL rules have filtered are then lost."
            )
        known = dict(execute("SELECT name, value FROM about").fetchall())
        if known.get("rules") != rules_id:
            raise SettingError(
                f"This job was started with the URL rules {known.get('rules')} ({known.get('file')}), but"
                f" DEDUPE_URL_RULES has the rules {rules_id} ({rules_file}). Use the rules of the job, or another JOBDIR."
            )
        self.has_earlier = known.get("earlier") == "1"

    def tallies(self) -> dict[bytes, RuleTally]:
        """The figures by the ids of the rules."""
        with sqlite_faults(self._name):
            rows = self._connection.execute("SELECT * FROM tallies").fetchall()
        return {rule: RuleTally(*counts) for rule, *counts in rows}

    def save_tallies(self, tallies: Sequence[tuple[bytes, RuleTally]]) -> None:
        """Replace the figures of these rules."""
        rows = [
            (rule, it.filtered, it.probes, it.compared, it.pairs_for, it.pairs_against, it.suspended)
            for rule, it in tallies
        ]
        with transaction(self._connection, self._name):
            self._connection.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def hold(self, requests: Sequence[HeldRequest]) -> None:
        """Store requests."""
        rows = [(it.fingerprint, it.identity, it.rules, it.request) for it in requests]
        with transaction(self._connection, self._name):
            done = self._connection.executemany(
                "INSERT OR IGNORE INTO held (fingerprint, identity, rules, request) VALUES (?, ?, ?, ?)", rows
            )
            self._connection.executemany("INSERT OR IGNORE INTO held_by VALUES (?, ?)", _by_rule(requests))
        self.held += max(done.rowcount, 0)

    def remove(self, requests: Sequence[HeldRequest]) -> None:
        """Remove requests that were scheduled. If this fails, they are not returned again either."""
        scheduled = {it.fingerprint for it in requests}
        self._scheduled |= scheduled
        with transaction(self._connection, self._name):
            done = self._connection.executemany(
                "DELETE FROM held WHERE fingerprint = ?", [(item,) for item in scheduled]
            )
            self._connection.executemany(
                "DELETE FROM held_by WHERE rule = ? AND fingerprint = ?", _by_rule(requests)
            )
        self._scheduled -= scheduled
        self.held -= max(done.rowcount, 0)

    def make_due(self, rule: bytes) -> None:
        """Mark the requests that a rule filtered as due, including those that other rules filtered too."""
        with transaction(self._connection, self._name):
            self._connection.execute(f"UPDATE held SET due = 1 WHERE {_OF_RULE}", (rule,))  # noqa: S608

    def make_identity_due(self, identity: bytes) -> None:
        """Mark the held requests of an identity as due."""
        with transaction(self._connection, self._name):
            self._connection.execute("UPDATE held SET due = 1 WHERE identity = ?", (identity,))

    @property
    def has_due(self) -> bool:
        """Whether requests are due."""
        return bool(self.due(1))

    def due(self, most: int) -> list[HeldRequest]:
        """Some of the requests that are due."""
        return self._held("WHERE due LIMIT ?", most)

    def held_by(self, rule: bytes, most: int) -> list[HeldRequest]:
        """Some of the requests that a rule filtered, first those that no other rule filtered."""
        return self._held(f"WHERE NOT due AND {_OF_RULE} ORDER BY length(rules) LIMIT ?", rule, most)

    def sample(self, rule: bytes, most: int, seed: bytes) -> list[HeldRequest]:
        """Requests that a rule filtered, at most *most*, chosen at random."""
        with sqlite_faults(self._name):
            rows = self._connection.execute(
                f"SELECT fingerprint FROM held WHERE NOT due AND {_OF_RULE}",  # noqa: S608
                (rule,),
            )
            chosen = heapq.nsmallest(
                most,
                (row for row in rows if row[0] not in self._scheduled),
                key=lambda row: sha256(seed + row[0]).digest(),
            )
        return [found for row in chosen for found in self._held("WHERE fingerprint = ?", *row)]

    def of_identities(self, after: bytes, most: int) -> list[HeldRequest]:
        """A request of each identity, in the order of the identities, after an identity."""
        return self._held(
            "WHERE identity > ? AND NOT due GROUP BY identity ORDER BY identity LIMIT ?", after, most
        )

    def compare(self, identity: bytes, page: RequestedPage) -> RequestedPage | None:
        """Record a page; return the first page of its identity if that is another URL."""
        with sqlite_faults(self._name):
            row = self._connection.execute(
                "SELECT url, text, family, rules FROM pages WHERE identity = ?", (identity,)
            ).fetchone()
            if row is not None:
                return RequestedPage(*row) if row[0] != page.url else None
            if self._pages < _MOST_PAGES:
                self._pages += 1
                values = (identity, page.url, page.text, page.family, page.rules)
                self._connection.execute("INSERT INTO pages VALUES (?, ?, ?, ?, ?)", values)
        return None

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        with sqlite_faults(self._name):
            self._connection.close()

    def _held(self, condition: str, *values: object) -> list[HeldRequest]:
        with sqlite_faults(self._name):
            rows = self._connection.execute(
                f"SELECT fingerprint, identity, rules, request FROM held {condition}",  # noqa: S608
                values,
            ).fetchall()
        return [HeldRequest(*row) for row in rows if row[0] not in self._scheduled]

    def _one(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()[0]


def records_path(jobdir: Path) -> Path:
    """The file of the records of a job, whose folder exists."""
    return jobdir / "dedupe" / "urls" / RECORDS_NAME


def _by_rule(requests: Iterable[HeldRequest]) -> list[tuple[bytes, bytes]]:
    return [(rule, it.fingerprint) for it in requests for rule in ids_in(it.rules)]


def ids_in(rules: bytes) -> set[bytes]:
    """The ids of rules in a row."""
    return {rules[place : place + RULE_ID_BYTES] for place in range(0, len(rules), RULE_ID_BYTES)}


def to_json(value: Any) -> str:
    """The JSON text of a value. Raises TypeError for a value that :func:`from_json` would not restore.

    >>> from_json(to_json({b"a": (1, [None, "b"])}))
    {b'a': (1, [None, 'b'])}
    """
    return json.dumps(_encoded(value), separators=(",", ":"))


def _encoded(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_encoded(item) for item in value]
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is tuple:
        return {"tuple": [_encoded(item) for item in value]}
    if kind is dict:
        return {"dict": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    raise TypeError(f"A value of the type {kind.__name__} cannot be stored.")


def from_json(text: str) -> Any:
    """The value of a text from :func:`to_json`."""
    return _decoded(json.loads(text))


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "tuple":
        return tuple(map(_decoded, content))
    return {_decoded(key): _decoded(item) for key, item in content}
