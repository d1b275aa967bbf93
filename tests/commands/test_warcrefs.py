"""``warcrefs`` through the command line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scrapy_dedupe.offline.revisits import revisit_id
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
PAGE = random.Random(7).randbytes(3_000)


def record(number: int, body: bytes) -> bytes:
    block = HEAD + body
    fields = (
        f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:test:{number}>\r\n"
        f"WARC-Date: 2020-01-01T00:00:{number:02d}Z\r\nWARC-Target-URI: http://site.example/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return fields.encode() + block + b"\r\n\r\n"


@pytest.fixture
def numbered(call: Callable[..., Called]) -> str:
    """A numbered manifest of a file with a page and its copy, in the working folder."""
    Path("in.warc").write_bytes(record(1, PAGE) + record(2, b"little") + record(3, PAGE))
    for words in (("warcsum", "in.warc", "-o", "six"), ("warccollres", "six", "-o", "ten", "--proc")):
        assert call(*words).code == 0
    return "ten"


def types(path: str) -> list[str]:
    return [found.type for found in read_records(path)]


def test_every_copy_becomes_a_revisit(call: Callable[..., Called], numbered: str) -> None:
    called = call("warcrefs", numbered, "-o", "out")

    assert called.code == 0
    assert "1 copy became revisits" not in called.out
    assert "1 copy became a revisit" in called.out
    assert "Nothing is lost." in called.out
    assert types("out/in.warc") == ["response", "response", "revisit"]
    assert list(read_records("out/in.warc"))[2].id == revisit_id(b"<urn:test:3>").decode()


def test_files_beside_those_of_the_manifest_are_named(call: Callable[..., Called], numbered: str) -> None:
    Path("more.warc").write_bytes(record(9, PAGE))

    called = call("warcrefs", numbered, "-o", "out")

    assert called.code == 0
    assert "1 file in these folders is in no manifest." in called.out
    assert "--files" in called.out
    assert "  more.warc\n" in called.out
    assert call("warcrefs", numbered, "--dry-run", "--json").json["unlisted"] == ["more.warc"]


def test_json_tells_all_of_it(call: Callable[..., Called], numbered: str) -> None:
    told = call("warcrefs", numbered, "-o", "out", "--json").json

    assert (told["converted"], told["files"], told["left"], told["kept_in"]) == (1, 1, {}, None)
    assert told["verification"]["findings_count"] == 0


def test_a_dry_run_needs_no_folder_and_names_hosts_and_types(
    call: Callable[..., Called], numbered: str
) -> None:
    before = sorted(Path().iterdir())
    called = call("warcrefs", numbered, "--dry-run")

    assert called.code == 0
    assert "site.example" in called.out
    assert "text/html" in called.out
    assert sorted(Path().iterdir()) == before
    # A dry run does not refuse an output that exists.
    Path("out").mkdir()
    Path("out", "in.warc").write_bytes(b"mine")
    assert call("warcrefs", numbered, "-o", "out", "--dry-run").code == 0


def test_in_place_the_file_itself_changes(call: Callable[..., Called], numbered: str) -> None:
    assert call("warcrefs", numbered, "--in-place").code == 0
    assert types("in.warc") == ["response", "response", "revisit"]

    again = call("warcrefs", numbered, "-o", "out")
    assert again.code == 4
    assert "the manifest" in again.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "with -o FOLDER"),
        (("-o", "out", "--min-size", "-1"), "--min-size is -1"),
        (("-o", "out", "--status", "ok"), "--status ok is not an HTTP status"),
        (("-o", "out", "--sample", "-1"), "--sample is -1"),
        (("-o", "out", "--jobs", "-1"), "--jobs is -1"),
        (("-o", "out", "--in-place"), "Give only one of them"),
    ],
)
def test_wrong_words_are_told_in_one_sentence(
    call: Callable[..., Called], numbered: str, words: tuple[str, ...], sentence: str
) -> None:
    called = call("warcrefs", numbered, *words)

    assert called.code == 2
    assert sentence in called.err
    assert called.err.count("\n") == 1


def test_a_manifest_that_is_not_numbered_names_the_step_before(
    call: Callable[..., Called], numbered: str
) -> None:
    called = call("warcrefs", "six", "-o", "out")

    assert called.code == 2
    assert "warcsumproc" in called.err
    assert not Path("out").exists()


def test_a_file_that_is_not_there_is_told(call: Callable[..., Called], numbered: str) -> None:
    Path("in.warc").rename("moved.warc")

    called = call("warcrefs", numbered, "-o", "out")

    assert called.code == 3
    assert "--root" in called.err


def test_small_pages_can_be_asked_for(call: Callable[..., Called]) -> None:
    Path("in.warc").write_bytes(record(1, PAGE[:900]) + record(2, PAGE[:900]))
    call("warcsum", "in.warc", "-o", "six")
    call("warccollres", "six", "-o", "ten", "--proc")

    assert call("warcrefs", "ten", "--dry-run", "--json").json["left"] == {"small": 1}
    assert call("warcrefs", "ten", "--dry-run", "--json", "--min-size", "500").json["converted"] == 1
    assert call("warcrefs", "ten", "--dry-run", "--json", "--status", "404").json["left"] == {"status": 1}
    assert (
        call("warcrefs", "ten", "--dry-run", "--json", "--status", "all", "--min-size", "0").json["converted"]
        == 1
    )
