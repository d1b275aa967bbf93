"""Archives written again: what becomes a revisit, what is mended, what stays, and how the work goes on."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from offline.planted import Planting, record_id, text
from offline.reads import bytes_read, needs_counts

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline import rewriting
from scrapy_dedupe.offline.eligibility import Eligibility
from scrapy_dedupe.offline.file_rewriting import RecordParts
from scrapy_dedupe.offline.manifest import ManifestLine
from scrapy_dedupe.offline.places import Places
from scrapy_dedupe.offline.revisits import revisit_id
from scrapy_dedupe.offline.rewriting import RewriteOptions, Rewritten, rewrite
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_dedupe.warc.reading import StoredRecord

SITE = "http://site.example"
PAGE = text("page", 4_000)


def manifest(folder: Path) -> list[ManifestLine]:
    """A numbered manifest of the files in a folder, by their paths below it."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for record in read_records(path, on_damage=lambda _: None):
            if record.type == "response" and record.length:
                digest = f"sha256:{hashlib.sha256(record.payload()).hexdigest()}"
                name = path.relative_to(folder).as_posix()
                uri, date = record.target_uri or "", record.date or ""
                lines.append(ManifestLine(name, record.offset, record.length, uri, date, digest, 1, 1))
    lines.sort(key=lambda line: (line.digest, line.date, line.file, line.offset))
    numbered = []
    for _, cluster in groupby(lines, key=lambda line: line.digest):
        first, *copies = cluster
        numbered.append(first)
        for number, line in enumerate(copies, 2):
            numbered.append(line._replace(copy=number, refers_to_uri=first.uri, refers_to_date=first.date))
    return numbered


def run(folder: Path, output: Path, *, lines: list[ManifestLine] | None = None, **options: Any) -> Rewritten:
    files = options.pop("files", None)
    originals = options.pop("originals", ())
    lines = manifest(folder) if lines is None else lines
    return rewrite(
        lines,
        files,
        Places([str(folder)]),
        output,
        RewriteOptions(**options),
        originals=originals,
    )


def records(path: Path) -> dict[str, StoredRecord]:
    return {record.id or str(record.offset): record for record in read_records(path)}


def rid(label: str) -> str:
    return record_id(label).decode()


def new_id(label: str) -> str:
    return revisit_id(record_id(label)).decode()


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """A page in one file, two copies of it in another, and a page of its own."""
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.file("b.warc.gz")
    planting.exchange("b.warc.gz", "second", f"{SITE}/2", PAGE)
    planting.exchange("b.warc.gz", "alone", f"{SITE}/3", text("other", 3_000))
    planting.exchange("b.warc.gz", "third", f"{SITE}/1", PAGE, order="request response")
    planting.write(tmp_path / "in")
    return tmp_path / "in"


def test_copies_become_revisits_and_their_requests_follow(two_files: Path, tmp_path: Path) -> None:
    report = run(two_files, tmp_path / "out")

    found = records(tmp_path / "out" / "b.warc.gz")
    assert (report.converted, report.repointed, report.left) == (2, 2, {})
    assert report.verification is not None
    assert report.verification.is_right
    assert [record.type for record in found.values()] == [
        "revisit",
        "request",
        "response",
        "request",
        "request",
        "revisit",
    ]
    for label in ("second", "third"):
        assert found[new_id(label)].refers_to == rid("first")
        assert found[new_id(label)].get("Former-WARC-Record-ID") == rid(label)
        assert found[rid(f"{label}?")].concurrent_to == new_id(label)
    assert found[rid("alone?")].concurrent_to == rid("alone")
    assert (tmp_path / "out" / "a.warc.gz").read_bytes() == (two_files / "a.warc.gz").read_bytes()
    assert not (tmp_path / "out" / ".dedupe").exists()


def test_the_same_file_under_two_names_dangles_nowhere(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "page", f"{SITE}/1", PAGE)
    planting.other(
        "a.warc.gz", "note", "metadata", f"{SITE}/1", b"x", fields=((b"WARC-Refers-To", record_id("page")),)
    )
    planting.write(tmp_path / "in")
    (tmp_path / "in" / "b.warc.gz").write_bytes((tmp_path / "in" / "a.warc.gz").read_bytes())

    run(tmp_path / "in", tmp_path / "out")

    assert (tmp_path / "out" / "a.warc.gz").read_bytes() == (tmp_path / "in" / "a.warc.gz").read_bytes()
    twin = records(tmp_path / "out" / "b.warc.gz")
    assert twin[new_id("page")].refers_to == rid("page") != twin[new_id("page")].id
    assert twin[rid("page?")].concurrent_to == new_id("page")
    assert twin[rid("note")].refers_to == rid("page")


