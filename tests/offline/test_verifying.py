"""A right rewriting passes; every way to spoil it is found, and told with its place."""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from offline.archive_pairs import (
    HEAD,
    OTHER,
    SAME,
    Archive,
    Rec,
    archive,
    change,
    convert,
    deduplicated,
    old_revisit,
    other,
    record_id,
    response,
    sha1,
)
from offline.old_facts import old_records
from offline.planted import in_chunks
from sampling import examples

from scrapy_dedupe.errors import ArchiveError, DamagedInput, SettingError
from scrapy_dedupe.verification.heads import digest_like
from scrapy_dedupe.verification.verifying import Verification, pairs_of, verify
from scrapy_dedupe.warc.capture import digest_in_form_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run(before: Archive, after: Archive, folder: Path, **options: object) -> Verification:
    """Verify with both files, and with facts about the file before, which must give the same result."""
    pairs = pairs_of(before.write(folder / "before"), after.write(folder / "after"))
    options.setdefault("seed", 1)
    result = verify(pairs, work=folder / "work", **options)  # type: ignore[arg-type]
    facts = [old and list(old_records(old, on_damage=lambda _: None)) for old, _ in pairs]
    known = verify(pairs, facts=facts, work=folder / "work", **options)  # type: ignore[arg-type]
    assert replace(known, seconds=0) == replace(result, seconds=0)
    return result


def reasons(result: Verification) -> str:
    return "\n".join(map(str, result.findings))


def test_a_right_rewriting_has_no_finding(tmp_path: Path) -> None:
    result = run(archive(), deduplicated(), tmp_path)
    assert reasons(result) == ""
    assert result.is_right
    assert (result.files, result.records) == (2, 12)
    assert (result.unchanged, result.converted, result.repointed, result.restored) == (5, 2, 5, 0)
    assert (result.resolved, result.dangling_before) == (3, 1)
    assert (result.sample, result.replayed) == (2, 2)
    assert len(result.notes) == 1
    assert "b.warc" in result.notes[0]


def test_undoing_it_has_no_finding(tmp_path: Path) -> None:
    result = run(deduplicated(), archive(), tmp_path)
    assert reasons(result) == ""
    assert (result.unchanged, result.converted, result.repointed, result.restored) == (5, 0, 5, 2)


def test_an_archive_that_did_not_change_has_no_finding(tmp_path: Path) -> None:
    result = run(archive(), archive(), tmp_path)
    assert reasons(result) == ""
    assert (result.unchanged, result.records) == (12, 12)
    assert (result.resolved, result.dangling_before) == (1, 1)


def test_records_that_were_compressed_anew_are_unchanged(tmp_path: Path) -> None:
    after = archive()
    for record in after.files["a.warc.gz"].values():
        record.raw = gzip.compress(record.plain(), compresslevel=1, mtime=7)
    result = run(archive(), after, tmp_path)
    assert reasons(result) == ""
    assert result.unchanged == 12


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    one = run(archive(), deduplicated(), tmp_path / "1", seed=5, sample=1)
    two = run(archive(), deduplicated(), tmp_path / "2", seed=5, sample=1, jobs=2)
    assert replace(one, seconds=0, notes=()) == replace(two, seconds=0, notes=())
    assert not list((tmp_path / "2" / "work").iterdir())


