from __future__ import annotations

import gzip
import io
import json
import os
import socket
import tracemalloc
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from passages.raw_archives import exchange, record, response
from passages.reading_pages import kind_of

from scrapy_dedupe.errors import DamagedInput, UsageError
from scrapy_dedupe.passages.sources import DocumentSources, SourceOptions
from scrapy_dedupe.passages.text_reading import RawDocument, Skipped
from scrapy_dedupe.tasks.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Iterator


class Found:
    """What some words stand for."""

    def __init__(
        self,
        *words: Path | str,
        max_bytes: int = 1_000_000,
        keep_going: bool = True,
        stdin: bytes = b"",
        **options: Any,
    ) -> None:
        self.faults = Faults(keep_going=keep_going)
        self.skipped = Skipped()
        sources = DocumentSources(
            [str(word) for word in words],
            SourceOptions(kind_of, max_bytes, **options),
            faults=self.faults,
            skipped=self.skipped,
            standard_input=io.BytesIO(stdin),
        )
        self.documents: list[RawDocument] = list(sources.documents())

    @property
    def ids(self) -> list[str]:
        return [document.doc_id for document in self.documents]

    @property
    def told(self) -> str:
        return "\n".join(str(fault) for fault in self.faults.first)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for path in (tmp_path, *tmp_path.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)


def write(path: str, data: bytes | str = "a text") -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return file


# Folders


def test_a_folder_stands_for_all_below_it_in_order(here: Path) -> None:
    for name in ("docs/b.txt", "docs/a/z.html", "docs/a/c", "docs/c.md"):
        write(name)
    found = Found("docs/")
    assert found.ids == ["docs/a/c", "docs/a/z.html", "docs/b.txt", "docs/c.md"]
    assert [document.kind for document in found.documents] == ["plain", "html", "plain", "plain"]


def test_ids_are_paths_as_given_or_relative_to_a_base(here: Path) -> None:
    write("docs/a/b.txt")
    assert Found(here / "docs").ids == [f"{here}/docs/a/b.txt"]
    assert Found("./docs", base=Path("docs")).ids == ["a/b.txt"]
    with pytest.raises(UsageError, match="not below"):
        Found("docs", base=Path("docs/a"))


def test_a_host_is_given_to_all(here: Path) -> None:
    write("a.txt")
    write("b.jsonl", '{"url": "http://b/", "text": "b"}')
    assert [document.host for document in Found(".", host="me").documents] == ["me", "me"]


def test_binary_files_in_a_folder_are_counted_and_one_that_is_named_is_told(here: Path) -> None:
    write("docs/a.png", b"\x89PNG\0")
    write("docs/late", b"a" * 100_000 + b"\0")
    found = Found("docs")
    assert (found.ids, found.skipped.counts, found.faults.count) == ([], {"binary": 2}, 0)
    assert not found.skipped.loud
    found = Found("docs/a.png")
    assert found.skipped.loud == 1
    assert str(found.skipped.reported.first[0]).startswith("docs/a.png: it is not text")


def test_a_loop_of_links_ends(here: Path) -> None:
    write("docs/a/b.txt")
    Path("docs/a/loop").symlink_to("..")
    Path("docs/other").symlink_to("a")
    Path("docs/self").symlink_to("self")
    found = Found("docs")
    assert found.ids == ["docs/a/b.txt"]
    assert found.skipped.counts == {"link": 2}
    assert found.told.startswith("docs/self: it cannot be read")


