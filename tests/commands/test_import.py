"""``import``: what it says, in text and JSON, with which exit code, and how it is stopped."""

from __future__ import annotations

import gzip
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from import_files import line, response_record, revisit, sha1_base32, sha256, write_manifest, write_wacz
from programs import run_program

from scrapy_dedupe import __version__
from scrapy_dedupe.crawls import open_index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'imports.sqlite'}"


def test_an_import_says_what_it_did(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1), line(2), revisit(3, 1)])
    called = call("import", str(path), "--store", url)
    assert (called.code, called.err) == (0, "")
    assert called.out == (f"1 source imported into {url}.\n3 responses, 1 of them revisits; 2 originals.\n")
    again = call("import", str(path), "--store", url)
    assert (again.code, again.out) == (0, f"0 sources imported into {url}, 1 known already.\n")


def test_an_import_as_json(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1), revisit(3, 7), line(4, url=None)])
    called = call("import", str(path), "--store", url, "--json", "--crawl-id", "one")
    assert called.code == 4
    assert called.json == {
        "store": url,
        "imported": ["a.wacz"],
        "known": [],
        "failed": [],
        "skipped": 1,
        "faults": [f"{path}: line 3: has no URL"],
        "absent": [],
        "captures": 2,
        "originals": 1,
        "other_digests": {},
        "revisits": 1,
        "waiting": 1,
        "claimed": 0,
        "missing": [],
        "removed": [],
        "not_removed": None,
    }
    assert called.err == "scrapy-dedupe import: 1 line or record skipped.\n"


def test_an_import_names_the_setting_for_digests_that_crawls_would_not_find(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    lines = [line(1, digest=f"sha1:{sha1_base32(1)}"), line(2), line(3, digest=f"md5:{'0' * 31}a")]
    path = write_wacz(tmp_path / "a.wacz", lines)
    called = call("import", str(path), "--store", url)
    assert called.code == 0
    again = "Crawls with the present settings do not find them, and store their payloads again."
    assert called.out.splitlines()[2:] == [
        f"Originals with other digests: 1. {again} No value of DEDUPE_WARC_DIGEST finds them.",
        f'Originals with sha1 digests: 1. {again} Set DEDUPE_WARC_DIGEST = "sha1" to find them.',
    ]


def test_an_imported_crawl_is_not_shown_as_made_by_this_package(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)], software="py-wacz 0.6.0")
    call("import", str(path), "--store", url)
    software = call("crawls", "show", "a", "--store", url).out.splitlines()[2]
    assert software == f"Software    imported by scrapy-dedupe {__version__}, payload stored"


