"""``warc salvage`` and ``warc upload``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archives import check, records_of
from faults_site import Hold, start_crawl
from waiting import wait_until

from scrapy_dedupe.crawls import CrawlIndex, open_index
from scrapy_dedupe.crawls.entries import RevisitRules
from scrapy_dedupe.crawls.rebuilding import rebuild
from scrapy_dedupe.errors import ArchiveError
from scrapy_dedupe.stores.base import Counts, Original
from scrapy_dedupe.warc import records
from scrapy_dedupe.warc.capture import Capture
from scrapy_dedupe.warc.files import WarcWriter
from scrapy_dedupe.warc.reading import read_records
from scrapy_dedupe.warc.salvage import salvage

if TYPE_CHECKING:
    from collections.abc import Callable

    from webserver import WebServer

TESTS = Path(__file__).parent.parent
HTML = ((b"Content-Type", b"text/html"),)


def exchange(number: int) -> list[records.Record]:
    body = f"<p>Page {number}".encode() * 300
    captured = Capture(f"http://example.org/{number}", "GET", 200, datetime.now(UTC), (), b"", HTML, body)
    digest = captured.payload_digest("sha256")
    response = records.response(captured, digest=digest)
    return [response, records.request(captured, concurrent_to=response.id)]


def finished(
    folder: Path, crawl: str = "second", count: int = 3, prefix: str = "pre", **options: Any
) -> Path:
    """A WARC file of that many exchanges."""
    with WarcWriter(folder, prefix, info={"isPartOf": crawl}, **options) as out:
        for number in range(count):
            (location, _) = out.write(exchange(number))
    return folder / location.file


def cut(folder: Path, crawl: str = "second", *, by: int = 10, **options: Any) -> Path:
    """A file as a killed crawl leaves it: its last record, a request, lacks some bytes."""
    path = finished(folder, crawl, **options)
    path_open = path.with_name(f"{path.name}.open")
    path_open.write_bytes(path.read_bytes()[:-by])
    path.unlink()
    return path_open


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the verbs look by default: ``warcs`` in the working folder."""
    return tmp_path / "elsewhere" / "warcs"


@pytest.fixture
def index(store_url: str) -> Any:
    with open_index(store_url) as opened:
        yield opened


def crawl_named(index: CrawlIndex, crawl: str) -> Any:
    return next(info for info in index.crawls() if info.id == crawl)


# salvage


