from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import sys
import uuid
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import validate
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_dedupe.errors import ArchiveError, SettingError
from scrapy_dedupe.files.locks import lock
from scrapy_dedupe.warc import records, wacz
from scrapy_dedupe.warc.capture import Capture, target_uri
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_record
from scrapy_dedupe.warc.records import reads_back
from scrapy_dedupe.warc.wacz import Requirement, WaczPage, WaczResource, pack, write_multi_wacz

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy_dedupe.warc.reading import StoredRecord

CREATED = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


def crawl(folder: Path, urls: Iterable[str], *, prefix: str = "test", file_size: int = 1 << 30) -> list[Path]:
    """WARC files in which every third capture is a revisit, if one can refer to its URL, and one in seven is a POST."""
    with WarcWriter(folder, prefix, info={"software": "tests"}, file_size=file_size) as writer:
        for number, url in enumerate(urls):
            is_post = number % 7 == 6
            captured = Capture(
                url=url,
                method="POST" if is_post else "GET",
                status=200,
                date=datetime(2026, 11, 28, tzinfo=UTC) + timedelta(milliseconds=300 * number),
                request_headers=((b"Content-Type", b"application/x-www-form-urlencoded"),) if is_post else (),
                request_body=b"a=b" if is_post else b"",
                response_headers=((b"Content-Type", b"text/html"),),
                body=f"<p>{url}".encode() * 9,
            )
            digest = captured.payload_digest()
            date = "2026-11-01T00:00:00.000Z"
            is_referable = records.can_be_referred_to(url.encode(), date.encode())
            if number % 3 == 2 and not is_post and is_referable:
                principal = records.revisit(captured, digest=digest, refers_to_uri=url, refers_to_date=date)
            else:
                principal = records.response(captured, digest=digest)
            writer.write([principal, records.request(captured, concurrent_to=principal.id)])
    return [folder / file.file for file in writer.files]


def page_of(record: StoredRecord) -> WaczPage | None:
    assert record.target_uri
    assert record.date
    return WaczPage(record.target_uri, record.date, f"Title of {record.target_uri}")


def packed(files: list[Path], target: Path, **changes: Any) -> wacz.PackedWacz:
    values = {"page_of": page_of, "crawl": "c-1", "software": "tests", "created": CREATED, **changes}
    return pack(files, target, **values)


