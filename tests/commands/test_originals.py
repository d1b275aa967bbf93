"""However a revisit names its original, every command finds the same one, or none of them does."""

from __future__ import annotations

import base64
import gzip
import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from crawling import collecting, crawl, crawl_test

from scrapy_dedupe.passages import PassageIndex
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Called

PAGE, AGAIN = "http://example.org/page", "http://example.org/again"
BODY = b"<p>" + b" ".join(b"word%d" % number for number in range(300))
OTHER = b"<p>" + b" ".join(b"other%d" % number for number in range(300))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"

VERSIONS = ("0.17", "0.18", "1.0", "1.1")
# Of the original, and as its revisit says it.
DATES = {
    "seconds": ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00Z"),
    "fraction of the original": ("2020-01-01T00:00:00.123Z", "2020-01-01T00:00:00Z"),
    "fraction of the revisit": ("2020-01-01T00:00:00Z", "2020-01-01T00:00:00.123Z"),
    "fractions": ("2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.123Z"),
    "timestamp": ("2020-01-01T00:00:00Z", "20200101000000"),
}


@dataclass(frozen=True)
class Way:
    """What a revisit says of its original. ``is_own_url``: it is of the URL of its original."""

    id: str | None = None
    has_place: bool = False
    digest: str | None = "base32"
    is_own_url: bool = False
    is_bracketed: bool = False


WAYS = {
    "id": Way(id="response"),
    "bare id": Way(id="bare"),
    "id without a digest": Way(id="response", digest=None),
    "URI and date": Way(has_place=True),
    "URI in brackets and date": Way(has_place=True, is_bracketed=True),
    "id, URI and date": Way(id="response", has_place=True),
    "URI and date, without a digest": Way(has_place=True, digest=None),
    "URI and date, another algorithm": Way(has_place=True, digest="sha256"),
    "digest, own URI": Way(is_own_url=True),
    "digest, another URI": Way(),
    "digest in hex": Way(digest="hex", is_own_url=True),
    "id of metadata, URI and date": Way(id="metadata", has_place=True),
    "id of metadata, URI and date, no digest": Way(id="metadata", has_place=True, digest=None),
    "id of metadata and digest": Way(id="metadata", is_own_url=True),
    "lost id, URI and date": Way(id="lost", has_place=True),
}
IDS = {
    name: f"<urn:uuid:00000000-0000-4000-8000-{number:012}>"
    for number, name in enumerate(["response", "metadata", "revisit", "next", "lost", "info"])
}


def digest(form: str, data: bytes) -> str:
    raw = hashlib.sha1(data).digest()
    if form == "sha256":
        return f"sha256:{hashlib.sha256(data).hexdigest()}"
    return f"sha1:{raw.hex() if form == 'hex' else base64.b32encode(raw).decode()}"


def record(
    version: str, kind: str, name: str, date: str, block: bytes, *fields: str, uri: str = PAGE
) -> bytes:
    http = f"application/http; msgtype={'response' if kind == 'revisit' else kind}"
    lines = [
        f"WARC/{version}",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: {IDS[name]}",
        f"WARC-Date: {date}",
        f"WARC-Target-URI: {uri}",
        *fields,
        f"Content-Type: {'text/plain' if kind == 'metadata' else http}",
        f"Content-Length: {len(block)}\r\n\r\n",
    ]
    return gzip.compress("\r\n".join(lines).encode() + block + b"\r\n\r\n", mtime=0)


def archive(version: str, way: Way, dates: tuple[str, str], *, has_original: bool) -> bytes:
    original_date, said_date = dates
    sha1 = digest("base32", BODY)
    later = "2020-01-01T00:00:00.900Z" if version == "1.1" and has_original else "2020-01-01T00:00:01Z"
    records = [
        # The revisit comes first: nothing may depend on the order.
        revisit(version, way, said_date),
        record(version, "metadata", "metadata", original_date, b"about it"),
        # Another page of the same URL, later in that second where dates have fractions.
        record(
            version,
            "response",
            "next",
            later,
            HEAD + OTHER,
            f"WARC-Payload-Digest: {digest('base32', OTHER)}",
        ),
    ]
    if has_original:
        block = HEAD + BODY
        records.append(
            record(version, "response", "response", original_date, block, f"WARC-Payload-Digest: {sha1}")
        )
    return b"".join(records)


def revisit(version: str, way: Way, date: str) -> bytes:
    profile = f"http://netpreserve.org/warc/{version}/revisit/identical-payload-digest"
    fields = [f"WARC-Profile: {profile}"]
    if way.id is not None:
        fields.append(f"WARC-Refers-To: {IDS['response'].strip('<>') if way.id == 'bare' else IDS[way.id]}")
    if way.has_place:
        uri = f"<{PAGE}>" if way.is_bracketed else PAGE
        fields += [f"WARC-Refers-To-Target-URI: {uri}", f"WARC-Refers-To-Date: {date}"]
    if way.digest is not None:
        fields.append(f"WARC-Payload-Digest: {digest(way.digest, BODY)}")
    uri = PAGE if way.is_own_url else AGAIN
    return record(version, "revisit", "revisit", "2020-06-01T00:00:00Z", HEAD, *fields, uri=uri)