def test_a_file_twice_in_itself_keeps_what_can_mean_either(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc")
    planting.file("a.warc", "plain")
    planting.exchange("a.warc", "page", f"{SITE}/1", PAGE)
    planting.write(tmp_path / "in")
    path = tmp_path / "in" / "a.warc"
    path.write_bytes(path.read_bytes() * 2)

    report = run(tmp_path / "in", tmp_path / "out")

    ids = [(record.type, record.concurrent_to) for record in read_records(tmp_path / "out" / "a.warc")]
    assert (report.converted, report.repointed) == (1, 0)
    assert ids == [("response", None), ("request", rid("page")), ("revisit", None), ("request", rid("page"))]


def test_what_may_not_become_a_revisit_is_counted_by_reason(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "post", f"{SITE}/2", PAGE, method="POST")
    planting.exchange("a.warc.gz", "named", f"{SITE}/3", PAGE, method="POST", link="response names request")
    planting.exchange("a.warc.gz", "status", f"{SITE}/4", PAGE, status=404)
    planting.exchange("a.warc.gz", "cut", f"{SITE}/5", PAGE, truncated="length")
    planting.exchange("a.warc.gz", "nameless", f"{SITE}/6", PAGE, has_id=False)
    planting.exchange("a.warc.gz", "odd", f"{SITE}/7", PAGE, extra=((b"WARC-Profile", b"x"),))
    planting.exchange("a.warc.gz", "little", f"{SITE}/8", b"little")
    planting.exchange("a.warc.gz", "little-again", f"{SITE}/9", b"little")
    planting.exchange("a.warc.gz", "gone", f"{SITE}/10", text("gone", 2_000), status=404)
    planting.exchange("a.warc.gz", "of-gone", f"{SITE}/11", text("gone", 2_000))
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert report.converted == 0
    assert report.left == {
        "method": 2, "fields": 1, "no-id": 1, "original": 1, "small": 1, "status": 1, "truncated": 1
    }  # fmt: skip
    assert (tmp_path / "out" / "a.warc.gz").read_bytes() == (tmp_path / "in" / "a.warc.gz").read_bytes()


def test_a_revisit_that_would_be_larger_than_its_record_is_not_written(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", b"x" * 1_500)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", b"x" * 1_500)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.left) == (0, {"no-gain": 1})


