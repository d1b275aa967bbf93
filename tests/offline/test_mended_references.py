"""References of records that say different things of what they mean, and files that are shared or changed meanwhile."""

from __future__ import annotations

import dataclasses
import gzip
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from offline.outputs import snapshot
from offline.planted import Planting, Record, digest, record_id, text
from offline.test_rewriting import PAGE, SITE, manifest, new_id, records, rid, run

from scrapy_dedupe.errors import ArchiveError, DamagedInput, UsageError
from scrapy_dedupe.offline import final_names, rewriting
from scrapy_dedupe.offline.plan import read_slice, slice_folder
from scrapy_dedupe.offline.reference_changes import ReferenceChanges
from scrapy_dedupe.warc.raw_heads import RawHead, parsed_head
from scrapy_dedupe.warc.reading import read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapy_dedupe.verification.verifying import Verification


def edited(planting: Planting, file: str, label: str, change: Callable[[bytes, bytes], bytes | None]) -> None:
    """Change or drop fields of a planted record."""
    found = planting.files[file].records
    for index, record in enumerate(found):
        if record.label == label:
            fields = [(name, change(name, value)) for name, value in record.fields]
            kept = tuple((name, value) for name, value in fields if value is not None)
            found[index] = dataclasses.replace(record, fields=kept)


def without(name: bytes) -> Callable[[bytes, bytes], bytes | None]:
    return lambda field, value: None if field == name else value


@pytest.fixture
def mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Planting, Record], RawHead]:
    """What a mender in another file makes of the head of a record, when a planting is written again."""

    def head_of(planting: Planting, record: Record) -> RawHead:
        planting.write(tmp_path / "in")
        heads: list[RawHead] = []

        def look(*_: Any, **options: Any) -> Verification:
            plan = read_slice(slice_folder(options["work"].parent, 1))
            captures = [capture._replace(is_here=False) for capture in plan.captures]
            standing = [one._replace(is_here=False) for one in plan.standing]
            head = RawHead(record.version, record.fields)
            heads.append(ReferenceChanges(captures, standing).updated(head))
            raise KeyboardInterrupt

        monkeypatch.setattr(rewriting, "verify", look)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "in", tmp_path / "out")
        return heads[0]

    return head_of


@pytest.mark.parametrize(
    "date", [None, b"2020-01-01T01:00:00Z", b"2020-01-02T01:00:00Z"], ids=["none", "second", "wrong"]
)
def test_a_revisit_without_the_right_date_is_pointed_to_the_original(
    mended: Callable[[Planting, Record], RawHead], date: bytes | None
) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, date="2020-01-01T01:00:00.123Z")
    planting.revisit("a.warc.gz", "old", f"{SITE}/3", copy, names=("uri", "date"))
    edited(
        planting, "a.warc.gz", "old", lambda name, value: date if name == b"WARC-Refers-To-Date" else value
    )

    head = mended(planting, planting.files["a.warc.gz"].records[-1])

    assert head.get(b"WARC-Refers-To") == record_id("first")
    assert head.get(b"WARC-Refers-To-Target-URI") == f"{SITE}/1".encode()


def test_a_revisit_takes_the_digest_text_of_its_original_whatever_its_profile(
    mended: Callable[[Planting, Record], RawHead],
) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    first = planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE, digest_form="sha256")
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE)
    planting.revisit("a.warc.gz", "old", f"{SITE}/2", copy)
    profile = b"http://netpreserve.org/warc/1.1/revisit/server-not-modified"
    edited(planting, "a.warc.gz", "old", lambda name, value: profile if name == b"WARC-Profile" else value)

    head = mended(planting, planting.files["a.warc.gz"].records[-1])

    assert head.get(b"WARC-Payload-Digest") == first.get(b"WARC-Payload-Digest")