class PageSpider(scrapy.Spider):
    name = "page"
    url = ""

    async def start(self) -> Any:
        yield scrapy.Request(self.url)

    def parse(self, response: Any) -> Any:
        yield {"body": response.body, "type": response.meta["warc"]["type"]}


async def finds(
    call: Callable[..., Called], settings: dict[str, Any], folder: Path, path: Path, url: str
) -> dict[str, bool]:
    """Whether each command finds the original of the one revisit in a file."""
    found = {}
    verified = call("verify", str(path), str(path), "--json")
    assert verified.code == 0, verified.err
    counts = verified.json["resolved"], verified.json["dangling_before"]
    assert counts in ((1, 0), (0, 1))
    found["verify"] = counts == (1, 0)

    store = f"sqlite:///{folder / 'index.sqlite'}"
    imported = call("import", str(path), "--store", store, "--crawl-id", "c", "--json")
    assert imported.json["imported"], imported
    assert (imported.json["captures"], imported.json["revisits"]) == (imported.json["originals"] + 1, 1)
    found["import"] = (imported.json["waiting"], imported.json["skipped"]) == (0, 0)

    checked = call("check", "--store", store, "--json")
    kinds = {finding["kind"] for finding in checked.json["findings"]}
    assert kinds <= {"revisit"}, checked.out
    found["check"] = not kinds and not checked.json["notes"]

    restored = call("restore", str(path), "-o", str(folder / "restored"), "--all", "--json")
    assert restored.code == (0 if restored.json["restored"] else 4), restored.err
    found["restore"] = restored.json["restored"] == 1
    first = next(iter(read_records(folder / "restored" / path.name)))
    assert (first.type, first.payload()) == (("response", BODY) if found["restore"] else ("revisit", b""))

    indexed = call("passages", "index", str(path), "--root", str(folder / "passages"), "--json")
    assert indexed.code == 0, indexed.err
    with PassageIndex(folder / "passages", create=False) as index:
        texts = {document.doc_id: index.text(document.doc_id) for document in index.documents}
    found["passages index"] = not indexed.json["skipped"]
    assert found["passages index"] == (texts.get(url, "").startswith("word0 "))

    collected, items = collecting(PageSpider)
    replaying = {"DEDUPE_REPLAY": [str(path)], "DEDUPE_CONTENT_ENABLED": False, "DEDUPE_WARC_ENABLED": False}
    crawler = await crawl(collected, {**settings, **replaying}, url=url)
    unresolved = crawler.stats.get_value("dedupe/replay/unresolved", 0)
    assert unresolved in (0, 1)
    found["DEDUPE_REPLAY"] = not unresolved
    answers = [(item["type"], item["body"]) for item in items]
    assert not found["DEDUPE_REPLAY"] or answers == [("revisit", BODY)]
    return found


SAMPLE = [
    ("1.1", "id", "seconds"),
    ("1.0", "bare id", "fraction of the original"),
    ("1.1", "URI and date", "fraction of the revisit"),
    ("1.1", "URI and date", "fraction of the original"),
    ("1.0", "URI and date, without a digest", "seconds"),
    ("1.1", "URI and date, without a digest", "fraction of the original"),
    ("0.17", "digest, own URI", "seconds"),
    ("0.18", "digest, another URI", "fractions"),
    ("1.1", "id of metadata, URI and date", "timestamp"),
    ("1.1", "id of metadata and digest", "seconds"),
    ("1.1", "URI and date, another algorithm", "fraction of the revisit"),
]
MATRIX = [
    (*case, has_original)
    for case in itertools.product(VERSIONS, WAYS, DATES)
    for has_original in (True, False)
]


def written(folder: Path, case: tuple[str, str, str, bool]) -> Path:
    version, way, dates, has_original = case
    folder.mkdir()
    path = folder / "a.warc.gz"
    path.write_bytes(archive(version, WAYS[way], DATES[dates], has_original=has_original))
    return path


async def check_case(
    call: Callable[..., Called],
    settings: dict[str, Any],
    folder: Path,
    case: tuple[str, str, str, bool],
) -> None:
    _, way, _, has_original = case
    path = written(folder, case)
    found = await finds(call, settings, folder, path, PAGE if WAYS[way].is_own_url else AGAIN)
    assert found == dict.fromkeys(found, has_original), (case, found)


@pytest.mark.parametrize("has_original", [True, False], ids=["there", "absent"])
@pytest.mark.parametrize(("version", "way", "dates"), SAMPLE)
@crawl_test
async def test_all_commands_find_the_same_original(
    version: str,
    way: str,
    dates: str,
    has_original: bool,
    call: Callable[..., Called],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    await check_case(call, settings, tmp_path / "case", (version, way, dates, has_original))


@pytest.mark.exhaustive
@crawl_test
async def test_all_commands_find_the_same_original_in_the_whole_matrix(
    call: Callable[..., Called], settings: dict[str, Any], tmp_path: Path
) -> None:
    for number, case in enumerate(MATRIX):
        await check_case(call, settings, tmp_path / str(number), case)