def members_of(target: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(target) as file:
        assert file.testzip() is None
        names = file.namelist()
        assert len(names) == len(set(names))
        assert all(member.compress_type == zipfile.ZIP_STORED for member in file.infolist())
        return {name: file.read(name) for name in names}


def lines_in(members: dict[str, bytes]) -> list[bytes]:
    data = members.get("indexes/index.cdx")
    if data is None:
        data = gzip.decompress(members["indexes/index.cdx.gz"])
    return data.splitlines()


def check(target: Path, folder: Path) -> dict[str, bytes]:
    """Every promise of the format: hashes, sizes, sorted lines that point at their records."""
    members = members_of(target)
    package = json.loads(members["datapackage.json"])
    assert (package["profile"], package["wacz_version"]) == ("data-package", "1.1.1")
    listed = {resource["path"]: resource for resource in package["resources"]}
    assert listed.keys() == members.keys() - {"datapackage.json", "datapackage-digest.json"}
    assert len({resource["name"] for resource in package["resources"]}) == len(listed)
    for path, resource in listed.items():
        assert resource["hash"] == f"sha256:{hashlib.sha256(members[path]).hexdigest()}"
        assert resource["bytes"] == len(members[path])
    assert json.loads(members["datapackage-digest.json"]) == {
        "path": "datapackage.json",
        "hash": f"sha256:{hashlib.sha256(members['datapackage.json']).hexdigest()}",
    }
    with zipfile.ZipFile(target) as file:
        file.extractall(folder)
    lines = lines_in(members)
    prefixes = [line.partition(b" {")[0] for line in lines]
    assert prefixes == sorted(prefixes)
    for line in lines:
        fields = json.loads(line[line.index(b" {") :])
        record = read_record(folder / "archive" / fields["filename"], int(fields["offset"]))
        assert record.target_uri == fields["url"]
        assert str(record.length) == fields["length"]
        assert record.type == ("revisit" if fields["mime"] == "warc/revisit" else "response")
    pages = members["pages/pages.jsonl"].splitlines()
    assert json.loads(pages[0])["format"] == "json-pages-1.0"
    return members


URLS = [f"http://www.example.org/{number % 50}/Page/?n={number}" for number in range(120)]


@pytest.mark.parametrize("is_long", [False, True])
def test_wacz_holds_every_record_and_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool):
    if is_long:
        monkeypatch.setattr(wacz, "PLAIN_LINES", 100)
        monkeypatch.setattr("scrapy_dedupe.warc.cdxj.BLOCK_LINES", 7)
    files = crawl(tmp_path / "warcs", URLS, file_size=20_000)
    assert len(files) > 1
    target = tmp_path / "new folder" / "c-1.wacz"
    result = packed(files, target)
    members = check(target, tmp_path / "unpacked")
    validate(target)
    assert [members[f"archive/{file.name}"] for file in files] == [file.read_bytes() for file in files]
    assert len(lines_in(members)) == result.captures == len(URLS)
    assert result == wacz.PackedWacz(
        target,
        hashlib.sha256(target.read_bytes()).hexdigest(),
        target.stat().st_size,
        captures=len(URLS),
        pages=len(URLS) - len(URLS) // 7,
    )
    pages = [json.loads(line)["url"] for line in members["pages/pages.jsonl"].splitlines()[1:]]
    by_get = [url for number, url in enumerate(URLS) if number % 7 != 6]
    assert pages == [target_uri(url) for url in by_get], "what was posted is no page"
    assert is_left_alone(target.parent, "c-1.wacz")
    assert ("indexes/index.cdx" in members) is not is_long
    assert ("indexes/index.idx" in members) is is_long


def test_long_index_is_found_by_both_kinds_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wacz, "PLAIN_LINES", 100)
    monkeypatch.setattr("scrapy_dedupe.warc.cdxj.BLOCK_LINES", 7)
    target = tmp_path / "c-1.wacz"
    packed(crawl(tmp_path / "warcs", URLS), target)
    members = members_of(target)
    head, *places = members["indexes/index.idx"].decode().splitlines()
    assert json.loads(head.removeprefix("!meta 0 "))["filename"] == "index.cdxj.gz"
    data = members["indexes/index.cdxj.gz"]
    found = []
    for place in places:
        prefix, _, text = place.partition(" {")
        at = json.loads("{" + text)
        lines = gzip.decompress(data[at["offset"] : at["offset"] + at["length"]]).decode().splitlines()
        assert lines[0].startswith(prefix + " {")
        found += lines
    assert found == sorted(found)
    assert found[0].startswith("org,example)/0/page/?n=0 20261128000000000 {")
    by_pywb = gzip.decompress(members["indexes/index.cdx.gz"]).decode().splitlines()
    assert by_pywb[0].startswith("org,example)/0/page?n=0 20261128000000000 {")
    # the same captures
    assert sorted(line.partition(" {")[2] for line in found) == sorted(
        line.partition(" {")[2] for line in by_pywb
    )


@settings(max_examples=15, deadline=None)
@given(
    # No revisit can refer to a URL that readers read differently, so a crawl writes none.
    st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
            lambda path: reads_back(f"http://example.org/{path}".encode())
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 20),
)
def test_any_urls_and_pages_come_back(tmp_path_factory: pytest.TempPathFactory, paths: list[str], limit: int):
    folder = tmp_path_factory.mktemp("any")
    files = crawl(folder / "warcs", [f"http://example.org/{path}" for path in paths])
    by_get = [path for number, path in enumerate(paths) if number % 7 != 6]
    texts = iter(by_get)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wacz, "PLAIN_LINES", limit)
        target = folder / "any.wacz"
        result = packed(
            files, target, page_of=lambda record: WaczPage("http://x/", record.date or "", text=next(texts))
        )
    members = check(target, folder / "unpacked")
    _, *pages = members["pages/pages.jsonl"].decode().splitlines()
    assert result.captures == len(paths)
    assert [json.loads(page)["text"] for page in pages] == by_get