def test_an_id_that_also_stands_on_another_page_means_that_one(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    lone = planting.exchange("a.warc.gz", "x", f"{SITE}/x", text("x", 4_000))
    planting.file("b.warc.gz")
    planting.exchange("b.warc.gz", "copy", f"{SITE}/2", PAGE)
    for label in ("copy", "copy?"):
        edited(
            planting, "b.warc.gz", label, lambda _, value: value.replace(record_id("copy"), record_id("x"))
        )
    planting.revisit("a.warc.gz", "old", f"{SITE}/3", lone)
    edited(planting, "a.warc.gz", "old", without(b"WARC-Payload-Digest"))
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    found = records(tmp_path / "out" / "a.warc.gz")
    assert report.converted == 1
    assert found[rid("x?")].concurrent_to == rid("x")
    assert (found[rid("old")].refers_to, found[rid("old")].refers_to_uri) == (rid("x"), f"{SITE}/x")
    assert records(tmp_path / "out" / "b.warc.gz")[rid("copy?")].concurrent_to == new_id("x")


def test_a_copy_that_a_revisit_in_a_shared_member_names_by_its_place_stays(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE)
    planting.file("b.warc.gz", "plain")
    for label in ("one", "two"):
        planting.revisit("b.warc.gz", label, f"{SITE}/{label}", copy, names=("uri", "date"))
    planting.write(tmp_path / "in")
    path = tmp_path / "in" / "b.warc.gz"
    path.write_bytes(gzip.compress(path.read_bytes()))

    report = run(tmp_path / "in", tmp_path / "out", files=["a.warc.gz", "b.warc.gz"])

    assert (report.converted, report.left) == (0, {"shared": 1})


def test_a_copy_stays_if_a_revisit_names_its_digest_in_an_unknown_form(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    form = ((b"WARC-Payload-Digest", b"xxh:0123456789abcdef"),)
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, digest_form=None, extra=form)
    planting.exchange("a.warc.gz", "again", f"{SITE}/3", PAGE)
    planting.revisit("a.warc.gz", "old", f"{SITE}/old", copy, names=())
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.left) == (1, {"shared": 1})


def test_a_copy_that_would_show_the_chunks_of_its_original_stays(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE, chunked=True)
    planting.exchange("a.warc.gz", "plain", f"{SITE}/2", PAGE)
    planting.exchange("a.warc.gz", "chunked", f"{SITE}/3", PAGE, chunked=True)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.left) == (1, {"chunks": 1})


def test_each_stored_form_has_its_own_original(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for label, chunked in (("C1", True), ("U1", False), ("C2", True), ("U2", False), ("U3", False)):
        planting.exchange("a.warc.gz", label, f"{SITE}/{label}", PAGE, chunked=chunked)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    # An original is no copy that was left.
    assert (report.converted, report.left) == (3, {})
    found = records(tmp_path / "out" / "a.warc.gz")
    assert found[new_id("C2")].refers_to == rid("C1")
    assert found[new_id("U2")].refers_to == found[new_id("U3")].refers_to == rid("U1")


def test_the_earliest_record_that_can_be_an_original_is_one(tmp_path: Path) -> None:
    unfit: dict[str, dict[str, Any]] = {
        "not found": {"status": 404},
        "post": {"method": "POST"},
        "moved": {"status": 301, "chunked": True},
    }
    planting = Planting()
    planting.file("a.warc.gz")
    for name, first in unfit.items():
        page = text(name, 4_000)
        planting.exchange("a.warc.gz", f"{name} 1", f"{SITE}/{name}/1", page, **first)
        planting.exchange("a.warc.gz", f"{name} 2", f"{SITE}/{name}/2", page)
        planting.exchange("a.warc.gz", f"{name} 3", f"{SITE}/{name}/3", page)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.left) == (3, {})
    found = records(tmp_path / "out" / "a.warc.gz")
    for name in unfit:
        assert found[new_id(f"{name} 3")].refers_to == rid(f"{name} 2"), name


def test_an_original_of_another_archive_need_not_be_the_first_of_its_payload(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "chunked", f"{SITE}/1", PAGE, chunked=True)
    planting.exchange("a.warc.gz", "whole", f"{SITE}/2", PAGE)
    planting.exchange("a.warc.gz", "later", f"{SITE}/3", PAGE)
    planting.file("b.warc.gz")
    planting.exchange("b.warc.gz", "copy", f"{SITE}/4", PAGE)
    planting.write(tmp_path / "in")
    lines = manifest(tmp_path / "in")
    old, new = ([line for line in lines if line.file == name] for name in ("a.warc.gz", "b.warc.gz"))

    report = run(tmp_path / "in", tmp_path / "out", lines=new, originals=old)

    assert (report.converted, report.left) == (1, {})
    assert records(tmp_path / "out" / "b.warc.gz")[new_id("copy")].refers_to == rid("whole")
    assert not (tmp_path / "out" / "a.warc.gz").exists()