def test_a_broken_source_gives_exit_code_4_and_the_others_are_imported(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    (tmp_path / "b.wacz").write_bytes(b"PK\x03\x04")
    called = call("import", str(tmp_path / "*.wacz"), "--store", url)
    assert (called.code, called.err) == (4, "scrapy-dedupe import: 1 source could not be imported.\n")
    assert called.out.startswith(f"1 source imported into {url}, 1 failed.\n")
    assert f"{tmp_path / 'b.wacz'}: NOT imported. " in called.out


def test_a_cdxj_whose_warc_files_are_not_there_gives_exit_code_4(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.cdxj"
    path.write_bytes(b"".join(line(number, filename=f"{number}.warc.gz") for number in range(5)))
    (tmp_path / "1.warc.gz").write_bytes(b"some")
    called = call("import", str(path), "--store", url)
    assert (called.code, called.err) == (
        4,
        "scrapy-dedupe import: WARC files that 1 CDXJ names are missing.\n",
    )
    names = ", ".join(f"{tmp_path / str(number)}.warc.gz" for number in (0, 2, 3))
    assert f"{path} names missing WARC files, so no crawl can refer to their records: {names}" in called.out
    assert "and 1 more. Put them there." in called.out


def test_what_is_known_by_its_place_alone_is_told_to_be_so(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.warc.gz"
    path.write_bytes(response_record(1, b"1" * 500))
    call("import", str(path), "--store", url)
    path.write_bytes(response_record(1, b"1" * 500) + response_record(2, b"2" * 500))
    called = call("import", str(path), "--store", url)
    assert (
        called.code,
        "Known WARC files and CDXJ are not read again. If one has changed" in called.out,
    ) == (0, True)


def test_records_of_one_place_are_told_once(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    shared = b"".join(gzip.decompress(response_record(n, b"%d" % n * 500)) for n in (1, 2, 3))
    path.write_bytes(gzip.compress(shared) + response_record(4, b"4" * 500))
    called = call("import", str(path), "--store", url)
    assert called.out.count("shares a gzip member") == 1
    assert called.err == "scrapy-dedupe import: 3 lines or records skipped.\n"


def test_payload_modes_are_not_mixed(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    write_wacz(tmp_path / "b.wacz", [line(2)], software="Browsertrix-Crawler 1.14.1")
    assert call("import", str(tmp_path / "a.wacz"), "--store", url).code == 0
    called = call("import", str(tmp_path / "b.wacz"), "--store", url)
    assert (called.code, called.out) == (3, "")
    assert called.err.startswith("scrapy-dedupe import: ")
    assert "--payload stored" in called.err
    assert call("import", str(tmp_path / "b.wacz"), "--store", url, "--payload", "stored").code == 0


@pytest.mark.parametrize(
    "words", [("--force",), ("--crawl-id", "a b"), ("none.wacz",), ("--payload", "encoded")]
)
def test_wrong_use_is_exit_code_2_and_makes_no_store(
    call: Callable[..., Any], url: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    called = call("import", str(path), *words, "--store", url)
    assert called.code == 2
    assert not (tmp_path / "imports.sqlite").exists()


def test_without_a_source_the_queue_is_gone_on_with_and_no_store_is_made(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    called = call("import", "--store", url)
    assert (called.code, "does not exist" in called.err) == (3, True)
    path = write_wacz(tmp_path / "a.wacz", [line(1)])
    from scrapy_dedupe.crawls.sources import source_at

    with open_index(url) as index:
        index.queue_sources([source_at(str(path))])
    assert call("import", "--store", url, "--json").json["imported"] == ["a.wacz"]
    assert call("import", "--store", url).out == f"0 sources imported into {url}.\n"


def test_crawls_missing_from_the_manifest_are_told_and_removed_on_demand(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    for name in "ab":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name))])
    call("import", str(tmp_path), "--store", url)
    manifest = str(write_manifest(tmp_path / "all.json", {"path": "b.wacz"}))
    assert "Not named by a manifest: a. --remove purges them." in call("import", manifest, "--store", url).out
    assert "Removed: a.\n" in call("import", manifest, "--remove", "--store", url).out
    with open_index(url) as index:
        assert [info.id for info in index.crawls()] == ["b"]


def test_removal_that_is_refused_is_told_with_all_else_that_the_import_did(
    call: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    write_wacz(tmp_path / "a.wacz", [line(1)])
    write_wacz(tmp_path / "b.wacz", [revisit(2, 1)])
    call("import", str(tmp_path), "--store", url)
    write_wacz(tmp_path / "c.wacz", [line(3)], gzipped=True, cut=9)
    manifest = str(write_manifest(tmp_path / "all.json", {"path": "b.wacz"}, {"path": "c.wacz"}))
    called = call("import", manifest, "--remove", "--store", url)
    assert called.code == 4
    assert f"{tmp_path / 'c.wacz'}: NOT imported." in called.out
    assert "Not named by a manifest: a." in called.out
    assert "1 source could not be imported. Nothing was purged, because remaining crawls need" in called.err
    assert "b needs a" in called.err
    told = call("import", manifest, "--remove", "--store", url, "--json").json
    assert (told["missing"], told["removed"], "b needs a" in told["not_removed"]) == (["a"], [], True)
    with open_index(url) as index:
        notes = index.import_notes
        assert (notes.removed_crawls, notes.removed_size) == (1, (tmp_path / "a.wacz").stat().st_size)
        assert notes.finished is not None
    write_manifest(tmp_path / "all.json", {"path": "b.wacz"})
    assert call("import", manifest, "--remove", "--force", "--store", url).code == 0


def test_a_fault_in_the_manifest_removes_nothing(call: Callable[..., Any], url: str, tmp_path: Path) -> None:
    for name in "ab":
        write_wacz(tmp_path / f"{name}.wacz", [line(ord(name))])
    call("import", str(tmp_path), "--store", url)
    manifest = str(write_manifest(tmp_path / "all.json", {"path": "b.wacz"}, {"path": "../x.wacz"}))
    called = call("import", manifest, "--remove", "--store", url)
    assert called.code == 4
    assert "1 source could not be imported. Nothing was removed: a manifest has a fault" in called.err


# The signal comes when the first captures are entered.
STOPPED = """
import os, sys
from scrapy_dedupe.commands.bars import Bars
from scrapy_dedupe.commands.console import main
Bars.reach = lambda self, done, total: os.kill(os.getpid(), int(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_import_in_one_sentence_and_the_next_one_goes_on(
    call: Callable[..., Any], url: str, tmp_path: Path, number: signal.Signals
) -> None:
    path = write_wacz(tmp_path / "a.wacz", (line(number, offset="0") for number in range(20_000)))
    with open_index(url):
        pass
    done = run_program("python", "-c", STOPPED, int(number), "import", path, "--store", url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-number, ""), done.stderr
    with open_index(url) as index:
        assert [source.name for source in index.unfinished_sources()] == ["a.wacz"]
        assert done.stderr == (
            "scrapy-dedupe import: stopped; the sources imported so far are in the index, and import without SOURCE"
            " continues with the rest.\n"
        )
        assert index.find("new", [sha256(1)]) == [None]
    # The one that was stopped has given its claim back; otherwise this one would tell that it waits.
    called = call("import", "--store", url, "--json")
    assert called.json["captures"] == 20_000
    assert "claimed" not in called.err


def test_a_bar_is_shown_on_a_terminal_alone(
    call: Callable[..., Any], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_wacz(tmp_path / "a.wacz", [line(1)]))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert call("import", path, "--store", f"{url}1", "--json").err == ""
    assert "sources" in call("import", path, "--store", f"{url}2").err
    monkeypatch.undo()
    assert json.loads(call("import", path, "--store", url, "--json").out)["imported"] == ["a.wacz"]