def test_pages_have_an_id_and_what_is_known_of_them(tmp_path: Path):
    files = crawl(
        tmp_path / "warcs", ["http://example.org/a", "http://example.org/b", "http://example.org/c"]
    )
    answers = iter(
        [
            WaczPage("http://example.org/a", "2026-11-28T00:00:00.000Z", "A", "text of a"),
            None,
            WaczPage("http://example.org/c", "2026-11-28T00:00:01.000Z"),
        ]
    )
    asked = []

    def answer(record: StoredRecord) -> WaczPage | None:
        asked.append((record.type, record.target_uri))
        return next(answers)

    result = packed(files, tmp_path / "c.wacz", page_of=answer, title="News")
    assert asked == [
        ("response", "http://example.org/a"),
        ("response", "http://example.org/b"),
        ("revisit", "http://example.org/c"),
    ]
    assert (result.captures, result.pages) == (3, 2)
    head, first, second = map(json.loads, members_of(tmp_path / "c.wacz")["pages/pages.jsonl"].splitlines())
    assert head == {"format": "json-pages-1.0", "id": "pages", "title": "Pages", "hasText": True}
    assert uuid.UUID(first.pop("id")) != uuid.UUID(second.pop("id"))
    assert first == {
        "url": "http://example.org/a",
        "title": "A",
        "ts": "2026-11-28T00:00:00.000Z",
        "text": "text of a",
    }
    assert second == {"url": "http://example.org/c", "ts": "2026-11-28T00:00:01.000Z"}


def test_datapackage_says_what_the_crawl_needs_and_no_more_than_is_known(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    requires = [Requirement("first.wacz", "c-0", "ab" * 32, 1234), Requirement("second.wacz", "c-00")]
    packed(
        files, tmp_path / "c.wacz", requires=requires, title="News", software="scrapy-dedupe 1", has_text=True
    )
    members = check(tmp_path / "c.wacz", tmp_path / "unpacked")
    validate(tmp_path / "c.wacz")
    package = json.loads(members["datapackage.json"])
    del package["resources"]
    assert package == {
        "profile": "data-package",
        "wacz_version": "1.1.1",
        "crawlId": "c-1",
        "title": "News",
        "software": "scrapy-dedupe 1",
        "created": "2026-11-28T12:00:00Z",
        "relation": {
            "requires": [
                {"filename": "first.wacz", "hash": "ab" * 32, "size": 1234, "crawlId": "c-0"},
                {"filename": "second.wacz", "crawlId": "c-00"},
            ]
        },
    }
    assert json.loads(members["pages/pages.jsonl"].splitlines()[0])["hasText"] is True


def test_crawl_that_needs_nothing_has_no_relation(tmp_path: Path):
    packed(crawl(tmp_path / "warcs", ["http://example.org/"]), tmp_path / "c.wacz")
    package = json.loads(members_of(tmp_path / "c.wacz")["datapackage.json"])
    assert "relation" not in package
    assert package["title"] == "c-1"


def test_same_files_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = crawl(tmp_path / "warcs", URLS)
    monkeypatch.setattr(wacz, "PLAIN_LINES", 100)
    first = packed(files, tmp_path / "first.wacz", page_of=lambda record: None)
    second = packed(files, tmp_path / "second.wacz", page_of=lambda record: None)
    assert first.sha256 == second.sha256


def test_names_that_differ_in_case_alone_are_different_resources(tmp_path: Path):
    files = [
        *crawl(tmp_path / "warcs", ["http://example.org/"], prefix="test"),
        *crawl(tmp_path / "others", ["http://example.org/"], prefix="test"),
    ]
    renamed = [
        files[0].rename(files[0].with_name("A b.warc.gz")),
        files[1].rename(files[1].with_name("a b.warc.gz")),
    ]
    packed(renamed, tmp_path / "c.wacz")
    members = check(tmp_path / "c.wacz", tmp_path / "unpacked")
    names = [resource["name"] for resource in json.loads(members["datapackage.json"])["resources"]]
    assert names[:2] == ["a_b.warc.gz", "2-a_b.warc.gz"]
    validate(tmp_path / "c.wacz")


@pytest.mark.parametrize("size", [100, 10_000])
def test_members_beyond_the_limit_of_zip_get_room_for_64_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
):
    files = crawl(tmp_path / "warcs", URLS)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", size)
    packed(files, tmp_path / "c.wacz")
    check(tmp_path / "c.wacz", tmp_path / "unpacked")
    validate(tmp_path / "c.wacz")


