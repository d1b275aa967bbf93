from __future__ import annotations

import gzip
import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from archives import cdxj_of
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_dedupe.errors import DamagedInput
from scrapy_dedupe.warc import cdxj, records
from scrapy_dedupe.warc.capture import Capture, digest_text
from scrapy_dedupe.warc.cdxj import (
    CdxLine,
    LineSorter,
    cdx_line,
    idx_head,
    is_indexed,
    rekeyed,
    zipnum_blocks,
)
from scrapy_dedupe.warc.exchanges import paired
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record, read_records
from scrapy_dedupe.warc.records import Record

if TYPE_CHECKING:
    from pathlib import Path

DATE = datetime(2026, 11, 28, 1, 2, 3, 123456, tzinfo=UTC)


def capture(url: str, body: bytes = b"<p>hello", **changes: object) -> Capture:
    values: dict[str, object] = {
        "url": url,
        "method": "GET",
        "status": 200,
        "date": DATE,
        "request_headers": ((b"User-Agent", b"tests"),),
        "request_body": b"",
        "response_headers": ((b"Content-Type", b"text/html; charset=utf-8"),),
        "body": body,
    }
    return Capture(**{**values, **changes})  # type: ignore[arg-type]


def exchange(captured: Capture, principal: Record | None = None) -> list[Record]:
    if principal is None:
        principal = records.response(captured, digest=captured.payload_digest())
    return [principal, records.request(captured, concurrent_to=principal.id)]


def revisit(captured: Capture, **changes: str) -> Record:
    values = {"refers_to_uri": "http://example.org/first", "refers_to_date": "2026-11-27T00:00:00.001Z"}
    return records.revisit(captured, digest=captured.payload_digest(), **{**values, **changes})


def resource(url: str, block: bytes, content_type: str = "text/dns") -> Record:
    return Record(
        (
            ("WARC-Type", "resource"),
            ("WARC-Record-ID", records.new_record_id()),
            ("WARC-Date", "2026-11-28T01:02:03Z"),
            ("WARC-Target-URI", url),
            ("WARC-Payload-Digest", f"sha1:{digest_text(block, 'sha1')}"),
            ("Content-Type", content_type),
        ),
        block,
    )


def write(folder: Path, *exchanges: list[Record], gzip: bool = True) -> Path:
    with WarcWriter(folder, "test", info={"software": "tests"}, gzip=gzip) as writer:
        for each in exchanges:
            writer.write(each)
    return folder / writer.files[0].file


def post(content_type: bytes, body: bytes, **changes: object) -> Capture:
    headers = ((b"Content-Type", content_type),)
    values = {"method": "POST", "request_headers": headers, "request_body": body, **changes}
    return capture("http://example.org/form?x=1", **values)  # type: ignore[arg-type]


def lines_of(path: Path) -> list[CdxLine]:
    pairs = paired(read_records(path))
    return [cdx_line(record, path.name, request) for record, request in pairs if is_indexed(record)]


def by_cdxj_indexer(path: Path, *options: str) -> list[tuple[str, dict[str, str]]]:
    found = []
    for line in cdxj_of(path, *options).splitlines():
        prefix, _, fields = line.partition(" {")
        found.append((prefix, json.loads("{" + fields)))
    return found


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """A file with what a crawl writes, apart from the differences that a test of their own shows."""
    gone = capture("http://example.org/gone", b"", status=404)
    moved = capture("http://Example.org/Moved/", b"", status=301, response_headers=((b"Location", b"/"),))
    return write(
        tmp_path,
        exchange(capture("http://www.example.org/b?z=1&a=2", b"x" * 5000)),
        exchange(capture("http://example.org/a%20b?q=%C3%A9")),
        exchange(gone),
        exchange(moved),
        exchange(again := capture("http://example.org/again", b"y" * 5000), revisit(again)),
        exchange(post(b"application/x-www-form-urlencoded", b"q=two+words&z=%C3%A9")),
        exchange(post(b"application/json", b'{"a": ["b", 2], "c": {"a": "d"}}')),
        exchange(post(b"application/octet-stream", bytes(range(256)), method="PUT")),
        [resource("dns:example.org", b"20261128010203\nexample.org. 1 IN A 192.0.2.1\n")],
        [resource("urn:about-the-crawl", b"a: b\r\n", "application/warc-fields")],
    )


def test_lines_are_those_of_cdxj_indexer(varied: Path):
    ours = lines_of(varied)
    theirs = by_cdxj_indexer(varied, "-p")
    # Theirs ends with the seconds.
    assert [line.prefix.removesuffix("123") for line in ours] == [prefix for prefix, _ in theirs]
    assert len(ours) == 9
    for line, (_, fields) in zip(ours, theirs, strict=True):
        # requestBody is for wabac.js, which reads a body in another way than cdxj-indexer
        fields.pop("requestBody", None)
        assert {**line.fields, "requestBody": None} == {**fields, "requestBody": None}