def test_pipes_and_sockets_are_never_opened(here: Path) -> None:
    write("docs/a.txt")
    os.mkfifo("docs/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("docs/socket")
        found = Found("docs")
    assert (found.ids, found.skipped.counts) == (["docs/a.txt"], {"special": 2})
    assert [fault.place for fault in found.skipped.reported.first] == ["docs/pipe", "docs/socket"]
    assert not found.skipped.loud
    assert Found("docs/pipe").skipped.loud == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_named(here: Path) -> None:
    write("docs/a.txt").chmod(0)
    write("docs/b/c.txt").parent.chmod(0)
    found = Found("docs")
    assert [fault.place for fault in found.faults.first] == ["docs/a.txt", "docs/b"]


def test_a_link_to_nothing_is_named_and_ends_the_work_unless_it_is_to_go_on(here: Path) -> None:
    Path("gone").symlink_to("nowhere")
    assert "No such file" in Found("gone").told
    with pytest.raises(DamagedInput, match="gone: it cannot be read"):
        Found("gone", keep_going=False)


def test_the_folder_of_the_index_is_no_source(here: Path) -> None:
    write("a.txt")
    write(".scrapy/dedupe/passages/manifest.json", "{}")
    assert Found(".", without=Path(".scrapy/dedupe/passages")).ids == ["a.txt"]


def test_a_very_deep_folder_is_read(here: Path) -> None:
    deep = Path("d")
    for _ in range(300):
        deep /= "d"
    write(str(deep / "a.txt"))
    assert Found("d").ids == [f"{deep}/a.txt"]


def test_a_name_that_is_no_utf_8_becomes_one(here: Path) -> None:
    (here / os.fsdecode(b"caf\xe9.txt")).write_text("a")
    assert Found(".").ids == ["caf\\xe9.txt"]


def test_a_word_that_names_nothing_is_refused_before_anything_is_read(here: Path) -> None:
    write("a.txt")
    with pytest.raises(UsageError, match=r"'b\*' matches nothing"):
        Found("a.txt", "b*")


def test_a_pattern_stands_for_what_it_matches(here: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md", "what?.md"):
        write(name)
    assert Found("*.txt", "what?.md").ids == ["a.txt", "b.txt", "what?.md"]


def test_a_packed_file_is_unpacked(here: Path) -> None:
    write("a.html.gz", gzip.compress(b"<p>a") + gzip.compress(b"<p>b"))
    found = Found("a.html.gz")
    assert [(document.kind, document.data) for document in found.documents] == [("html", b"<p>a<p>b")]


@pytest.mark.parametrize("cut", [5, 30])
def test_a_packed_file_that_is_cut_is_named(here: Path, cut: int) -> None:
    packed = gzip.compress(os.urandom(60).hex().encode())
    write("a.txt.gz", packed[:-cut])
    write("b.txt.gz", gzip.compress(b"b") + b"and more")
    found = Found("a.txt.gz", "b.txt.gz")
    assert found.ids == []
    assert [fault.place for fault in found.faults.first] == ["a.txt.gz", "b.txt.gz"]
    assert "decompressed" in found.told


def test_a_document_that_is_too_large_or_swells_is_named_and_never_held(here: Path) -> None:
    write("a.txt.gz", gzip.compress(b"a" * 50_000_000))
    write("b.txt", "b" * 1_001)
    write("c.txt", "c" * 1_000)
    tracemalloc.start()
    found = Found("a.txt.gz", "b.txt", "c.txt", max_bytes=1_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.ids == ["c.txt"]
    assert found.skipped.counts == {"large": 2}
    assert str(found.skipped.reported.first[1]) == "b.txt: it has more than 1000 bytes"
    assert peak < 5_000_000


# JSON lines


def lines(*values: Any) -> bytes:
    return b"".join(
        (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n" for value in values
    )


def test_json_lines_give_ids_and_texts(here: Path) -> None:
    data = (
        b"\xef\xbb\xbf"
        + lines({"url": "u1", "text": "eins"}, b"", {"url": "u2", "text": "zwei"})
        + b'{"url":"u3","text":""}'
    )
    write("a.jsonl", data)
    write("a.ndjson.gz", gzip.compress(data))
    for word in ("a.jsonl", "a.ndjson.gz", "-"):
        found = Found(word, stdin=data)
        assert [(document.doc_id, document.data) for document in found.documents] == [
            ("u1", "eins"), ("u2", "zwei"), ("u3", ""),
        ]  # fmt: skip
        assert found.faults.count == 0


def test_the_fields_can_have_other_names(here: Path) -> None:
    found = Found("-", stdin=lines({"id": "a", "body": "b"}), url_field="id", text_field="body")
    assert [(document.doc_id, document.data) for document in found.documents] == [("a", "b")]


def test_a_number_as_id_is_taken_as_it_is_written(here: Path) -> None:
    data = b"".join(
        b'{"url": %b, "text": "a", "more": 1e5}\n' % number for number in (b"17", b"1.50", b"9" * 5_000)
    )
    assert Found("-", stdin=data).ids == ["17", "1.50", "9" * 5_000]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{no json", "it is not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "it is not a JSON object"),
        (b"{}", "it has no field 'url'; choose another field with --url-field"),
        ({"url": "a"}, "it has no field 'text'; choose another field with --text-field"),
        ({"url": [1], "text": "a"}, "its field 'url' is not a string; choose another field with --url-field"),
        ({"url": "a", "text": 1}, "its field 'text' is not a string; choose another field with --text-field"),
        (
            {"url": "a", "text": None},
            "its field 'text' is not a string; choose another field with --text-field",
        ),
        ({"url": "", "text": "a"}, "is not a valid document id"),
        ({"url": "a\0", "text": "a"}, "NUL"),
        ({"url": "\ud800", "text": "a"}, "surrogate"),
        ({"url": "a" * 9_000, "text": "a"}, "9,000 bytes"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_the_others_are_taken(line: Any, reason: str) -> None:
    good = {"url": "good", "text": "a"}
    found = Found("-", stdin=lines(good, line, good))
    assert found.ids == ["good", "good"]
    assert found.faults.count == 1
    assert found.told.startswith("standard input, line 2: ")
    assert reason in found.told
    with pytest.raises(DamagedInput, match="line 2"):
        Found("-", stdin=lines(good, line), keep_going=False)


def test_a_line_that_is_too_long_is_named_and_never_held() -> None:
    long = b'{"url": "a", "text": "' + b"a" * 20_000_000 + b'"}'
    data = lines(long, {"url": "b", "text": "b"}, long[:1_000_000])
    tracemalloc.start()
    found = Found("-", stdin=data, max_bytes=1_000)
    peak = tracemalloc.get_traced_memory()[1] - len(data)
    tracemalloc.stop()
    assert found.ids == ["b"]
    assert found.skipped.counts == {"large": 2}
    assert found.skipped.reported.first[0].place == "standard input, line 1"
    assert peak < 5_000_000


def test_a_line_of_just_the_longest_length_is_taken() -> None:
    line = json.dumps({"url": "a", "text": "b" * 100}).encode()
    for end in (b"\n", b"\r\n", b""):
        assert Found("-", stdin=line + end, max_bytes=len(line)).ids == ["a"]
        assert Found("-", stdin=line + end, max_bytes=len(line) - 1).ids == []


def test_bytes_of_a_line_that_are_no_utf_8_are_replaced_and_counted() -> None:
    found = Found("-", stdin=b'{"url": "a", "text": "caf\xe9"}\n')
    assert found.documents[0].data == "caf\ufffd"
    assert found.skipped.replaced == 1


def test_halves_of_surrogate_pairs_in_a_text_are_replaced_and_counted() -> None:
    found = Found(
        "-", stdin=b'{"url": "a", "text": "x \\ud83d y \\ud83d\\ude00"}\n{"url": "b", "text": "\\u00e9"}\n'
    )
    assert [document.data for document in found.documents] == ["x \ufffd y \U0001f600", "\u00e9"]
    assert found.skipped.replaced == 1


@pytest.mark.parametrize(
    "value", [b"9" * 1_000_000, b"-1e999", b"NaN", b"[Infinity, 1.5]", b"0." + b"1" * 100_000]
)
def test_fields_of_no_interest_may_have_any_number(value: bytes) -> None:
    found = Found("-", stdin=b'{"n": %s, "url": "a", "text": "b"}\n' % value, max_bytes=2_000_000)
    assert (found.ids, found.faults.count) == (["a"], 0)


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,", b'"",', b'"a",', b'{"":0},', b"[[[]]],"])
def test_a_line_of_many_small_things_is_named_and_never_made_objects(
    unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapy_dedupe.passages.sources._MAX_BYTES_OUTSIDE_STRINGS", 100_000)
    long = b'{"url": "a", "text": "b", "n": [' + unit * (2_000_000 // len(unit)) + b"0]}"
    data = lines(long, {"url": "b", "text": "b"})
    tracemalloc.start()
    found = Found("-", stdin=data, max_bytes=64_000_000)
    peak = tracemalloc.get_traced_memory()[1] - len(data)
    tracemalloc.stop()
    assert found.ids == ["b"]
    assert found.skipped.counts == {"large": 1}
    assert "outside of strings" in found.skipped.reported.first[0].reason
    assert peak < 4 * len(long)


@pytest.mark.parametrize("text", ["[],", '"', "\\", '\\"', "a\n"])
def test_a_long_text_may_say_anything(text: str) -> None:
    text *= 6_000_000 // len(text)
    (document,) = Found("-", stdin=lines({"url": "a", "text": text, "n": 1}), max_bytes=64_000_000).documents
    assert document.data == text


def test_a_long_line_that_is_cut_is_no_json() -> None:
    found = Found("-", stdin=b'{"url": "a", "text": "' + b"a" * 6_000_000, max_bytes=64_000_000)
    assert "it is not valid JSON" in found.told


def test_the_lines_before_the_cut_of_a_packed_file_are_taken(here: Path) -> None:
    values = [{"url": str(number), "text": os.urandom(3_000).hex()} for number in range(200)]
    write("a.jsonl.gz", gzip.compress(lines(*values))[:-100_000])
    found = Found("a.jsonl.gz")
    assert found.ids == [str(number) for number in range(len(found.ids))]
    assert 50 < len(found.ids) < 200
    assert found.told.startswith(f"a.jsonl.gz, line {len(found.ids) + 1}: ")


# Archives


def test_pages_of_an_archive_come_with_their_urls_and_bytes_as_stored(here: Path) -> None:
    packed = gzip.compress(b"<p>two")
    write("a.warc", response("http://a/1", b"<p>one") + response("http://a/2", packed, coding="gzip"))
    found = Found("a.warc")
    assert [(document.doc_id, document.data) for document in found.documents] == [
        ("http://a/1", b"<p>one"),
        ("http://a/2", packed),
    ]
    one, two = (dict(document.headers or ()) for document in found.documents)
    assert one[b"Content-Type"] == b"text/html; charset=utf-8"
    assert two[b"Content-Encoding"] == b"gzip"
    assert found.documents[0].place == f"{here}/a.warc, offset 0 (http://a/1)"


def test_only_pages_that_were_got_are_taken(here: Path) -> None:
    data = [
        record("warcinfo", b"software: x\r\n"),
        response("http://a/", b"yes"),
        response("http://a/gone", b"no", status=404),
        response("http://a/image", b"no", content_type="image/png"),
        response("dns:a", b"no", content_type="text/html", Content_Type="text/dns"),
        record("revisit", b"HTTP/1.1 200 OK\r\n\r\n", url="http://a/again"),
        exchange("http://a/form", b"no", "POST"),
        exchange("http://a/asked", b"yes", "GET"),
        response("http://a/undeclared", b"yes", content_type=None),
    ]
    write("a.warc", b"".join(data))
    found = Found(".")
    assert found.ids == ["http://a/", "http://a/asked", "http://a/undeclared"]
    assert found.skipped.counts == {"status": 1, "type": 2, "revisit": 1, "method": 1}
    assert found.faults.count == 0


def revisit(url: str, of: str, *, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n", **fields: str) -> bytes:
    named = {"WARC_Refers_To_Target_URI": of, "WARC_Refers_To_Date": "2026-08-01T12:00:00Z", **fields}
    return record("revisit", head, url=url, **named)


def test_a_revisit_is_the_page_of_its_original_in_whatever_file(here: Path) -> None:
    write("a.warc", revisit("http://a/again", "http://b/") + revisit("http://a/lost", "http://gone/"))
    write("b.warc", response("http://b/", b"<p>words"))
    found = Found("a.warc", "b.warc")
    assert [(document.doc_id, document.data) for document in found.documents] == [
        ("http://b/", b"<p>words"),
        ("http://a/again", b"<p>words"),
    ]
    assert found.skipped.counts == {"revisit": 1}


def test_a_revisit_does_not_take_the_place_of_a_page_that_comes_after_it(here: Path) -> None:
    pages = [
        response("http://b/", b"<p>old"),
        revisit("http://a/", "http://b/"),
        response("http://a/", b"<p>new"),
    ]
    write("a.warc", b"".join(pages))
    assert Found("a.warc").ids == ["http://b/", "http://a/"]
    write("a.warc", b"".join([pages[0], pages[2], pages[1]]))
    assert [document.data for document in Found("a.warc").documents] == [b"<p>old", b"<p>new", b"<p>old"]


def test_only_revisits_of_pages_that_were_got_are_taken(here: Path) -> None:
    data = [
        response("http://b/", b"<p>words"),
        response("http://b/gone", b"no", status=404),
        revisit("http://a/1", "http://b/", head=b"HTTP/1.1 404 Not Found\r\n\r\n"),
        revisit("http://a/2", "http://b/", head=b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"),
        revisit("http://a/3", "http://b/gone", head=b""),
        revisit("http://b/", "http://b/", head=b"HTTP/1.1 304 Not Modified\r\n\r\n"),
    ]
    write("a.warc", b"".join(data))
    found = Found("a.warc")
    assert found.ids == ["http://b/", "http://b/"]
    assert found.skipped.counts == {"status": 3, "type": 1}


def test_a_page_that_is_too_large_is_named(here: Path) -> None:
    write("a.warc", response("http://a/", b"a" * 1_001) + response("http://b/", b"a" * 1_000))
    found = Found("a.warc", max_bytes=1_000)
    assert found.ids == ["http://b/"]
    assert "http://a/ has more than 1000 bytes" in str(found.skipped.reported.first[0])


def test_damage_in_an_archive_is_named_and_what_is_whole_is_taken(here: Path) -> None:
    whole = [response(f"http://a/{number}", b"<p>page", gzipped=True) for number in range(3)]
    damaged = bytearray(whole[1])
    damaged[40] ^= 0xFF
    write("a.warc.gz", whole[0] + bytes(damaged) + whole[2])
    found = Found("a.warc.gz")
    assert found.ids == ["http://a/0", "http://a/2"]
    assert f"a.warc.gz, offset {len(whole[0])}" in found.told
    with pytest.raises(DamagedInput):
        Found("a.warc.gz", keep_going=False)


def test_an_archive_that_a_crawl_has_open_is_left_alone(here: Path) -> None:
    write("a.warc.open", response("http://a/", b"a"))
    found = Found(".")
    assert (found.ids, found.skipped.counts) == ([], {"open": 1})


def test_a_page_whose_url_is_no_name_is_a_fault(here: Path) -> None:
    write("a.warc", response("http://a/" + "a" * 9_000, b"a") + response("", b"a"))
    found = Found("a.warc")
    assert (found.ids, found.faults.count) == ([], 2)


def test_a_wacz_stands_for_the_pages_in_it(here: Path) -> None:
    with zipfile.ZipFile("a.wacz", "w") as file:
        file.writestr("datapackage.json", "{}")
        file.writestr("archive/b.warc.gz", response("http://b/", b"<p>b", gzipped=True))
        file.writestr("archive/a.warc", response("http://a/", b"<p>a"))
    found = Found(".")
    assert found.ids == ["http://a/", "http://b/"]
    assert "a.wacz/archive/a.warc, offset 0" in found.documents[0].place


def test_an_arc_file_stands_for_the_pages_in_it(here: Path) -> None:
    page = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<p>old"
    version = b"1 0 x\nURL IP-address Archive-date Content-type Archive-length\n"
    data = b"filedesc://a.arc 0.0.0.0 20010101000000 text/plain %d\n%s\n" % (len(version), version)
    write("a.arc", data + b"http://a/ 1.2.3.4 20010101000000 text/html %d\n%s\n" % (len(page), page))
    found = Found("a.arc")
    assert [(document.doc_id, document.data) for document in found.documents] == [("http://a/", b"<p>old")]


def test_a_file_that_is_no_container_is_named(here: Path) -> None:
    write("a.wacz", b"no zip")
    told = Found("a.wacz").told
    assert told.startswith("a.wacz: ")
    assert str(here) not in told