# What is refused, and that nothing is left of it


def is_left_alone(folder: Path, *names: str) -> bool:
    return sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_existing_target_is_not_overwritten(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    target = tmp_path / "out" / "c.wacz"
    packed(files, target)
    before = target.read_bytes()
    with pytest.raises(ArchiveError, match=r"c\.wacz already exists and is not overwritten"):
        packed(files, target)
    assert target.read_bytes() == before
    assert is_left_alone(target.parent, "c.wacz")


def test_target_that_appears_meanwhile_is_not_overwritten(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    target = tmp_path / "out" / "c.wacz"

    def other_process(record: StoredRecord) -> None:
        target.write_text("theirs")

    with pytest.raises(ArchiveError, match=r"c\.wacz already exists and is not overwritten"):
        packed(files, target, page_of=other_process)
    assert target.read_text() == "theirs"
    assert is_left_alone(target.parent, "c.wacz")


def test_wacz_that_another_process_is_writing_is_left_to_it(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    path_open = tmp_path / "out" / "c.wacz.open"
    path_open.parent.mkdir()
    with path_open.open("wb") as theirs:
        theirs.write(b"theirs")
        theirs.flush()
        assert lock(theirs.fileno())
        with pytest.raises(ArchiveError, match="is being written by another process"):
            packed(files, tmp_path / "out" / "c.wacz")
    assert path_open.read_bytes() == b"theirs"


def test_rest_of_a_killed_process_is_used_up(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "c.wacz.open").write_bytes(b"rest" * 10_000)
    packed(files, tmp_path / "out" / "c.wacz")
    check(tmp_path / "out" / "c.wacz", tmp_path / "unpacked")
    assert is_left_alone(tmp_path / "out", "c.wacz")


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 20)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def make_one_member(file: Path) -> None:
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())))


def make_arc(file: Path) -> None:
    file.write_bytes(
        b"filedesc://a.arc 0.0.0.0 20260101000000 text/plain 76\n"
        b"1 0 Tests\nURL IP-address Archive-date Content-type Archive-length\nabcdefghi\n\n"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is damaged and was not packed"),
        (flip, "is damaged and was not packed"),
        (make_one_member, "shares a gzip member with others"),
        (lambda file: file.write_bytes(b""), None),
        (lambda file: file.write_bytes(b"no archive"), "is damaged and was not packed"),
        (make_arc, "is an ARC file"),
        (Path.unlink, "cannot be read: No such file"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: Is a directory"),
    ],
)
def test_file_that_cannot_be_packed_whole_is_named_and_nothing_is_left(
    tmp_path: Path, damage: Callable[[Path], object], message: str | None
):
    good, bad = crawl(tmp_path / "warcs", URLS, file_size=15_000)[:2]
    damage(bad)
    (tmp_path / "out").mkdir()
    if message is None:
        assert packed([good, bad], tmp_path / "out" / "c.wacz").captures
        return
    with pytest.raises(ArchiveError, match=message) as raised:
        packed([good, bad], tmp_path / "out" / "c.wacz")
    assert str(bad) in str(raised.value)
    assert is_left_alone(tmp_path / "out")