def test_a_line_has_exactly_these_bytes(tmp_path: Path):
    path = write(tmp_path, exchange(capture("http://www.example.org/A?b&a", b"hello")))
    [line] = lines_of(path)
    offset, length = line.fields["offset"], line.fields["length"]
    assert str(line) == (
        'org,example)/a?a&b 20261128010203123 {"url": "http://www.example.org/A?b&a", "mime": "text/html", '
        '"status": "200", "digest": "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", '
        f'"length": "{length}", "offset": "{offset}", "filename": "{path.name}"}}'
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_every_line_points_at_its_record(tmp_path: Path, compressed: bool):
    urls = [f"http://example.org/{number}" for number in range(5)]
    path = write(tmp_path, *[exchange(capture(url, url.encode())) for url in urls], gzip=compressed)
    lines = lines_of(path)
    assert len(lines) == 5
    for line, url in zip(lines, urls, strict=True):
        record = read_record(path, int(line.fields["offset"]))
        assert (record.type, record.target_uri, record.payload()) == ("response", url, url.encode())
        assert str(record.length) == line.fields["length"]


def test_revisit_has_the_status_of_its_head_and_the_digest_of_the_original(tmp_path: Path):
    captured = capture("http://example.org/again", status=203)
    [line] = lines_of(write(tmp_path, exchange(captured, revisit(captured))))
    assert (line.fields["mime"], line.fields["status"]) == ("warc/revisit", "203")
    assert line.fields["digest"] == f"sha256:{captured.payload_digest()}"


def test_revisit_without_head_or_digest_says_neither(tmp_path: Path):
    captured = capture("http://example.org/again", b"", status=304)
    principal = records.not_modified(
        captured, refers_to_uri="http://example.org/again", refers_to_date="2026-11-27T00:00:00.001Z"
    )
    # pywb would take the digest of nothing for an empty page, and not look for the original
    [line] = lines_of(write(tmp_path, exchange(captured, principal)))
    assert line.fields["mime"] == "warc/revisit"
    assert not {"status", "digest"} & line.fields.keys()


def test_a_response_whose_body_may_be_no_original_has_no_digest(tmp_path: Path):
    captured = capture("http://example.org/")
    principal = records.response(captured, digest=captured.payload_digest())
    without = Record(tuple(field for field in principal.headers if "Digest" not in field[0]), principal.block)
    cut = Record((*principal.headers, ("WARC-Truncated", "length")), principal.block)
    for response in (without, cut):
        [line] = lines_of(write(tmp_path / response.headers[-1][0], exchange(captured, response)))
        assert "digest" not in line.fields
        assert line.fields["mime"] == "text/html"


def test_digest_of_nothing_that_is_missing_is_that_of_cdxj_indexer(tmp_path: Path):
    captured = capture("http://example.org/", b"", status=404)
    principal = records.response(captured, digest=captured.payload_digest())
    without = Record(tuple(field for field in principal.headers if "Digest" not in field[0]), principal.block)
    path = write(tmp_path, exchange(captured, without))
    [line] = lines_of(path)
    assert line.fields["digest"] == f"sha1:{captured.payload_digest('sha1')}"
    assert line.fields["digest"] == by_cdxj_indexer(path)[0][1]["digest"]


def test_digest_of_a_resource_that_is_not_held_in_memory_is_that_of_cdxj_indexer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scrapy_dedupe.warc.reading.KEPT_BYTES", 300)
    block = b"0123456789" * 1000
    listed = resource("http://example.org/list", block, "text/plain")
    without = Record(tuple(field for field in listed.headers if "Digest" not in field[0]), block)
    path = write(tmp_path, [without])
    [line] = lines_of(path)
    assert line.fields["digest"] == f"sha1:{digest_text(block, 'sha1')}"
    assert line.fields["digest"] == by_cdxj_indexer(path)[0][1]["digest"]


def test_foreign_form_of_a_digest_becomes_ours_so_that_revisits_find_it(tmp_path: Path):
    captured = capture("http://example.org/")
    principal = records.response(captured, digest=captured.payload_digest())
    foreign = [
        (name, value.replace("sha256:", "SHA-256:").upper() if name == "WARC-Payload-Digest" else value)
        for name, value in principal.headers
    ]
    [line] = lines_of(write(tmp_path, exchange(captured, Record(tuple(foreign), principal.block))))
    assert line.fields["digest"] == f"sha256:{captured.payload_digest()}"


def test_head_is_listed_under_its_method(tmp_path: Path):
    path = write(tmp_path, exchange(capture("http://example.org/", b"", method="HEAD")))
    [line] = lines_of(path)
    assert line.prefix == "org,example)/?__wb_method=head 20261128010203123"
    assert line.fields["method"] == "HEAD"
    assert "requestBody" not in line.fields


def test_request_before_its_response_is_found(tmp_path: Path):
    captured = post(b"application/x-www-form-urlencoded", b"a=b")
    first, second = exchange(captured)
    [line] = lines_of(write(tmp_path, [second, first]))
    assert line.prefix.startswith("org,example)/form?__wb_method=post&a=b&x=1 ")
    assert (line.fields["method"], line.fields["requestBody"]) == ("POST", "a=b")


def test_record_that_shares_its_gzip_member_is_refused(tmp_path: Path):
    path = tmp_path / "one.warc.gz"
    written = [record.to_bytes() for record in exchange(capture("http://example.org/"))]
    path.write_bytes(gzip.compress(b"".join(written)))
    with pytest.raises(DamagedInput, match=r"one\.warc\.gz, offset 0: the record shares a gzip member"):
        lines_of(path)


@pytest.mark.parametrize("missing", ["WARC-Target-URI", "WARC-Date"])
def test_response_without_url_or_date_is_refused(tmp_path: Path, missing: str):
    captured = capture("http://example.org/")
    principal = records.response(captured, digest=captured.payload_digest())
    without = Record(tuple(field for field in principal.headers if field[0] != missing), principal.block)
    with pytest.raises(DamagedInput, match="has no WARC-Target-URI or no WARC-Date"):
        lines_of(write(tmp_path, [without]))


# Sorting


KEYS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=6)