def test_the_original_of_each_form_is_the_same_for_every_number_of_processes_and_order_of_files(
    tmp_path: Path,
) -> None:
    planting = Planting()
    for name in "abc":
        planting.file(f"{name}.warc.gz")
        for number, chunked in enumerate((True, False, True, False)):
            planting.exchange(
                f"{name}.warc.gz", f"{name}{number}", f"{SITE}/{name}{number}", PAGE, chunked=chunked
            )
    planting.write(tmp_path / "in")

    run(tmp_path / "in", tmp_path / "one")
    run(tmp_path / "in", tmp_path / "other", jobs=2, files=["c.warc.gz", "b.warc.gz", "a.warc.gz"])

    one, other = (
        [path.read_bytes() for path in sorted((tmp_path / name).glob("*.gz"))] for name in ("one", "other")
    )
    assert one == other


def test_an_uncompressed_file_stays_one_whatever_its_name(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz", "plain")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE)
    planting.write(tmp_path / "in")

    assert run(tmp_path / "in", tmp_path / "out").converted == 1
    assert (tmp_path / "out" / "a.warc.gz").read_bytes().count(b"WARC/1.1\r\n") == 4


def test_a_head_with_bare_line_ends_is_not_taken_for_one_line() -> None:
    head = b"WARC/1.0\nWARC-Type: response\n\nHTTP/1.1 200 OK\r\nX: y\r\n\r\n"
    assert parsed_head(head) is None


def folded(data: bytes) -> bytes:
    return data.replace(b"WARC-Target-URI: ", b"WARC-Target-URI:\r\n ", 1)


def with_bare_line_ends(data: bytes) -> bytes:
    head, end, rest = data.partition(b"\r\n\r\n")
    return (head + end).replace(b"\r\n", b"\n") + rest


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "line ends": with_bare_line_ends,
    "fold": folded,
    "blank": lambda data: data.replace(b"WARC-Record-ID: ", b"WARC-Record-ID:  ", 1),
    "zero": lambda data: data.replace(b"Content-Length: ", b"Content-Length: 0", 1),
    "many ends": lambda data: data[:-4] + b"\r\n" * 50,
    "short ends": lambda data: data[:-4] + b"\n\n",
    "no end": lambda data: data[:-4],
}


def test_what_could_not_be_had_back_byte_for_byte_is_left(tmp_path: Path) -> None:
    kept: dict[str, bytes] = {}
    (tmp_path / "in").mkdir()
    for kind, label, edit in product(("gzip", "plain"), ("copy", "copy?"), EDITS):
        name = f"{kind} {label.replace('?', ' request')} {edit}.warc"
        planting = Planting()
        planting.file(name, kind)
        for one in ("first", "copy", "other"):
            planting.exchange(name, f"{name} {one}", f"{SITE}/{name}/{one}", text(name, 4_000))
        data = {one.label: one.to_bytes() for one in planting.files[name].records}
        data[f"{name} {label}"] = EDITS[edit](data[f"{name} {label}"])
        members = {one: gzip.compress(plain) if kind == "gzip" else plain for one, plain in data.items()}
        (tmp_path / "in" / name).write_bytes(b"".join(members.values()))
        kept[name] = members[f"{name} {label}"]

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.repointed) == (28, 28)
    assert report.left == {"fields": 14, "shared": 14}
    for name, member in kept.items():
        assert member in (tmp_path / "out" / name).read_bytes(), name
        types = [one.type for one in read_records(tmp_path / "out" / name)]
        assert (types.count("response"), types.count("revisit")) == (2, 1), name