@pytest.mark.parametrize("times", [0, 2])
def test_file_that_changes_its_size_meanwhile_is_refused(tmp_path: Path, times: int):
    [file] = crawl(tmp_path / "warcs", ["http://example.org/"])
    (tmp_path / "out").mkdir()
    before = file.read_bytes()

    def change(record: StoredRecord) -> None:
        file.write_bytes(before * times)

    with pytest.raises(ArchiveError, match="changed its size while it was packed"):
        packed([file], tmp_path / "out" / "c.wacz", page_of=change)
    assert is_left_alone(tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "would contain no WARC file; .* Name WARC files"),
        (["a.warc.gz.open"], "only finished files named .warc or .warc.gz"),
        (["a/x.warc.gz", "b/x.warc.gz"], "would have the same name"),
    ],
)
def test_files_without_a_name_of_their_own_are_refused(tmp_path: Path, names: list[str], message: str):
    with pytest.raises(ArchiveError, match=message):
        packed([tmp_path / name for name in names], tmp_path / "c.wacz")


def test_fault_of_the_one_who_names_pages_comes_through_and_nothing_is_left(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    (tmp_path / "out").mkdir()
    with pytest.raises(ZeroDivisionError):
        packed(files, tmp_path / "out" / "c.wacz", page_of=lambda record: 1 // 0)
    assert is_left_alone(tmp_path / "out")


@pytest.mark.parametrize("limit", range(0, 40_000, 2_500))
def test_full_disk_at_any_moment_leaves_nothing(tmp_path: Path, limit: int):
    resource = pytest.importorskip("resource", reason="this system has no limits for files")
    files = crawl(tmp_path / "warcs", URLS, file_size=15_000)
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with pytest.raises(ArchiveError, match=r"c\.wacz cannot be written: File too large.*free some"):
            packed(files, tmp_path / "out" / "c.wacz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_left_alone(tmp_path / "out")


@pytest.mark.parametrize("limit", [500, 5_000, 12_000, 25_000])
def test_temporary_files_that_find_no_room_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
):
    resource = pytest.importorskip("resource", reason="this system has no limits for files")
    monkeypatch.setattr("scrapy_dedupe.warc.cdxj.RUN_BYTES", 20_000)
    files = crawl(tmp_path / "warcs", URLS)
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with pytest.raises(ArchiveError, match=r"c\.wacz cannot be written: File too large"):
            packed(files, tmp_path / "out" / "c.wacz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_left_alone(tmp_path / "out")


def test_folder_that_cannot_be_made_is_named(tmp_path: Path):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="cannot be written: Not a directory"):
        packed(files, tmp_path / "file" / "sub" / "c.wacz")


def test_without_the_extra_one_sentence_says_so_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = crawl(tmp_path / "warcs", ["http://example.org/"])
    monkeypatch.setattr("scrapy_dedupe.warc.url_keys._surt", None)
    monkeypatch.setitem(sys.modules, "surt", None)
    with pytest.raises(SettingError, match=r"scrapy-dedupe\[wacz\]"):
        packed(files, tmp_path / "out" / "c.wacz")
    assert not (tmp_path / "out").exists()


# Multi-WACZ


RESOURCES = [
    WaczResource("c-1.wacz", "c-1.wacz", "ab" * 32, 1234, "c-1"),
    WaczResource("old.wacz", "../old/old.wacz", None, None, "c-0"),
]


def test_multi_wacz_lists_every_container_and_replaces_the_older_file(tmp_path: Path):
    target = tmp_path / "c-1.multi-wacz.json"
    write_multi_wacz(target, [])
    write_multi_wacz(target, RESOURCES)
    assert json.loads(target.read_bytes()) == {
        "profile": "multi-wacz-package",
        "resources": [
            {
                "name": "c-1.wacz",
                "path": "c-1.wacz",
                "hash": "sha256:" + "ab" * 32,
                "bytes": 1234,
                "size": 1234,
                "crawlId": "c-1",
            },
            {"name": "old.wacz", "path": "../old/old.wacz", "crawlId": "c-0"},
        ],
    }
    assert is_left_alone(tmp_path, target.name)


def test_multi_wacz_that_cannot_be_written_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "c-1.multi-wacz.json"
    write_multi_wacz(target, RESOURCES)
    before = target.read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match=r"multi-wacz\.json cannot be written: No space left"):
        write_multi_wacz(target, RESOURCES[:1])
    assert target.read_bytes() == before
    assert is_left_alone(tmp_path, target.name)