@given(st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=60), st.sampled_from([1, 200, 1 << 20]))
@example([("a", 0)] * 60, 1)
def test_any_lines_are_sorted_by_bytes_and_stay_in_order_within_a_second(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, int]], run_bytes: int
):
    folder = tmp_path_factory.mktemp("sorting")
    lines = [CdxLine(f"{key} 2026112801020{second}", {"n": str(n)}) for n, (key, second) in enumerate(pairs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cdxj, "RUN_BYTES", run_bytes)
        patch.setattr(cdxj, "MERGED_RUNS", 3)
        sorter = LineSorter(folder)
        for line in lines:
            sorter.add(line)
            assert len(sorter._runs) <= 2 * 4, "there are too many open files"
        found = list(sorter.sorted_lines())
        again = list(sorter.sorted_lines())
        sorter.close()
    # sorted() is stable, so lines of one key and second keep their order
    expected = sorted(lines, key=lambda line: line.prefix.encode())
    assert found == again == [f"{line}\n".encode() for line in expected]
    assert (sorter.lines, sorter.size_bytes) == (len(lines), sum(map(len, found)))
    assert list(folder.iterdir()) == []


# ZipNum


@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_blocks_are_members_that_the_file_beside_points_at(monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(cdxj, "BLOCK_LINES", 5)
    lines = [f'org,example)/{n:02d} 20261128010203 {{"n": "{n}"}}\n'.encode() for n in range(count)]
    blocks = list(zipnum_blocks(lines))
    data = b"".join(member for member, _ in blocks)
    assert (gzip.decompress(data) if data else b"") == b"".join(lines)
    assert len(blocks) == -(-count // 5)
    for number, (_, line) in enumerate(blocks):
        prefix, _, text = line.decode().partition(" {")
        place = json.loads("{" + text)
        member = data[place["offset"] : place["offset"] + place["length"]]
        assert prefix == f"org,example)/{number * 5:02d} 20261128010203"
        assert gzip.decompress(member) == b"".join(lines[number * 5 : number * 5 + 5])
        assert place["digest"] == f"sha256:{hashlib.sha256(member).hexdigest()}"


def test_head_of_the_file_beside_names_the_members():
    assert idx_head("index.cdxj.gz") == b'!meta 0 {"format": "cdxj-gzip-1.0", "filename": "index.cdxj.gz"}\n'


def test_lines_for_wabac_keep_everything_but_the_key(tmp_path: Path):
    path = write(
        tmp_path,
        exchange(capture("http://www.example.org/Search/?q=1&a=2")),
        exchange(post(b"application/x-www-form-urlencoded", b"q=a+b")),
        exchange(capture("http://example.org/", method="DELETE")),
    )
    before = lines_of(path)
    after = list(rekeyed(f"{line}\n".encode() for line in before))
    assert [line.fields for line in after] == [line.fields for line in before]
    assert [line.prefix for line in after] == [
        "org,example)/search/?a=2&q=1 20261128010203123",
        "org,example)/form?__wb_method=post&q=a+b&x=1 20261128010203123",
        "org,example)/?&__wb_method=delete 20261128010203123",
    ]
