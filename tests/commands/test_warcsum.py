from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from offline.planted import SITE, Planting, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Called

BODY = text("body", 2_000)


@pytest.fixture
def planting(call: Callable[..., Called]) -> Planting:
    """Two files below ``in``, of a page and a page with a wrong digest, in the folder of the call."""
    p = Planting()
    p.file("a.warc.gz")
    p.exchange("a.warc.gz", "right", f"{SITE}/right", BODY)
    p.file("deep/b.warc")
    p.exchange("deep/b.warc", "wrong", f"{SITE}/wrong", BODY, digest_of="lie")
    p.write(Path("in"))
    return p


@pytest.mark.usefixtures("planting")
def test_a_manifest_has_a_line_for_each_response(call: Callable[..., Called]) -> None:
    called = call("warcsum", "-r", "in", "-o", "sums")
    assert called.code == 0
    assert called.out.startswith("sums: 2 records of 2 files, ")
    assert "0 digests were stored with the records, 2 computed (4.0 kB hashed)." in called.out
    names = [line.split(" ")[0] for line in Path("sums").read_text().splitlines()]
    assert names == ["in/a.warc.gz", "in/deep/b.warc"]


@pytest.mark.usefixtures("planting")
def test_files_below_that_nobody_asked_for_are_counted(call: Callable[..., Called]) -> None:
    called = call("warcsum", "in", "-o", "sums")
    assert called.code == 0
    assert "1 WARC or ARC file in subfolders left out; -r includes them." in called.out
    for words in (("-r", "in"), ("in", "in/deep"), ("in/a.warc.gz",)):
        assert "left out" not in call("warcsum", *words, "-o", "sums", "--force").out
    assert call("warcsum", "in", "-o", "sums", "--force", "--json").json["left_below"] == 1


@pytest.mark.usefixtures("planting")
def test_names_can_be_relative_to_a_folder(call: Callable[..., Called]) -> None:
    assert call("warcsum", "-r", "in", "-o", "sums", "--base", "in").code == 0
    assert [line.split(" ")[0] for line in Path("sums").read_text().splitlines()] == [
        "a.warc.gz",
        "deep/b.warc",
    ]


@pytest.mark.usefixtures("planting")
def test_wrong_digests_are_listed_and_nothing_is_lost(call: Callable[..., Called]) -> None:
    called = call("warcsum", "-r", "in", "-o", "sums", "--verify")
    assert called.code == 4
    assert "2 stored digests compared, 1 different." in called.out
    assert "in/deep/b.warc, offset 0: WARC-Payload-Digest is sha1:" in called.out
    assert called.err == "scrapy-dedupe warcsum: 1 record with a digest that does not match the payload.\n"
    assert len(Path("sums").read_text().splitlines()) == 2


@pytest.mark.usefixtures("planting")
def test_the_result_is_there_as_json(call: Callable[..., Called]) -> None:
    result = call("warcsum", "-r", "in", "-o", "sums", "-H", "sha1", "--json").json
    assert (result["files"], result["lines"], result["stored"], result["computed"]) == (2, 2, 2, 0)


@pytest.mark.usefixtures("planting")
def test_what_was_passed_over_when_files_were_added_is_said(call: Callable[..., Called]) -> None:
    assert call("warcsum", "in", "-o", "sums").code == 0
    called = call("warcsum", "-r", "in", "-o", "sums", "--append")
    assert called.code == 0
    assert "Skipped, since the manifest already lists them: in/a.warc.gz." in called.out
    assert len(Path("sums").read_text().splitlines()) == 2


@pytest.mark.usefixtures("planting")
def test_damage_ends_the_call_or_is_passed_over(call: Callable[..., Called]) -> None:
    whole = Path("in/a.warc.gz").read_bytes()
    Path("in/cut.warc.gz").write_bytes(whole[:-20])
    Path("in/empty.warc.gz").write_bytes(b"")
    Path("in/other.warc.gz").write_bytes(b"not gzip at all")
    called = call("warcsum", "in", "-o", "sums")
    assert (called.code, called.err.count("\n")) == (4, 1)
    assert "in/cut.warc.gz, offset" in called.err
    assert not Path("sums").exists()
    called = call("warcsum", "in", "-o", "sums", "--keep-going")
    assert called.code == 4
    assert called.err == "scrapy-dedupe warcsum: 3 faults in the input skipped.\n"
    for place in (
        "in/cut.warc.gz, offset",
        "in/empty.warc.gz: the file is empty",
        "in/other.warc.gz, offset 0",
    ):
        assert place in called.out


@pytest.mark.usefixtures("planting")
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("absent",), 2, "matches no file"),
        (("in", "--append", "--force"), 2, "Give only one of them"),
        (("in", "--jobs", "-1"), 2, "--jobs is -1"),
        (("-r", "in", "--base", "in/deep"), 2, "is not below"),
        (("in", "--hash", "crc32"), 2, "invalid choice"),
        (("in", "-o", "in"), 3, "is a folder"),
        (("in", "-o", "-"), 2, "Name a file"),
        (("in", "-o", "in/a.warc.gz"), 3, "is one of the files to read"),
        (("in", "-o", "nowhere/sums"), 3, "nowhere"),
    ],
)
def test_wrong_words_are_told(
    call: Callable[..., Called], words: tuple[str, ...], code: int, why: str
) -> None:
    before = Path("in/a.warc.gz").read_bytes()
    words = words if "-o" in words else (*words, "-o", "sums")
    called = call("warcsum", *words)
    assert called.code == code
    assert why in called.err
    assert "Traceback" not in called.err
    assert Path("in/a.warc.gz").read_bytes() == before
    assert not Path("sums").exists()


@pytest.mark.usefixtures("planting")
def test_files_that_a_crawl_has_open_are_named(call: Callable[..., Called]) -> None:
    Path("in/c.warc.gz.open").write_bytes(b"whatever is there by now")
    called = call("warcsum", "in", "-o", "sums")
    assert (called.code, called.err) == (0, "")
    assert (
        "1 file that a crawl has open, or did not close, is left out: in/c.warc.gz.open."
        in called.out.splitlines()
    )
    assert call("warcsum", "in", "-o", "sums-2", "--json").json["left_open"] == ["in/c.warc.gz.open"]