def test_without_a_least_size_it_is_told_what_would_gain_nothing_and_what_is_empty(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for name, body in (("little", b"little"), ("empty", b""), ("page", PAGE)):
        planting.exchange("a.warc.gz", name, f"{SITE}/{name}", body)
        planting.exchange("a.warc.gz", f"{name}-copy", f"{SITE}/{name}-copy", body)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out", eligibility=Eligibility(min_size=0))

    assert (report.converted, report.left) == (1, {"empty": 1, "no-gain": 1})
    assert "small" not in report.left


def test_a_dry_run_decides_as_the_run_does(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for size in range(0, 6_000, 250):
        for name in ("first", "copy"):
            planting.exchange("a.warc.gz", f"{name}-{size}", f"{SITE}/{name}/{size}", text(str(size), size))
    planting.write(tmp_path / "in")
    eligibility = Eligibility(min_size=0)

    tried = run(tmp_path / "in", tmp_path / "out", eligibility=eligibility, dry_run=True)
    report = run(tmp_path / "in", tmp_path / "out", eligibility=eligibility)

    assert report.converted > 5
    assert (tried.converted, tried.left) == (report.converted, report.left)


def test_what_a_record_in_a_shared_member_names_stays(tmp_path: Path) -> None:
    import gzip

    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, order="response")
    planting.write(tmp_path / "in")
    one = Planting()
    one.file("b.warc.gz", "plain")
    for label in ("one", "two"):
        one.other(
            "b.warc.gz",
            label,
            "metadata",
            f"{SITE}/2",
            b"x",
            fields=((b"WARC-Concurrent-To", record_id("copy")),),
        )
    (tmp_path / "in" / "b.warc.gz").write_bytes(gzip.compress(one.files["b.warc.gz"].to_bytes()))

    report = run(tmp_path / "in", tmp_path / "out", files=["a.warc.gz", "b.warc.gz"])

    assert (report.converted, report.left) == (0, {"shared": 1})


def test_originals_may_lie_in_an_archive_that_is_not_written_again(two_files: Path, tmp_path: Path) -> None:
    lines = manifest(two_files)
    new = [line for line in lines if line.file == "b.warc.gz"]
    old = [line for line in lines if line.file == "a.warc.gz"]

    with pytest.raises(DamagedInput, match=r"in none of the manifests.*--originals"):
        run(two_files, tmp_path / "out", lines=new)
    report = run(two_files, tmp_path / "out", lines=new, originals=old)

    assert report.converted == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.warc.gz"]


def test_in_place_only_files_that_change_are_replaced(two_files: Path, tmp_path: Path) -> None:
    untouched = (two_files / "a.warc.gz").stat()
    (two_files / "b.warc.gz").chmod(0o640)

    run(two_files, tmp_path / "work", in_place=True)

    assert {new_id("second"), new_id("third")} <= records(two_files / "b.warc.gz").keys()
    assert (two_files / "b.warc.gz").stat().st_mode & 0o777 == 0o640
    assert (two_files / "a.warc.gz").stat().st_ino == untouched.st_ino
    assert not (tmp_path / "work").exists()


def test_in_place_a_file_with_two_names_is_refused(two_files: Path, tmp_path: Path) -> None:
    (two_files / "c.warc.gz").symlink_to("b.warc.gz")

    with pytest.raises(ArchiveError, match="has two names"):
        run(two_files, tmp_path / "work", in_place=True)


def test_what_verification_finds_keeps_all_files_from_their_names(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = rewriting.rewrite_file

    def spoil(task: Any, *others: Any) -> Any:
        renewal = renewed(task, *others)
        data = bytearray(task.target.read_bytes())
        data[len(data) // 2] ^= 1
        task.target.write_bytes(data)
        return renewal

    monkeypatch.setattr(rewriting, "rewrite_file", spoil)
    report = run(two_files, tmp_path / "out", keep_going=True)

    assert report.kept_in is not None
    assert report.verification is not None
    assert not report.verification.is_right
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".dedupe"]


def test_work_that_was_cut_goes_on_and_is_not_done_twice(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "verify", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_files, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "rewrite_file", cut)
        patch.setattr(rewriting, "make_rows", cut)
        report = run(two_files, tmp_path / "out")

    assert report.converted == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.warc.gz", "b.warc.gz"]


@pytest.mark.parametrize(("step", "change"), [("make_rows", "size"), ("rewrite_file", "time")])
def test_an_input_that_changes_meanwhile_is_refused_by_name(
    two_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    change: str,
) -> None:
    path = two_files / "b.warc.gz"
    before = {file.name: file.read_bytes() for file in two_files.iterdir()}
    done = getattr(rewriting, step)

    def meanwhile(task: Any, *others: Any) -> Any:
        result = done(task, *others)
        if change == "size":
            path.write_bytes(before["b.warc.gz"] + before["a.warc.gz"])
        else:
            os.utime(path, ns=(0, 0))
        return result

    monkeypatch.setattr(rewriting, step, meanwhile)
    with pytest.raises(ArchiveError, match=r"b\.warc\.gz has changed since this work began"):
        run(two_files, tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == [".dedupe"]


def test_in_place_a_file_that_changed_after_the_verification_is_not_replaced(
    two_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_files / "b.warc.gz"
    done = rewriting.verify

    def meanwhile(*args: Any, **options: Any) -> Any:
        result = done(*args, **options)
        path.write_bytes(b"another file")
        return result

    monkeypatch.setattr(rewriting, "verify", meanwhile)
    with pytest.raises(ArchiveError, match=r"b\.warc\.gz has changed since this work began"):
        run(two_files, two_files, in_place=True)
    assert path.read_bytes() == b"another file"


def test_work_that_was_cut_does_not_go_on_with_a_file_that_changed(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "verify", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_files, tmp_path / "out")
    os.utime(two_files / "a.warc.gz", ns=(0, 0))
    with pytest.raises(ArchiveError, match=r"a\.warc\.gz has changed since this work began"):
        run(two_files, tmp_path / "out")


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_the_files_that_are_read_are_not_touched(two_files: Path, tmp_path: Path, is_dry_run: bool) -> None:
    def state() -> dict[str, tuple[bytes, int, int]]:
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
            for path in two_files.iterdir()
        }

    before = state()
    for path in two_files.iterdir():
        path.chmod(0o444)
    assert run(two_files, tmp_path / "out", dry_run=is_dry_run).converted == 2
    assert state() == before


def test_a_folder_of_unfinished_work_with_other_files_is_refused(two_files: Path, tmp_path: Path) -> None:
    notes = tmp_path / "out" / ".dedupe" / "warcrefs" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("of another program\n")
    with pytest.raises(
        ArchiveError, match=r"warcrefs has other files, such as notes\.txt, which would be removed"
    ):
        run(two_files, tmp_path / "out")
    assert notes.exists()


def test_other_work_in_the_folder_is_not_gone_on_with(
    two_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "verify", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_files, tmp_path / "out")

    with pytest.raises(ArchiveError, match="holds other unfinished work"):
        run(two_files, tmp_path / "out", eligibility=Eligibility(min_size=1))
    with pytest.raises(ArchiveError, match="holds other unfinished work"):
        run(two_files, tmp_path / "out", lines=manifest(two_files)[:1])


def test_files_that_are_there_are_not_replaced_unless_asked(two_files: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.warc.gz").write_bytes(b"mine")

    with pytest.raises(ArchiveError, match="--force"):
        run(two_files, out)
    assert sorted(path.name for path in out.iterdir()) == ["b.warc.gz"]
    with pytest.raises(ArchiveError, match="one of the files to be read"):
        run(two_files, two_files, force=True)
    run(two_files, out, force=True)
    assert records(out / "b.warc.gz")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"length": 9}, "bytes, but 9 in the manifest"),
        ({"digest": "sha256:" + "00" * 32}, "the digest of the payload differs"),
    ],
)
def test_a_manifest_of_other_files_converts_nothing(
    two_files: Path, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    lines = [
        line._replace(**change) if line.copy == 2 or "digest" in change else line
        for line in manifest(two_files)
    ]
    lines = [line for line in lines if line.uri != f"{SITE}/3"]

    with pytest.raises(DamagedInput, match=reason):
        run(two_files, tmp_path / "out", lines=lines)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".dedupe"]
    report = run(two_files, tmp_path / "other", lines=lines, keep_going=True)
    assert report.faults_count
    assert report.left["damaged"]