def test_salvage_cuts_the_broken_end_and_enters_the_records_again(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path = cut(folder)
    index.add_file("second", str(path)[:-5])
    index.mark_incomplete("second", True)
    called = call("warc", "salvage", "--store", store_url)
    final = path.with_name(path.name.removesuffix(".open"))
    assert (called.code, called.err) == (0, "")
    assert f"{final}: 5 records kept, " in called.out
    assert " bytes of an incomplete one cut off." in called.out
    assert "The crawl second: its entries were read again from its files." in called.out
    assert "scrapy dedupe commit second" in called.out
    assert not path.exists()
    assert len(list(read_records(final))) == 6
    info = crawl_named(index, "second")
    assert (info.state, info.incomplete) == ("uncommitted", False)
    assert info.counts.total_urls == 3
    digests = [record.payload_digest.value for record in read_records(final) if record.type == "response"]
    found = index.find("second", digests)
    assert [original is not None for original in found] == [True, True, False], (
        "the last exchange has lost its request, so nobody knows whether it was a GET"
    )
    assert call("warc", "salvage", "--store", store_url).out == "There are no unfinished WARC files.\n"


def test_salvage_as_json(call: Callable[..., Any], store_url: str, folder: Path) -> None:
    path = cut(folder, by=7)
    result = call("warc", "salvage", "--store", store_url, "--json").json
    (file,) = result["files"]
    assert file["file"] == str(path).removesuffix(".open")
    assert (file["state"], file["crawl"], file["records"], file["reason"]) == ("mended", "second", 5, None)
    assert file["cut_bytes"] > 0
    assert result["crawls"] == [{"id": "second", "state": "uncommitted", "rebuilt": True}]
    assert (result["index_error"], result["dry_run"]) == (None, False)


def test_salvage_with_dry_run_says_the_same_and_changes_nothing(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path = cut(folder)
    index.mark_incomplete("second", True)
    before = path.read_bytes()
    trial = call("warc", "salvage", "--store", store_url, "--dry-run")
    assert "would be kept" in trial.out
    foreseen = call("warc", "salvage", "--store", store_url, "--dry-run", "--json").json["files"]
    assert (path.read_bytes(), crawl_named(index, "second").incomplete) == (before, True)
    assert call("warc", "salvage", "--store", store_url, "--json").json["files"] == foreseen


def foresee(path: Path) -> Any:
    return salvage(path, dry_run=True)


def outcome(look: Callable[[Path], Any], path: Path) -> Any:
    try:
        return look(path)
    except ArchiveError:
        return "refused"


@pytest.mark.parametrize("gzip", [True, False])
def test_a_dry_run_foresees_what_happens_wherever_a_file_was_cut(tmp_path: Path, gzip: bool) -> None:
    source = finished(tmp_path / "source", count=2, gzip=gzip)
    data = source.read_bytes()
    ends = [record.offset + record.length for record in read_records(source)]
    near_ends = {end + step for end in (0, *ends) for step in range(-5, 6)}
    for size in sorted({*near_ends, *range(0, len(data), 97)} & set(range(len(data) + 1))):
        path = tmp_path / f"{size}.warc{'.gz' if gzip else ''}.open"
        path.write_bytes(data[:size] + bytes(size % 3))
        before = path.read_bytes()
        foreseen = outcome(foresee, path)
        assert path.read_bytes() == before
        assert outcome(salvage, path) == foreseen
        path.unlink(missing_ok=True)
        path.with_name(path.name.removesuffix(".open")).unlink(missing_ok=True)


@pytest.mark.parametrize("data", [b"something else", b"\x1f\x8b\x08\xff", b"WARC/1.1\r\nWARC-Type: response"])
def test_a_dry_run_refuses_what_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.warc.gz.open"
    path.write_bytes(data)
    for look in (foresee, salvage):
        with pytest.raises(ArchiveError, match="no whole record"):
            look(path)


@pytest.mark.parametrize("trial", [[], ["--dry-run"]])
def test_a_file_with_damage_in_its_middle_is_told_and_left_and_the_others_are_mended(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex, trial: list[str]
) -> None:
    damaged, sound = cut(folder, prefix="a"), cut(folder, prefix="b")
    data = bytearray(damaged.read_bytes())
    start = [record.offset for record in read_records(damaged, on_damage=lambda damage: None)][1]
    data[start : start + 40] = b"\xff" * 40
    damaged.write_bytes(data)
    called = call("warc", "salvage", "--store", store_url, *trial)
    assert called.code == 4
    assert called.err == "scrapy-dedupe warc salvage: 1 file could not be repaired.\n"
    assert f"{damaged}: NOT repaired. {damaged}, offset {start}" in called.out
    assert damaged.read_bytes() == data
    assert sound.exists() == bool(trial)
    if not trial:
        info = crawl_named(index, "second")
        assert (info.counts.total_urls, info.incomplete) == (3, True), (
            "the records of one file are not entered"
        )


def damage(path: Path, number: int) -> tuple[int, int]:
    """Overwrite the beginning of a record in the middle of a file; where that record is."""
    record = list(read_records(path, on_damage=lambda damage: None))[number]
    data = bytearray(path.read_bytes())
    data[record.offset : record.offset + 40] = b"\xff" * 40
    path.write_bytes(data)
    return record.offset, record.length


def test_skip_damaged_copies_what_is_whole_and_enters_it(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path_open = cut(folder, "third")
    index.start("third")
    index.mark_incomplete("third", True)
    final = path_open.with_name(path_open.name.removesuffix(".open"))
    offset, length = damage(path_open, 3)
    before = path_open.read_bytes()
    trial = call("warc", "salvage", "--skip-damaged", "--dry-run", "--store", store_url)
    assert (trial.code, path_open.read_bytes()) == (4, before)
    assert "4 records would be copied" in trial.out
    called = call("warc", "salvage", "--skip-damaged", "--store", store_url)
    assert called.code == 4
    assert called.err == "scrapy-dedupe warc salvage: 1 file is damaged; the whole records were copied.\n"
    assert (
        f"{final}: 4 records were copied, 1 damaged place with {length:,} bytes and at least 1 record left out. The"
        f" damaged file is kept as {final}.damaged." in called.out
    )
    assert f"  offset {offset}: " in called.out
    assert (final.with_name(f"{final.name}.damaged")).read_bytes() == before
    info = crawl_named(index, "third")
    assert (info.incomplete, info.counts.total_urls) == (False, 2)
    assert call("commit", "third", "--store", store_url).code == 0
    assert call("check", "third", "--store", store_url).code == 0
    assert call("warc", "salvage", "--skip-damaged", "--store", store_url).code == 0


def test_a_crawl_whose_files_are_on_another_machine_is_left_as_it_is(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    finished(folder, "first")
    index.start("third")
    index.add_file("third", str(folder / "third.warc.gz"))
    entry = Original("cd" * 32, "third", "20260801120000123", "https://example.com/", 1234)
    index.add("third", [entry], Counts(1, 0, 0, 0))
    index.mark_incomplete("third", True)
    before = crawl_named(index, "third")
    assert call("warc", "salvage", "--store", store_url).out == "There are no unfinished WARC files.\n"
    assert crawl_named(index, "third") == before
    assert [original.digest for original in index.records("third")] == ["cd" * 32]


def test_commit_enters_a_file_that_the_index_does_not_name(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    """The index did not answer while the crawl was running, nor when its file was salvaged."""
    finished(folder, "third")
    index.start("third")
    called = call("commit", "third", "--store", store_url)
    assert (called.code, crawl_named(index, "third").counts.total_urls) == (0, 3)
    assert call("check", "third", "--store", store_url).code == 0


def test_skip_damaged_as_json(call: Callable[..., Any], store_url: str, folder: Path) -> None:
    path_open = cut(folder, by=7)
    offset, length = damage(path_open, 1)
    called = call("warc", "salvage", "--skip-damaged", "--store", store_url, "--json")
    assert called.code == 4
    (file,) = called.json["files"]
    final = str(path_open).removesuffix(".open")
    assert (file["file"], file["state"], file["kept_as"]) == (final, "copied", f"{final}.damaged")
    assert (file["records"], file["skipped_bytes"], file["skipped_records"]) == (4, length, 1)
    ((place),) = file["damages"]
    assert (place["offset"], place["length"]) == (offset, length)
    assert file["cut_bytes"] > 0


def test_skip_damaged_writes_a_warcinfo_that_names_the_crawl(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path_open = cut(folder)
    index.add_file("second", str(path_open).removesuffix(".open"))
    index.mark_incomplete("second", True)
    damage(path_open, 0)
    called = call("warc", "salvage", "--skip-damaged", "--store", store_url)
    assert "The crawl second: its entries were read again from its files." in called.out
    first = next(read_records(path_open.with_name(path_open.name.removesuffix(".open"))))
    assert (first.info()["ispartof"], first.info()["dedupe-payload"]) == ("second", "stored")
    assert crawl_named(index, "second").counts.total_urls == 3


def test_a_revisit_of_a_record_that_was_skipped_is_named_by_check(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path_open = cut(folder, "third")
    index.start("third", concurrent=True)
    index.add_file("third", str(path_open).removesuffix(".open"))
    index.mark_incomplete("third", True)
    original = list(read_records(path_open, on_damage=lambda damage: None))[1]
    digest = original.payload_digest
    assert digest is not None
    assert original.date is not None
    captured = Capture(
        "http://example.org/again", "GET", 200, datetime.now(UTC), (), b"", HTML, original.payload()
    )
    revisit = records.revisit(
        captured,
        digest=digest.value,
        refers_to=original.id,
        refers_to_uri=str(original.target_uri),
        refers_to_date=original.date,
        warcinfo_id=None,
    )
    request = records.request(captured, concurrent_to=revisit.id)
    with WarcWriter(folder, "other", info={"isPartOf": "fourth"}) as out:
        out.write([revisit, request])
    damage(path_open, 1)
    call("warc", "salvage", "--skip-damaged", "--store", store_url)
    for crawl in ("third", "fourth"):
        assert call("commit", crawl, "--store", store_url).code == 0
    called = call("check", "fourth", "--store", store_url, "--json")
    found = [*called.json["findings"], *called.json["notes"]]
    assert any("fourth" in str(told) and "original" in str(told) for told in found), found


def test_entries_of_a_committed_crawl_follow_its_copied_file(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    path = finished(folder, "third")
    index.start("third")
    index.mark_incomplete("third", True)
    assert call("commit", "third", "--store", store_url).code == 0
    path_open = path.with_name(f"{path.name}.open")
    path.rename(path_open)
    damage(path_open, 1)
    called = call("warc", "salvage", "--skip-damaged", "--store", store_url)
    assert called.code == 4
    assert "The crawl third: it is committed; its entries were read again from its files." in called.out
    assert crawl_named(index, "third").counts.total_urls == 2
    assert call("check", "third", "--store", store_url).code == 0


@pytest.mark.parametrize("trial", [[], ["--dry-run"]])
def test_salvage_overwrites_no_file(
    call: Callable[..., Any], store_url: str, folder: Path, trial: list[str]
) -> None:
    path = finished(folder)
    path_open = path.with_name(f"{path.name}.open")
    path_open.write_bytes(path.read_bytes()[:-5])
    before = path.read_bytes()
    called = call("warc", "salvage", "--store", store_url, *trial)
    assert called.code == 4
    assert "already exists" in called.out
    assert path.read_bytes() == before
    assert before[:-5].startswith(path_open.read_bytes()), "at most the broken end is cut"
    kept = [record.id for record in read_records(path_open, on_damage=lambda damage: None)]
    assert kept == [record.id for record in read_records(path)][:-1]


def test_the_files_of_a_running_crawl_are_named_and_left_alone(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    from_before = cut(folder, prefix="before")
    other = cut(folder, "first", prefix="other")
    before = crawl_named(index, "second")
    with WarcWriter(folder, "now", info={"isPartOf": "second"}) as out:
        out.write(exchange(9))
        running = next(folder.glob("now-*.open"))
        called = call("warc", "salvage", "--store", store_url)
        assert (called.code, called.err) == (0, "")
        assert f"{running}: skipped, the crawl second is running." in called.out
        assert f"{from_before}: skipped, the crawl second is running." in called.out
        assert from_before.exists()
        assert not other.exists()
        assert crawl_named(index, "second") == before
    assert len(list(read_records(running.with_name(running.name.removesuffix(".open"))))) == 3


def test_an_empty_file_is_removed_and_its_crawl_read_anew(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    whole = finished(folder, count=2)
    empty = folder / "pre-20260801120000123-00001-host.warc.gz.open"
    empty.write_bytes(b"")
    index.add_file("second", str(empty).removesuffix(".open"))
    index.mark_incomplete("second", True)
    called = call("warc", "salvage", "--store", store_url)
    assert called.code == 0
    assert f"{empty}: removed, since its 0 bytes contain no complete record." in called.out
    assert not empty.exists()
    assert whole.exists()
    info = crawl_named(index, "second")
    assert (info.counts.total_urls, info.incomplete) == (2, False)


def test_a_committed_crawl_is_not_read_anew(
    call: Callable[..., Any], store_url: str, folder: Path, index: CrawlIndex
) -> None:
    cut(folder, "first")
    before = crawl_named(index, "first")
    called = call("warc", "salvage", "--store", store_url)
    assert "The crawl first: it is committed; its entries were not changed." in called.out
    assert crawl_named(index, "first") == before


def test_salvage_takes_files_and_folders_and_leaves_what_is_no_warc_file(
    call: Callable[..., Any], store_url: str, tmp_path: Path
) -> None:
    one, two = cut(tmp_path / "one"), cut(tmp_path / "two", "stranger")
    other = cut(tmp_path / "one", prefix="other")
    (tmp_path / "two" / "notes.open").write_bytes(b"mine")
    called = call("warc", "salvage", str(one), str(tmp_path / "two"), "--store", store_url)
    assert called.code == 0
    assert (one.exists(), two.exists(), other.exists()) == (False, False, True)
    assert (tmp_path / "two" / "notes.open").read_bytes() == b"mine"
    assert "The crawl stranger: it is not in the index" in called.out
    missing = call("warc", "salvage", str(tmp_path / "three"), "--store", store_url)
    assert (missing.code, missing.out) == (3, "")
    assert f"{tmp_path / 'three'} cannot be read" in missing.err


def test_without_an_index_the_files_are_mended_all_the_same(call: Callable[..., Any], folder: Path) -> None:
    path = cut(folder)
    called = call("warc", "salvage")
    assert (called.code, called.err) == (0, "")
    assert not path.exists()
    assert not (folder.parent / ".scrapy").exists(), "nothing is made by looking"


def test_an_index_that_does_not_answer_is_told_and_the_files_are_mended(
    call: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    path = cut(folder)
    called = call("warc", "salvage", "--store", f"sqlite:///{tmp_path / 'gone.sqlite'}")
    assert called.code == 4
    assert "the index was not updated" in called.err
    assert not path.exists()


READ_ONLY = """
import os, sys
from scrapy_dedupe.commands.console import main
os.chdir(sys.argv[1])
main(["warc", "salvage", sys.argv[1]])  # loads what somebody without privileges may not read
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(65534)
sys.exit(main(["warc", "salvage", sys.argv[2]]))
"""


def test_a_folder_that_cannot_be_written_is_told_and_left() -> None:
    # In a process without privileges, since nothing is forbidden to root, and in a folder that everybody can reach.
    with tempfile.TemporaryDirectory() as name:
        top, folder = Path(name), Path(name) / "read_only"
        path = cut(folder)
        before = path.read_bytes()
        top.chmod(0o755)
        path.chmod(0o444)
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, name, str(folder)],
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 4, done.stderr
        assert f"{path}: NOT repaired. {path} cannot be salvaged: Permission denied." in done.stdout
        assert done.stderr.endswith("salvage: 1 file could not be repaired.\n")
        assert path.read_bytes() == before
        folder.chmod(0o755)


def test_salvage_makes_the_folder_of_a_killed_crawl_whole(
    call: Callable[..., Any], web: WebServer, settings: dict[str, Any], tmp_path: Path
) -> None:
    hold = Hold(web, 20)
    links = "".join(f'<a href="/{number}">x</a>' for number in range(1, 40))
    web.page("/0", f"<title>Home</title>{links}" + "<p>Every bed has a number." * 60)
    for number in range(1, 40):
        web.page(f"/{number}", f"<title>{number}</title>" + "<p>Herbs grow here." * (100 + number % 7))
    settings |= {
        "ADDONS": {"scrapy_dedupe.Addon": 500},
        "DEDUPE_CRAWL_ID": "killed",
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
    }
    process = start_crawl(settings, web.url("/0"))
    folder, store_url = tmp_path / "warcs", settings["DEDUPE_STORE_URL"]
    is_half_way = hold.is_reached(process)
    if is_half_way:
        wait_until(lambda: sum(path.stat().st_size for path in folder.glob("*.open")))
    process.kill()
    _, log = process.communicate()
    hold.end()
    assert is_half_way, log
    result = call("warc", "salvage", str(folder), "--store", store_url, "--json").json
    assert [file["state"] for file in result["files"]] == ["mended"]
    assert result["crawls"] == [{"id": "killed", "state": "uncommitted", "rebuilt": True}]
    assert not list(folder.glob("*.open"))
    check(folder)
    principals = [record for record in records_of(folder) if record.type in {"response", "revisit"}]
    with open_index(store_url) as index:
        info = crawl_named(index, "killed")
        assert (info.counts.total_urls, info.incomplete) == (len(principals), False)
        for record in principals:
            (entry,) = index.find("killed", [record.headers["WARC-Payload-Digest"]])
            assert entry is not None or len(record.payload) < 1_024
    assert call("commit", "killed", "--store", store_url, "--warc-dir", str(folder)).code == 0


# upload


@pytest.fixture
def away(tmp_path: Path) -> Path:
    pytest.importorskip("fsspec")
    folder = tmp_path / "away"
    folder.mkdir()
    return folder


@pytest.fixture
def committed(folder: Path, index: CrawlIndex) -> Path:
    """The one file of the crawl `third`, which is committed."""
    path = finished(folder, "third")
    index.start("third")
    rebuild(index, "third", folder, RevisitRules())
    index.commit("third")
    return path


def digest_of(path: Path) -> str:
    return next(
        record.payload_digest.value
        for record in read_records(path)
        if record.type == "response" and record.payload_digest is not None
    )


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_upload_moves_the_files_and_tells_the_index(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, index: CrawlIndex, kind: str
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    body, digest = committed.read_bytes(), digest_of(committed)
    url = str(away) if kind == "local" else f"memory://{away.parent.name}"
    called = call("warc", "upload", url, "--store", store_url)
    location = f"{url}/{committed.name}"
    assert (called.code, called.out, called.err) == (0, f"{committed}: moved to {location}\n", "")
    assert not committed.exists()
    moved = (away / committed.name).read_bytes() if kind == "local" else MemoryFileSystem().cat_file(location)
    assert moved == body
    assert crawl_named(index, "third").files == (location,)
    (entry,) = index.find("other", [digest])
    assert entry is not None
    assert entry.file == location
    assert (
        call("warc", "upload", url, "--store", store_url).out == "There are no finished WARC or WACZ files.\n"
    )


def test_upload_as_json_and_with_keep(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, index: CrawlIndex
) -> None:
    result = call("warc", "upload", str(away), "--keep", "--store", store_url, "--json").json
    copy = {
        "file": str(committed),
        "state": "copied",
        "crawl": "third",
        "location": str(away / committed.name),
    }
    assert result == {"storage": str(away), "files": [{**copy, "reason": None}]}
    assert (away / committed.name).read_bytes() == committed.read_bytes()
    assert crawl_named(index, "third").files == (str(committed),), "the local files are the nearer ones"
    result = call("warc", "upload", str(away), "--store", store_url, "--json").json
    assert [file["state"] for file in result["files"]] == ["moved"], "and can be moved later"


def test_files_of_crawls_that_run_or_are_not_committed_stay(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, folder: Path
) -> None:
    uncommitted = finished(folder, "second", prefix="b")
    rotated = finished(folder, "unknown", prefix="c")
    with WarcWriter(folder, "now", info={"isPartOf": "unknown"}) as out:
        out.write(exchange(9))
        called = call("warc", "upload", str(away), "--store", store_url)
        assert (called.code, called.err) == (0, "")
        assert f"{uncommitted}: skipped. The crawl second is running or not committed" in called.out
        assert f"{rotated}: skipped. The crawl unknown is running." in called.out
        named = call("warc", "upload", str(away), str(rotated), "--store", store_url)
        assert named.code == 4
        assert named.err == "scrapy-dedupe warc upload: 1 file could not be moved.\n"
    assert sorted(away.iterdir()) == [away / committed.name]
    assert uncommitted.exists()
    assert rotated.exists()


def test_files_of_crawls_that_no_index_knows_are_moved(
    call: Callable[..., Any], away: Path, folder: Path
) -> None:
    path = finished(folder, "any")
    assert call("warc", "upload", str(away)).code == 0
    assert (away / path.name).exists()
    assert not path.exists()


def test_a_file_whose_name_is_taken_stays_and_the_others_are_moved(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, folder: Path, index: CrawlIndex
) -> None:
    other = finished(folder, "any", prefix="zz")
    (away / committed.name).write_bytes(b"other")
    called = call("warc", "upload", str(away), "--store", store_url)
    assert called.code == 4
    assert "already has another file named" in called.out
    assert committed.exists()
    assert (away / committed.name).read_bytes() == b"other"
    assert crawl_named(index, "third").files == (str(committed),)
    assert not other.exists()


def test_a_wacz_is_moved_with_its_manifest_and_the_files_that_it_holds_are_found(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, tmp_path: Path, index: CrawlIndex
) -> None:
    wacz = tmp_path / "elsewhere" / "wacz" / "third.wacz"
    wacz.parent.mkdir()
    wacz.write_bytes(b"PK")
    wacz.with_name("third.multi-wacz.json").write_text("{}")
    wacz.with_name("second.wacz").write_bytes(b"PK")
    index.rename_file("third", str(committed), f"{wacz}/archive/{committed.name}")
    committed.unlink()
    called = call("warc", "upload", str(away), "--store", store_url)
    assert called.code == 0
    assert sorted(path.name for path in away.iterdir()) == ["third.multi-wacz.json", "third.wacz"]
    assert [path.name for path in wacz.parent.iterdir()] == ["second.wacz"], "that crawl is not committed"
    assert crawl_named(index, "third").files == (f"{away}/third.wacz/archive/{committed.name}",)


def test_a_storage_that_cannot_be_used_stops_the_upload(
    call: Callable[..., Any], store_url: str, committed: Path, tmp_path: Path
) -> None:
    called = call("warc", "upload", str(tmp_path / "missing"), "--store", store_url)
    assert (called.code, called.out) == (3, "")
    assert "the folder does not exist" in called.err
    refused = call("warc", "upload", "http://example.com/", "--store", store_url)
    assert refused.code == 2
    assert committed.exists()


def test_other_files_are_not_uploaded(
    call: Callable[..., Any], store_url: str, committed: Path, away: Path, folder: Path
) -> None:
    notes, unfinished = folder / "notes.txt", cut(folder, "any", prefix="cut")
    notes.write_text("mine")
    assert call("warc", "upload", str(away), "--store", store_url).code == 0
    for path in (notes, unfinished):
        called = call("warc", "upload", str(away), str(path), "--store", store_url)
        assert called.code == 4
        assert "does not have the name of a finished WARC or WACZ file" in called.out
        assert path.exists()
    assert [path.name for path in away.iterdir()] == [committed.name]