def test_chunks_of_the_transfer_may_go(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    before, after = archive(), archive()
    before["alone"].block = head + b"%x\r\n" % len(OTHER) + OTHER + b"\r\n0\r\n\r\n"
    after["alone"].block = head + OTHER
    for one in (before, after):
        one["alone"].set("WARC-Block-Digest", sha1(one["alone"].block))
    result = run(before, after, tmp_path)
    assert reasons(result) == ""
    assert result.rechunked == 1


@pytest.mark.parametrize(
    ("digest", "reason"),
    [
        (sha1(OTHER), ""),
        (sha1(OTHER).lower(), "WARC-Payload-Digest"),
        (sha1(OTHER[:-1]), "WARC-Payload-Digest"),
        (f"sha256:{hashlib.sha256(OTHER).hexdigest()}", "WARC-Payload-Digest"),
    ],
)
def test_a_payload_digest_of_chunks_may_become_that_of_the_payload_alone(
    digest: str, reason: str, tmp_path: Path
) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    before, after = archive(), archive()
    chunked = b"%x\r\n" % len(OTHER) + OTHER + b"\r\n0\r\n\r\n"
    before["alone"].block, after["alone"].block = head + chunked, head + OTHER
    for one in (before, after):
        one["alone"].set("WARC-Block-Digest", sha1(one["alone"].block))
    before["alone"].set("WARC-Payload-Digest", sha1(chunked))
    after["alone"].set("WARC-Payload-Digest", digest)
    found = reasons(run(before, after, tmp_path))
    assert reason in found if reason else found == ""


def test_a_payload_digest_does_not_change_where_no_chunks_went(tmp_path: Path) -> None:
    before, after = archive(), archive()
    before["alone"].set("WARC-Payload-Digest", sha1(b"something else"))
    after["alone"].set("WARC-Payload-Digest", sha1(OTHER))
    assert "WARC-Payload-Digest" in reasons(run(before, after, tmp_path))


def test_a_restored_response_without_chunks_keeps_its_false_payload_digest(tmp_path: Path) -> None:
    before, after = deduplicated(), archive()
    before["copy"].set("Former-WARC-Payload-Digest", sha1(b"something else"))
    assert "Payload-Digest" in reasons(run(before, after, tmp_path / "mended"))
    after["copy"].set("WARC-Payload-Digest", sha1(b"something else"))
    assert reasons(run(before, after, tmp_path / "kept")) == ""


def test_a_payload_that_changed_with_the_chunks_is_found(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    before, after = archive(), archive()
    before["alone"].block = head + b"%x\r\n" % len(OTHER) + OTHER + b"\r\n0\r\n\r\n"
    after["alone"].block = head + OTHER[:-1] + b"!"
    assert "payload differs" in reasons(run(before, after, tmp_path))


def test_an_original_without_digest_gives_its_copies_that_of_the_payload(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        one["first"].drop("WARC-Payload-Digest")
    assert reasons(run(before, after, tmp_path / "right")) == ""
    after["late"].set("WARC-Payload-Digest", sha1(OTHER))
    assert "WARC-Payload-Digest is" in reasons(run(before, after, tmp_path / "wrong"))


def test_a_copy_may_have_the_digest_that_its_original_lacks(tmp_path: Path) -> None:
    before, after = archive(), archive()
    for side in (before, after):
        side["first"].drop("WARC-Payload-Digest")
        del side.files["b.warc"]["late"], side.files["b.warc"]["late request"]
    convert(after["copy"], after["first"], record_id(111))
    change(after["copy request"], "WARC-Concurrent-To", record_id(111))
    for label in ("metadata", "conversion", "revisit"):
        change(after[label], "WARC-Refers-To", after["first"].get("WARC-Record-ID"))
    change(after["revisit"], "WARC-Refers-To-Target-URI", after["first"].get("WARC-Target-URI"))
    change(after["revisit"], "WARC-Refers-To-Date", after["first"].get("WARC-Date"))
    assert "Former-WARC-Payload-Digest" not in dict(after["copy"].fields)

    assert reasons(run(before, after, tmp_path / "right")) == ""

    for side in (before, after):
        side["copy"].set("WARC-Payload-Digest", sha1(OTHER))
    wrong = run(before, after, tmp_path / "wrong")
    assert f"WARC-Payload-Digest is {sha1(OTHER)}, but {sha1(SAME)}" in reasons(wrong)


def test_nul_bytes_between_members_may_go(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for record in before.files["a.warc.gz"].values():
        record.raw = record.to_bytes(is_gzip=True) + bytes(3_000_000)
    result = run(before, after, tmp_path)
    assert reasons(result) == ""
    assert (result.unchanged, result.converted) == (5, 2)


def test_originals_may_lie_elsewhere(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    elsewhere = Archive({"a.warc.gz": before.files.pop("a.warc.gz")})
    after.files.pop("a.warc.gz")
    folder = elsewhere.write(tmp_path / "elsewhere")
    assert "no existing response or resource" in reasons(run(before, after, tmp_path / "without"))
    result = run(before, after, tmp_path / "with", originals=[folder / "a.warc.gz"])
    assert reasons(result) == ""
    assert result.replayed == 2


def set_field(label: str, name: str, value: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].set(name, value)

    return spoil


def drop_field(label: str, name: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].drop(name)

    return spoil


def refer(label: str, to: Callable[[Archive], Rec]) -> Callable[[Archive], None]:
    """Let a revisit refer to another record by all that it has."""

    def spoil(after: Archive) -> None:
        target = to(after)
        after[label].set("WARC-Refers-To", target.get("WARC-Record-ID"))
        after[label].set("WARC-Refers-To-Target-URI", target.get("WARC-Target-URI"))
        after[label].set("WARC-Refers-To-Date", target.get("WARC-Date"))

    return spoil


def drop_record(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        del after.files[after.file_of(label)][label]

    return spoil


def add_record(after: Archive) -> None:
    records = after.files["b.warc"]
    added = response(50, "http://example.org/new", "2021-01-01T00:00:00Z", OTHER)
    rest = {label: records.pop(label) for label in list(records)[2:]}
    records.update({"added": added, **rest})


def swap(one: str, two: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        records = after.files[after.file_of(one)]
        order = [{one: two, two: one}.get(label, label) for label in records]
        after.files[after.file_of(one)] = {label: records[label] for label in order}

    return spoil


def drop_file(name: str) -> Callable[[Archive], None]:
    return lambda after: after.files.pop(name) and None


def swap_fields(after: Archive) -> None:
    fields = after["copy"].fields
    fields[2], fields[3] = fields[3], fields[2]


def change_body(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].block = after[label].block[:-1] + b"!"

    return spoil


def change_head(after: Archive) -> None:
    after["copy"].block = after["copy"].block.replace(b"text/html", b"text/HTML")
    after["copy"].set("WARC-Block-Digest", sha1(after["copy"].block))


def make_old_revisit_of(label: str) -> Callable[[Archive], None]:
    """A record that nobody else holds becomes a revisit."""

    def spoil(after: Archive) -> None:
        convert(after[label], after["first"], record_id(150))

    return spoil


def wrong_version(after: Archive) -> None:
    after["copy"].version = "WARC/1.0"


def keep_bytes_between(after: Archive) -> None:
    after["copy"].raw = after["copy"].plain() + b"\r\n\r\nnothing\r\n"


def share_an_id(one: str, two: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        new = after[one].get("WARC-Record-ID")
        after[two].set("WARC-Record-ID", new)
        after[f"{two} request"].set("WARC-Concurrent-To", new)

    return spoil


def take_id(label: str, number: int) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].set("WARC-Record-ID", record_id(number))
        after[f"{label} request"].set("WARC-Concurrent-To", record_id(number))

    return spoil


def change_of(label: str, name: str, value: str) -> Callable[[Archive], None]:
    return lambda after: change(after[label], name, value)


def lose_digest(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].set("Former-WARC-Payload-Digest", after[label].get("WARC-Payload-Digest"))
        after[label].drop("WARC-Payload-Digest")

    return spoil


def edited(label: str, old: bytes, new: bytes) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].raw = after[label].plain().replace(old, new, 1)

    return spoil


def end_lines_with_lf(record: Rec) -> None:
    head, _, rest = record.plain().partition(b"\r\n\r\n")
    record.raw = head.replace(b"\r\n", b"\n") + b"\n\n" + rest


def repeat_length(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        line = b"Content-Length: %d\r\n" % len(after[label].block)
        after[label].raw = after[label].plain().replace(line, line + line, 1)

    return spoil


def decompress(after: Archive, name: str) -> None:
    for record in after.files[name].values():
        record.raw = record.plain()


def add_place(label: str) -> Callable[[Archive], None]:
    def spoil(after: Archive) -> None:
        after[label].set("WARC-Refers-To-Target-URI", "http://example.org/nothing")
        after[label].set("Former-WARC-Refers-To-Target-URI", "none")

    return spoil


MUTATIONS: dict[str, tuple[Callable[[Archive], None], str]] = {
    "wrong original": (refer("copy", lambda a: a["alone"]), "another payload"),
    "wrong original by id alone": (set_field("copy", "WARC-Refers-To", record_id(3)), "another payload"),
    "no id of the original": (drop_field("copy", "WARC-Refers-To"), "WARC-Refers-To is missing"),
    "no id of the original of a record without a digest": (drop_field("late", "WARC-Refers-To"), "WARC-Refers-To is missing"),
    "no id in a mended revisit": (drop_field("revisit", "WARC-Refers-To"), "WARC-Refers-To is missing"),
    "original by id is a twin": (set_field("copy", "WARC-Refers-To", record_id(4)), "is truncated"),
    "wrong date": (set_field("copy", "WARC-Refers-To-Date", "2020-01-01T00:00:00.001Z"), "no existing response"),
    "wrong URI": (set_field("copy", "WARC-Refers-To-Target-URI", "http://example.org/9"), "no existing response"),
    "itself": (refer("copy", lambda a: a["copy"]), "no existing response or resource"),
    "chain": (refer("copy", lambda a: a["late"]), "no existing response or resource"),
    "chain to an old revisit": (refer("copy", lambda a: a["revisit"]), "no existing response or resource"),
    "revisit of a cut record": (refer("copy", lambda a: a["cut"]), "is truncated"),
    "cut record became a revisit": (make_old_revisit_of("cut"), "was truncated or partial"),
    "other payload became a revisit": (make_old_revisit_of("alone"), "another payload"),
    "dropped record": (drop_record("alone"), "no longer in its place"),
    "dropped last record": (drop_record("dangling"), "no longer in its place"),
    "dropped request": (drop_record("copy request"), "no longer in its place"),
    "added record": (add_record, "no such response record"),
    "swapped records": (swap("first request", "alone"), "no longer in its place"),
    "swapped changed records": (swap("metadata", "conversion"), "no longer in its place"),
    "swapped fields": (swap_fields, "order of its fields"),
    "changed field": (set_field("copy", "X-Of-The-Crawler", "lost"), "X-Of-The-Crawler"),
    "changed field of a plain record": (set_field("alone", "X-Of-The-Crawler", "lost"), "X-Of-The-Crawler"),
    "lost field": (drop_field("late", "WARC-IP-Address"), "WARC-IP-Address"),
    "new field": (set_field("copy", "X-New", "1"), "X-New"),
    "other date": (set_field("copy", "WARC-Date", "2020-02-01T00:00:01Z"), "WARC-Date"),
    "other version": (wrong_version, "the version is"),
    "changed HTTP head": (change_head, "HTTP head differs"),
    "changed body byte": (change_body("alone"), "block differs"),
    "changed body byte of the original": (change_body("first"), "block differs"),
    "changed body of metadata": (change_body("metadata"), "block differs"),
    "wrong profile": (set_field("copy", "WARC-Profile", "http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"), "WARC-Profile"),
    "not truncated": (drop_field("copy", "WARC-Truncated"), "WARC-Truncated"),
    "digest in another form": (
        set_field("copy", "WARC-Payload-Digest", sha1(SAME).lower()),
        "WARC-Payload-Digest",
    ),
    "digest of something else": (set_field("late", "WARC-Payload-Digest", sha1(OTHER)), "WARC-Payload-Digest"),
    "no digest": (drop_field("copy", "WARC-Payload-Digest"), "WARC-Payload-Digest is missing"),
    "wrong block digest": (set_field("copy", "WARC-Block-Digest", sha1(b"")), "WARC-Block-Digest does not match"),
    "old id": (set_field("copy", "WARC-Record-ID", record_id(11)), "record id of the response"),
    "id without brackets": (set_field("copy", "WARC-Record-ID", record_id(111).strip("<>")), "angle brackets"),
    "control character": (set_field("late", "WARC-Refers-To-Date", "2020-01-01T00:00:00Z\x0c"), "control characters"),
    "no former id": (drop_field("copy", "Former-WARC-Record-ID"), "no Former-WARC-Record-ID"),
    "wrong former id": (set_field("copy", "Former-WARC-Record-ID", record_id(77)), "which was not its value"),
    "no former digest": (drop_field("late", "Former-WARC-Payload-Digest"), "no Former-WARC-Payload-Digest"),
    "no former block digest": (drop_field("copy", "Former-WARC-Block-Digest"), "Former-WARC-Block-Digest"),
    "id that the request does not name": (set_field("copy", "WARC-Record-ID", record_id(222)), "refers to another record"),
    "dangling request": (
        lambda after: after.files["b.warc"].update({"copy request": archive()["copy request"]}),
        "whose id has changed",
    ),
    "request of another": (set_field("copy request", "WARC-Concurrent-To", record_id(112)), "refers to another record"),
    "request without the former value": (
        drop_field("copy request", "Former-WARC-Concurrent-To"),
        "no Former-WARC-Concurrent-To",
    ),
    "request that lost its response": (drop_field("copy request", "WARC-Concurrent-To"), "WARC-Concurrent-To is gone"),
    "dangling metadata": (
        lambda after: after.files["b.warc"].update({"metadata": archive()["metadata"]}),
        "whose id has changed",
    ),
    "metadata of another": (set_field("metadata", "WARC-Refers-To", record_id(3)), "another payload"),
    "metadata without its reference": (drop_field("metadata", "WARC-Refers-To"), "WARC-Refers-To is gone"),
    "old revisit left to dangle": (
        lambda after: after.files["b.warc"].update({"revisit": archive()["revisit"]}),
        "no longer leads to it",
    ),
    "old revisit to another payload": (refer("revisit", lambda a: a["alone"]), "another payload"),
    "old revisit to a revisit": (refer("revisit", lambda a: a["late"]), "no existing response or resource"),
    "old revisit to a cut record": (refer("revisit", lambda a: a["cut"]), "is truncated"),
    "dangling revisit given a reference": (
        lambda after: change(after["dangling"], "WARC-Refers-To", record_id(1)),
        "led nowhere before",
    ),
    "lost file": (drop_file("a.warc.gz"), "no such file after"),
    "lost file with the copies": (drop_file("b.warc"), "no such file after"),
    "added file": (
        lambda after: after.files.update({"c.warc": {"new": response(60, "http://c/", "2021-01-01T00:00:00Z", OTHER)}}),
        "no such file before",
    ),
    "bytes between records": (keep_bytes_between, "damaged place"),
    "two revisits with one id": (share_an_id("copy", "late"), "another record has its new record id"),
    "revisit with the id of its original": (take_id("copy", 1), "another record has its new record id"),
    "revisit with the id of a request": (take_id("copy", 2), "another record has its new record id"),
    "revisit with the id of an old revisit": (take_id("copy", 17), "another record has its new record id"),
    "URI in angle brackets": (set_field("copy", "WARC-Refers-To-Target-URI", "<http://example.org/1>"), "angle brackets"),
    "reference without angle brackets": (set_field("copy", "WARC-Refers-To", record_id(1).strip("<>")), "angle brackets"),
    "mended URI in angle brackets": (set_field("revisit", "WARC-Refers-To-Target-URI", "<http://example.org/1>"), "angle brackets"),
    "mended reference without angle brackets": (set_field("revisit", "WARC-Refers-To", record_id(1).strip("<>")), "angle brackets"),
    "mended revisit with another digest": (change_of("revisit", "WARC-Payload-Digest", sha1(OTHER)), "in its original"),
    "mended revisit without its digest": (lose_digest("revisit"), "in its original"),
    "dangling revisit with another digest": (change_of("dangling", "WARC-Payload-Digest", sha1(OTHER)), "led nowhere before"),
    "Content-Length twice": (repeat_length("copy"), "Content-Length"),
    "blank before the colon": (edited("copy", b"WARC-Refers-To-Date:", b"WARC-Refers-To-Date :"), "not written as"),
    "folded field": (edited("copy", b"WARC-Refers-To-Date: ", b"WARC-Refers-To-Date:\r\n "), "not written as"),
    "folded field of another record": (edited("dangling", b"WARC-Date: ", b"WARC-Date:\r\n "), "not written as"),
    "line ends without CR": (lambda after: end_lines_with_lf(after["copy"]), "not written as"),
    "one line end behind a record": (edited("late", b"\r\n\r\n\r\n\r\n", b"\r\n\r\n\r\n"), "not followed by CRLF CRLF"),
    "type in capitals": (edited("copy", b": revisit", b": Revisit"), "WARC-Type is"),
    "file no longer compressed": (lambda after: decompress(after, "a.warc.gz"), "no longer compressed"),
    "metadata with a place that is nothing": (add_place("metadata"), "was not there before"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_found(tmp_path: Path, name: str) -> None:
    spoil, reason = MUTATIONS[name]
    after = deduplicated()
    spoil(after)
    result = run(archive(), after, tmp_path, keep_going=True)
    assert reason in reasons(result)
    assert not result.is_right
    # One fault must not hide the rest of the file behind others that are none.
    assert result.findings_count <= 8, reasons(result)
    for finding in result.findings:
        assert finding.before or finding.after


def test_a_revisit_whose_original_is_in_a_missing_file_is_found(tmp_path: Path) -> None:
    after = deduplicated()
    del after.files["a.warc.gz"]
    result = run(archive(), after, tmp_path)
    found = [finding for finding in result.findings if finding.kind == "reference"]
    assert len(found) == 3 + 2, reasons(result)  # three revisits, metadata and conversion
    assert all("b.warc, offset" in str(finding.after) for finding in found)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (change_body("copy"), "not that of the revisit"),
        (set_field("copy", "WARC-Record-ID", record_id(77)), "record id"),
        (set_field("copy request", "WARC-Concurrent-To", record_id(111)), "whose id has changed"),
        (set_field("revisit", "WARC-Refers-To-Date", "2020-01-01T00:00:00Z"), "Former-WARC-Refers-To-Date"),
        (set_field("late", "WARC-Payload-Digest", sha1(SAME)), "Former-WARC-Payload-Digest"),
    ],
)  # fmt: skip
def test_what_was_put_back_wrongly_is_found(
    tmp_path: Path, spoil: Callable[[Archive], None], reason: str
) -> None:
    after = archive()
    spoil(after)
    assert reason in reasons(run(deduplicated(), after, tmp_path)).replace(
        "Former-WARC-Record-ID", "record id"
    )


def test_equal_damage_ends_it_or_is_counted(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        raw = bytearray(one["alone"].to_bytes(is_gzip=True))
        raw[-6] ^= 1
        one["alone"].raw = bytes(raw)
    with pytest.raises(DamagedInput, match=r"a\.warc\.gz, offset"):
        run(before, after, tmp_path / "1")
    result = run(before, after, tmp_path / "2", keep_going=True)
    assert reasons(result) == ""
    assert result.faults_count == 1
    assert result.converted == 2


def test_damage_that_one_side_has_is_a_finding(tmp_path: Path) -> None:
    after = deduplicated()
    raw = bytearray(after["alone"].to_bytes(is_gzip=True))
    raw[-6] ^= 1
    after["alone"].raw = bytes(raw)
    result = run(archive(), after, tmp_path)
    assert "damaged place that differs" in reasons(result)


def test_after_a_damaged_place_that_is_gone_the_rest_is_still_compared(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    before["first"].raw = before["first"].to_bytes(is_gzip=True) + b"these bytes are no record"
    result = run(before, after, tmp_path, keep_going=True)
    assert [(finding.kind, finding.reason) for finding in result.findings] == [
        ("bytes", "25 bytes are missing")
    ]
    assert (result.unchanged, result.converted, result.repointed) == (5, 2, 5)


def test_records_that_have_nothing_in_common_do_not_hide_those_that_follow(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one, start in ((before, 2_000), (after, 4_000)):
        others = {str(n): other("metadata", start + n, archive()["first"]) for n in range(600)}
        for number, record in enumerate(others.values()):
            record.set("WARC-Date", f"2020-01-01T00:00:00.{start + number}Z")
        one.files["b.warc"] = {**others, **one.files["b.warc"]}
    result = run(before, after, tmp_path)
    assert (result.findings_count, result.converted, result.repointed) == (600, 2, 5)


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc"])
def test_a_record_with_another_compression_than_its_file_is_damage_that_both_have(
    tmp_path: Path, name: str
) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        stray = other("metadata", 95, archive()["first"])
        stray.raw = stray.to_bytes(is_gzip=name == "b.warc")
        one.files[name]["stray"] = stray
    result = run(before, after, tmp_path, keep_going=True)
    assert reasons(result) == ""
    assert (result.faults_count, result.converted) == (1, 2)


def test_records_of_a_shared_member_after_damage_are_counted_once(tmp_path: Path) -> None:
    one = archive()
    member = gzip.compress(one["first request"].plain() + one["alone"].plain(), mtime=0)
    one["first request"].raw, one["alone"].raw = b"these bytes are no record" + member, b""
    result = run(one, one, tmp_path, keep_going=True)
    assert reasons(result) == ""
    assert (result.faults_count, result.records) == (1, sum(map(len, one.files.values())))


def test_members_with_several_records_are_compared_as_bytes(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    member = gzip.compress(before["first request"].plain() + before["alone"].plain(), mtime=0)
    for one in (before, after):
        one["first request"].raw, one["alone"].raw = member, b""
    assert reasons(run(before, after, tmp_path / "right")) == ""
    after["first request"].raw = gzip.compress(
        before["first request"].plain() + before["alone"].plain(), 1, mtime=9
    )
    assert "between records differ" in reasons(run(before, after, tmp_path / "wrong"))


def test_an_old_revisit_that_names_no_original_needs_one_when_it_becomes_a_revisit(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        old = one["revisit"]
        old.fields = [field for field in archive()["revisit"].fields if "Refers-To" not in field[0]]
        old.set("WARC-Target-URI", "http://example.org/2")
    assert "no longer leads to it" in reasons(run(before, after, tmp_path / "left"))
    mended = after["revisit"]
    for name, value in (
        ("WARC-Refers-To", record_id(1)),
        ("WARC-Refers-To-Target-URI", "http://example.org/1"),
        ("WARC-Refers-To-Date", "2020-01-01T00:00:00Z"),
    ):
        mended.set(name, value)
        mended.set(f"Former-{name}", "none")
    result = run(before, after, tmp_path / "mended")
    assert reasons(result) == ""
    assert result.repointed == 5
    assert reasons(run(after, before, tmp_path / "back")) == ""


def test_an_original_without_id_is_found_by_uri_and_date(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    old_id = before["first"].get("WARC-Record-ID")
    for one in (before, after):
        one["first"].drop("WARC-Record-ID")
        one["first request"].drop("WARC-Concurrent-To")
    for label in ("copy", "late", "revisit"):
        after[label].drop("WARC-Refers-To")
    for label in ("metadata", "conversion"):
        assert after[label].get("WARC-Refers-To") == old_id
        after[label].set("WARC-Refers-To", record_id(111))
    result = run(before, after, tmp_path)
    assert reasons(result) == ""
    assert result.replayed == 2


@pytest.mark.parametrize("comes_first", [True, False])
def test_an_original_without_id_may_have_a_twin_that_has_one(tmp_path: Path, comes_first: bool) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        twin = response(70, "http://example.org/1", "2020-01-01T00:00:00Z", SAME)
        one.files["0.warc" if comes_first else "c.warc"] = {"twin": twin}
        one["first"].drop("WARC-Record-ID")
        one["first request"].drop("WARC-Concurrent-To")
    for label in ("copy", "late", "revisit"):
        after[label].drop("WARC-Refers-To")
    for label in ("metadata", "conversion"):
        after[label].set("WARC-Refers-To", record_id(111))
    assert reasons(run(before, after, tmp_path / "right")) == ""


def test_a_copy_may_have_the_uri_and_date_of_its_original(tmp_path: Path) -> None:
    before, after = archive(), archive()
    for one in (before, after):
        twin = response(70, "http://example.org/1", "2020-01-01T00:00:00Z", SAME)
        one.files["b.warc"]["twin"] = twin
    convert(after["twin"], after["first"], record_id(170))
    assert reasons(run(before, after, tmp_path / "right")) == ""
    after["twin"].set("WARC-Refers-To", record_id(170))
    assert "no existing response or resource" in reasons(run(before, after, tmp_path / "itself"))


def test_a_negative_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="sample"):
        run(archive(), archive(), tmp_path, sample=-1)


def test_all_findings_are_counted_and_the_first_thousand_kept(tmp_path: Path) -> None:
    """Two files have nothing in common."""
    before, after = Archive({"a.warc": {}}), Archive({"a.warc": {}})
    for one, start in ((before, 2_000), (after, 4_000)):
        for number in range(start, start + 1_001):
            record = other("metadata", number, archive()["first"])
            record.set("WARC-Date", f"2020-01-01T00:00:00.{number}Z")
            one.files["a.warc"][str(number)] = record
    result = run(before, after, tmp_path)
    assert (result.records, result.findings_count, len(result.findings)) == (1_001, 1_001, 1_000)


def test_an_arc_file_may_have_become_a_warc_file(tmp_path: Path) -> None:
    body = HEAD % b"7" + SAME
    block = b"1 0 test\nURL IP-address Archive-date Content-type Archive-length\n"
    version = b"filedesc://a.arc 0.0.0.0 20200101000000 text/plain %d\n" % len(block)
    arc = (
        version
        + block
        + b"\nhttp://example.org/1 192.0.2.1 20200101000000 text/html %d\n" % len(body)
        + body
        + b"\n"
    )
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "a.arc").write_bytes(arc)
    info = Rec([["WARC-Type", "warcinfo"], ["WARC-Record-ID", record_id(5)]], b"of: an ARC file\r\n")
    made = response(7, "http://example.org/1", "2020-01-01T00:00:00Z", SAME)
    Archive({"a.warc": {"info": info, "made": made}}).write(tmp_path / "after")
    pairs = pairs_of(tmp_path / "before", tmp_path / "after")
    result = verify(pairs, work=tmp_path)
    assert reasons(result) == ""
    assert result.from_arc == 1
    made.block = made.block[:-1] + b"!"
    Archive({"a.warc": {"info": info, "made": made}}).write(tmp_path / "wrong")
    assert "payload differs" in reasons(
        verify(pairs_of(tmp_path / "before", tmp_path / "wrong"), work=tmp_path)
    )


@settings(max_examples=examples(60), deadline=None)
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7), name=st.sampled_from(["a.warc.gz", "b.warc"]))
@example(position=603, bit=1, name="b.warc").via("the last bracket of WARC-Refers-To")
@example(position=3224, bit=1, name="b.warc").via(
    "the last bracket of WARC-Refers-To in a record of metadata"
)
def test_no_flipped_bit_of_a_plain_or_compressed_file_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, name: str
) -> None:
    folder = tmp_path_factory.mktemp("bits")
    before = archive().write(folder / "before")
    after = deduplicated().write(folder / "after")
    data = bytearray((after / name).read_bytes())
    data[position % len(data)] ^= 1 << bit
    (after / name).write_bytes(data)
    result = verify(pairs_of(before, after), work=folder, keep_going=True)
    if result.findings_count:
        return
    # Bits that mean nothing (the time in a gzip header) may differ: what is read must be the same.
    read = [gzip.decompress(data) if name.endswith(".gz") else bytes(data)]
    right = deduplicated().write(folder / "right") / name
    expected = gzip.decompress(right.read_bytes()) if name.endswith(".gz") else right.read_bytes()
    assert read[0].lower() == expected.lower()


def both() -> tuple[Archive, Archive]:
    return archive(), deduplicated()


def test_a_revisit_whose_reference_did_not_change_keeps_its_digest(tmp_path: Path) -> None:
    """Another form of the digest than the original's was good enough before."""
    before, after = both()
    for one in (before, after):
        kept = old_revisit(80, one["first"], "2020-06-01T00:00:00Z")
        kept.set("WARC-Payload-Digest", sha1(SAME).lower())
        kept.set("WARC-Concurrent-To", record_id(11))
        one.files["b.warc"]["kept"] = kept
    change(after["kept"], "WARC-Concurrent-To", record_id(111))
    assert reasons(run(before, after, tmp_path)) == ""


@pytest.mark.parametrize("names", [("WARC-Refers-To",), ()])
@pytest.mark.parametrize("date", [None, "2011-11-11T00:00:00Z"])
def test_a_uri_and_a_digest_lead_where_the_date_is_missing_or_wrong(
    tmp_path: Path, names: tuple[str, ...], date: str | None
) -> None:
    before, after = both()
    for one in (before, after):
        old = old_revisit(16, archive()["copy"], "2020-04-01T00:00:00Z")
        for name in names:
            old.drop(name)
        if date is None:
            old.drop("WARC-Refers-To-Date")
        else:
            old.set("WARC-Refers-To-Date", date)
        one.files["b.warc"]["revisit"] = old
    assert "and the digest led to a payload before" in reasons(run(before, after, tmp_path / "left"))
    old = after["revisit"]
    for name, value in (
        ("WARC-Refers-To", record_id(1)),
        ("WARC-Refers-To-Target-URI", "http://example.org/1"),
        ("WARC-Refers-To-Date", "2020-01-01T00:00:00Z"),
    ):
        former = dict(map(tuple, old.fields)).get(name, "none")  # type: ignore[arg-type]
        old.set(name, value)
        old.set(f"Former-{name}", former)
    assert reasons(run(before, after, tmp_path / "mended")) == ""
    assert reasons(run(after, before, tmp_path / "back")) == ""


def test_the_digest_that_replay_programs_compute_leads_to_a_record_without_one(tmp_path: Path) -> None:
    before, after = both()
    for one in (before, after):
        old = old_revisit(16, archive()["late"], "2020-04-01T00:00:00Z")
        for name in ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date"):
            old.drop(name)
        old.set("WARC-Target-URI", "http://example.org/late")
        one.files["b.warc"]["revisit"] = old
        one["late"].set("WARC-Target-URI", "http://example.org/late")
    assert "its own URI and digest led to a payload" in reasons(run(before, after, tmp_path))


def test_a_revisit_that_names_one_of_two_records_with_an_id_may_not_go_to_the_other(tmp_path: Path) -> None:
    """The id stands on a record that stays, too; URI and date say which one is meant."""
    before, after = both()
    for one in (before, after):
        one["alone"].set("WARC-Record-ID", record_id(11))
        old = old_revisit(16, one["alone"], "2020-04-01T00:00:00Z")
        old.drop("WARC-Payload-Digest")
        one.files["b.warc"]["revisit"] = old
    assert reasons(run(before, after, tmp_path / "left")) == ""
    for name in ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date"):
        change(
            after["revisit"],
            name,
            archive()["first"].get(name.replace("Refers-To-", "").replace("Refers-To", "Record-ID")),
        )
    assert "another payload" in reasons(run(before, after, tmp_path / "wrong"))


def test_a_link_stays_with_a_record_that_kept_its_id(tmp_path: Path) -> None:
    before, after = both()
    for one in (before, after):
        one["alone"].set("WARC-Record-ID", record_id(11))
        link = other("metadata", 81, one["alone"])
        link.drop("WARC-Refers-To")
        link.set("WARC-Concurrent-To", record_id(11))
        one.files["a.warc.gz"]["link"] = link
    assert reasons(run(before, after, tmp_path / "left")) == ""
    change(after["link"], "WARC-Concurrent-To", record_id(111))
    assert "refers to another record" in reasons(run(before, after, tmp_path / "wrong"))


def test_a_link_may_have_the_new_id_of_a_record_that_another_host_converts(tmp_path: Path) -> None:
    before, after = both()
    for one in (before, after):
        link = other("metadata", 81, one["first"])
        link.drop("WARC-Refers-To")
        link.set("WARC-Concurrent-To", record_id(11))
        one.files["a.warc.gz"]["link"] = link
    change(after["link"], "WARC-Concurrent-To", record_id(111))
    elsewhere = Archive({"b.warc": before.files.pop("b.warc")}).write(tmp_path / "elsewhere") / "b.warc"
    del after.files["b.warc"]
    assert reasons(run(before, after, tmp_path / "right", originals=[elsewhere])) == ""
    after["link"].set("WARC-Concurrent-To", record_id(1))
    assert "refers to another record" in reasons(
        run(before, after, tmp_path / "wrong", originals=[elsewhere])
    )


def test_a_link_to_a_record_that_another_host_rewrites_must_not_be_removed(tmp_path: Path) -> None:
    before, after = Archive(), Archive()
    for one in (before, after):
        link = response(81, "http://example.org/link", "2020-01-01T00:00:00Z", OTHER)
        one.files["a.warc.gz"] = {"link": link}
    before["link"].set("WARC-Concurrent-To", record_id(11))
    target = response(11, "http://example.org/target", "2020-01-01T00:00:00Z", SAME)
    elsewhere = Archive({"b.warc": {"target": target}}).write(tmp_path / "elsewhere") / "b.warc"
    result = run(before, after, tmp_path, originals=[elsewhere])
    assert "WARC-Concurrent-To is gone, or was added" in reasons(result)


def test_what_is_left_of_a_reference_of_an_earlier_run_is_undone_with_the_rest(tmp_path: Path) -> None:
    """The original of the first run becomes a revisit of an earlier one in the second."""
    second = deduplicated()
    second["copy"].set("WARC-Refers-To", record_id(82))
    second["copy"].set("WARC-Refers-To-Target-URI", "http://example.org/early")
    second["copy"].set("WARC-Refers-To-Date", "2010-01-01T00:00:00Z")
    for name, of in (("", "WARC-Record-ID"), ("-Target-URI", "WARC-Target-URI"), ("-Date", "WARC-Date")):
        second["copy"].set(f"Former-WARC-Refers-To{name}", archive()["first"].get(of))
    before, first = both()
    for one in (before, first, second):
        one.files["a.warc.gz"]["early"] = response(
            82, "http://example.org/early", "2010-01-01T00:00:00Z", SAME
        )
    for number, (old, new) in enumerate(((first, second), (before, second), (second, before))):
        assert reasons(run(old, new, tmp_path / str(number))) == ""
    for name, value in (
        ("WARC-Refers-To", record_id(1)),
        ("Former-WARC-Record-ID", record_id(11)),
        ("WARC-Profile", "x"),
    ):
        wrong, _ = both()
        wrong.files["a.warc.gz"]["early"] = before["early"]
        wrong["copy"].set(name, value)
        assert "the response has a field" in reasons(run(second, wrong, tmp_path / name))


def test_a_block_digest_that_does_not_fit_without_the_chunks_is_found(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    before, after = archive(), archive()
    before["alone"].block = head + b"%x\r\n" % len(OTHER) + OTHER + b"\r\n0\r\n\r\n"
    after["alone"].block = head + OTHER
    for one in (before, after):
        one["alone"].set("WARC-Block-Digest", sha1(before["alone"].block))
    assert "WARC-Block-Digest does not match its block" in reasons(run(before, after, tmp_path))


def test_nothing_tells_the_http_head_of_a_revisit_without_one(tmp_path: Path) -> None:
    before, after = archive(), archive()
    before["revisit"].block = b""
    restored = after["revisit"]
    for name in ("WARC-Refers-To", "WARC-Refers-To-Target-URI", "WARC-Refers-To-Date", "WARC-Profile"):
        restored.drop(name)
    restored.set("WARC-Type", "response")
    restored.block = b"HTTP/1.1 404 Of Anybody\r\n\r\n" + SAME
    assert "had no HTTP head" in reasons(run(before, after, tmp_path))


def test_a_file_before_is_no_original_by_another_name(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    del after.files["a.warc.gz"]
    folder = before.write(tmp_path / "before")
    (tmp_path / "link").symlink_to(folder)
    pairs = pairs_of(folder, after.write(tmp_path / "after"))
    result = verify(pairs, work=tmp_path, originals=[tmp_path / "link" / "a.warc.gz"])
    assert "refer to no existing response or resource" in reasons(result)


def test_a_hard_link_to_a_file_before_is_an_original_since_it_keeps_the_content(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    del after.files["a.warc.gz"]
    folder = before.write(tmp_path / "before")
    pairs = pairs_of(folder, after.write(tmp_path / "after"))
    kept = tmp_path / "kept.warc.gz"
    kept.hardlink_to(folder / "a.warc.gz")
    result = verify(pairs, work=tmp_path, originals=[kept])
    # Only the file that AFTER lacks is a finding, not the revisits that lead to its content.
    assert {(finding.before, finding.after) for finding in result.findings} == {
        (str(folder / "a.warc.gz"), None)
    }


def test_another_payload_of_the_same_second_is_noted(tmp_path: Path) -> None:
    before, after = both()
    for one in (before, after):
        one.files["a.warc.gz"]["next"] = response(83, "http://example.org/1", "2020-01-01T00:00:00.7Z", OTHER)
    result = run(before, after, tmp_path)
    assert reasons(result) == ""
    assert (result.ambiguous, result.dangling_before) == (2, 1)
    assert sum("a date in the same second" in note for note in result.notes) == 2


def test_a_field_may_be_folded_before_its_value(tmp_path: Path) -> None:
    before = archive()
    before["metadata"].raw = (
        before["metadata"].plain().replace(b"WARC-Target-URI: ", b"WARC-Target-URI:\r\n ")
    )
    assert reasons(run(before, deduplicated(), tmp_path)) == ""


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("sha1:da39A3ee5e6b4b0d3255bfef95601890afd80709", "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("sha1:DA39A3EE5E6B4B0D3255BFEF95601890AFD80709", "sha1:DA39A3EE5E6B4B0D3255BFEF95601890AFD80709"),
        ("sha1:3i42h3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"),
        ("sha1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj", "sha1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj"),
    ],
)
def test_a_digest_of_mixed_case_is_written_in_one_case(form: str, expected: str) -> None:
    assert digest_like(form.encode(), ()) == expected.encode()


def test_a_digest_may_end_in_white_space_of_text() -> None:
    # A program that writes a new block digest also reads this one as text.
    form = b"sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709\xa0"
    assert digest_like(form, ()) == form[:-1] == digest_in_form_of(form, ())


@pytest.mark.parametrize("former", ["", "none"])
def test_an_empty_digest_is_none(tmp_path: Path, former: str) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        one["first"].set("WARC-Payload-Digest", "")
    before["late"].set("WARC-Payload-Digest", "")
    order = [field for field in after["late"].fields if "Payload-Digest" not in field[0]]
    order[8:8] = [["WARC-Payload-Digest", sha1(SAME)], ["Former-WARC-Payload-Digest", former]]
    after["late"].fields = order
    late = before["late"]
    late.fields = [field for field in late.fields if "Digest" not in field[0]] + [
        ["WARC-Payload-Digest", ""], ["WARC-Block-Digest", late.get("WARC-Block-Digest")]
    ]  # fmt: skip
    found = reasons(run(before, after, tmp_path))
    assert "order of its fields" in found or found == ""
    assert "Payload-Digest" not in found


def test_captures_of_one_uri_and_second_are_verified_in_steps_that_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, steps = sqlite3.connect, 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def counted(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_progress_handler(count, 100)
        return connection

    def steps_of(copies: int) -> int:
        """How often SQLite takes 100 steps to verify so many copies of one URI and second."""
        nonlocal steps
        before, after = archive(), archive()
        for number in range(copies):
            for one in (before, after):
                one.files["b.warc"][f"copy {number}"] = response(
                    1_000 + number, "http://example.org/1", "2020-01-01T00:00:00Z", SAME
                )
            convert(after[f"copy {number}"], after["first"], record_id(5_000 + number))
        folder = tmp_path / str(copies)
        pairs = pairs_of(before.write(folder / "before"), after.write(folder / "after"))
        steps = 0
        result = verify(pairs, work=folder / "work", sample=10)
        assert (reasons(result), result.converted, result.ambiguous) == ("", copies, 0)
        return steps

    monkeypatch.setattr(sqlite3, "connect", counted)
    few, many = steps_of(200), steps_of(600)
    assert many < 3.5 * few


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def give_block(record: Rec, block: bytes) -> None:
    record.block = block
    record.set("WARC-Block-Digest", sha1(block))


def with_first_in_chunks(copy_head: bytes) -> tuple[Archive, Archive]:
    """The archive before and after, with an original in chunks; ``copy`` stands alone, and ``late`` has a head."""
    before, after = archive(), archive()
    for one in (before, after):
        give_block(one["first"], CHUNKED_HEAD + in_chunks(SAME))
        give_block(one["late"], copy_head + SAME)
    convert(after["late"], after["first"], record_id(112))
    change(after["late request"], "WARC-Concurrent-To", record_id(112))
    return before, after


def test_chunks_of_an_original_of_which_a_new_revisit_does_not_know_are_found(tmp_path: Path) -> None:
    plain_head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    result = run(*with_first_in_chunks(plain_head), tmp_path / "plain")
    assert result.findings_count == 1
    assert "stored in transfer chunks" in reasons(result)
    assert reasons(run(*with_first_in_chunks(CHUNKED_HEAD), tmp_path / "chunked")) == ""


def test_a_copy_that_is_said_to_be_in_chunks_may_have_a_plain_original(tmp_path: Path) -> None:
    before, after = with_first_in_chunks(CHUNKED_HEAD)
    for one in (before, after):
        give_block(one["first"], CHUNKED_HEAD + SAME)
    assert reasons(run(before, after, tmp_path)) == ""


@pytest.mark.parametrize("copy_body", [SAME, in_chunks(SAME)], ids=["plain", "in chunks"])
def test_a_mended_revisit_may_lead_to_chunks_only_if_it_did(tmp_path: Path, copy_body: bytes) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        give_block(one["first"], CHUNKED_HEAD + in_chunks(SAME))
    give_block(before["copy"], CHUNKED_HEAD + copy_body)
    after["copy"].set("Former-WARC-Block-Digest", sha1(before["copy"].block))
    give_block(after["copy"], CHUNKED_HEAD)
    for label in ("late", "late request"):
        after.files["b.warc"][label] = before[label]
    result = run(before, after, tmp_path)
    found = [finding.reason for finding in result.findings]
    assert len(found) == (1 if copy_body == SAME else 0), found
    assert all("stored in transfer chunks" in reason for reason in found)


def test_chunks_that_come_to_an_original_must_not_show_in_its_revisits(tmp_path: Path) -> None:
    before, after = archive(), archive()
    give_block(before["copy"], CHUNKED_HEAD + SAME)
    give_block(after["copy"], CHUNKED_HEAD + in_chunks(SAME))
    assert "stored in transfer chunks" in reasons(run(before, after, tmp_path))


def test_a_revisit_without_an_http_head_takes_that_of_its_original(tmp_path: Path) -> None:
    before, after = archive(), deduplicated()
    for one in (before, after):
        give_block(one["first"], CHUNKED_HEAD + in_chunks(SAME))
        one["revisit"].block = b""
    result = run(before, after, tmp_path)
    places = [finding.after for finding in result.findings]
    assert len(places) == 2, "those of the two copies"
    assert "offset 0" in str(places[0])


def test_two_empty_files_are_damage_that_both_have(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.warc.gz").write_bytes(b"")
    pairs = pairs_of(tmp_path / "before", tmp_path / "after")
    with pytest.raises(DamagedInput, match=r"a\.warc\.gz: the file is empty"):
        verify(pairs, work=tmp_path / "work")
    result = verify(pairs, work=tmp_path / "work", keep_going=True)
    assert (result.is_right, result.faults_count) == (True, 1)


@pytest.mark.parametrize("most_bytes", [8_000, 24_000])
def test_a_full_disk_for_the_facts_is_named(tmp_path: Path, most_bytes: int) -> None:
    # First the facts about one pair of files do not fit on the disk, then all facts with their indexes.
    resource = pytest.importorskip("resource", reason="this system has no limits for files")
    pairs = pairs_of(archive().write(tmp_path / "before"), deduplicated().write(tmp_path / "after"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
        with pytest.raises(ArchiveError, match="where the verification stores its data"):
            verify(pairs, work=tmp_path / "work")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "work").iterdir()) == []