def test_a_copy_whose_request_has_a_former_value_of_another_making_is_left(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for name in ("first", "copy", "other"):
        planting.exchange("a.warc.gz", name, f"{SITE}/{name}", PAGE)
    found = planting.files["a.warc.gz"].records
    copy = next(one for one in found if dict(one.fields).get(b"WARC-Concurrent-To") == record_id("copy"))
    fields = (*copy.fields, (b"Former-WARC-Concurrent-To", b"<urn:uuid:planted>"))
    found[found.index(copy)] = dataclasses.replace(copy, fields=fields)
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    assert (report.converted, report.repointed, report.left) == (1, 1, {"shared": 1})
    assert records(tmp_path / "out" / "a.warc.gz")[rid("copy")].type == "response"


def test_behind_damage_in_an_uncompressed_file_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    faulty: dict[str, bytes] = {}
    for number, length in enumerate((b"", b"Content-Length: x\r\n", b"Content-Length: 4\r\n")):
        name = f"{number}.warc.gz"
        planting = Planting()
        planting.file(name, "plain")
        for one in ("first", "copy", "other"):
            planting.exchange(name, f"{number} {one}", f"{SITE}/{number}/{one}", text(name, 4_000))
        found = [one.to_bytes() for one in planting.files[name].records]
        before, inside = b"".join(found[:4]), b"".join(found[4:])
        faulty[name] = (
            b"WARC/1.1\r\nWARC-Type: resource\r\n" + length + b"\r\nsome text\r\n" + inside + b"\r\n\r\n"
        )
        (tmp_path / "in" / name).write_bytes(before + faulty[name])

    report = run(tmp_path / "in", tmp_path / "out", keep_going=True)

    assert (report.converted, report.repointed, report.left) == (3, 3, {"damaged": 3})
    for name, data in faulty.items():
        assert (tmp_path / "out" / name).read_bytes().endswith(data), name


def test_an_empty_digest_is_none(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    for label in ("first", "copy"):
        made = planting.exchange("a.warc.gz", label, f"{SITE}/{label}", PAGE)
        sha1 = made.get(b"WARC-Payload-Digest")
        edited(
            planting, "a.warc.gz", label, lambda name, value: b"" if name == b"WARC-Payload-Digest" else value
        )
    planting.write(tmp_path / "in")

    run(tmp_path / "in", tmp_path / "out", keep_going=True)

    found = next((tmp_path / "out").rglob("a.warc.gz"))
    assert sha1 is not None
    assert records(found)[new_id("copy")].get("WARC-Payload-Digest") == sha1.decode()


@pytest.fixture
def two_folders(tmp_path: Path) -> Path:
    planting = Planting()
    for name in ("one/a.warc.gz", "two/a.warc.gz"):
        planting.file(name)
        planting.exchange(name, name, f"{SITE}/{name}", PAGE)
    planting.write(tmp_path / "in")
    return tmp_path / "in"


def test_files_can_be_shared_among_machines(two_folders: Path, tmp_path: Path) -> None:
    run(two_folders, tmp_path / "all")
    for pattern in ("one/*", "two/a.warc.gz"):
        run(two_folders, tmp_path / "out", files=[pattern])
    assert sorted(snapshot(tmp_path / "out")) == ["one/a.warc.gz", "two/a.warc.gz"]
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "all")


def test_in_place_a_part_of_the_files_is_refused(two_folders: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="all files of the manifests: one/a"):
        run(two_folders, tmp_path / "work", files=["two/a.warc.gz"], in_place=True)


def test_a_file_is_no_copy_of_itself_by_a_link(two_folders: Path, tmp_path: Path) -> None:
    (two_folders / "two" / "a.warc.gz").unlink()
    (two_folders / "two" / "a.warc.gz").symlink_to("../one/a.warc.gz")
    with pytest.raises(ArchiveError, match="are the same file, by a link"):
        run(two_folders, tmp_path / "out", files=["two/a.warc.gz"])


def test_files_beside_those_of_the_manifest_are_named(two_folders: Path, tmp_path: Path) -> None:
    lines = manifest(two_folders)
    (two_folders / "two" / "more.warc.gz").write_bytes(b"")
    (two_folders / "two" / "notes.txt").write_bytes(b"")
    assert run(two_folders, tmp_path / "out", lines=lines).unlisted == ("two/more.warc.gz",)


@pytest.mark.parametrize("in_place", [True, False])
def test_work_that_was_verified_does_not_end_with_a_file_that_grew(
    two_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    lines, path = manifest(two_folders), two_folders / "two" / "a.warc.gz"

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_names, "replace" if in_place else "move", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_folders, tmp_path / "out", lines=lines, in_place=in_place)
    grown = path.read_bytes() * 2
    path.write_bytes(grown)

    with pytest.raises(ArchiveError, match="has changed since"):
        run(two_folders, tmp_path / "out", lines=lines, in_place=in_place)
    assert path.read_bytes() == grown


def test_work_that_was_verified_does_not_replace_what_came_meanwhile(
    two_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_names, "move", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_folders, tmp_path / "out")
    mine = tmp_path / "out" / "two" / "a.warc.gz"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")

    with pytest.raises(ArchiveError, match="--force"):
        run(two_folders, tmp_path / "out")
    assert mine.read_bytes() == b"mine"


def test_a_file_that_was_copied_over_just_before_a_kill_counts_as_replaced(
    two_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, path = manifest(two_folders), two_folders / "two" / "a.warc.gz"

    def cut(new: Path, old: Path) -> None:
        old.write_bytes(new.read_bytes())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(final_names, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            run(two_folders, tmp_path / "out", lines=lines, in_place=True)
    new = path.read_bytes()

    assert run(two_folders, tmp_path / "out", lines=lines, in_place=True).converted == 1
    assert path.read_bytes() == new
    assert not (tmp_path / "out" / ".dedupe").exists()
    with pytest.raises(DamagedInput, match="there is nothing left to do"):
        run(two_folders, tmp_path / "out", lines=lines, in_place=True)


def test_an_old_revisit_finds_a_copy_that_has_no_digest_by_its_sha1(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, digest_form=None)
    planting.revisit("a.warc.gz", "old", f"{SITE}/2", copy, names=())
    sha1 = digest("sha1", PAGE)
    old = next(record for record in planting.files["a.warc.gz"].records if record.label == "old")
    if old.get(b"WARC-Payload-Digest") is None:
        index = planting.files["a.warc.gz"].records.index(old)
        fields = (*old.fields, (b"WARC-Payload-Digest", sha1))
        planting.files["a.warc.gz"].records[index] = dataclasses.replace(old, fields=fields)
    edited(
        planting, "a.warc.gz", "old", lambda name, value: sha1 if name == b"WARC-Payload-Digest" else value
    )
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    found = records(tmp_path / "out" / "a.warc.gz")[rid("old")]
    assert (report.converted, report.kept_in) == (1, None)
    assert (found.refers_to, found.refers_to_uri) == (rid("first"), f"{SITE}/1")


@pytest.mark.parametrize("has_id", [True, False], ids=["with an id", "without an id"])
def test_a_date_to_the_second_means_the_capture_that_has_it_and_not_a_copy_with_milliseconds(
    tmp_path: Path, has_id: bool
) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, date="2020-01-01T01:00:00.123Z")
    lone = planting.exchange(
        "a.warc.gz", "lone", f"{SITE}/2", text("lone", 4_000), date="2020-01-01T01:00:00Z"
    )
    if not has_id:
        edited(planting, "a.warc.gz", "lone", without(b"WARC-Record-ID"))
        edited(planting, "a.warc.gz", "lone?", without(b"WARC-Concurrent-To"))
    old = planting.revisit("a.warc.gz", "old", f"{SITE}/3", lone, names=("uri", "date"))
    edited(planting, "a.warc.gz", "old", without(b"WARC-Payload-Digest"))
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    found = records(tmp_path / "out" / "a.warc.gz")[rid("old")]
    assert (report.converted, report.kept_in) == (1, None)
    assert (found.refers_to_uri, found.refers_to_date) == (f"{SITE}/2", "2020-01-01T01:00:00Z")
    assert old.get(b"WARC-Payload-Digest") is not None


def test_the_id_says_which_of_two_captures_of_a_second_is_meant(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    planting.exchange("a.warc.gz", "other", f"{SITE}/2", text("other", 4_000), date="2020-01-01T01:00:00.5Z")
    copy = planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, date="2020-01-01T01:00:00.123Z")
    planting.exchange("a.warc.gz", "again", f"{SITE}/4", text("other", 4_000))
    planting.revisit("a.warc.gz", "old", f"{SITE}/3", copy)
    change = {b"WARC-Refers-To-Date": b"2020-01-01T01:00:00Z", b"WARC-Payload-Digest": None}
    edited(planting, "a.warc.gz", "old", lambda name, value: change.get(name, value))
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    found = records(tmp_path / "out" / "a.warc.gz")[rid("old")]
    assert (report.converted, report.kept_in) == (2, None)
    assert (found.refers_to, found.refers_to_uri) == (rid("first"), f"{SITE}/1")


def test_a_place_that_an_original_shares_with_a_copy_means_the_original(tmp_path: Path) -> None:
    planting = Planting()
    planting.file("a.warc.gz")
    planting.exchange("a.warc.gz", "first", f"{SITE}/1", PAGE)
    date = "2020-01-01T01:00:00Z"
    other = planting.exchange("a.warc.gz", "other", f"{SITE}/2", text("other", 4_000), date=date)
    planting.exchange("a.warc.gz", "copy", f"{SITE}/2", PAGE, date=date)
    planting.exchange("a.warc.gz", "again", f"{SITE}/4", text("other", 4_000), date="2020-01-02T01:00:00Z")
    planting.revisit("a.warc.gz", "old", f"{SITE}/3", other, names=("uri", "date"))
    edited(planting, "a.warc.gz", "old", without(b"WARC-Payload-Digest"))
    planting.write(tmp_path / "in")

    report = run(tmp_path / "in", tmp_path / "out")

    found = records(tmp_path / "out" / "a.warc.gz")[rid("old")]
    assert (report.converted, report.kept_in) == (2, None)
    assert (found.refers_to_uri, found.refers_to_date) == (f"{SITE}/2", date)