def test_manifests_without_numbers_or_of_decoded_payloads_are_refused(
    two_files: Path, tmp_path: Path
) -> None:
    lines = manifest(two_files)

    with pytest.raises(UsageError, match="warcsumproc"):
        run(two_files, tmp_path / "out", lines=[lines[0]._replace(copy=None)])
    with pytest.raises(UsageError, match="without --decoded"):
        run(
            two_files,
            tmp_path / "out",
            lines=[lines[0]._replace(digest="decoded-" + lines[0].digest)],
        )
    assert not (tmp_path / "out").exists()


@needs_counts
def test_of_copies_only_the_heads_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for number in range(20):
        planting.exchange("a.warc.gz", f"{number}", f"{SITE}/{number}", random.Random(1).randbytes(50_000))
    planting.write(tmp_path / "in")
    rewrite_file, read = rewriting.rewrite_file, []

    def counted(*args: Any) -> Any:
        before = bytes_read()
        done = rewrite_file(*args)
        read.append(bytes_read() - before)
        return done

    monkeypatch.setattr(rewriting, "rewrite_file", counted)
    report = run(tmp_path / "in", tmp_path / "out")

    assert report.converted == 19
    # The original is copied; its copies are 18 parts of 20.
    # Opening the file reads one buffer.
    assert report.new_bytes < read[0] < report.old_bytes / 8 + io.DEFAULT_BUFFER_SIZE


def test_a_manifest_without_copies_gives_all_files(two_files: Path, tmp_path: Path) -> None:
    lines = [line for line in manifest(two_files) if not line.is_copy]

    report = run(two_files, tmp_path / "out", lines=lines, files=["a.warc.gz", "b.warc.gz"])

    assert (report.converted, report.files) == (0, 2)
    assert (tmp_path / "out" / "b.warc.gz").read_bytes() == (two_files / "b.warc.gz").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE)
    planting.write(tmp_path / "in")
    name = os.fsdecode(b"\xff.warc.gz")
    data = (tmp_path / "in" / "a.warc.gz").read_bytes()
    (tmp_path / "in" / name).write_bytes(data + b"garbage")
    (tmp_path / "in" / "a.warc.gz").unlink()

    report = run(tmp_path / "in", tmp_path / "out", keep_going=True)

    assert (report.converted, report.repointed) == (1, 1)
    assert [fault.place for fault in report.faults] == [f"{tmp_path / 'in' / name}, offset {len(data)}"]
    assert [path.name for path in (tmp_path / "out").glob("*.gz")] == [name]


def test_a_record_whose_gzip_member_does_not_end_is_damaged(tmp_path: Path) -> None:
    block = b"text"
    head = b"WARC/1.0\r\nWARC-Type: metadata\r\nContent-Length: 4\r\n\r\n"
    member = gzip.compress(head + block + b"\r\n\r\n")
    path = tmp_path / "a.warc.gz"
    for cut in (0, 1, 8):  # without the checksum
        path.write_bytes(member[: len(member) - cut])
        with path.open("rb") as stream:
            parts = RecordParts(path, stream, is_gzip=True)
            if cut:
                with pytest.raises(DamagedInput, match="the file ends inside a gzip member"):
                    parts.record(0, len(member) - cut)
            else:
                assert parts.record(0, len(member))[1] == block
